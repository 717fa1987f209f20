"""The embedded change log: a folder of segment files for each table.

Belongs here: appending durably, reading, and what a kill leaves behind. Does not: what a line says, but for
the markers, which begin a segment so that the newest one is found without reading the log.
Layout: `<first offset, 20 digits>.jsonl`; a segment holds whole lines and the next is named after where it ends.
Rules: a record is acknowledged to Debezium only after `sync`; so a torn line at the end was never acknowledged
and is cut off when the writer opens, and Debezium delivers it again. A reader stops at the last newline.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from cdc_platform import faults
from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, SCHEMA, Batch, is_marker
from cdc_platform.errors import ConfigError, InvariantError

_SEGMENT_BYTES_MAX = 128 << 20
_IDENTITY = "log-id"
_COUNT_BLOCK_BYTES = 4 << 20


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def _identity(folder: Path) -> str:
    try:
        return (folder / _IDENTITY).read_text()
    except FileNotFoundError:
        return ""


def _first_offset(segment: Path) -> int:
    return int(segment.stem)


def _count_lines(segment: Path) -> int:
    with segment.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_COUNT_BLOCK_BYTES), b""))


def _markers(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Offset and record of each marker, newest first. A marker always begins a segment: one line of each is read."""
    for segment in reversed(_segments(folder)):
        with segment.open("rb") as file:
            line = file.readline()
        if is_marker(line) and line.endswith(b"\n"):
            yield _first_offset(segment), json.loads(line)


def _load_markers(folder: Path) -> Iterator[tuple[int, str]]:
    return ((offset, str(found["op"])) for offset, found in _markers(folder) if found["op"] != SCHEMA)


def newest_marker(folder: Path) -> str | None:
    """The newest load marker in the log: LOAD_END says that the table's load is whole, None that none ever began."""
    return next((kind for _, kind in _load_markers(folder)), None)


def newest_load_begin(folder: Path) -> int | None:
    """Offset of the newest load's beginning, whole or not; None when none ever began."""
    return next((offset for offset, kind in _load_markers(folder) if kind == LOAD_BEGIN), None)


def newest_columns(folder: Path) -> dict[str, Any] | None:
    """The newest marker that says which columns the records have; None when there is none."""
    return next((found for _, found in _markers(folder) if "columns" in found), None)


class SegmentWriter:
    """Appends to one table's log; the only writer, which a lock on the folder guarantees."""

    def __init__(self, folder: Path, *, segment_bytes_max: int = _SEGMENT_BYTES_MAX) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._segment_bytes_max = segment_bytes_max
        self._lock = (folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                "another process writes this change log",
                where=str(folder),
                action="Stop the other capture of this deployment (`cdc-platform status`)",
            ) from error
        if not _identity(folder):
            fresh = folder / f"{_IDENTITY}.new"
            fresh.write_text(uuid.uuid4().hex)
            fresh.replace(folder / _IDENTITY)
        segments = _segments(folder)
        if segments:
            _cut_torn_line(segments[-1])
            self._end = _first_offset(segments[-1]) + _count_lines(segments[-1])
            self._file: BinaryIO = segments[-1].open("ab")
        else:
            self._end = 0
            self._file = self._new_segment()

    @property
    def end(self) -> int:
        """Position after the newest record."""
        return self._end

    def append(self, records: Sequence[bytes]) -> None:
        """Write records, each without its newline. Not durable before `sync`."""
        if self._file.tell() >= self._segment_bytes_max:
            self._roll()
        self._file.write(b"\n".join(records) + b"\n" if records else b"")
        self._end += len(records)

    def append_marker(self, record: bytes) -> None:
        """Write a load marker; it begins a segment."""
        if self._file.tell() > 0:
            self._roll()
        self._file.write(record + b"\n")
        self._end += 1

    def sync(self) -> None:
        """Return when everything appended would survive a power cut."""
        self._file.flush()
        faults.reach("segment written")
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Sync and release the folder."""
        self.sync()
        self._file.close()
        self._lock.close()

    def _roll(self) -> None:
        self.sync()
        self._file.close()
        self._file = self._new_segment()

    def _new_segment(self) -> BinaryIO:
        file = (self._folder / f"{self._end:020d}.jsonl").open("ab")
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # Or a power cut could lose the file's name.
        finally:
            os.close(folder)
        return file


def _cut_torn_line(segment: Path) -> None:
    """Cut what follows the last newline, searching backwards from the end."""
    with segment.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        cursor = end
        while cursor > 0:
            block = min(_COUNT_BLOCK_BYTES, cursor)
            file.seek(cursor - block)
            newline = file.read(block).rfind(b"\n")
            if newline >= 0:
                cursor = cursor - block + newline + 1
                break
            cursor -= block
        if cursor < end:
            file.truncate(cursor)


class SegmentLog:
    """Reads one table's log from its folder; see `changelog.log.ChangeLog`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None  # The open segment,
        self._position = 0  # and the offset of the record that starts where the file stands.

    def identity(self) -> str:
        """The log's own id, made with its folder: a position counts in one log and in no other."""
        return _identity(self._folder)

    def end(self) -> int:
        """Position after the newest whole record."""
        segments = _segments(self._folder)
        return _first_offset(segments[-1]) + _count_lines(segments[-1]) if segments else 0

    def newest_load(self) -> int:
        """Offset of the newest whole load's beginning; of the newest begun one, else 0."""
        begun, ended = 0, False
        for offset, kind in _load_markers(self._folder):
            if kind == LOAD_BEGIN:
                if ended:
                    return offset
                begun = begun or offset
            ended = kind == LOAD_END
        return begun

    def columns_at(self, position: int) -> list[dict[str, Any]]:
        """The columns of the newest marker before `position` that has some."""
        for offset, record in _markers(self._folder):
            if offset < position and "columns" in record:
                return record["columns"]
        return []

    def another(self) -> "SegmentLog":
        """Another reader of the same folder."""
        return SegmentLog(self._folder)

    def read(self, start: int, *, bytes_max: int) -> Batch:
        """Return records from `start` within one segment."""
        if self._file is None or self._position != start:
            self._seek(start)
        if self._file is None:
            return Batch(start, start, b"")
        lines = self._whole_lines(bytes_max)
        if not lines and (follows := self._folder / f"{start:020d}.jsonl").exists():
            if not os.path.samestat(follows.stat(), os.fstat(self._file.fileno())):
                self.make_durable()
                self._open(follows)
            lines = self._whole_lines(bytes_max)
        self._position = start + lines.count(b"\n")
        return Batch(start, self._position, lines)

    def make_durable(self) -> None:
        """Sync the segment that was read last; earlier ones were synced when reading left them."""
        if self._file is not None:
            os.fdatasync(self._file.fileno())

    def _open(self, segment: Path) -> None:
        if self._file is not None:
            self._file.close()
        self._file = segment.open("rb")
        self._position = _first_offset(segment)

    def _whole_lines(self, bytes_max: int) -> bytes:
        assert self._file is not None
        begin = self._file.tell()
        data = self._file.read(bytes_max)
        while (cut := data.rfind(b"\n") + 1) == 0:  # Bounded by the file: a line longer than the block.
            more = self._file.read(bytes_max)
            if not more:
                break
            data += more
        self._file.seek(begin + cut)
        return data[:cut]

    def _seek(self, start: int) -> None:
        segments = _segments(self._folder)
        holding = [s for s in segments if _first_offset(s) <= start]
        if not segments and start == 0:
            return
        if not holding:
            raise InvariantError(
                f"record {start} is gone; the log begins at {_first_offset(segments[0]) if segments else 0}",
                where=str(self._folder),
                action="Take a new initial load: `cdc-platform recapture SOURCE`",
            )
        self._open(holding[-1])
        assert self._file is not None
        while self._position < start:  # Bounded by the segment's size.
            if not self._file.readline().endswith(b"\n"):
                raise InvariantError(
                    f"the log ends at {self._position}, before record {start}",
                    where=str(self._folder),
                    action="The log was cut or replaced; take a new initial load: `cdc-platform recapture SOURCE`",
                )
            self._position += 1
