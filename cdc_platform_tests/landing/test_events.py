"""Decoding: every spelling of a value, the moved key, and what is refused."""

import base64
import datetime as dt
from decimal import Decimal

import pytest

from cdc_platform.errors import ConfigError, InvariantError
from cdc_platform.lake.snapshot import Column
from cdc_platform.landing.events import COMMIT_LSN, LSN, OP, ORDINAL, Decoder
from cdc_platform_tests.builders import ORDER_COLUMNS, event, lines

DECODER = Decoder("landing.t", ORDER_COLUMNS, ("id",))


def test_each_type_is_read_as_debezium_spells_it() -> None:
    columns = (
        Column("k", "int", True),
        Column("b", "boolean", False),
        Column("n", "decimal(10, 3)", False),
        Column("d", "date", False),
        Column("ts", "timestamp", False),
        Column("tz", "timestamptz", False),
        Column("raw", "binary", False),
        Column("f", "double", False),
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
    found = Decoder("landing.t", columns, ("k",)).decode(lines(events), first_offset=0).to_pylist()
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
    found = DECODER.decode(lines([first, event("u", 1, commit=5, lsn=9, order=2)]), first_offset=0)
    assert found.select([COMMIT_LSN, LSN, ORDINAL]).to_pylist() == [
        {COMMIT_LSN: 0, LSN: 7, ORDINAL: 0},
        {COMMIT_LSN: 5, LSN: 9, ORDINAL: 2},
    ]


def test_a_delete_takes_its_key_from_before() -> None:
    [found] = DECODER.decode(lines([event("d", 7)]), first_offset=0).to_pylist()
    assert (found[OP], found["id"], found["status"]) == ("d", 7, None)


def test_an_update_that_moves_the_key_deletes_the_old_one_first() -> None:
    events = [event("c", 1, lsn=1), event("u", 2, "b", before={"id": 1}, lsn=2), event("u", 2, "c", lsn=3)]
    events[1]["before"] = {"id": 1, "status": "a", "total": None}
    found = DECODER.decode(lines(events), first_offset=0).to_pylist()
    assert [(r[OP], r["id"], r["status"]) for r in found] == [
        ("c", 1, "new"),
        ("d", 1, None),
        ("u", 2, "b"),
        ("u", 2, "c"),
    ]


@pytest.mark.parametrize("value", [1.5, "12", 2**63])
def test_a_value_that_does_not_fit_stops_the_table_and_is_not_bent(value: object) -> None:
    wrong = event("c", 1)
    wrong["after"]["id"] = value
    with pytest.raises(InvariantError, match="change-log records from 41") as raised:
        DECODER.decode(lines([wrong]), first_offset=41)
    assert "recapture" in raised.value.action


def test_an_event_without_its_key_names_the_column() -> None:
    with pytest.raises(InvariantError, match="1 events have no value in key column `id`"):
        DECODER.decode(lines([event("c", None)]), first_offset=0)


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
    found = DECODER.decode(lines([event("c", 0), long]), first_offset=0)
    assert len(found["status"][1].as_py()) == 5 << 20
