"""The landing table: an Iceberg v2 table upserted from the change log, one snapshot for each commit window.

Belongs here, in the data's order: reading records (`events`) and their values (`values`), what comes late (`late`), a
window's collapse to one change per key (`window`), the data and delete files (`files`) and their commit (`commit`,
`transaction`), the source's changed columns (`evolution`), what the snapshot says of how far it came (`position`), the
loop (`sink`, `service`); what could not be applied (`dead_letters`), and a person's decision on it (`letters`,
`corrections`); replaying a log into another table (`replay`).
Does not: capturing events (`capture`), reading landing rows (`lake.spark`).
"""
