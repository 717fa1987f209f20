"""What a log must leave in its landing table, as a dict by key, and the verdict on what was found there.

Belongs here: the fold of a log's first records by source position, which records must be dead letters, and counting
what is lost, doubled or wrong. Does not: reading a table (`readers.py`), making a log (`plan.py`).
Rules: per key the greatest source position wins, whatever the order in the log; a truncate empties what lies before
its position; a whole load begins anew; one that a streamed event interrupts is void. A change that stands in the log
before (same key, position and kind) is a re-delivery: no effect, no dead letter. One whose key has a newer change
before it in the log is stale: no effect, and a dead letter.
"""

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdc_platform_tests.crashlab.history import LOAD_BEGIN, LOAD_END, Event

Key = tuple[str | None, ...]
Values = tuple[str | None, ...]  # Of all columns, as text.


class Position(NamedTuple):
    """Where a change stands in the source's order."""

    commit_lsn: int
    lsn: int


BEFORE_ALL = Position(-1, -1)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log. `poison` is the reason that its dead letter must give."""

    line: bytes
    poison: str | None = None

    @property
    def event(self) -> Event:
        """What the line says; only of a record that is no poison."""
        return json.loads(self.line)


@dataclass(frozen=True, slots=True)
class Letters:
    """How many dead letters a record must have and may have, and their reason."""

    least: int
    most: int
    reason: str


@dataclass
class Expected:
    """What must be there once the log is complete through `end`."""

    end: int = 0
    rows: dict[Key, Values] = field(default_factory=dict[Key, Values])
    dead: dict[int, Letters] = field(default_factory=dict[int, Letters])  # By offset.


class _Change(NamedTuple):
    key: Key
    op: str
    row: Values | None


@dataclass
class Ledger:
    """The fold of one log, which grows."""

    columns: Sequence[str]
    key: Sequence[str]
    log: list[Record] = field(default_factory=list[Record])
    loads: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # Of whole ones: begin and end.

    def __post_init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._end = 0
        self._rows: dict[Key, tuple[Position, Values | None]] = {}
        self._emptied = BEFORE_ALL
        self._seen: set[tuple[Key, Position, str]] = set()
        self._dead: dict[int, Letters] = {}
        self._load: dict[Key, Values] | None = None
        self._load_begin = 0
        self.loads = []

    def through(self, end: int) -> Expected:
        """What must be there once the first `end` records were applied. Fast when `end` grows from call to call."""
        if end < self._end:
            self._restart()
        for offset in range(self._end, end):
            record = self.log[offset]
            if record.poison is not None:
                self._dead[offset] = Letters(1, 1, record.poison)
            elif stale := self._take(record.event, offset):
                self._dead[offset] = Letters(1, stale, "stale")
        self._end = end
        return Expected(end, {k: row for k, (_, row) in self._rows.items() if row is not None}, dict(self._dead))

    def _take(self, event: Event, offset: int) -> int:
        """Apply one record; return how many of its changes are stale."""
        op = str(event["op"])
        if op == LOAD_BEGIN:
            self._load, self._load_begin = {}, offset
            return 0
        if op == LOAD_END:
            if self._load is not None:
                self._rows = {k: (BEFORE_ALL, row) for k, row in self._load.items()}
                self._emptied, self._seen, self._load = BEFORE_ALL, set(), None
                self.loads.append((self._load_begin, offset + 1))
            return 0
        if op == "r":
            if self._load is not None:
                self._load[self._key(event["after"])] = self._values(event["after"])
            return 0
        self._load = None  # A load that something interrupts is void.
        position = position_of(event)
        if op == "t":
            if position > self._emptied:
                self._emptied = position
                self._rows = {k: found for k, found in self._rows.items() if found[0] >= position}
            return 0
        return sum(self._is_stale(change, position) for change in self._changes(event))

    def _is_stale(self, change: _Change, position: Position) -> bool:
        """Apply one change; return whether it came after a newer one."""
        identity = (change.key, position, change.op)
        if identity in self._seen:
            return False
        self._seen.add(identity)
        newest, _ = self._rows.get(change.key, (BEFORE_ALL, None))
        if max(newest, self._emptied) > position:
            return True
        self._rows[change.key] = (position, change.row)
        return False

    def _changes(self, event: Event) -> list[_Change]:
        op, before, after = str(event["op"]), event["before"], event["after"]
        if op == "d":
            return [_Change(self._key(before), "d", None)]
        change = _Change(self._key(after), op, self._values(after))
        if op == "u" and before is not None and self._key(before) != change.key:
            return [_Change(self._key(before), "d", None), change]
        return [change]

    def _key(self, row: Mapping[str, Any]) -> Key:
        return tuple(as_text(row[name]) for name in self.key)

    def _values(self, row: Mapping[str, Any]) -> Values:
        return tuple(as_text(row[name]) for name in self.columns)

    def passed_over(self, ends: Iterable[int]) -> set[int]:
        """Offsets that a sink may leave unread: it goes on at a whole load that lies ahead. `ends`: its commits'."""
        known = sorted(ends)
        return {
            offset
            for begin, _ in self.loads
            for offset in range(max((e for e in known if e <= begin), default=0), begin)
        }


def position_of(event: Event) -> Position:
    """Source position of a streamed event."""
    commit, lsn = json.loads(event["source"]["sequence"])
    return Position(int(commit or 0), int(lsn))


def as_text(value: object) -> str | None:
    """A value as the verdict compares it."""
    return None if value is None else str(value)


@dataclass
class Verdict:
    """What is not as it must be, each thing once, by name."""

    lost: set[str] = field(default_factory=set[str])
    doubled: set[str] = field(default_factory=set[str])
    wrong: set[str] = field(default_factory=set[str])

    def __bool__(self) -> bool:
        """Whether anything is amiss."""
        return bool(self.lost or self.doubled or self.wrong)

    def add(self, other: "Verdict") -> None:
        """Take over what another verdict found."""
        self.lost |= other.lost
        self.doubled |= other.doubled
        self.wrong |= other.wrong


def compare(must: Expected, found: Iterable[Mapping[str, Any]], columns: Sequence[str], key: Sequence[str]) -> Verdict:
    """Compare a table's rows with what must be there."""
    rows = [(tuple(as_text(r[k]) for k in key), tuple(as_text(r[c]) for c in columns)) for r in found]
    seen = Counter(k for k, _ in rows)
    return Verdict(
        lost={f"key {k}" for k in must.rows if k not in seen},
        doubled={f"key {k}" for k, n in seen.items() if n > 1},
        wrong={f"key {k}" for k, row in rows if must.rows.get(k) != row},
    )


def compare_dead(must: Expected, found: Iterable[tuple[int, str]], passed_over: Container[int] = ()) -> Verdict:
    """Compare dead letters (log offset and reason) with those that must and may be there.

    A letter may stand before the commit that makes the table complete through its record, but not twice.
    """
    letters = list(found)
    seen = Counter(offset for offset, _ in letters)
    verdict = Verdict(lost={f"record {o}" for o, n in must.dead.items() if seen[o] < n.least and o not in passed_over})
    for offset, reason in letters:
        allowed = must.dead.get(offset)
        if seen[offset] > (allowed.most if allowed else 2 if offset >= must.end else 1):
            verdict.doubled.add(f"record {offset}")
        if offset < must.end and (allowed is None or allowed.reason != reason):
            verdict.wrong.add(f"record {offset}: {reason}, not {allowed.reason if allowed else 'a dead letter'}")
    return verdict
