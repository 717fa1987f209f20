"""Local services and their supervision: PostgreSQL, Spark Connect, capture, the sink, Dagster.

Belongs here: what runs, how it starts, how one knows that it is ready, and how all of it stops.
Does not: what a service does (`capture/`, `landing/`, `orchestration/`).
"""
