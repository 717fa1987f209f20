"""Reading a table in full, timed, with checksums that do not depend on the order of rows.

Belongs here: the query, and what two reads must have in common. Does not: which snapshots to read
(`maintenance/maintain.py`).
Rules (Spark 4.1.4 and Iceberg 1.12.0, measured): aggregate push-down is off, or a count would be answered from
metadata, and a query of row lineage fails. `VERSION AS OF` reads under the snapshot's own schema, so two snapshots
are compared over the fields that both have, at any depth, by field id, under the newer one's types.
What is hashed tells a value from every other (`_terms`): `xxhash64` alone passes NULLs over, so that a value may move
to the next column or element unseen, takes arrays apart without a mark, refuses maps, and has one hash for 0.0 and
-0.0. Types that Spark can't hash (geometry) are left out, and named. A XOR alone would not see a row that came twice
over, so there is a sum too. A snapshot that was made before its table became v3 has no row ids: there is nothing to
compare.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cdc_platform.errors import InvariantError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.spark import FilesOpened, Spark, quoted

_NO_PUSH_DOWN = {"spark.sql.iceberg.aggregate-push-down.enabled": "false"}
_SPARK_TYPES = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}  # Others have one name.


@dataclass(frozen=True, slots=True)
class Probe:
    """One full read of a snapshot. Sums and XORs are text: they have more digits than a JSON number."""

    snapshot_id: int
    rows: int
    checksum: str
    lineage: str | None  # Over `_row_id` and `_last_updated_sequence_number` too; None where rows have none.
    read_s: float
    files: FilesOpened
    left_out: tuple[str, ...]  # Columns that can't be hashed.


@dataclass(frozen=True, slots=True)
class Columns:
    """What is hashed: expressions in the order of field ids."""

    expressions: tuple[str, ...]
    left_out: tuple[str, ...]
    lineage: bool


def columns(lake: Lake, table: str, snapshot_id: int, *, beside: int | None = None) -> Columns:
    """What can be hashed of a snapshot so that it compares with the snapshot `beside`, older or newer."""
    loaded = lake.load(table)
    assert loaded is not None, "a table that is maintained exists"
    metadata = loaded.metadata
    numbers = {s.snapshot_id: s.sequence_number or 0 for s in metadata.snapshots}
    other_id = snapshot_id if beside is None else beside
    newest = max(snapshot_id, other_id, key=lambda i: numbers.get(i, 0))
    own, other = (_schema(metadata, i) for i in (snapshot_id, other_id))
    pair = _Pair(other_wins=newest == other_id)
    return Columns(tuple(pair.fields(own, other)), tuple(pair.left_out), metadata.format_version >= 3)


def _schema(metadata: Any, snapshot_id: int) -> Any:
    schema_id = next((s.schema_id for s in metadata.snapshots if s.snapshot_id == snapshot_id), None)
    schemas = {s.schema_id: s for s in metadata.schemas}
    schema = schemas.get(metadata.current_schema_id if schema_id is None else schema_id)
    assert schema is not None, "a snapshot's schema is kept as long as the snapshot"
    return schema.as_struct()


@dataclass
class _Pair:
    """What two schemas have in common, as SQL over a row of the one that is `own`."""

    other_wins: bool  # Values are compared under the other's types.
    left_out: list[str] = field(default_factory=list[str])

    def fields(self, own: Any, other: Any, *, prefix: str = "", path: str = "") -> list[str]:
        """Terms of the fields that two structs have in common, in the order of field ids."""
        theirs = {f.field_id: f.field_type for f in other.fields}
        return [
            term
            for f in sorted(own.fields, key=lambda f: f.field_id)
            if f.field_id in theirs
            for term in self.terms(f.field_type, theirs[f.field_id], prefix + quoted(f.name), path + f.name)
        ]

    def terms(self, own: Any, other: Any, value: str, path: str) -> list[str]:
        """Expressions that a value can be read back from, one after the other: is it NULL, then what it holds.

        So unequal values differ in some term, whatever stands before and behind them, and `xxhash64` sees every term
        that is not NULL. Elements are hashed one by one and their number is a term; entries of a map are taken in the
        order of their hashes.
        """
        from pyiceberg.types import GeographyType, GeometryType, ListType, MapType, StructType, UnknownType

        if isinstance(own, StructType) and isinstance(other, StructType):
            return [f"{value} IS NULL", *self.fields(own, other, prefix=f"{value}.", path=f"{path}.")]
        item = f"e{path.count('.')}"  # Each level has a name of its own.
        if isinstance(own, ListType) and isinstance(other, ListType):
            of_item = self.terms(own.element_type, other.element_type, item, f"{path}.element")
            hashes = f"transform({value}, {item} -> {_hash(of_item)})"
            return [f"{value} IS NULL", f"size({value})", f"xxhash64({hashes})"]
        if isinstance(own, MapType) and isinstance(other, MapType):
            of_entry = [
                *self.terms(own.key_type, other.key_type, f"{item}.key", f"{path}.key"),
                *self.terms(own.value_type, other.value_type, f"{item}.value", f"{path}.value"),
            ]
            hashes = f"array_sort(transform(map_entries({value}), {item} -> {_hash(of_entry)}))"
            return [f"{value} IS NULL", f"size({value})", f"xxhash64({hashes})"]
        if any(isinstance(kind, UnknownType | GeometryType | GeographyType) for kind in (own, other)):
            self.left_out.append(path)
            return []
        kind = str(other if self.other_wins else own)
        if str(own) != kind:
            value = f"CAST({value} AS {_SPARK_TYPES.get(kind, kind)})"
        terms = [f"{value} IS NULL", value]
        if kind in {"float", "double"}:  # Equal, and of one hash, but not the same.
            terms.append(f"{value} = 0 AND CAST({value} AS STRING) = '-0.0'")
        return terms


def _hash(terms: Sequence[str]) -> str:
    return f"xxhash64({', '.join(terms) or '1'})"


def probe(spark: Spark, lake: Lake, table: str, snapshot_id: int, of: Columns) -> Probe:
    """Read all of a snapshot once."""
    name = quoted(lake.name, *table.split("."))
    picked = f"{_hash(of.expressions)} AS h"
    sums = "count(*) AS n, bit_xor(h) AS x, sum(CAST(h AS DECIMAL(38, 0))) AS s"
    if of.lineage:
        stamps = ("_row_id", "_last_updated_sequence_number")
        picked += f", {_hash((*stamps, *of.expressions))} AS l, _row_id IS NULL AS unnumbered"
        sums += ", bit_xor(l) AS lx, sum(CAST(l AS DECIMAL(38, 0))) AS ls, count_if(unnumbered) AS u"
    with spark.settings(_NO_PUSH_DOWN):
        began = time.monotonic()
        [found], files = spark.rows_and_files(
            f"SELECT {sums} FROM (SELECT {picked} FROM {name} VERSION AS OF {int(snapshot_id)})"
        )
        read_s = time.monotonic() - began
    numbered = of.lineage and not found["u"]
    return Probe(
        snapshot_id=snapshot_id,
        rows=int(found["n"]),
        checksum=f"{found['x']}/{found['s']}",
        lineage=f"{found['lx']}/{found['ls']}" if numbered else None,
        read_s=read_s,
        files=files,
        left_out=of.left_out,
    )


def require_same(
    table: str, operation: str, before: Probe, after: Probe, *, catalog: str = "lake", newer_commits: Sequence[int] = ()
) -> None:
    """Raise InvariantError when `after`, which maintenance made of `before`, does not hold the same rows.

    `newer_commits`: snapshots of other writers on top of it, which a rollback would take away as well.
    """
    if before.rows != after.rows:
        wrong = f"changed the number of rows from {before.rows} to {after.rows}"
    elif before.checksum != after.checksum:
        wrong = f"changed rows: their checksum was {before.checksum}, it is {after.checksum}, in {after.rows} rows"
    elif before.lineage is not None and before.lineage != after.lineage:
        wrong = "changed row lineage (_row_id, _last_updated_sequence_number) of rows that did not change"
    else:
        return
    back = f"CALL {catalog}.system.rollback_to_snapshot(table => '{table}', snapshot_id => {before.snapshot_id})"
    if newer_commits:
        action = (
            f"Stop all maintenance of this table and its writer (`cdc-platform down` stops the sink), roll back with "
            f"`{back}`, then start the writer: the {len(newer_commits)} commits since go with it and are written again "
            "from the position in that snapshot (by the sink from the change log, by a merge from landing)"
        )
    else:
        action = f"Stop all maintenance of this table and roll back with `{back}`; nothing was committed since"
    raise InvariantError(f"{operation} {wrong}", where=f"{table} at snapshot {after.snapshot_id}", action=action)
