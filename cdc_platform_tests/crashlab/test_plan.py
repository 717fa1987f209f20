"""The plan is a function of the seed, and what it does to a history stays within what the sink promises."""

import json
import random
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform_tests.crashlab.history import SHAPES, Event, Shape, histories, is_barrier, is_marker, line
from cdc_platform_tests.crashlab.model import BEFORE_ALL, Ledger, Record, position_of
from cdc_platform_tests.crashlab.plan import KINDS, REORDER_MAX, Kind, plan, redelivered, reordered

seeds, shapes = st.integers(0, 10_000), st.sampled_from(SHAPES)


def events_of(seed: int, shape: Shape, transactions: int = 40) -> list[Event]:
    return [e for t in islice(histories(str(seed), shape), transactions) for e in t]


@given(seeds, shapes)
def test_a_history_is_consistent_as_a_source_is(seed: int, shape: Shape) -> None:
    """Before images are what the row was, no created key exists, positions rise from load to load."""
    events = events_of(seed, shape)
    first_load = events[1 : next(i for i, e in enumerate(events) if e["op"] == "load_end")]
    rows = {key_of(e["after"], shape): e["after"] for e in first_load}
    newest = BEFORE_ALL
    for event in events:
        if is_marker(event):
            newest = BEFORE_ALL
            continue
        if event["op"] == "r":
            assert rows[key_of(event["after"], shape)] == event["after"]
            continue
        assert position_of(event) >= newest
        newest = position_of(event)
        if event["op"] == "t":
            rows.clear()
        if event["before"] is not None:
            assert rows.pop(key_of(event["before"], shape)) == event["before"]
        if event["after"] is not None:
            assert key_of(event["after"], shape) not in rows
            rows[key_of(event["after"], shape)] = event["after"]


def key_of(row: Event, shape: Shape) -> str:
    return json.dumps([row[k] for k in shape.key])


def test_a_history_has_all_that_makes_order_hard() -> None:
    events = [e for e in events_of(1, SHAPES[0], 300) if not is_barrier(e)]
    later = list(pairwise(events))
    assert any(b["source"]["lsn"] < a["source"]["lsn"] for a, b in later), "transactions interleave in the WAL"
    assert any(b["source"]["lsn"] == a["source"]["lsn"] for a, b in later), "rows share an LSN"
    assert any(e["op"] == "u" and e["before"]["id"] != e["after"]["id"] for e in events), "a key changes"


@given(seeds, st.integers(0, 5), st.lists(st.sampled_from(KINDS), min_size=1, unique=True))
def test_a_plan_is_a_function_of_the_seed_and_a_longer_one_begins_alike(
    seed: int, number: int, kinds: list[Kind]
) -> None:
    short, long = plan(seed, number, 3, kinds), plan(seed, number, 8, kinds)
    assert short == plan(seed, number, 3, kinds[::-1])
    assert long.rounds[: len(short.rounds)] == short.rounds
    faults = [r.fault for r in long.rounds if r.fault is not None]
    assert len(faults) == 8
    assert {f.kind for f in faults} <= set(kinds)


@given(seeds, shapes, st.randoms(use_true_random=False))
def test_reordering_moves_nothing_far_and_nothing_across_a_barrier(seed: int, shape: Shape, rng: random.Random) -> None:
    events = events_of(seed, shape, 12)
    moved = reordered(rng, events)
    places = {id(e): i for i, e in enumerate(events)}
    was = [places[id(e)] for e in moved]
    assert sorted(was) == list(range(len(events)))
    assert all(abs(now - before) <= REORDER_MAX for now, before in enumerate(was))
    for now, before in enumerate(was):
        assert not any(is_barrier(e) for e in events[min(now, before) : max(now, before)]) or now == before


@given(seeds, shapes, st.randoms(use_true_random=False))
def test_a_redelivery_is_a_run_to_the_newest_and_reaches_over_no_load(
    seed: int, shape: Shape, rng: random.Random
) -> None:
    sent = events_of(seed, shape, 12)
    again = redelivered(rng, sent)
    strip = [{**e, "transaction": None} for e in sent]
    assert [{**e, "transaction": None} for e in again] == strip[len(sent) - len(again) :]
    assert not any(is_marker(e) or e["op"] == "r" for e in again)
    assert all(e["transaction"]["total_order"] >= 1 for e in again)


@given(seeds, st.integers(0, 3))
def test_whatever_the_way_the_log_ends_in_the_source_rows(seed: int, number: int) -> None:
    """Duplicates, disorder and poison change nothing in the model: it is the source's history again."""
    made = plan(seed, number, 6)
    ledger = Ledger(tuple(made.shape.columns), made.shape.key, [r for one in made.rounds for r in one.records])
    found = ledger.through(len(ledger.log)).rows
    source = Ledger(ledger.columns, ledger.key, [Record(line(e)) for e in made.source])
    assert source.through(len(source.log)).rows == found
    assert source.through(len(source.log)).dead == {}


@pytest.mark.parametrize("kinds", [[], ["meteor"]])
def test_a_plan_without_any_kind_is_refused(kinds: list[Kind]) -> None:
    with pytest.raises(ValueError, match="no kind"):
        plan(1, 0, 3, kinds)
