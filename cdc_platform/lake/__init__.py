"""Iceberg: tables' metadata through PyIceberg (`catalog`), statements through Spark Connect (`spark`), types (`types`).

Belongs here: reaching both and translating what they raise and return. Does not: any rule about change
data. Imports no sibling package.
"""
