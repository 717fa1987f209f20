"""A hop carries an upstream table's changes into a table that people read: landing → curated is the first.

Belongs here: the contract as SQL (`contract`), deciding and running the MERGE (`merge`), reading what changed
(`delta`). Does not: when to run (`orchestration`), Iceberg access (`lake`).
"""
