"""Where an automated operation stands for a table: is it due, from where, and what to do about it.

Belongs here: the operations, their runs as Dagster records them, and the step that follows. Sensors act on it and a
check reports it. Does not: the triggers (`hops.merge`, `maintenance`), the attempts' rule (`attempts.py`), how a tick
goes over tables (`ticks.py`), or the objects that Dagster loads.
Rules: runs are looked at before tables, so that a run that ends in between still counts as in flight, not as one that
moved nothing. Of all runs only those in flight are read in each tick, in one query; a table's own runs once it is due.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from cdc_platform.hops.merge import merge_decision, merged_through
from cdc_platform.maintenance.runs import Operation as Upkept
from cdc_platform.operations import Stage
from cdc_platform.orchestration.assets import curated_key
from cdc_platform.orchestration.attempts import (
    Attempt,
    Exhausted,
    Request,
    Step,
    Wait,
    at_target,
    in_flight,
    next_step,
)
from cdc_platform.orchestration.maintenance import PROOF_WITHIN_S, UPKEEP, Upkeep, maintenance_key
from cdc_platform.orchestration.resources import Tables
from cdc_platform.registry.model import Table

TABLE_TAG = "cdc/table"
OPERATION_TAG = "cdc/operation"
STAGE_TAG = "cdc/stage"
TARGET_TAG = "cdc/target"
TRIGGER_TAG = "cdc/trigger"
ATTEMPT_TAG = "cdc/attempt"

_BEGINNING = "beginning"
_MERGE = "merge_curated"
_RUNS_READ_MAX = 100  # Of a table, its stages together. Far more than attempts_max: every attempt for one target.
_IN_FLIGHT_READ_MAX = 1_000  # Of all tables: one each, and few tables more than that run at a time.
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


# What was read of a table, asked with the attempts that there were: called with none first, which may only say more
# often that it is due.
Judge = Callable[[Sequence[Attempt]], Due]


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that sensors start for one table at a time. Its name is that of its job, for every stage."""

    name: str
    stage: Stage
    asset: Callable[[str], dg.AssetKey]
    read: Callable[[Tables, str, Table], Judge]  # Reads metadata, in a thread of its own (`ticks.py`).
    runtime_max_s: Callable[[Table], int] | None = None  # Of a run on this table; None: as its job says.

    def ran(self, run: dg.DagsterRun) -> bool:
        """Whether a run of this name was of this stage. Before there was a tag for it, each operation had one stage."""
        default = "curated" if self.name == _MERGE else "landing"
        return run.tags.get(STAGE_TAG, default) == self.stage


@dataclass(frozen=True, slots=True)
class Situation:
    """Where an operation stands for a table. `step` is None when nothing is due."""

    reason: str
    target: str | None  # None while a run is in flight: the tables have not been read.
    step: Step | None


class Runs:
    """Runs of an operation's name as they are when this is made, which is before any table is read."""

    def __init__(self, instance: dg.DagsterInstance, name: str) -> None:
        self._instance = instance
        self._name = name
        self._made = datetime.now(UTC)
        records = instance.get_run_records(
            dg.RunsFilter(tags={OPERATION_TAG: name}, statuses=list(_IN_FLIGHT)), limit=_IN_FLIGHT_READ_MAX
        )
        self._in_flight = [r.dagster_run for r in records]

    def in_flight(self, operation: Operation, name: str) -> Wait | None:
        """The newest run of the table that is queued or under way."""
        ours = (run for run in self._in_flight if run.tags.get(TABLE_TAG) == name and operation.ran(run))
        return next((Wait(run.run_id) for run in ours), None)

    def earlier(self, operation: Operation, name: str) -> tuple[Attempt, ...] | Wait:
        """The table's runs that carry our tags, newest first.

        A Wait when one of them has begun or ended since this was made: it knows more than what was read of the table.
        """
        records = self._instance.get_run_records(
            dg.RunsFilter(tags={TABLE_TAG: name, OPERATION_TAG: self._name}), limit=_RUNS_READ_MAX
        )
        ours = [record for record in records if operation.ran(record.dagster_run)]
        if moved := next((r for r in ours if r.update_timestamp > self._made), None):
            return Wait(moved.dagster_run.run_id)
        return tuple(_attempt(record.dagster_run) for record in ours)


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
    runs = Runs(instance, operation.name)
    judge = None if runs.in_flight(operation, name) else operation.read(tables, name, table)
    return situation_of(
        operation, name, judge, runs=runs, attempts_max=attempts_max, require_spark=tables.require_spark
    )


def situation_of(
    operation: Operation,
    name: str,
    judge: Judge | None,
    *,
    runs: Runs,
    attempts_max: int,
    require_spark: Callable[[], None],
) -> Situation:
    """Where an operation stands, from what was read of the table after `runs` was; None was not read."""
    if running := runs.in_flight(operation, name):
        return Situation(f"run {running.run_id} is in flight", None, running)
    assert judge is not None, "only a table with a run in flight is not read"
    found = judge(())
    if not found.due:
        return Situation(found.reason, found.target, None)
    earlier = runs.earlier(operation, name)
    if isinstance(earlier, Wait):
        return Situation(f"run {earlier.run_id} changed while the table was read; look again", None, earlier)
    if running := in_flight(earlier):
        return Situation(f"run {running.run_id} is in flight", None, running)
    found = judge(earlier)
    if not found.due:
        return Situation(found.reason, found.target, None)
    step = next_step(earlier, found.counted, attempts_max=attempts_max)
    if isinstance(step, Request):
        require_spark()  # A run without it would only use up an attempt; when it is back, all goes on.
    reason = found.reason
    if isinstance(step, Exhausted):
        reason = (
            f"given up after {step.attempts} attempts ({found.reason}). Read the error of run "
            f"{step.last_run_id}, correct its cause, then materialize "
            f"{operation.asset(name).to_user_string()} by hand: its success starts the automation again"
        )
    return Situation(reason, found.target, step)


def _attempt(run: dg.DagsterRun) -> Attempt:
    target = run.tags.get(TARGET_TAG, "")
    if run.status in _IN_FLIGHT:
        return Attempt(run.run_id, target, "in flight")
    succeeded = run.status is dg.DagsterRunStatus.SUCCESS
    return Attempt(run.run_id, target, "succeeded" if succeeded else "failed")


def _read_merge(tables: Tables, name: str, _table: Table) -> Judge:
    landing, curated = tables.landing(name), tables.curated(name)
    decision = merge_decision(landing, curated)
    start = merged_through(landing, curated) if landing else None
    target = str(start.snapshot_id) if start else _BEGINNING
    # Successes count too: a merge that succeeds moves the target, so one that did not would go on for ever.
    return lambda earlier: Due(decision.due, decision.reason, target, at_target(earlier, target))


def _read_upkeep(operation: Upkept, stage: Stage) -> Callable[[Tables, str, Table], Judge]:
    def read(tables: Tables, name: str, _table: Table) -> Judge:
        found = tables.due(name, stage, operation)
        decision, start = found.decision, found.start
        # As for merges: a run that succeeds records itself in the table, which moves the start.
        return lambda earlier: Due(decision.due, decision.reason, start, at_target(earlier, start))

    return read


def _upkeep(upkeep: Upkeep, stage: Stage) -> Operation:
    return Operation(
        upkeep.operation,
        stage,
        lambda name: maintenance_key(upkeep.operation, stage, name),
        _read_upkeep(upkeep.operation, stage),
        lambda table: int(table.maintenance(stage).run_time_max.total_seconds()) + PROOF_WITHIN_S,
    )


MERGE = Operation(_MERGE, "curated", curated_key, _read_merge)
AUTOMATED: Mapping[Upkeep, tuple[Operation, ...]] = {
    upkeep: tuple(_upkeep(upkeep, stage) for stage in upkeep.stages) for upkeep in UPKEEP if not upkeep.by_hand
}
