"""The contract as SQL: which difference between upstream and curated counts, and the MERGE that carries it.

Belongs here: statements built from names alone, testable as text. Does not: running them (`hops/merge.py`).
Rules: comparison is NULL-safe (`<=>`), so NULL to a value is a change and NULL to NULL is none. A row that
changed only outside the contract stays as it is, with its `_row_id` and sequence number. When the contract
does change, the whole row is taken over.
The file filter of a copy-on-write MERGE uses only the ON condition (measured, Iceberg 1.12), so the contract
in `WHEN MATCHED AND` spares rows, not files.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cdc_platform.errors import ConfigError
from cdc_platform.lake.snapshot import Column
from cdc_platform.lake.spark import columns_sql, quoted, text
from cdc_platform.lake.types import promotes

_SPARK_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class Contract:
    """The key, the compared columns and all columns of a hop, in the upstream's order."""

    key: tuple[str, ...]
    compared: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, table: str, columns: Sequence[str], *, key: Sequence[str], declared: Sequence[str]) -> "Contract":
        """Resolve a declared contract (empty: every column that is not the key) against the upstream's columns."""
        rest = [c for c in columns if c not in key]
        if missing := [c for c in (*key, *declared) if c not in columns]:
            raise ConfigError(
                f"the contract names column `{missing[0]}`, which the upstream table does not have",
                where=f"tables.yaml: tables.{table}",
                action=f"Use some of: {', '.join(columns)}",
            )
        return cls(tuple(key), tuple(declared or rest), tuple(columns))

    @property
    def hash(self) -> str:
        """Short name of this contract, for the snapshot summary: same text, same rows carried."""
        return hashlib.sha256(repr((self.key, self.compared)).encode()).hexdigest()[:12]

    @property
    def matched(self) -> str:
        """ON: the keys are equal."""
        return " AND ".join(f"t.{quoted(k)} = s.{quoted(k)}" for k in self.key)

    @property
    def changed(self) -> str:
        """WHEN MATCHED AND: the contract differs, NULL-safe. A table that is all key never changes."""
        if not self.compared:
            return "FALSE"
        equal = " AND ".join(f"t.{quoted(c)} <=> s.{quoted(c)}" for c in self.compared)
        return f"NOT ({equal})"


def merge_sql(contract: Contract, *, source: str, target: str) -> str:
    """The full MERGE: `target` becomes `source` in all that the contract covers, deletes included."""
    updates = ", ".join(f"t.{quoted(c)} = s.{quoted(c)}" for c in contract.columns if c not in contract.key)
    update = f"WHEN MATCHED AND {contract.changed} THEN UPDATE SET {updates}\n" if updates else ""
    return (
        f"MERGE INTO {target} t USING {source} s ON {contract.matched}\n{update}"
        f"WHEN NOT MATCHED THEN INSERT ({columns_sql(contract.columns)}) "
        f"VALUES ({columns_sql(contract.columns, 's')})\n"
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )


def difference_sql(contract: Contract, *, source: str, target: str) -> str:
    """One row: how many rows a MERGE would insert, update and delete, and keys that the source has twice."""
    return (
        "SELECT count_if(NOT in_target) AS inserts, count_if(NOT in_source) AS deletes,\n"
        f"  count_if(in_source AND in_target AND differs) AS updates,\n"
        f"  (SELECT count(*) FROM (SELECT 1 FROM {source} GROUP BY {columns_sql(contract.key)} "
        "HAVING count(*) > 1)) AS doubled_keys\n"
        f"FROM (SELECT s.`__cdc_in` IS NOT NULL AS in_source, t.`__cdc_in` IS NOT NULL AS in_target, "
        f"{contract.changed} AS differs\n"
        f"  FROM (SELECT *, TRUE AS `__cdc_in` FROM {source}) s\n"
        f"  FULL OUTER JOIN (SELECT *, TRUE AS `__cdc_in` FROM {target}) t ON {contract.matched})"
    )


def _spark_type(iceberg: str) -> str | None:
    if iceberg.startswith("list<"):
        element = _spark_type(iceberg[5:-1])
        return None if element is None else f"ARRAY<{element}>"
    return _SPARK_TYPES.get(iceberg, iceberg.upper() if iceberg.startswith("decimal") else None)


def align_sql(target: str, columns: Sequence[Column], *, found: Sequence[Column]) -> list[str]:
    """DDL that gives a curated table, which has the columns `found`, those of its upstream: it follows each change.

    A type that Iceberg can't promote to the other (spec, "Schema Evolution") is another column of the same name, which
    the MERGE fills.
    """
    wanted = {c.name: c for c in columns}
    has = {c.name: c.type for c in found}
    retyped = {n for n, c in wanted.items() if n in has and has[n] != c.type}
    promoted = {n for n in retyped if promotes(has[n], wanted[n].type)}
    gone = [n for n in has if n not in wanted or n in retyped - promoted]
    come = [c for c in columns if c.name not in has or c.name in retyped - promoted]
    return [
        *(f"ALTER TABLE {target} DROP COLUMN {quoted(n)}" for n in gone),
        *(
            f"ALTER TABLE {target} ALTER COLUMN {quoted(n)} TYPE {_spark_type(wanted[n].type)}"
            for n in sorted(promoted)
        ),
        *(f"ALTER TABLE {target} ADD COLUMN {_field(target, c, key=())}" for c in come),
    ]


def create_sql(target: str, columns: Sequence[Column], *, key: Sequence[str]) -> str:
    """DDL of a curated table: v3 for row lineage, copy-on-write so that a reader opens data files only."""
    fields = ", ".join(_field(target, c, key=key) for c in columns)
    return (
        f"CREATE TABLE IF NOT EXISTS {target} ({fields}) USING iceberg TBLPROPERTIES (\n"
        "  'format-version'='3', 'write.merge.mode'='copy-on-write', 'write.update.mode'='copy-on-write',\n"
        "  'write.delete.mode'='copy-on-write', 'write.metadata.delete-after-commit.enabled'='true',\n"
        "  'write.metadata.previous-versions-max'='20')"
    )


def _field(target: str, column: Column, *, key: Sequence[str]) -> str:
    spark = _spark_type(column.type)
    if spark is None:
        raise ConfigError(
            f"column `{column.name}` has type {column.type}, which a curated table does not hold",
            where=target,
            action="Leave the column out at the source's publication or cast it there",
        )
    required = " NOT NULL" if column.name in key else ""
    doc = f" COMMENT {text(column.doc)}" if column.doc else ""
    return f"{quoted(column.name)} {spark}{required}{doc}"
