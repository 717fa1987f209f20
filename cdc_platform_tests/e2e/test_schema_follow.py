"""Landing follows the source's columns mid-stream, or that table stops alone and a reload of it goes on."""

from collections.abc import Iterator
from typing import Any

import pytest

from cdc_platform.landing.position import landing_table
from cdc_platform_tests.builders import live_rows
from cdc_platform_tests.conftest import cli
from cdc_platform_tests.e2e.source_rows import until
from cdc_platform_tests.e2e.test_schema_changes import SETUP, Shop, running_shop

pytestmark = pytest.mark.e2e
TABLES = """
deployment: follow
sources: {shop: {postgres: {embedded: shop}}}
stack: {capture_memory_mb: 512}
tables:
  drift: {source: shop.public.drift, key: [id], owners: ["team:t"], convergence: {distribution: s}}
  steady: {source: shop.public.steady, key: [id], owners: ["team:t"]}
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running_shop(tmp_path_factory.mktemp("follow"), TABLES, SETUP) as found:
        settled(found)  # It is loaded.
        yield found


def source(shop: Shop, table: str) -> dict[int, dict[str, str]]:
    with shop.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY id").mappings()
        return {r["id"]: {k: str(v) for k, v in r.items()} for r in rows}


def landed(shop: Shop, table: str) -> dict[int, dict[str, str]]:
    loaded = shop.operations.lake.load(landing_table(table))
    rows: list[dict[str, Any]] = live_rows(loaded, ("id",)) if loaded is not None else []
    assert len(rows) == len({r["id"] for r in rows})
    return {r["id"]: {k: str(v) for k, v in r.items()} for r in rows}


def settled(shop: Shop, table: str = "drift") -> None:
    until(lambda: landed(shop, table) == source(shop, table), f"{table} did not become what the source holds")


@pytest.mark.parametrize(
    "change",
    [
        "ADD n1 integer",
        "ADD n2 numeric(30, 4), ADD n3 text",
        "RENAME n1 TO r1",
        "ALTER r1 TYPE bigint",
        "ALTER r1 TYPE integer",
        "ALTER c TYPE numeric(12, 2)",
        "DROP n3",
        "ALTER a SET NOT NULL",
        "ALTER a DROP NOT NULL",
        "RENAME n2 TO n1",
    ],
)
def test_landing_follows(shop: Shop, change: str) -> None:
    shop.sql(
        f"UPDATE drift SET a = a + 1 WHERE id = 2; ALTER TABLE drift {change}; UPDATE drift SET a = a + 1 WHERE id = 3;"
        "INSERT INTO drift (a, s) VALUES (1, 'new')"
    )
    settled(shop)


def test_what_can_not_be_followed_stops_that_table_alone_and_a_reload_goes_on(shop: Shop) -> None:
    shop.sql("ALTER TABLE drift ADD filled integer DEFAULT 7; UPDATE drift SET a = 100 WHERE id = 5")

    until(lambda: shop.status("sink").state == "impaired", "the sink did not say that it stopped")
    told = shop.status("sink").detail
    assert "landing.drift: column `filled` was added with a value for the rows that were there" in told
    assert "`cdc-platform reload drift`" in told
    shop.sql("UPDATE steady SET v = 'goes on' WHERE id = 4")
    settled(shop, "steady")
    asked = cli(shop.deployment.project, "reload", "drift", "--json")
    assert asked.returncode == 0, asked.stderr
    settled(shop)
    until(lambda: shop.status("sink").state == "ready", "the problem is still told")
    shop.sql("UPDATE drift SET filled = 8 WHERE id = 6")
    settled(shop)


def test_a_column_that_tables_yaml_names_may_not_go(shop: Shop) -> None:
    shop.sql("ALTER TABLE drift RENAME s TO t; UPDATE drift SET a = 200 WHERE id = 5")
    until(
        lambda: "`s`, which `convergence.distribution` names" in shop.status("sink").detail,
        "the sink did not say what is named",
    )
    shop.sql("ALTER TABLE drift RENAME t TO s; UPDATE drift SET a = 201 WHERE id = 5")
    shop.sql("UPDATE steady SET v = 'still' WHERE id = 4")
    settled(shop, "steady")
    asked = cli(shop.deployment.project, "reload", "drift", "--json")
    assert asked.returncode == 0, asked.stderr
    settled(shop)
