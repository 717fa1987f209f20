"""The sink of one table: reads its change log, closes a window in time or by size, commits it.

Belongs here: the order of reading, windows and initial loads; where it goes on after a restart.
Does not: the loop over tables and their failures (`landing/service.py`), the rules of a window
(`landing/window.py`), Iceberg (`landing/commit.py`).
Rules: a window is as long as declared, counted from the commit before, so that a change after a quiet time does not
wait; there is one snapshot in each. The sink goes on from the position in the table's own snapshot; a window is
committed only after the log it came from is durable, so the table is never ahead of the log. An initial load is one
window, however long: its files are written as they fill and become the whole table in one snapshot at its end, so no
reader and no MERGE ever sees half a load, and rows that vanished before it vanish with it. It needs no delete: it
replaces. A load that a streamed event interrupts was broken off (capture died) and is dropped; capture begins another.
Records are decoded by the columns of the log's newest marker before them. The table takes other columns with the first
change that is not one sent again: Debezium repeats old records after a restart, and their columns with them.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, SCHEMA, Batch, ChangeLog, is_marker
from cdc_platform.errors import ConfigError, InvariantError, LimitError
from cdc_platform.faults import reach
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import Column
from cdc_platform.landing.commit import LandingTable, Owner
from cdc_platform.landing.dead_letters import DeadLetters, Letter
from cdc_platform.landing.events import LSN, OP, TS_MS, Decoded, Decoder, Rejected
from cdc_platform.landing.evolution import evolution
from cdc_platform.landing.late import sift
from cdc_platform.landing.position import EVENTS, HEARTBEAT, LandingPosition, SourcePosition, landed
from cdc_platform.landing.window import (
    FIRST_PREFIX,
    Window,
    last_of_each_key,
)
from cdc_platform.registry.model import Landing
from cdc_platform.source.types import SourceColumn, iceberg_type, policy_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile

_READ_BYTES_MAX = 16 << 20  # Of the log at a time.
_LOAD_FILE_BYTES_MAX = 128 << 20  # Arrow memory of a data file of an initial load.
_LOOK_EVERY_S = 1.0  # An idle log is looked at, whether it is still the same.
_SHARE_OF_EVENTS = 10_000  # The newest so many events decide whether too many are dead letters;
_SHARE_OF_EVENTS_MIN = 1_000  # and a single one is no share before so many.


@dataclass
class _Load:
    """An initial load between its two markers."""

    rows: "list[pa.Table]" = field(default_factory=list)
    bytes: int = 0
    files: "list[DataFile]" = field(default_factory=list)
    events: int = 0
    ts_ms: int = 0
    lsn: int | None = None
    rejected: list[Rejected] = field(default_factory=list[Rejected])


class TableSink:
    """Keeps one landing table at the end of its change log. Not shared between threads."""

    def __init__(
        self,
        lake: Lake,
        table: str,
        *,
        key: tuple[str, ...],
        log: ChangeLog,
        policy: Landing | None = None,
        window_s: float | None = None,
        owner: Owner | None = None,
        named: Mapping[str, Collection[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._log = log
        self._policy = policy or Landing()
        self._named = named or {}
        self._window_s = self._policy.window.total_seconds() if window_s is None else window_s
        self._clock = clock
        self.owner = owner or Owner()
        self._table = LandingTable(lake, table, key, owner=self.owner, partition_by=self._policy.partition_fields)
        self._dead = DeadLetters(lake, table)
        self.position: LandingPosition = self._table.position()
        # A whole load stands for the table: what lies before it need not be read, and perhaps can't be (a value that
        # has no home, other columns, or a position that counts in another log).
        self._follows = log.identity() == self.position.log_id != ""
        self._read_to = max(self.position.log, log.newest_load()) if self._follows else log.newest_load()
        self._log_id = log.identity()
        self._looked_at = self._clock()
        self._committed_at = float("-inf")
        self._stamped_at = self._clock() - self._stamp_age_s()
        self._shares = self._newest_shares()
        self._letters: list[Letter] = []
        # Before-image mode: a create is of a key that the table has not, unless a delete of it was left out.
        self._trusts_creates = self._by_before_image and not self._has_letters_since_load()
        self._load: _Load | None = None
        self._window = self._new_window(self.position.source)
        # Columns of the records that come next: the newest marker's before them.
        self._columns = tuple(SourceColumn(**c) for c in log.columns_at(self._read_to)) or self._table.columns
        self._decoder = self._new_decoder()
        self._taken: tuple[SourceColumn, ...] = ()  # Columns that the table has been made to follow.

    def step(self) -> bool:
        """Read once and commit if the window is due; return whether there was anything to read.

        Raises what its parts raise; nothing is committed then, and a new sink on the table goes on rightly.
        """
        batch = self._log.read(self._read_to, bytes_max=_READ_BYTES_MAX)
        if batch.lines:
            self._take(batch)
        elif self._clock() - self._looked_at >= _LOOK_EVERY_S:
            self._require_log()
        if self._is_due():
            self.commit()
        elif self._is_silent():
            self._heartbeat()
        return bool(batch.lines)

    def catch_up(self) -> None:
        """Read and commit until the log's present end."""
        end = self._log.end()
        while self._read_to < end:  # Bounded by `end`: each step reads at least one record.
            self.step()
        self.commit()

    def close(self) -> None:
        """Give up what is not committed."""
        self._window.close()
        self._drop_load()

    def _require_log(self) -> None:
        """Raise InvariantError when another log took the place of the one that is read: an open file would not tell."""
        self._looked_at = self._clock()
        found = self._log.identity()
        if self._log_id and found != self._log_id:
            raise InvariantError(
                "another change log took the place of the one that is read",
                where=self._table.name,
                action="The sink opens it by itself and goes on from its newest load; if it has none: `cdc-platform "
                "recapture SOURCE`",
            )
        self._log_id = found

    def _has_letters_since_load(self) -> bool:
        letters = self._dead.read(closed=True)
        ours = letters[letters["log_id"] == self.position.log_id]
        return bool((ours["log_offset"] >= (self.position.load or 0)).any())

    def _is_due(self) -> bool:
        return not self._window.is_empty and self._clock() - self._committed_at >= self._window_s

    def _is_silent(self) -> bool:
        if not self.position.window or self._load is not None or not self._window.is_empty or not self._follows:
            return False
        return self._clock() - self._stamped_at >= self._policy.heartbeat.total_seconds()

    def _take(self, batch: Batch) -> None:
        if is_marker(batch.lines):
            first, _, rest = batch.lines.partition(b"\n")
            self._marker(json.loads(first), batch.start)
            self._read_to = batch.start + 1
            batch = Batch(batch.start + 1, batch.end, rest)
        if batch.lines:
            self._changes(batch)
        self._read_to = batch.end

    def _marker(self, record: dict[str, Any], offset: int) -> None:
        if record["op"] == LOAD_BEGIN:
            self.commit()
            self._drop_load()
            self._columns = tuple(SourceColumn(**c) for c in record["columns"])
            self._load = _Load()
            if not self._table.create(self._landing_columns(), self._columns):
                self._table.replace_columns(self._landing_columns(), self._columns)
            self._taken = ()
            self._decoder = self._new_decoder()  # Now: which columns tell a partition is known with the table.
        elif record["op"] == SCHEMA:
            self._columns = tuple(SourceColumn(**c) for c in record["columns"])
            if self._load is not None:
                self._change_load(self._load)
            self._decoder = self._new_decoder()
        elif record["op"] == LOAD_END and self._load is not None:
            self._read_to = offset + 1
            self._commit_load(self._load)

    def _change_load(self, load: _Load) -> None:
        """The columns changed within a load: it has them from its first row on, or is none."""
        if load.events:
            self._drop_load()
            name = self._table.name.split(".", 1)[1]
            raise ConfigError(
                "the source's columns changed while the table was loaded",
                where=self._table.name,
                action=f"Take a new load of this table: `cdc-platform reload {name}`",
            )
        self._table.unstage()
        self._table.replace_columns(self._landing_columns(), self._columns)

    def _changes(self, batch: Batch) -> None:
        if not self._columns or not (self._follows or self._load):
            raise InvariantError(
                "there are changes before any initial load in this log",
                where=f"{self._table.name}, change-log record {batch.start}",
                action="Take a new initial load: `cdc-platform recapture SOURCE`",
            )
        if self._decoder is None:
            self._take_columns()  # It says why these columns can't be followed.
        assert self._decoder is not None, "columns that can be followed can be decoded"
        decoded = self._decoder.decode(batch.lines, first_offset=batch.start, count=batch.end - batch.start)
        changes = decoded.changes
        if self._load is not None:
            import pyarrow.compute as pc

            is_read = pc.equal(changes[OP], "r")
            if pc.all(is_read).as_py() is not False:
                self._add_to_load(self._load, changes)
                self._load.rejected += decoded.rejected
                self._require_share(self._load.rejected)
                return
            self._drop_load()
            decoded = replace(decoded, changes=changes.filter(pc.invert(is_read)))
        if self._follows:
            self._stream(decoded, batch.lines)
        for kind, count in decoded.passed.items():
            self._window.counts[kind] += count

    def _stream(self, decoded: Decoded, lines: bytes) -> None:
        """Add what is neither sent again nor stale to the window."""
        assert self._decoder is not None
        sifted = sift(
            decoded,
            lines,
            self._window.newest,
            decoder=self._decoder,
            log=self._log.another(),
            floor=self.position.load or 0,
            strict=self._by_before_image,
        )
        newest = self._window.newest
        if sifted.changes.num_rows or any(r.source and (not newest or r.source > newest) for r in decoded.rejected):
            self._take_columns()  # First: it may commit what came before this batch.
        if sifted.redelivered:
            self._window.counts["redelivered"] += sifted.redelivered
        self._window.newest = sifted.newest
        self._letters += [Letter(offset, "replayed", closes=of) for offset, of in sifted.replayed.items()]
        self._window.add(sifted.changes, disordered=sifted.disordered)
        self._reject(sifted.rejected)

    def _take_columns(self) -> None:
        """Have the table take the columns of the changes that come next, if they are others. Raises ConfigError."""
        if self._columns == self._taken:
            return
        self.commit()
        self._refuse_other_columns()
        follows = evolution(
            self._table.columns,
            self._columns,
            table=self._table.name.split(".", 1)[1],
            key=self._key,
            named=self._named,
            types=self._policy.types,
        )
        if follows.columns != self._table.columns:
            self._table.evolve(follows)
        self._taken = self._columns

    def _reject(self, rejected: Sequence[Rejected]) -> None:
        """Have the window's commit write these to the dead letters. Raises LimitError when there are too many."""
        for one in rejected:
            self._window.counts["stale" if one.reason == "stale" else "dead"] += 1
            self._letters.append(
                Letter(
                    log_offset=one.offset,
                    reason=one.reason,
                    detail=one.detail,
                    op=one.op,
                    key=one.key,
                    source_position=str(one.source or ""),
                    source_ts_ms=one.ts_ms,
                    payload=one.payload,
                )
            )
        if rejected:
            self._trusts_creates = False
            self._require_share([])

    def _require_share(self, more: Sequence[Rejected]) -> None:
        """Raise LimitError when too many of the newest events, `more` among them, can't be applied."""
        events, dead = map(sum, zip(*self._shares, self._share_of_window(), strict=True))
        events, dead = events + len(more) + (self._load.events if self._load is not None else 0), dead + len(more)
        if dead <= self._policy.dead_letters_max_share * max(events, _SHARE_OF_EVENTS_MIN):
            return
        told = [f"{one.reason}: {one.detail}" for one in more] or [f"{x.reason}: {x.detail}" for x in self._letters]
        raise LimitError(
            f"{dead} of the newest {events} events can't be applied; the last is {told[-1]}",
            where=f"{self._table.name}, change-log records from {self._read_to}",
            action="Correct the cause at the source and take a new load (`cdc-platform reload TABLE`), or let more of "
            "them pass to the dead letters: `landing.dead_letters_max_share`",
        )

    def _share_of_window(self) -> tuple[int, int]:
        counts = self._window.counts
        return sum(counts.values()), counts["dead"] + counts["stale"]

    def _newest_shares(self) -> deque[tuple[int, int]]:
        """Events and dead letters of the newest windows, oldest first, as the table's snapshots tell."""
        found: deque[tuple[int, int]] = deque()
        history = self._table.history
        events = 0
        for snapshot in history.ancestry() if history else ():
            if events >= _SHARE_OF_EVENTS:
                break
            counts = {k.removeprefix(EVENTS): int(v) for k, v in snapshot.summary.items() if k.startswith(EVENTS)}
            found.appendleft((sum(counts.values()), counts.get("dead", 0) + counts.get("stale", 0)))
            events += found[0][0]
        return found

    def _stamp_age_s(self) -> float:
        history = self._table.history
        newest = history.newest(landed) if history else None
        return max(0.0, time.time() - newest.timestamp_ms / 1000) if newest else 0.0

    @property
    def _by_before_image(self) -> bool:
        return self._policy.mode == "before_image"

    def _new_window(self, newest: SourcePosition | None) -> Window:
        return Window(
            self._key,
            newest=newest,
            memory_bytes=self._policy.memory_mb << 20,
            shards=self._policy.shards,
            first=self._by_before_image,
        )

    def _new_decoder(self) -> Decoder | None:
        """A decoder of the present columns; None when they lack one that each change must have."""
        routed_by = self._table.routed_by if self._by_before_image else ()
        if not {*self._key, *routed_by} <= {c.name for c in self._columns}:
            return None
        return Decoder(
            self._table.name,
            self._columns,
            self._key,
            types=self._policy.types,
            kind_field=self._policy.change_type.column,
            kinds=self._policy.change_type.map,
            routed_by=routed_by,
        )

    def _landing_columns(self) -> tuple[Column, ...]:
        return tuple(Column(c.name, self._home(c) or "string", c.required, c.doc) for c in self._columns)

    def _home(self, column: SourceColumn) -> str | None:
        """The Iceberg type of a column's values, None when they have none."""
        return iceberg_type(column.type, policy_of(column, self._policy.types))

    def _refuse_other_columns(self) -> None:
        """Raise ConfigError where the table's columns are not those that the sink gave it, or would give it now."""
        stands = {c.name: c.type for c in self._table.landing_columns}
        name = self._table.name.split(".", 1)[1]
        if foreign := sorted(stands.keys() ^ {c.name for c in self._table.columns}):
            raise ConfigError(
                f"another program added, dropped or renamed column `{foreign[0]}` of it",
                where=self._table.name,
                action=f"Undo that, or take a new load of this table, which brings the source's columns: `cdc-platform "
                f"reload {name}`",
            )
        for column in self._table.columns:
            wanted = self._home(column)
            if wanted is not None and stands[column.name] != wanted:
                raise ConfigError(
                    f"`landing.types` makes column `{column.name}` a {wanted}, the table has a {stands[column.name]}",
                    where=self._table.name,
                    action=f"Take a new load of this table (`cdc-platform reload {name}`), or put the policy back",
                )

    def _add_to_load(self, load: _Load, changes: "pa.Table") -> None:
        import pyarrow.compute as pc

        if not changes.num_rows:
            return
        load.rows.append(changes)
        load.bytes += changes.nbytes
        load.events += changes.num_rows
        load.ts_ms = max(load.ts_ms, pc.max(changes[TS_MS]).as_py() or 0)
        load.lsn = max(load.lsn or 0, pc.max(changes[LSN]).as_py() or 0)
        if load.bytes >= _LOAD_FILE_BYTES_MAX:
            self._write_load_file(load)

    def _write_load_file(self, load: _Load) -> None:
        import pyarrow as pa

        rows = last_of_each_key(pa.concat_tables(load.rows), self._key)
        load.files += self._table.write_rows(rows)
        load.rows, load.bytes = [], 0

    def _commit_load(self, load: _Load) -> None:
        if load.rows:
            self._write_load_file(load)
        # The order begins anew with a load: its slot may be another's, on another server.
        after = self.position.after(
            log=self._read_to,
            load=self._read_to,
            load_lsn=load.lsn,
            source=None,
            source_ts_ms=load.ts_ms,
            log_id=self._log.identity(),
        )
        self._window.counts["read"] += load.events
        self._load, self._follows, self._trusts_creates = None, True, True
        self._reject(load.rejected)
        self._commit(after, load.files, [], replace_all=True)

    def _drop_load(self) -> None:
        if self._load is not None:
            self._table.discard(self._load.files)
            self._table.unstage()
            self._load = None

    def commit(self) -> None:
        """Commit the window if any event came, even one that was dropped: the position moves."""
        import pyarrow.compute as pc

        window = self._window
        if window.is_empty or self._load is not None:
            return
        data: list[DataFile] = []
        deletes: list[DataFile] = []
        for last in window.collapsed():
            live = last.filter(pc.not_equal(last[OP], "d"))
            if live.num_rows:
                data += self._table.write_rows(live)
            if not window.truncate:
                deletes += self._deletes(last)
        after = self.position.after(
            log=self._read_to, source=window.newest, source_ts_ms=max(window.ts_ms, self.position.source_ts_ms)
        )
        self._commit(after, data, deletes, replace_all=window.truncate)

    def _deletes(self, last: "pa.Table") -> "list[DataFile]":
        """Delete files for the rows that the table may hold of these keys."""
        import pyarrow.compute as pc

        if not self._by_before_image:
            return self._table.write_deletes(last)
        prefix = f"{FIRST_PREFIX}was_"
        # What a load may have brought already is not as the stream behind it tells.
        known: Any = pc.greater(last[FIRST_PREFIX + "lsn"], self.position.load_lsn or 0)
        if self._trusts_creates and not self._window.disordered:  # Else a create is of a key that the table has not.
            is_new = pc.and_(pc.equal(last[FIRST_PREFIX + "op"], "c"), known)
            last, known = last.filter(pc.invert(is_new)), known.filter(pc.invert(is_new))
        routed_by = self._table.routed_by
        if not last.num_rows:
            return []
        told = {prefix + name for name in routed_by} & set(last.column_names)
        if self._window.disordered or not routed_by or len(told) < len(routed_by):
            return self._table.write_deletes(last)
        for name in routed_by:  # A partition of NULL could be a row before that was not told.
            known = pc.and_(known, pc.is_valid(last[prefix + name]))
        files: list[DataFile] = []
        if (rest := last.filter(pc.invert(known))).num_rows:
            files += self._table.write_deletes(rest)
        if (routed := last.filter(known)).num_rows:
            files += self._table.write_deletes(routed, partition_prefix=prefix)
        return files

    def _commit(
        self, after: LandingPosition, data: "list[DataFile]", deletes: "list[DataFile]", *, replace_all: bool = False
    ) -> None:
        """Dead letters first, then the window that leaves them out."""
        self._require_log()
        self._log.make_durable()
        reach("parquet written")
        if self._letters:
            self._dead.add(self._letters, log_id=self._log.identity(), through=self._read_to, window=after.window)
        counts = {kind: n for kind, n in self._window.counts.items() if n}
        self.position = self._table.commit(
            self.position, after, data=data, deletes=deletes, events=counts, replace_all=replace_all
        )
        self._shares.append(self._share_of_window())
        while sum(events for events, _ in self._shares) - self._shares[0][0] >= _SHARE_OF_EVENTS:
            self._shares.popleft()
        self._window.close()
        self._letters = []
        self._window = self._new_window(self.position.source)
        self._committed_at = self._stamped_at = self._clock()

    def _heartbeat(self) -> None:
        """Say again where the table stands: other programs' snapshots push the last word towards expiry."""
        self.position = self._table.commit(
            self.position, self.position.after(), data=[], deletes=[], events={}, notes={HEARTBEAT: "true"}
        )
        self._stamped_at = self._clock()
