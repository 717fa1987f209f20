"""What a log must leave in its landing table, as a dict by key, and the verdict on what was found there.

Belongs here: the fold of a log's first records by source position, which records must or may be dead letters, and
counting what is lost, doubled or wrong. Does not: reading a table (`readers.py`), making a log (`plan.py`).
Rules: per key the greatest source position wins, whatever the order in the log; a truncate empties what lies before
its position; a whole load begins anew; one that a streamed event interrupts is void. A record that was applied before
is a re-delivery: no effect, no dead letter. One whose key has a newer change earlier in the log is stale: no effect,
and a dead letter, unless both fell into one commit window, where the sink may also just put them in order.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
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


@dataclass
class Expected:
    """What must be there once the log is complete through some position."""

    rows: dict[Key, Values] = field(default_factory=dict[Key, Values])
    dead: dict[int, tuple[int, int, str]] = field(default_factory=dict[int, tuple[int, int, str]])
    """By offset: dead letters at least, at most, and their reason."""


class _Change(NamedTuple):
    key: Key
    op: str
    row: Values | None


@dataclass
class _Fold:
    columns: Sequence[str]
    key: Sequence[str]
    rows: dict[Key, tuple[Position, int, Values | None]] = field(default_factory=dict)  # With the window of each.
    emptied: tuple[Position, int] = (BEFORE_ALL, -1)
    applied: set[tuple[Key, Position, str]] = field(default_factory=set)
    refused: set[tuple[Key, Position, str]] = field(default_factory=set)
    load: dict[Key, Values] | None = None

    def take(self, event: Event, window: int) -> tuple[int, int]:
        """Apply one record; return how many dead letters it must make at least and may make at most."""
        op = str(event["op"])
        if op == LOAD_BEGIN:
            self.load = {}
            return 0, 0
        if op == LOAD_END:
            if self.load is not None:
                self.rows = {k: (BEFORE_ALL, window, row) for k, row in self.load.items()}
                self.emptied, self.applied, self.refused, self.load = (BEFORE_ALL, -1), set(), set(), None
            return 0, 0
        if op == "r":
            if self.load is not None:
                self.load[self._key(event["after"])] = self._values(event["after"])
            return 0, 0
        self.load = None  # A load that something interrupts is void.
        position = position_of(event)
        if op == "t":
            if position > self.emptied[0]:
                self.emptied = (position, window)
                self.rows = {k: found for k, found in self.rows.items() if found[0] >= position}
            return 0, 0
        fates = [self._change(change, position, window) for change in self._changes(event)]
        stale, maybe = fates.count("stale"), fates.count("maybe")
        return min(stale, 1), stale + maybe

    def _change(self, change: _Change, position: Position, window: int) -> str:
        identity = (change.key, position, change.op)
        if identity in self.applied:
            return "redelivered"
        newest = self.rows.get(change.key, (BEFORE_ALL, -1, None))
        after, its_window = max(newest[:2], self.emptied)
        if after > position:
            again = identity in self.refused
            self.refused.add(identity)
            return "maybe" if again or its_window == window else "stale"
        self.applied.add(identity)
        self.rows[change.key] = (position, window, change.row)
        return "applied"

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


def position_of(event: Event) -> Position:
    """Source position of a streamed event."""
    commit, lsn = json.loads(event["source"]["sequence"])
    return Position(int(commit or 0), int(lsn))


def as_text(value: object) -> str | None:
    """A value as the verdict compares it."""
    return None if value is None else str(value)


def expected(log: Sequence[Record], columns: Sequence[str], key: Sequence[str], window_ends: Sequence[int]) -> Expected:
    """Fold the whole of `log`; `window_ends` are the positions through which commits made the table complete."""
    fold, result = _Fold(columns, key), Expected()
    for window, (start, end) in enumerate(pairwise([0, *window_ends, len(log)])):
        for offset in range(start, end):
            record = log[offset]
            if record.poison is not None:
                result.dead[offset] = (1, 1, record.poison)
                continue
            least, most = fold.take(record.event, window)
            if most:
                result.dead[offset] = (least, most, "stale")
    result.rows = {k: row for k, (_, _, row) in fold.rows.items() if row is not None}
    return result


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


def compare_dead(must: Expected, found: Iterable[tuple[int, str]]) -> Verdict:
    """Compare dead letters (log offset and reason) with those that must and may be there."""
    letters = list(found)
    seen = Counter(offset for offset, _ in letters)
    return Verdict(
        lost={f"record {o}" for o, (least, _, _) in must.dead.items() if seen[o] < least},
        doubled={f"record {o}" for o, n in seen.items() if o in must.dead and n > must.dead[o][1]},
        wrong={f"record {o}: {reason}" for o, reason in letters if o not in must.dead or must.dead[o][2] != reason},
    )
