"""Each type's values in landing are the source's: through PostgreSQL, Debezium and the sink, by load and by stream.

A stack of its own, without Spark and Dagster. The cases are rows of one table with a column for each type: once loaded,
once inserted while capture runs. What docs/reference/types.md says of values without a home is tried on three tables
that declare other policies.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.lake.catalog import Lake
from cdc_platform.source.postgres import connected, source_engine
from cdc_platform.source.types import HOMES, base, home
from cdc_platform.stack import services as declared
from cdc_platform.stack.control import Stack
from cdc_platform.stack.service import Service
from cdc_platform_tests.builders import live_rows
from cdc_platform_tests.e2e.source_rows import until

pytestmark = pytest.mark.e2e
PROJECT = """
deployment: t
sources: {t: {postgres: {embedded: t}}}
tables:
  kinds: {source: t.public.kinds, key: [id], owners: ["team:t"]}
  strict: {source: t.public.strict, key: [id], owners: ["team:t"], landing: {dead_letters_max_share: 1}}
  loose:
    source: t.public.loose
    key: [id]
    owners: ["team:t"]
    landing: {types: {date: clamp, timestamp: clamp, timestamptz: clamp, numeric: "null", array: "null"}}
  spelled:
    source: t.public.spelled
    key: [id]
    owners: ["team:t"]
    landing: {types: {date: string, timestamp: string, column.tz: string, numeric: string, array: "null"}}
"""
SETUP = """
CREATE EXTENSION vector;
CREATE TYPE mood AS ENUM ('sad', 'ok, well', '{"q');
CREATE TYPE pair AS (a int, b text);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE DOMAIN price AS numeric(12,2);
CREATE DOMAIN positive AS price CHECK (VALUE > 0);
CREATE DOMAIN numbers AS int[];
CREATE DOMAIN place AS pg_lsn;
CREATE TABLE odd (id int PRIMARY KEY, d date, ts timestamp, tz timestamptz, n numeric(12,2), a int[], note text,
                  k int NOT NULL DEFAULT 0);
"""
LOADED, STREAMED = 0, 1000  # Added to a row's number.


@dataclass(frozen=True)
class Kind:
    """A type, values of it as SQL, and the expression that gives what landing holds (by default, of its type)."""

    type: str
    values: tuple[str, ...]
    landed: str = ""
    reads_back: bool = False  # Landing's text is another spelling of the same value.


def kinds(types: str, *values: str, landed: str = "", reads_back: bool = False) -> list[Kind]:
    return [Kind(t.strip(), values, landed, reads_back) for t in types.split(";")]


PRINTED = "CASE WHEN {v} IS NOT NULL THEN format('%s', {v}) END"  # The type's output; a cast to text may differ.
MOMENTS = ("2024-02-29 12:34:56.789012", "1969-12-31 23:59:59.999999", "1582-10-10 01:02:03", "0001-01-01 00:00")
MOMENTS += ("9999-12-31 23:59:59.999999",)
KINDS = [
    *kinds("boolean", "true", "false"),
    *kinds("smallint", "-32768", "32767"),
    *kinds("integer", "-2147483648"),
    *kinds("bigint", "-9223372036854775808", "9223372036854775807"),
    *kinds("oid", "4294967295"),
    *kinds("real", "0.1", "1e-45", "'NaN'", "'Infinity'", "'-Infinity'", landed="{v}::float8"),
    *kinds("double precision", "0.1", "5e-324", "123456789012345678", "'NaN'", "'Infinity'"),
    *kinds("numeric(12,2)", "1.1", "-9999999999.99"),
    *kinds("numeric(38,38)", "1e-38", "-0.99999999999999999999999999999999999999"),
    *kinds("numeric(3,-2)", "99900"),
    *kinds("numeric(2,5)", "0.00099"),
    *kinds("numeric", "1.10", "1e-40", "'NaN'", "'Infinity'", "'-Infinity'", "1e30"),
    *kinds("numeric(39,2)", "1.1", "'NaN'"),
    *kinds("money", "12.34", "-92233720368547758.08", landed="{v}::numeric"),
    *kinds("text; varchar", "''", "'a\"b\\c'", "E'\\t\\n\\u00e9\\U0001F600'", "'NaN'"),
    *kinds("char(5); bpchar", "'ab'", landed=PRINTED),
    *kinds('"char"; name', "'a'"),
    *kinds("json", '\'{"a":  1, "a":2}\'', "'null'"),
    *kinds("jsonb", '\'{"b":  1, "a":2.50}\'', "'null'", "'\"s\"'"),
    *kinds("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
    *kinds("inet", "'192.168.0.1'", "'192.168.0.1/24'", "'::1'", landed=PRINTED),
    *kinds("cidr", "'10.0.0.1/32'", "'2001:db8::/32'"),
    *kinds("macaddr", "'08-00-2B-01-02-03'"),
    *kinds("macaddr8", "'08:00:2b:01:02:03:04:05'"),
    *kinds("bytea", "''", "'\\xdeadbeef00ff'"),
    *kinds("date", *(f"'{m[:10]}'" for m in MOMENTS if "1582" not in m)),
    *kinds("timestamp", *(f"'{m}'" for m in MOMENTS)),
    *kinds("timestamp(0); timestamp(3)", "'2024-02-29 12:34:56.789012'"),
    *kinds("timestamptz", *(f"'{m}+00'" for m in MOMENTS), "'2024-02-29 12:34:56.5+05:30'"),
    *kinds("timestamptz(3)", "'2024-02-29 12:34:56.789012+00'"),
    *kinds("time", "'00:00'", "'12:34:56.789012'", "'23:59:59.999999'", "'24:00'"),
    *kinds("time(0); time(3)", "'12:34:56.7891'", "'24:00'"),
    *kinds("timetz", "'12:34:56.789012+05:30'", "'00:00-02'", landed="({v} AT TIME ZONE 'UTC')::text"),
    *kinds("interval", "'0'", "'-1 year'", "'1 year 2 mons -3 days 04:05:06.789012'", "'36 h'", reads_back=True),
    *kinds("interval day to second(3)", "'1 day -1.5 s'", reads_back=True),
    *kinds("bit", "B'1'", "B'0'"),
    *kinds("bit(3)", "B'101'", "B'001'"),
    *kinds("bit(70)", "(B'1' || repeat('0', 68) || '1')::bit(70)", "repeat('0', 70)::bit(70)"),
    *kinds("int4range; int8range", "'empty'", "'[1,5]'", "'(,)'"),
    *kinds("numrange", "'[1.10,NaN]'"),
    *kinds("daterange; tsrange", "'[2024-01-01,infinity]'"),
    *kinds("tstzrange", "'[2024-07-01 00:00+02,)'"),
    *kinds("int4multirange; nummultirange", "'{[1,5),[7,9)}'", "'{}'"),
    *kinds("span", "'[1.5,2]'"),
    *kinds("mood", "'sad'", "'ok, well'", "'{\"q'"),
    *kinds("pair", "ROW(1, 'a,b')", "ROW(NULL, NULL)"),
    *kinds("price; positive", "1.1"),
    *kinds("numbers", "'{1,2}'"),
    *kinds("place; pg_lsn", "'16/B374D848'"),
    *kinds("tsvector", "to_tsvector('english', 'the quick foxes')"),
    *kinds("tsquery", "'a & b'"),
    *kinds("jsonpath", "'$.a'"),
    *kinds("point", "'(1,2.5)'", "'(NaN,Infinity)'", "'(1e15,-1e-05)'", "'(123456789012345.6,1e300)'"),
    *kinds("box; lseg", "'(1,2),(3,4.5)'", reads_back=True),
    *kinds("line", "'{1,2,3}'", reads_back=True),
    *kinds("path; polygon", "'((1,2),(3,4),(5,6))'", reads_back=True),
    *kinds("circle", "'<(1,2),3>'", reads_back=True),
    *kinds("xid; cid", "'4294967295'"),
    *kinds("xid8", "'18446744073709551615'"),
    *kinds("tid", "'(1,2)'"),
    *kinds("regclass", "'pg_class'"),
    *kinds("regtype", "'int'"),
    *kinds("txid_snapshot; pg_snapshot", "'10:20:10,14'"),
    *kinds("vector(3); halfvec(3)", "'[1,2.5,3]'", landed="{v}::vector::real[]"),
    *kinds("int[]; smallint[]; bigint[]; oid[]", "'{}'", "'{1,NULL,3}'"),
    *kinds("boolean[]", "'{t,NULL}'"),
    *kinds("double precision[]", "'{0.1,NaN,-Infinity,NULL}'"),
    *kinds("real[]", "'{0.1,NaN}'", landed="{v}::float8[]"),
    *kinds("numeric[]", "'{1.10,NULL}'", landed="{v}::text[]"),
    *kinds("numeric(4,1)[]", "'{1.1,NULL}'"),
    *kinds("text[]; varchar(9)[]", "'{}'", '\'{a,"b,c",NULL,"NULL",""}\'', "'{NULL}'"),
    *kinds("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}'", landed="{v}::text[]"),
    *kinds("jsonb[]", "ARRAY['{\"a\":1}'::jsonb, NULL]", landed="{v}::text[]"),
    *kinds("bytea[]", "ARRAY['\\x01ff'::bytea, NULL]"),
    *kinds("mood[]", "'{sad,\"ok, well\"}'", landed="{v}::text[]"),
    *kinds("date[]", "'{2024-01-01,NULL}'"),
    *kinds("timestamp[]", "'{2024-01-01 00:00:00.123456}'"),
    *kinds("timestamptz[]", "'{2024-01-01 00:00:00.123456+02}'"),
    *kinds("cidr[]; macaddr[]; int4range[]", "'{NULL}'", landed="{v}::text[]"),
    *kinds(
        "inet[]",
        "'{10.0.0.1,10.0.0.0/8,NULL}'",
        landed="CASE WHEN {v} IS NOT NULL THEN ARRAY['10.0.0.1', '10.0.0.0/8', NULL] END",
    ),
    *kinds("macaddr8[]", "'{08:00:2b:01:02:03:04:05}'", landed="{v}::text[]"),
    *kinds("tstzrange[]; tsrange[]; daterange[]", "'{\"[2024-01-01,)\"}'", landed="{v}::text[]"),
    *kinds("numrange[]; int8range[]", "'{\"[1,2)\",NULL}'", landed="{v}::text[]"),
]
NAMES = [f"c{n}" for n in range(len(KINDS))]
ROWS = max(len(k.values) for k in KINDS) + 1  # The last row is NULL in every column.

# What has no home, by column: SQL, then what each policy makes of it.
ODD: Mapping[str, list[tuple[str, Any, str]]] = {
    "d": [
        ("'infinity'", date.max, "infinity"),
        ("'-infinity'", date.min, "-infinity"),
        ("'10000-01-01'", date.max, "10000-01-01"),
        ("'5874897-12-31'", date.max, "5874897-12-31"),
    ],
    "ts": [
        ("'infinity'", datetime.max, "infinity"),
        ("'-infinity'", datetime.min, "-infinity"),
        ("'0044-03-15 10:00:00.5 BC'", datetime.min, "0044-03-15 10:00:00.5 BC"),
        ("'294246-01-01'", datetime.max, "294246-01-01 00:00:00"),
    ],
    "tz": [
        ("'infinity'", datetime.max.replace(tzinfo=UTC), "infinity"),
        ("'-infinity'", datetime.min.replace(tzinfo=UTC), "-infinity"),
        ("'0001-12-31 23:59:59+00 BC'", datetime.min.replace(tzinfo=UTC), "0001-12-31 23:59:59+00 BC"),
        ("'294276-12-31 23:59:59.999999+00'", datetime.max.replace(tzinfo=UTC), "294276-12-31 23:59:59.999999+00"),
    ],
    "n": [("'NaN'", None, "NaN")],
    "a": [("'{{1,2},{3,4}}'", None, ""), ("'{NULL}'", None, "")],
}
ODD_ROWS = [(column, *case) for column, cases in ODD.items() for case in cases]


def only_what_lands(deployment: Deployment, ports: Mapping[str, int]) -> tuple[Service, ...]:
    wanted = {"postgres", f"{declared.CAPTURE}t", "sink"}
    return tuple(s for s in declared.services(deployment, ports) if s.name in wanted)


@dataclass(frozen=True)
class Source:
    """The source, and the landing tables that it fills."""

    deployment: Deployment
    engine: Engine

    def run(self, sql: str) -> None:
        with connected(self.engine) as connection:
            connection.execution_options(no_parameters=True).exec_driver_sql(sql)
            connection.commit()

    def rows(self, sql: str, **parameters: Any) -> dict[int, tuple[Any, ...]]:
        with connected(self.engine) as connection:
            connection.execute(text("SET TimeZone = 'UTC'"))
            return {r[0]: tuple(r[1:]) for r in connection.execute(text(sql), parameters)}

    def landed(self, table: str) -> dict[int, dict[str, Any]]:
        found = Lake(CATALOG, self.deployment.catalog_properties).load(f"landing.{table}")
        rows = [] if found is None else live_rows(found, ["id"])
        assert len({r["id"] for r in rows}) == len(rows), "a key stands twice"
        return {r["id"]: r for r in rows}

    def letters(self, table: str) -> dict[str, tuple[str, str]]:
        """Reason and detail of each dead letter, by its key."""
        found = Lake(CATALOG, self.deployment.catalog_properties).load(f"dead_letters.{table}")
        rows = [] if found is None else live_rows(found, ["log_offset"])
        return {r["key"]: (r["reason"], r["detail"]) for r in rows}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """Everything is loaded once and streamed once."""
    project: Path = tmp_path_factory.mktemp("types")
    (project / "tables.yaml").write_text(PROJECT)
    stack = Stack(Deployment.load(project), only_what_lands)
    stack.launch(bound=False, warn=print)
    try:
        stack.start("postgres", tell=lambda _name, _seconds: None)
        deployment = Deployment.load(project)
        made = Source(deployment, source_engine(deployment.source_url("t")))
        made.run(SETUP + _kinds_sql() + _odd_sql(LOADED))
        stack.start(f"{declared.CAPTURE}t", "sink", tell=lambda _name, _seconds: None)
        for table in ("kinds", "loose", "spelled"):
            until(lambda table=table: len(made.landed(table)) > 0, f"{table} was not loaded")
        made.run(
            f"INSERT INTO kinds SELECT id + {STREAMED}, touched, {', '.join(NAMES)} FROM kinds;"
            f"INSERT INTO kinds (id, with_default) VALUES ({STREAMED - 1}, NULL), ({STREAMED - 2}, DEFAULT);"
            "UPDATE kinds SET touched = 1" + _odd_sql(STREAMED, make=False)
        )
        until(lambda: sum(r["touched"] or 0 for r in made.landed("kinds").values()) == 2 * ROWS + 2, "kinds")
        for table in ("loose", "spelled"):
            until(lambda table=table: len(made.landed(table)) == 2 * len(ODD_ROWS) + 2, table)
        yield made
    finally:
        stack.stop()


def _kinds_sql() -> str:
    columns = ", ".join(f"{name} {kind.type}" for name, kind in zip(NAMES, KINDS, strict=True))
    made = (
        f"CREATE TABLE kinds (id int PRIMARY KEY, touched int, {columns}, with_default text DEFAULT 'full', "
        "twice int GENERATED ALWAYS AS (id * 2) STORED); ALTER TABLE kinds REPLICA IDENTITY FULL;"
    )
    for row in range(ROWS):
        values = [k.values[row] if row < len(k.values) else "NULL" for k in KINDS]
        made += f"INSERT INTO kinds (id, {', '.join(NAMES)}) VALUES ({row}, {', '.join(values)});"
    return made


def _odd_sql(offset: int, *, make: bool = True) -> str:
    """The rows of ODD, and one that is all well, in each of the three tables."""
    sql = ";"
    for table in ("strict", "loose", "spelled"):
        if make:
            sql += f"CREATE TABLE {table} (LIKE odd INCLUDING ALL); ALTER TABLE {table} REPLICA IDENTITY FULL;"
            sql += f"CREATE UNIQUE INDEX {table}_k ON {table} (k, id);"
        for number, (column, value, *_) in enumerate(ODD_ROWS, offset + 1):
            sql += f"INSERT INTO {table} (id, {column}) VALUES ({number}, {value});"
        sql += (
            f"INSERT INTO {table} VALUES ({offset}, '2024-02-29', '2024-02-29', '2024-02-29 00:00+00', 1.1, '{{1}}');"
        )
    return sql


def _same(found: Any, wanted: Any) -> bool:
    return repr(found) == repr(wanted) or found == wanted  # NaN is equal to nothing.


@pytest.fixture(scope="module")
def landed(source: Source) -> dict[int, dict[str, Any]]:
    return source.landed("kinds")


@pytest.mark.parametrize(("name", "kind"), list(zip(NAMES, KINDS, strict=True)), ids=[k.type for k in KINDS])
def test_each_value_lands_as_the_source_has_it(
    source: Source, landed: dict[int, dict[str, Any]], name: str, kind: Kind
) -> None:
    is_text = any(isinstance(row[name], str) for row in landed.values())
    expression = kind.landed.format(v=name) or (f"{name}::text" if is_text else name)
    for number, (wanted,) in source.rows(f"SELECT id, {expression} FROM kinds").items():
        found = landed[number][name]
        if kind.reads_back and found is not None:
            again = source.rows("SELECT 0, CAST(CAST(:v AS text) AS " + kind.type + ")::text", v=found)
            found = again[0][0]
        assert _same(_in_utc(found), _in_utc(wanted)), (number, found, wanted)


def _in_utc(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_utc(v) for v in value]
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def test_every_type_with_a_home_is_among_the_cases(source: Source) -> None:
    kinds = source.rows(
        "SELECT attnum, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'kinds'::regclass "
        "AND attnum > 0"
    )
    tried = {base(t) for (t,) in kinds.values()} | {"numeric(p,s)", "enum", "composite", "range", "multirange"}
    not_at_hand = {"citext", "xml"}
    assert {n for h in HOMES for n in h.names} - tried == not_at_hand
    assert home("integer[]") is not None


def test_a_generated_column_and_an_explicit_null_are_what_the_source_has(landed: dict[int, dict[str, Any]]) -> None:
    assert {n: (r["twice"], r["with_default"]) for n, r in landed.items()} == {
        n: (2 * n, None if n == STREAMED - 1 else "full") for n in landed
    }


@pytest.mark.parametrize("offset", [LOADED, STREAMED])
@pytest.mark.parametrize(("table", "of_case"), [("loose", 2), ("spelled", 3)])
def test_a_value_without_a_home_is_what_its_policy_says(source: Source, table: str, of_case: int, offset: int) -> None:
    landed = source.landed(table)
    for number, case in enumerate(ODD_ROWS, offset + 1):
        column, wanted = case[0], case[of_case] or None
        assert _same(_in_utc(landed[number][column]), wanted), (case, landed[number])
    well = [landed[offset][c] for c in ODD]
    if table == "spelled":
        assert well == ["2024-02-29", "2024-02-29 00:00:00", "2024-02-29 00:00:00+00", "1.10", [1]]


@pytest.mark.parametrize("offset", [LOADED, STREAMED])
def test_without_a_policy_it_is_a_dead_letter_that_names_the_column_and_no_value(source: Source, offset: int) -> None:
    until(lambda: offset in source.landed("strict"), "strict")
    letters = source.letters("strict")
    for number, (column, *_) in enumerate(ODD_ROWS, offset + 1):
        reason, detail = letters[f'{{"id": {number}}}']
        assert (reason, detail.split(":")[0]) == ("no_home", f"column `{column}`")
    assert [n for n in source.landed("strict") if n - offset in range(1, STREAMED // 2)] == []


@pytest.mark.parametrize("identity", ["DEFAULT", "USING INDEX strict_k"])
def test_an_update_without_an_unchanged_large_value_is_a_dead_letter(source: Source, identity: str) -> None:
    number = 2 * STREAMED + len(identity)
    large = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) AS i)"
    source.run(
        "ALTER TABLE strict ALTER note SET STORAGE EXTERNAL;"
        f"INSERT INTO strict (id, note) VALUES ({number}, {large});"
        f"UPDATE strict SET n = 1 WHERE id = {number};"  # FULL: it comes with the row before.
        f"ALTER TABLE strict REPLICA IDENTITY {identity};"
        f"UPDATE strict SET n = 2 WHERE id = {number};"
        "ALTER TABLE strict REPLICA IDENTITY FULL;"
        f"INSERT INTO strict (id) VALUES ({number + 500})"
    )
    until(lambda: number + 500 in source.landed("strict"), "strict")
    [(note,)] = source.rows(f"SELECT 0, note FROM strict WHERE id = {number}").values()
    landed = source.landed("strict")[number]
    assert (landed["note"] == note, str(landed["n"])) == (True, "1.00")
    reason, detail = source.letters("strict")[f'{{"id": {number}}}']
    assert (reason, detail.split(":")[0]) == ("unavailable", "column `note`")
