"""What capture needs of a PostgreSQL source, looked up before Debezium starts: each lack with its cure.

Belongs here: the look-ups, the publication that we own, the slot's health. Does not: capturing (`capture`).
Rules: pgoutput needs `wal_level=logical`; REPLICA IDENTITY FULL gives updates and deletes their whole row before,
which convergence and a changed key need; a slot that is lost or gone after a capture means that changes may have
passed unseen, so only a new initial load makes the table whole again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from cdc_platform.errors import ConfigError
from cdc_platform.registry.model import Table
from cdc_platform.source.columns import CatalogColumn, read_columns
from cdc_platform.source.postgres import address, connected
from cdc_platform.source.types import SourceColumn, base, home, iceberg_type, policy_of, refusal

# A slot is confirmed only after the offset is stored, so it should never be ahead of it. The allowance is a guess, not
# a measurement: it keeps the slot's own first position, near the initial load's, from being taken for a gap. A slot
# made anew within these bytes is not noticed.
_AHEAD_BYTES_MAX = 1024
# PostgreSQL, the change log and Spark spell values of these types alike. Not so a date, a blank-padded character(n),
# an inet or an interval.
_MOMENTS = {"timestamp without time zone", "timestamp with time zone"}
# Which types Iceberg's transforms take (spec, "Partition Transforms"), of those that can have a home.
_TRANSFORMS = {
    "year": {"date", *_MOMENTS},
    "month": {"date", *_MOMENTS},
    "day": {"date", *_MOMENTS},
    "hour": _MOMENTS,
    "truncate": {"smallint", "integer", "bigint", "numeric", "text", "character varying", "uuid", "bytea", "enum"},
    "bucket": {
        *("smallint", "integer", "bigint", "numeric", "text", "character varying", "uuid", "bytea", "enum", "date"),
        *_MOMENTS,
    },
}
_SPELT_ALIKE = {"text", "name", "enum", "character varying", "uuid", "smallint", "integer", "bigint", "boolean"}
# Debezium reads every type of the database at its start, and ends on one that is an enumeration without labels of its
# own (a NullPointerException; seen, 3.6.3).
_DEADLY_TYPES = """
SELECT t.oid::regtype::text AS name, t.typtype = 'd' AS is_domain FROM pg_type t
WHERE t.typcategory = 'E' AND NOT EXISTS (SELECT 1 FROM pg_enum e WHERE e.enumtypid = t.oid) ORDER BY 1
"""
_STORED, _VIRTUAL = "s", "v"  # PostgreSQL's attgenerated.
_GENERATED_PUBLISHED_FROM = 180_000  # server_version_num.
_TABLE = """
SELECT c.oid, c.relkind = 'p' AS partitioned, c.relreplident AS replica_identity,
       has_table_privilege(c.oid, 'SELECT') AS readable, pg_has_role(c.relowner, 'USAGE') AS owned,
       EXISTS (SELECT 1 FROM pg_publication_tables p WHERE p.pubname = :publication
               AND p.schemaname = n.nspname AND p.tablename = c.relname
               AND p.rowfilter IS NULL) AS published
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relname = :table AND c.relkind IN ('r', 'p')
"""
_UNIQUE = """
SELECT array_agg(a.attname ORDER BY a.attname)::text[] AS columns
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE n.nspname = :schema AND c.relname = :table AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
      AND i.indexprs IS NULL AND i.indimmediate
GROUP BY i.indexrelid
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that capture needs and the source does not give.

    `log_stays_true` where a table that is captured already may go on with it: each of its changes still comes to the
    change log whole and as it was, and landing stops by itself, or keeps dead letters, where it can't follow. It is
    said only where that was read in the code or seen; a table that is left out instead loses nothing but time.
    """

    where: str
    what: str
    action: str
    table: str | None = None  # Its name in tables.yaml; None: all of the source's tables are concerned.
    log_stays_true: bool = False

    def as_error(self) -> ConfigError:
        """As the error that stops capture."""
        return ConfigError(self.what, where=self.where, action=self.action)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found: the columns of each table, and all that is lacking."""

    columns: Mapping[str, tuple[SourceColumn, ...]]
    findings: tuple[Finding, ...]


def inspect(engine: Engine, tables: Mapping[str, Table], *, name: str, captured_lsn: int | None) -> Inspection:
    """Look up everything. `name` is the slot's and the publication's.

    `captured_lsn` is the WAL byte position that an earlier capture had come to (its stored offset), None before one.

    Raises UnavailableError when the source does not answer.
    """
    columns: dict[str, tuple[SourceColumn, ...]] = {}
    findings: list[Finding] = []
    with connected(engine) as connection:
        findings += _server(connection, engine, name)
        for table_name, table in tables.items():
            columns[table_name], lacking = _table(connection, table_name, table, publication=name)
            findings += [replace(one, table=table_name) for one in lacking]
        for source in sorted({table.source_name for table in tables.values()}):
            findings += _slot(connection, engine, name, captured_lsn, source)
    return Inspection(columns, tuple(findings))


def inspect_tables(engine: Engine, tables: Mapping[str, Table], *, name: str) -> tuple[Finding, ...]:
    """What the tables alone lack: cheap, and right while capture runs (the slot then moves under whoever looks)."""
    with connected(engine) as connection:
        return tuple(
            replace(one, table=table_name)
            for table_name, table in tables.items()
            for one in _table(connection, table_name, table, publication=name)[1]
        )


def _server(connection: Connection, engine: Engine, slot: str) -> list[Finding]:
    where, findings = address(engine), list[Finding]()
    level = connection.execute(text("SHOW wal_level")).scalar_one()
    if level != "logical":
        findings.append(
            Finding(
                where,
                f"wal_level is {level}, logical decoding needs `logical`",
                "Run `ALTER SYSTEM SET wal_level = 'logical'` and restart PostgreSQL",
            )
        )
    may = connection.execute(
        text("SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")
    ).scalar_one()
    if not may:
        findings.append(
            Finding(where, "the user may not replicate", "Run `ALTER ROLE <user> WITH REPLICATION` as an admin")
        )
    partial = connection.execute(
        text(
            "SELECT 1 FROM pg_publication WHERE pubname = :p AND NOT (pubinsert AND pubupdate AND pubdelete AND "
            "pubtruncate)"
        ),
        {"p": slot},
    ).scalar_one_or_none()
    if partial:
        findings.append(
            Finding(
                f"{where}, publication {slot}",
                "it does not publish every kind of change",
                f"Run `ALTER PUBLICATION {slot} SET (publish = 'insert, update, delete, truncate')`",
            )
        )
    for row in connection.execute(text(_DEADLY_TYPES)):
        findings.append(
            Finding(
                where,
                f"{'domain' if row.is_domain else 'type'} {row.name} is an enumeration without labels of its own: "
                "Debezium ends at its start on such a type, whichever table uses it",
                f"Run `DROP DOMAIN {row.name}` once its columns have the enumeration's own type"
                if row.is_domain
                else f"Run `DROP TYPE {row.name}`, or give it a label",
            )
        )
    free = connection.execute(
        text(
            "SELECT current_setting('max_replication_slots')::int - count(*) FILTER (WHERE slot_name <> :s) "
            "FROM pg_replication_slots"
        ),
        {"s": slot},
    ).scalar_one()
    if free < 1:
        findings.append(
            Finding(where, "every replication slot is taken", "Drop an unused one or raise max_replication_slots")
        )
    return findings


def _table(
    connection: Connection, name: str, table: Table, *, publication: str
) -> tuple[tuple[SourceColumn, ...], list[Finding]]:
    where = f"{table.source} (tables.yaml: tables.{name})"
    names = {"schema": table.source_schema, "table": table.source_table}
    quoted = _quoted(connection, table)
    found = connection.execute(text(_TABLE), names | {"publication": publication}).mappings().one_or_none()
    if found is None:
        lack = Finding(where, "there is no such table", "Correct `source`, or create the table")
        return (), [lack]
    findings: list[Finding] = []
    rows = read_columns(connection, found["oid"])
    columns = {row.column.name: row.column for row in rows}
    for row in rows:
        findings += _column(where, quoted, row)
        findings += _policy(where, table, row.column)
    if any(row.generated == _STORED for row in rows):
        findings += _publishes_generated(connection, where, publication)
    findings += _key(connection, where, quoted, table, rows)
    findings += _declared(where, table, columns)
    if found["partitioned"]:
        lack = "it is partitioned: its partitions' replica identities and truncates are not looked after yet"
        findings.append(Finding(where, lack, "Declare the partitions as tables of their own, or leave it out"))
    if not found["readable"]:
        findings.append(
            Finding(
                where,
                "the user may not read it",
                f"Run `GRANT SELECT ON {quoted} TO <user>` as an admin",
                log_stays_true=True,  # The stream needs no SELECT.
            )
        )
    if not (found["published"] or found["owned"]):
        findings.append(
            Finding(
                where,
                f"publication {publication} does not hold it, and the user may not add it",
                f"Run as an admin `ALTER PUBLICATION {publication} ADD TABLE {quoted}` (or `CREATE PUBLICATION "
                f"{publication} FOR TABLE ... WITH (publish_via_partition_root = true)` with all tables of the source)",
            )
        )
    if found["replica_identity"] != "f":
        findings.append(
            Finding(
                where,
                "REPLICA IDENTITY is not FULL, so updates and deletes come without their row before",
                f"Run `ALTER TABLE {quoted} REPLICA IDENTITY FULL`",
            )
        )
    return tuple(columns.values()), findings


def _column(where: str, quoted: str, row: CatalogColumn) -> list[Finding]:
    """What keeps one column from being captured as it is."""
    column, kind = row.column.name, row.column.type
    findings: list[Finding] = []
    if column.startswith("__cdc_"):
        findings.append(
            Finding(
                where,
                f"column `{column}` has a name that the platform keeps",
                "Rename it at the source",
                log_stays_true=True,
            )
        )
    if home(kind) is None:
        through = "" if kind == row.written else f" ({kind})"
        findings.append(
            Finding(
                where,
                f"column `{column}` has type {row.written}{through}, which has no home in landing: {refusal(kind)}",
                f"Change it, for example `ALTER TABLE {quoted} ALTER {column} TYPE text`, or leave the table out",
            )
        )
    if row.generated == _VIRTUAL:
        findings.append(
            Finding(
                where,
                f"column `{column}` is generated and VIRTUAL: nothing publishes it, and under REPLICA IDENTITY FULL "
                "PostgreSQL refuses every update and delete of a published table that has one",
                f"Make it STORED (`ALTER TABLE {quoted} DROP {column}`, then ADD it so), or leave the table out",
            )
        )
    elif row.generated and not row.is_captured:
        findings.append(
            Finding(
                where,
                f"column `{column}` is generated: PostgreSQL before 18 leaves it out of the stream, though an initial "
                "load brings it",
                f"Make it an ordinary column (`ALTER TABLE {quoted} ALTER {column} DROP EXPRESSION`) that a trigger "
                "fills, or leave the table out",
            )
        )
    return findings


def _policy(where: str, table: Table, column: SourceColumn) -> list[Finding]:
    try:
        policy = policy_of(column, table.landing.types)
    except ConfigError as error:
        return [Finding(where, error.what, error.action, log_stays_true=True)]
    if column.name in table.key and policy in {"null", "clamp"}:
        return [
            Finding(
                where,
                f"policy `{policy}` is declared for key column `{column.name}`: two keys would become one",
                f"Declare `column.{column.name}: error` or `string` in `landing.types`",
            )
        ]
    return []


def _publishes_generated(connection: Connection, where: str, publication: str) -> list[Finding]:
    """A publication that leaves a stored generated column out makes the application's updates fail."""
    row = connection.execute(
        text("SELECT to_jsonb(p) ->> 'pubgencols' AS generated FROM pg_publication p WHERE pubname = :p"),
        {"p": publication},
    ).one_or_none()
    if row is None or row.generated in {None, _STORED}:  # None: before 18, which is a finding of the column.
        return []
    return [
        Finding(
            where,
            f"publication {publication} leaves generated columns out: under REPLICA IDENTITY FULL PostgreSQL then "
            "refuses every update and delete of a table that has one",
            f"Run `ALTER PUBLICATION {publication} SET (publish_generated_columns = stored)`",
        )
    ]


def _key(connection: Connection, where: str, quoted: str, table: Table, rows: list[CatalogColumn]) -> list[Finding]:
    names = [row.column.name for row in rows]
    if unknown := [k for k in table.key if k not in names]:
        lack = f"key column `{unknown[0]}` does not exist"
        return [Finding(where, lack, f"Use some of: {', '.join(names)}", log_stays_true=True)]
    unique = connection.execute(text(_UNIQUE), {"schema": table.source_schema, "table": table.source_table}).scalars()
    if sorted(table.key) not in [sorted(columns) for columns in unique]:
        listed = ", ".join(table.key)
        return [
            Finding(
                where,
                f"no primary key or unique index is on exactly ({listed}), or it is DEFERRABLE, so that keys may be "
                "exchanged within a transaction",
                f"Declare the table's own key, or run `ALTER TABLE {quoted} ADD PRIMARY KEY ({listed})`",
            )
        ]
    findings: list[Finding] = []
    for row in rows:
        column = row.column
        if column.name not in table.key:
            continue
        if not column.required:
            findings.append(
                Finding(
                    where,
                    f"key column `{column.name}` may be NULL",
                    f"Run `ALTER TABLE {quoted} ALTER {column.name} SET NOT NULL`",
                    log_stays_true=True,  # A record without its key is a dead letter.
                )
            )
        found = home(column.type)
        if found is not None and found.no_key:
            findings.append(
                Finding(
                    where,
                    f"key column `{column.name}` has type {row.written}, which can't be a key: {found.no_key}",
                    "Declare another unique key, of integer, text, uuid, date or numeric(p,s) columns",
                )
            )
    return findings


def _declared(where: str, table: Table, columns: Mapping[str, SourceColumn]) -> list[Finding]:
    findings: list[Finding] = []
    distribution = [table.convergence.distribution] if table.convergence.distribution else []
    for entry, names in (
        ("convergence.sums", table.convergence.sums),
        ("convergence.distribution", distribution),
        ("curated.contract", table.curated.contract),
        ("landing.partition_by", table.named_columns["landing.partition_by"]),
        ("landing.types", table.named_columns["landing.types"]),
    ):
        findings += [
            Finding(
                where,
                f"`{entry}` names column `{n}`, which does not exist",
                f"Use some of: {', '.join(columns)}",
            )
            for n in names
            if n not in columns
        ]
    for n in table.convergence.sums:
        if n in columns and columns[n].type not in {"smallint", "integer", "bigint"}:
            kind = iceberg_type(columns[n].type) or columns[n].type
            findings.append(Finding(where, f"`convergence.sums` names `{n}`, a {kind}", "Sum integer columns only"))
    for n in distribution:
        if n in columns and base(columns[n].type) not in _SPELT_ALIKE:
            findings.append(
                Finding(
                    where,
                    f"`convergence.distribution` names `{n}`, a {columns[n].type}",
                    "Count a text, varchar, enum, uuid, integer or boolean column",
                )
            )
    for written, field in zip(table.landing.partition_by, table.landing.partition_fields, strict=True):
        kind, column = field.transform.partition("[")[0], columns.get(field.column)
        if kind != "identity" and column is not None and base(column.type) not in _TRANSFORMS[kind]:
            findings.append(
                Finding(
                    where,
                    f"`landing.partition_by` has {written}, and `{column.name}` is a {column.type}",
                    f"`{kind}` is for {', '.join(sorted(_TRANSFORMS[kind]))}; use another transform or column",
                )
            )
    return [replace(one, log_stays_true=True) for one in findings]  # Capture has no use for these columns' names.


def _slot(connection: Connection, engine: Engine, slot: str, captured_lsn: int | None, source: str) -> list[Finding]:
    """A slot that does not continue where capture ended: changes between may have passed unseen."""
    status = connection.execute(
        text(
            "SELECT wal_status, (confirmed_flush_lsn - '0/0')::bigint AS confirmed FROM pg_replication_slots "
            "WHERE slot_name = :s"
        ),
        {"s": slot},
    ).one_or_none()
    where = f"{address(engine)}, replication slot {slot}"
    cure = f"Run `cdc-platform recapture {source}`: it takes a new initial load, which replaces the landing tables"
    if status is None:
        lost = "the slot is gone though capture has used it: changes may have passed unseen"
        return [Finding(where, lost, cure)] if captured_lsn is not None else []
    if status.wal_status == "lost":
        return [Finding(where, "the slot is lost: the server removed WAL that it still needed", cure)]
    if captured_lsn is not None and status.confirmed > captured_lsn + _AHEAD_BYTES_MAX:
        ahead = (
            f"the slot stands {status.confirmed - captured_lsn} bytes of WAL after where capture ended: it was made "
            "anew or read by another, and changes passed unseen"
        )
        return [Finding(where, ahead, cure)]
    return []


def unpublished(engine: Engine, name: str, tables: Mapping[str, Table]) -> set[str]:
    """Tables, by name, that the publication does not hold (yet): what happens to them passes unseen."""
    with connected(engine) as connection:
        published = _published(connection, name)
    return {n for n, t in tables.items() if (t.source_schema, t.source_table) not in published}


def ensure_publication(
    engine: Engine, name: str, tables: Mapping[str, Table], *, left_out: Collection[Table] = ()
) -> None:
    """Make the publication that we own hold exactly these tables. Raises ConfigError with the SQL to run as admin.

    What it holds of `left_out` may stay where it is another's to take out: Debezium passes over it.
    """
    with connected(engine) as connection:
        listed = ", ".join(sorted(_quoted(connection, t) for t in tables.values()))
        publication = engine.dialect.identifier_preparer.quote(name)
        version = connection.execute(text("SELECT current_setting('server_version_num')::int")).scalar_one()
        options = "publish_via_partition_root = true"
        options += ", publish_generated_columns = stored" if version >= _GENERATED_PUBLISHED_FROM else ""
        exists = connection.execute(
            text("SELECT 1 FROM pg_publication WHERE pubname = :p"), {"p": name}
        ).scalar_one_or_none()
        wanted = {(t.source_schema, t.source_table) for t in tables.values()}
        published = _published(connection, name)
        if wanted == published:
            return
        sql = (
            f"ALTER PUBLICATION {publication} SET TABLE {listed}"
            if exists
            else f"CREATE PUBLICATION {publication} FOR TABLE {listed} WITH ({options})"
        )
        try:
            connection.execute(text(sql))
            connection.commit()
        except DBAPIError as error:
            if wanted <= published <= wanted | {(t.source_schema, t.source_table) for t in left_out}:
                return
            raise ConfigError(
                f"the publication can't be set up ({type(error.orig).__name__})",
                where=f"{address(engine)}, publication {name}",
                action=f"Run as the tables' owner: `{sql}`",
            ) from error


def _published(connection: Connection, name: str) -> set[tuple[str, str]]:
    """Schema and table of all that is published whole; a row filter would hide changes."""
    found = connection.execute(
        text("SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = :p AND rowfilter IS NULL"),
        {"p": name},
    )
    return {(row.schemaname, row.tablename) for row in found}


def drop_slot(engine: Engine, slot: str) -> bool:
    """Drop the slot if it exists; return whether it did. Raises ConfigError while something reads it."""
    with connected(engine, isolation="AUTOCOMMIT") as connection:
        active = connection.execute(
            text("SELECT active FROM pg_replication_slots WHERE slot_name = :s"), {"s": slot}
        ).scalar_one_or_none()
        if active is None:
            return False
        if active:
            raise ConfigError(
                "the slot is in use",
                where=f"{address(engine)}, replication slot {slot}",
                action="Stop the capture that reads it, then run this again",
            )
        connection.execute(text("SELECT pg_drop_replication_slot(:s)"), {"s": slot})
        return True


def _quoted(connection: Connection, table: Table) -> str:
    quote = connection.dialect.identifier_preparer.quote
    return f"{quote(table.source_schema)}.{quote(table.source_table)}"
