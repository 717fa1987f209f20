"""Dead letters in an operator's hands, on a real log, catalog and sink; what is sent goes straight into the log."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cdc_platform.changelog.log import SCHEMA, marker
from cdc_platform.changelog.segments import SegmentLog
from cdc_platform.errors import ConfigError
from cdc_platform.landing.corrections import Answer, Correction, parse_json
from cdc_platform.landing.dead_letters import DeadLetters, Letter, dead_letter_table
from cdc_platform.landing.letters import Choice, OpenLetters
from cdc_platform.landing.sink import TableSink
from cdc_platform.registry.model import Table
from cdc_platform.source.types import SourceColumn
from cdc_platform_tests.builders import event
from cdc_platform_tests.landing.test_sink import TABLE, Bench, wrong

LETTER = 5  # Offset of the first record after a load of two rows and its markers, and one change more.


class Desk(Bench):
    """A bench where a letter is at `LETTER`: an update of row 1 whose total is NaN."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.load(1, 2)
        self.write(event("u", 2, "other", lsn=10), not_a_number(1, lsn=11))
        self.sent: list[Mapping[str, object]] = []
        self.sinks = True  # Whether a sink reads what was sent.
        self.sinking: TableSink = self.sink()
        self.sinking.catch_up()

    def letters_of(self, **table: Any) -> OpenLetters:
        declared = Table.model_validate({"source": "shop.public.orders", "key": ["id"], "owners": ["team:t"], **table})
        log = SegmentLog(self.folder)
        return OpenLetters(
            "orders", declared, lake=self.lake, log=log, send=self.send, clock=lambda: self.now, sleep=self.sleep
        )

    def send(self, record: Mapping[str, object]) -> None:
        self.sent.append(record)
        self.writer.append([json.dumps(record, separators=(",", ":")).encode()])
        self.writer.sync()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.sinks:
            self.sinking.catch_up()

    def replay(
        self, *offsets: int, record: dict[str, object] | None = None, dry_run: bool = False, **values: object
    ) -> list[Answer]:
        correction = Correction(values, record)
        return self.letters_of().replay(Choice(offsets), correction, dry_run=dry_run, wait_s=5)

    def refused(self, *offsets: int, **values: Any) -> str:
        """Why nothing was sent."""
        answers = self.replay(*offsets, **values)
        assert self.sent == []
        [why] = {a.why for a in answers if a.outcome != "applies"}
        return why

    def open(self) -> list[tuple[int, str]]:
        return [(x["log_offset"], x["reason"]) for x in self.letters()]


def not_a_number(row_id: int, *, lsn: int, status: str = "new") -> dict[str, Any]:
    return event("u", row_id, status, total="NAN", lsn=lsn)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_corrected_letter_lands_and_is_closed(desk: Desk) -> None:
    assert desk.open() == [(LETTER, "no_home")]
    [told] = desk.replay(LETTER, total=parse_json("12.50"))
    assert told == Answer(LETTER, "no_home", "replayed", "applied from change-log record 6")
    original = not_a_number(1, lsn=11)
    assert desk.sent == [
        original | {"after": {"id": 1, "status": "new", "total": "12.50"}, "replay": {"offset": LETTER}}
    ]
    assert desk.rows() == {1: ("new", "12.50"), 2: ("other", "1.00")}
    assert desk.open() == []


def test_a_dry_run_says_what_would_happen_and_sends_nothing(desk: Desk) -> None:
    assert desk.replay(LETTER, total=1, dry_run=True) == [Answer(LETTER, "no_home", "applies")]
    [unfit] = desk.replay(LETTER, dry_run=True)
    assert (unfit.outcome, unfit.why) == ("unfit", "column `total`: NaN is no value of a decimal")
    assert desk.sent == []


def test_a_letter_that_would_fail_again_is_not_sent(desk: Desk) -> None:
    assert desk.refused(LETTER, status="x") == "column `total`: NaN is no value of a decimal"


def test_a_row_that_has_changed_since_is_not_undone(desk: Desk) -> None:
    desk.write(event("u", 1, "newer", lsn=20))
    assert desk.refused(LETTER, total=1) == "a newer change of its key had come before it"
    desk.sinking.catch_up()
    assert desk.rows()[1] == ("newer", "1.00")


def test_a_letter_that_itself_came_late_does_not_undo_what_had_come_before_it(desk: Desk) -> None:
    """The sink judges a replay by what came after its letter; here nothing did."""
    desk.write(event("u", 1, "newer", lsn=30), not_a_number(1, lsn=20))
    desk.sinking.catch_up()
    assert desk.open()[-1] == (7, "no_home")
    assert desk.refused(7, total=1) == "a newer change of its key had come before it"


def test_the_sink_says_no_to_a_row_that_changed_between_the_look_and_the_arrival(desk: Desk) -> None:
    def send_late(record: Mapping[str, object]) -> None:
        desk.write(event("u", 1, "newer", lsn=20))
        desk.send(record)

    letters = desk.letters_of()
    letters._send = send_late
    [told] = letters.replay(Choice((LETTER,)), Correction({"total": 1}), dry_run=False, wait_s=5)
    assert told.outcome == "stale"
    assert "5 and 7: discarding the first discards both" in told.why
    assert desk.rows()[1] == ("newer", "1.00")
    assert desk.open() == [(LETTER, "no_home"), (7, "stale")]
    assert [a.log_offset for a in letters.discard(Choice((LETTER,)), dry_run=True)] == [LETTER, 7]
    assert len(desk.open()) == 2
    letters.discard(Choice((LETTER,)), dry_run=False)
    assert desk.open() == []


def test_a_stale_letter_and_a_failed_replay_are_refused_for_they_could_undo_newer_data(desk: Desk) -> None:
    desk.write(event("u", 2, "late", lsn=9))
    desk.write({**event("u", 1, lsn=11, total="NAN"), "replay": {"offset": LETTER}})
    desk.sinking.catch_up()
    assert desk.open() == [(LETTER, "no_home"), (6, "stale"), (7, "no_home")]
    assert "discard it" in desk.refused(6, status="x").lower()
    assert f"it is itself a replay, of letter {LETTER}" in desk.refused(7, total=1)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"totl": 1}, "the table has no column `totl`. Use some of: id, status, total"),
        ({"id": 9, "total": 1}, "`id` is a key column: another key is another row"),
    ],
)
def test_a_correction_that_is_none_is_refused(desk: Desk, values: dict[str, object], why: str) -> None:
    assert desk.refused(LETTER, **values).startswith(why)


def test_a_letter_without_a_key_gets_one(desk: Desk) -> None:
    desk.write({**event("c", None, "found", lsn=30)})
    desk.sinking.catch_up()
    assert desk.open()[-1] == (6, "no_key")
    assert [a.outcome for a in desk.replay(6, id=3)] == ["replayed"]
    assert desk.rows()[3] == ("found", "1.00")


def test_offsets_that_are_not_open_are_named_and_nothing_is_sent(desk: Desk) -> None:
    with pytest.raises(ConfigError, match=r"dead_letters\.orders: no open letter is at 4, 99\. .*dead-letters list"):
        desk.replay(4, LETTER, 99, total=1)
    desk.letters_of().discard(Choice((LETTER,)), dry_run=False)
    with pytest.raises(ConfigError, match="no open letter is at 5"):
        desk.replay(LETTER, total=1)
    assert desk.sent == []


def test_named_letters_are_sent_all_or_none_and_of_all_those_that_would_be_applied(desk: Desk) -> None:
    desk.write(not_a_number(2, lsn=30))
    desk.write(event("u", 2, "newer", lsn=31))
    desk.sinking.catch_up()
    assert {a.outcome for a in desk.replay(LETTER, 6, total=1)} == {"applies", "stale"}
    assert desk.sent == []
    told = desk.letters_of().replay(Choice(reason="no_home"), Correction({"total": 1}), dry_run=False, wait_s=5)
    assert [(a.log_offset, a.outcome) for a in told] == [(LETTER, "replayed"), (6, "stale")]
    assert desk.letters_of().replay(Choice(reason="no_key"), Correction({}), dry_run=False) == []


def test_a_letter_of_another_log_can_only_be_discarded(desk: Desk) -> None:
    DeadLetters(desk.lake, TABLE).add(
        [Letter(LETTER, "no_home", payload="{}"), Letter(77, "no_home")], log_id="an older one", through=90, window=1
    )
    told = {(a.log_offset, a.outcome) for a in desk.replay(LETTER, 77, total=1)}
    assert told == {(LETTER, "applies"), (77, "refused")}  # Of two at one offset, this log's.
    assert desk.sent == []
    desk.letters_of().discard(Choice((LETTER,)), dry_run=False)
    assert len(desk.open()) == 2
    desk.letters_of().discard(Choice(), dry_run=False)
    assert desk.open() == []


@pytest.mark.parametrize("garbage", [b'{"broken', b"[1]", b'{"op":"zz"}'])
def test_what_can_not_be_read_needs_a_whole_record_and_keeps_its_place(desk: Desk, garbage: bytes) -> None:
    desk.writer.append([garbage])
    desk.writer.sync()
    desk.sinking.catch_up()
    assert "Give the whole record" in desk.refused(6, total=1)
    row = {"id": 2, "status": "by hand", "total": "3.00"}
    assert "`--record` holds `source`" in desk.refused(6, record={"op": "u", "after": row, "source": {}})
    assert "has no `op`" in desk.refused(6, record={"after": row})
    assert [a.outcome for a in desk.replay(6, record={"op": "u", "before": None, "after": row})] == ["replayed"]
    assert desk.sent[0]["source"] == not_a_number(1, lsn=11)["source"]
    assert desk.rows()[2] == ("by hand", "3.00")


def test_a_letter_from_before_the_columns_changed_is_sent_in_those_of_now(desk: Desk) -> None:
    columns = (
        SourceColumn("id", "bigint", True),
        SourceColumn("total", "numeric(12,2)", False),
        SourceColumn("due", "date", False),
    )
    desk.writer.append_marker(marker(SCHEMA, 1, columns=[asdict(c) for c in columns]))
    desk.write({**event("c", 3, lsn=40), "after": {"id": 3, "total": "1.00", "due": 0}})
    assert "since got the column `due`" in desk.refused(LETTER, total=1)
    assert "is no date" in desk.refused(LETTER, total=1, due="tomorrow")
    assert [a.outcome for a in desk.replay(LETTER, total=1, due="1970-01-11", dry_run=True)] == ["applies"]
    desk.sinks = False
    desk.replay(LETTER, total=1, due="1970-01-11")
    assert desk.sent[0]["after"] == {"id": 1, "total": "1", "due": 10}


@pytest.mark.parametrize(
    ("captured", "why"), [(True, "the sink has not passed it"), (False, "capture has not written")]
)
def test_waiting_ends_and_says_what_it_waited_for(desk: Desk, captured: bool, why: str) -> None:
    desk.sinks = False
    letters = desk.letters_of()
    if not captured:
        letters._send = desk.sent.append
    [told] = letters.replay(Choice((LETTER,)), Correction({"total": 1}), dry_run=False, wait_s=2)
    assert told.outcome == "unknown"
    assert told.why.startswith(f"after 2 s {why}")
    assert 2 < desk.now < 3


def test_closed_letters_stay_in_the_table_with_the_word_that_closed_them(desk: Desk) -> None:
    desk.replay(LETTER, total=1)
    rows = DeadLetters(desk.lake, TABLE).read(closed=True, payload=False)
    assert list(zip(rows["log_offset"], rows["reason"], rows["closes"].fillna(-1), strict=True)) == [
        (LETTER, "no_home", -1),
        (6, "replayed", LETTER),
    ]
    assert "payload" not in rows
    assert dead_letter_table(TABLE) == "dead_letters.orders"


def test_an_unreadable_value_of_a_readable_record_is_corrected_like_any_other(desk: Desk) -> None:
    desk.write(wrong(2, lsn=50))
    desk.sinking.catch_up()
    assert [a.outcome for a in desk.replay(6, total=7)] == ["replayed"]
    assert desk.rows()[2] == ("new", "7.00")
