"""One commit window: from the changes that arrived to at most one change of each key.

Belongs here: what a truncate does, the collapse, and what waits on disk when a window is
larger than its memory. Does not: decoding, which changes are applied (`landing/late.py`), files.
Rules: the order within a key is the source's. Changes arrive in it but for re-delivery, so the order of arrival is used
until one comes late. Of a key's changes in a window the last counts; with `first`, what the key's first change says of
the row before is kept beside it, under `__cdc_first_op` and `__cdc_first_was_...`.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_platform.landing.events import COMMIT_LSN, CONTROL_PREFIX, KINDS, LSN, OP, TS_MS, WAS_PREFIX
from cdc_platform.landing.position import SourcePosition

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_INDEX = f"{CONTROL_PREFIX}index"
FIRST_PREFIX = f"{CONTROL_PREFIX}first_"
_DISK_SHARDS = 16  # A window on disk is read back in so many parts: its memory is its size divided by this.


class Window:
    """Changes that wait for the commit. `newest` is the newest source position seen, before or in this window."""

    def __init__(
        self,
        key: Sequence[str],
        *,
        newest: SourcePosition | None,
        memory_bytes: int = 128 << 20,
        shards: int = 1,
        first: bool = False,
    ) -> None:
        self.newest = newest
        self.truncate = False  # The table was emptied before the changes.
        self.counts: Counter[str] = Counter()  # Of events, by kind.
        self.ts_ms = 0  # Newest event's commit time at the source, UTC.
        self._key = tuple(key)
        self._memory_bytes = memory_bytes
        self._shards = shards
        self._first = first
        self._changes: list[pa.Table] = []
        self._bytes = 0
        self.disordered = False  # One of the changes came late.
        self._disk: _Disk | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no event at all arrived: dropped ones count, for they move the position."""
        return not self.counts

    def add(self, changes: "pa.Table", *, disordered: bool = False) -> None:
        """Take decoded changes, in order of arrival; `disordered` when one of them came late."""
        import pyarrow.compute as pc

        if changes.num_rows == 0:
            return
        self.disordered |= disordered
        for value in pc.value_counts(changes[OP]).to_pylist():
            self.counts[KINDS[str(value["values"])]] += int(value["counts"] or 0)
        self.ts_ms = max(self.ts_ms, pc.max(changes[TS_MS]).as_py() or 0)
        truncates = pc.indices_nonzero(pc.equal(changes[OP], "t"))
        if len(truncates):
            self._forget()
            self.truncate = True
            changes = changes.slice(truncates[-1].as_py() + 1)
        self._changes.append(changes)
        self._bytes += changes.nbytes
        if self._bytes >= self._memory_bytes:
            self._to_disk()

    def collapsed(self) -> "Iterator[pa.Table]":
        """The last change of each key, in `shards` parts by key, each ordered by key."""
        if self._disk is not None:
            self._to_disk()
            parts = self._disk.read()
        else:
            parts = iter([self._in_memory()])
        for part in parts:
            if part is None or part.num_rows == 0:
                continue
            last = self._collapse(part)
            if self._shards == 1:
                yield last
                continue
            shard = shard_of(last, self._key, self._shards)
            for number in range(self._shards):
                one = last.filter(shard == number)
                if one.num_rows:
                    yield one

    def close(self) -> None:
        """Give up what waits on disk."""
        self._forget()

    def _forget(self) -> None:
        self._changes, self._bytes = [], 0
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def _in_memory(self) -> "pa.Table | None":
        import pyarrow as pa

        return pa.concat_tables(self._changes) if self._changes else None

    def _collapse(self, changes: "pa.Table") -> "pa.Table":
        if self.disordered:
            # Stable, so what shares a position stays in order of arrival.
            changes = changes.sort_by([(COMMIT_LSN, "ascending"), (LSN, "ascending")])
        return last_of_each_key(changes, self._key, first=self._first)

    def _to_disk(self) -> None:
        """Write what is in memory to disk, collapsed as far as it can be without knowing what else comes."""
        changes = self._in_memory()
        if changes is None or changes.num_rows == 0:
            return
        if not (self._first or self.disordered):
            changes = last_of_each_key(changes, self._key)
        if self._disk is None:
            if changes.nbytes < self._memory_bytes // 2:  # Few keys that change often: they fit.
                self._changes, self._bytes = [changes], changes.nbytes
                return
            self._disk = _Disk(changes.schema)
        self._disk.write(changes, shard_of(changes, self._key, _DISK_SHARDS))
        self._changes, self._bytes = [], 0


class _Disk:
    """Changes on disk, by key hash, each shard in order of arrival."""

    def __init__(self, schema: "pa.Schema") -> None:
        import pyarrow as pa

        self._folder = tempfile.TemporaryDirectory(prefix="cdc-window-")
        self._writers = [
            pa.ipc.new_stream(self._file(n), schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
            for n in range(_DISK_SHARDS)
        ]

    def write(self, changes: "pa.Table", shard: "np.ndarray") -> None:
        for number, writer in enumerate(self._writers):
            part = changes.filter(shard == number)
            if part.num_rows:
                writer.write_table(part)

    def read(self) -> "Iterator[pa.Table]":
        import pyarrow as pa

        for writer in self._writers:
            writer.close()
        for number in range(_DISK_SHARDS):
            with pa.ipc.open_stream(self._file(number)) as reader:
                yield reader.read_all()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self._folder.cleanup()

    def _file(self, number: int) -> str:
        return str(Path(self._folder.name) / f"{number}.arrows")


def shard_of(changes: "pa.Table", key: Sequence[str], shards: int) -> "np.ndarray":
    """Shard of each row by a hash of its key; the same key is in the same shard, always."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    hashes = np.zeros(changes.num_rows, dtype=np.uint64)
    for name in key:
        column = changes[name].combine_chunks()
        if not pa.types.is_integer(column.type):
            column = pc.cast(column, pa.string()) if not pa.types.is_binary(column.type) else column
        values = column.to_numpy(zero_copy_only=False)
        hashes = hashes * np.uint64(31) + pd.util.hash_array(values, categorize=False)
    return (hashes % np.uint64(shards)).astype(np.int64)


def last_of_each_key(changes: "pa.Table", key: Sequence[str], *, first: bool = False) -> "pa.Table":
    """The last row of each key, ordered by key; with `first`, the first row's kind and row before beside it."""
    import numpy as np

    if not first and _is_rising(changes, key):
        return changes
    indexed = changes.select(list(key)).append_column(_INDEX, [np.arange(changes.num_rows)])
    wanted = [(_INDEX, "max"), (_INDEX, "min")] if first else [(_INDEX, "max")]
    found = indexed.group_by(list(key)).aggregate(wanted)
    last = changes.take(found[f"{_INDEX}_max"])
    if first:
        told = [OP, LSN, *(name for name in changes.column_names if name.startswith(WAS_PREFIX))]
        of_first = changes.select(told).take(found[f"{_INDEX}_min"])
        for name in told:
            last = last.append_column(FIRST_PREFIX + name.removeprefix(CONTROL_PREFIX), of_first[name])
    return last.sort_by([(name, "ascending") for name in key])


def _is_rising(changes: "pa.Table", key: Sequence[str]) -> bool:
    """Whether each key is greater than the one before, by its first column: distinct and in order already."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = changes[key[0]].combine_chunks()
    if not (pa.types.is_integer(column.type) and pc.all(pc.is_valid(column)).as_py() is not False):
        return False
    return pc.all(pc.less(column[:-1], column[1:])).as_py() is not False
