"""The verdict finds each kind of damage, and the fold knows what late, repeated and poisonous records do."""

from typing import Any

import pytest

from cdc_platform_tests.crashlab.history import Event, line
from cdc_platform_tests.crashlab.model import (
    Expected,
    Ledger,
    Letters,
    Record,
    Verdict,
    compare,
    compare_dead,
)

COLUMNS, KEY = ("id", "status"), ("id",)


def event(op: str, number: int | None, status: str = "a", *, lsn: int = 0, before: int | None = None) -> Event:
    row = None if op in {"d", "t"} else {"id": number, "status": status}
    was = {"id": number if before is None else before, "status": "?"} if op in {"u", "d"} else None
    return {"op": op, "before": was, "after": row, "source": {"sequence": f'["1","{lsn}"]'}}


def fold(*events: Event | Record) -> Expected:
    log = [e if isinstance(e, Record) else Record(line(e)) for e in events]
    return Ledger(COLUMNS, KEY, log).through(len(log))


def load(*numbers: int, whole: bool = True) -> list[Event]:
    return [{"op": "load_begin"}, *(event("r", n) for n in numbers), *([{"op": "load_end"}] if whole else [])]


def test_the_greatest_position_wins_and_what_comes_after_it_is_a_dead_letter() -> None:
    found = fold(event("u", 1, "new", lsn=9), event("u", 1, "old", lsn=8))
    assert found.rows == {("1",): ("1", "new")}
    assert found.dead == {1: Letters(1, 1, "stale")}


def test_a_change_that_stands_in_the_log_before_is_no_dead_letter() -> None:
    again = event("u", 1, "old", lsn=8)
    found = fold(again, event("u", 1, "new", lsn=9), again)
    assert (found.rows, found.dead) == ({("1",): ("1", "new")}, {})


def test_of_a_changed_key_each_half_has_its_own_fate() -> None:
    found = fold(event("c", 1, lsn=1), event("u", 2, "newer", lsn=9), event("u", 2, "moved", lsn=5, before=1))
    assert found.rows == {("2",): ("2", "newer")}
    assert found.dead == {2: Letters(1, 1, "stale")}


def test_a_truncate_empties_what_lies_before_it_even_when_it_is_sent_again() -> None:
    truncate, after = event("t", None, lsn=5), event("c", 2, lsn=6)
    assert fold(event("c", 1, lsn=4), truncate, after, truncate, after).rows == {("2",): ("2", "a")}


def test_a_load_begins_anew_and_one_that_is_broken_off_is_void() -> None:
    assert fold(event("c", 1, lsn=9), *load(7), event("c", 8, lsn=1)).rows.keys() == {("7",), ("8",)}
    assert fold(*load(7), *load(99, whole=False), event("c", 8, lsn=1)).rows.keys() == {("7",), ("8",)}


def test_a_sink_may_pass_over_what_a_load_replaces_and_nothing_else() -> None:
    log = [Record(line(e)) for e in [*load(1), *(event("c", n, lsn=n) for n in (2, 3, 4)), *load(5)]]
    ledger = Ledger(COLUMNS, KEY, log)
    ledger.through(len(log))
    assert ledger.passed_over([3, 9]) == {3, 4, 5}
    assert ledger.passed_over([3, 5, 6, 9]) == set()


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([{"id": 1, "status": "a"}], Verdict()),
        ([], Verdict(lost={"key ('1',)"})),
        ([{"id": 1, "status": "a"}] * 2, Verdict(doubled={"key ('1',)"})),
        ([{"id": 1, "status": "b"}], Verdict(wrong={"key ('1',)"})),
        ([{"id": 1, "status": "a"}, {"id": 2, "status": "a"}], Verdict(wrong={"key ('2',)"})),
    ],
)
def test_a_verdict_names_what_is_lost_doubled_or_wrong(rows: list[dict[str, Any]], verdict: Verdict) -> None:
    found = compare(fold(event("c", 1)), rows, COLUMNS, KEY)
    assert found == verdict
    assert bool(found) == (verdict != Verdict())


@pytest.mark.parametrize(
    ("letters", "verdict"),
    [
        ([(0, "no_key")], Verdict()),
        ([], Verdict(lost={"record 0"})),
        ([(0, "no_key")] * 2, Verdict(doubled={"record 0"})),
        ([(0, "stale")], Verdict(wrong={"record 0: stale, not no_key"})),
        ([(0, "no_key"), (1, "stale")], Verdict(wrong={"record 1: stale, not a dead letter"})),
        ([(0, "no_key"), (2, "stale")], Verdict()),  # Its commit is still to come.
    ],
)
def test_each_dead_letter_stands_there_once(letters: list[tuple[int, str]], verdict: Verdict) -> None:
    must = fold(Record(b"{}", "no_key"), event("c", 1))
    assert compare_dead(must, letters) == verdict
