"""What a change log is to those who read it, whatever stores it.

A log is one table's sequence of records. A record's *offset* is its number in that sequence, from 0;
a *position* is the offset of the next record to read, so position 5 means "complete through record 4".
Each record is one line of JSON: Debezium's event as it came, or one of our markers. Two stand around an initial
load: `{"op": "load_begin", "columns": [...]}` and `{"op": "load_end"}`. Everything between them together is the whole
table; a load that ends otherwise (capture died) is void. `{"op": "schema", "columns": [...]}` stands before the first
record that has other columns than the one before it, inside a load too. The columns (`source.types.SourceColumn`) make
the log complete in itself: a table can be rebuilt from it without the source. One of type "" is a column of which the
source's catalog no longer told what it was when capture met the record: who reads can't go on without a new load.
What begins again further back (a capture that was killed) sends old records with their old columns, so markers go back
and forth: a schema counts for the records after it, and for a table only with its first record that is no re-delivery.

Belongs here: the protocol, `Batch`, the markers. Does not: files (`changelog/segments.py`).
"""

import json
from dataclasses import dataclass
from typing import Any, Protocol

LOAD_BEGIN = "load_begin"
LOAD_END = "load_end"
SCHEMA = "schema"


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records, each a line that ends in a newline."""

    start: int
    end: int  # Position after the last record; equal to `start` when there was nothing to read.
    lines: bytes


class ChangeLog(Protocol):
    """Reads one table's log. Delivery: each record at its offset, for as long as retention keeps it.

    A re-delivery by the source is a new record with a new offset: who reads drops it by source position.
    """

    def identity(self) -> str:
        """Name of this log, unlike that of any other, one that takes its place included; empty before it exists."""
        ...

    def end(self) -> int:
        """Position after the newest record."""
        ...

    def newest_load(self) -> int:
        """Offset of the marker that begins the newest whole initial load; of the newest begun one when none is
        whole; 0 when the log has none. A table that starts from there needs nothing earlier.
        """
        ...

    def columns_at(self, position: int) -> list[dict[str, Any]]:
        """The columns of the newest marker before `position`, with fields as `source.types.SourceColumn`; else none."""
        ...

    def another(self) -> "ChangeLog":
        """Another reader of the same log, which stands elsewhere."""
        ...

    def read(self, start: int, *, bytes_max: int) -> Batch:
        """Return records from `start`, about `bytes_max` at most and at least one if there is one.

        Raises InvariantError when the log does not hold `start`.
        """
        ...

    def make_durable(self) -> None:
        """Return when all that `read` has returned would survive a power cut."""
        ...


def is_marker(line: bytes) -> bool:
    """Whether a record is one of our markers; each begins with its `op`, which none of Debezium's events does."""
    return line.startswith((b'{"op":"load_', b'{"op":"schema"'))


def marker(op: str, ts_ms: int, **facts: object) -> bytes:
    """A marker as a record; `ts_ms` is when capture wrote it, UTC."""
    return json.dumps({"op": op, "ts_ms": ts_ms, **facts}, separators=(",", ":")).encode()
