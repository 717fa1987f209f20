"""Where an automated operation stands for a table: is it due, from where, and what to do about it.

Belongs here: the two operations, their runs as Dagster records them, and the step that follows. Sensors act
on it and a check reports it. Does not: the triggers (`hops.merge`, `maintenance.rewrite`), the attempts' rule
(`attempts.py`), or the objects that Dagster loads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dagster as dg

from cdc_platform.hops.merge import merge_decision, merged_through
from cdc_platform.maintenance.rewrite import rewrite_decision
from cdc_platform.orchestration.assets import curated_key, rewrite_key
from cdc_platform.orchestration.attempts import (
    Attempt,
    Exhausted,
    Request,
    Step,
    at_target,
    in_flight,
    next_step,
    since_success,
)
from cdc_platform.orchestration.resources import Tables
from cdc_platform.registry.model import Table

TABLE_TAG = "cdc/table"
OPERATION_TAG = "cdc/operation"
TARGET_TAG = "cdc/target"
TRIGGER_TAG = "cdc/trigger"
ATTEMPT_TAG = "cdc/attempt"

_BEGINNING = "beginning"
_RUNS_READ_MAX = 50  # Far more than attempts_max: enough to see every attempt for one target.
_IN_FLIGHT = {
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
}


@dataclass(frozen=True, slots=True)
class Due:
    """`target` names where the operation starts from; `counted` are the attempts made from there."""

    due: bool
    reason: str
    target: str
    counted: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that sensors start for one table at a time. Its name is that of its job."""

    name: str
    asset: Callable[[str], dg.AssetKey]
    due: Callable[[Tables, str, Table, Sequence[Attempt]], Due]


@dataclass(frozen=True, slots=True)
class Situation:
    """Where an operation stands for a table. `step` is None when nothing is due."""

    reason: str
    target: str | None  # None while a run is in flight: the tables have not been read.
    step: Step | None


def situation(
    operation: Operation,
    name: str,
    table: Table,
    *,
    tables: Tables,
    instance: dg.DagsterInstance,
    attempts_max: int,
) -> Situation:
    """Return where `operation` stands for a table; raises CdcError when its metadata can't be read."""
    # Runs before tables: a run that ends in between still counts as in flight, not as one that moved nothing.
    earlier = _earlier(instance, operation, name)
    if running := in_flight(earlier):
        return Situation(f"run {running.run_id} is in flight", None, running)
    found = operation.due(tables, name, table, earlier)
    if not found.due:
        return Situation(found.reason, found.target, None)
    step = next_step(earlier, found.counted, attempts_max=attempts_max)
    if isinstance(step, Request):
        tables.require_spark()  # A run without it would only use up an attempt; when it is back, all goes on.
    reason = found.reason
    if isinstance(step, Exhausted):
        reason = (
            f"given up after {step.attempts} attempts ({found.reason}). Read the error of run "
            f"{step.last_run_id}, correct its cause, then materialize "
            f"{operation.asset(name).to_user_string()} by hand: its success starts the automation again"
        )
    return Situation(reason, found.target, step)


def _earlier(instance: dg.DagsterInstance, operation: Operation, name: str) -> tuple[Attempt, ...]:
    """Runs of the operation on the table that carry our tags, newest first."""
    records = instance.get_run_records(
        dg.RunsFilter(tags={TABLE_TAG: name, OPERATION_TAG: operation.name}), limit=_RUNS_READ_MAX
    )
    return tuple(_attempt(record.dagster_run) for record in records)


def _attempt(run: dg.DagsterRun) -> Attempt:
    target = run.tags.get(TARGET_TAG, "")
    if run.status in _IN_FLIGHT:
        return Attempt(run.run_id, target, "in flight")
    succeeded = run.status is dg.DagsterRunStatus.SUCCESS
    return Attempt(run.run_id, target, "succeeded" if succeeded else "failed")


def _merge_due(tables: Tables, name: str, _table: Table, earlier: Sequence[Attempt]) -> Due:
    landing, curated = tables.landing(name), tables.curated(name)
    decision = merge_decision(landing, curated)
    start = merged_through(landing, curated) if landing else None
    target = str(start.snapshot_id) if start else _BEGINNING
    # Successes count too: a merge that succeeds moves the target, so one that did not would go on for ever.
    return Due(decision.due, decision.reason, target, at_target(earlier, target))


def _rewrite_due(tables: Tables, name: str, table: Table, earlier: Sequence[Attempt]) -> Due:
    landing = tables.landing(name)
    rewritten = landing.newest(lambda s: s.operation == "replace") if landing else None
    target = str(rewritten.snapshot_id) if rewritten else _BEGINNING
    attempts = at_target(earlier, target)
    # A rewrite that found nothing to do made no snapshot: it is due again after as many commits once more.
    found_nothing = sum(attempt.state == "succeeded" for attempt in attempts)
    decision = rewrite_decision(
        landing, commits_max=table.maintenance("landing").rewrite_after_commits * (1 + found_nothing)
    )
    return Due(decision.due, decision.reason, target, since_success(attempts))


MERGE = Operation("merge_curated", curated_key, _merge_due)
REWRITE = Operation("rewrite_data_files", rewrite_key, _rewrite_due)
