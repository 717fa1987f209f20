"""A table's columns as the source's catalog has them now, with what tells one change of them from another.

Belongs here: the look-up. Does not: which Iceberg type a column gets (`types.py`), whether a record agrees with the
catalog (`capture/schemas.py`), whether landing can follow a change (`landing/evolution.py`).
Rules: the catalog is read as it is *now*; a record may be older. A column's number (`attnum`) is its own for good, so
a rename keeps it and a column dropped and added again has another. PostgreSQL fills a new column without a word in the
replication stream, and leaves one of two traces: `atthasmissing` (the value stands in the catalog), or a new storage
file (the table was rewritten; so do VACUUM FULL and TRUNCATE). The look-up waits for no lock on the table.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

from cdc_platform.source.postgres import connected
from cdc_platform.source.types import SourceColumn

# A domain is followed to its base type, whose modifier is the innermost domain's. Kinds of types that anybody may make
# are named by their kind. A type outside search_path comes with its schema, which goes.
_COLUMNS = """
WITH RECURSIVE based AS (
    SELECT a.attnum, a.atttypid AS type_id, a.atttypmod AS modifier
    FROM pg_attribute a WHERE a.attrelid = :oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attnum, t.typbasetype, t.typtypmod FROM based b JOIN pg_type t ON t.oid = b.type_id WHERE t.typtype = 'd'
), kinds AS (
    SELECT b.attnum, e.oid IS NOT NULL AS is_array,
           CASE coalesce(e.typtype, t.typtype)
                WHEN 'e' THEN 'enum' WHEN 'c' THEN 'composite' WHEN 'd' THEN 'domain' WHEN 'm' THEN 'multirange'
                WHEN 'r' THEN CASE WHEN coalesce(e.typnamespace, t.typnamespace) <> 'pg_catalog'::regnamespace
                                   THEN 'range' END
           END AS kind,
           regexp_replace(format_type(t.oid, b.modifier), '^("[^"]+"|[a-z0-9_]+)[.]', '') AS type
    FROM based b JOIN pg_type t ON t.oid = b.type_id LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
    WHERE t.typtype <> 'd'
)
SELECT a.attnum AS number, a.attname AS name, a.attnotnull AS required, a.atthasmissing AS filled,
       a.attgenerated AS generated, coalesce(col_description(a.attrelid, a.attnum), '') AS doc,
       a.attgenerated = ''
           OR (a.attgenerated = 's' AND current_setting('server_version_num')::int >= 180000) AS captured,
       coalesce(k.kind || CASE WHEN k.is_array THEN '[]' ELSE '' END, k.type) AS type,
       format_type(a.atttypid, a.atttypmod) AS written,
       own.typname AS declared, a.atttypmod AS modifier, a.xmin::text::bigint AS changed_by
FROM pg_attribute a JOIN kinds k ON k.attnum = a.attnum JOIN pg_type own ON own.oid = a.atttypid
WHERE a.attrelid = :oid
ORDER BY a.attnum
"""
_TABLE = """
SELECT c.oid, coalesce(pg_relation_filenode(c.oid), 0)::bigint AS storage,
       ARRAY(SELECT attnum::int FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND attisdropped) AS dropped
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relname = :table AND c.relkind IN ('r', 'p')
"""


@dataclass(frozen=True, slots=True)
class Declared:
    """A column's type as the replication stream spells it: the type's own name, and its modifier (-1: none)."""

    type: str
    modifier: int


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column in the catalog. `changed_by` is the 32-bit id of the transaction that last touched its entry."""

    column: SourceColumn
    declared: Declared
    changed_by: int
    written: str = ""  # Its type as the table's DDL would write it: a domain's or enumeration's own name.
    generated: str = ""  # PostgreSQL's attgenerated: `s` for STORED, `v` for VIRTUAL.
    is_captured: bool = (
        True  # Before PostgreSQL 18 nothing publishes a generated column, and a VIRTUAL one nothing does.
    )


@dataclass(frozen=True, slots=True)
class Catalog:
    """A table in the catalog: the columns that records carry, the numbers of those that are gone, its storage file."""

    columns: tuple[CatalogColumn, ...]
    dropped: frozenset[int] = frozenset()
    storage: int = 0  # 0: not known.


def read_catalog(engine: Engine, schema: str, table: str) -> Catalog:
    """Look the table up; no columns when it is gone. Raises UnavailableError when the source does not answer."""
    with connected(engine, isolation="REPEATABLE READ") as connection:
        found = connection.execute(text(_TABLE), {"schema": schema, "table": table}).one_or_none()
        if found is None:
            return Catalog(())
        columns = read_columns(connection, found.oid)
    return Catalog(tuple(c for c in columns if c.is_captured), frozenset(found.dropped), int(found.storage))


def read_columns(connection: Connection, oid: int) -> list[CatalogColumn]:
    """Every column of the table with that oid."""
    return [
        CatalogColumn(
            SourceColumn(r["name"], r["type"], r["required"], r["doc"], number=r["number"], filled=r["filled"]),
            Declared(r["declared"], r["modifier"]),
            r["changed_by"],
            r["written"],
            r["generated"],
            r["captured"],
        )
        for r in connection.execute(text(_COLUMNS), {"oid": oid}).mappings()
    ]
