"""The checksum that guards every rewrite, on real Spark: unequal rows differ in it, equal ones don't."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from cdc_platform.errors import InvariantError, LimitError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.spark import Spark
from cdc_platform.maintenance.maintain import Effect, maintain
from cdc_platform.maintenance.probe import Probe, columns, probe, require_same
from cdc_platform.registry.maintenance import Maintenance

pytestmark = [pytest.mark.e2e]
TABLE = "curated.hashed"
Connected = tuple[Spark, Lake, str]
_TYPES = {
    "a": "string",
    "b": "string",
    "c": "boolean",
    "d": "boolean",
    "l": "array<int>",
    "ll": "array<array<int>>",
    "s": "struct<x: int, y: int>",
    "ls": "array<struct<x: int, y: int>>",
    "m": "map<string, int>",
    "ml": "map<string, array<int>>",
    "n": "double",
    "f": "float",
    "ln": "array<double>",
    "t": "timestamp",
    "y": "binary",
}
_PAIR = "named_struct('x', {}, 'y', {})"
# For each column values that are NULL, empty, or moved by a place: what hash functions are prone to take for the same.
_VALUES = {
    "l": "array() array(NULL) array(NULL,NULL) array(0) array(1,2) array(2,1) array(1,NULL,2) array(NULL,1,2) array(1)",
    "ll": "array() array(array()) array(NULL) array(array(),array()) array(array(1),array(2)) array(array(1,2)) "
    "array(array(1,2),array()) array(array(),array(1,2)) array(array(1),NULL,array(2)) array(array(1,NULL),array(2))",
    "s": f"{_PAIR.format(1, 'NULL')}|{_PAIR.format('NULL', 1)}|{_PAIR.format('NULL', 'NULL')}|{_PAIR.format(1, 1)}",
    "ls": f"array({_PAIR.format(1, 'NULL')})|array({_PAIR.format('NULL', 1)})|array(NULL)|array()|"
    f"array({_PAIR.format('NULL', 'NULL')})",
    "m": "map() map('a',1) map('a',NULL) map('b',1) map('a',1,'b',2) map('a',2,'b',1) map('',1) map('a',1,'b',NULL)",
    "ml": "map() map('a',array()) map('a',NULL) map('a',array(NULL)) map('a',array(1),'b',array()) "
    "map('a',array(),'b',array(1))",
    "n": "'0' '-0.0' 'NaN' 'Infinity' '-Infinity' '1'",
    "f": "'0' '-0.0' 'NaN' '1'",
    "ln": "array('0') array('-0.0') array('NaN') array(NULL) array()",
    "t": "'2024-01-01T00:00:00Z' '2024-01-01T00:00:00.000001Z' '-0001-01-01T00:00:00Z' '0002-01-01T00:00:00Z'",
    "y": "X'' X'00' X'0000' X'30'",
}
ROWS: list[Mapping[str, str]] = [
    {},
    *({"a": a, "b": b} for a, b in (("'x'", "NULL"), ("NULL", "'x'"), ("'x'", "'x'"), ("''", "NULL"), ("NULL", "''"))),
    *({"a": a, "b": b} for a, b in (("''", "''"), ("'x'", "''"), ("''", "'x'"), ("'xx'", "''"))),
    *(
        {"c": c, "d": d}
        for c in ("true", "false", "NULL")
        for d in ("true", "false", "NULL")
        if (c, d) != ("NULL",) * 2
    ),
    *({name: value} for name, found in _VALUES.items() for value in found.split("|" if "|" in found else " ")),
]


def made_of(spark: Spark, rows: list[Mapping[str, str]]) -> None:
    spark.rows(f"DROP TABLE IF EXISTS lake.{TABLE} PURGE")
    declared = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
    spark.rows(f"CREATE TABLE lake.{TABLE} ({declared}) USING iceberg TBLPROPERTIES ('format-version'='2')")
    selects = [
        "SELECT " + ", ".join(f"CAST({row.get(name, 'NULL')} AS {kind})" for name, kind in _TYPES.items())
        for row in rows
    ]
    spark.rows(f"INSERT INTO lake.{TABLE} {' UNION ALL '.join(selects)}")


def probed(spark: Spark, lake: Lake) -> Probe:
    history = lake.history(TABLE)
    assert history is not None and history.head_id is not None
    return probe(spark, lake, TABLE, history.head_id, columns(lake, TABLE, history.head_id))


def test_unequal_rows_have_unequal_hashes_and_equal_ones_in_another_order_the_same_checksum(
    spark_lake: Connected,
) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, ROWS)
    history = lake.history(TABLE)
    assert history is not None and history.head_id is not None
    of = columns(lake, TABLE, history.head_id)
    assert of.left_out == ()
    hashes = spark.rows(f"SELECT xxhash64({', '.join(of.expressions)}) AS h FROM lake.{TABLE}")
    assert (len(hashes), len({row["h"] for row in hashes})) == (len(ROWS), len(ROWS))
    before = probed(spark, lake)
    swapped = [{**row, "m": "map('b',2,'a',1)"} if row.get("m") == "map('a',1,'b',2)" else row for row in ROWS]
    assert swapped != ROWS
    made_of(spark, swapped[::-1])
    assert probed(spark, lake).checksum == before.checksum


def test_a_value_that_moves_to_the_next_column_is_seen(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, [{"a": "'x'"}])
    before = probed(spark, lake)
    made_of(spark, [{"b": "'x'"}])
    with pytest.raises(InvariantError, match="changed rows"):
        require_same(TABLE, "rewrite_data_files", before, probed(spark, lake))


@pytest.mark.parametrize(
    "change",
    [
        "ADD COLUMN s.b int",
        "ALTER COLUMN s.a COMMENT 'hello'",
        "ALTER COLUMN s.a TYPE bigint",
        "RENAME COLUMN s.a TO other",
        "ADD COLUMN l.element.b string",
        "ALTER COLUMN l.element.a TYPE bigint",
        "ALTER COLUMN m.value TYPE bigint",
        "ALTER COLUMN p TYPE decimal(11, 2)",
        "ALTER COLUMN f TYPE double",
        "ALTER COLUMN s.kind_of_variant DROP NOT NULL",
        "DROP COLUMN s.a",
    ],
)
def test_columns_that_changed_within_are_compared_by_what_both_have(spark_lake: Connected, change: str) -> None:
    spark, lake, _ = spark_lake
    spark.rows(f"DROP TABLE IF EXISTS lake.{TABLE} PURGE")
    spark.rows(
        f"CREATE TABLE lake.{TABLE} (id bigint, s struct<a: int, kind_of_variant: int NOT NULL>, "
        f"l array<struct<a: int>>, m map<string, int>, p decimal(9, 2), f float) USING iceberg "
        "TBLPROPERTIES ('format-version'='2')"
    )
    for n in range(3):
        spark.rows(
            f"INSERT INTO lake.{TABLE} SELECT id, named_struct('a', 1, 'kind_of_variant', 2), "
            f"array(named_struct('a', 1)), map('a', 1), 1.5, 1.5 FROM range({n * 10}, {n * 10 + 10})"
        )
    spark.rows(f"ALTER TABLE lake.{TABLE} {change}")
    effect = maintain(spark, lake, TABLE, "rewrite_data_files", Maintenance(), dry_run=False)
    assert isinstance(effect, Effect)
    assert (len(effect.snapshot_ids), effect.notes, effect.after.data_files) == (1, (), 1)
    history = lake.history(TABLE)
    assert history is not None and history.head is not None and history.head.parent_id is not None
    of = columns(lake, TABLE, history.head.parent_id, beside=history.head_id)
    assert any("kind_of_variant" in expression for expression in of.expressions)


def test_a_refused_statement_says_why_in_the_error(spark_lake: Connected) -> None:
    with pytest.raises(InvariantError, match="PARSE_SYNTAX_ERROR"):
        spark_lake[0].rows("SELECT 1 AS one two three")


def test_a_statement_whose_time_is_over_before_it_begins_is_not_run(spark_lake: Connected) -> None:
    spark = spark_lake[0]
    made_of(spark, [{"a": "'x'"}])
    with pytest.raises(LimitError, match="run_time_max"), spark.within(0, setting="run_time_max"):
        spark.rows(f"DELETE FROM lake.{TABLE}")
    assert spark.rows(f"SELECT count(*) AS n FROM lake.{TABLE}") == [{"n": 1}]


def test_a_statement_that_begins_after_the_first_interrupt_is_stopped_too(spark_lake: Connected) -> None:
    spark = spark_lake[0]
    with pytest.raises(LimitError, match="stopped after 0 s"), spark.within(0.01, setting="run_time_max"):
        for _ in range(1_000):
            spark.rows("SELECT sum(id) FROM range(300000000)")
    assert spark.rows("SELECT 1 AS n") == [{"n": 1}]


def test_a_run_that_began_too_long_ago_commits_nothing(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, ROWS)
    spark.rows(f"INSERT INTO lake.{TABLE} SELECT * FROM lake.{TABLE}")
    before, ticks = lake.history(TABLE), iter([0.0])
    policy = Maintenance(run_time_max=timedelta(seconds=1))
    with pytest.raises(LimitError, match="run_time_max"):
        maintain(spark, lake, TABLE, "rewrite_data_files", policy, dry_run=False, timer=lambda: next(ticks, 10_000.0))
    after = lake.history(TABLE)
    assert before is not None and after is not None and after.head_id == before.head_id
