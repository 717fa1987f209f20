"""Merges landing into curated: whether there is anything to merge, and doing it exactly once.

Belongs here: the decision from both tables' histories, and the run. Does not: SQL text (`hops/contract.py`),
retries and schedules (`orchestration`).
Rules: the MERGE's own snapshot says which upstream snapshot it was made from (`cdc.upstream-snapshot`, set for
this session alone), so a run killed at any point leaves either the old state or the new, and the next decision
knows which. The reader tag on landing follows it. A no-op copy-on-write MERGE would rewrite every file
(measured), so the difference is counted first and nothing is committed when it is none. `replace` snapshots of
landing change no row and are not merged.
"""

import time
from dataclasses import dataclass

from cdc_platform.errors import InvariantError, UnavailableError
from cdc_platform.hops.contract import Contract, create_sql, difference_sql, merge_sql
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.lake.spark import Spark, columns_sql, quoted
from cdc_platform.landing.position import LOAD_POSITION, landed, landing_table
from cdc_platform.registry.model import Table

UPSTREAM_SNAPSHOT = "cdc.upstream-snapshot"
UPSTREAM_TABLE = "cdc.upstream-table"
CONTRACT = "cdc.contract"
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


def merged_through(name: str, landing: TableHistory, curated: TableHistory | None) -> Snapshot | None:
    """The landing snapshot through which curated is complete, or None before the first merge.

    Curated's own summary names it; the reader tag names a later one after a merge that found nothing to commit.
    The newer of the two counts. A tag alone does not: curated may have been dropped since.
    """
    stamped = curated.newest(lambda s: UPSTREAM_SNAPSHOT in s.summary) if curated else None
    if stamped is None:
        return None
    known = {int(stamped.summary[UPSTREAM_SNAPSHOT]), landing.refs.get(reader_tag(name))}
    return landing.newest(lambda s: s.snapshot_id in known)


def merge_decision(name: str, landing: TableHistory | None, curated: TableHistory | None) -> MergeDecision:
    """Return whether a merge is due, from metadata alone."""
    upstream = landing.newest(landed) if landing else None
    if landing is None or upstream is None:
        return MergeDecision(False, None, "landing has no snapshot yet; the first comes with the initial load")
    if LOAD_POSITION not in upstream.summary:
        return MergeDecision(False, None, "landing's initial load is not complete; merging now would delete rows")
    merged = merged_through(name, landing, curated)
    if merged is not None and merged.snapshot_id == upstream.snapshot_id:
        return MergeDecision(False, upstream, f"curated is complete through landing snapshot {merged.snapshot_id}")
    pending = 0
    for snapshot in landing.ancestry():
        if merged is not None and snapshot.snapshot_id == merged.snapshot_id:
            break
        pending += landed(snapshot)
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
    decision = merge_decision(name, landing, lake.history(curated_table(name)))
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

    spark.rows(f"CREATE NAMESPACE IF NOT EXISTS {quoted(lake.name, 'curated')}")
    spark.rows(create_sql(target, landing.columns, key=table.key))
    spark.rows(f"ALTER TABLE {target} WRITE ORDERED BY {columns_sql(table.key)}")
    spark.rows(f"REFRESH TABLE {target}")
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
    spark.rows(
        f"ALTER TABLE {landing_sql} CREATE OR REPLACE TAG {quoted(reader_tag(name))} "
        f"AS OF VERSION {upstream.snapshot_id}"
    )
    after = lake.history(curated_table(name))
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
