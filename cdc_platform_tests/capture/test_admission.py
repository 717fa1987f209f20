"""Which tables are captured, for each kind of lack, and what is said of those that are not."""

import pytest

from cdc_platform.capture.admission import Admission, admit, captured_problem
from cdc_platform.errors import ConfigError
from cdc_platform.source.doctor import Finding

TABLES = ("orders", "items", "books")


def lack(table: str | None, what: str = "it lacks a", *, log_stays_true: bool = False) -> Finding:
    return Finding(f"place of {table}", what, "Do this", table, log_stays_true)


def test_nothing_is_lacking() -> None:
    assert admit(TABLES, [], streaming={"orders"}) == Admission(TABLES, (), {})


def test_a_lack_of_the_server_stops_the_source_whatever_else_is_lacking() -> None:
    with pytest.raises(ConfigError, match="place of None: wal_level"):
        admit(TABLES, [lack("orders"), lack(None, "wal_level")], streaming=set(TABLES))


def test_a_table_that_was_never_captured_is_left_out_alone_with_what_to_do() -> None:
    for stays in (False, True):  # There is no log yet that could stay true.
        assert admit(TABLES, [lack("items", log_stays_true=stays)], streaming={"orders"}) == Admission(
            ("orders", "books"),
            ("items",),
            {
                "items": "place of items: it lacks a; this table alone is not captured until then. Do this. "
                "It is then loaded anew by itself."
            },
        )


def test_a_captured_table_stays_while_its_log_stays_true_and_its_lack_is_told() -> None:
    assert admit(TABLES, [lack("items", log_stays_true=True)], streaming=set(TABLES)) == Admission(
        TABLES, (), {"items": "place of items: it lacks a. Do this."}
    )


def test_one_lack_that_spoils_the_log_is_enough_and_all_are_told() -> None:
    found = admit(TABLES, [lack("items", log_stays_true=True), lack("items", "it lacks b")], streaming=set(TABLES))
    assert found.left_out == ("items",)
    assert "it lacks a;" in found.problems["items"] and "it lacks b;" in found.problems["items"]


def test_where_no_table_is_left_the_source_stops_and_its_slot_keeps_everything() -> None:
    with pytest.raises(ConfigError, match="place of items: it lacks a"):
        admit(("items", "orders"), [lack("items"), lack("orders")], streaming=set(TABLES))
    assert admit((), [], streaming=set()) == Admission((), (), {})


def test_a_lack_that_comes_while_a_table_is_captured_says_that_it_will_be_left_out() -> None:
    assert captured_problem([lack("items", log_stays_true=True)]) == "place of items: it lacks a. Do this."
    assert captured_problem([lack("items")]) == (
        "place of items: it lacks a; capture leaves this table out from its next start on. Do this."
    )
