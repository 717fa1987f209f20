"""Proves that a stage holds what the source holds.

Belongs here: states and their differences (`state`), a stage's expected state at a cut (`cut`), the wait and the
verdict (`converge`). Does not: reading PostgreSQL (`source.state`), running as a check (`orchestration`).
"""
