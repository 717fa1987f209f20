"""Merges landing into curated: whether there is anything to merge, and doing it exactly once.

Belongs here: the decision from both tables' histories, and the run. Does not: SQL text (`hops/contract.py`),
retries and schedules (`orchestration`).
Rules: the MERGE's own snapshot says which upstream snapshot it was made from (`cdc.upstream-snapshot`, set for
this session alone), so a run killed at any point leaves either the old state or the new, and the next decision
knows which. The reader tag on landing follows it, to keep that snapshot; no decision rests on it. A no-op
copy-on-write MERGE would rewrite every file (measured), so the difference is counted first and nothing is committed
when it is none. `replace` snapshots of landing change no row and are not merged.
"""

import json
import time
from dataclasses import dataclass, replace

from cdc_platform.errors import InvariantError, UnavailableError
from cdc_platform.hops.contract import Contract, align_sql, create_sql, difference_sql, merge_sql
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.lake.spark import Spark, columns_sql, quoted, text
from cdc_platform.landing.position import LOAD_POSITION, advanced, landed, landing_table
from cdc_platform.registry.model import Table

UPSTREAM_SNAPSHOT = "cdc.upstream-snapshot"
UPSTREAM_TABLE = "cdc.upstream-table"
CONTRACT = "cdc.contract"
COMPLETE_THROUGH = "cdc.complete-through"  # Property: <landing snapshot>:<curated head that was found equal to it>.
FILLING = "cdc.filling"  # Property: columns that curated has newly and no merge has filled yet, as JSON.
RUN_ID = "cdc.run-id"
_STAMP = "spark.sql.iceberg.snapshot-property."


def curated_table(name: str) -> str:
    """Identifier of a table's curated stage in the catalog."""
    return f"curated.{name}"


@dataclass(frozen=True, slots=True)
class MergeDecision:
    """Whether landing holds something that curated has not seen; the reason reads as a sensor's skip reason."""

    due: bool
    upstream: Snapshot | None
    reason: str


def reader_tag(name: str) -> str:
    """The tag on landing that pins what curated was last made from: curated is one of landing's readers."""
    return f"reader_curated_{name}"


def merged_through(landing: TableHistory, curated: TableHistory | None) -> Snapshot | None:
    """The landing snapshot through which curated is complete, or None before the first merge.

    Curated's own summary names it. A merge that found nothing to commit leaves its word in a property, which holds
    for as long as curated's head is the one that it was compared with.
    """
    if curated is None:
        return None
    stamped = curated.newest(lambda s: UPSTREAM_SNAPSHOT in s.summary)
    known = {stamped.summary[UPSTREAM_SNAPSHOT]} if stamped else set[str]()
    upstream, _, head = curated.properties.get(COMPLETE_THROUGH, "").partition(":")
    if head == str(curated.head_id):
        known.add(upstream)
    return landing.newest(lambda s: str(s.snapshot_id) in known)


def merge_decision(landing: TableHistory | None, curated: TableHistory | None) -> MergeDecision:
    """Return whether a merge is due, from metadata alone."""
    # A heartbeat holds the rows of the window before it, and may have outlived it.
    upstream = (landing.newest(advanced) or landing.newest(landed)) if landing else None
    if landing is None or upstream is None:
        return MergeDecision(False, None, "landing has no snapshot yet; the first comes with the initial load")
    if LOAD_POSITION not in upstream.summary:
        return MergeDecision(False, None, "landing's initial load is not complete; merging now would delete rows")
    merged = merged_through(landing, curated)
    if merged is not None and merged.snapshot_id == upstream.snapshot_id:
        return MergeDecision(False, upstream, f"curated is complete through landing snapshot {merged.snapshot_id}")
    pending = 0
    for snapshot in landing.ancestry():
        if merged is not None and snapshot.snapshot_id == merged.snapshot_id:
            break
        pending += advanced(snapshot)
    since = "the beginning" if merged is None else f"landing snapshot {merged.snapshot_id}"
    return MergeDecision(True, upstream, f"{pending} landing commits since {since}")


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge did. `snapshot_id` is None when nothing differed and nothing was committed."""

    upstream_id: int
    snapshot_id: int | None
    inserts: int
    updates: int
    deletes: int
    watermark: int  # Sequence number of curated's head after the merge.
    took_s: float


def merge(spark: Spark, lake: Lake, name: str, table: Table, *, run_id: str = "") -> MergeResult:
    """Make curated equal to landing's newest snapshot in all that the contract covers.

    Raises ConflictError when another writer of curated committed first, InvariantError when landing holds a
    key twice, UnavailableError while landing has no complete initial load.
    """
    began = time.monotonic()
    landing = lake.history(landing_table(name))
    decision = merge_decision(landing, lake.history(curated_table(name)))
    if landing is None or decision.upstream is None:
        raise UnavailableError(
            decision.reason, where=landing_table(name), action="Wait for the load: `cdc-platform status`"
        )
    upstream = decision.upstream
    columns = [c.name for c in landing.columns]
    contract = Contract.of(name, columns, key=table.key, declared=table.curated.contract)
    target = quoted(lake.name, *curated_table(name).split("."))
    landing_sql = quoted(lake.name, *landing_table(name).split("."))
    source = f"(SELECT {columns_sql(columns)} FROM {landing_sql} VERSION AS OF {upstream.snapshot_id})"

    def pin_upstream() -> None:
        spark.rows(
            f"ALTER TABLE {landing_sql} CREATE OR REPLACE TAG {quoted(reader_tag(name))} "
            f"AS OF VERSION {upstream.snapshot_id}"
        )

    if reader_tag(name) not in landing.refs:
        pin_upstream()  # The first merge may take longer than landing keeps snapshots. Later ones are behind the tag.
    spark.rows(f"CREATE NAMESPACE IF NOT EXISTS {quoted(lake.name, 'curated')}")
    spark.rows(create_sql(target, landing.columns, key=table.key))
    made = lake.history(curated_table(name))
    filling = _follow_columns(spark, target, landing, made) if made else ()
    contract = replace(contract, compared=(*contract.compared, *(c for c in filling if c not in contract.compared)))
    spark.rows(f"ALTER TABLE {target} WRITE ORDERED BY {columns_sql(table.key)}")
    spark.rows(f"REFRESH TABLE {target}")
    compared = lake.history(curated_table(name))
    head_id = compared.head_id if compared else None
    # Not `VERSION AS OF`: that reads under the snapshot's own columns, and curated may just have been given others. If
    # another merge commits in between, the word below names a head that is none any more, and does not count.
    [counts] = spark.rows(difference_sql(contract, source=source, target=target))
    if counts["doubled_keys"]:
        raise InvariantError(
            f"{counts['doubled_keys']} keys stand in more than one row",
            where=f"{landing_table(name)} at snapshot {upstream.snapshot_id}",
            action=f"Correct `tables.{name}.key` if it is not unique at the source; else rebuild landing",
        )
    committed = bool(counts["inserts"] or counts["updates"] or counts["deletes"])
    if committed:
        stamps = {
            UPSTREAM_SNAPSHOT: str(upstream.snapshot_id),
            UPSTREAM_TABLE: landing_table(name),
            CONTRACT: contract.hash,
        } | ({RUN_ID: run_id} if run_id else {})
        with spark.settings({_STAMP + key: value for key, value in stamps.items()}):
            spark.rows(merge_sql(contract, source=source, target=target))
    pin_upstream()
    if filling:
        spark.rows(f"ALTER TABLE {target} UNSET TBLPROPERTIES ({text(FILLING)})")
    after = lake.history(curated_table(name))
    if not committed:
        word = f"{upstream.snapshot_id}:{head_id}"
        spark.rows(f"ALTER TABLE {target} SET TBLPROPERTIES ({text(COMPLETE_THROUGH)} = {text(word)})")
    head = after.head if after else None
    return MergeResult(
        upstream_id=upstream.snapshot_id,
        snapshot_id=head.snapshot_id if head and committed else None,
        inserts=counts["inserts"],
        updates=counts["updates"],
        deletes=counts["deletes"],
        watermark=head.sequence_number if head else 0,
        took_s=time.monotonic() - began,
    )


def _follow_columns(spark: Spark, target: str, landing: TableHistory, curated: TableHistory) -> tuple[str, ...]:
    """Give curated landing's columns; return those that it has newly, whose values count until a merge has filled them.

    A property names them before they are added, so that a merge killed in between is made up for by the next.
    """
    statements = align_sql(target, landing.columns, found=curated.columns)
    has = {c.name: c.type for c in curated.columns}
    filling = set(json.loads(curated.properties.get(FILLING, "[]")))
    if statements:
        filling |= {c.name for c in landing.columns if has.get(c.name) != c.type}
    filling &= {c.name for c in landing.columns}
    if statements and filling:
        named = text(json.dumps(sorted(filling)))
        spark.rows(f"ALTER TABLE {target} SET TBLPROPERTIES ({text(FILLING)} = {named})")
    for statement in statements:
        spark.rows(statement)
    return tuple(sorted(filling))
