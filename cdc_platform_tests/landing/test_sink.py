"""The sink on a real catalog and a real log: loads, windows, restarts, fencing. Time is an argument."""

import json
import shutil
from dataclasses import asdict, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.types import StringType

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, SCHEMA, marker
from cdc_platform.changelog.segments import SegmentLog, SegmentWriter
from cdc_platform.errors import CdcError, CommitUnknownError, ConfigError, ConflictError, FencedError, LimitError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import Snapshot
from cdc_platform.landing.commit import Owner
from cdc_platform.landing.dead_letters import DeadLetters
from cdc_platform.landing.position import LandingPosition, SourcePosition, landing_position
from cdc_platform.landing.replay import replay
from cdc_platform.landing.sink import TableSink
from cdc_platform.registry.model import Landing
from cdc_platform.source.types import SourceColumn
from cdc_platform_tests.builders import SOURCE_COLUMNS, event, fold, live_rows
from cdc_platform_tests.landing.test_window import histories

TABLE = "landing.orders"


class Bench:
    """A log that the test writes and a table that a sink keeps, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(
            "lake",
            {
                "type": "sql",
                "uri": f"sqlite:///{folder}/lake/catalog.db",
                "warehouse": (folder / "warehouse").as_uri(),
            },
        )
        self.folder = folder / "log"
        self.writer = SegmentWriter(self.folder)
        self.now = 0.0

    def sink(self, *, window_s: float = 1.0, policy: Landing | None = None, owner: Owner | None = None) -> TableSink:
        return TableSink(
            self.lake,
            TABLE,
            key=("id",),
            log=SegmentLog(self.folder),
            policy=policy,
            window_s=window_s,
            owner=owner,
            clock=lambda: self.now,
        )

    @property
    def log_id(self) -> str:
        return SegmentLog(self.folder).identity()

    def letters(self) -> list[dict[str, Any]]:
        return DeadLetters(self.lake, TABLE).read().to_dict("records")

    def write(self, *events: dict[str, Any]) -> None:
        self.writer.append([json.dumps(e).encode() for e in events])
        self.writer.sync()

    def load(
        self, *ids: int, columns: tuple[SourceColumn, ...] = SOURCE_COLUMNS, whole: bool = True, lsn: int = 1
    ) -> None:
        self.writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in columns]))
        self.write(*[event("r", i, lsn=lsn) for i in ids])
        if whole:
            self.writer.append_marker(marker(LOAD_END, 2))
        self.writer.sync()

    def rows(self, table: str = TABLE) -> dict[int, tuple[Any, Any]]:
        loaded = self.lake.load(table)
        found = live_rows(loaded, ("id",)) if loaded is not None else []
        assert len(found) == len({r["id"] for r in found}), "a key stands twice"
        return {r["id"]: (r["status"], str(r["total"])) for r in found}

    def snapshots(self) -> list[Snapshot]:
        history = self.lake.history(TABLE)
        return [] if history is None else [*history.ancestry()][::-1]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_load_is_one_snapshot_without_deletes_however_it_is_read(bench: Bench) -> None:
    bench.load(1, 2, 3)
    sink = bench.sink()
    sink.catch_up()
    [snapshot] = bench.snapshots()
    assert bench.rows() == dict.fromkeys((1, 2, 3), ("new", "1.00"))
    assert (snapshot.total("data-files"), snapshot.total("delete-files")) == (1, 0)
    assert snapshot.summary["cdc.events.read"] == "3"
    log_id = SegmentLog(bench.folder).identity()
    assert len(log_id) == 32
    expected = LandingPosition(5, 1, source=None, source_ts_ms=1001, load=5, load_lsn=1, epoch=1, log_id=log_id)
    assert sink.position == expected


def test_half_a_load_is_not_seen_by_anyone(bench: Bench) -> None:
    bench.load(1, 2, whole=False)
    bench.sink().catch_up()
    assert bench.snapshots() == []


def test_a_window_has_one_delete_and_one_row_for_a_key_however_often_it_changed(bench: Bench) -> None:
    bench.load(1, 2)
    sink = bench.sink()
    sink.catch_up()
    bench.write(*[event("u", 1, status, lsn=10 + i) for i, status in enumerate("abc")], event("d", 2, lsn=20))
    sink.catch_up()
    last = bench.snapshots()[-1]
    assert bench.rows() == {1: ("c", "1.00")}
    assert last.summary["added-equality-deletes"] == "2"
    assert last.summary["added-records"] == "1"
    assert (last.summary["cdc.source-lsn"], last.summary["cdc.log-position"]) == ("0/20/0", "8")
    assert {k: v for k, v in last.summary.items() if k.startswith("cdc.events.")} == {
        "cdc.events.update": "3",
        "cdc.events.delete": "1",
    }


def test_there_is_one_commit_in_a_window_and_a_change_after_a_quiet_time_does_not_wait(bench: Bench) -> None:
    bench.load(1)
    sink = bench.sink(window_s=1.0)
    sink.step()
    committed: list[tuple[float, int]] = []
    for n, at in enumerate((0.0, 0.5, 0.9, 1.0, 1.1, 1.9, 2.0, 7.0)):
        bench.now = at
        bench.write(event("u", 1, "abcdefgh"[n], lsn=10 + n))
        sink.step()
        committed.append((at, len(bench.snapshots())))
    assert committed == [(0.0, 1), (0.5, 1), (0.9, 1), (1.0, 2), (1.1, 2), (1.9, 2), (2.0, 3), (7.0, 4)]
    assert bench.rows() == {1: ("h", "1.00")}


def test_the_first_transaction_after_a_new_load_is_not_taken_for_an_old_one(bench: Bench) -> None:
    """After a recapture Debezium knows no commit before the first: `[null, lsn]` sorts before all it ever had."""
    bench.load(1)
    bench.write(event("u", 1, "a", commit=90, lsn=100))
    bench.sink().catch_up()
    bench.load(1, lsn=200)
    first = event("c", 2, lsn=210)
    first["source"]["sequence"] = '[null,"210"]'
    bench.write(first)
    bench.sink().catch_up()
    assert bench.rows().keys() == {1, 2}


def renewed(bench: Bench) -> None:
    """The log's folder was lost, and capture began another."""
    bench.writer.close()
    shutil.rmtree(bench.folder)
    bench.writer = SegmentWriter(bench.folder)


def test_a_log_that_took_anothers_place_is_followed_from_its_load_and_not_from_a_position_in_the_other(
    bench: Bench,
) -> None:
    bench.load(1, 2, 3)
    bench.sink().catch_up()
    renewed(bench)
    bench.load(*range(100, 110), lsn=50)  # Longer than the position in the lost log.
    bench.write(event("c", 200, lsn=60))
    bench.sink().catch_up()
    assert bench.rows().keys() == {*range(100, 110), 200}


def test_changes_of_another_log_are_not_applied_without_its_load(bench: Bench) -> None:
    bench.load(1, 2, 3)
    bench.sink().catch_up()
    renewed(bench)
    bench.write(*[event("c", i, lsn=60 + i) for i in range(50, 60)])
    with pytest.raises(CdcError, match=r"before any initial load in this log.*recapture"):
        bench.sink().catch_up()
    assert bench.rows().keys() == {1, 2, 3}


def wrong(row_id: int, *, lsn: int) -> dict[str, Any]:
    """An update whose total is no number."""
    return {**event("u", row_id, lsn=lsn), "after": {"id": row_id, "status": "new", "total": [1]}}


def test_a_record_that_can_not_be_applied_goes_to_the_dead_letters_and_the_others_land(bench: Bench) -> None:
    bench.load(1, 2)
    bench.write(event("u", 1, "a", lsn=10), wrong(2, lsn=11), event("c", 3, lsn=12))
    bench.sink().catch_up()
    assert bench.rows() == {1: ("a", "1.00"), 2: ("new", "1.00"), 3: ("new", "1.00")}
    [letter] = bench.letters()
    assert {k: letter[k] for k in ("log_offset", "reason", "op", "key", "source_position", "window")} == {
        "log_offset": 5,
        "reason": "unreadable",
        "op": "u",
        "key": '{"id": 2}',
        "source_position": "0/11/0",
        "window": 2,
    }
    assert json.loads(letter["payload"]) == wrong(2, lsn=11)
    assert bench.snapshots()[-1].summary["cdc.events.dead"] == "1"


def test_a_letter_is_written_once_however_often_its_window_is_tried(bench: Bench) -> None:
    """The sink dies after the letters are committed and before the window is."""
    bench.load(1, 2)
    bench.sink().catch_up()
    bench.write(wrong(1, lsn=10), event("c", 3, lsn=12))
    for _ in range(2):
        dying = bench.sink()
        dying._table.commit = dies  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            dying.catch_up()
    bench.write(wrong(2, lsn=13))
    bench.sink().catch_up()
    assert [x["log_offset"] for x in bench.letters()] == [4, 6]
    assert bench.rows().keys() == {1, 2, 3}


def dies(*_args: object, **_kwargs: object) -> Any:
    raise KeyboardInterrupt


def test_too_many_dead_letters_stop_the_sink_before_it_commits_them(bench: Bench) -> None:
    bench.load(1)
    bench.write(*[wrong(1, lsn=10 + i) for i in range(6)])
    for _ in range(2):  # Opened again, it counts the same.
        with pytest.raises(LimitError, match=r"6 of the newest 7 events.*unreadable.*dead_letters_max_share"):
            bench.sink(policy=Landing(dead_letters_max_share=0.005)).catch_up()
    assert bench.letters() == []
    bench.sink(policy=Landing(dead_letters_max_share=0.006)).catch_up()
    assert len(bench.letters()) == 6
    bench.write(wrong(1, lsn=30))
    with pytest.raises(LimitError, match="7 of the newest 8 events"):  # Those of earlier windows count.
        bench.sink(policy=Landing(dead_letters_max_share=0.006)).catch_up()


def test_a_rebuilt_table_has_the_policy_of_the_one_that_is_served(bench: Bench) -> None:
    bench.load(1)
    nan = {**event("u", 1, lsn=10), "after": {"id": 1, "status": "new", "total": "NAN"}}
    bench.write(nan)
    policy = Landing(types={"numeric": "null"})
    bench.sink(policy=policy).catch_up()
    replay(bench.lake, SegmentLog(bench.folder), key=("id",), into="landing.again", policy=policy)
    assert bench.rows("landing.again") == bench.rows() == {1: ("new", "None")}


def test_a_load_that_broke_off_in_a_log_that_was_not_there_yet_lands_no_single_row(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.writer.close()
    shutil.rmtree(bench.folder)
    sink = bench.sink()
    sink.step()
    bench.writer = SegmentWriter(bench.folder)
    bench.load(1, 2, whole=False)
    bench.write(event("c", 5, lsn=30))
    with pytest.raises(CdcError, match="before any initial load"):
        sink.catch_up()
        bench.write(event("c", 6, lsn=31))
        sink.catch_up()
    assert bench.snapshots() == []


def test_a_replayed_letter_lands_once_and_is_closed(bench: Bench) -> None:
    bench.load(1, 2)
    bench.write(wrong(1, lsn=10), wrong(2, lsn=11), event("u", 2, "newer", lsn=12))
    bench.sink().catch_up()
    bench.write(*[{**event("u", i, "mended", lsn=9 + i), "replay": {"offset": 3 + i}} for i in (1, 2)])
    bench.sink().catch_up()
    assert bench.rows() == {1: ("mended", "1.00"), 2: ("newer", "1.00")}
    left = DeadLetters(bench.lake, TABLE).read()
    assert list(zip(left["log_offset"], left["reason"], strict=True)) == [(5, "unreadable"), (8, "stale")]
    DeadLetters(bench.lake, TABLE).close([5, 8], reason="discarded", log_id=bench.log_id)
    assert DeadLetters(bench.lake, TABLE).read().empty
    replay(bench.lake, SegmentLog(bench.folder), key=("id",), into="landing.again")
    assert bench.rows("landing.again") == bench.rows()


def test_a_letters_table_that_is_made_and_still_empty_has_no_open_letter_but_all_columns(bench: Bench) -> None:
    """The table comes before its first letters: who looks in between finds none, and no error."""
    letters = DeadLetters(bench.lake, TABLE)
    letters._open()
    assert letters.read().empty
    assert {"key", "reason", "log_offset"} <= {*letters.read().columns} == {*letters.read(closed=True).columns}


def mended(row_id: int, lsn: int, letter: int, op: str = "u") -> dict[str, Any]:
    return {**event(op, row_id, "mended", lsn=lsn), "replay": {"offset": letter}}


def test_a_letter_whose_record_was_sent_again_can_be_replayed(bench: Bench) -> None:
    bench.load(1, 2)
    bench.write(wrong(1, lsn=10), event("u", 2, "a", lsn=11))
    bench.sink().catch_up()
    bench.write(wrong(1, lsn=10), event("u", 2, "a", lsn=11), mended(1, 10, 4))
    bench.sink().catch_up()
    assert bench.rows() == {1: ("mended", "1.00"), 2: ("a", "1.00")}


def test_a_replay_that_failed_can_be_replayed_by_its_own_letter(bench: Bench) -> None:
    bench.load(1)
    bench.write(wrong(1, lsn=10), {**wrong(1, lsn=10), "replay": {"offset": 3}}, mended(1, 10, 4))
    bench.sink().catch_up()
    assert bench.rows() == {1: ("mended", "1.00")}


def test_a_letter_that_came_late_is_judged_by_what_was_there_before_it(bench: Bench) -> None:
    bench.load(1)
    bench.write(event("u", 1, "newer", lsn=20), wrong(1, lsn=10), mended(1, 10, 4))
    bench.sink().catch_up()
    assert bench.rows() == {1: ("newer", "1.00")}
    assert [x["reason"] for x in bench.letters()] == ["unreadable", "stale"]


def test_a_letter_of_a_load_can_be_replayed_until_the_next_load(bench: Bench) -> None:
    bad = {**event("r", 2, lsn=5), "after": {"id": 2, "status": "new", "total": [1]}}
    bench.writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in SOURCE_COLUMNS]))
    bench.write(event("r", 1, lsn=5), bad)
    bench.writer.append_marker(marker(LOAD_END, 2))
    bench.write(event("u", 1, "a", lsn=9), mended(2, 5, 2, op="r"))
    bench.sink().catch_up()
    assert bench.rows() == {1: ("a", "1.00"), 2: ("mended", "1.00")}
    bench.load(1, lsn=20)
    bench.write(mended(2, 5, 2, op="r"))
    bench.sink().catch_up()
    assert bench.rows() == {1: ("new", "1.00")}


def test_a_value_that_has_no_home_in_a_load_is_a_letter_and_the_load_is_whole(bench: Bench) -> None:
    bench.writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in SOURCE_COLUMNS]))
    bench.write(event("r", 1), {**event("r", 2), "after": {"id": 2, "status": "new", "total": [1]}}, event("r", 3))
    bench.writer.append_marker(marker(LOAD_END, 2))
    bench.writer.sync()
    bench.sink().catch_up()
    assert bench.rows().keys() == {1, 3}
    assert [(x["log_offset"], x["op"]) for x in bench.letters()] == [(2, "r")]


def test_a_key_that_was_changed_in_the_registry_alone_is_refused(bench: Bench) -> None:
    bench.load(1)
    bench.sink().catch_up()
    with pytest.raises(ConfigError, match=r"its key is \(id\), tables\.yaml says \(id, status\)"):
        TableSink(bench.lake, TABLE, key=("id", "status"), log=SegmentLog(bench.folder), window_s=1.0)


def test_a_new_load_replaces_the_table_and_takes_vanished_rows_with_it(bench: Bench) -> None:
    bench.load(1, 2, 3)
    bench.write(event("u", 2, "x", lsn=10))
    bench.load(2, lsn=20)
    bench.sink().catch_up()
    assert bench.rows() == {2: ("new", "1.00")}
    last = bench.snapshots()[-1]
    assert (last.total("data-files"), last.total("delete-files"), last.total("equality-deletes")) == (1, 0, 0)


def test_a_load_of_an_emptied_source_empties_the_table(bench: Bench) -> None:
    bench.load(1, 2)
    bench.load()
    bench.sink().catch_up()
    assert bench.rows() == {}
    assert bench.snapshots()[-1].total("data-files") == 0


def test_a_load_that_was_broken_off_is_void_and_the_next_one_counts(bench: Bench) -> None:
    bench.load(1, 2, 99, whole=False)
    bench.load(1, 2)
    sink = bench.sink()
    sink.catch_up()
    assert bench.rows().keys() == {1, 2}


def test_streamed_events_after_a_broken_load_are_kept_and_its_rows_are_not(bench: Bench) -> None:
    bench.load(1)
    bench.load(7, whole=False)
    bench.write(event("c", 5, lsn=30))
    bench.sink().catch_up()
    assert bench.rows().keys() == {1, 5}


def test_a_truncate_empties_and_what_follows_it_in_the_window_stays(bench: Bench) -> None:
    bench.load(1, 2)
    bench.write(event("c", 3, lsn=10), event("t", None, lsn=11), event("c", 4, lsn=12))
    bench.sink().catch_up()
    assert bench.rows().keys() == {4}
    assert bench.snapshots()[-1].total("delete-files") == 0


def test_events_sent_again_move_the_position_and_no_row(bench: Bench) -> None:
    bench.load(1)
    first = bench.sink()
    bench.write(event("u", 1, "a", lsn=10), event("u", 1, "b", lsn=11))
    first.catch_up()
    bench.write(event("u", 1, "a", lsn=10))
    again = bench.sink()
    again.catch_up()
    assert bench.rows() == {1: ("b", "1.00")}
    last = bench.snapshots()[-1]
    assert last.summary["cdc.events.redelivered"] == "1"
    assert again.position.source == SourcePosition(0, 11, 0)
    assert again.position.log == first.position.log + 1


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=histories(), data=st.data())
def test_a_sink_that_dies_anywhere_goes_on_from_the_snapshot_alone(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Each chunk is served by another sink; one that dies has read, and perhaps committed, and is forgotten."""
    bench = Bench(tmp_path_factory.mktemp("bench"))
    bench.load()
    while events:
        size = data.draw(st.integers(1, len(events)))
        bench.write(*events[:size])
        sink = bench.sink(window_s=data.draw(st.sampled_from([0.0, 1e9])))
        for _ in range(data.draw(st.integers(0, 3))):
            sink.step()
        written, events = events[:size], events[size:]
        bench.model = [*getattr(bench, "model", []), *written]  # type: ignore[attr-defined]
    bench.sink().catch_up()
    assert bench.rows() == fold(getattr(bench, "model", []))


def test_the_older_of_two_sinks_is_fenced_and_stays_so(bench: Bench) -> None:
    bench.load(1)
    old = bench.sink()
    old.catch_up()
    bench.write(event("u", 1, "a", lsn=10))
    new = bench.sink()
    new.catch_up()
    assert (old.position.epoch, new.position.epoch) == (1, 2)
    bench.write(event("u", 1, "b", lsn=11))
    with pytest.raises(FencedError, match=r"epoch 2 owns the table, this one has epoch 1.*stop one"):
        old.catch_up()
    again = bench.sink(owner=old.owner)  # The service opens it anew, as the owner that it was.
    with pytest.raises(FencedError):
        again.catch_up()
    assert bench.rows() == {1: ("a", "1.00")}
    new.catch_up()
    assert bench.rows() == {1: ("b", "1.00")}
    assert [s.summary["cdc.owner-epoch"] for s in bench.snapshots()] == ["1", "2", "2"]


def test_a_sink_that_read_its_position_before_anothers_commit_is_refused_and_goes_on_from_there(bench: Bench) -> None:
    bench.load(1)
    bench.sink().catch_up()
    late, first = bench.sink(), bench.sink()
    bench.write(event("u", 1, "a", lsn=10))
    first.catch_up()
    with pytest.raises(ConflictError, match="at window 2, this sink was at 1"):
        late.catch_up()
    bench.sink(owner=late.owner).catch_up()
    assert bench.rows() == {1: ("a", "1.00")}
    assert len(bench.snapshots()) == 2


@pytest.mark.parametrize("landed_it", [True, False])
def test_a_commit_without_an_answer_is_looked_up_before_it_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, landed_it: bool
) -> None:
    bench.load(1)
    bench.sink().catch_up()
    bench.write(event("u", 1, "a", lsn=10))
    catalog = bench.lake.catalog
    real = catalog.commit_table

    def lost(*args: Any, **kwargs: Any) -> Any:
        if landed_it:
            real(*args, **kwargs)
        raise OSError("connection reset")

    unsure = bench.sink()
    unsure._table._claim()
    monkeypatch.setattr(catalog, "commit_table", lost)
    with pytest.raises(CommitUnknownError):
        unsure.catch_up()
    monkeypatch.setattr(catalog, "commit_table", real)
    bench.sink(owner=unsure.owner).catch_up()
    assert bench.rows() == {1: ("a", "1.00")}
    assert len(bench.snapshots()) == 2


def test_an_idle_table_says_again_where_it_stands(bench: Bench) -> None:
    bench.load(1)
    sink = bench.sink(policy=Landing(heartbeat=timedelta(seconds=60)))
    sink.catch_up()
    for now, snapshots in ((59.0, 1), (61.0, 2), (100.0, 2), (122.0, 3)):
        bench.now = now
        sink.step()
        assert len(bench.snapshots()) == snapshots
    first, *_, last = bench.snapshots()
    assert last.summary["cdc.log-position"] == first.summary["cdc.log-position"]
    assert (last.summary["cdc.heartbeat"], last.summary["cdc.window"]) == ("true", "3")
    history = bench.lake.history(TABLE)
    assert history is not None
    assert history.refs["sink_position"] == last.snapshot_id  # A tag: no expiry takes the newest position.
    assert bench.sink().position == sink.position


def test_a_foreign_commit_in_between_is_taken_in_and_loses_nothing(bench: Bench) -> None:
    bench.load(1)
    sink = bench.sink()
    sink.catch_up()
    other = bench.lake.catalog.load_table(TABLE)
    other.manage_snapshots().create_tag(other.metadata.current_snapshot_id, "reader_x").commit()
    bench.write(event("u", 1, "a", lsn=10))
    sink.catch_up()
    history = bench.lake.history(TABLE)
    assert bench.rows() == {1: ("a", "1.00")}
    assert history is not None
    assert "reader_x" in history.refs


def test_the_position_outlives_the_expiry_of_its_snapshot(bench: Bench) -> None:
    bench.load(1)
    sink = bench.sink()
    sink.catch_up()
    history = bench.lake.history(TABLE)
    assert history is not None
    bare = type(history)(TABLE, history.columns, None, {}, history.properties)
    assert landing_position(bare) == sink.position


def load_with(bench: Bench, columns: tuple[SourceColumn, ...], *rows: dict[str, Any], whole: bool = True) -> None:
    bench.writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in columns]))
    bench.write(*[{**event("r", 1, lsn=90), "after": row} for row in rows])
    if whole:
        bench.writer.append_marker(marker(LOAD_END, 2))
    bench.writer.sync()


def test_a_load_brings_its_own_columns_whatever_the_table_had(bench: Bench) -> None:
    """status is gone, total is text now, id is the key still, extra is new."""
    bench.load(1)
    bench.sink().catch_up()
    columns = (SOURCE_COLUMNS[0], SourceColumn("total", "text", False), SourceColumn("extra", "integer", False))
    load_with(bench, columns, {"id": 2, "total": "many", "extra": 7}, whole=False)
    sink = bench.sink()
    sink.catch_up()
    assert bench.rows() == {1: ("new", "1.00")}  # Half a load is not seen, nor its columns.
    bench.writer.append_marker(marker(LOAD_END, 2))
    bench.writer.sync()
    sink.catch_up()
    table = bench.lake.load(TABLE)
    assert table is not None
    assert live_rows(table, ("id",)) == [{"id": 2, "total": "many", "extra": 7}]
    assert [(f.name, str(f.field_type)) for f in table.schema().fields] == [
        ("id", "long"),
        ("total", "string"),
        ("extra", "int"),
    ]
    assert table.schema().find_field("total").field_id > 3  # Another column than the decimal of that name.


def test_a_load_whose_key_has_another_type_is_refused_and_goes_on_once_the_table_is_dropped(bench: Bench) -> None:
    bench.load(1)
    bench.sink().catch_up()
    columns = (SourceColumn("id", "text", True), *SOURCE_COLUMNS[1:])
    load_with(bench, columns, {"id": "x", "status": "new", "total": "1.00"})
    with pytest.raises(ConfigError, match=r"key column `id` became string, it was long.*Drop landing\.orders"):
        bench.sink().catch_up()
    assert bench.rows().keys() == {1}
    bench.lake.catalog.drop_table(TABLE)
    bench.sink().catch_up()
    assert bench.rows().keys() == {"x"}


NUMBERED = tuple(replace(c, number=n) for n, c in enumerate(SOURCE_COLUMNS, 1))


def schema(bench: Bench, *columns: SourceColumn) -> None:
    bench.writer.append_marker(marker(SCHEMA, 1, columns=[asdict(c) for c in columns]))
    bench.writer.sync()


def changed(row_id: int, lsn: int, **columns: Any) -> dict[str, Any]:
    """An update under other columns than the bench's."""
    row = {"id": row_id, **columns}
    return {**event("u", row_id, lsn=lsn), "before": row, "after": row}


def test_a_column_that_is_added_flows_through_and_another_windows_rows_have_none(bench: Bench) -> None:
    bench.load(1, 2, columns=NUMBERED)
    bench.write(event("u", 1, "a", lsn=10))
    schema(bench, *NUMBERED, SourceColumn("extra", "integer", False, number=4))
    bench.write(changed(2, 11, status="b", total="2.00", extra=7))
    bench.sink(window_s=1e9).catch_up()
    table = bench.lake.load(TABLE)
    assert table is not None
    assert [(f.name, str(f.field_type)) for f in table.schema().fields][-1] == ("extra", "int")
    assert {r["id"]: r["extra"] for r in live_rows(table, ("id",))} == {1: None, 2: 7}
    # Each window's snapshot has the schema that its rows were written for.
    schemas = [s.schema_id for s in table.metadata.snapshots]
    assert len(bench.snapshots()) == 3
    assert schemas[0] == schemas[1] != schemas[2] == table.metadata.current_schema_id
    assert bench.sink().position == landing_position(bench.lake.history(TABLE))  # type: ignore[arg-type]


def test_old_records_that_are_sent_again_do_not_take_a_new_column_away(bench: Bench) -> None:
    """Debezium resumes before the change: the markers go back and forth, the table does not."""
    wider = (*NUMBERED, SourceColumn("extra", "integer", False, number=4))
    old, new = event("u", 1, "a", lsn=10), changed(1, 11, status="b", total="2.00", extra=7)
    bench.load(1, 2, columns=NUMBERED)
    bench.write(old)
    schema(bench, *wider)
    bench.write(new)
    bench.sink().catch_up()
    before = bench.lake.load(TABLE)
    schema(bench, *NUMBERED)
    bench.write(old)
    bench.sink().catch_up()
    schema(bench, *wider)
    bench.write(new, changed(2, 12, status="c", total="3.00", extra=8))
    bench.sink().catch_up()
    after = bench.lake.load(TABLE)
    assert before is not None
    assert after is not None
    assert after.schema() == before.schema()
    assert {r["id"]: r["extra"] for r in live_rows(after, ("id",))} == {1: 7, 2: 8}


def test_a_change_that_landing_can_not_follow_stops_it_and_a_load_goes_on(bench: Bench) -> None:
    bench.load(1, columns=NUMBERED)
    bench.write(event("u", 1, "a", lsn=10))
    filled = (*NUMBERED, SourceColumn("extra", "integer", False, number=4, filled=True))
    schema(bench, *filled)
    bench.write(changed(1, 11, status="b", total="2.00", extra=7))
    with pytest.raises(ConfigError, match=r"`extra` was added with a value for the rows.*cdc-platform reload orders"):
        bench.sink().catch_up()
    assert bench.rows() == {1: ("a", "1.00")}  # What came before it has landed.
    load_with(bench, filled, {"id": 1, "status": "b", "total": "2.00", "extra": 7})
    bench.sink().catch_up()
    table = bench.lake.load(TABLE)
    assert table is not None
    assert live_rows(table, ("id",))[0]["extra"] == 7


def test_a_narrowed_column_keeps_its_wider_type_and_both_read(bench: Bench) -> None:
    bench.load(1, columns=NUMBERED)
    bench.write(event("u", 1, "a", total="9999999999.00", lsn=10))
    narrow = (*NUMBERED[:2], replace(NUMBERED[2], type="numeric(5,2)"))
    schema(bench, *narrow)
    bench.write(event("c", 2, "b", total="1.00", lsn=11))
    bench.sink(window_s=1e9).catch_up()
    assert bench.rows() == {1: ("a", "9999999999.00"), 2: ("b", "1.00")}


def test_a_type_that_widened_without_a_step_is_remembered_when_it_narrows_again(bench: Bench) -> None:
    """timestamp(3) to (6) and back: PostgreSQL rounds all rows, and sends no event."""
    coarse = (*NUMBERED[:2], replace(NUMBERED[2], type="timestamp(3) without time zone"))
    fine = (*NUMBERED[:2], replace(NUMBERED[2], type="timestamp(6) without time zone"))
    load_with(bench, coarse, {"id": 1, "status": "a", "total": 1_000})
    schema(bench, *fine)
    bench.write(changed(1, 91, status="b", total=1_234_567))
    bench.sink().catch_up()
    schema(bench, *coarse)
    bench.write(changed(2, 92, status="b", total=1_000))
    with pytest.raises(ConfigError, match=r"from timestamp\(6\) without time zone to timestamp\(3\)"):
        bench.sink().catch_up()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ((*NUMBERED, SourceColumn("extra", "", False)), "no longer tells what `extra` was then"),
        ((replace(NUMBERED[0], name="pk"), *NUMBERED[1:]), "`id`, which `key` names, is called `pk`"),
    ],
)
def test_columns_under_which_nothing_can_be_decoded_stop_the_table_and_make_no_letters(
    bench: Bench, columns: tuple[SourceColumn, ...], said: str
) -> None:
    bench.load(1, columns=NUMBERED)
    schema(bench, *columns)
    row = {c.name: 7 for c in columns}
    bench.write({**event("u", 1, lsn=10), "before": row, "after": row})
    for _ in range(2):
        with pytest.raises(ConfigError, match=said):
            bench.sink().catch_up()
    assert bench.letters() == []
    assert bench.rows() == {1: ("new", "1.00")}


def test_columns_that_change_within_a_load_are_the_loads(bench: Bench) -> None:
    wider = (*NUMBERED, SourceColumn("extra", "integer", False, number=4))
    for begun, then in ((NUMBERED, wider), (wider, NUMBERED)):
        bench.writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in begun]))
        schema(bench, *then)
        row = {"id": 1, "status": "a", "total": "1.00", "extra": 5}
        bench.write({**event("r", 1), "after": {c.name: row[c.name] for c in then}})
        bench.writer.append_marker(marker(LOAD_END, 2))
        bench.writer.sync()
        bench.sink().catch_up()
        table = bench.lake.load(TABLE)
        assert table is not None
        assert [r.get("extra", "none") for r in live_rows(table, ("id",))] == [5 if then is wider else "none"]


def test_a_load_whose_columns_changed_among_its_rows_is_refused(bench: Bench) -> None:
    bench.writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in NUMBERED]))
    bench.write(event("r", 1))
    schema(bench, *NUMBERED, SourceColumn("extra", "integer", False, number=4))
    with pytest.raises(ConfigError, match=r"changed while the table was loaded.*cdc-platform reload orders"):
        bench.sink().catch_up()


def test_a_replay_from_before_a_change_of_the_columns_is_a_letter_and_no_null(bench: Bench) -> None:
    wider = (*NUMBERED, SourceColumn("extra", "integer", False, number=4))
    bench.load(1, 2, columns=NUMBERED)
    bench.write(wrong(1, lsn=10))
    schema(bench, *wider)
    bench.write(changed(1, 11, status="b", total="2.00", extra=7))
    replayed = {**event("u", 1, "mended", lsn=10), "replay": {"offset": 4}}
    bench.write(changed(2, 12, status="b", total="2.00", extra=8), replayed)
    bench.sink().catch_up()
    bench.write(replayed, changed(2, 13, status="c", total="2.00", extra=9), replayed)
    bench.sink().catch_up()
    table = bench.lake.load(TABLE)
    assert table is not None
    assert {r["id"]: r["extra"] for r in live_rows(table, ("id",))} == {1: 7, 2: 9}
    assert {x["detail"] for x in bench.letters()[1:]} == {"it has other columns than the table has now"}


def test_letters_of_a_load_that_was_broken_off_are_void_with_it(bench: Bench) -> None:
    bad = {**event("r", 2), "after": {"id": 2, "status": "x", "total": [1]}}
    sink = bench.sink()
    for whole in (False, True):
        bench.writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in SOURCE_COLUMNS]))
        bench.write(event("r", 1), bad)
        if whole:
            bench.writer.append_marker(marker(LOAD_END, 2))
        bench.writer.sync()
        sink.catch_up()
    assert [x["log_offset"] for x in bench.letters()] == [5]


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({**event("c", 5, lsn=9), "op": "\ud800"}).encode(),
        json.dumps({**event("c", 5, [1], lsn=9), "source": {"ts_ms": 10**18, "sequence": '["0","9"]'}}).encode(),  # type: ignore[arg-type]
        json.dumps(event("c", 5, "TEXT", lsn=9)).encode().replace(b"TEXT", b"\xff"),
        json.dumps(event("c", 5, "x\ud800y", lsn=9)).encode(),
        json.dumps({**event("c", 5, lsn=9), "after": {"id": 5, "status": "x"}}).encode(),
        json.dumps({**event("u", 5, lsn=9), "after": "x"}).encode(),
        b'{"op":"c","after":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b"",
    ],
)
def test_whatever_a_line_holds_it_is_a_letter_or_a_row_and_never_stops_the_table(bench: Bench, line: bytes) -> None:
    bench.load(1)
    bench.write(event("c", 3, lsn=8))
    bench.writer.append([line])
    bench.write(event("c", 4, lsn=10))
    bench.sink().catch_up()
    assert bench.rows().keys() - {5} == {1, 3, 4}
    assert (5 in bench.rows()) != (len(bench.letters()) == 1)


def test_a_log_that_takes_anothers_place_under_a_living_sink_is_noticed(bench: Bench) -> None:
    for more in (3, 4):  # Its positions are those of the other, or not.
        bench.load(1, 2, 3)
        sink = bench.sink()
        sink.catch_up()
        renewed(bench)
        bench.load(*range(100, 100 + more), lsn=50)
        bench.write(event("c", 200, lsn=60))
        bench.now += 5
        with pytest.raises(CdcError, match="another change log took the place"):
            for _ in range(4):
                bench.now += 5
                sink.step()
        bench.sink(owner=sink.owner).catch_up()
        assert bench.rows().keys() == {*range(100, 100 + more), 200}
        renewed(bench)


@pytest.mark.parametrize(
    "change",
    [
        lambda u: u.add_column("note", StringType()),
        lambda u: u.delete_column("total"),
        lambda u: u.rename_column("total", "sum"),
    ],
)
def test_columns_that_another_program_changed_are_named_and_a_load_goes_on(bench: Bench, change: Any) -> None:
    bench.load(1, columns=NUMBERED)
    bench.sink().catch_up()
    table = bench.lake.load(TABLE)
    assert table is not None
    with table.update_schema() as update:
        change(update)
    bench.write(event("u", 1, "a", lsn=10))
    with pytest.raises(ConfigError, match="another program added, dropped or renamed column"):
        bench.sink().catch_up()
    load_with(bench, NUMBERED, {"id": 1, "status": "a", "total": "1.00"})
    bench.sink().catch_up()
    assert bench.rows() == {1: ("a", "1.00")}


def test_a_claim_that_failed_is_made_again_and_a_table_made_anew_is_claimed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.load(1)
    catalog = bench.lake.catalog

    def fails(*_args: Any, **_kwargs: Any) -> Any:
        raise OSError("database is locked")

    first = bench.sink()
    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", fails)
        with pytest.raises(CommitUnknownError):
            first.catch_up()
    bench.sink(owner=first.owner).catch_up()
    catalog.drop_table(TABLE)
    for _ in range(2):
        bench.sink(owner=first.owner).catch_up()
    assert bench.rows().keys() == {1}


def test_a_column_with_a_dot_in_its_name_comes_and_goes(bench: Bench) -> None:
    dotted = (*NUMBERED, SourceColumn("a.b", "integer", False, number=4))
    bench.load(1, columns=NUMBERED)
    schema(bench, *dotted)
    bench.write(changed(1, 11, status="b", total="2.00", **{"a.b": 7}))
    bench.sink().catch_up()
    table = bench.lake.load(TABLE)
    assert table is not None
    assert live_rows(table, ("id",)) == [{"id": 1, "status": "b", "total": Decimal("2.00"), "a.b": 7}]
    schema(bench, *NUMBERED)
    bench.write(event("u", 1, "c", lsn=12))
    bench.sink().catch_up()
    assert bench.rows() == {1: ("c", "1.00")}


def test_changes_before_any_load_are_refused(bench: Bench) -> None:
    bench.write(event("c", 1))
    with pytest.raises(CdcError, match="changes before any initial load"):
        bench.sink().catch_up()


def test_a_replay_of_the_log_is_the_table_again(bench: Bench) -> None:
    bench.load(1, 2)
    bench.write(event("u", 1, "a", lsn=10), event("d", 2, lsn=11), event("c", 3, lsn=12))
    bench.sink().catch_up()
    bench.write(event("c", 4, lsn=13))
    bench.sink().catch_up()
    for _ in range(2):  # A table of an earlier replay is replaced.
        replay(bench.lake, SegmentLog(bench.folder), key=("id",), into="landing.again")
    expected = {1: ("a", "1.00"), 3: ("new", "1.00"), 4: ("new", "1.00")}
    assert bench.rows("landing.again") == bench.rows() == expected


def test_equality_ids_are_ints_as_the_specification_says(bench: Bench) -> None:
    """PyIceberg would declare longs; Java's reader fails on them with a ClassCastException."""
    bench.load(1)
    bench.write(event("u", 1, "a", lsn=10))
    bench.sink().catch_up()
    table = bench.lake.load(TABLE)
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    [deletes] = [m for m in snapshot.manifests(table.io) if m.content == 1]
    header = Path(deletes.manifest_path.removeprefix("file://")).read_bytes().decode("latin1")  # The schema is plain.
    ids = header[header.index('"name": "equality_ids"') :][:300]
    assert '"items": "int"' in ids, ids


def test_a_policy_that_makes_another_type_of_a_column_waits_for_a_load(bench: Bench) -> None:
    bench.load(1)
    bench.sink().catch_up()
    bench.write(event("u", 1, "x", total="2.50", lsn=10))
    spelled = Landing(types={"numeric": "string"})
    with pytest.raises(ConfigError, match=r"makes column `total` a string, the table has a decimal\(12, 2\)") as raised:
        bench.sink(policy=spelled).catch_up()
    assert "cdc-platform reload " in raised.value.action
    bench.load(1, 2, lsn=20)
    bench.write(event("u", 2, "y", total="NAN", lsn=30))
    bench.sink(policy=spelled).catch_up()
    assert bench.rows() == {1: ("new", "1.00"), 2: ("y", "NaN")}
