"""The landing table: an Iceberg v2 table upserted from the change log, one snapshot for each commit window.

Belongs here: decoding events (`events`), a window's collapse to one change per key (`window`), the data and
delete files and their commit (`files`, `commit`), what the snapshot says of how far it came (`position`), the
loop (`sink`, `service`), and replaying a log into another table (`replay`).
Does not: capturing events (`capture`), reading landing rows (`lake.spark`).
"""
