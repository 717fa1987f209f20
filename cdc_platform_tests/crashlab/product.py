"""Every touch point of the sink's lab with the product: opening a sink, its marks, and what the lab can switch off.

Belongs here: what changes when the sink's interface does. Does not: any rule of the lab.
The switches replace parts of the product in a child process: with them the lab must fail, else it proves nothing.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, Batch, ChangeLog, marker
from cdc_platform.changelog.segments import SegmentLog, SegmentWriter
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.commit import Owner
from cdc_platform.landing.dead_letters import DeadLetters
from cdc_platform.landing.position import LandingPosition, landed, landing_position
from cdc_platform.landing.sink import TableSink
from cdc_platform.registry.model import Landing
from cdc_platform.source.types import SourceColumn
from cdc_platform_tests.crashlab.history import Shape

Switch = Literal["redelivery-filter", "token"]
SWITCHES: tuple[Switch, ...] = get_args(Switch)


class SlicedLog:
    """A change log that hands out at most so many records at a read; `on_read` hears through where each read came."""

    def __init__(self, folder: Path, sizes: Iterator[int], on_read: Callable[[int], None]) -> None:
        self._log = SegmentLog(folder)
        self._sizes = sizes
        self._on_read = on_read

    def identity(self) -> str:
        return self._log.identity()

    def end(self) -> int:
        return self._log.end()

    def newest_load(self) -> int:
        return self._log.newest_load()

    def columns_at(self, position: int) -> list[dict[str, Any]]:
        return self._log.columns_at(position)

    def another(self) -> ChangeLog:
        return self._log.another()  # Looking back is no reading: it takes what it needs.

    def make_durable(self) -> None:
        self._log.make_durable()

    def read(self, start: int, *, bytes_max: int) -> Batch:
        batch = self._log.read(start, bytes_max=bytes_max)
        if not batch.lines:
            return batch
        size = min(next(self._sizes), batch.end - batch.start)
        lines = b"".join(batch.lines.splitlines(keepends=True)[:size])
        self._on_read(start + size)
        return Batch(start, start + size, lines)


def open_sink(
    lake: Lake, table: str, shape: Shape, log: SlicedLog, owner: Owner, clock: Callable[[], float]
) -> TableSink:
    """A sink with windows of one tick of the clock, and no limit to dead letters."""
    policy = Landing(dead_letters_max_share=1.0)
    return TableSink(lake, table, key=shape.key, log=log, policy=policy, window_s=1.0, owner=owner, clock=clock)


def append(writer: SegmentWriter, shape: Shape, records: list[bytes]) -> None:
    """Write records to the log; a load's markers as capture writes them."""
    for record in records:
        now_ms = time.time_ns() // 1_000_000
        if record == b'{"op":"load_begin"}':
            columns = [asdict(SourceColumn(n, kind, n in shape.key)) for n, kind in shape.columns.items()]
            writer.append_marker(marker(LOAD_BEGIN, now_ms, columns=columns))
        elif record == b'{"op":"load_end"}':
            writer.append_marker(marker(LOAD_END, now_ms))
        else:
            writer.append([record])
    writer.sync()


def states(lake: Lake, table: str) -> list[tuple[int, int, bool]]:
    """Each snapshot, oldest first: its id, the log position that the table then named, whether the sink made it."""
    history = lake.history(table)
    found: list[tuple[int, int, bool]] = []
    position = 0
    for snapshot in [*(history.ancestry() if history else ())][::-1]:
        ours = landed(snapshot)
        position = LandingPosition.of(snapshot.summary, table).log if ours else position
        found.append((snapshot.snapshot_id, position, ours))
    return found


def dead_letters(lake: Lake, table: str) -> list[tuple[int, str]]:
    """Offset and reason of each dead letter of the table."""
    rows = DeadLetters(lake, table).read(closed=True)
    return [(int(offset), str(reason)) for offset, reason in zip(rows["log_offset"], rows["reason"], strict=True)]


def around_catalog(reach: Callable[[Literal["catalog asked", "catalog answered"]], None]) -> None:
    """Mark each commit that this process asks of the catalog, whatever it is for."""
    from pyiceberg.catalog.sql import SqlCatalog

    commit_table = SqlCatalog.commit_table

    def marked(self: Any, *arguments: Any) -> Any:
        reach("catalog asked")
        answer = commit_table(self, *arguments)
        reach("catalog answered")
        return answer

    SqlCatalog.commit_table = marked  # type: ignore[method-assign]


def switch_off(switch: Switch, read_to: Path) -> Callable[[int], None]:
    """Take a safeguard out of this process; return what is to hear of each read.

    `token`: the sink goes on from where its predecessor had read to, as a consumer does that commits its offsets by
    itself, and fences nobody.
    """
    from cdc_platform.landing import commit, late, sink

    if switch == "redelivery-filter":

        def all_of_it(decoded: Any, _lines: bytes, newest: Any, **_: Any) -> late.Sifted:
            _, high, _ = late.late_rows(decoded.changes, newest)
            return late.Sifted(decoded.changes, decoded.rejected, 0, {}, high, disordered=False)

        sink.sift = all_of_it
        return lambda _: None

    def from_memory(self: Any) -> LandingPosition:
        history = self.history
        found = landing_position(history) if history else LandingPosition()
        return replace(found, log=max(found.log, int(read_to.read_text()))) if read_to.exists() else found

    def remember(end: int) -> None:
        read_to.write_text(str(end))

    commit.LandingTable.position = from_memory  # type: ignore[method-assign]
    commit.LandingTable._claim = lambda *_: None  # type: ignore[method-assign]
    commit.LandingTable._require_place = lambda *_: None  # type: ignore[method-assign]
    return remember
