"""PostgreSQL as a source: what capture needs of it, its column types, its state at a cut.

Belongs here: all SQL that runs on the source (`postgres`, `doctor`, `state`) and the map of its types to
Iceberg's (`types`). Does not: Debezium (`capture`), Iceberg (`lake`, `landing`).
"""
