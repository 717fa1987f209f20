"""One batch of Debezium's records to the change logs of its tables.

Belongs here: which log a record goes to, and the load markers. Does not: Debezium's engine (`capture/engine.py`),
files (`changelog/segments.py`).
Rules: a batch is acknowledged when `write` returns, so `write` syncs every log that it touched. Debezium rewrites
odd characters of a table's name in the topic's, so a topic that two tables could have is routed by the record's
`source.schema` and `source.table`. Notifications that a load begins come before its rows, and that it is complete
after them. After a start Debezium says SKIPPED when it has loaded before: a table whose log has no whole load is
then asked for (a table new in tables.yaml, or a load that a kill broke off).
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from cdc_platform.capture.settings import NOTIFICATIONS, collection_pattern
from cdc_platform.changelog.cuts import Cuts
from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.errors import UnavailableError
from cdc_platform.faults import reach
from cdc_platform.lake.snapshot import Column
from cdc_platform.registry.model import Table
from cdc_platform.source.state import MESSAGE_PREFIX

_UNFIT = re.compile(r"[^a-zA-Z0-9._\-]")
_LOAD = "Initial Snapshot"


def acknowledgeable(records: Sequence[tuple[str, str | None]]) -> int | None:
    """Index of the last record that Debezium may remember as processed; None when there is none in this batch.

    Debezium goes on with the LSN *after* the one it remembers (seen, 3.6.3), so what shares that LSN has to have been
    handled, too: rows of one COPY share one, and a batch may end among them. Its last change is therefore left
    out, with those before it of the same LSN, unless another record comes after it (the transaction's end, a
    heartbeat). They are sent again after a kill, which the sink knows for what it is. Reads of an initial load are
    remembered with the record after the last of them.
    """
    last: int | None = None  # LSN of the batch's last change.
    for index in range(len(records) - 1, -1, -1):
        value = records[index][1]
        event: dict[str, Any] = json.loads(value) if value is not None else {}
        source: dict[str, Any] | None = event.get("source")
        if source is None:
            return index
        if event.get("op") == "r":
            return None
        if last is None:
            last = int(source["lsn"])
        elif int(source["lsn"]) != last:
            return index
    return None


class LogWriter(Protocol):
    """The part of a change log's writer that capture needs."""

    @property
    def end(self) -> int:
        """Position after the newest record."""
        ...

    def append(self, records: list[bytes]) -> None:
        """Write records, each without its newline."""
        ...

    def append_marker(self, record: bytes) -> None:
        """Write a load marker."""
        ...

    def sync(self) -> None:
        """Return when everything is durable."""
        ...


@dataclass
class Router:
    """Writes batches to the logs. `request_load` asks Debezium for a load of the named source tables."""

    prefix: str
    tables: Mapping[str, Table]
    columns: Mapping[str, tuple[Column, ...]]
    writers: Mapping[str, LogWriter]
    unloaded: set[str]  # Tables whose log has no whole load.
    request_load: Callable[[list[str]], None]
    cuts: Cuts
    events: int = 0  # Changes written since the start.
    _topics: dict[str, list[str]] = field(default_factory=dict[str, list[str]], init=False)
    _requested: set[str] = field(default_factory=set[str], init=False)
    _loading: set[str] = field(default_factory=set[str], init=False)

    def __post_init__(self) -> None:
        for name, table in self.tables.items():
            topic = _UNFIT.sub("_", f"{self.prefix}.{table.source_schema}.{table.source_table}")
            self._topics.setdefault(topic, []).append(name)

    def write(self, records: Iterable[tuple[str, str | None]]) -> None:
        """Write (topic, value) records in their order, durably."""
        pending: dict[str, list[bytes]] = {}
        touched: set[str] = set()
        for topic, value in records:
            if value is None:
                continue
            if topic == NOTIFICATIONS:
                self._append(pending, touched)
                self._notified(json.loads(value), touched)
            elif topic == f"{self.prefix}.message":
                self._append(pending, touched)
                self._met(json.loads(value), touched)
            elif (name := self._table_of(topic, value)) is not None:
                pending.setdefault(name, []).append(value.encode())
        self._append(pending, touched)
        reach("segment written")
        self._sync(touched)

    def _sync(self, touched: set[str]) -> None:
        for name in touched:
            self.writers[name].sync()
        touched.clear()

    def _met(self, record: dict[str, Any], touched: set[str]) -> None:
        """Note where the logs end at a message of ours; other applications' messages are passed over."""
        message = record["message"]
        if message["prefix"] == MESSAGE_PREFIX:
            self._sync(touched)
            self.cuts.record(
                base64.b64decode(message["content"]).decode(), {name: w.end for name, w in self.writers.items()}
            )

    def _append(self, pending: dict[str, list[bytes]], touched: set[str]) -> None:
        for name, lines in pending.items():
            self.writers[name].append(lines)
            self.events += len(lines)
            touched.add(name)
        pending.clear()

    def _table_of(self, topic: str, value: str) -> str | None:
        """The table a record belongs to; None for heartbeats and transactions."""
        names = self._topics.get(topic, [])
        if len(names) == 1:
            return names[0]
        if not names:
            return None
        source = json.loads(value)["source"]
        return self._named(f"{source['schema']}.{source['table']}")

    def _named(self, source_table: str) -> str | None:
        for name, table in self.tables.items():
            if f"{table.source_schema}.{table.source_table}" == source_table:
                return name
        return None

    def _notified(self, notification: dict[str, Any], touched: set[str]) -> None:
        if notification["aggregate_type"] != _LOAD:
            return
        kind, ts_ms = notification["type"], int(notification["timestamp"])
        data: dict[str, Any] = notification.get("additional_data") or {}
        if kind == "IN_PROGRESS":
            name = self._named(str(data.get("current_collection_in_progress")))
            if name is not None:
                columns = [asdict(c) for c in self.columns[name]]
                self.writers[name].append_marker(marker(LOAD_BEGIN, ts_ms, columns=columns))
                self._loading.add(name)
                touched.add(name)
        elif kind == "COMPLETED":
            for name in sorted(self._loading):
                self.writers[name].append_marker(marker(LOAD_END, ts_ms))
                touched.add(name)
            self.unloaded -= self._loading
            self._loading.clear()
            self._request_missing()
        elif kind == "SKIPPED":
            self._request_missing()
        elif kind == "ABORTED":
            raise UnavailableError(
                f"Debezium broke off the initial load of {', '.join(sorted(self._loading)) or 'a table'}",
                where=f"capture {self.prefix}",
                action="It is loaded anew by itself; if this comes again, the log says why (`stack.capture_memory_mb`)",
            )

    def _request_missing(self) -> None:
        """Ask for each table once: a load that brings nothing to its log would be asked for for ever."""
        wanted = sorted(self.unloaded - self._requested)
        if wanted:
            self._requested.update(wanted)
            self.request_load([collection_pattern(self.tables[n]) for n in wanted])
