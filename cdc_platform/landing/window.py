"""One commit window: from the changes that arrived to at most one change of each key.

Belongs here: dropping re-delivered events, what a truncate does, the collapse. Does not: decoding, files.
Rules: order is the change log's, which is the source's order of commits, but for re-delivery: after a restart
Debezium sends again what it had not confirmed. A streamed event at or before the newest source position already
seen is such a one, and is dropped before the collapse, or it would undo newer changes. Reads of an initial load
share one LSN and are never dropped: their load stands for the whole table.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdc_platform.landing.events import COMMIT_LSN, LSN, OP, ORDINAL, TS_MS
from cdc_platform.landing.position import SourcePosition

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_NAMES = {"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate"}


@dataclass
class Window:
    """Changes that wait for the commit. `newest` is the newest source position seen, before or in this window."""

    newest: SourcePosition | None
    changes: "list[pa.Table]" = field(default_factory=list)
    truncate: bool = False  # The table was emptied before `changes`.
    counts: Counter[str] = field(default_factory=Counter[str])  # Of events, by kind; `stale` were dropped.
    ts_ms: int = 0  # Newest event's commit time at the source, UTC.
    bytes: int = 0  # Arrow memory held.

    @property
    def is_empty(self) -> bool:
        """Whether no event at all arrived: dropped ones count, for they move the position."""
        return not self.counts

    def add(self, changes: "pa.Table") -> None:
        """Take decoded changes, in log order."""
        import pyarrow.compute as pc

        fresh, self.newest = drop_redelivered(changes, self.newest)
        self.counts["stale"] += changes.num_rows - fresh.num_rows
        if not self.counts["stale"]:
            del self.counts["stale"]
        if fresh.num_rows == 0:
            return
        for value in pc.value_counts(fresh[OP]).to_pylist():
            kind = str(value["values"])
            self.counts[_NAMES.get(kind, kind)] += int(value["counts"] or 0)
        self.ts_ms = max(self.ts_ms, pc.max(fresh[TS_MS]).as_py() or 0)
        truncates = pc.indices_nonzero(pc.equal(fresh[OP], "t"))
        if len(truncates):
            self.truncate, self.changes, self.bytes = True, [], 0
            fresh = fresh.slice(truncates[-1].as_py() + 1)
        self.changes.append(fresh)
        self.bytes += fresh.nbytes

    def collapsed(self, key: tuple[str, ...]) -> "pa.Table | None":
        """The last change of each key, ordered by key; None when there is none."""
        import pyarrow as pa

        if not self.changes:
            return None
        return last_of_each_key(pa.concat_tables(self.changes), key)


def last_of_each_key(changes: "pa.Table", key: tuple[str, ...]) -> "pa.Table":
    """The last row of each key, ordered by key."""
    import pyarrow as pa

    if changes.num_rows == 0:
        return changes
    index = pa.array(range(changes.num_rows), pa.int64())
    last = changes.select(list(key)).append_column("_i", index).group_by(list(key)).aggregate([("_i", "max")])
    return changes.take(last["_i_max"]).sort_by([(name, "ascending") for name in key])


def drop_redelivered(changes: "pa.Table", newest: SourcePosition | None) -> "tuple[pa.Table, SourcePosition | None]":
    """Return the changes that are new, and the newest source position among all seen.

    A row is new when it is a read, or when its position is after those of all streamed rows before it. The delete
    that stands for the old half of a changed key shares the position of the row after it: equal neighbours stay
    together.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    streamed = pc.not_equal(changes[OP], "r").to_numpy(zero_copy_only=False)
    if not streamed.any():
        return changes, newest
    keep = np.ones(changes.num_rows, dtype=bool)
    rows = np.flatnonzero(streamed)
    positions = [changes[name].to_numpy()[rows] for name in (COMMIT_LSN, LSN, ORDINAL)]
    high = tuple(newest) if newest is not None else (-1, -1, -1)
    if _ascending(positions, high):
        newest_row = tuple(int(column[-1]) for column in positions)
        return changes, SourcePosition(*newest_row)
    accepted: tuple[int, int, int] | None = None  # Position of the row just before, if that was new.
    for row, position in zip(rows, zip(*(column.tolist() for column in positions), strict=True), strict=True):
        if position > high:
            high = accepted = position
        elif position == accepted:
            pass
        else:
            keep[row] = False
            accepted = None
    return changes.filter(pa.array(keep)), SourcePosition(*high)


def _ascending(positions: "list[np.ndarray[Any, Any]]", high: tuple[int, ...]) -> bool:
    """Whether positions rise strictly from `high` on: the common case, decided without a loop over rows."""
    import numpy as np

    after = np.zeros(len(positions[0]), dtype=bool)
    tied = np.ones(len(positions[0]), dtype=bool)
    for column, first in zip(positions, high, strict=True):
        previous = np.concatenate(([first], column[:-1]))
        after |= tied & (column > previous)
        tied &= column == previous
    return bool(after.all())
