"""When a sensor counts as stopped, silent or failing; and how its state is found in a real instance."""

import json
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from cdc_platform.definitions import build_defs
from cdc_platform.orchestration.watchdog import (
    AUTOMATION,
    Finding,
    Life,
    Tick,
    Ticker,
    delivery_evaluation,
    finding,
    findings,
    running_evaluation,
)
from cdc_platform_tests.orchestration.fakes import deployment

NOW = 1_000_000.0
MERGE = Ticker("merge", 5.0, starts_itself=True)
AT_WORK = (NOW - 2, NOW - 400, NOW - 3000)  # Ticks of others.


def life(*ages_s: float, on: bool = True, failed: bool | None = False, since: float | None = None) -> Life:
    return Life(on, since, tuple(Tick(NOW - age, failed, "torn") for age in ages_s))


@pytest.mark.parametrize(
    ("found", "trouble"),
    [
        (life(3, 8, 13), None),
        (life(299), None),
        (life(2000), "silent"),
        (life(since=NOW - 10), None),
        (life(2000, since=NOW - 10), None),  # Switched on again just now: it owes no tick for the time before.
        (life(2000, since=NOW - 5000), "silent"),
        (life(since=NOW - 2000), "silent"),
        (life(3, 8, on=False), "stopped"),
        (life(on=False), "stopped"),
        (life(3, 8, 13, failed=True), "failing"),
        (life(3, 8, failed=True), None),
        (Life(True, None, (Tick(NOW - 3, False), *life(8, 13, 18, failed=True).ticks)), None),
        (Life(True, None, (Tick(NOW - 3, None), *life(8, 13, 18, failed=True).ticks)), "failing"),
        (life(-86_400, -90_000, since=NOW - 2000), "silent"),  # By a clock that was a day ahead.
        (life(-86_400, 2000), "silent"),
        (life(-86_400, 3), None),
        (life(-200), None),
        (life(), "unknown"),
        (None, "unknown"),
    ],
)
def test_a_sensor_is_judged_by_its_state_and_its_ticks(found: Life | None, trouble: str | None) -> None:
    judged = finding(MERGE, found, AT_WORK, now=NOW)
    assert (judged.trouble if judged else None) == trouble


@pytest.mark.parametrize("others", [(), (NOW - 2,), (NOW - 3000,), (NOW - 2, NOW - 3000)])
def test_silence_is_held_against_nobody_when_the_daemon_was_not_at_work(others: tuple[float, ...]) -> None:
    assert finding(MERGE, life(2000), others, now=NOW) is None


def test_a_schedule_may_be_silent_for_three_of_its_intervals() -> None:
    schedule = Ticker("checks", 300.0, starts_itself=True)
    others = (NOW - 2, NOW - 1000, NOW - 3000)
    assert finding(schedule, life(890), others, now=NOW) is None
    judged = finding(schedule, life(2000), others, now=NOW)
    assert judged is not None and judged.trouble == "silent"


def test_what_is_declared_stopped_and_never_ran_is_no_trouble() -> None:
    assert finding(Ticker("extra", 30.0, starts_itself=False), None, AT_WORK, now=NOW) is None
    assert finding(Ticker("extra", 30.0, starts_itself=False), life(on=False), AT_WORK, now=NOW) is None


def test_a_stopped_sensor_warns_and_a_failing_one_is_an_error() -> None:
    stopped, failing = Finding("a", "stopped", "was stopped"), Finding("b", "failing", "its last 3 ticks failed: torn")
    unknown = Finding("c", "unknown", "has not been started")
    assert running_evaluation([])["passed"]
    assert running_evaluation([stopped])["severity"] is dg.AssetCheckSeverity.WARN
    both = running_evaluation([stopped, failing])
    assert both["severity"] is dg.AssetCheckSeverity.ERROR
    assert both["metadata"] == {
        "reason": "a was stopped; b its last 3 ticks failed: torn",
        "affected": "a stopped, b failing",
    }
    assert running_evaluation([unknown])["metadata"]["outcome"] == "unknown"
    assert "outcome" not in running_evaluation([unknown, stopped])["metadata"]


@pytest.mark.parametrize(
    ("given_up_at", "passed"),
    [
        ("2026-11-30T12:00:00+00:00", False),
        ("2026-11-29T12:00:00+00:00", True),
        ("2026-12-01T11:00:00+00:00", False),  # A clock that was a little ahead.
        ("2036-12-01T11:00:00+00:00", True),  # Ten years: it would warn until then.
        ("2026-11-30T12:00:00", True),  # Not as it is written: no state at all.
        ("yesterday", True),
    ],
)
def test_alerts_that_were_given_up_are_told_for_a_day(tmp_path: Path, given_up_at: str, passed: bool) -> None:
    state = {"v": 1, "event": 3, "runs_after": 1.0, "runs_seen": [], "told": {}, "pending": []}
    state["delivery"] = {"given_up": 2, "given_up_at": given_up_at}
    (tmp_path / "alerts.state.json").write_text(json.dumps(state))
    found = delivery_evaluation(tmp_path, now=datetime(2026, 12, 1, 0, 0, tzinfo=UTC))
    assert found["passed"] is passed


def state(location: str, name: str, status: InstigatorStatus) -> InstigatorState:
    origin = RemoteRepositoryOrigin(
        InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="x"), location_name=location), "__repository__"
    )
    return InstigatorState(
        origin.get_instigator_origin(name),
        dg._core.scheduler.instigation.InstigatorType.SENSOR,
        status,
        SensorInstigatorData(last_sensor_start_timestamp=NOW - 10),
    )


def test_the_state_of_another_code_location_is_not_ours(tmp_path: Path) -> None:
    instance = dg.DagsterInstance.local_temp(str(tmp_path))
    repository = build_defs(deployment("orders")).get_repository_def()
    names = [s.name for s in (*repository.sensor_defs, *repository.schedule_defs)]
    for name in names:
        instance.add_instigator_state(state("theirs", name, InstigatorStatus.STOPPED))
    now = datetime.fromtimestamp(NOW, UTC)
    ours = ("ours", "__repository__")
    found = findings(repository, ours, instance, now=now)
    assert found is not None and {one.trouble for one in found} == {"unknown"}
    for sensor in repository.sensor_defs:
        instance.add_instigator_state(state("ours", sensor.name, InstigatorStatus.DECLARED_IN_CODE))
    instance.update_instigator_state(state("ours", "merge_curated_sensor", InstigatorStatus.STOPPED))
    found = findings(repository, ours, instance, now=now)
    assert [(f.name, f.trouble) for f in found or ()] == [
        ("merge_curated_sensor", "stopped"),
        ("check_convergence_schedule", "unknown"),
    ]


def test_a_run_that_does_not_know_its_code_location_says_unknown(tmp_path: Path) -> None:
    d = deployment("orders")
    defs = build_defs(type(d)(tmp_path, d.registry))
    job = dg.define_asset_job("watch", dg.AssetSelection.checks_for_assets(AUTOMATION))
    merged = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))
    done = merged.resolve_job_def("watch").execute_in_process()
    results = {e.check_name: e for e in done.get_asset_check_evaluations()}
    running = results["sensors_are_running"]
    assert (running.passed, running.severity, running.metadata["outcome"].value) == (
        False,
        dg.AssetCheckSeverity.WARN,
        "unknown",
    )
    assert results["alerts_are_delivered"].passed
