"""Reading a table in full, timed, with checksums that do not depend on the order of rows.

Belongs here: the query, and what two reads must have in common. Does not: which snapshots to read
(`maintenance/maintain.py`).
Rules (Spark 4.1.4 and Iceberg 1.12.0, measured): aggregate push-down is off, or a count would be answered from
metadata, and a query of row lineage fails. `VERSION AS OF` reads under the snapshot's own schema, so two snapshots
are compared over the columns that both have, by field id, under the newer one's types. Maps can't be hashed and
`variant` neither: such columns are left out, and named. A XOR alone would not see a row that came twice over, so
there is a sum too. A snapshot that was made before its table became v3 has no row ids: there is nothing to compare.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import time
from collections.abc import Sequence
from dataclasses import dataclass

from cdc_platform.errors import InvariantError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.spark import FilesOpened, Spark, quoted

_NO_PUSH_DOWN = {"spark.sql.iceberg.aggregate-push-down.enabled": "false"}
_NOT_HASHED = ("map<", "variant", "unknown", "geometry", "geography")
_SPARK_TYPES = {"long": "bigint", "double": "double"}  # What a column can be promoted to, decimals apart.


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


def columns(lake: Lake, table: str, snapshot_id: int, *, as_of: int | None = None) -> Columns:
    """What can be hashed of a snapshot so that it compares with the snapshot `as_of`, which is newer."""
    loaded = lake.load(table)
    assert loaded is not None, "a table that is maintained exists"
    own, other = (_fields(loaded, i) for i in (snapshot_id, snapshot_id if as_of is None else as_of))
    expressions, left_out = list[str](), list[str]()
    for field_id in sorted(own.keys() & other.keys()):
        name, kind = own[field_id]
        wanted = other[field_id][1]
        if any(word in kind for word in _NOT_HASHED):
            left_out.append(name)
        elif kind == wanted:
            expressions.append(quoted(name))
        else:
            expressions.append(f"CAST({quoted(name)} AS {_SPARK_TYPES.get(wanted, wanted)})")
    return Columns(tuple(expressions), tuple(left_out), loaded.metadata.format_version >= 3)


def _fields(loaded: "object", snapshot_id: int) -> dict[int, tuple[str, str]]:
    metadata = loaded.metadata  # type: ignore[attr-defined]
    schema_id = next((s.schema_id for s in metadata.snapshots if s.snapshot_id == snapshot_id), None)
    schemas = {s.schema_id: s for s in metadata.schemas}
    schema = schemas.get(metadata.current_schema_id if schema_id is None else schema_id)
    assert schema is not None, "a snapshot's schema is kept as long as the snapshot"
    return {f.field_id: (f.name, str(f.field_type)) for f in schema.fields}


def probe(spark: Spark, lake: Lake, table: str, snapshot_id: int, of: Columns) -> Probe:
    """Read all of a snapshot once."""
    name = quoted(lake.name, *table.split("."))
    rows = f"xxhash64({', '.join(of.expressions) or '1'})"
    picked = f"{rows} AS h"
    sums = "count(*) AS n, bit_xor(h) AS x, sum(CAST(h AS DECIMAL(38, 0))) AS s"
    if of.lineage:
        stamps = ("_row_id", "_last_updated_sequence_number")
        picked += f", xxhash64({', '.join((*stamps, *of.expressions))}) AS l, _row_id IS NULL AS unnumbered"
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
