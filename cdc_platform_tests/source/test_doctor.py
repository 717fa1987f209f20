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
from cdc_platform.registry.model import Table
from cdc_platform.source.doctor import drop_slot, ensure_publication, inspect, inspect_tables, unpublished
from cdc_platform.source.messages import emit_cut
from cdc_platform.source.postgres import connected, source_engine
from cdc_platform.source.state import Measures, read_cut
from cdc_platform.source.types import SourceColumn
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
        SourceColumn("id", "bigint", True, number=1),
        SourceColumn("status", "text", False, number=2),
        SourceColumn("total", "numeric(12,2)", False, number=3),
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
        (
            "ALTER TABLE orders ADD waits interval[]",
            {},
            "column `waits` has type interval[], which has no home in landing: Debezium leaves it out of its events",
            "`ALTER TABLE public.orders ALTER waits TYPE text`, or leave the table out",
        ),
        (
            "CREATE DOMAIN price AS numeric(9,2); ALTER TABLE orders ADD prices price[]",
            {},
            "column `prices` has type price[] (domain[]), which has no home in landing: Debezium does not know the",
            "leave the table out",
        ),
        (
            "ALTER TABLE orders ADD __cdc_op text",
            {},
            "column `__cdc_op` has a name that the platform keeps",
            "Rename it at the source",
        ),
        (
            "SELECT 1",
            {"landing": {"types": {"column.total": "clamp"}}},
            "column `total` has type numeric(12,2), and policy `clamp` is declared for it",
            "Correct `column.total`: allowed are: error, null, string",
        ),
        (
            "ALTER TABLE orders ADD twice bigint GENERATED ALWAYS AS (id * 2) VIRTUAL",
            {},
            "column `twice` is generated and VIRTUAL",
            "Make it STORED (`ALTER TABLE public.orders DROP twice`",
        ),
        (
            f"ALTER TABLE orders ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED; CREATE PUBLICATION {SLOT} FOR "
            "TABLE orders WITH (publish_via_partition_root = true)",
            {},
            f"publication {SLOT} leaves generated columns out",
            f"Run `ALTER PUBLICATION {SLOT} SET (publish_generated_columns = stored)`",
        ),
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


# Each kind of lack of a table: whether one that is captured already may go on with it.
GOES_ON: list[tuple[str, dict[str, Any], bool]] = [
    ("DROP TABLE orders", {}, False),
    ("ALTER TABLE orders REPLICA IDENTITY DEFAULT", {}, False),
    ("ALTER TABLE orders DROP CONSTRAINT orders_pkey", {}, False),  # Two rows of the source would be one in landing.
    ("SELECT 1", {"key": ["id", "status"]}, False),
    ("ALTER TABLE orders ADD waits interval[]", {}, False),
    ("ALTER TABLE orders ADD bits bit[]", {}, False),  # The engine would end on its first value.
    ("ALTER TABLE orders ADD twice bigint GENERATED ALWAYS AS (id * 2) VIRTUAL", {}, False),  # It refuses updates.
    (
        f"ALTER TABLE orders ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED; CREATE PUBLICATION {SLOT} FOR "
        "TABLE orders WITH (publish_via_partition_root = true)",
        {},
        False,
    ),
    (
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey; ALTER TABLE orders ADD k jsonb PRIMARY KEY",
        {"key": ["k"]},
        False,
    ),
    (
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey; ALTER TABLE orders ADD k date PRIMARY KEY",
        {"key": ["k"], "landing": {"types": {"column.k": "null"}}},
        False,  # Two keys would become one.
    ),
    ("SELECT 1", {"key": ["nr"]}, True),
    ("ALTER TABLE orders DROP id", {}, True),  # The sink stops at the marker in the log.
    (
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey; ALTER TABLE orders ALTER id DROP NOT NULL; "
        "CREATE UNIQUE INDEX ON orders (id)",
        {},
        True,  # A dead letter.
    ),
    ("ALTER TABLE orders ADD __cdc_op text", {}, True),
    ("SELECT 1", {"landing": {"types": {"column.total": "clamp"}}}, True),
    ("SELECT 1", {"convergence": {"sums": ["gone"]}}, True),
    ("SELECT 1", {"convergence": {"distribution": "total"}}, True),
    ("SELECT 1", {"curated": {"contract": ["gone"]}}, True),
]


@pytest.mark.parametrize(("break_it", "declared", "goes_on"), GOES_ON)
def test_each_lack_names_its_table_and_whether_a_captured_one_may_go_on(
    engine: Engine, break_it: str, declared: dict[str, Any], goes_on: bool
) -> None:
    run(engine, *break_it.split("; "), "CREATE TABLE good (id int PRIMARY KEY)")
    run(engine, "ALTER TABLE good REPLICA IDENTITY FULL")
    tables = {"good": table(source="shop.public.good"), "bad": table(**declared)}
    found = inspect(engine, tables, name=SLOT, captured_lsn=None).findings
    assert {f.table for f in found} == {"bad"}
    assert all(f.log_stays_true for f in found) is goes_on
    assert inspect_tables(engine, tables, name=SLOT) == found


def test_a_lack_of_the_server_names_no_table(engine: Engine) -> None:
    run(engine, "CREATE TYPE nothing AS ENUM ()")
    [found] = inspect(engine, {"orders": table()}, name=SLOT, captured_lsn=None).findings
    assert found.table is None
    assert inspect_tables(engine, {"orders": table()}, name=SLOT) == ()


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


def test_a_stored_generated_column_is_captured_and_published_so_that_updates_go_on(engine: Engine) -> None:
    run(engine, "ALTER TABLE orders ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED")
    found = inspect(engine, {"orders": table()}, name=SLOT, captured_lsn=None)
    assert [c.name for c in found.columns["orders"]] == ["id", "status", "total", "twice"]
    ensure_publication(engine, SLOT, {"orders": table()})
    assert lacks(engine) == []
    run(engine, "INSERT INTO orders (id) VALUES (1)", "UPDATE orders SET status = 'x'", "DELETE FROM orders")


def test_a_domain_is_its_base_type_and_kinds_of_types_are_named_by_kind(engine: Engine) -> None:
    run(
        engine,
        "CREATE SCHEMA more",
        "CREATE TYPE more.mood AS ENUM ('sad')",
        "CREATE TYPE more.pair AS (a int, b text)",
        "CREATE TYPE more.span AS RANGE (subtype = float8)",
        "CREATE DOMAIN more.price AS numeric(9,2)",
        "CREATE DOMAIN more.positive AS more.price CHECK (VALUE > 0)",
        "CREATE DOMAIN more.moment AS timestamp(3)",
        "CREATE DOMAIN more.numbers AS int[]",
        'CREATE SCHEMA "x.y"',
        'CREATE DOMAIN "x.y".label AS varchar(9)',
        "CREATE EXTENSION vector SCHEMA more",
        "ALTER TABLE orders ADD a more.mood, ADD b more.mood[], ADD c more.pair, ADD d more.span, ADD e int4range, "
        "ADD f int4multirange, ADD g more.price, ADD h more.positive, ADD i more.moment, ADD j more.numbers, "
        'ADD k more.vector(3), ADD l "x.y".label, ADD m numeric(4,1)[], ADD n "char"',
    )
    found = inspect(engine, {"orders": table()}, name=SLOT, captured_lsn=None)
    assert found.findings == ()
    assert {c.name: c.type for c in found.columns["orders"][3:]} == {
        "a": "enum",
        "b": "enum[]",
        "c": "composite",
        "d": "range",
        "e": "int4range",
        "f": "multirange",
        "g": "numeric(9,2)",
        "h": "numeric(9,2)",
        "i": "timestamp(3) without time zone",
        "j": "integer[]",
        "k": "vector(3)",
        "l": "character varying(9)",
        "m": "numeric(4,1)[]",
        "n": '"char"',
    }


@pytest.mark.parametrize(
    ("made", "what", "action"),
    [
        (
            ["CREATE TYPE mood AS ENUM ('sad')", "CREATE SCHEMA aside", "CREATE DOMAIN aside.feeling AS mood"],
            "domain aside.feeling is an enumeration without labels of its own",
            "DROP DOMAIN aside.feeling",
        ),
        (["CREATE TYPE nothing AS ENUM ()"], "type nothing is an enumeration without labels", "DROP TYPE nothing"),
    ],
)
def test_a_type_that_ends_debezium_at_its_start_is_named_though_no_table_uses_it(
    engine: Engine, made: list[str], what: str, action: str
) -> None:
    run(engine, *made)
    [(found, cure)] = lacks(engine)
    assert what in found
    assert action in cure
    run(engine, cure.split("`")[1])
    assert lacks(engine) == []


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("double precision", "equal floats may be spelled in two ways"),
        ("numeric", "1.0 and 1.00"),
        ("interval", "1 day and 24 hours"),
        ("jsonb", "no one spelling"),
        ("int[]", "this is a structure"),
        ("numeric(9,2)", None),
        ("character(3)", None),
        ("uuid", None),
        ("time", None),
    ],
)
def test_a_key_has_one_spelling_for_each_value(engine: Engine, kind: str, why: str | None) -> None:
    run(engine, "ALTER TABLE orders DROP CONSTRAINT orders_pkey", f"ALTER TABLE orders ADD k {kind} PRIMARY KEY")
    found = [what for what, _ in lacks(engine, table(key=["k"]))]
    assert len(found) == (why is not None)
    assert all("key column `k` has type" in what and why is not None and why in what for what in found)


@pytest.mark.parametrize(
    ("types", "lacking"),
    [
        ({"date": "clamp"}, True),
        ({"column.k": "null"}, True),
        ({"date": "clamp", "column.k": "error"}, False),
        ({"date": "string"}, False),
        ({"timestamp": "clamp"}, False),
    ],
)
def test_a_policy_never_makes_one_key_of_two(engine: Engine, types: dict[str, str], lacking: bool) -> None:
    run(engine, "ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD k date PRIMARY KEY")
    found = [what for what, _ in lacks(engine, table(key=["k"], landing={"types": types}))]
    assert [("two keys would become one" in what) for what in found] == [True] * lacking


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
    ("landing", "what"),
    [
        ({"partition_by": ["nope"]}, "`landing.partition_by` names column `nope`, which does not exist"),
        ({"partition_by": ["day(status)"]}, "`landing.partition_by` has day(status), and `status` is a text"),
        ({"partition_by": ["bucket(4, id)", "truncate(1, status)"]}, None),
        ({"types": {"column.nope": "null"}}, "`landing.types` names column `nope`, which does not exist"),
    ],
)
def test_columns_that_landings_policy_names_are_looked_up(
    engine: Engine, landing: dict[str, Any], what: str | None
) -> None:
    assert [w for w, _ in lacks(engine, table(landing=landing))] == ([what] if what else [])


@pytest.mark.parametrize(
    ("index", "is_key"),
    [
        ("CREATE UNIQUE INDEX ON orders (id) INCLUDE (status)", True),
        ("CREATE UNIQUE INDEX ON orders (id, status)", False),
        ("CREATE UNIQUE INDEX ON orders (id) WHERE total > 0", False),
        ("CREATE UNIQUE INDEX ON orders ((id + 1))", False),
        ("CREATE INDEX ON orders (id)", False),
        # Within one transaction two rows may exchange such a key, and no order of their events tells which stays.
        ("ALTER TABLE orders ADD UNIQUE (id) DEFERRABLE", False),
    ],
)
def test_a_key_is_what_a_whole_unique_index_is_on(engine: Engine, index: str, is_key: bool) -> None:
    run(engine, "ALTER TABLE orders DROP CONSTRAINT orders_pkey", index)
    found = [what for what, _ in lacks(engine)]
    assert len(found) == (not is_key)
    assert all(
        what.startswith("no primary key or unique index is on exactly (id), or it is DEFERRABLE") for what in found
    )


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


def test_what_another_has_published_may_stay_published_while_it_is_left_out(engine: Engine, postgres: str) -> None:
    """But not what is declared no more: it could be declared again, and nothing would tell of the time between."""
    run(engine, "DROP ROLE IF EXISTS publishes", "CREATE ROLE publishes LOGIN PASSWORD 'x'")
    reader = source_engine(f"{postgres}/shop".replace(postgres.split("//")[1].split("@", maxsplit=1)[0], "publishes:x"))
    run(engine, "CREATE TABLE items (id int PRIMARY KEY)")
    items = table(source="shop.public.items")
    ensure_publication(engine, "p", {"o": table(), "i": items})
    ensure_publication(reader, "p", {"o": table()}, left_out=[items])
    assert unpublished(engine, "p", {"i": items}) == set()
    with pytest.raises(ConfigError, match="publication can't be set up"):
        ensure_publication(reader, "p", {"o": table()})
    ensure_publication(engine, "p", {"o": table()}, left_out=[items])
    assert unpublished(engine, "p", {"i": items}) == {"i"}
    with pytest.raises(ConfigError, match="publication can't be set up"):
        ensure_publication(reader, "p", {"o": table(), "i": items})


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
