"""The MERGE on real Spark and a v3 table: NULLs, deletes, lineage, and what it leaves alone."""

from collections.abc import Iterator
from typing import Any

import pytest

from cdc_platform.hops.contract import Contract, create_sql, difference_sql, merge_sql
from cdc_platform.lake.snapshot import Column
from cdc_platform.lake.spark import Spark
from cdc_platform_tests.conftest import RunningStack
from cdc_platform_tests.e2e.source_rows import execute, until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("by_hand")]
COLUMNS = (Column("id", "int", True), Column("status", "string", False), Column("note", "string", False))
CONTRACT = Contract.of("t", [c.name for c in COLUMNS], key=["id"], declared=["status"])
SOURCE, TARGET = "lake.scratch.s", "lake.scratch.t"
Row = tuple[int, str | None, str | None]


@pytest.fixture
def spark(running_stack: RunningStack) -> Iterator[Spark]:
    with running_stack.operations.spark() as session:
        session.rows("CREATE NAMESPACE IF NOT EXISTS lake.scratch")
        for table in (SOURCE, TARGET):
            session.rows(f"DROP TABLE IF EXISTS {table}")
            session.rows(create_sql(table, COLUMNS, key=["id"]))
        yield session


def put(spark: Spark, table: str, *rows: Row) -> None:
    spark.rows(f"DELETE FROM {table}")
    for row in rows:
        values = ", ".join("NULL" if v is None else repr(v) for v in row)
        spark.rows(f"INSERT INTO {table} VALUES ({values})")


def merged(spark: Spark, target: list[Row], source: list[Row]) -> tuple[dict[str, Any], set[Row], int]:
    """Counts foreseen, rows after the MERGE, and how many rows kept their lineage."""
    put(spark, TARGET, *target)
    put(spark, SOURCE, *source)
    lineage = "SELECT id, _row_id, _last_updated_sequence_number AS n FROM " + TARGET
    before = {tuple(r.values()) for r in spark.rows(lineage)}
    [counts] = spark.rows(difference_sql(CONTRACT, source=SOURCE, target=TARGET))
    spark.rows(merge_sql(CONTRACT, source=SOURCE, target=TARGET))
    after = {tuple(r.values()) for r in spark.rows(lineage)}
    rows: set[Any] = {tuple(r.values()) for r in spark.rows(f"SELECT * FROM {TARGET}")}
    return counts, rows, len(before & after)


def test_inserts_updates_and_deletes_are_foreseen_and_carried(spark: Spark) -> None:
    counts, rows, kept = merged(
        spark, [(1, "a", "x"), (2, "a", "x"), (3, "a", "x")], [(1, "a", "x"), (2, "b", "y"), (4, "a", "x")]
    )
    assert counts == {"inserts": 1, "updates": 1, "deletes": 1, "doubled_keys": 0}
    assert rows == {(1, "a", "x"), (2, "b", "y"), (4, "a", "x")}
    assert kept == 1


@pytest.mark.parametrize(("old", "new", "updates"), [(None, "a", 1), ("a", None, 1), (None, None, 0)])
def test_null_to_a_value_is_a_change_and_null_to_null_is_none(
    spark: Spark, old: str | None, new: str | None, updates: int
) -> None:
    counts, rows, kept = merged(spark, [(1, old, "x")], [(1, new, "x")])
    assert (counts["updates"], rows, kept) == (updates, {(1, new, "x")}, 1 - updates)


def test_a_change_outside_the_contract_leaves_the_row_and_its_lineage(spark: Spark) -> None:
    counts, rows, kept = merged(spark, [(1, "a", "x")], [(1, "a", "other")])
    assert (counts["updates"], rows, kept) == (0, {(1, "a", "x")}, 1)


def test_a_key_that_stands_twice_upstream_is_counted_before_a_merge_would_insert_both(spark: Spark) -> None:
    put(spark, SOURCE, (1, "a", None), (1, "b", None), (2, "a", None))
    [counts] = spark.rows(difference_sql(CONTRACT, source=SOURCE, target=TARGET))
    assert counts["doubled_keys"] == 1


def test_curated_follows_columns_that_come_are_renamed_and_go(running_stack: RunningStack) -> None:
    """Rows that do not change otherwise get the new column's values, and reads under the old columns are none."""
    operations = running_stack.operations

    def carried(change: str, expected: dict[str, object] | None) -> None:
        execute(operations, f"ALTER TABLE order_items {change}")
        execute(operations, "UPDATE order_items SET quantity = quantity WHERE order_id = 7")

        def landed() -> bool:
            landing = operations.landing("order_items")
            names = {c.name for c in landing.columns} if landing else set()
            return set(expected or ()) <= names and not ({"extra", "other"} - set(expected or ())) & names

        until(landed, f"landing did not follow {change}")
        operations.merge("order_items")
        with operations.spark() as spark:
            rows = spark.rows("SELECT * FROM lake.curated.order_items WHERE order_id = 7 ORDER BY line_no LIMIT 1")
        assert {k: v for k, v in rows[0].items() if k in {"extra", "other"}} == (expected or {})

    carried("ADD COLUMN extra integer", {"extra": None})
    execute(operations, "UPDATE order_items SET extra = 5 WHERE order_id = 7")
    carried("RENAME extra TO other", {"other": 5})
    carried("DROP other", None)
    assert operations.converge("order_items", "curated").outcome == "converged"
