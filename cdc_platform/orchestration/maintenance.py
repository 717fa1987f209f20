"""The maintenance operations as assets: one for each operation, stage and table, with its own plots.

Belongs here: which operations a stage has, their assets, and what a run records. Does not: when they run
(`sensors.py`), or how (`cdc_platform.maintenance`).
Rules: maintenance never materializes the table that it works on, for freshness looks at materializations and a
compaction must not make a dead stream look fresh; the table gets an observation. A dry run records no
materialization. All writers of a table share its pool.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from cdc_platform.maintenance.runs import Operation
from cdc_platform.operations import Stage, stage_table
from cdc_platform.orchestration.assets import RETRIES, curated_key, landing_key, markdown, table_tags
from cdc_platform.orchestration.failures import as_failure
from cdc_platform.orchestration.resources import Tables
from cdc_platform.registry.model import Registry, Table

if TYPE_CHECKING:
    from cdc_platform.maintenance.health import TableHealth
    from cdc_platform.maintenance.maintain import Effect, Plan

GROUP = "maintenance"
_INTEGER_MAX = 1 << 31
PROOF_WITHIN_S = 3600  # Beyond `run_time_max`, which bounds the procedure: a run also reads the table to prove itself.
_BOTH: tuple[Stage, ...] = ("landing", "curated")


@dataclass(frozen=True, slots=True)
class Upkeep:
    """One operation: what it does, on which stages, and how urgent it is among a table's writers (a merge has 10)."""

    operation: Operation
    stages: tuple[Stage, ...]
    priority: int
    about: str
    interval_s: int = 60  # Of its sensor.
    by_hand: bool = False  # No sensor starts it.
    dry_run: bool = False  # Unless told otherwise.


UPKEEP = (
    Upkeep(
        "rewrite_data_files",
        _BOTH,
        priority=5,
        interval_s=15,
        about="Applies the deletes and merges small files; no live row changes.",
    ),
    Upkeep(
        "rewrite_position_delete_files",
        ("landing",),  # On curated, v3, there are deletion vectors, which it leaves alone.
        priority=4,
        about="Merges position-delete files and drops what applies to no file; no live row changes.",
    ),
    Upkeep(
        "expire_snapshots",
        _BOTH,
        priority=3,
        interval_s=300,
        about="Drops old snapshots that no tag, branch or reader needs, and the files that only they held.",
    ),
    Upkeep(
        "rewrite_manifests",
        _BOTH,
        priority=2,
        about="Merges manifests, so that planning reads fewer; no file and no row changes.",
        by_hand=True,
    ),
    Upkeep(
        "remove_orphan_files",
        _BOTH,
        priority=2,
        about="Deletes files in the table's folder that no snapshot knows. Nothing starts it but a person.",
        by_hand=True,
        dry_run=True,
    ),
)


def maintenance_key(operation: str, stage: Stage, name: str) -> dg.AssetKey:
    """An operation on one stage of a table."""
    return dg.AssetKey([GROUP, operation, stage, name])


def of_operation(operation: str) -> dg.AssetSelection:
    """All assets of an operation, without their checks."""
    return dg.AssetSelection.key_prefixes([GROUP, operation]).without_checks()


def stage_key(stage: Stage, name: str) -> dg.AssetKey:
    """The stage that an operation works on."""
    return landing_key(name) if stage == "landing" else curated_key(name)


def build_maintenance(registry: Registry) -> list[dg.AssetsDefinition]:
    """Every operation on every stage of every declared table."""
    return [
        _asset(upkeep, stage, name, table)
        for name, table in registry.tables.items()
        for upkeep in UPKEEP
        for stage in upkeep.stages
    ]


class MaintenanceConfig(dg.Config):
    """How a run goes about it."""

    dry_run: bool = Field(default=False, description="Only print the plan: nothing is changed, nothing materialized.")


class CarefulConfig(dg.Config):
    """How a run of an operation goes about it that deletes what nothing can bring back."""

    dry_run: bool = Field(default=True, description="Only print the plan. Set it to false once you have read one.")


def _asset(upkeep: Upkeep, stage: Stage, name: str, table: Table) -> dg.AssetsDefinition:
    relation = stage_table(stage, name)

    def run(context: dg.AssetExecutionContext, tables: Tables, *, dry_run: bool) -> Iterator[dg.MaterializeResult]:
        from cdc_platform.maintenance.maintain import Effect

        with as_failure():
            found = tables.maintain(
                name, stage, upkeep.operation, dry_run=dry_run, run_id=context.run.run_id, say=context.log.info
            )
        metadata = effect_metadata(found) if isinstance(found, Effect) else plan_metadata(found)
        context.log_event(
            dg.AssetObservation(
                stage_key(stage, name), metadata=metadata, description=f"{upkeep.operation}: {metadata['outcome']}"
            )
        )
        if not isinstance(found, Effect):  # Where a person looks for it; never a materialization.
            context.log_event(
                dg.AssetObservation(
                    maintenance_key(upkeep.operation, stage, name), metadata=metadata, description="plan"
                )
            )
        else:
            yield dg.MaterializeResult(metadata=metadata)

    decorate = dg.asset(
        key=maintenance_key(upkeep.operation, stage, name),
        deps=[stage_key(stage, name)],
        group_name=GROUP,
        kinds={"iceberg", "spark"},
        owners=table.owners,
        tags=table_tags(table),
        description=f"{upkeep.about} Table `{relation}`. "
        + ("Started by hand. " if upkeep.by_hand else f"Started by {upkeep.operation}_sensor, or by hand. ")
        + "Each run shows what it planned and what it bought.",
        metadata={"dagster/table_name": relation, "dagster/storage_kind": "iceberg"},
        retry_policy=RETRIES,
        pool=f"{stage}_{name}",
        output_required=False,  # A dry run materializes nothing.
    )
    config_of = CarefulConfig if upkeep.dry_run else MaintenanceConfig

    @decorate
    def maintenance(
        context: dg.AssetExecutionContext,
        config: config_of,  # pyright: ignore[reportInvalidTypeForm]  Dagster reads it when this runs.
        tables: dg.ResourceParam[Tables],
    ) -> Iterator[dg.MaterializeResult]:
        yield from run(context, tables, dry_run=config.dry_run)

    return maintenance


def plan_metadata(plan: "Plan") -> dict[str, Any]:
    """What a dry run shows."""
    words = {"outcome": "dry run: nothing was changed", "plan": dg.MetadataValue.md(_bullets(plan.lines()))}
    return words | _figures(plan.figures())


def effect_metadata(effect: "Effect") -> dict[str, Any]:
    """What a run records: words first, then figures under labels that do not change, so that they plot."""
    figures = _figures(effect.figures())
    rows = [
        (label.removesuffix("_before"), f"{value:,}", f"{figures[after]:,}")
        for label, value in figures.items()
        if label.endswith("_before") and (after := label.removesuffix("_before") + "_after") in figures
    ]
    words = {
        "outcome": effect.outcome,
        "bought": dg.MetadataValue.md(markdown(("figure", "before", "after"), rows)),
        "plan": dg.MetadataValue.md(_bullets(effect.plan.lines())),
        "snapshot_ids": ", ".join(map(str, effect.snapshot_ids)),
    }
    notes = {"notes": dg.MetadataValue.md(_bullets(effect.notes))} if effect.notes else {}
    planned = {label: value for label, value in figures.items() if label.startswith("planned_")}
    return words | notes | {label: value for label, value in figures.items() if label not in planned} | planned


def _figures(found: Mapping[str, float | None]) -> dict[str, float | int]:
    """Counts as integers where GraphQL has them, seconds without digits that nobody measured."""
    return {
        label: value if isinstance(value, int) and abs(value) < _INTEGER_MAX else round(float(value), 4)
        for label, value in found.items()
        if value is not None
    }


def health_metadata(state: "TableHealth") -> dict[str, Any]:
    """A table's state as figures that plot. Floats where 32 bits may not do: GraphQL has no larger integers."""
    figures: dict[str, Any] = {
        label: float(value) if label.endswith("_bytes") else value
        for label, value in state.figures().items()
        if isinstance(value, int | float) and label != "oldest_snapshot_ms"
    }
    return figures | {
        "delete_ratio": round(state.delete_ratio, 4),
        "equality_deletes_per_data_file": round(state.equality_deletes_per_data_file, 1),
        "oldest_snapshot": dg.MetadataValue.timestamp(state.oldest_snapshot_ms / 1000),
        "snapshot_id": str(state.snapshot_id),
    }


def _bullets(lines: Iterator[str] | tuple[str, ...] | list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
