"""What reacts to the tables: reports landing's snapshots, starts merges and rewrites.

Belongs here: sensors, one for each operation over all tables. Does not: whether something is due or tried
again (`automation.py`), deadlines (`ticks.py`). A tick reads metadata and run records alone.
Rules: a table that can't be read costs only itself, because a tick that raises loses its cursor and all that
it found; when no table can be read the tick does raise, so that it shows. The state is in the tables, in the
run records and in the check's last result: a lost cursor costs one more event and no run. Tables are read in threads;
Dagster's instance is asked in the tick's own.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

import dagster as dg

from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.landing.position import EVENTS, LOG_POSITION, SOURCE_LSN, SOURCE_TS_MS, advanced
from cdc_platform.maintenance.runs import since_rewrite
from cdc_platform.orchestration.assets import (
    changelog_key,
    column_schema,
    dead_letters_key,
    landing_key,
    letters_metadata,
    source_key,
)
from cdc_platform.orchestration.attempts import Exhausted, Request
from cdc_platform.orchestration.automation import (
    ATTEMPT_TAG,
    AUTOMATED,
    MERGE,
    OPERATION_TAG,
    STAGE_TAG,
    TABLE_TAG,
    TARGET_TAG,
    TRIGGER_TAG,
    Judge,
    Operation,
    Runs,
    Situation,
    situation_of,
)
from cdc_platform.orchestration.checks import AUTOMATION_SUCCEEDS
from cdc_platform.orchestration.jobs import maintenance_jobs, merge_curated
from cdc_platform.orchestration.resources import Tables
from cdc_platform.orchestration.ticks import for_each
from cdc_platform.registry.model import Registry, Table

_CURSOR_VERSION = 1
_CHECK_RECORDS_READ_MAX = 10  # The newest may be of runs that have not evaluated the check, or never did.
_Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


def build_sensors(registry: Registry) -> list[dg.SensorDefinition]:
    """The sensors of a registry."""
    return [
        _landing_snapshots(registry),
        _starting([MERGE], merge_curated, registry, interval_s=5, about="Starts a merge once landing has moved."),
        *(
            _starting(
                operations,
                maintenance_jobs[upkeep.operation],
                registry,
                interval_s=upkeep.interval_s,
                about=f"Starts {upkeep.operation} where a table's `maintenance` policy says so. {upkeep.about}",
            )
            for upkeep, operations in AUTOMATED.items()
        ),
    ]


def _starting(
    operations: Sequence[Operation],
    job: Any,  # What define_asset_job returns has no public name.
    registry: Registry,
    *,
    interval_s: int,
    about: str,
) -> dg.SensorDefinition:
    """The sensor of one operation, which may be of several stages."""
    [operation_name] = {operation.name for operation in operations}
    # A table is told by its name, and by its stage where there are several.
    subjects = {
        name if len(operations) == 1 else f"{operation.stage}.{name}": (operation, name)
        for name in registry.tables
        for operation in operations
    }

    @dg.sensor(
        name=f"{operation_name}_sensor",
        job=job,
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"{about} A failed run is tried again, {registry.automation.attempts_max} times in all; "
        f"then the check {AUTOMATION_SUCCEEDS} fails.",
    )
    def starting(context: dg.SensorEvaluationContext, tables: dg.ResourceParam[Tables]) -> dg.SensorResult:
        requests: list[dg.RunRequest] = []
        events: list[_Event] = []
        runs = Runs(context.instance, operation_name)
        failed_targets = _FailedTargets(context.instance, [_automation_key(*subject) for subject in subjects.values()])
        require_spark = _once(tables.require_spark)

        def read(subject: str) -> Judge | None:
            operation, name = subjects[subject]
            return None if runs.in_flight(operation, name) else operation.read(tables, name, registry.tables[name])

        def act(subject: str, judge: Judge | None) -> str:
            operation, name = subjects[subject]
            found = situation_of(
                operation,
                name,
                judge,
                runs=runs,
                attempts_max=registry.automation.attempts_max,
                require_spark=require_spark,
            )
            events.extend(_automation_events(failed_targets, _automation_key(operation, name), found))
            if isinstance(found.step, Request):
                requests.append(_run_request(operation, name, registry.tables[name], found, found.step))
            return found.reason

        passed = for_each([*subjects], read, act, first=_first(context.cursor), log=context.log)
        cursor = json.dumps({"v": _CURSOR_VERSION, "first": passed.first}) if passed.first else None
        if requests:
            return dg.SensorResult(run_requests=requests, asset_events=events, cursor=cursor)
        return dg.SensorResult(skip_reason="; ".join(passed.reasons), asset_events=events, cursor=cursor)

    return starting


def _once(act: Callable[[], None]) -> Callable[[], None]:
    """`act`, done at the first call; each call after it ends as that one did."""

    @cache
    def error() -> Exception | None:
        try:
            act()
        except Exception as raised:  # Raised below, for each caller.
            return raised
        return None

    def once() -> None:
        if raised := error():
            raise raised

    return once


def _first(cursor: str | None) -> str:
    """Which table has the first turn: the cursor is a hint, one that can't be read says nothing."""
    try:
        return str(json.loads(cursor or "{}").get("first", ""))
    except (ValueError, AttributeError):
        return ""


def _run_request(operation: Operation, name: str, table: Table, found: Situation, step: Request) -> dg.RunRequest:
    target = str(found.target)
    return dg.RunRequest(
        run_key=f"{operation.stage}.{name}:{operation.name}:{target}:attempt{step.number}:after:{step.after or 'none'}",
        asset_selection=[operation.asset(name)],
        asset_check_keys=[],  # Else the asset's checks come along, whatever the job selects.
        tags={
            TABLE_TAG: name,
            OPERATION_TAG: operation.name,
            STAGE_TAG: operation.stage,
            TARGET_TAG: target,
            TRIGGER_TAG: found.reason,
            ATTEMPT_TAG: str(step.number),
        }
        | ({"dagster/max_runtime": str(operation.runtime_max_s(table))} if operation.runtime_max_s else {}),
    )


def _automation_key(operation: Operation, name: str) -> dg.AssetCheckKey:
    return dg.AssetCheckKey(operation.asset(name), AUTOMATION_SUCCEEDS)


def _automation_events(
    failed_targets: "_FailedTargets", key: dg.AssetCheckKey, found: Situation
) -> Iterator[dg.AssetCheckEvaluation]:
    """A failed check once the attempts for a target are used up, a passed one once it has moved on."""
    if found.target is None:
        return
    exhausted = isinstance(found.step, Exhausted)
    failed_target = failed_targets.of(key)
    if found.target == failed_target or (failed_target is None and not exhausted):
        return
    yield dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=not exhausted,
        metadata={"reason": found.reason, "target": found.target},
    )


class _FailedTargets:
    """For which target each check failed last. One query for all of them; more for one whose newest run is not done."""

    def __init__(self, instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey]) -> None:
        self._storage = instance.event_log_storage
        self._newest = self._storage.get_latest_asset_check_execution_by_key(keys)

    def of(self, key: dg.AssetCheckKey) -> str | None:
        """Target for which the check last failed, or None when its last result is not a failure."""
        if (newest := self._newest.get(key)) is None:
            return None
        records: Sequence[Any] = [newest]
        if not isinstance(newest.evaluation, dg.AssetCheckEvaluation):  # Planned.
            records = self._storage.get_asset_check_execution_history(key, limit=_CHECK_RECORDS_READ_MAX)
        evaluations = (r.evaluation for r in records if isinstance(r.evaluation, dg.AssetCheckEvaluation))
        last = next(evaluations, None)
        return str(last.metadata["target"].value) if last and not last.passed else None


def _landing_snapshots(registry: Registry) -> dg.SensorDefinition:
    @dg.sensor(
        name="landing_snapshots_sensor",
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports what the sink has committed to landing since the last tick, one event a table.",
    )
    def landing_snapshots(context: dg.SensorEvaluationContext, tables: dg.ResourceParam[Tables]) -> dg.SensorResult:
        seen = _parsed(context.cursor)
        events: list[_Event] = []

        def act(name: str, news: News) -> str:
            seen[name] = news.seen
            events.extend(news.events)
            return news.reason

        passed = for_each(
            [*registry.tables],
            lambda name: _news(tables, name, registry.tables[name], seen.get(name, Seen())),
            act,
            first=_first(context.cursor),
            log=context.log,
        )
        cursor = json.dumps({"v": _CURSOR_VERSION, "seen": seen, "first": passed.first})
        # To Dagster a tick without a run is a skip, though its events are stored.
        return dg.SensorResult(skip_reason="; ".join(passed.reasons), asset_events=events, cursor=cursor)

    return landing_snapshots


def _news(tables: Tables, name: str, table: Table, before: "Seen") -> "News":
    """Read one table, and make the events of what is new in it."""
    events: list[_Event] = []
    letters_id = _letters_id(tables, name)
    if letters_id != before.letters_id:
        metadata = letters_metadata(tables.letters(name)) | {"snapshot_id": letters_id}
        events.append(dg.AssetMaterialization(dead_letters_key(name), metadata=metadata))
    seen = before._replace(letters_id=letters_id)
    history = tables.landing(name)
    newest = history.newest(advanced) if history else None
    if history is None or newest is None:
        return News("landing has no snapshot yet; the first comes with the initial load", seen, events)
    seen = Seen(str(newest.snapshot_id), _columns_text(history), letters_id)
    if seen.snapshot_id == before.snapshot_id:
        return News(f"nothing since snapshot {before.snapshot_id}; the sink's next commit is reported", seen, events)
    events.extend(_landing_events(name, history, newest, before))
    if seen.columns != before.columns:
        events.append(_schema_event(table, history))
    return News(f"reported through snapshot {newest.snapshot_id}", seen, events)


class News(NamedTuple):
    """What one table has to tell in this tick."""

    reason: str
    seen: "Seen"
    events: list[_Event]


class Seen(NamedTuple):
    """What was last reported of a table."""

    snapshot_id: str = ""
    columns: str = ""
    letters_id: str = ""  # Snapshot of the dead letters; empty before the first.


def _letters_id(tables: Tables, name: str) -> str:
    history = tables.dead_letters(name)
    return str(history.head_id) if history and history.head_id is not None else ""


def _parsed(cursor: str | None) -> dict[str, Seen]:
    """The cursor is a hint: of another version, or unreadable, it says nothing."""
    try:
        stored = json.loads(cursor or "{}")
        if stored.get("v") != _CURSOR_VERSION:
            return {}
        return {name: Seen(*values) for name, values in stored["seen"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _columns_text(history: TableHistory) -> str:
    text = repr([(c.name, c.type, c.required, c.doc) for c in history.columns])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _landing_events(
    name: str, history: TableHistory, newest: Snapshot, before: Seen
) -> Iterator[dg.AssetMaterialization]:
    windows = filter(advanced, history.ancestry())
    unreported = list(takewhile(lambda s: str(s.snapshot_id) != before.snapshot_id, windows))
    position: dict[str, Any] = {"log_position": newest.summary[LOG_POSITION]}
    if source_lsn := newest.summary.get(SOURCE_LSN):
        position["source_lsn"] = source_lsn
    if source_ts_ms := int(newest.summary.get(SOURCE_TS_MS, 0)):
        position["lag_s"] = (newest.timestamp_ms - source_ts_ms) / 1000
    columns = {"dagster/column_schema": column_schema(history)}
    head = history.head or newest  # A rewrite may be newer than the sink's commit: its files count.
    yield dg.AssetMaterialization(
        landing_key(name),
        metadata=columns
        | position
        | _events(unreported)
        | {
            "snapshot_id": str(newest.snapshot_id),
            "snapshots_reported": len(unreported),
            "snapshots": len(history.snapshots),
            "commits_since_rewrite": since_rewrite(history).commits,
            "data_files": head.total("data-files"),
            "delete_files": head.total("delete-files"),
            "equality_deletes": head.total("equality-deletes"),
        },
    )
    yield dg.AssetMaterialization(
        changelog_key(name), description="Complete at least through here", metadata=columns | position
    )


def _schema_event(table: Table, history: TableHistory) -> dg.AssetMaterialization:
    """The source's columns; a materialization, because the catalog shows no columns of an observation."""
    return dg.AssetMaterialization(
        source_key(table),
        description="Columns as they arrived in landing",
        metadata={"dagster/column_schema": column_schema(history)},
    )


def _events(snapshots: Iterable[Snapshot]) -> dict[str, int]:
    """Change events in these snapshots, by kind; those that tell of trouble always, so that they plot."""
    counts = Counter({f"events_{kind}": 0 for kind in ("dead", "stale", "redelivered")})
    for snapshot in snapshots:
        for key, value in snapshot.summary.items():
            if key.startswith(EVENTS):
                counts[f"events_{key.removeprefix(EVENTS)}"] += int(value)
    return dict(counts)
