"""A window ends in what a dict would hold, however the events are cut into batches and sent again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.landing.events import OP, Decoder, Rejected
from cdc_platform.landing.late import sift
from cdc_platform.landing.position import SourcePosition
from cdc_platform.landing.window import Window
from cdc_platform_tests.builders import SOURCE_COLUMNS, MemoryLog, event, fold, lines

DECODER = Decoder("landing.t", SOURCE_COLUMNS, ("id",))


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


class Table:
    """A table in memory that windows are committed to, and the log that they are read from."""

    def __init__(
        self, *, strict: bool = False, newest: SourcePosition | None = None, memory_bytes: int = 1 << 30
    ) -> None:
        self.rows: dict[int, tuple[Any, Any]] = {}
        self.log = MemoryLog()
        self.rejected: list[Rejected] = []
        self._strict = strict
        self._memory_bytes = memory_bytes
        self.window = self._window(newest)

    def _window(self, newest: SourcePosition | None) -> Window:
        return Window(("id",), newest=newest, memory_bytes=self._memory_bytes, shards=2)

    def take(self, events: list[dict[str, Any]]) -> None:
        batch = self.log.append(lines(events))
        decoded = DECODER.decode(batch.lines, first_offset=batch.start)
        newest = self.window.newest
        sifted = sift(decoded, batch.lines, newest, decoder=DECODER, log=self.log, floor=0, strict=self._strict)
        self.window.newest = sifted.newest
        if sifted.redelivered:
            self.window.counts["redelivered"] += sifted.redelivered
        self.rejected += sifted.rejected
        self.window.add(sifted.changes, disordered=sifted.disordered)

    def commit(self) -> None:
        """Deletes of a window first, then its rows."""
        if self.window.truncate:
            self.rows.clear()
        changes = [row for part in self.window.collapsed() for row in part.to_pylist()]
        assert len(changes) == len({row["id"] for row in changes}), "a key stands twice in a window"
        for row in changes:
            self.rows.pop(row["id"], None)
            if row[OP] != "d":
                self.rows[row["id"]] = (row["status"], str(row["total"]))
        self.window.close()
        self.window = self._window(self.window.newest)


def apply_windows(batches: list[list[dict[str, Any]]], close: list[bool], **how: Any) -> dict[int, tuple[Any, Any]]:
    """What the windows would leave in a table."""
    table = Table(**how)
    for batch, closes in zip(batches, close, strict=True):
        if batch:
            table.take(batch)
        if closes:
            table.commit()
    table.commit()
    return table.rows


@given(histories(), st.data())
def test_any_batching_ends_in_the_rows_of_a_fold(events: list[dict[str, Any]], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    batches = [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    close = data.draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches)))
    assert apply_windows(batches, close) == fold(events)
    assert apply_windows(batches, close, strict=True) == fold(events)
    assert apply_windows(batches, close, memory_bytes=1) == fold(events)  # Each batch goes to disk.


@given(histories(), st.data())
def test_events_sent_again_change_nothing(events: list[dict[str, Any]], data: st.DataObject) -> None:
    """A restart sends again from any earlier event on, into the same window or a later one."""
    cut = data.draw(st.integers(0, len(events)))
    again = data.draw(st.integers(0, cut))
    batches = [events[:cut], events[again:]]
    close = data.draw(st.lists(st.booleans(), min_size=2, max_size=2))
    assert apply_windows(batches, close) == fold(events)
    assert apply_windows(batches, close, strict=True) == fold(events)


@given(histories(), st.data())
def test_in_whatever_order_changes_arrive_the_newest_of_each_key_by_source_position_stays(
    events: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Between two truncates, which nothing overtakes, the arrival is any permutation; each record may come twice."""
    stretches: list[list[dict[str, Any]]] = [[]]
    for e in events:
        stretches += [[e], []] if e["op"] == "t" else []
        if e["op"] != "t":
            stretches[-1].append(e)
    arrived = [e for stretch in stretches for e in data.draw(st.permutations(stretch))]
    cut = data.draw(st.integers(0, len(arrived)))
    table = Table()
    table.take(arrived[:cut]) if cut else None
    if data.draw(st.booleans()):
        table.commit()
    table.take([*arrived[cut:], *data.draw(st.permutations(events))])
    table.commit()
    assert table.rows == fold(events)
    assert {r.reason for r in table.rejected} <= {"stale"}


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


def test_a_change_sent_again_is_dropped_one_overtaken_is_stale_and_one_that_is_just_late_is_applied() -> None:
    table = Table()
    first = [event("c", 1, "a", lsn=1), event("c", 2, "a", lsn=2), event("u", 1, "c", lsn=5), event("c", 9, lsn=6)]
    table.take(first)
    table.commit()
    table.take([event("u", 1, "b", lsn=3), first[1], event("u", 2, "b", lsn=4), event("c", 3, lsn=7)])
    assert dict(table.window.counts) == {"redelivered": 1, "update": 1, "create": 1}
    assert [(r.offset, r.reason, r.key, r.source) for r in table.rejected] == [(4, "stale", '{"id": 1}', (0, 3, 0))]
    assert table.window.newest == SourcePosition(0, 7, 0)
    table.commit()
    assert table.rows == {1: ("c", "1.00"), 2: ("b", "1.00"), 3: ("new", "1.00"), 9: ("new", "1.00")}


def test_what_came_before_a_truncate_does_not_come_back_after_it() -> None:
    table = Table()
    table.take([event("c", 1, lsn=1), event("t", None, lsn=9)])
    table.commit()
    table.take([event("c", 5, lsn=4), event("t", None, lsn=3)])
    table.commit()
    assert table.rows == {}
    assert [(r.offset, r.reason) for r in table.rejected] == [(2, "stale"), (3, "stale")]


def test_a_dead_letter_that_is_sent_again_is_not_one_more() -> None:
    wrong = {**event("c", 2, lsn=3), "after": {"id": 2, "status": "new", "total": True}}
    for batches in ([[event("c", 1, lsn=1), wrong], [wrong, event("c", 3, lsn=4)]], [[event("c", 1), wrong, wrong]]):
        table = Table()
        for batch in batches:
            table.take(batch)
            table.commit()
        assert [r.offset for r in table.rejected] == [1]


def test_a_replay_is_applied_unless_its_key_changed_after_the_letter() -> None:
    """Offsets 0 and 1 were dead letters; key 2 got a newer value since. A replay sent twice counts once."""
    wrong = [{**event("c", i, lsn=i), "after": {"id": i, "status": "new", "total": True}} for i in (1, 2)]
    table = Table()
    table.take([*wrong, event("u", 2, "newer", lsn=9)])
    replays = [{**event("c", i, "mended", lsn=i), "replay": {"offset": i - 1}} for i in (1, 2, 1)]
    table.take(replays)
    table.commit()
    assert table.rows == {1: ("mended", "1.00"), 2: ("newer", "1.00")}
    assert [(r.offset, r.reason) for r in table.rejected] == [(0, "unreadable"), (1, "unreadable"), (4, "stale")]


def test_a_window_larger_than_its_memory_ends_in_the_same_rows() -> None:
    events = [event("u", i % 700, f"{i}", lsn=i) for i in range(5_000)]
    batches = [events[i : i + 500] for i in range(0, 5_000, 500)]
    kept = apply_windows(batches, [False] * 10, memory_bytes=20_000)
    assert kept == apply_windows(batches, [False] * 10) == fold(events)


def test_a_window_of_dropped_events_is_not_empty_for_its_position_moves() -> None:
    table = Table()
    table.take([event("u", 1, lsn=4)])
    table.commit()
    table.take([event("u", 1, lsn=4)])
    table.take([event("c", 2, lsn=5)])
    table.commit()
    table.take([event("u", 1, lsn=4)])
    assert dict(table.window.counts) == {"redelivered": 1}
    assert list(table.window.collapsed()) == []


def test_reads_beside_the_stream_are_upserts_at_their_lsn() -> None:
    table = Table()
    table.take([event("c", 1, "a", lsn=3), event("c", 2, "a", lsn=8)])
    table.take([event("r", 1, "read", lsn=5), event("r", 2, "read", lsn=5)])
    table.commit()
    assert table.rows == {1: ("read", "1.00"), 2: ("a", "1.00")}
    assert [r.offset for r in table.rejected] == [3]
    table.take([event("c", 4, "stream", lsn=30), event("r", 4, "read", lsn=25)])  # One batch: the same.
    table.commit()
    assert table.rows[4] == ("stream", "1.00")


def test_a_read_in_a_window_that_is_out_of_order_stands_where_the_stream_was() -> None:
    """Debezium knows no commit for a read: by (0, LSN) it would stand before everything."""
    table = Table()
    read = event("r", 1, "read", lsn=20)
    read["source"]["sequence"] = '[null,"20"]'
    for e in (
        event("u", 1, "old", commit=10, lsn=12),
        event("u", 3, commit=10, lsn=14),
        event("u", 2, commit=10, lsn=13),
    ):
        table.take([e])
    table.take([read])
    table.commit()
    assert table.rows[1] == ("read", "1.00")


def test_a_long_run_that_is_sent_again_is_known_for_what_it_is_to_its_end() -> None:
    """Longer than a block of the look back: its blocks lie wholly before what is judged, and are not the past."""
    events = [
        event("u", i % 50, f"v{i}", lsn=10 + i) if i != 9_000 else event("t", None, lsn=9_010) for i in range(15_000)
    ]
    table = Table()
    table.take(events)
    table.commit()
    before = dict(table.rows)
    for at in range(0, len(events), 3_000):
        table.take(events[at : at + 3_000])
        # The newest one itself is applied again, which changes nothing.
        assert dict(table.window.counts) == {"redelivered": 3_000 - (at == 12_000)} | (
            {"update": 1} if at == 12_000 else {}
        )
        table.commit()
        assert table.rows == before
    assert table.rejected == []


def test_a_replay_of_a_record_that_is_not_before_it_is_refused() -> None:
    table = Table()
    table.take([event("u", 1, "a", lsn=5), {**event("u", 1, "b", lsn=9), "replay": {"offset": 500}}])
    table.commit()
    assert table.rows == {1: ("a", "1.00")}
    assert [(r.offset, r.detail) for r in table.rejected] == [(1, "it replays no record before it")]


def test_a_changed_key_of_which_both_halves_are_stale_is_one_letter() -> None:
    table = Table()
    table.take([event("u", 1, "n", lsn=20), event("u", 2, "n", lsn=20)])
    table.take([event("u", 2, "o", before={"id": 1, "status": "x", "total": None}, lsn=10)])
    assert [(r.offset, r.reason) for r in table.rejected] == [(2, "stale")]


def test_the_replay_of_a_stale_letter_undoes_nothing_either() -> None:
    table = Table()
    table.take([event("u", 1, "newer", lsn=10)])
    table.commit()
    table.take([event("u", 1, "older", lsn=8)])
    table.take([{**event("u", 1, "older", lsn=8), "replay": {"offset": 1}}])
    table.commit()
    assert table.rows == {1: ("newer", "1.00")}
    assert [(r.offset, r.reason) for r in table.rejected] == [(1, "stale"), (2, "stale")]


@pytest.mark.parametrize(("older", "newer"), [((1, 9, 0), (2, 3, 0)), ((1, 2, 9), (1, 3, 1)), ((1, 2, 1), (1, 2, 2))])
def test_positions_order_by_commit_then_lsn_then_ordinal(
    older: tuple[int, int, int], newer: tuple[int, int, int]
) -> None:
    assert SourcePosition(*older) < SourcePosition(*newer)
    assert SourcePosition.parse(str(SourcePosition(*newer))) == newer
