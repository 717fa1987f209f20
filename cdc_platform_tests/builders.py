"""What tests are made of: histories, events, a table's live rows. Each builder shows only what varies."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from cdc_platform.changelog.log import Batch, is_marker
from cdc_platform.lake.snapshot import Column, Snapshot, TableHistory
from cdc_platform.source.types import SourceColumn

SOURCE_COLUMNS = (
    SourceColumn("id", "bigint", True),
    SourceColumn("status", "text", False),
    SourceColumn("total", "numeric(12,2)", False),
)
ORDER_COLUMNS = (
    Column("id", "long", True),
    Column("status", "string", False),
    Column("total", "decimal(12, 2)", False),
)


def history(table: str, *snapshots: tuple[str, dict[str, str]], refs: dict[str, int] | None = None) -> TableHistory:
    """Snapshots 1, 2, ... with an operation and a summary each; each is the parent of the next."""
    made = {
        n: Snapshot(n, n - 1 or None, n, operation, 1_000 * n, summary)
        for n, (operation, summary) in enumerate(snapshots, 1)
    }
    return TableHistory(table, ORDER_COLUMNS, len(made) or None, made, {}, refs or {})


def event(
    op: str,
    row_id: int | None,
    status: str | None = "new",
    *,
    before: dict[str, Any] | None = None,
    total: str | None = "1.00",
    commit: int = 0,
    lsn: int = 0,
    order: int = 0,
    tx: int = 0,
) -> dict[str, Any]:
    """One Debezium event of the table in ORDER_COLUMNS; `before` defaults to what the operation needs."""
    row = {"id": row_id, "status": status, "total": total}
    return {
        "before": before if before is not None else (row if op in {"u", "d"} else None),
        "after": row if op in {"c", "u", "r"} else None,
        "source": {"ts_ms": 1_000 + lsn, "sequence": f'["{commit}","{lsn}"]', "lsn": lsn, "txId": tx},
        "transaction": {"id": f"{tx}:{lsn}", "total_order": order} if order else None,
        "op": op,
    }


class MemoryLog:
    """A change log in memory: `changelog.log.ChangeLog` without files. A marker begins a segment, as it does there."""

    def __init__(self, *segments: bytes, log_id: str = "log") -> None:
        self.records: list[bytes] = [line for s in segments for line in s.splitlines(keepends=True)]
        self._log_id = log_id

    def append(self, text: bytes) -> Batch:
        """Add records and return them as they will be read."""
        start = len(self.records)
        self.records += text.splitlines(keepends=True)
        return Batch(start, len(self.records), text)

    def identity(self) -> str:
        return self._log_id

    def end(self) -> int:
        return len(self.records)

    def newest_load(self) -> int:
        return max((n for n, r in enumerate(self.records) if r.startswith(b'{"op":"load_begin"')), default=0)

    def columns_at(self, position: int) -> list[dict[str, Any]]:
        markers = [json.loads(r) for r in self.records[:position] if is_marker(r)]
        return next((m["columns"] for m in reversed(markers) if "columns" in m), [])

    def another(self) -> "MemoryLog":
        return self

    def read(self, start: int, *, bytes_max: int) -> Batch:
        end, size = start, 0
        while end < len(self.records) and size < bytes_max and (end == start or not is_marker(self.records[end])):
            size += len(self.records[end])
            end += 1
        return Batch(start, end, b"".join(self.records[start:end]))

    def make_durable(self) -> None:
        """Memory is as durable as the test."""


def lines(events: Iterable[dict[str, Any]]) -> bytes:
    """Events as change-log lines."""
    return b"".join(json.dumps(e).encode() + b"\n" for e in events)


def fold(events: Iterable[dict[str, Any]]) -> dict[int, tuple[Any, Any]]:
    """The model: a dict by key, events applied one by one."""
    rows: dict[int, tuple[Any, Any]] = {}
    for e in events:
        if e["op"] == "t":
            rows.clear()
            continue
        if e["before"] is not None:
            rows.pop(e["before"]["id"], None)
        if e["after"] is not None:
            rows[e["after"]["id"]] = (e["after"]["status"], e["after"]["total"])
    return rows


def live_rows(table: Any, key: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a PyIceberg table as the specification says: a delete applies to data of a lower sequence number (in its
    partition, or everywhere), and a column is known by its field id.
    """
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFileContent

    names = {f.field_id: f.name for f in table.schema().fields}
    unpartitioned = {spec_id for spec_id, spec in table.specs().items() if spec.is_unpartitioned()}
    data: list[tuple[int, Any, list[dict[str, Any]]]] = []
    deletes: list[tuple[int, Any, set[tuple[Any, ...]]]] = []
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io):
            stored = pq.read_table(entry.data_file.file_path.removeprefix("file://"))
            found = {int(f.metadata[b"PARQUET:field_id"]): f.name for f in stored.schema}
            rows = [{n: r.get(found.get(i, "")) for i, n in names.items()} for r in stored.to_pylist()]
            where = (manifest.partition_spec_id, tuple(entry.data_file.partition))
            if entry.data_file.content == DataFileContent.DATA:
                data.append((entry.sequence_number, where, rows))
            else:
                everywhere = manifest.partition_spec_id in unpartitioned
                gone = {tuple(r[k] for k in key) for r in rows}
                deletes.append((entry.sequence_number, None if everywhere else where, gone))
    return [
        row
        for number, where, rows in data
        for row in rows
        if not any(
            number < later and there in (None, where) and tuple(row[k] for k in key) in gone
            for later, there, gone in deletes
        )
    ]
