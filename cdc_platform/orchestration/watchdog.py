"""Whether the automation itself is at work: sensors and schedules that stopped, are silent or fail.

Belongs here: the asset `platform/automation`, its checks, and the rule. Does not: alerts (`alerts.py`), or the daemon's
own life: while it is dead nothing here runs, and `cdc-platform status` tells (`stack/dagster_services.py`).
Two evaluate the checks: the job check_convergence, like any other check, and alerts_sensor in each tick, which records
a result only when it changed. So a stopped schedule or a stuck run queue is found by the sensor, and a stopped sensor
by the schedule.
Rules: an instigator is known by code location, repository and name, which is how Dagster keeps its state. Without
these (a run in a process of its own), or without a state, the answer is unknown. Silence is held against a sensor only
if something else ticked before and during it: after a night with the machine off nothing is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from dagster._core.definitions.selector import InstigatorSelector  # Dagster exports no name for it.
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorTick, TickStatus
from dagster._utils.schedules import schedule_execution_time_iterator

from cdc_platform.deployment import Deployment
from cdc_platform.orchestration.outbox import FILE, Outbox, trouble

AUTOMATION = dg.AssetKey(["platform", "automation"])
SENSORS_ARE_RUNNING = "sensors_are_running"
ALERTS_ARE_DELIVERED = "alerts_are_delivered"
AFFECTED = "affected"  # Metadata: who is, and how. Another text is news, though the check failed before, too.
_FAILED_TICKS = 3
_INTERVALS_MAX = 3
_SILENCE_MIN_S = 300.0
_GIVEN_UP_FOR_S = 86_400.0
_ERROR_SHOWN_MAX = 300

Trouble = Literal["stopped", "silent", "failing", "unknown"]


@dataclass(frozen=True, slots=True)
class Ticker:
    """A sensor or a schedule of this code location, as it is declared."""

    name: str
    interval_s: float
    starts_itself: bool  # Its declared default is RUNNING.

    @property
    def silence_max_s(self) -> float:
        """Longer without a tick is silence."""
        return max(_INTERVALS_MAX * self.interval_s, _SILENCE_MIN_S)


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick. `failed` is None while it is under way."""

    at: float
    failed: bool | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Life:
    """What Dagster has of a ticker: whether it is on, since when, and its newest ticks, newest first."""

    on: bool
    since: float | None
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one ticker."""

    name: str
    trouble: Trouble
    text: str


def finding(ticker: Ticker, life: Life | None, others_ticks: Sequence[float], *, now: float) -> Finding | None:
    """Judge one ticker; `others_ticks` are times of any other's, which show that the daemon was at work."""
    if life is None or not (life.on or life.ticks or ticker.starts_itself):
        unknown = Finding(ticker.name, "unknown", "has not been started by Dagster's daemon yet")
        return unknown if ticker.starts_itself else None
    # A tick by a clock that was ahead would hide each silence until that time has come.
    times = [at for at in (*(tick.at for tick in life.ticks), life.since) if at is not None]
    newest = next((at for at in times if at <= now + _SILENCE_MIN_S), None)
    if not life.on:
        return Finding(ticker.name, "stopped", f"was stopped by hand; its last tick was {_time(newest)}")
    if newest is not None and life.since is not None:
        newest = max(newest, life.since)  # One that was switched on again just now owes no tick for the time before.
    ended = [tick for tick in life.ticks if tick.failed is not None][:_FAILED_TICKS]
    if len(ended) == _FAILED_TICKS and all(tick.failed for tick in ended):
        return Finding(ticker.name, "failing", f"its last {_FAILED_TICKS} ticks failed: {ended[0].error}")
    if newest is None:
        return Finding(ticker.name, "unknown", "has never ticked, and it is not known since when it is on")
    return _silence(ticker, newest, others_ticks, now)


def _silence(ticker: Ticker, newest: float, others_ticks: Sequence[float], now: float) -> Finding | None:
    if now - newest <= ticker.silence_max_s:
        return None
    # Somebody ticked when this one should have, and does now: the daemon was at work all the while.
    missed = any(newest + ticker.interval_s < at <= now - ticker.silence_max_s for at in others_ticks)
    ticks_now = any(at > now - _SILENCE_MIN_S - _SILENCE_MIN_S for at in others_ticks)
    if not (missed and ticks_now):
        return None
    text = f"has not ticked since {_time(newest)}; its interval is {ticker.interval_s:.0f} s, and others do tick"
    return Finding(ticker.name, "silent", text)


def findings(
    repository: dg.RepositoryDefinition | None,
    origin: tuple[str, str] | None,
    instance: dg.DagsterInstance,
    *,
    now: datetime,
) -> list[Finding] | None:
    """Judge every sensor and schedule of a repository; `origin` names its code location and itself. None: unknown."""
    if repository is None or origin is None:
        return None
    location, name = origin
    tickers = _tickers(repository, now)
    states = {
        state.name: state
        for state in instance.all_instigator_state()
        if state.selector == InstigatorSelector(location_name=location, repository_name=name, name=state.name)
    }
    lives = {ticker.name: _life(instance, states.get(ticker.name), ticker, now) for ticker in tickers}
    found: list[Finding] = []
    for ticker in tickers:
        others = [tick.at for other, life in lives.items() if other != ticker.name and life for tick in life.ticks]
        if one := finding(ticker, lives[ticker.name], others, now=now.timestamp()):
            found.append(one)
    return found


def running_evaluation(found: list[Finding] | None) -> dict[str, Any]:
    """What SENSORS_ARE_RUNNING says: the arguments of an AssetCheckResult or AssetCheckEvaluation."""
    if found is None:
        found = [Finding("", "unknown", "this run does not know its code location; look at the daemon's evaluation")]
    errors = [one for one in found if one.trouble in {"silent", "failing"}]
    unknown = all(one.trouble == "unknown" for one in found)
    metadata: dict[str, Any] = {
        "reason": "; ".join(f"{one.name} {one.text}".strip() for one in found) or "every sensor and schedule ticks",
        AFFECTED: ", ".join(sorted(f"{one.name} {one.trouble}".strip() for one in found)),
    }
    if found and unknown:
        metadata["outcome"] = "unknown"
    severity = dg.AssetCheckSeverity.ERROR if errors or not found else dg.AssetCheckSeverity.WARN
    return {"passed": not found, "severity": severity, "metadata": metadata}


def delivery_evaluation(state: Path, *, now: datetime) -> dict[str, Any]:
    """What ALERTS_ARE_DELIVERED says."""
    memory = Outbox(state).memory()
    delivery = memory.delivery
    reason = trouble(delivery, len(memory.pending))
    severity = dg.AssetCheckSeverity.ERROR
    if not reason and delivery.given_up_at:
        age_s = (now - datetime.fromisoformat(delivery.given_up_at)).total_seconds()
        if abs(age_s) < _GIVEN_UP_FOR_S:  # A clock that was ahead may have written a time to come.
            severity = dg.AssetCheckSeverity.WARN
            reason = (
                f"the webhook missed {delivery.given_up} alerts, the last at {delivery.given_up_at}; {FILE} has them"
            )
    figures = {"waiting": len(memory.pending), "given_up": delivery.given_up}
    return {
        "passed": not reason,
        "severity": severity,
        "metadata": {"reason": reason or "nothing waits that could not be delivered", **figures},
    }


def build_platform(deployment: Deployment) -> tuple[dg.AssetSpec, list[dg.AssetChecksDefinition]]:
    """The asset and its checks. Its owners are those of all tables: when it stands still, so does every table."""
    state = deployment.state

    @dg.asset_check(
        name=SENSORS_ARE_RUNNING,
        asset=AUTOMATION,
        description="Every sensor and schedule is on, ticks and does not fail.",
    )
    def sensors_are_running(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        job = context.run.remote_job_origin
        origin = (job.location_name, job.repository_origin.repository_name) if job else None
        repository = context.repository_def if job else None
        found = findings(repository, origin, context.instance, now=datetime.now(UTC))
        return dg.AssetCheckResult(**running_evaluation(found))

    @dg.asset_check(
        name=ALERTS_ARE_DELIVERED,
        asset=AUTOMATION,
        description="The declared webhook takes the alerts, and none was given up in the last day.",
    )
    def alerts_are_delivered() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(**delivery_evaluation(state, now=datetime.now(UTC)))

    spec = dg.AssetSpec(
        AUTOMATION,
        group_name="platform",
        kinds={"dagster"},
        owners=sorted({owner for table in deployment.registry.tables.values() for owner in table.owners}),
        description="What starts merges, rewrites, checks and alerts: its own sensors and schedules.",
    )
    return spec, [sensors_are_running, alerts_are_delivered]


def _tickers(repository: dg.RepositoryDefinition, now: datetime) -> list[Ticker]:
    sensors = [
        Ticker(
            sensor.name,
            float(sensor.minimum_interval_seconds or 30),
            sensor.default_status is dg.DefaultSensorStatus.RUNNING,
        )
        for sensor in repository.sensor_defs
    ]
    schedules = [
        Ticker(
            schedule.name,
            _cron_interval_s(schedule, now),
            schedule.default_status is dg.DefaultScheduleStatus.RUNNING,
        )
        for schedule in repository.schedule_defs
    ]
    return [*sensors, *schedules]


def _cron_interval_s(schedule: dg.ScheduleDefinition, now: datetime) -> float:
    times = schedule_execution_time_iterator(
        now.timestamp(), schedule.cron_schedule, schedule.execution_timezone or "UTC"
    )
    first, second = islice(times, 2)
    return (second - first).total_seconds()


def _life(instance: dg.DagsterInstance, state: InstigatorState | None, ticker: Ticker, now: datetime) -> Life | None:
    if state is None:
        return None
    origin_id, selector_id = state.instigator_origin_id, state.selector_id
    newest = instance.get_ticks(origin_id, selector_id, limit=_FAILED_TICKS + 1)
    # One more from before it could be missed: it shows for others that the daemon was at work then.
    before = instance.get_ticks(origin_id, selector_id, before=now.timestamp() - ticker.silence_max_s, limit=1)
    data: Any = state.instigator_data
    since = getattr(data, "last_sensor_start_timestamp", None) or getattr(data, "start_timestamp", None)
    return Life(state.status is not InstigatorStatus.STOPPED, since, tuple(map(_tick, [*newest, *before])))


def _tick(tick: InstigatorTick) -> Tick:
    if tick.status is TickStatus.STARTED:
        return Tick(tick.timestamp, None)
    error = tick.error.message.strip() if tick.error else ""
    return Tick(tick.timestamp, tick.status is TickStatus.FAILURE, error[:_ERROR_SHOWN_MAX])


def _time(at: float | None) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC" if at is not None else "never"
