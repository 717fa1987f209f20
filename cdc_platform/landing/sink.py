"""The sink of one table: reads its change log, closes a window in time or by size, commits it.

Belongs here: the order of reading, windows and initial loads; where it goes on after a restart.
Does not: the loop over tables and their failures (`landing/service.py`), the rules of a window
(`landing/window.py`), Iceberg (`landing/commit.py`).
Rules: a window is as long as declared, counted from the commit before, so that a change after a quiet time does not
wait; there is at most one snapshot in each. The sink goes on from the position in the table's own snapshot; a window is
committed only after the log it came from is durable, so the table is never ahead of the log. An initial load is one
window, however long: its files are written as they fill and become the whole table in one snapshot at its end, so no
reader and no MERGE ever sees half a load, and rows that vanished before it vanish with it. It needs no delete: it
replaces. A load that a streamed event interrupts was broken off (capture died) and is dropped; capture begins another.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, Batch, ChangeLog
from cdc_platform.errors import InvariantError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import Column
from cdc_platform.landing.commit import LandingTable
from cdc_platform.landing.events import OP, TS_MS, Decoder
from cdc_platform.landing.position import LandingPosition, SourcePosition
from cdc_platform.landing.window import Window, last_of_each_key
from cdc_platform.source.types import SourceColumn, iceberg_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile

_READ_BYTES_MAX = 16 << 20  # Of the log at a time.
_WINDOW_BYTES_MAX = 128 << 20  # Arrow memory of a window; it is committed early at that.
_LOAD_FILE_BYTES_MAX = 128 << 20  # Arrow memory of a data file of an initial load.


@dataclass
class _Load:
    """An initial load between its two markers."""

    rows: "list[pa.Table]" = field(default_factory=list)
    bytes: int = 0
    files: "list[DataFile]" = field(default_factory=list)
    events: int = 0
    ts_ms: int = 0


class TableSink:
    """Keeps one landing table at the end of its change log. Not shared between threads."""

    def __init__(
        self,
        lake: Lake,
        table: str,
        *,
        key: tuple[str, ...],
        log: ChangeLog,
        window_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._log = log
        self._window_s = window_s
        self._clock = clock
        self._table = LandingTable(lake, table, key)
        self.position: LandingPosition = self._table.position()
        # A whole load stands for the table: what lies before it need not be read, and perhaps can't be (a value that
        # has no home, other columns, or a position that counts in another log).
        self._follows = self.position.log_id == log.identity()
        self._read_to = max(self.position.log, log.newest_load()) if self._follows else log.newest_load()
        self._window = Window(newest=self.position.source)
        self._committed_at = float("-inf")
        self._load: _Load | None = None
        self._decoder = Decoder(table, self._table.columns, key) if self._table.columns else None

    def step(self) -> bool:
        """Read once and commit if the window is due; return whether there was anything to read.

        Raises what its parts raise; nothing is committed then, and a new sink on the table goes on rightly.
        """
        batch = self._log.read(self._read_to, bytes_max=_READ_BYTES_MAX)
        if batch.lines:
            self._take(batch)
        if self._is_due():
            self.commit()
        return bool(batch.lines)

    def catch_up(self) -> None:
        """Read and commit until the log's present end."""
        end = self._log.end()
        while self._read_to < end:  # Bounded by `end`: each step reads at least one record.
            self.step()
        self.commit()

    def _is_due(self) -> bool:
        if self._window.is_empty:
            return False
        return self._window.bytes >= _WINDOW_BYTES_MAX or self._clock() - self._committed_at >= self._window_s

    def _take(self, batch: Batch) -> None:
        if batch.lines.startswith(b'{"op":"load_'):
            first, _, rest = batch.lines.partition(b"\n")
            self._marker(json.loads(first), batch.start)
            self._read_to = batch.start + 1
            batch = Batch(batch.start + 1, batch.end, rest)
        if batch.lines:
            self._changes(batch)
        self._read_to = batch.end

    def _marker(self, record: dict[str, object], offset: int) -> None:
        if record["op"] == LOAD_BEGIN:
            self.commit()
            self._drop_load()
            source = [SourceColumn(**c) for c in record["columns"]]  # type: ignore[union-attr, arg-type]
            columns = [Column(c.name, iceberg_type(c.type) or c.type, c.required, c.doc) for c in source]
            self._table.require(columns)
            self._decoder = Decoder(self._table.name, self._table.columns, self._key)
            self._load = _Load()
        elif record["op"] == LOAD_END and self._load is not None:
            self._read_to = offset + 1
            self._commit_load(self._load)

    def _changes(self, batch: Batch) -> None:
        if self._decoder is None or not (self._follows or self._load):
            raise InvariantError(
                "there are changes before any initial load in this log",
                where=f"{self._table.name}, change-log record {batch.start}",
                action="Take a new initial load: `cdc-platform recapture SOURCE`",
            )
        changes = self._decoder.decode(batch.lines, first_offset=batch.start)
        if self._load is None:
            self._window.add(changes)
            return
        import pyarrow.compute as pc

        is_read = pc.equal(changes[OP], "r")
        if pc.all(is_read).as_py():
            self._add_to_load(self._load, changes)
        else:
            self._drop_load()
            if self._follows:
                self._window.add(changes.filter(pc.invert(is_read)))

    def _add_to_load(self, load: _Load, changes: "pa.Table") -> None:
        import pyarrow.compute as pc

        load.rows.append(changes)
        load.bytes += changes.nbytes
        load.events += changes.num_rows
        load.ts_ms = max(load.ts_ms, pc.max(changes[TS_MS]).as_py() or 0)
        if load.bytes >= _LOAD_FILE_BYTES_MAX:
            self._write_load_file(load)

    def _write_load_file(self, load: _Load) -> None:
        import pyarrow as pa

        rows = last_of_each_key(pa.concat_tables(load.rows), self._key)
        load.files.append(self._table.write_rows(rows))
        load.rows, load.bytes = [], 0

    def _commit_load(self, load: _Load) -> None:
        if load.rows:
            self._write_load_file(load)
        self._log.make_durable()
        # The order begins anew with a load: its slot may be another's, on another server.
        after = self.position.after(
            log=self._read_to, load=self._read_to, source=None, source_ts_ms=load.ts_ms, log_id=self._log.identity()
        )
        self._table.commit(
            self.position,
            after,
            data=load.files,
            deletes=[],
            events={"read": load.events},
            replace_all=True,
        )
        self._committed(after)
        self._load, self._follows = None, True

    def _drop_load(self) -> None:
        if self._load is not None:
            self._table.discard(self._load.files)
            self._load = None

    def commit(self) -> None:
        """Commit the window if any event came, even one that was dropped: the position moves."""
        window = self._window
        if window.is_empty:
            return
        import pyarrow.compute as pc

        last = window.collapsed(self._key)
        data, deletes = [], []
        if last is not None and last.num_rows:
            live = last.filter(pc.not_equal(last[OP], "d"))
            data = [self._table.write_rows(live)] if live.num_rows else []
            deletes = [] if window.truncate else [self._table.write_deletes(last)]
        self._log.make_durable()
        source: SourcePosition | None = window.newest
        after = self.position.after(
            log=self._read_to, source=source, source_ts_ms=max(window.ts_ms, self.position.source_ts_ms)
        )
        self._table.commit(
            self.position,
            after,
            data=data,
            deletes=deletes,
            events=window.counts,
            replace_all=window.truncate,
        )
        self._committed(after)

    def _committed(self, after: LandingPosition) -> None:
        self.position = after
        self._window = Window(newest=after.source)
        self._committed_at = self._clock()
