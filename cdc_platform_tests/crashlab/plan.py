"""Which faults a history meets, and what its log gets: a pure function of the seed.

Belongs here: rounds (records for the log, how the sink reads them, one fault), re-delivery, reordering, poison.
Does not: the history (`history.py`), doing any of it (`sinklab.py`).
Bounds, as the sink promises no more: a record moves by at most REORDER_MAX places, and none moves across a truncate or
a load, for what a truncate emptied has no position to be compared with. A re-delivery is a run up to what was sent
last, in the source's order, as Debezium after a crash, and reaches back over truncates but over no load.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, get_args

from cdc_platform.faults import Step
from cdc_platform_tests.crashlab.history import SHAPES, Event, Shape, histories, is_barrier, is_marker, line
from cdc_platform_tests.crashlab.model import Record

Kind = Literal["kill", "answer", "conflict", "zombie", "duplicate", "reorder", "poison"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CatalogStep = Literal["catalog asked", "catalog answered"]  # By any commit: a claim's and the dead letters' too.
SINK_STEPS: tuple[Step, ...] = ("parquet written", "commit sent", "commit answered")
REORDER_MAX = 12
REDELIVER_MAX = 60
POISONS = ("unreadable", "unknown_kind", "no_key", "no_home")
_ROUND_EVENTS_MAX = 24


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `nth`: at which arrival at `step`. `detail`: what another writer does, or how data is disturbed."""

    kind: Kind
    step: Step | CatalogStep | None = None
    nth: int = 1
    detail: str = ""

    @property
    def name(self) -> str:
        """As the table of results calls it."""
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


@dataclass(frozen=True, slots=True)
class Round:
    """Records that the log gets, then one child with at most one fault."""

    records: tuple[Record, ...]
    reads: tuple[int, ...]  # Records that the sink gets at each read; the last is repeated.
    window_reads: int  # Reads that make a commit window.
    fault: Fault | None  # None where the records were fit for none.
    stops_after: int | None  # Reads after which the child ends without committing what it holds; None: at the end.


@dataclass(frozen=True, slots=True)
class Plan:
    """One history."""

    number: int
    seed: int
    shape: Shape
    rounds: tuple[Round, ...]
    source: tuple[Event, ...]  # What the source did, in its order.

    @property
    def table(self) -> str:
        """The landing table's identifier."""
        return f"landing.{self.shape.name}_{self.number:04d}"


def plan(seed: int, number: int, faults: int, kinds: Sequence[Kind] = KINDS, *, rewrites: bool = False) -> Plan:
    """The plan of one history with so many faults. `rewrites`: Spark is there to rewrite a table's files."""
    if not (ordered := [k for k in KINDS if k in kinds]):
        raise ValueError("no kind of fault is left")
    rng = random.Random(f"{seed}/{number}/{','.join(ordered)}/{rewrites}")
    shape = SHAPES[number % len(SHAPES)]
    source = histories(f"{seed}/{number}", shape)
    sent: list[Event] = []  # All that the source did up to here, in its order.
    rounds: list[Round] = []
    injected = 0
    while injected < faults:
        kind = rng.choice(ordered)
        if kind == "duplicate" and rng.random() < 0.4 and (again := redelivered(rng, sent)):
            # Capture dies once more while it sends again, and the rest comes later: what was sent is older than it.
            cut = again[: rng.randint(1, len(again))]
            rounds.append(_round(rng, [Record(line(e)) for e in cut], Fault("duplicate", detail="broken off")))
            injected += 1
            if injected == faults:
                break
        fresh = _next_events(rng, source, first=not rounds)
        fault, records = _disturbed(rng, kind, fresh, sent, rewrites=rewrites)
        sent += fresh
        rounds.append(_round(rng, records, fault))
        injected += fault is not None
    return Plan(number, seed, shape, tuple(rounds), tuple(sent))


def _next_events(rng: random.Random, source: Iterator[list[Event]], *, first: bool) -> list[Event]:
    events: list[Event] = []
    for transaction in islice(source, rng.randint(2, 5) + first):
        events += transaction
        if len(events) >= _ROUND_EVENTS_MAX:
            break
    return events


def _round(rng: random.Random, records: list[Record], fault: Fault | None) -> Round:
    reads = tuple(rng.choice((1, 2, 3, 5, 8, 13, 1_000)) for _ in range(rng.randint(1, 6)))
    if fault is None or fault.step is None:
        stops = rng.randint(0, 4) if rng.random() < 0.4 else None
        return Round(tuple(records), reads, rng.choice((1, 1, 1, 2, 3)), fault, stops)
    # Each read is a window, so that the step is arrived at often enough. What lies before a load is not read at all.
    load = max((i for i, r in enumerate(records) if r.line.startswith(b'{"op":"load_')), default=-1)
    streamed = len(records) - 1 - load
    fault = replace(fault, nth=min(fault.nth, max(streamed, 1)))
    if fault.nth > 1:
        return Round(tuple(records), (rng.randint(1, streamed // fault.nth),), 1, fault, None)
    return Round(tuple(records), reads, rng.choice((1, 1, 1, 2, 3)), fault, None)


def _process_fault(rng: random.Random, kind: Kind, rewrites: bool) -> Fault:
    nth = rng.choice((1, 1, 1, 2, 2, 3))
    match kind:
        case "kill":
            return Fault("kill", rng.choice((*SINK_STEPS, *get_args(CatalogStep))), nth)
        case "answer":
            lost = rng.choice(("before", "after"))
            steps: tuple[Step | CatalogStep, ...] = (
                ("commit sent", "catalog asked") if lost == "before" else ("commit answered", "catalog answered")
            )
            return Fault("answer", rng.choice(steps), nth, f"lost {lost}")
        case "conflict":
            how = rng.choice(("tag", "property", "rewrite") if rewrites else ("tag", "property"))
            return Fault("conflict", rng.choice(("parquet written", "commit sent")), 1, how)
        case _:
            return Fault("zombie", rng.choice(("parquet written", "commit sent")), 1)


def _disturbed(
    rng: random.Random, kind: Kind, fresh: list[Event], sent: list[Event], *, rewrites: bool
) -> tuple[Fault | None, list[Record]]:
    """What the log gets, and the fault; None when these events are not fit for this kind."""
    plain = [Record(line(e)) for e in fresh]
    match kind:
        case "duplicate":
            again = redelivered(rng, sent)
            return (Fault("duplicate"), [*(Record(line(e)) for e in again), *plain]) if again else (None, plain)
        case "reorder":
            moved = reordered(rng, fresh)
            return (Fault("reorder"), [Record(line(e)) for e in moved]) if moved != fresh else (None, plain)
        case "poison":
            reason = rng.choice(POISONS)
            places = [i for i, e in enumerate(fresh) if not is_barrier(e)]
            if not places:
                return None, plain
            at = rng.choice(places)
            return Fault("poison", detail=reason), [*plain[:at], poison(rng, reason, fresh[at]), *plain[at:]]
        case _:
            return _process_fault(rng, kind, rewrites), plain


def redelivered(rng: random.Random, sent: Sequence[Event]) -> list[Event]:
    """A run up to what was sent last, sent again."""
    load = max((i + 1 for i, e in enumerate(sent) if is_marker(e)), default=0)
    streamed = sent[load:]
    if not streamed:
        return []
    back = rng.randint(1, min(REDELIVER_MAX, len(streamed)))
    return _renumbered(rng, streamed[-back:])


def _renumbered(rng: random.Random, run: Sequence[Event]) -> list[Event]:
    """Debezium that resumes inside a transaction may count that transaction's ordinals from elsewhere (seen)."""
    first = run[0]["source"]["txId"]
    shift = rng.randint(0, int(run[0]["transaction"]["total_order"]) - 1)
    return [
        {**e, "transaction": {**e["transaction"], "total_order": e["transaction"]["total_order"] - shift}}
        if e["source"]["txId"] == first
        else e
        for e in run
    ]


def reordered(rng: random.Random, fresh: Sequence[Event]) -> list[Event]:
    """Swap some pairs, of one key where there are such, within the bound and across no barrier."""
    order = list(range(len(fresh)))
    for _ in range(rng.randint(1, 4)):
        pairs = [
            (a, b)
            for a in order
            for b in range(a + 1, min(a + 1 + REORDER_MAX, len(order)))
            if abs(order[a] - b) <= REORDER_MAX
            and abs(order[b] - a) <= REORDER_MAX
            and not any(is_barrier(e) for e in fresh[a : b + 1])
        ]
        alike = [(a, b) for a, b in pairs if _keys(fresh[order[a]]) & _keys(fresh[order[b]])]
        if not pairs:
            break
        a, b = rng.choice(alike if alike and rng.random() < 0.6 else pairs)
        order[a], order[b] = order[b], order[a]
    return [fresh[i] for i in order]


def _keys(event: Event) -> set[int]:
    return {int(row["id"]) for row in (event["before"], event["after"]) if row is not None}


def poison(rng: random.Random, reason: str, neighbour: Event) -> Record:
    """A record that can't be applied, at a position of its own just before its neighbour's."""
    source = dict(neighbour["source"])
    source["lsn"] -= rng.randint(1, 5)
    source["sequence"] = f'{source["sequence"].partition(",")[0]},"{source["lsn"]}"]'
    row = {**(neighbour["after"] or neighbour["before"]), "status": "poison", "total": "1.00"}
    event: Event = {"op": "u", "before": None, "after": row, "source": source, "transaction": neighbour["transaction"]}
    match reason:
        case "unreadable":
            whole = line(event)
            no_number = line({**event, "after": row | {"total": rng.choice(("Infinity", "123456789012345.00", "one"))}})
            return Record(rng.choice((whole[: len(whole) // 2], b"not json", b"[1, 2]", no_number)), reason)
        case "unknown_kind":
            event["op"] = rng.choice(("x", "", "upsert"))
        case "no_key":
            event["after"] = {**row, "id": None}
        case _:
            event["after"] = {**row, "total": "NAN"}  # So Debezium writes NaN, which is no decimal.
    return Record(line(event), reason)
