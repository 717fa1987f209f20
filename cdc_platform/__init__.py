"""Keeps change-data tables in Apache Iceberg correct, fast to read and cheap to keep.

The packages follow the way of the data: `source` → `capture` → `changelog` → `landing` → `hops`;
`convergence` and `maintenance` watch it, `lake` reaches Iceberg, `orchestration` shows it in Dagster,
`stack` runs the local services. docs/architecture.md has the picture.
"""
