"""Changes that came after newer ones: sent again, overtaken, or just late.

Belongs here: noticing them, judging each by what the change log holds before it. Does not: applying the others
(`landing/window.py`), the dead letters' table.
Rules, for a change at source position p of key k, found at offset o of the log:
- the same change stands at an earlier offset: it was sent again (Debezium repeats what it had not confirmed), and is
  dropped;
- else a change of k with a position after p stands at an earlier offset (or a truncate, or a load that is whole): it is
  stale, and goes to the dead letters;
- else nothing of k is newer: it came late and is applied.
The log is read backwards past the newest position that was there before the batch (a long re-delivery is a stretch of
old positions), and on until a block lies wholly before all that is judged. So disorder within `_BLOCK_RECORDS_MIN`
records is judged exactly, and re-delivery of any length up to `_LOOK_BACK_BYTES_MAX`. What is not
decided there is stale: never dropped in silence, never applied on a guess.
A replayed dead letter is judged by all that came after the letter, and by what made it one before; its own first copies
do not count, another replay of it does.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, Batch, ChangeLog, is_marker
from cdc_platform.landing.events import COMMIT_LSN, LSN, OFFSET, OP, ORDINAL, REPLAY_OF, Decoded, Decoder, Rejected
from cdc_platform.landing.position import SourcePosition

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_BLOCK_RECORDS_MIN = 4_096
_BLOCK_BYTES_MAX = 32 << 20  # About: by the length of the record where the look back begins.
_READ_BYTES_MAX = 8 << 20
_LOOK_BACK_BYTES_MAX = 256 << 20
_SEQUENCE_TEXT = re.compile(rb'"sequence"\s*:\s*"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Sifted:
    """A batch without what was sent again and what is stale."""

    changes: "pa.Table"
    rejected: list[Rejected]  # Those that were decoded so, and the stale ones.
    redelivered: int
    replayed: dict[int, int]  # Offset of a replay that is applied: offset of its dead letter.
    newest: SourcePosition | None  # Newest source position of all seen.
    disordered: bool  # Some of `changes` came late.


def sift(
    decoded: Decoded,
    lines: bytes,
    newest: SourcePosition | None,
    *,
    decoder: Decoder,
    log: ChangeLog,
    floor: int,
    strict: bool,
) -> Sifted:
    """Take out of a batch what must not be applied. `newest` is the newest position before it.

    The log is looked back in to `floor`, where the newest load ended that the table holds: it stands for all before.

    `strict`: applying a change twice would matter, so that even those at `newest` itself are looked for in the log.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    changes, rejected = decoded.changes, list(decoded.rejected)
    late, high, read_at = late_rows(changes, newest, or_equal=strict)
    replays = pc.is_valid(changes[REPLAY_OF]).to_numpy(zero_copy_only=False)
    late |= replays
    shared = Counter(r.source for r in rejected)
    doubtful = [
        r
        for r in rejected
        if late.any() or shared[r.source] > 1 or (r.source and newest and r.source[:2] <= newest[:2])
    ]
    again = _sent_again(doubtful, log, floor) if doubtful else set[int]()
    rejected = [r for r in rejected if r.offset not in again]
    # A dead letter has been seen, too: when it is sent again, it comes late.
    high = max(filter(None, [high, *(r.source for r in rejected)]), default=None)
    if not late.any():
        return Sifted(_placed(changes, read_at), rejected, len(again), {}, high, disordered=False)
    judged = _judge(changes, late, _Past(decoder.of_keys(), log, floor, newest), decoder)
    dropped = [one for one in judged if one.again]
    stale = [one for one in judged if not one.again and one.why_stale]
    texts = lines.split(b"\n") if stale else []
    reasons = {one.offset: one.why_stale for one in stale}  # Both halves of a changed key are one record.
    rejected += [
        decoder.rejected(texts[offset - decoded.first_offset], offset, "stale", why) for offset, why in reasons.items()
    ]
    keep = np.ones(changes.num_rows, dtype=bool)
    keep[[one.row for one in (*dropped, *stale)]] = False
    applied = changes.filter(pa.array(replays & keep))
    return Sifted(
        _placed(changes, read_at).filter(pa.array(keep)),
        rejected,
        len(again) + len(dropped),
        dict(zip(applied[OFFSET].to_pylist(), applied[REPLAY_OF].to_pylist(), strict=True)),
        high,
        disordered=bool((late & keep).any()),
    )


def late_rows(
    changes: "pa.Table", newest: SourcePosition | None, *, or_equal: bool = False
) -> "tuple[np.ndarray, SourcePosition | None, dict[int, SourcePosition]]":
    """Which rows come after one of a newer source position, as a mask; the newest position of all; where reads stand.

    Rows at the newest position itself are not late: of those that share one (a COPY's, both halves of a changed key)
    some may have been seen and others not, and applying one again changes nothing, for each is of a key of its own.
    With `or_equal`, those at the position given are late, too. The ordinal does not count: it may begin elsewhere when
    Debezium resumes inside a transaction (seen). A read outside an initial load is late by its LSN alone, and makes
    nothing else late: it is no commit, and stands in the order of commits where the stream was when it came.
    """
    import numpy as np
    import pyarrow.compute as pc

    late = np.zeros(changes.num_rows, dtype=bool)
    reads = pc.equal(changes[OP], "r").to_numpy(zero_copy_only=False)
    commit, lsn, ordinal = (changes[name].to_numpy() for name in (COMMIT_LSN, LSN, ORDINAL))
    if or_equal and newest is not None:
        late |= (commit == newest.commit_lsn) & (lsn == newest.lsn) & ~reads
    rising = (commit[1:] > commit[:-1]) | ((commit[1:] == commit[:-1]) & (lsn[1:] >= lsn[:-1]))
    if not changes.num_rows:
        return late, newest, {}
    if not reads.any() and rising.all() and (newest is None or (int(commit[0]), int(lsn[0])) >= newest[:2]):
        return late, SourcePosition(int(commit[-1]), int(lsn[-1]), int(ordinal[-1])), {}  # The common case: no loop.
    high, read_at = newest, dict[int, SourcePosition]()
    positions = map(SourcePosition, commit.tolist(), lsn.tolist(), ordinal.tolist())
    for row, (is_read, position) in enumerate(zip(reads.tolist(), positions, strict=True)):
        if is_read:
            late[row] = high is not None and position.lsn < high.lsn
            read_at[row] = high or position
        elif high is not None and position[:2] < high[:2]:
            late[row] = True
        else:
            high = position
    return late, high, read_at


def _placed(changes: "pa.Table", read_at: dict[int, SourcePosition]) -> "pa.Table":
    """Changes with each read at its place in the order of commits."""
    import pyarrow as pa

    for index, name in ((0, COMMIT_LSN), (1, LSN)) if read_at else ():
        values = changes[name].to_numpy().copy()
        for row, position in read_at.items():
            values[row] = position[index]
        changes = changes.set_column(changes.column_names.index(name), name, pa.array(values))
    return changes


@dataclass
class _Late:
    """One change under judgement."""

    row: int  # In the decoded table.
    offset: int
    op: str
    position: tuple[int, int]
    replay_of: int | None
    again: bool = False
    overtaken: bool = False
    undecided: bool = False

    @property
    def why_stale(self) -> str:
        """Why it is stale; empty when it is not."""
        if self.replay_of is not None and self.replay_of >= self.offset:
            return "it replays no record before it"
        if self.overtaken:
            return "a newer change of its key had come before it"
        if self.undecided:
            return "it came too late for newer changes of its key to be looked for"
        return "a truncate that came late can't be applied to older rows alone" if self.op == "t" else ""

    def meet(self, op: str, position: tuple[int, int], offset: int, *, is_replay: bool) -> None:
        """Take note of a record of the same key, or of a truncate, that stands in the log."""
        if offset >= self.offset:
            return
        if op == self.op and position == self.position:
            # Of a letter that is replayed only another replay counts: copies of it were letters, too.
            self.again |= self.replay_of is None or (is_replay and offset > self.replay_of)
        elif position > self.position if self.op != "r" else position[1] > self.position[1]:
            self.overtaken = True


class _Docket:
    """The changes under judgement, by key."""

    def __init__(self, changes: "pa.Table", late: "np.ndarray", decoder: Decoder) -> None:
        import numpy as np

        self._key = decoder.key
        self._marked = changes.select(list(self._key)).filter(late)
        facts = (changes[name].filter(late).to_pylist() for name in (OFFSET, OP, COMMIT_LSN, LSN, REPLAY_OF))
        self.all = [
            _Late(row, offset, op, (commit, lsn), replay_of)
            for row, offset, op, commit, lsn, replay_of in zip(np.flatnonzero(late).tolist(), *facts, strict=True)
        ]
        self._by_key: dict[tuple[Any, ...], list[_Late]] = defaultdict(list)
        for one, values in zip(self.all, self._values(self._marked), strict=True):
            self._by_key[values].append(one)

    def meet(self, seen: "pa.Table") -> None:
        """Confront each with the records of its key, and all with truncates."""
        import pyarrow.compute as pc

        same: Any = None
        for name in self._key:
            found = pc.is_in(seen[name], self._marked[name].combine_chunks())
            same = found if same is None else pc.and_(same, found)
        met = seen.filter(pc.or_(pc.equal(seen[OP], "t"), same))
        facts = (met[name].to_pylist() for name in (OP, COMMIT_LSN, LSN, OFFSET, REPLAY_OF))
        for op, commit, lsn, offset, replay_of, values in zip(*facts, self._values(met), strict=True):
            for one in self.all if op == "t" else self._by_key.get(values, ()):
                one.meet(op, (commit, lsn), offset, is_replay=replay_of is not None)

    def meet_load(self, begin: int, end: int) -> None:
        """A whole load stands for all before it: a letter from before it is overtaken."""
        for one in self.all:
            one.overtaken |= one.replay_of is not None and one.replay_of < begin < end < one.offset

    def _values(self, rows: "pa.Table") -> "Iterator[tuple[Any, ...]]":
        return zip(*(rows[name].to_pylist() for name in self._key), strict=True)


@dataclass(frozen=True, slots=True)
class _Past:
    """The log before a batch: how its records are read, how far back, and the newest position in it."""

    keys: Decoder
    log: ChangeLog
    floor: int
    newest: SourcePosition | None


def _judge(changes: "pa.Table", late: "np.ndarray", past: _Past, decoder: Decoder) -> list[_Late]:
    """Judge the rows that `late` marks by what the log holds before each."""
    import pyarrow.compute as pc

    is_replay = pc.is_valid(changes[REPLAY_OF]).to_numpy(zero_copy_only=False)
    streamed, replays = _Docket(changes, late & ~is_replay, decoder), _Docket(changes, late & is_replay, decoder)
    for docket in (streamed, replays):
        if docket.all:
            _look_back(docket, past)
    return [*streamed.all, *replays.all]


def _look_back(docket: _Docket, past: _Past) -> None:
    """Read backwards, past the letters that are replayed, until a block lies wholly before all that is judged."""
    oldest = min(one.position for one in docket.all)
    oldest_lsn = min(one.position[1] for one in docket.all)
    letters = [one.replay_of for one in docket.all if one.replay_of is not None]
    floor = min([past.floor, *letters])  # A letter from before a load must know of the load.
    read_bytes, load_end, met_newest = 0, None, past.newest is None
    for block in _blocks_back(past.log, max(one.offset for one in docket.all), floor):
        lines, start = _without_marker(block)
        if start > block.start:
            kind = json.loads(block.lines.partition(b"\n")[0])["op"]
            load_end = block.start if kind == LOAD_END else load_end
            if kind == LOAD_BEGIN and load_end is not None:
                docket.meet_load(block.start, load_end)
        decoded = past.keys.decode(lines, first_offset=start, count=block.end - start)
        docket.meet(decoded.changes)
        if letters and block.start > min(letters):
            continue
        read_bytes += len(block.lines)
        commit, lsn = (decoded.changes[name].to_pylist() for name in (COMMIT_LSN, LSN))
        positions = [*zip(commit, lsn, strict=True), *(r.source[:2] for r in decoded.rejected if r.source)]
        high = max(positions, default=(0, 0))
        met_newest = met_newest or past.newest is None or high >= past.newest[:2]
        is_older = high < oldest and max(lsn, default=0) < oldest_lsn
        if met_newest and is_older and len(positions) >= _BLOCK_RECORDS_MIN // 2:
            return
        if read_bytes > _LOOK_BACK_BYTES_MAX:
            for one in docket.all:
                one.undecided = True
            return


def _sent_again(rejected: Sequence[Rejected], log: ChangeLog, floor: int) -> set[int]:
    """Offsets of the records that stand in the log before, with the same position and the same images."""
    wanted: dict[bytes, list[Rejected]] = defaultdict(list)
    for one in rejected:
        fragment = _SEQUENCE_TEXT.search(one.payload.encode())
        if one.source is not None and fragment is not None:
            wanted[fragment[0]].append(one)
    again: set[int] = set()
    read_bytes = 0
    for block in _blocks_back(log, max(r.offset for r in rejected), floor) if wanted else ():
        read_bytes += len(block.lines)
        for fragment in [f for f in wanted if f in block.lines]:
            for offset, line in enumerate(block.lines.split(b"\n"), block.start):
                if fragment in line:
                    content = _content(line)
                    again |= {
                        one.offset
                        for one in wanted[fragment]
                        if offset < one.offset and _content(one.payload.encode()) == content
                    }
        if read_bytes > _LOOK_BACK_BYTES_MAX or len(again) == len(rejected):
            break
    return again


def _content(line: bytes) -> str | None:
    try:
        event = json.loads(line)
        return json.dumps([event.get(part) for part in ("op", "before", "after", "replay")])
    except (ValueError, AttributeError, RecursionError):
        return None


def _without_marker(block: Batch) -> tuple[bytes, int]:
    """A block's records, and the offset of the first, without the marker that may begin it."""
    if is_marker(block.lines):
        return block.lines.partition(b"\n")[2], block.start + 1
    return block.lines, block.start


def _blocks_back(log: ChangeLog, end: int, floor: int) -> Iterator[Batch]:
    """Blocks of the log before `end`, the newest first, larger and larger; none before `floor`."""
    line_bytes = max(1, len(log.read(end - 1, bytes_max=1).lines)) if end > floor else 1
    records_max = max(_BLOCK_BYTES_MAX // line_bytes, 1)
    records = min(_BLOCK_RECORDS_MIN, records_max)
    while end > floor:  # Bounded: each turn ends earlier.
        start = max(floor, end - records)
        blocks: list[Batch] = []
        cursor = start
        while cursor < end:  # Bounded: each turn reads at least one record.
            batch = log.read(cursor, bytes_max=_READ_BYTES_MAX)
            if not batch.lines:
                break
            if batch.end > end:
                lines = b"".join(line + b"\n" for line in batch.lines.split(b"\n")[: end - batch.start])
                batch = Batch(batch.start, end, lines)
            blocks.append(batch)
            cursor = batch.end
        yield from reversed(blocks)
        end, records = start, min(2 * records, 16 * _BLOCK_RECORDS_MIN, records_max)
