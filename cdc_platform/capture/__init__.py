"""Debezium: reads a source's changes and writes them to the change log.

Belongs here: the connector's settings (`settings`), routing a batch to the logs (`batch`), the embedded engine
(`engine`), the service around it (`service`). Does not: what a change means (`landing`), the log's files
(`changelog`).
"""
