"""Decoding: every spelling of a value, the moved key, and what is refused."""

import base64
import datetime as dt
import json
from decimal import Decimal

import pytest

from cdc_platform.errors import ConfigError
from cdc_platform.landing.events import _BLOCK_BYTES, COMMIT_LSN, LSN, OFFSET, OP, ORDINAL, Decoder
from cdc_platform.landing.position import SourcePosition
from cdc_platform.source.types import SourceColumn
from cdc_platform_tests.builders import SOURCE_COLUMNS, event, lines

DECODER = Decoder("landing.t", SOURCE_COLUMNS, ("id",))


def test_each_type_is_read_as_debezium_spells_it() -> None:
    columns = (
        SourceColumn("k", "integer", True),
        SourceColumn("b", "boolean", False),
        SourceColumn("n", "numeric(10,3)", False),
        SourceColumn("d", "date", False),
        SourceColumn("ts", "timestamp without time zone", False),
        SourceColumn("tz", "timestamp with time zone", False),
        SourceColumn("raw", "bytea", False),
        SourceColumn("f", "double precision", False),
    )
    row = {
        "k": 1,
        "b": True,
        "n": "12.500",
        "d": 19_000,
        "ts": 1_700_000_000_123_456,
        "tz": "2026-11-30T08:56:32.931065Z",
        "raw": base64.b64encode(b"\x01\xff").decode(),
        "f": 1.5,
    }
    nulls = dict.fromkeys(row, None) | {"k": 2}
    events = [{**event("c", 1), "before": None, "after": r} for r in (row, nulls)]
    found = Decoder("landing.t", columns, ("k",)).decode(lines(events), first_offset=0).changes.to_pylist()
    assert {c.name: found[0][c.name] for c in columns} == {
        "k": 1,
        "b": True,
        "n": Decimal("12.500"),
        "d": dt.date(2022, 1, 8),
        "ts": dt.datetime(2023, 11, 14, 22, 13, 20, 123456),
        "tz": dt.datetime(2026, 11, 30, 8, 56, 32, 931065, tzinfo=dt.UTC),
        "raw": b"\x01\xff",
        "f": 1.5,
    }
    assert {c.name: found[1][c.name] for c in columns} == nulls


def test_a_position_is_commit_lsn_and_ordinal_and_null_counts_as_zero() -> None:
    first = event("c", 1, lsn=7)
    first["source"]["sequence"] = '[null,"7"]'
    found = DECODER.decode(lines([first, event("u", 1, commit=5, lsn=9, order=2)]), first_offset=0).changes
    assert found.select([COMMIT_LSN, LSN, ORDINAL]).to_pylist() == [
        {COMMIT_LSN: 0, LSN: 7, ORDINAL: 0},
        {COMMIT_LSN: 5, LSN: 9, ORDINAL: 2},
    ]


def test_a_delete_takes_its_key_from_before() -> None:
    [found] = DECODER.decode(lines([event("d", 7)]), first_offset=0).changes.to_pylist()
    assert (found[OP], found["id"], found["status"]) == ("d", 7, None)


def test_an_update_that_moves_the_key_deletes_the_old_one_first() -> None:
    events = [event("c", 1, lsn=1), event("u", 2, "b", before={"id": 1}, lsn=2), event("u", 2, "c", lsn=3)]
    events[1]["before"] = {"id": 1, "status": "a", "total": None}
    found = DECODER.decode(lines(events), first_offset=0).changes.to_pylist()
    assert [(r[OP], r["id"], r["status"]) for r in found] == [
        ("c", 1, "new"),
        ("d", 1, None),
        ("u", 2, "b"),
        ("u", 2, "c"),
    ]


@pytest.mark.parametrize("value", [1.5, "12", 2**63])
def test_a_value_that_does_not_fit_is_a_dead_letter_and_the_records_around_it_are_read(value: object) -> None:
    wrong = event("c", 1, lsn=5, order=2, commit=3)
    wrong["after"]["id"] = value
    found = DECODER.decode(lines([event("c", 7), wrong, event("c", 8)]), first_offset=41)
    assert found.changes.select(["id", OFFSET]).to_pylist() == [{"id": 7, OFFSET: 41}, {"id": 8, OFFSET: 43}]
    [rejected] = found.rejected
    assert (rejected.offset, rejected.reason, rejected.op) == (42, "unreadable", "c")
    assert (rejected.source, rejected.key) == (SourcePosition(3, 5, 2), json.dumps({"id": value}))
    assert json.loads(rejected.payload) == wrong
    assert str(value) not in rejected.detail


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{half", "unreadable"),
        (b"[1]", "unreadable"),
        (json.dumps(event("c", None)).encode(), "no_key"),
        (json.dumps({**event("d", 1), "before": None}).encode(), "no_key"),
        (json.dumps({**event("c", 1), "op": "x"}).encode(), "unknown_kind"),
        (json.dumps({**event("c", 1), "op": 7}).encode(), "unknown_kind"),
        (json.dumps({"schema": {}, "payload": event("c", 1)}).encode(), "unknown_kind"),
        (json.dumps({**event("c", 1), "source": {"ts_ms": 1}}).encode(), "unreadable"),
        (json.dumps(event("u", 1, "__debezium_unavailable_value")).encode(), "unavailable"),
    ],
)
def test_what_can_not_be_applied_is_named_and_the_rest_is_read(line: bytes, reason: str) -> None:
    whole = lines(event("c", i) for i in range(200))  # More than are read one by one.
    found = DECODER.decode(whole + line + b"\n" + whole, first_offset=0)
    assert [(r.offset, r.reason) for r in found.rejected] == [(200, reason)]
    assert found.changes[OFFSET].to_pylist() == [*range(200), *range(201, 401)]


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("line", ["null", " null", "5", '"x"', "true", "[1]", "{}", "nul", "[null]"])
def test_a_line_that_is_no_object_costs_only_itself_wherever_it_stands(line: str, at: int) -> None:
    """A null that came first ended the process: pyarrow's reader, not an exception."""
    written = [json.dumps(event("c", n, lsn=n)) for n in (1, 2, 3)]
    written.insert(at, line)
    found = DECODER.decode("".join(f"{text}\n" for text in written).encode(), first_offset=10)
    assert sorted(found.changes["id"].to_pylist()) == [1, 2, 3]
    if line.strip() == "null":
        assert (found.passed, found.rejected) == ({"tombstone": 1}, [])
    elif line != "{}":
        assert [(one.offset, one.reason) for one in found.rejected] == [(10 + at, "unreadable")]


def test_a_null_that_begins_a_later_block_of_what_is_read_is_a_tombstone_too() -> None:
    """The record before it fills pyarrow's first block to the last byte."""
    bare = len(json.dumps(event("c", 1, ""))) + 1
    filling, last = event("c", 1, "x" * (_BLOCK_BYTES - bare)), event("c", 2, lsn=2)
    text = f"{json.dumps(filling)}\nnull\n{json.dumps(last)}\n"
    assert text.index("\nnull\n") + 1 == _BLOCK_BYTES
    found = DECODER.decode(text.encode(), first_offset=0)
    assert (found.changes[OFFSET].to_pylist(), found.passed, found.rejected) == ([0, 2], {"tombstone": 1}, [])


def test_a_record_that_changes_no_row_is_passed_over_and_counted() -> None:
    message = {"op": "m", "source": event("c", 1)["source"], "message": {"prefix": "x", "content": ""}}
    passed = [None, {"status": "BEGIN", "id": "7"}, message, {"ts_ms": 1}]
    found = DECODER.decode(lines([event("c", 1), *passed, event("d", 1)]), first_offset=0)  # type: ignore[list-item]
    assert found.changes.select([OP, OFFSET]).to_pylist() == [{OP: "c", OFFSET: 0}, {OP: "d", OFFSET: 5}]
    assert found.rejected == []
    assert found.passed == {"tombstone": 1, "other": 2, "message": 1}


def test_an_update_without_its_row_after_is_a_delete() -> None:
    gone = {**event("u", 7), "after": None}
    [found] = DECODER.decode(lines([gone]), first_offset=0).changes.to_pylist()
    assert (found[OP], found["id"]) == ("d", 7)


def test_kinds_may_have_other_names_in_another_field() -> None:
    decoder = Decoder(
        "landing.t",
        SOURCE_COLUMNS,
        ("id",),
        kind_field="change",
        kinds={"I": "create", "UB": "before", "UA": "update", "D": "delete"},
    )
    pair = [{**event("d", 1), "change": "UB"}, {**event("c", 1, "b"), "change": "UA"}]
    events = [
        {**event("c", 1), "change": "I"},
        *pair,
        {**event("d", 1), "change": "D"},
        {**event("c", 2), "change": "c"},
    ]
    found = decoder.decode(lines(events), first_offset=0)
    assert [(r[OP], r["id"]) for r in found.changes.to_pylist()] == [("c", 1), ("d", 1), ("u", 1), ("d", 1)]
    assert [(r.offset, r.reason, r.op) for r in found.rejected] == [(4, "unknown_kind", "c")]


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda row: row.update(extra=1), "new: extra"), (lambda row: row.pop("status"), "gone: status")],
)
def test_a_changed_column_set_stops_the_table(change: object, said: str) -> None:
    changed = event("c", 2)
    change(changed["after"])  # type: ignore[operator]
    with pytest.raises(ConfigError, match=said):
        DECODER.decode(lines([event("c", 1), changed]), first_offset=0)
    with pytest.raises(ConfigError, match=said):
        DECODER.decode(lines([changed, event("c", 1)]), first_offset=0)


def test_a_line_longer_than_a_block_is_read() -> None:
    long = event("c", 1, "x" * (5 << 20))
    found = DECODER.decode(lines([event("c", 0), long]), first_offset=0).changes
    assert len(found["status"][1].as_py()) == 5 << 20
