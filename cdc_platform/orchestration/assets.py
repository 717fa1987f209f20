"""The tables as assets: what the catalog says of each stage, and curated, which Dagster makes itself.

Belongs here: asset keys, specs, the merge as an asset, what their events record. Does not: when it runs
(`sensors.py`), whether they are right (`checks.py`), how it works (`hops`), or maintenance (`maintenance.py`).
Source, change log and landing are external: services write them whether Dagster is up or not.
Rules: ids travel as text, because GraphQL has no integers above 32 bits; figures are numbers under labels
that do not change, so that they plot.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from cdc_platform.hops.merge import curated_table, landing_table, merged_through
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.landing.dead_letters import dead_letter_table
from cdc_platform.landing.position import advanced
from cdc_platform.orchestration.failures import as_failure
from cdc_platform.orchestration.resources import Tables
from cdc_platform.registry.model import Registry, Table

if TYPE_CHECKING:
    import pandas as pd

REASONS = ("unreadable", "unknown_kind", "no_key", "no_home", "unavailable", "stale")
_LETTERS_SHOWN_MAX = 20
CHECK_INTERVAL = timedelta(minutes=5)  # Between two comparisons of a table with its source.
# Within a run, for a conflict or a service that restarts; jitter parts two runs that met each other.
RETRIES = dg.RetryPolicy(max_retries=3, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)


def source_key(table: Table) -> dg.AssetKey:
    """The table in the source database."""
    return dg.AssetKey(["source", table.source_schema, table.source_table])


def changelog_key(name: str) -> dg.AssetKey:
    """The table's change log."""
    return dg.AssetKey(["changelog", name])


def landing_key(name: str) -> dg.AssetKey:
    """The table's landing stage."""
    return dg.AssetKey(["landing", name])


def dead_letters_key(name: str) -> dg.AssetKey:
    """Records of the table that could not be applied."""
    return dg.AssetKey(["dead_letters", name])


def curated_key(name: str) -> dg.AssetKey:
    """The table's curated stage."""
    return dg.AssetKey(["curated", name])


def build_assets(registry: Registry) -> list[dg.AssetSpec | dg.AssetsDefinition]:
    """Every asset of every declared table, in the order in which data flows."""
    found: list[dg.AssetSpec | dg.AssetsDefinition] = []
    for name, table in registry.tables.items():
        found += [*_external(name, table), _curated(name, table)]
    return found


def column_schema(history: TableHistory) -> dg.TableSchema:
    """A table's columns as the catalog shows them, with types as Iceberg names them."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                c.name,
                c.type,
                description=c.doc or None,
                constraints=dg.TableColumnConstraints(nullable=not c.required),
            )
            for c in history.columns
        ]
    )


def curated_metadata(history: TableHistory) -> dict[str, Any]:
    """What an event of the curated table records of its head."""
    head = history.head
    if head is None:
        return {"dagster/column_schema": column_schema(history)}
    return {
        "dagster/column_schema": column_schema(history),
        # True here, unlike on landing: the table is copy-on-write and holds no deletes.
        "dagster/row_count": head.total("records"),
        "snapshot_id": str(head.snapshot_id),
        "watermark": head.sequence_number,
        "data_files": head.total("data-files"),
    }


def letters_metadata(rows: "pd.DataFrame") -> dict[str, Any]:
    """What an event records of open dead letters: counts under labels that do not change, and no payload."""
    counts = rows["reason"].value_counts()
    found: dict[str, Any] = {"open": len(rows)} | {f"open_{reason}": int(counts.get(reason, 0)) for reason in REASONS}
    if len(rows):
        found["newest"] = dg.MetadataValue.timestamp(rows["dead_at"].iloc[-1].to_pydatetime())
        found["letters"] = dg.MetadataValue.md(_letters_table(rows))
    return found


def _letters_table(rows: "pd.DataFrame") -> str:
    columns = ("log_offset", "reason", "op", "key", "detail")
    newest = rows.tail(_LETTERS_SHOWN_MAX)[::-1]
    cells = [[str(row[c]).replace("|", "\\|") for c in columns] for row in newest.to_dict("records")]
    table = markdown(columns, cells)
    hidden = len(rows) - len(newest)
    return f"{table}\n\nand {hidden} older ones" if hidden else table


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _common(table: Table, relation: str, *, storage: str) -> dict[str, Any]:
    contract = ", ".join(table.curated.contract) or "all columns that are not the key"
    return {
        "dagster/table_name": relation,
        "dagster/storage_kind": storage,
        "key": ", ".join(table.key),
        "contract": contract,
    }


def table_tags(table: Table) -> dict[str, str]:
    """Tags of every asset of a table."""
    return {"cdc/source": table.source_name}


def _external(name: str, table: Table) -> Iterator[dg.AssetSpec]:
    about = f"{table.description}\n\n" if table.description else ""
    yield dg.AssetSpec(
        source_key(table),
        group_name="source",
        kinds={"postgres"},
        owners=table.owners,
        tags=table_tags(table),
        description=f"{about}The truth: `{table.source_schema}.{table.source_table}` in PostgreSQL, "
        "written by the application.",
        metadata=_common(table, table.source, storage="postgres"),
    )
    yield dg.AssetSpec(
        changelog_key(name),
        deps=[source_key(table)],
        group_name="changelog",
        kinds={"debezium", "file"},
        owners=table.owners,
        tags=table_tags(table),
        description=f"{about}Every change of the source in the order of its commits, as Debezium saw it. "
        "Landing can be rebuilt from it.",
        metadata=_common(table, f"changelog/{name}", storage="file"),
    )
    yield dg.AssetSpec(
        landing_key(name),
        deps=[changelog_key(name)],
        group_name="landing",
        kinds={"iceberg"},
        owners=table.owners,
        tags=table_tags(table),
        description=f"{about}The same rows in Iceberg v2, upserted by key within seconds. Not for consumers: "
        "its equality deletes hide changes from incremental readers. Read curated.",
        metadata=_common(table, landing_table(name), storage="iceberg"),
    )
    yield dg.AssetSpec(
        dead_letters_key(name),
        deps=[changelog_key(name)],
        group_name="dead_letters",
        kinds={"iceberg"},
        owners=table.owners,
        tags=table_tags(table),
        description=f"Changes of `{landing_table(name)}` that could not be applied, with reason, position and payload, "
        "until each was replayed or discarded: `cdc-platform dead-letters`, or the job `replay_dead_letters`.",
        metadata={"dagster/table_name": dead_letter_table(landing_table(name)), "dagster/storage_kind": "iceberg"},
    )


def _curated(name: str, table: Table) -> dg.AssetsDefinition:
    contract = ", ".join(table.curated.contract) or "*"

    @dg.asset(
        key=curated_key(name),
        deps=[landing_key(name)],
        group_name="curated",
        kinds={"iceberg", "spark"},
        owners=table.owners,
        tags=table_tags(table),
        description=f"{table.description or name} One row for each {', '.join(table.key)}, in Iceberg v3: "
        "row lineage tells consumers what changed since their watermark.",
        metadata=_common(table, curated_table(name), storage="iceberg"),
        code_version=f"{', '.join(table.key)} | {contract}",
        # Judged by the last merge or, while the stream is idle, by the last comparison that found curated
        # equal to the source (`checks.py` records it): it comes every CHECK_INTERVAL, hence the sum. A merge
        # that only found landing unmoved would prove nothing: a dead capture looks just like that.
        freshness_policy=dg.FreshnessPolicy.time_window(
            fail_window=max(table.curated.freshness + CHECK_INTERVAL, timedelta(minutes=1))
        ),
        retry_policy=RETRIES,
        pool=f"curated_{name}",
    )
    def curated(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Tables]) -> dg.MaterializeResult:
        with as_failure():
            landing_before, curated_before = tables.landing(name), tables.curated(name)
            result = tables.merge(name, run_id=context.run.run_id)
            after = tables.curated(name)
        start = merged_through(landing_before, curated_before) if landing_before else None
        figures = {
            "committed": result.snapshot_id is not None,
            "rows_inserted": result.inserts,
            "rows_updated": result.updates,
            "rows_deleted": result.deletes,
            "landing_commits_merged": _commits(landing_before, start.snapshot_id if start else None),
            "took_s": round(result.took_s, 3),
            "upstream_snapshot_id": str(result.upstream_id),
        }
        return dg.MaterializeResult(metadata=figures | (curated_metadata(after) if after else {}))

    return curated


def _commits(landing: TableHistory | None, start_id: int | None) -> int:
    """Commits of the sink after `start_id`."""
    commits = 0
    for snapshot in landing.ancestry() if landing else ():
        if snapshot.snapshot_id == start_id:
            break
        commits += advanced(snapshot)
    return commits
