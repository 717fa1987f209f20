"""One batch of Debezium's records to the change logs of its tables.

Belongs here: which log a record goes to, the load and schema markers, and what a record that is no change means. Does
not: Debezium's engine (`capture/engine.py`), files (`changelog/segments.py`), which columns a record has
(`capture/schemas.py`).
Rules: a batch is acknowledged when `write` returns, so `write` syncs every log that it touched. Debezium rewrites
odd characters of a table's name in the topic's, so a topic that two tables could have is routed by the record's
`source.schema` and `source.table`. Notifications that a load begins come before its rows, and that it is complete
after them. After a start Debezium says SKIPPED when it has loaded before: a table whose log has no whole load is
then asked for (a table new in tables.yaml, or a load that a kill broke off).
Each kind of record has one meaning; `Router.records` counts them:
- `change`: goes to its table's log. `tombstone` (no value): says that a key is gone, as the delete before it did.
- `cut`, `replay`: our logical messages (`source/messages.py`): where the logs end is noted; a record is appended to its
  table's log at that place. `replay_refused`: one that names no table here or holds no change; `message`: another
  application's. Both are passed over.
- `transaction`, `heartbeat`, `notification`: Debezium's own; they move the acknowledged position.
- `unknown`: a topic of no declared table. Nothing should send one; it is counted, not guessed at.
"""

import base64
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cdc_platform.capture.schemas import RecordSchema, TableColumns, columns_of, starts
from cdc_platform.capture.settings import NOTIFICATIONS, collection_pattern
from cdc_platform.changelog.cuts import Cuts
from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, SCHEMA, is_marker, marker
from cdc_platform.errors import UnavailableError
from cdc_platform.registry.model import Table
from cdc_platform.source.columns import Catalog
from cdc_platform.source.messages import CUT_PREFIX, REPLAY_PREFIX

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
    look_up: Callable[[str], Catalog]  # A table's columns at the source now.
    known: dict[str, TableColumns]  # By table: the columns of the newest record in its log.
    writers: Mapping[str, LogWriter]
    unloaded: set[str]  # Tables whose log has no whole load.
    request_load: Callable[[list[str]], None]
    cuts: Cuts
    records: Counter[str] = field(default_factory=Counter[str])  # By kind, since the start.
    _topics: dict[str, list[str]] = field(default_factory=dict[str, list[str]], init=False)
    _requested: set[str] = field(default_factory=set[str], init=False)
    _loading: set[str] = field(default_factory=set[str], init=False)
    _schemas: dict[str, RecordSchema] = field(default_factory=dict[str, RecordSchema], init=False)

    def __post_init__(self) -> None:
        for name, table in self.tables.items():
            topic = _UNFIT.sub("_", f"{self.prefix}.{table.source_schema}.{table.source_table}")
            self._topics.setdefault(topic, []).append(name)
        self._ours = {  # Topics of no table; a table's would have another dot.
            NOTIFICATIONS: "notification",
            f"{self.prefix}.message": "message",
            f"{self.prefix}.transaction": "transaction",
            f"__debezium-heartbeat.{self.prefix}": "heartbeat",
        }

    def write(self, records: Sequence[tuple[str, str | None]], schema_of: Callable[[int], RecordSchema]) -> None:
        """Write (topic, value) records in their order, durably. `schema_of` gives a record's schema by its index."""
        routes = [self._table_of(topic, value) for topic, value in records]
        changed = self._changed(routes, schema_of)
        pending: dict[str, list[bytes]] = {}
        touched: set[str] = set()
        for index, (topic, value) in enumerate(records):
            name = routes[index]
            if value is None:
                self.records["tombstone"] += 1
            elif name is not None:
                if index in changed:
                    self._append(pending, touched)
                    self._columns(name, changed[index], value, touched)
                pending.setdefault(name, []).append(value.encode())
            else:
                kind = self._ours.get(topic, "unknown")
                if kind == "notification":
                    self._append(pending, touched)
                    self._notified(json.loads(value), touched)
                elif kind == "message":
                    self._append(pending, touched)
                    kind = self._met(json.loads(value), touched)
                self.records[kind] += 1
        self._append(pending, touched)
        self._sync(touched)

    def _changed(
        self, routes: Sequence[str | None], schema_of: Callable[[int], RecordSchema]
    ) -> dict[int, RecordSchema]:
        """Indexes of the records whose schema is another instance than that of their table's record before."""
        indexes: dict[str, list[int]] = {}
        for index, name in enumerate(routes):
            if name is not None:
                indexes.setdefault(name, []).append(index)
        changed: dict[int, RecordSchema] = {}
        for name, of_table in indexes.items():
            asked: dict[int, RecordSchema] = {}

            def schema(index: int, asked: dict[int, RecordSchema] = asked) -> RecordSchema:
                if index not in asked:
                    asked[index] = schema_of(index)
                return asked[index]

            def same(a: int, b: int, of_table: list[int] = of_table, schema: Any = schema) -> bool:
                return schema(of_table[a]).is_same(schema(of_table[b]))

            last = self._schemas.get(name)
            if last is None or not schema(of_table[0]).is_same(last):
                changed[of_table[0]] = schema(of_table[0])
            changed |= {of_table[i]: schema(of_table[i]) for i in starts(len(of_table), same)}
            self._schemas[name] = schema(of_table[-1])
        return changed

    def _columns(self, name: str, schema: RecordSchema, value: str, touched: set[str]) -> None:
        """Before the first record of another schema instance: a marker, if its columns are other ones."""
        event = json.loads(value)
        writer = None if event.get("op") == "r" else int(event["source"]["txId"])
        known = self.known.get(name)
        found = columns_of(schema.columns(), writer=writer, catalog=self.look_up(name), known=known)
        if known is None or not found.same_columns(known):
            self.writers[name].append_marker(marker(SCHEMA, time.time_ns() // 1_000_000, **found.facts()))
            touched.add(name)
        self.known[name] = found

    def _sync(self, touched: set[str]) -> None:
        for name in touched:
            self.writers[name].sync()
        touched.clear()

    def _met(self, record: dict[str, Any], touched: set[str]) -> str:
        """Do what a message of ours asks for; return its kind."""
        message = record["message"]
        if message["prefix"] == CUT_PREFIX:
            self._sync(touched)
            self.cuts.record(
                base64.b64decode(message["content"]).decode(), {name: w.end for name, w in self.writers.items()}
            )
            return "cut"
        if message["prefix"] == REPLAY_PREFIX:
            return "replay" if self._replayed(base64.b64decode(message["content"]), touched) else "replay_refused"
        return "message"

    def _replayed(self, content: bytes, touched: set[str]) -> bool:
        try:
            asked = json.loads(content)
            name, record = asked["table"], asked["record"]
        except (ValueError, KeyError, TypeError):
            return False
        if name not in self.writers or not isinstance(record, dict):
            return False
        line = json.dumps(record, separators=(",", ":")).encode()
        if is_marker(line):  # Ours alone: it would end a load, or change the columns, for every reader.
            return False
        self.writers[name].append([line])
        touched.add(name)
        return True

    def _append(self, pending: dict[str, list[bytes]], touched: set[str]) -> None:
        for name, lines in pending.items():
            self.writers[name].append(lines)
            self.records["change"] += len(lines)
            touched.add(name)
        pending.clear()

    def _table_of(self, topic: str, value: str | None) -> str | None:
        """The table a record belongs to; None for all that is no change."""
        names = self._topics.get(topic)
        if names is None or value is None:
            return None
        if len(names) == 1:
            return names[0]
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
                self.known[name] = TableColumns.of_catalog(self.look_up(name))
                self.writers[name].append_marker(marker(LOAD_BEGIN, ts_ms, **self.known[name].facts()))
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
