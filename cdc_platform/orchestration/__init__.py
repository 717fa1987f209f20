"""Dagster's view of the tables: what is shown, what is checked, what runs, and when.

Belongs here: adapters, one module for each kind of Dagster object. Each reads, asks the domain, acts and
reports. Does not: a rule about data, which must be testable without Dagster. Nothing but this package and
`definitions.py` imports dagster. No module here imports Spark, PyIceberg or pyarrow when it is loaded: every
run and every code server imports all of it.
"""
