"""What can be started by name: by hand, by a sensor, by the schedule.

Belongs here: jobs, their priority and time limit. Does not: when they run (`sensors.py`, `schedules.py`).
"""

from typing import Any

import dagster as dg
from pydantic import Field

from cdc_platform.orchestration.assets import markdown
from cdc_platform.orchestration.automation import MERGE, OPERATION_TAG
from cdc_platform.orchestration.failures import as_failure
from cdc_platform.orchestration.maintenance import UPKEEP, of_operation
from cdc_platform.orchestration.resources import Tables

_REPLAY = "replay_dead_letters"
_ANSWERS_SHOWN_MAX = 100


def _tags(operation: str, *, priority: int, runtime_max_s: int) -> dict[str, str]:
    return {
        OPERATION_TAG: operation,
        "dagster/priority": str(priority),
        "dagster/max_runtime": str(runtime_max_s),
    }


# What consumers wait for goes first: merge, then comparisons, rewrites, expiry. A backfill's runs have no priority,
# which is 0, so that they come last.
merge_curated = dg.define_asset_job(
    MERGE.name,
    selection=dg.AssetSelection.groups("curated").without_checks(),
    description="Merge landing into curated, for the selected tables.",
    tags=_tags(MERGE.name, priority=10, runtime_max_s=1800),
)
check_convergence = dg.define_asset_job(
    "check_convergence",
    selection=dg.AssetSelection.all_asset_checks(),
    description="Compare every stage of every table with its source.",
    tags=_tags("check_convergence", priority=8, runtime_max_s=3600),
)
maintenance_jobs = {
    upkeep.operation: dg.define_asset_job(
        upkeep.operation,
        selection=of_operation(upkeep.operation),
        description=f"{upkeep.about} For the selected tables; `dry_run` in an asset's config only prints the plan.",
        # A sensor's run has the limit of its table's policy instead.
        tags=_tags(upkeep.operation, priority=upkeep.priority, runtime_max_s=7200),
    )
    for upkeep in UPKEEP
}


class ReplayConfig(dg.Config):
    """Which dead letters, and what their rows hold instead."""

    table: str = Field(description="Name of the table in tables.yaml.")
    offsets: list[int] = Field(default=[], description="Of the letters; none: all that are open, or of `reason`.")
    reason: str = Field(default="", description="With no offsets: only letters of this reason.")
    corrections: dict[str, str] = Field(
        default={}, description='What the rows hold instead: column to JSON, {"total": "12.50", "note": "\\"x\\""}.'
    )
    dry_run: bool = Field(default=True, description="Only say what would happen. Nothing is sent.")
    wait_s: int = Field(default=60, ge=1, le=900, description="Seconds to wait for the sink's word.")


@dg.op(name=f"{_REPLAY}_op")
def _replay(context: dg.OpExecutionContext, config: ReplayConfig, tables: dg.ResourceParam[Tables]) -> None:
    from cdc_platform.landing.corrections import DONE, Correction
    from cdc_platform.landing.letters import Choice

    with as_failure():
        answers = tables.replay_letters(
            config.table,
            Choice(tuple(config.offsets), config.reason),
            Correction(_corrections(config.corrections)),
            dry_run=config.dry_run,
            wait_s=config.wait_s,
        )
    metadata: dict[str, Any] = {"letters": len(answers), "dry_run": config.dry_run}
    for fact in ("outcome", "reason"):
        values = [str(getattr(a, fact)) for a in answers]
        metadata |= {f"{fact}_{value}": values.count(value) for value in sorted(set(values))}
    rows = [[str(a.log_offset), a.reason, a.outcome, a.why.replace("|", "\\|")] for a in answers[:_ANSWERS_SHOWN_MAX]]
    metadata["answers"] = dg.MetadataValue.md(markdown(("log_offset", "reason", "outcome", "why"), rows))
    if not config.dry_run and any(a.outcome not in DONE for a in answers):
        raise dg.Failure("not every letter was replayed; `answers` says why of each", metadata, allow_retries=False)
    context.add_output_metadata(metadata)


def _corrections(texts: dict[str, str]) -> dict[str, object]:
    from cdc_platform.landing.corrections import parse_json

    try:
        return {column: parse_json(text) for column, text in texts.items()}
    except ValueError as error:
        what = "`corrections` holds no JSON: a text is in double quotes of its own"
        raise dg.Failure(what, allow_retries=False) from error


@dg.job(
    name=_REPLAY,
    description="Send dead letters again, corrected. One whose row has changed since is refused.",
    tags=_tags(_REPLAY, priority=8, runtime_max_s=1800),
)
def replay_dead_letters() -> None:
    """One step."""
    _replay()


JOBS = (merge_curated, check_convergence, *maintenance_jobs.values(), replay_dead_letters)
