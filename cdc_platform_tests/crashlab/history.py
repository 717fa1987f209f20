"""A random history of one table at its source, as Debezium's events: consistent, and by seed alone.

Belongs here: transactions and where they lie in the WAL. Does not: what becomes of the events on their way (`plan.py`).
Rules, as PostgreSQL and Debezium have them: an event's `source.sequence` is the commit LSN of the transaction before
its own, and its own LSN; transactions that interleave in the WAL come one after the other, in the order of their
commits, and touch no key in common; rows of one COPY share LSNs; a changed key comes as one update or as a delete and
a create of equal LSN; a before image is what the row was. Every change writes a value that no other wrote, so a row
that is not the newest shows.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LOAD_BEGIN, LOAD_END = "load_begin", "load_end"
_FIRST_LSN = 1_000
_STEP_LSN = 8  # Between them there is room for the plan's poison.

Event = dict[str, Any]  # Debezium's, or a load marker: {"op": LOAD_BEGIN}.


@dataclass(frozen=True, slots=True)
class Shape:
    """A table: its key, and its columns with PostgreSQL's types."""

    name: str
    key: tuple[str, ...]
    columns: Mapping[str, str]

    def row(self, number: int, **values: Any) -> Event:
        """A row whose key has this number."""
        key = {"shop": f"shop-{number % 3}", "id": number} if len(self.key) == 2 else {"id": number}
        return key | values


SHAPES = (
    Shape("orders", ("id",), {"id": "bigint", "status": "text", "total": "numeric(12,2)"}),
    Shape("lines", ("shop", "id"), {"shop": "text", "id": "bigint", "status": "text", "total": "numeric(12,2)"}),
)


def is_marker(event: Event) -> bool:
    """Whether this is one of a load's markers."""
    return str(event["op"]).startswith("load_")


def is_barrier(event: Event) -> bool:
    """Whether nothing may be moved across it: a truncate, a load's marker or read."""
    return event["op"] in {"t", "r"} or is_marker(event)


@dataclass
class _Source:
    """The table at its source, and the WAL."""

    random: random.Random
    shape: Shape
    rows: dict[int, Event] = field(default_factory=dict[int, Event])
    lsn: int = _FIRST_LSN
    committed: int | None = None  # Commit LSN of the newest transaction.
    written: int = 0
    transactions: int = 0
    copied: int = 1_000  # Keys of COPYs are new ones.

    def next_lsn(self) -> int:
        self.lsn += _STEP_LSN * self.random.randint(1, 3)
        return self.lsn

    def new_row(self, number: int) -> Event:
        self.written += 1
        total = None if self.random.random() < 0.1 else f"{self.written}.{self.random.randint(0, 99):02d}"
        return self.shape.row(number, status=f"s{self.written}", total=total)

    def change(self, allowed: Sequence[int]) -> list[Event]:
        """One statement's event or two, on keys among `allowed`; the rows follow."""
        number = self.random.choice(allowed)
        free = [n for n in allowed if n not in self.rows]
        if number not in self.rows:
            self.rows[number] = self.new_row(number)
            return [{"op": "c", "before": None, "after": self.rows[number]}]
        kind = self.random.choices(("u", "d", "move", "replace"), (60, 20, 12, 8))[0]
        before = self.rows[number]
        if kind == "d" or (kind != "u" and not free):
            del self.rows[number]
            return [{"op": "d", "before": before, "after": None}]
        if kind == "u":
            self.rows[number] = self.new_row(number)
            return [{"op": "u", "before": before, "after": self.rows[number]}]
        moved = self.random.choice(free)
        del self.rows[number]
        self.rows[moved] = after = self.new_row(moved)
        if kind == "move":
            return [{"op": "u", "before": before, "after": after}]
        return [{"op": "d", "before": before, "after": None}, {"op": "c", "before": None, "after": after}]

    def changes(self, allowed: Sequence[int], statements: int) -> list[list[Event]]:
        return [self.change(allowed) for _ in range(statements)]

    def copy(self) -> list[list[Event]]:
        """Rows of one COPY; those of a group share an LSN."""
        groups: list[list[Event]] = []
        for _ in range(self.random.randint(1, 4)):
            group: list[Event] = []
            for _ in range(self.random.randint(1, 6)):
                self.copied += 1
                self.rows[self.copied] = self.new_row(self.copied)
                group.append({"op": "c", "before": None, "after": self.rows[self.copied]})
            groups.append(group)
        return groups

    def place(self, statements: list[list[Event]], lsns: Sequence[int]) -> list[Event]:
        """Events of one transaction, each statement at its LSN, with what Debezium says of their place."""
        self.transactions += 1
        before = "null" if self.committed is None else f'"{self.committed}"'
        events: list[Event] = []
        for statement, lsn in zip(statements, lsns, strict=True):
            for event in statement:
                source = {
                    "ts_ms": 1_700_000_000_000 + lsn,
                    "sequence": f'[{before},"{lsn}"]',
                    "lsn": lsn,
                    "txId": self.transactions,
                }
                place = {"id": f"{self.transactions}:{lsn}", "total_order": len(events) + 1}
                events.append({**event, "source": source, "transaction": place})
        return events

    def transaction(self, statements: list[list[Event]]) -> list[Event]:
        events = self.place(statements, [self.next_lsn() for _ in statements])
        self.committed = self.next_lsn()
        return events

    def interleaved(self, keys: Sequence[int]) -> list[Event]:
        """Two open at once, on other keys: the one that commits first comes first, whatever its LSNs."""
        shuffled = self.random.sample(keys, len(keys))
        half = len(shuffled) // 2
        first = self.changes(shuffled[:half], self.random.randint(1, 3))
        second = self.changes(shuffled[half:], self.random.randint(1, 3))
        early = self.random.randint(1, len(second))  # Of the second one, written before the first committed.
        order = [0] * len(first) + [1] * early
        self.random.shuffle(order)
        lsns: tuple[list[int], list[int]] = ([], [])
        for which in order:
            lsns[which].append(self.next_lsn())
        committed = self.next_lsn()
        events = self.place(first, lsns[0])
        self.committed = committed
        events += self.place(second, lsns[1] + [self.next_lsn() for _ in second[early:]])
        self.committed = self.next_lsn()
        return events

    def load(self) -> list[Event]:
        """An initial load of all there is. Debezium knows no commit before it, nor before the next transaction."""
        lsn = self.next_lsn()
        source = {"ts_ms": 1_700_000_000_000 + lsn, "sequence": f'[null,"{lsn}"]', "lsn": lsn, "txId": None}
        reads = [
            {"op": "r", "before": None, "after": row, "source": source, "transaction": None}
            for row in self.rows.values()
        ]
        self.committed = None
        return [{"op": LOAD_BEGIN}, *reads, {"op": LOAD_END}]


def histories(seed: str, shape: Shape) -> Iterator[list[Event]]:
    """Yield the initial load, then transaction after transaction, without end; the same for the same seed."""
    source = _Source(random.Random(f"{seed}/{shape.name}"), shape)
    keys = range(1, 13)
    for number in source.random.sample(keys, source.random.randint(0, 8)):
        source.rows[number] = source.new_row(number)
    yield source.load()
    while True:
        kind = source.random.choices(("few", "copy", "interleaved", "truncate", "reload"), (70, 10, 14, 4, 2))[0]
        if kind == "copy":
            yield source.transaction(source.copy())
        elif kind == "interleaved":
            yield source.interleaved(keys)
        elif kind == "truncate":
            source.rows.clear()
            yield source.transaction([[{"op": "t", "before": None, "after": None}]])
        elif kind == "reload":
            yield source.load()
        else:
            known = [*keys, *(n for n in source.rows if n > 1_000)]
            yield source.transaction(source.changes(known, source.random.randint(1, 6)))


def line(event: Event) -> bytes:
    """An event as Debezium writes it."""
    return json.dumps(event, separators=(",", ":")).encode()
