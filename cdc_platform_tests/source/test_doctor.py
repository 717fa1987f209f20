"""The doctor on a real PostgreSQL: each lack is found, its cure works, and nothing is found where nothing lacks."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from cdc_platform.errors import ConfigError, UnavailableError
from cdc_platform.lake.snapshot import Column
from cdc_platform.registry.model import Table
from cdc_platform.source.doctor import drop_slot, ensure_publication, inspect, unpublished
from cdc_platform.source.messages import emit_cut
from cdc_platform.source.postgres import connected, source_engine
from cdc_platform.source.state import Measures, read_cut
from cdc_platform.stack import postgres as postgres_service

pytestmark = pytest.mark.e2e
SLOT = "cdc_t_shop"


@pytest.fixture
def engine(postgres: str) -> Iterator[Engine]:
    """A database of this test's own."""
    admin = source_engine(f"{postgres}/postgres")
    with connected(admin, isolation="AUTOCOMMIT") as connection:
        connection.execute(text("DROP DATABASE IF EXISTS shop WITH (FORCE)"))
        connection.execute(text("CREATE DATABASE shop"))
    found = source_engine(f"{postgres}/shop")
    run(
        found,
        "CREATE TABLE orders (id bigint PRIMARY KEY, status text, total numeric(12,2))",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
    )
    yield found
    drop_slot(found, SLOT)


def run(engine: Engine, *statements: str) -> None:
    with connected(engine) as connection:
        for statement in statements:
            connection.execute(text(statement))
        connection.commit()


def table(**changes: Any) -> Table:
    return Table.model_validate({"source": "shop.public.orders", "key": ["id"], "owners": ["team:t"]} | changes)


def lacks(engine: Engine, declared: Table | None = None, *, captured_lsn: int | None = None) -> list[tuple[str, str]]:
    found = inspect(engine, {"orders": declared or table()}, name=SLOT, captured_lsn=captured_lsn)
    return [(f.what, f.action) for f in found.findings]


def test_a_table_that_lacks_nothing_gives_its_columns(engine: Engine) -> None:
    found = inspect(engine, {"orders": table()}, name=SLOT, captured_lsn=None)
    assert found.findings == ()
    assert found.columns["orders"] == (
        Column("id", "long", True),
        Column("status", "string", False),
        Column("total", "decimal(12, 2)", False),
    )


@pytest.mark.parametrize(
    ("break_it", "declared", "what", "action"),
    [
        ("DROP TABLE orders", {}, "there is no such table", "Correct `source`"),
        ("SELECT 1", {"key": ["nr"]}, "key column `nr` does not exist", "id, status, total"),
        (
            "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
            {},
            "no primary key or unique index is on exactly (id)",
            "ADD PRIMARY KEY (id)",
        ),
        (
            "SELECT 1",
            {"key": ["id", "status"]},
            "no primary key or unique index is on exactly (id, status)",
            "own key",
        ),
        (
            "ALTER TABLE orders DROP CONSTRAINT orders_pkey; ALTER TABLE orders ALTER id DROP NOT NULL; "
            "CREATE UNIQUE INDEX ON orders (id)",
            {},
            "key column `id` may be NULL",
            "SET NOT NULL",
        ),
        (
            "ALTER TABLE orders REPLICA IDENTITY DEFAULT",
            {},
            "REPLICA IDENTITY is not FULL",
            "ALTER TABLE public.orders REPLICA IDENTITY FULL",
        ),
        ("ALTER TABLE orders ADD tags text[]", {}, "column `tags` has type text[]", "leave the table out"),
        (
            "SELECT 1",
            {"convergence": {"sums": ["gone"]}},
            "`convergence.sums` names column `gone`",
            "Use some of",
        ),
        (
            "SELECT 1",
            {"convergence": {"sums": ["total"]}},
            "`convergence.sums` names `total`, a decimal(12, 2)",
            "integer columns",
        ),
        (
            "SELECT 1",
            {"convergence": {"distribution": "total"}},
            "`convergence.distribution` names `total`, a numeric(12,2)",
            "text",
        ),
        (
            "ALTER TABLE orders ALTER status TYPE character(5)",
            {"convergence": {"distribution": "status"}},
            "`convergence.distribution` names `status`, a character(5)",
            "varchar",
        ),
        (
            "SELECT 1",
            {"curated": {"contract": ["gone"]}},
            "`curated.contract` names column `gone`",
            "Use some of",
        ),
    ],
)
def test_each_lack_is_named_with_its_cure(
    engine: Engine, break_it: str, declared: dict[str, Any], what: str, action: str
) -> None:
    run(engine, *break_it.split("; "))
    [(found, cure)] = lacks(engine, table(**declared))
    assert what in found
    assert action in cure


@pytest.mark.parametrize("kind", ["inet", "interval", "date", "timestamptz"])
def test_a_distribution_is_counted_only_over_what_every_engine_spells_alike(engine: Engine, kind: str) -> None:
    run(engine, "CREATE TYPE mood AS ENUM ('sad')", f"ALTER TABLE orders ADD v {kind}, ADD w mood, ADD x varchar(9)")
    [(what, _)] = lacks(engine, table(convergence={"distribution": "v"}))
    assert "`convergence.distribution` names `v`" in what
    assert lacks(engine, table(convergence={"distribution": "w"})) == []
    assert lacks(engine, table(convergence={"distribution": "x"})) == []


def test_a_partitioned_table_is_refused_for_its_partitions_are_not_looked_after(engine: Engine) -> None:
    run(
        engine,
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (9)",
        "ALTER TABLE parts REPLICA IDENTITY FULL",
        "ALTER TABLE parts_1 REPLICA IDENTITY FULL",
    )
    [(what, _)] = lacks(engine, table(source="shop.public.parts"))
    assert "it is partitioned" in what
    assert lacks(engine, table(source="shop.public.parts_1")) == []


def test_a_publication_that_hides_changes_is_a_lack_or_is_mended(engine: Engine) -> None:
    run(engine, f"CREATE PUBLICATION {SLOT} FOR TABLE orders WHERE (id > 5) WITH (publish = 'insert')")
    [(what, action)] = lacks(engine)
    assert what == "it does not publish every kind of change"
    run(engine, action.split("`")[1])
    assert lacks(engine) == []
    assert unpublished(engine, SLOT, {"orders": table()}) == {"orders"}  # A row filter hides rows.
    ensure_publication(engine, SLOT, {"orders": table()})
    assert unpublished(engine, SLOT, {"orders": table()}) == set()


def test_a_generated_column_is_left_out_for_logical_decoding_leaves_it_out(engine: Engine) -> None:
    run(engine, "ALTER TABLE orders ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED")
    found = inspect(engine, {"orders": table()}, name=SLOT, captured_lsn=None)
    assert [c.name for c in found.columns["orders"]] == ["id", "status", "total"]


def test_a_slot_that_is_gone_is_a_lack_only_once_capture_has_used_it(engine: Engine) -> None:
    assert lacks(engine) == []
    [(what, action)] = lacks(engine, captured_lsn=1 << 60)
    assert "the slot is gone" in what
    assert "cdc-platform recapture shop" in action


def test_a_slot_that_was_made_anew_is_ahead_of_where_capture_ended(engine: Engine) -> None:
    run(engine, f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    with connected(engine) as connection:
        ended = int(connection.execute(text("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")).scalar_one())
    assert lacks(engine, captured_lsn=ended) == []
    run(engine, "INSERT INTO orders SELECT i FROM generate_series(1, 1000) AS i")  # Passes unseen.
    drop_slot(engine, SLOT)
    run(engine, f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    [(what, action)] = lacks(engine, captured_lsn=ended)
    assert "bytes of WAL after where capture ended" in what
    assert "cdc-platform recapture shop" in action


@pytest.mark.parametrize(
    ("index", "is_key"),
    [
        ("CREATE UNIQUE INDEX ON orders (id) INCLUDE (status)", True),
        ("CREATE UNIQUE INDEX ON orders (id, status)", False),
        ("CREATE UNIQUE INDEX ON orders (id) WHERE total > 0", False),
        ("CREATE UNIQUE INDEX ON orders ((id + 1))", False),
        ("CREATE INDEX ON orders (id)", False),
    ],
)
def test_a_key_is_what_a_whole_unique_index_is_on(engine: Engine, index: str, is_key: bool) -> None:
    run(engine, "ALTER TABLE orders DROP CONSTRAINT orders_pkey", index)
    assert ([] if is_key else ["no primary key or unique index is on exactly (id)"]) == [w for w, _ in lacks(engine)]


def test_the_publication_becomes_exactly_the_declared_tables(engine: Engine) -> None:
    run(engine, "CREATE TABLE items (id int PRIMARY KEY)")
    items = table(source="shop.public.items")
    for declared in ({"o": table()}, {"o": table(), "i": items}, {"i": items}):
        ensure_publication(engine, "p", declared)
        with connected(engine) as connection:
            published = connection.execute(
                text("SELECT tablename FROM pg_publication_tables WHERE pubname = 'p'")
            ).scalars()
            assert set(published) == {t.source_table for t in declared.values()}


def test_a_publication_that_we_may_not_make_says_what_an_admin_has_to_run(engine: Engine, postgres: str) -> None:
    run(engine, "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN PASSWORD 'x'")
    reader = source_engine(f"{postgres}/shop".replace(postgres.split("//")[1].split("@", maxsplit=1)[0], "reader:x"))
    with pytest.raises(ConfigError, match="publication can't be set up") as raised:
        ensure_publication(reader, "p", {"o": table()})
    assert "CREATE PUBLICATION p FOR TABLE public.orders" in raised.value.action
    found = dict(lacks(reader))
    assert found["the user may not replicate"] == "Run `ALTER ROLE <user> WITH REPLICATION` as an admin"
    assert found["the user may not read it"] == "Run `GRANT SELECT ON public.orders TO <user>` as an admin"
    [add] = [action for what, action in found.items() if "does not hold it, and the user may not add it" in what]
    assert f"ALTER PUBLICATION {SLOT} ADD TABLE public.orders" in add
    ensure_publication(engine, SLOT, {"o": table()})
    run(engine, "GRANT SELECT ON orders TO reader", "ALTER ROLE reader REPLICATION")
    assert lacks(reader) == []


def test_a_cut_holds_what_is_committed_and_not_what_runs(engine: Engine) -> None:
    measures = Measures(("id",), "status")
    run(engine, "INSERT INTO orders VALUES (1, 'a', 1), (2, NULL, 1)")
    with connected(engine) as running:
        theirs = running.execute(
            text("INSERT INTO orders VALUES (3, 'b', 1) RETURNING pg_current_xact_id()::text::bigint")
        )
        running_id = int(theirs.scalar_one())
        run(engine, "INSERT INTO orders VALUES (4, 'a', 1)")  # Ends after the other began.
        cut = read_cut(engine, schema="public", table="orders", measures=measures)
        assert (cut.state.rows, dict(cut.state.sums), dict(cut.state.distribution)) == (
            3,
            {"id": 7},
            {"a": 2, None: 1},
        )
        assert not cut.holds(running_id)
        assert cut.holds(running_id + 1)
        running.commit()
    assert not cut.holds(running_id + 2)


def test_a_source_that_does_not_answer_is_unavailable_and_its_password_is_not_shown() -> None:
    engine = source_engine("postgresql+psycopg://me:secret@127.0.0.1:1/shop")
    with pytest.raises(UnavailableError, match=r"postgresql://127\.0\.0\.1:1/shop") as raised:
        inspect(engine, {"orders": table()}, name=SLOT, captured_lsn=None)
    assert "secret" not in str(raised.value)


def test_a_role_that_may_not_emit_a_cut_is_told_what_to_grant(engine: Engine, postgres: str) -> None:
    emit_cut(engine, "one")
    signature = "pg_logical_emit_message(boolean, text, text, boolean)"
    run(engine, f"REVOKE EXECUTE ON FUNCTION {signature} FROM PUBLIC", "DROP ROLE IF EXISTS mute")
    run(engine, "CREATE ROLE mute LOGIN PASSWORD 'x'")
    mute = source_engine(f"{postgres}/shop".replace(postgres.split("//")[1].split("@", maxsplit=1)[0], "mute:x"))
    with pytest.raises(UnavailableError, match="grant EXECUTE on pg_logical_emit_message"):
        emit_cut(mute, "two")


@pytest.fixture
def server_with(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Start a server with settings of the test's own."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(**settings: str) -> Engine:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        made = postgres_service.service(tmp_path / "pg", port, ())
        made.prepare()
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        root = ["setpriv", *made.privileges] if made.privileges else []
        processes.append(subprocess.Popen([*root, *made.command, *options], cwd="/", stderr=subprocess.DEVNULL))
        for _ in range(100):
            if made.ready(processes[-1].pid):
                return source_engine(postgres_service.url(tmp_path / "pg", port) + "/postgres")
            time.sleep(0.1)
        raise AssertionError("the server did not start")

    yield start
    for process in processes:
        process.terminate()
        process.wait()


def test_a_slot_whose_wal_was_removed_is_lost(server_with: Callable[..., Engine]) -> None:
    engine = server_with(max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB")
    run(
        engine,
        "CREATE TABLE orders (id bigint PRIMARY KEY, status text, total numeric(12,2))",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
    )
    run(engine, f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    assert lacks(engine, captured_lsn=1 << 60) == []
    for _ in range(6):
        run(engine, "INSERT INTO orders SELECT coalesce(max(id), 0) + 1 FROM orders", "SELECT pg_switch_wal()")
    with connected(engine, isolation="AUTOCOMMIT") as connection:
        connection.execute(text("CHECKPOINT"))
    [(what, action)] = lacks(engine, captured_lsn=1 << 60)
    assert "the slot is lost" in what
    assert "cdc-platform recapture shop" in action
    assert drop_slot(engine, SLOT)


def test_a_server_without_logical_decoding_is_told_how_to_get_it(server_with: Callable[..., Engine]) -> None:
    [(what, action), *_] = lacks(server_with(wal_level="replica"))
    assert what == "wal_level is replica, logical decoding needs `logical`"
    assert action.startswith("Run `ALTER SYSTEM SET wal_level = 'logical'` and restart")
