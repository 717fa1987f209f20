"""Keeps each table fast to read: when a rewrite is due, doing it, and what it bought.

Belongs here: decisions from metadata and the procedures' verified effects. Does not: when to look
(`orchestration`), or the sink's own files (`landing`).
"""
