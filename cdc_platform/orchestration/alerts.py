"""What operators are told: checks and runs whose state changed, once for each change.

Belongs here: the sensor, and what makes an alert. Does not: files, the webhook and their limits (`outbox.py`), or
whether the automation works (`watchdog.py`; this sensor evaluates it, too).
A failed check leaves its run green, so Dagster's own run-failure sensors never see it: check events are read here, in
the order in which they were stored. What is compared with is what was *told*, not the evaluation before: that one may
have come while nobody could be told. An evaluation that says the same as before is no news; checks run every 5 minutes.
Lost memory costs one alert for each check that fails now, and none for the past; so does a storage of events that was
made anew, where ids begin again. An event or a run that can't be told costs itself alone.
Runs: one alert when what a run was to do fails, one when it succeeds again; retries in between are muted. When the
attempts are used up the check automation_succeeds fails, which is an alert of its own.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from cdc_platform.deployment import Deployment
from cdc_platform.orchestration.automation import OPERATION_TAG, STAGE_TAG, TABLE_TAG
from cdc_platform.orchestration.outbox import Alert, Memory, Outbox, State, trouble
from cdc_platform.orchestration.watchdog import (
    AFFECTED,
    ALERTS_ARE_DELIVERED,
    AUTOMATION,
    SENSORS_ARE_RUNNING,
    delivery_evaluation,
    findings,
    running_evaluation,
)

_EVENTS_MAX = 500  # In a tick; what is more is for the next.
_RUNS_MAX = 200
_CHECK_RECORDS_READ_MAX = 10
_OVERLAP = timedelta(seconds=10)  # A run's end may become visible after a later one's.
_AHEAD_MAX = timedelta(minutes=5)  # That the database's clock may be.
_TEXT_MAX = 1_000
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]


def build_alerts_sensor(deployment: Deployment) -> dg.SensorDefinition:
    """The sensor that tells operators."""
    webhook = deployment.registry.automation.alerts.webhook

    @dg.sensor(
        name="alerts_sensor",
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Tells of each check and run whose state changed, once: in alerts.jsonl, and to the webhook.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        now = datetime.now(UTC)
        outbox = Outbox(deployment.state)
        news = _News(deployment, context)
        with outbox.locked():
            memory = outbox.memory()
            found = [*news.of_checks(memory), *news.of_runs(memory, now)]
            outbox.add(memory, found, webhook=webhook is not None, now=now)
            outbox.write(memory)
            if webhook is not None:
                outbox.deliver(memory, os.environ.get(webhook.env), log=context.log, now=now)
                outbox.write(memory)
        told = f"{len(found)} alerts, {len(memory.pending)} wait for the webhook"
        wrong = trouble(memory.delivery, len(memory.pending))
        return dg.SensorResult(
            skip_reason=f"{told}; {wrong}" if wrong else told,
            asset_events=list(_watched(deployment, context, memory, now)),
        )

    return alerts


def state_of(evaluation: dg.AssetCheckEvaluation) -> State:
    """How an evaluation is told."""
    if evaluation.passed:
        return "passed"
    if _text(evaluation, "outcome") == "unknown":
        return "unknown"
    return "warning" if evaluation.severity is dg.AssetCheckSeverity.WARN else "failed"


def _remembered(evaluation: dg.AssetCheckEvaluation) -> str:
    """What `told` keeps: the state, and who is affected where a check is of many."""
    affected = _text(evaluation, AFFECTED)
    return f"{state_of(evaluation)}|{affected}" if affected else state_of(evaluation)


def _subject(key: dg.AssetCheckKey) -> str:
    return f"{key.asset_key.to_user_string()}:{key.name}"


def _watched(
    deployment: Deployment, context: dg.SensorEvaluationContext, memory: Memory, now: datetime
) -> Iterator[dg.AssetCheckEvaluation]:
    """The watchdog's results, where they are not what was told last; the next tick reads and tells them."""
    location, name = context.code_location_origin, context.repository_name
    origin = (location.location_name, name) if location and name else None
    if origin is None:
        return
    results = {
        SENSORS_ARE_RUNNING: running_evaluation(findings(context.repository_def, origin, context.instance, now=now)),
        ALERTS_ARE_DELIVERED: delivery_evaluation(deployment.state, now=now),
    }
    for check, result in results.items():
        evaluation = dg.AssetCheckEvaluation(asset_key=AUTOMATION, check_name=check, **result)
        if _remembered(evaluation) != memory.told.get(_subject(evaluation.asset_check_key), "passed"):
            yield evaluation


class _News:
    """What changed, as Dagster's instance has it. Moves `memory` on past all that it looked at."""

    def __init__(self, deployment: Deployment, context: dg.SensorEvaluationContext) -> None:
        self._deployment = deployment
        self._instance = context.instance
        self._repository = context.repository_def
        self._location = context.code_location_origin
        self._log = context.log

    def of_checks(self, memory: Memory) -> Iterator[Alert]:
        if memory.event < 0:
            yield from self._as_they_stand(memory)
            return
        records = list(self._check_events(after=memory.event))
        if not records and self._newest_event() < memory.event:
            self._log.warning("Dagster's storage of events was made anew: checks are told as they stand")
            yield from self._as_they_stand(memory)
            return
        for record in records:
            memory.event = record.storage_id
            event = record.event_log_entry
            evaluation = event.dagster_event.event_specific_data if event.dagster_event else None
            if isinstance(evaluation, dg.AssetCheckEvaluation):
                with self._alone(f"check event {record.storage_id}"):
                    yield from list(self._of(evaluation, memory, at=event.timestamp, run_id=event.run_id))

    def of_runs(self, memory: Memory, now: datetime) -> Iterator[Alert]:
        if not 0 < memory.runs_after <= (now + _AHEAD_MAX).timestamp():  # Of a clock that was ahead: it would wait.
            memory.runs_after = now.timestamp()
        after = datetime.fromtimestamp(memory.runs_after, UTC)
        records = self._instance.get_run_records(
            dg.RunsFilter(statuses=_ENDED, updated_after=after - _OVERLAP),
            limit=_RUNS_MAX,
            order_by="update_timestamp",
            ascending=True,
        )
        seen = set(memory.runs_seen)
        fresh = [r for r in records if r.dagster_run.run_id not in seen and self._is_ours(r.dagster_run)]
        for record in fresh:
            with self._alone(f"run {record.dagster_run.run_id}"):
                at = record.update_timestamp.timestamp()
                yield from list(self._of_run(record.dagster_run, memory, at=at))
        if records:
            full = len(records) == _RUNS_MAX and not fresh  # All of a page are known: go on behind it.
            newest = records[-1].update_timestamp + (_OVERLAP if full else timedelta(0))
            memory.runs_after = max(memory.runs_after, newest.timestamp())
        memory.runs_seen = [r.dagster_run.run_id for r in records]

    def _as_they_stand(self, memory: Memory) -> Iterator[Alert]:
        """Nothing is remembered: begin at the end of the events, and tell what is wrong now."""
        memory.event = self._newest_event()
        keys = sorted(self._repository.asset_graph.asset_check_keys if self._repository else (), key=_subject)
        storage = self._instance.event_log_storage
        latest = storage.get_latest_asset_check_execution_by_key(
            keys
        )  # One query: a query for each took 18 s at 1,900.
        for key in keys:
            if (last := latest.get(key)) is None:
                continue
            records: Iterable[Any] = [last]
            if not isinstance(last.evaluation, dg.AssetCheckEvaluation):  # Planned, or it raised.
                records = storage.get_asset_check_execution_history(key, limit=_CHECK_RECORDS_READ_MAX)
            for record in records:
                if isinstance(evaluation := record.evaluation, dg.AssetCheckEvaluation):
                    with self._alone(_subject(key)):
                        at, run_id = record.create_timestamp, record.run_id
                        yield from list(self._of(evaluation, memory, at=at, run_id=run_id))
                    break

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Leave out what can't be told: raised, it would end this tick and each one after it."""
        try:
            yield
        except Exception:
            self._log.exception(f"{what} could not be told and is left out")

    def _newest_event(self) -> int:
        newest = list(self._check_events(after=None, limit=1, ascending=False))
        return newest[0].storage_id if newest else 0

    def _check_events(self, after: int | None, *, limit: int = _EVENTS_MAX, ascending: bool = True) -> Iterable[Any]:
        """Check events by their storage id. SQLite keeps events by run; in its index, too, are those of checks."""
        from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

        storage = self._instance.event_log_storage
        wanted = dg.EventRecordsFilter(event_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION, after_cursor=after)
        if isinstance(storage, SqlEventLogStorage):
            return SqlEventLogStorage.get_event_records(storage, wanted, limit, ascending)
        return storage.get_event_records(wanted, limit, ascending)

    def _of(self, evaluation: dg.AssetCheckEvaluation, memory: Memory, *, at: float, run_id: str) -> Iterator[Alert]:
        key = evaluation.asset_check_key
        asset, subject, state = key.asset_key.to_user_string(), _subject(key), state_of(evaluation)
        parts = [_text(evaluation, part) or "" for part in ("reason", "action")]
        message = ". ".join(part.rstrip(".") for part in [evaluation.description or "", *parts] if part)
        was = _change(memory, subject, _remembered(evaluation))
        if was is not None:
            yield Alert(
                id=f"check:{subject}:{state}:{at:.3f}",
                at=_time(at),
                deployment=self._deployment.registry.deployment,
                kind="check",
                state=state,
                was=was,
                subject=subject,
                asset=asset,
                check=key.name,
                run_id=run_id or "",
                owners=self._owners([key.asset_key]),
                message=f"{asset}: {key.name} {_WORDS[state]}. {message}".strip()[:_TEXT_MAX],
            )

    def _of_run(self, run: dg.DagsterRun, memory: Memory, *, at: float) -> Iterator[Alert]:
        failed = run.status is dg.DagsterRunStatus.FAILURE
        assets = sorted(run.asset_selection or (), key=lambda key: key.to_user_string())
        table = run.tags.get(TABLE_TAG, "")
        subject = run.tags.get(OPERATION_TAG, run.job_name)
        if table:
            subject += f" {run.tags[STAGE_TAG]}.{table}" if STAGE_TAG in run.tags else f" {table}"
        elif assets:
            subject += f" {', '.join(key.to_user_string() for key in assets)}"[:200]
        was = _change(memory, subject, "failed" if failed else "passed")
        if was is not None:
            declared = self._deployment.registry.tables.get(table)
            what = f"failed: {self._error(run)}" if failed else "succeeds again"
            yield Alert(
                id=f"run:{run.run_id}:{run.status.value}",
                at=_time(at),
                deployment=self._deployment.registry.deployment,
                kind="run",
                state="failed" if failed else "passed",
                was=was,
                subject=subject,
                asset=assets[0].to_user_string() if len(assets) == 1 else "",
                check="",
                run_id=run.run_id,
                owners=declared.owners if declared else self._owners(assets),
                message=f"{subject} {what}"[:_TEXT_MAX],
            )

    def _is_ours(self, run: dg.DagsterRun) -> bool:
        origin = run.remote_job_origin
        return origin is None or self._location is None or origin.location_name == self._location.location_name

    def _owners(self, assets: Iterable[dg.AssetKey]) -> tuple[str, ...]:
        graph = self._repository.asset_graph if self._repository else None
        return tuple(sorted({owner for key in assets if graph and graph.has(key) for owner in graph.get(key).owners}))

    def _error(self, run: dg.DagsterRun) -> str:
        """The first step's error, in its own words; a run whose log can't be read has failed all the same."""
        try:
            return self._first_error(run)
        except Exception:
            self._log.exception(f"the log of run {run.run_id} could not be read")
            return "its log could not be read"

    def _first_error(self, run: dg.DagsterRun) -> str:
        steps = self._instance.get_records_for_run(
            run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE, limit=1
        ).records
        event = steps[0].event_log_entry.dagster_event if steps else None
        if event is None:
            return "no step says why; read the run's log"
        data = event.step_failure_data
        if data.user_failure_data and data.user_failure_data.description:
            return data.user_failure_data.description
        error = data.error.cause or data.error if data.error else None
        return error.message.strip() if error else "no step says why; read the run's log"


_WORDS: dict[State, str] = {
    "passed": "passes again",
    "warning": "warns",
    "unknown": "could not be told",
    "failed": "failed",
}


def _change(memory: Memory, subject: str, remembered: str) -> State | None:
    """The state that was told last if this one is another; remembers this one."""
    before = memory.told.get(subject, "passed")
    if before == remembered:
        return None
    if remembered == "passed":
        del memory.told[subject]
    else:
        memory.told[subject] = remembered
    state: Any = before.partition("|")[0]
    return state


def _text(evaluation: dg.AssetCheckEvaluation, label: str) -> str | None:
    value = evaluation.metadata.get(label)
    return str(value.value) if value is not None else None


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
