"""Every touch point of the sink's lab with the product: opening a sink, its marks, and what the lab can switch off.

Belongs here: what changes when the sink's interface does. Does not: any rule of the lab.
The switches replace parts of the product in a child process: with them the lab must fail, else it proves nothing.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, Batch, marker
from cdc_platform.changelog.segments import SegmentLog, SegmentWriter
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import Column
from cdc_platform.landing.position import LandingPosition, landed, landing_position
from cdc_platform.landing.sink import TableSink
from cdc_platform.source.types import iceberg_type
from cdc_platform_tests.crashlab.history import Shape

Switch = Literal["redelivery-filter", "token"]
SWITCHES: tuple[Switch, ...] = get_args(Switch)
DEAD_LETTERS = "dead_letters."


class SlicedLog:
    """A change log that hands out at most so many records at a read. `read` tells of each read that brought some."""

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


def open_sink(lake: Lake, table: str, shape: Shape, log: SlicedLog, clock: Callable[[], float]) -> TableSink:
    """A sink with windows of one tick of the clock."""
    return TableSink(lake, table, key=shape.key, log=log, window_s=1.0, clock=clock)


def append(writer: SegmentWriter, shape: Shape, records: list[bytes]) -> None:
    """Write records to the log; a load's markers as capture writes them."""
    for record in records:
        if record == b'{"op":"load_begin"}':
            columns = [
                vars_of(Column(name, iceberg_type(kind) or "string", name in shape.key))
                for name, kind in shape.columns.items()
            ]
            writer.append_marker(marker(LOAD_BEGIN, time.time_ns() // 1_000_000, columns=columns))
        elif record == b'{"op":"load_end"}':
            writer.append_marker(marker(LOAD_END, time.time_ns() // 1_000_000))
        else:
            writer.append([record])
    writer.sync()


def vars_of(column: Column) -> Mapping[str, object]:
    return {"name": column.name, "type": column.type, "required": column.required, "doc": column.doc}


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


def dead_letters(lake: Lake, table: str) -> list[tuple[int, str]] | None:
    """Offset and reason of each dead letter of the table; None while the product has no such table."""
    name = DEAD_LETTERS + table.split(".")[1]
    loaded = lake.load(name)
    if loaded is None:
        return None
    rows = loaded.scan(selected_fields=("log_offset", "reason")).to_arrow().to_pylist()
    return [(int(r["log_offset"]), str(r["reason"])) for r in rows]


def switch_off(switch: Switch, read_to: Path) -> Callable[[int], None]:
    """Take a safeguard out of this process; return what is to hear of each read.

    `token`: the sink goes on from where its predecessor had read to, as a consumer does that commits its offsets by
    itself, and fences nobody.
    """
    if switch == "redelivery-filter":
        from cdc_platform.landing import window

        window.drop_redelivered = lambda changes, newest: (changes, newest)  # type: ignore[assignment]
        return lambda _: None
    from cdc_platform.landing import commit

    def from_memory(self: Any) -> Any:
        history = self.history
        found = landing_position(history) if history else LandingPosition()
        if read_to.exists():
            from dataclasses import replace

            return replace(found, log=max(found.log, int(read_to.read_text())))
        return found

    class Anywhere:
        window = 0

        def __ne__(self, other: object) -> bool:
            return False

    commit.LandingTable.position = from_memory  # type: ignore[method-assign]
    commit.landing_position = lambda _: Anywhere()  # type: ignore[assignment, return-value]

    def remember(end: int) -> None:
        read_to.write_text(str(end))

    return remember
