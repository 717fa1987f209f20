"""A change log of orders as our capture would have written it: a load of all rows, then updates of some keys.

Belongs here: the events, and where each part of the log begins. Does not: measuring.
Each record is what Debezium sends under our settings (`capture/settings.py`) for a table with REPLICA IDENTITY FULL:
whole rows before and after, the source and transaction blocks with all of their fields. Ten updates are a transaction.
The same log each time, for the generator is seeded.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.changelog.segments import SegmentWriter

KEY = "order_id"
# Name, type in PostgreSQL, type in Iceberg, required.
COLUMNS = (
    (KEY, "bigint", "long", True),
    ("customer_id", "bigint", "long", True),
    ("status", "text", "string", True),
    ("total", "numeric(12,2)", "decimal(12, 2)", True),
    ("items", "integer", "int", True),
    ("gift", "boolean", "boolean", True),
    ("note", "text", "string", False),
    ("placed_at", "timestamp with time zone", "timestamptz", True),
    ("updated_at", "timestamp with time zone", "timestamptz", True),
)
_STATUS = ("placed", "paid", "packed", "sent", "delivered", "returned")
_TRANSACTION = 10
_T0_MS = 1_796_000_000_000


@dataclass(frozen=True, slots=True)
class Log:
    """A log and its parts, whose updates are in segments of `segment` records each, so that no read is longer."""

    folder: Path
    rows: int
    updates: int
    segment: int

    @property
    def load_end(self) -> int:
        """Position after the load: its rows and two markers."""
        return self.rows + 2

    @property
    def bytes(self) -> int:
        """Of all segments."""
        return sum(s.stat().st_size for s in self.folder.glob("*.jsonl"))


def write_log(
    folder: Path, *, rows: int, updates: int, keys: int, segment: int, load_segment: int | None = None
) -> Log:
    """Write the log; updates fall on the first `keys` rows, each as likely. The load's segments may be longer."""
    writer = SegmentWriter(folder, segment_bytes_max=1)  # Each append begins a segment.
    columns = [{"name": n, "type": kind, "required": required, "doc": ""} for n, kind, _, required in COLUMNS]
    writer.append_marker(marker(LOAD_BEGIN, _T0_MS, columns=columns))
    chance = random.Random(7)  # No cryptography.
    state = [_row(i, chance) for i in range(1, rows + 1)]
    _append(writer, map(_read, state), load_segment or segment)
    writer.append_marker(marker(LOAD_END, _T0_MS + 1))
    _append(writer, _updates(state, updates, keys, chance), segment)
    writer.close()
    return Log(folder, rows, updates, segment)


def _append(writer: SegmentWriter, records: Iterator[bytes], segment: int) -> None:
    while part := list(islice(records, segment)):
        writer.append(part)


def _row(order_id: int, chance: random.Random) -> tuple[int, str]:
    """The key, and the columns that no update changes, as JSON."""
    note = f'"leave it with the neighbour at no. {order_id % 97}"' if order_id % 3 == 0 else "null"
    return order_id, (
        f'"items":{1 + order_id % 7},"gift":{"true" if order_id % 11 == 0 else "false"},"note":{note},'
        f'"placed_at":"2026-01-{1 + order_id % 28:02d}T{order_id % 24:02d}:{chance.randrange(60):02d}:17.250000Z"'
    )


def _image(row: tuple[int, str], version: int) -> str:
    order_id, fixed = row
    cents = 500 + (order_id * 37 + version * 11) % 9_500
    return (
        f'{{"order_id":{order_id},"customer_id":{1 + order_id * 7919 % 50_000},"status":"{_STATUS[version % 6]}",'
        f'"total":"{cents // 100}.{cents % 100:02d}",{fixed},'
        f'"updated_at":"2026-02-{1 + version % 28:02d}T10:{order_id % 60:02d}:41.{version % 1_000_000:06d}Z"}}'
    )


def _read(row: tuple[int, str]) -> bytes:
    return (
        f'{{"before":null,"after":{_image(row, 0)},"source":{{"version":"3.6.3.Final","connector":"postgresql",'
        f'"name":"cdc_bookshop_bookshop","ts_ms":{_T0_MS},"snapshot":"true","db":"bookshop",'
        f'"sequence":"[null,\\"42434520\\"]","ts_us":{_T0_MS}000,"ts_ns":{_T0_MS}000000,"schema":"public",'
        f'"table":"orders","txId":756,"lsn":42434520,"xmin":null,"origin":null,"origin_lsn":null}},'
        f'"transaction":null,"op":"r","ts_ms":{_T0_MS},"ts_us":{_T0_MS}000,"ts_ns":{_T0_MS}000000}}'
    ).encode()


def _updates(state: list[tuple[int, str]], count: int, keys: int, chance: random.Random) -> Iterator[bytes]:
    version = [0] * keys
    for n in range(count):
        tx, order = divmod(n, _TRANSACTION)
        i = chance.randrange(keys)
        commit, lsn, ts_ms = 50_000_000 + tx * 4_000, 50_000_100 + tx * 4_000 + order * 300, _T0_MS + 10 + tx
        before, after = _image(state[i], version[i]), _image(state[i], version[i] + 1)
        version[i] += 1
        yield (
            f'{{"before":{before},"after":{after},"source":{{"version":"3.6.3.Final","connector":"postgresql",'
            f'"name":"cdc_bookshop_bookshop","ts_ms":{ts_ms},"snapshot":null,"db":"bookshop",'
            f'"sequence":"[\\"{commit}\\",\\"{lsn}\\"]","ts_us":{ts_ms}000,"ts_ns":{ts_ms}000000,"schema":"public",'
            f'"table":"orders","txId":{800 + tx},"lsn":{lsn},"xmin":null,"origin":null,"origin_lsn":null}},'
            f'"transaction":{{"id":"{800 + tx}:{commit}","total_order":{order + 1},'
            f'"data_collection_order":{order + 1}}},'
            f'"op":"u","ts_ms":{ts_ms + 120},"ts_us":{ts_ms + 120}000,"ts_ns":{ts_ms + 120}000000}}'
        ).encode()
