"""A window ends in what a dict would hold, however the events are cut into batches and sent again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.landing.events import OP, Decoder
from cdc_platform.landing.position import SourcePosition
from cdc_platform.landing.window import Window
from cdc_platform_tests.builders import ORDER_COLUMNS, event, fold, lines

DECODER = Decoder("landing.t", ORDER_COLUMNS, ("id",))


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Events of a source that is consistent: before images are what the row was, positions rise."""
    rows: dict[int, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []
    commit = lsn = 0
    for _ in range(draw(st.integers(0, 6))):
        base = commit
        for order in range(1, 1 + draw(st.integers(1, 5))):
            key = draw(st.integers(1, 4))
            status = draw(st.sampled_from("abc"))
            kind = draw(st.sampled_from("uuudtm"))
            copied = kind != "t" and key not in rows and order > 1 and events[-1]["op"] == "c"
            lsn += draw(st.integers(0 if copied else 1, 2))  # Rows of one COPY share an LSN, and nothing else does.
            at = {"commit": base, "lsn": lsn, "order": order}
            if kind == "t" and draw(st.booleans()):
                events.append(event("t", None, **at))
                rows.clear()
            elif key not in rows:
                events.append(event("c", key, status, **at))
                rows[key] = events[-1]["after"]
            elif kind == "d":
                events.append(event("d", key, before=rows.pop(key), **at))
            elif kind == "m" and (free := {1, 2, 3, 4} - rows.keys()):
                moved = min(free)
                events.append(event("u", moved, status, before=rows.pop(key), **at))
                rows[moved] = events[-1]["after"]
            else:
                events.append(event("u", key, status, before=rows[key], **at))
                rows[key] = events[-1]["after"]
        lsn += 1
        commit = lsn
    return events


def apply_windows(batches: list[list[dict[str, Any]]], close: list[bool]) -> dict[int, tuple[Any, Any]]:
    """What the windows would leave in a table: deletes of a window first, then its rows."""
    table: dict[int, tuple[Any, Any]] = {}
    window = Window(newest=None)
    for batch, closes in zip(batches, close, strict=True):
        if batch:
            window.add(DECODER.decode(lines(batch), first_offset=0))
        if closes:
            commit(table, window)
            window = Window(newest=window.newest)
    commit(table, window)
    return table


def commit(table: dict[int, tuple[Any, Any]], window: Window) -> None:
    last = window.collapsed(("id",))
    if window.truncate:
        table.clear()
    for row in last.to_pylist() if last is not None else ():
        table.pop(row["id"], None)
        if row[OP] != "d":
            table[row["id"]] = (row["status"], str(row["total"]))


@given(histories(), st.data())
def test_any_batching_ends_in_the_rows_of_a_fold(events: list[dict[str, Any]], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    batches = [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    close = data.draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches)))
    assert apply_windows(batches, close) == fold(events)


@given(histories(), st.data())
def test_events_sent_again_change_nothing(events: list[dict[str, Any]], data: st.DataObject) -> None:
    """A restart sends again from any earlier event on, into the same window or a later one."""
    cut = data.draw(st.integers(0, len(events)))
    again = data.draw(st.integers(0, cut))
    batches = [events[:cut], events[again:]]
    assert apply_windows(batches, data.draw(st.lists(st.booleans(), min_size=2, max_size=2))) == fold(events)


def test_without_the_filter_an_event_sent_again_would_undo_a_newer_one() -> None:
    """The counter-example that the filter is for: a window closes between, and only part is sent again."""
    events = [event("c", 1, "a", lsn=1), event("u", 1, "b", lsn=2)]
    assert apply_windows([events, events[:1]], [True, True]) == {1: ("b", "1.00")}


def test_a_resume_inside_a_copy_whose_ordinals_count_from_elsewhere_loses_no_row() -> None:
    """Seen: rows of a COPY share an LSN, capture died after the first, and Debezium went on with smaller ordinals."""
    first = [event("c", 1, lsn=5, order=100)]
    resumed = [event("c", 1, lsn=5, order=68), event("c", 2, lsn=5, order=69)]
    for close in ([True, True], [False, False]):
        assert apply_windows([first, resumed], close).keys() == {1, 2}


def test_counts_are_of_events_by_kind_and_dropped_ones_are_stale() -> None:
    window = Window(newest=SourcePosition(0, 5, 0))
    sent = [event("u", 1, lsn=4), event("c", 2, lsn=6), event("d", 2, lsn=7)]
    window.add(DECODER.decode(lines(sent), first_offset=0))
    assert dict(window.counts) == {"stale": 1, "create": 1, "delete": 1}
    assert window.newest == SourcePosition(0, 7, 0)


def test_a_window_of_dropped_events_is_not_empty_for_its_position_moves() -> None:
    window = Window(newest=SourcePosition(0, 5, 0))
    window.add(DECODER.decode(lines([event("u", 1, lsn=4)]), first_offset=0))
    assert not window.is_empty
    assert window.collapsed(("id",)) is None


def test_reads_of_a_load_share_a_position_and_are_all_kept() -> None:
    window = Window(newest=SourcePosition(0, 9, 0))
    window.add(DECODER.decode(lines([event("r", 1, lsn=3), event("r", 2, lsn=3)]), first_offset=0))
    last = window.collapsed(("id",))
    assert last is not None
    assert last["id"].to_pylist() == [1, 2]
    assert window.newest == SourcePosition(0, 9, 0)


@pytest.mark.parametrize(("older", "newer"), [((1, 9, 0), (2, 3, 0)), ((1, 2, 9), (1, 3, 1)), ((1, 2, 1), (1, 2, 2))])
def test_positions_order_by_commit_then_lsn_then_ordinal(
    older: tuple[int, int, int], newer: tuple[int, int, int]
) -> None:
    assert SourcePosition(*older) < SourcePosition(*newer)
    assert SourcePosition.parse(str(SourcePosition(*newer))) == newer
