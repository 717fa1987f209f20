"""Debezium's settings for one source, as plain properties.

Belongs here: every option that we set, each for a reason that was measured or read. Does not: starting the engine.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import make_url

from cdc_platform.registry.model import Table

NOTIFICATIONS = "notifications"  # Topic of Debezium's own notifications.
OFFSET_FLUSH_MS = 200
_SIGNAL_POLL_MS = 500
_SSL = ("sslmode", "sslrootcert", "sslcert", "sslkey")  # libpq's names in the URL are Debezium's, too.
_FETCH_ROWS = 2_048
_QUEUE_BYTES_MAX = 128 << 20


def collection_pattern(table: Table) -> str:
    """The regular expression by which Debezium knows this table alone."""
    return f"{re.escape(table.source_schema)}\\.{re.escape(table.source_table)}"


def connector_properties(
    *, name: str, url: str, tables: Iterable[Table], offsets: Path, signals: Path
) -> dict[str, str]:
    """Properties of the PostgreSQL connector. `name` is also the slot's and the publication's."""
    address = make_url(url)
    included = ",".join(sorted(map(collection_pattern, tables)))
    ssl = {f"database.{option}": str(address.query[option]) for option in _SSL if option in address.query}
    return ssl | {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": name,
        "database.hostname": address.host or "localhost",
        "database.port": str(address.port or 5432),
        "database.user": address.username or "",
        "database.password": address.password or "",
        "database.dbname": address.database or "",
        "plugin.name": "pgoutput",
        "slot.name": name,
        "offset.mismatch.strategy": "trust_offset",  # A slot that went on without us is an error, not a gap.
        "publication.name": name,
        "publication.autocreate.mode": "disabled",  # The publication is ours: source/doctor.py.
        "table.include.list": included,
        "snapshot.mode": "initial",
        "snapshot.fetch.size": str(_FETCH_ROWS),
        # Values as they are: `precise` sends base64 and turns NaN into NULL; defaults would replace NULL.
        "decimal.handling.mode": "string",
        "interval.handling.mode": "string",
        "time.precision.mode": "microseconds",
        # Types that it has no schema for (composites, pg_lsn ...) as base64 of their text; else it leaves them out.
        "include.unknown.datatypes": "true",
        # What it can't convert (a NaN in numeric[]) stops capture; by default it would arrive as NULL.
        "event.converting.failure.handling.mode": "fail",
        "key.converter.replace.null.with.default": "false",
        "value.converter.replace.null.with.default": "false",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        # A record's schema then tells types and precision as the stream described them; the JSON is not longer for it.
        "column.propagate.source.type": ".*",
        "skipped.operations": "none",  # Truncate is an event too.
        "tombstones.on.delete": "false",
        "provide.transaction.metadata": "true",  # The order within a transaction.
        "heartbeat.interval.ms": "1000",  # Moves the slot while other tables change.
        "poll.interval.ms": "10",  # 14 ms from commit to handler; the default's 500 make it 407.
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "max.queue.size.in.bytes": str(_QUEUE_BYTES_MAX),  # Wide rows: 32,768 of them need not fit the heap.
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(offsets),
        "offset.flush.interval.ms": str(OFFSET_FLUSH_MS),
        "errors.max.retries": "0",  # A failed service says so and is started again, by its supervisor.
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": NOTIFICATIONS,
        "signal.enabled.channels": "file",
        "signal.file": str(signals),
        "signal.poll.interval.ms": str(_SIGNAL_POLL_MS),
    }
