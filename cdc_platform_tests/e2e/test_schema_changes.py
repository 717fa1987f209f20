"""Columns change at the source mid-stream: what capture writes for each kind of change, and a load of one table alone.

The stack here is PostgreSQL, capture and the sink, without Spark and Dagster. `drift` changes, `steady` never does.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, SCHEMA
from cdc_platform.changelog.segments import SegmentLog
from cdc_platform.deployment import Deployment
from cdc_platform.errors import ConfigError
from cdc_platform.operations import Operations
from cdc_platform.source.messages import emit_replay
from cdc_platform.source.postgres import connected, source_engine
from cdc_platform.stack import services as declared
from cdc_platform.stack.control import Stack
from cdc_platform.stack.service import Service
from cdc_platform_tests.conftest import cli
from cdc_platform_tests.e2e.source_rows import until

pytestmark = pytest.mark.e2e
CAPTURE = "capture-shop"
RUN = {"postgres", CAPTURE, "sink"}
TABLES = """
deployment: drift
sources: {shop: {postgres: {embedded: shop}}}
stack: {capture_memory_mb: 512}
tables:
  drift: {source: shop.public.drift, key: [id], owners: ["team:t"]}
  steady: {source: shop.public.steady, key: [id], owners: ["team:t"]}
"""
SETUP = """
CREATE TYPE mood AS ENUM ('calm', 'wild');
CREATE TABLE drift (id bigserial PRIMARY KEY, a integer, s text, m mood, c numeric(9, 2));
CREATE TABLE steady (id bigint PRIMARY KEY, v text);
ALTER TABLE drift REPLICA IDENTITY FULL; ALTER TABLE steady REPLICA IDENTITY FULL;
INSERT INTO drift (a, s, m, c) SELECT i, 's' || i, 'calm', 1 FROM generate_series(1, 50) AS i;
INSERT INTO steady SELECT i, 'v' FROM generate_series(1, 50) AS i
"""


def some(deployment: Deployment, ports: Mapping[str, int]) -> tuple[Service, ...]:
    return tuple(service for service in declared.services(deployment, ports) if service.name in RUN)


@dataclass
class Shop:
    """The running stack, its source, and how far the test has read the log of `drift`."""

    stack: Stack
    deployment: Deployment
    engine: Engine
    read_to: dict[str, int] = field(default_factory=dict)

    @property
    def operations(self) -> Operations:
        return Operations(self.deployment)

    def sql(self, statements: str) -> None:
        with connected(self.engine) as connection:
            connection.execution_options(no_parameters=True).exec_driver_sql(statements)
            connection.commit()

    def log(self, table: str = "drift") -> SegmentLog:
        return SegmentLog(self.deployment.changelog_dir(table))

    def news(self, table: str = "drift") -> list[dict[str, Any]]:
        """Records that have come since the last call."""
        log, found = self.log(table), list[dict[str, Any]]()
        start = self.read_to.get(table, 0)
        while (batch := log.read(start, bytes_max=1 << 20)).lines:
            found += [json.loads(line) for line in batch.lines.splitlines()]
            start = batch.end
        self.read_to[table] = start
        return found

    def after(self, statements: str, *, records: int, table: str = "drift") -> list[dict[str, Any]]:
        """Run it, and wait for that many records of the table."""
        self.sql(statements)
        found: list[dict[str, Any]] = []

        def come() -> bool:
            found.extend(self.news(table))
            return len(found) >= records

        until(come, f"{statements}: {records} records did not come", within_s=40)
        return found

    def status(self, service: str = CAPTURE) -> Any:
        return next(s for s in self.stack.status() if s.service == service)


@contextmanager
def running_shop(project: Path, tables: str, setup: str) -> Iterator[Shop]:
    """PostgreSQL, capture and the sink of a project, started on what `setup` made; stopped afterwards."""
    (project / "tables.yaml").write_text(tables)
    stack = Stack(Deployment.load(project), some)
    stack.launch(bound=False, warn=print)
    try:
        stack.start("postgres", tell=lambda _name, _seconds: None)
        deployment = Deployment.load(project)
        found = Shop(stack, deployment, source_engine(deployment.source_url("shop")))
        found.sql(setup)
        stack.start(tell=lambda _name, _seconds: None)
        yield found
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running_shop(tmp_path_factory.mktemp("drift"), TABLES, SETUP) as found:
        until(lambda: found.log().end() >= 53, "the initial load did not come")
        yield found


def columns(record: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    return {c["name"]: (c["type"], c["number"]) for c in record["columns"]}


START = {
    "id": ("bigint", 1),
    "a": ("integer", 2),
    "s": ("text", 3),
    "m": ("enum", 4),
    "c": ("numeric(9,2)", 5),
}


def test_the_load_carries_the_columns_and_streaming_adds_no_marker(shop: Shop) -> None:
    found = shop.news()
    # The first marker stands for the time before the publication, of which no log tells.
    assert [r["op"] for r in found] == [LOAD_BEGIN, LOAD_BEGIN, *["r"] * 50, LOAD_END]
    assert columns(found[1]) == START
    again = shop.after("UPDATE drift SET a = a + 1 WHERE id = 1; ANALYZE drift", records=1)
    again += shop.after("UPDATE drift SET a = a + 1 WHERE id = 1", records=1)
    assert [r["op"] for r in again] == ["u", "u"]  # Described anew by ANALYZE, and found unchanged.
    shop.news("steady")


CHANGES: list[tuple[str, dict[str, tuple[str, int] | None], set[str]]] = [
    # What is run, the columns that are other ones after it (None: gone), and which of them are filled.
    ("ADD n1 integer", {"n1": ("integer", 6)}, set()),
    ("ADD n2 integer DEFAULT 5", {"n2": ("integer", 7)}, {"n2"}),
    ("ADD n3 integer DEFAULT random()", {"n3": ("integer", 8)}, {"n3"}),
    ("ADD n4 integer DEFAULT 6; ALTER TABLE drift ALTER n4 DROP DEFAULT", {"n4": ("integer", 9)}, {"n4"}),
    ("ADD n5 integer; ALTER TABLE drift ALTER n5 SET DEFAULT 7", {"n5": ("integer", 10)}, set()),
    ("DROP n5", {"n5": None}, set()),
    ("RENAME n1 TO r1", {"n1": None, "r1": ("integer", 6)}, set()),
    ("ALTER r1 TYPE bigint", {"r1": ("bigint", 6)}, set()),
    ("ALTER r1 TYPE integer", {"r1": ("integer", 6)}, set()),
    ("ALTER c TYPE numeric(12, 2)", {"c": ("numeric(12,2)", 5)}, set()),
    ("ALTER s TYPE varchar(40)", {"s": ("character varying(40)", 3)}, set()),
    ("ALTER s TYPE text", {"s": ("text", 3)}, set()),
    ("ALTER m TYPE text", {"m": ("text", 4)}, set()),
    ("DROP r1; ALTER TABLE drift ADD r1 integer", {"r1": ("integer", 11)}, set()),
    (
        "ADD u uuid, ADD at timestamptz(3)",
        {"u": ("uuid", 12), "at": ("timestamp(3) with time zone", 13)},
        set(),
    ),
]


@pytest.mark.parametrize(("change", "become", "filled"), CHANGES, ids=[c[0] for c in CHANGES])
def test_each_change_is_one_marker_before_the_first_record_that_has_it(
    shop: Shop, change: str, become: dict[str, tuple[str, int] | None], filled: set[str]
) -> None:
    before = shop.news()
    known = columns(next(r for r in reversed(_all(shop)) if "columns" in r))
    assert before == []
    found = shop.after(
        "UPDATE drift SET s = 'before' WHERE id = 2;UPDATE drift SET s = 'before' WHERE id = 3",
        records=2,
    )
    found += shop.after(
        f"ALTER TABLE drift {change}; UPDATE drift SET s = 'after' WHERE id = 2;"
        "UPDATE drift SET s = 'after' WHERE id = 3; UPDATE steady SET v = 'after' WHERE id = 2",
        records=3,
    )
    assert [r["op"] for r in found] == ["u", "u", SCHEMA, "u", "u"]
    expected = {n: c for n, c in (known | become).items() if c is not None}
    assert columns(found[2]) == expected
    assert list(columns(found[2])) == list(found[3]["after"])  # As the record has them.
    fresh = {c["name"] for c in found[2]["columns"] if c["number"] not in {n for _, n in known.values()}}
    assert {c["name"] for c in found[2]["columns"] if c["filled"]} & fresh == filled


def _all(shop: Shop) -> list[dict[str, Any]]:
    batch, found = shop.log().read(0, bytes_max=1 << 26), list[dict[str, Any]]()
    while batch.lines:
        found += [json.loads(line) for line in batch.lines.splitlines()]
        batch = shop.log().read(batch.end, bytes_max=1 << 26)
    return found


def test_nullability_is_told_and_the_other_table_has_no_marker(shop: Shop) -> None:
    found = shop.after("ALTER TABLE drift ALTER s SET NOT NULL; UPDATE drift SET s = 'set' WHERE id = 2", records=2)
    assert [r["op"] for r in found] == [SCHEMA, "u"]
    assert next(c["required"] for c in found[0]["columns"] if c["name"] == "s") is True
    assert {r["op"] for r in shop.news("steady")} <= {"u"}


def test_a_table_written_anew_by_its_owner_is_no_change(shop: Shop) -> None:
    with connected(shop.engine, isolation="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM FULL drift")
    found = shop.after("UPDATE drift SET s = 'full' WHERE id = 2", records=1)
    assert [r["op"] for r in found] == ["u"]
    found = shop.after("ALTER TABLE drift ADD n6 date; UPDATE drift SET s = 'n6' WHERE id = 2", records=2)
    assert [(c["name"], c["filled"]) for c in found[0]["columns"]][-1] == ("n6", False)


def test_changes_while_capture_is_down_are_proven_or_said_to_be_unknown(shop: Shop) -> None:
    """Adds in a row are known by their place, what was dropped from the log; what came and went is not known."""
    with shop.stack.paused(CAPTURE):
        for statement in (
            "UPDATE drift SET s = 'old' WHERE id = 2",
            "ALTER TABLE drift ADD d1 integer",
            "UPDATE drift SET s = 'd1' WHERE id = 2",
            "ALTER TABLE drift ADD d2 integer; ALTER TABLE drift ALTER d1 SET STATISTICS 50",
            "UPDATE drift SET s = 'd2' WHERE id = 2",
            "ALTER TABLE drift ADD passing integer",
            "UPDATE drift SET s = 'passing' WHERE id = 2",
            "ALTER TABLE drift DROP passing, DROP n6",
        ):
            shop.sql(statement)
    until(lambda: shop.status().state == "ready", "capture did not come back")
    found = shop.after("UPDATE drift SET s = 'end' WHERE id = 2", records=9)
    values = [
        r["after"]["s"] if r["op"] == "u" else sorted(n for n, c in columns(r).items() if not c[0]) for r in found
    ]
    last = values.index("old") if "old" in values else 0  # What was not acknowledged before comes once more.
    assert values[last:] == ["old", [], "d1", [], "d2", ["passing"], "passing", [], "end"]
    assert {"d1", "d2", "n6"} <= set(columns(found[last + 3]))
    assert {"d1", "d2"} <= set(columns(found[-2])) and not {"passing", "n6"} & set(columns(found[-2]))


def test_a_reload_is_of_one_table_and_the_others_stream_on(shop: Shop) -> None:
    shop.news("steady")
    loaded = shop.log("steady").newest_load()
    shop.sql("INSERT INTO drift (a, s) VALUES (1, 'before the load')")
    told = cli(shop.deployment.project, "reload", "drift", "--json")
    assert told.returncode == 0, told.stderr
    begun = json.loads(told.stdout)["log_position"]
    found = shop.after("UPDATE steady SET v = 'meanwhile' WHERE id = 3", records=1, table="steady")
    assert [r["op"] for r in found] == ["u"]
    until(lambda: any(r["op"] == LOAD_END for r in _all(shop)[begun:]), "the load did not end")
    load = _all(shop)[begun:]
    assert load[0]["op"] == LOAD_BEGIN
    assert [r["op"] for r in load[1 : load.index(next(r for r in load if r["op"] == LOAD_END))]] == ["r"] * 51
    assert list(columns(load[0])) == list(load[1]["after"])
    assert shop.log("steady").newest_load() == loaded
    shop.news()
    assert [r["op"] for r in shop.after("UPDATE drift SET s = 'after' WHERE id = 2", records=1)] == ["u"]


def test_a_reload_without_a_capture_is_refused_with_what_to_do(shop: Shop) -> None:
    with shop.stack.paused(CAPTURE):
        until(lambda: shop.status().pid is None, "capture did not stop")
        told = cli(shop.deployment.project, "reload", "drift")
    assert told.returncode == 2
    assert told.stderr.strip() == (
        "capture-shop: no capture of source `shop` runs, so nothing can load `drift`. Start it: `cdc-platform up`, or "
        "cure what `cdc-platform status` shows of it; then run this again."
    )
    with pytest.raises(ConfigError, match="table `nobody` is not declared"):
        shop.operations.reload("nobody")
    until(lambda: shop.status().state == "ready", "capture did not come back")


def test_a_replayed_record_stands_where_it_was_sent(shop: Shop) -> None:
    shop.news()
    shop.sql("UPDATE drift SET s = 'one' WHERE id = 2")
    emit_replay(shop.engine, "drift", {"op": "c", "note": "again"})
    emit_replay(shop.engine, "nobody", {"op": "c"})
    found = shop.after("UPDATE drift SET s = 'two' WHERE id = 2", records=3)
    assert [r.get("note") or r["after"]["s"] for r in found] == ["one", "again", "two"]
    until(lambda: shop.status().facts.get("records", {}).get("replay_refused") == 1, "not counted")
    assert shop.status().facts["records"]["replay"] == 1


def test_status_tells_the_kinds_of_records_and_the_slots_lag(shop: Shop) -> None:
    shop.sql("SELECT pg_logical_emit_message(true, 'another.application', 'x')")
    until(lambda: shop.status().facts.get("records", {}).get("message") == 1, "not counted")
    until(lambda: (shop.status().facts.get("slot") or {}).get("active"), "the slot was not read")
    slot = shop.status().facts["slot"]
    assert slot["wal_status"] == "reserved"
    assert 0 <= slot["unconfirmed_bytes"] <= slot["retained_bytes"]
    with shop.stack.paused(CAPTURE):
        shop.sql("INSERT INTO drift (a, s) SELECT i, repeat('x', 500) FROM generate_series(1, 9000) AS i")
        time.sleep(0.2)
        lag = shop.operations.slot_lag("drift")
        assert not lag.active
        assert lag.unconfirmed_bytes is not None and lag.unconfirmed_bytes > 9000 * 500
        assert not lag.within(1) and lag.within(1024)
    until(lambda: shop.status().state == "ready", "capture did not come back")
    until(lambda: (shop.operations.slot_lag("drift").unconfirmed_bytes or 0) < 1 << 20, "the lag did not shrink")
