"""The expected state at a stage's position, under a source that goes on changing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.changelog.log import LOAD_BEGIN, marker
from cdc_platform.convergence.cut import LoadUnderWayError, expected_state
from cdc_platform.convergence.state import Difference, differences
from cdc_platform.errors import UnavailableError
from cdc_platform.source.state import Cut, Measures, State, state_sql
from cdc_platform_tests.builders import event, fold, lines
from cdc_platform_tests.landing.test_window import histories

MEASURES = Measures(("id",), "status")


def state_of(rows: dict[int, tuple[Any, Any]]) -> State:
    distribution: dict[str | None, int] = {}
    for status, _ in rows.values():
        distribution[status] = distribution.get(status, 0) + 1
    return State(len(rows), {"id": sum(rows)}, distribution)


def expected(cut: Cut, events: list[dict[str, Any]]) -> State:
    return expected_state(MEASURES, cut, lines(events).splitlines())


@given(histories(), st.data())
def test_a_cut_moved_over_the_log_is_the_fold_of_all_events(events: list[dict[str, Any]], data: st.DataObject) -> None:
    """Each commit is a transaction, numbered in order; the log is read from anywhere before the cut, with repeats."""
    commits = sorted({e["source"]["sequence"].split('"')[1] for e in events}, key=int)
    for e in events:
        e["source"]["txId"] = 100 + commits.index(e["source"]["sequence"].split('"')[1])
    seen = data.draw(st.integers(0, len(commits)))
    held = [e for e in events if e["source"]["txId"] < 100 + seen]
    start = data.draw(st.integers(0, len(held)))
    again = data.draw(st.integers(start, len(events)))
    cut = Cut(state_of(fold(held)), lsn=0, xmin=100 + seen, xmax=100 + seen, running=frozenset())
    assert expected(cut, [*events[start:], *events[again:]]) == state_of(fold(events))


def test_a_transaction_that_ran_during_the_cut_counts_although_a_later_one_does_not() -> None:
    cut = Cut(State(1, {"id": 1}, {"a": 1}), lsn=0, xmin=700, xmax=702, running=frozenset({700}))
    late = event("c", 5, "b", lsn=1, tx=700)  # Began first, ended after the cut.
    early = event("c", 1, "a", lsn=2, tx=701)  # The cut's own row.
    assert expected(cut, [early, late]) == State(2, {"id": 6}, {"a": 1, "b": 1})


def test_a_second_delivery_counts_once_although_its_ordinals_count_from_elsewhere() -> None:
    cut = Cut(State(0, {"id": 0}, {}), lsn=0, xmin=10, xmax=10, running=frozenset())
    sent = [event("c", 1, "a", lsn=5, order=100, tx=20)]
    again = [event("c", 1, "a", lsn=5, order=68, tx=20), event("c", 2, "a", lsn=5, order=69, tx=20)]
    assert expected(cut, [*sent, *again]) == State(2, {"id": 3}, {"a": 2})


def test_a_truncate_after_the_cut_empties() -> None:
    cut = Cut(State(9, {"id": 45}, {"a": 9}), lsn=0, xmin=5, xmax=5, running=frozenset())
    assert expected(cut, [event("t", None, lsn=1, tx=7), event("c", 2, "b", lsn=2, tx=7)]) == State(
        1, {"id": 2}, {"b": 1}
    )


@pytest.mark.parametrize("line", [marker(LOAD_BEGIN, 1, columns=[]), lines([event("r", 1)]).strip()])
def test_a_load_in_between_is_not_guessed_over(line: bytes) -> None:
    cut = Cut(State(0, {"id": 0}, {}), lsn=0, xmin=5, xmax=5, running=frozenset())
    with pytest.raises(LoadUnderWayError):
        expected_state(MEASURES, cut, [line])


@pytest.mark.parametrize(
    ("transaction", "xmin", "xmax", "held"),
    [
        (699, 700, 702, True),
        (700, 700, 702, False),  # Running.
        (701, 700, 702, True),
        (702, 700, 702, False),
        (2**32 - 5, 3, 3, True),  # Ids go round: the newest before the wrap is before 3.
        (5, 2**32 - 5, 2**32 - 5, False),
    ],
)
def test_visibility_is_postgres_own(transaction: int, xmin: int, xmax: int, held: bool) -> None:
    cut = Cut(State(0, {}, {}), lsn=0, xmin=xmin, xmax=xmax, running=frozenset({700}))
    assert cut.holds(transaction) is held


def test_every_figure_that_differs_is_named_once() -> None:
    a = State(3, {"id": 6}, {"new": 2, None: 1})
    b = State(3, {"id": 7}, {"new": 2, "old": 1})
    assert differences(a, a) == ()
    assert differences(a, b) == (
        Difference("sum(id)", 6, 7),
        Difference("value=NULL", 1, 0),
        Difference("value='old'", 0, 1),
    )


def test_names_are_quoted_in_each_dialect() -> None:
    odd = Measures(('we"ird',), "sta`tus")
    assert 'CAST("we""ird" AS decimal(38, 0))' in state_sql(odd, table="t", quote='"', as_text="text")
    assert "CAST(`sta``tus` AS string)" in state_sql(odd, table="t", quote="`", as_text="string")


def test_what_is_no_change_of_the_source_moves_nothing() -> None:
    """A schema marker, and a dead letter that is replayed: its first record has moved the state."""
    cut = Cut(State(0, {"id": 0}, {}), lsn=0, xmin=100, xmax=100, running=frozenset())
    create = event("c", 1, lsn=5, tx=200)
    replayed = {**create, "replay": {"offset": 3}}
    marked = [marker("schema", 1, columns=[]), *lines([create, replayed]).splitlines()]
    assert expected_state(MEASURES, cut, marked) == state_of(fold([create]))


@pytest.mark.parametrize("line", [b"{half", b"null", b"[]", b"{}"])
def test_a_record_that_can_not_be_read_makes_the_state_unknown(line: bytes) -> None:
    cut = Cut(State(0, {"id": 0}, {}), lsn=0, xmin=100, xmax=100, running=frozenset())
    with pytest.raises(UnavailableError, match="not known what landing should hold"):
        expected_state(MEASURES, cut, [line])
