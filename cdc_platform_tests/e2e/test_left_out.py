"""A table that can't be captured stops alone: the others stream, its problem is told, and after the remedy it is whole.

The stack here is PostgreSQL, capture and the sink, without Spark and Dagster. `good` lacks nothing at any time.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from sqlalchemy import text

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END
from cdc_platform.changelog.segments import newest_marker
from cdc_platform.deployment import Deployment
from cdc_platform.landing.position import landing_table
from cdc_platform.operations import Operations
from cdc_platform.source.postgres import connected
from cdc_platform_tests.builders import live_rows
from cdc_platform_tests.conftest import cli
from cdc_platform_tests.e2e.source_rows import until
from cdc_platform_tests.e2e.test_schema_changes import CAPTURE, Shop, running_shop

pytestmark = pytest.mark.e2e
TABLES = """
deployment: alone
sources: {shop: {postgres: {embedded: shop}}}
stack: {capture_memory_mb: 512}
tables:
  good: {source: shop.public.good, key: [id], owners: ["team:t"]}
  odd: {source: shop.public.odd, key: [id], owners: ["team:t"]}
"""
SETUP = """
CREATE TABLE good (id bigint PRIMARY KEY, v text);
CREATE TABLE odd (id bigint PRIMARY KEY, v text, waits interval[]);
ALTER TABLE good REPLICA IDENTITY FULL; ALTER TABLE odd REPLICA IDENTITY FULL;
INSERT INTO good SELECT i, 'v' FROM generate_series(1, 50) AS i;
INSERT INTO odd SELECT i, 'v', ARRAY['1 day'::interval] FROM generate_series(1, 50) AS i
"""
_STARTED_AGAIN_WITHIN_S = 90


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running_shop(tmp_path_factory.mktemp("alone"), TABLES, SETUP) as found:
        yield found


def at_source(shop: Shop, table: str) -> list[dict[str, Any]]:
    with connected(shop.engine) as connection:
        return [dict(r) for r in connection.execute(text(f"SELECT * FROM {table} ORDER BY id")).mappings()]


def landed(shop: Shop, table: str) -> list[dict[str, Any]]:
    found = Operations(Deployment.load(shop.deployment.project)).lake.load(landing_table(table))
    if found is None or found.current_snapshot() is None:
        return []
    rows = live_rows(found, ("id",))
    return sorted(({k: v for k, v in r.items() if not k.startswith("__cdc")} for r in rows), key=lambda r: r["id"])


def lands(shop: Shop, table: str) -> None:
    until(
        lambda: landed(shop, table) == at_source(shop, table),
        f"{table} did not become equal",
        within_s=_STARTED_AGAIN_WITHIN_S,
    )


def good_streams(shop: Shop) -> None:
    shop.sql("INSERT INTO good SELECT max(id) + 1, 'streamed' FROM good")
    lands(shop, "good")


def told(shop: Shop) -> Mapping[str, Any]:
    """What `status --json` says of capture."""
    found = json.loads(cli(shop.deployment.project, "status", "--json").stdout)
    return next(s for s in found["services"] if s["service"] == CAPTURE)


def tells(shop: Shop, *parts: str) -> None:
    def is_told() -> bool:
        found = told(shop)
        return found["state"] == "impaired" and all(part in found["detail"] for part in parts)

    until(is_told, f"not told: {parts}", within_s=_STARTED_AGAIN_WITHIN_S)


def is_well(shop: Shop) -> None:
    def nothing_is_told() -> bool:
        found = told(shop)  # One that has just started again has no facts yet.
        return found["state"] == "ready" and found["facts"].get("left_out") == {}

    until(nothing_is_told, "a problem is still told", within_s=_STARTED_AGAIN_WITHIN_S)


def declare(shop: Shop, name: str, **changes: Any) -> None:
    file = shop.deployment.project / "tables.yaml"
    tables = yaml.safe_load(file.read_text())
    entry = {"source": f"shop.public.{name}", "key": ["id"], "owners": ["team:t"]}
    tables["tables"][name] = entry | changes
    file.write_text(yaml.safe_dump(tables))


def test_an_unsupported_column_from_the_start(shop: Shop) -> None:
    tells(shop, "column `waits` has type interval[]", "this table alone is not captured until then", "TYPE text")
    assert list(told(shop)["facts"].get("left_out", {})) == ["odd"]
    good_streams(shop)
    refused = cli(shop.deployment.project, "reload", "odd")
    assert refused.returncode == 2
    assert "capture leaves `odd` out, so nothing can load it: shop.public.odd (tables.yaml" in refused.stderr
    found = json.loads(cli(shop.deployment.project, "doctor", "--json").stdout)
    assert [(f["source"], f["table"]) for f in found] == [("shop", "odd")]

    shop.sql("UPDATE odd SET v = 'meanwhile' WHERE id = 7; DELETE FROM odd WHERE id = 8; INSERT INTO odd VALUES (99)")
    shop.sql("ALTER TABLE odd ALTER waits TYPE text")
    is_well(shop)
    lands(shop, "odd")
    assert len(landed(shop, "odd")) == 50
    good_streams(shop)
    shop.sql("UPDATE odd SET v = 'streamed' WHERE id = 9")
    lands(shop, "odd")


def test_a_captured_table_gets_a_column_on_which_debezium_ends(shop: Shop) -> None:
    """What is in the WAL before the table was left out does not hold up the others, either."""
    shop.sql("ALTER TABLE odd ADD flags bit(2)[]; INSERT INTO odd VALUES (100, 'ends it', NULL, ARRAY[B'01', NULL])")
    shop.sql("INSERT INTO good VALUES (1000, 'after it')")
    shop.stack.restart(CAPTURE)
    tells(shop, "column `flags` has type bit(2)[]", "this table alone is not captured until then")
    lands(shop, "good")
    assert newest_marker(shop.deployment.changelog_dir("odd")) == LOAD_BEGIN
    shop.sql("UPDATE odd SET v = 'unseen' WHERE id < 5; DELETE FROM odd WHERE id = 6; DELETE FROM odd WHERE id = 100")
    good_streams(shop)

    shop.sql("ALTER TABLE odd DROP flags")
    is_well(shop)
    lands(shop, "odd")
    assert newest_marker(shop.deployment.changelog_dir("odd")) == LOAD_END
    good_streams(shop)


def test_a_captured_table_whose_updates_come_without_their_row_before(shop: Shop) -> None:
    """Told while capture runs, too; left out from the next start on."""
    shop.sql("ALTER TABLE odd REPLICA IDENTITY DEFAULT")
    tells(shop, "REPLICA IDENTITY is not FULL", "capture leaves this table out from its next start on")
    assert told(shop)["facts"]["left_out"] == {}
    shop.stack.restart(CAPTURE)
    tells(shop, "REPLICA IDENTITY is not FULL", "this table alone is not captured until then")
    shop.sql("UPDATE odd SET v = 'not FULL' WHERE id = 10; DELETE FROM odd WHERE id = 11")
    good_streams(shop)

    shop.sql("ALTER TABLE odd REPLICA IDENTITY FULL")
    is_well(shop)
    lands(shop, "odd")


def test_a_captured_table_that_is_gone_and_comes_back(shop: Shop) -> None:
    shop.sql("ALTER TABLE odd RENAME TO away")
    shop.stack.restart(CAPTURE)
    tells(shop, "there is no such table", "this table alone is not captured until then")
    shop.sql("UPDATE away SET v = 'away' WHERE id = 12")
    good_streams(shop)
    shop.sql("ALTER TABLE away RENAME TO odd")
    is_well(shop)
    lands(shop, "odd")


def test_a_captured_table_that_lost_a_column_which_tables_yaml_names_goes_on_into_its_log(shop: Shop) -> None:
    """The sink stops it; nothing has to be left out, and nothing of it is lost."""
    declare(shop, "odd", curated={"contract": ["v"]})
    shop.stack.restart("sink")
    shop.sql("ALTER TABLE odd DROP v; INSERT INTO odd VALUES (200)")
    tells(shop, "`curated.contract` names column `v`, which does not exist", "Use some of: id")
    shop.stack.restart(CAPTURE)
    tells(shop, "`curated.contract` names column `v`, which does not exist")
    assert told(shop)["facts"]["left_out"] == {}
    end = shop.log("odd").end()
    shop.sql("INSERT INTO odd VALUES (201)")
    until(lambda: shop.log("odd").end() > end, "its changes do not come to the log", within_s=_STARTED_AGAIN_WITHIN_S)
    good_streams(shop)
    assert newest_marker(shop.deployment.changelog_dir("odd")) == LOAD_END

    declare(shop, "odd")
    shop.stack.restart("sink")
    assert cli(shop.deployment.project, "reload", "odd").returncode == 0
    lands(shop, "odd")
    is_well(shop)


def test_a_new_table_with_a_slip_in_its_key_is_taken_in_when_tables_yaml_is_corrected(shop: Shop) -> None:
    shop.sql("CREATE TABLE late (id int PRIMARY KEY, v text); ALTER TABLE late REPLICA IDENTITY FULL")
    shop.sql("INSERT INTO late SELECT i, 'v' FROM generate_series(1, 30) AS i")
    declare(shop, "late", key=["nr"])
    shop.stack.restart(CAPTURE)
    tells(shop, "key column `nr` does not exist", "Use some of: id, v")
    good_streams(shop)
    declare(shop, "late")
    shop.stack.restart("sink")
    is_well(shop)
    lands(shop, "late")


def test_where_every_table_lacks_something_the_source_stops_and_loses_nothing(shop: Shop) -> None:
    shop.sql("ALTER TABLE odd REPLICA IDENTITY DEFAULT; ALTER TABLE late REPLICA IDENTITY DEFAULT")
    shop.sql("ALTER TABLE good REPLICA IDENTITY DEFAULT")
    shop.stack.restart(CAPTURE)
    until(
        lambda: told(shop)["state"] in {"backing off", "starting"} and "is not FULL" in told(shop)["detail"],
        "it did not stop",
    )
    loads = {t: newest_marker(shop.deployment.changelog_dir(t)) for t in ("good", "odd", "late")}
    assert set(loads.values()) == {LOAD_END}
    shop.sql("INSERT INTO good VALUES (5000, 'kept in the WAL')")
    shop.sql("ALTER TABLE odd REPLICA IDENTITY FULL; ALTER TABLE late REPLICA IDENTITY FULL")
    shop.sql("ALTER TABLE good REPLICA IDENTITY FULL")
    is_well(shop)
    lands(shop, "good")
