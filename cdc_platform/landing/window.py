"""One commit window: from the changes that arrived to at most one change of each key.

Belongs here: dropping re-delivered events, what a truncate does, the collapse. Does not: decoding, files.
Rules: order is the change log's, which is the source's order of commits, but for re-delivery: after a restart
Debezium sends again what it had not confirmed. A streamed event before the newest source position already seen is
such a one, and is dropped before the collapse, or it would undo newer changes. Reads of an initial load
share one LSN and are never dropped: their load stands for the whole table.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdc_platform.landing.events import COMMIT_LSN, CONTROL_PREFIX, LSN, OP, ORDINAL, TS_MS
from cdc_platform.landing.position import SourcePosition

if TYPE_CHECKING:
    import pyarrow as pa

_INDEX = f"{CONTROL_PREFIX}index"
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
    last = changes.select(list(key)).append_column(_INDEX, index).group_by(list(key)).aggregate([(_INDEX, "max")])
    return changes.take(last[f"{_INDEX}_max"]).sort_by([(name, "ascending") for name in key])


def drop_redelivered(changes: "pa.Table", newest: SourcePosition | None) -> "tuple[pa.Table, SourcePosition | None]":
    """Return the changes that are new, and the newest source position among all seen.

    A streamed row before the newest position is one that was sent again. Rows at the newest LSN itself are kept: of the
    rows that share one (a COPY's, both halves of a changed key) some may have been seen and others not, ordinals may
    count from elsewhere when Debezium resumes inside a transaction (seen), and applying them again changes nothing,
    for each is of a key of its own.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = np.flatnonzero(pc.not_equal(changes[OP], "r").to_numpy(zero_copy_only=False))
    if not len(rows):
        return changes, newest
    commit, lsn, ordinal = (changes[name].to_numpy()[rows] for name in (COMMIT_LSN, LSN, ORDINAL))
    last = SourcePosition(int(commit[-1]), int(lsn[-1]), int(ordinal[-1]))
    rising = (commit[1:] > commit[:-1]) | ((commit[1:] == commit[:-1]) & (lsn[1:] >= lsn[:-1]))
    if rising.all() and (newest is None or (int(commit[0]), int(lsn[0])) >= newest[:2]):
        return changes, last  # Nothing was sent again: the common case, without a loop over rows.
    keep = np.ones(changes.num_rows, dtype=bool)
    high = newest
    positions = map(SourcePosition, commit.tolist(), lsn.tolist(), ordinal.tolist())
    for row, position in zip(rows, positions, strict=True):
        if high is not None and position[:2] < high[:2]:
            keep[row] = False
        else:
            high = position
    return changes.filter(pa.array(keep)), high
