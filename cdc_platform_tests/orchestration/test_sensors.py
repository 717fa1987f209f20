from collections.abc import Sequence
from contextlib import nullcontext

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_platform.errors import InvariantError, UnavailableError
from cdc_platform.orchestration.sensors import build_sensors
from cdc_platform_tests.orchestration.fakes import Daemon, FakeTables, deployment, evaluations

FAILURE, SUCCESS, CANCELED = (
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.CANCELED,
)
GONE = UnavailableError("no answer", where="landing.orders", action="Wait")


def daemon(operation: str, *tables: str, attempts_max: int = 3) -> Daemon:
    sensors = {s.name: s for s in build_sensors(deployment(*tables, attempts_max=attempts_max).registry)}
    return Daemon(FakeTables(), sensors[f"{operation}_sensor"])


def test_a_merge_is_requested_for_landing_that_moved_and_once() -> None:
    d = daemon("merge_curated", "orders")
    assert "orders: landing has no snapshot yet" in str(d.tick().skip_reason)
    d.tables.commit("orders")
    [request] = d.tick().run_requests or ()
    assert request.asset_selection == [dg.AssetKey(["curated", "orders"])]
    assert request.asset_check_keys == [], "a comparison would wait for the merge after this one"
    assert request.run_key == "curated.orders:merge_curated:beginning:attempt1:after:none"
    assert request.tags == {
        "cdc/table": "orders",
        "cdc/operation": "merge_curated",
        "cdc/stage": "curated",
        "cdc/target": "beginning",
        "cdc/trigger": "1 landing commits since the beginning",
        "cdc/attempt": "1",
    }
    assert f"run {d.runs[0].run_id} is in flight" in str(d.tick().skip_reason)
    d.tables.merge("orders")
    d.end(SUCCESS)
    assert "complete through landing snapshot 1" in str(d.tick().skip_reason)
    d.tables.commit("orders")
    d.tick()
    assert d.requested == [("orders", "beginning", "SUCCESS"), ("orders", "1", "NOT_STARTED")]


@pytest.mark.parametrize("ended", [FAILURE, CANCELED])
def test_a_failed_merge_is_tried_again_and_then_loudly_not(ended: dg.DagsterRunStatus) -> None:
    d = daemon("merge_curated", "orders")
    for attempt in ("1", "2", "3"):
        d.tables.commit("orders")  # A busy stream gives no fresh attempts.
        d.tick()
        assert d.runs[-1].tags["cdc/attempt"] == attempt
        d.end(ended)
    assert len({r.tags["cdc/attempt"] for r in d.runs}) == 3
    loud = d.tick()
    assert "orders: given up after 3 attempts" in str(loud.skip_reason)
    assert f"run {d.runs[-1].run_id}" in str(loud.skip_reason)
    [evaluation] = evaluations(loud)
    assert (evaluation.asset_key, evaluation.check_name, evaluation.passed) == (
        dg.AssetKey(["curated", "orders"]),
        "automation_succeeds",
        False,
    )
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    d.tables.commit("orders")
    again = d.tick()
    assert evaluations(again) == [] and not again.run_requests, "said once"

    d.tables.merge("orders")  # By hand.
    [recovered] = evaluations(d.tick())
    assert recovered.passed
    d.tables.commit("orders")
    assert len(d.tick().run_requests or ()) == 1


def test_a_merge_that_succeeds_and_moves_nothing_does_not_go_on_for_ever() -> None:
    d = daemon("merge_curated", "orders")
    d.tables.commit("orders")
    for _ in range(10):
        if d.tick().run_requests:
            d.end(SUCCESS)
    assert d.requested == [("orders", "beginning", "SUCCESS")] * 3


@pytest.mark.parametrize("operation", ["merge_curated", "rewrite_data_files"])
def test_while_spark_is_down_no_attempt_is_used_up_and_then_all_goes_on(operation: str) -> None:
    d = daemon(operation, "orders", attempts_max=1)
    d.tables.commit("orders")
    d.tables.commit("orders")
    d.tables.spark_is_down = True
    for _ in range(5):
        # A tick that could do nothing at all raises; of a rewrite's tables one was read and is not due.
        with pytest.raises(UnavailableError) if operation == "merge_curated" else nullcontext():
            assert "Spark Connect: nothing listens there. Start it." in str(d.tick().skip_reason)
    assert d.requested == []
    d.tables.spark_is_down = False
    d.tick()
    assert [target for _, target, _ in d.requested] == ["beginning"]


def test_a_curated_table_that_was_dropped_is_made_again() -> None:
    d = daemon("merge_curated", "orders", attempts_max=1)
    for dropped in (False, True):
        for _ in range(2):
            d.tables.commit("orders")
            d.tick()
            d.tables.merge("orders")
            d.end(SUCCESS)
        if not dropped:
            d.tables.curated_snapshots.clear()
    assert [target for _, target, _ in d.requested] == ["beginning", "1", "beginning", "3"]


def test_a_rewrite_is_due_after_the_declared_commits_and_not_before() -> None:
    d = daemon("rewrite_data_files", "orders")
    d.tables.commit("orders")
    reason = d.tick().skip_reason
    assert reason is not None
    assert (reason.skip_message or "").startswith("landing.orders: 1 of 2 commits since the beginning; ")
    assert (reason.skip_message or "").endswith("; runs at 2 commits; curated.orders: not due")
    d.tables.commit("orders")
    [request] = d.tick().run_requests or ()
    assert request.asset_selection == [dg.AssetKey(["maintenance", "rewrite_data_files", "landing", "orders"])]
    rewrite = d.tables.commit("orders", "replace")
    d.end(SUCCESS)
    assert not d.tick().run_requests
    d.tables.commit("orders")
    d.tables.commit("orders")
    d.tick()
    assert d.requested[-1][1] == str(rewrite)


def test_a_rewrite_that_found_nothing_waits_for_as_many_commits_once_more() -> None:
    d = daemon("rewrite_data_files", "orders")
    requested = []
    for commits in range(1, 9):
        d.tables.commit("orders")
        for _ in range(3):
            if d.tick().run_requests:
                requested.append(commits)
                d.tables.record("orders")
                d.end(SUCCESS)
    assert requested == [2, 4, 6, 8]


def test_a_rewrite_that_always_fails_is_bounded_under_a_busy_stream() -> None:
    d = daemon("rewrite_data_files", "orders")
    said = []
    for _ in range(30):
        d.tables.commit("orders")
        result = d.tick()
        said += evaluations(result)
        if result.run_requests:
            d.end(FAILURE)
    assert d.requested == [("orders", "beginning", "FAILURE")] * 3
    assert [e.passed for e in said] == [False]


@pytest.mark.parametrize("operation", ["merge_curated", "rewrite_data_files", "landing_snapshots"])
@pytest.mark.parametrize("error", [GONE, RuntimeError("a bug")])
def test_a_table_that_cant_be_read_costs_only_itself(operation: str, error: Exception) -> None:
    d = daemon(operation, "broken", "orders")
    d.tables.broken["broken"] = error
    d.tables.commit("orders")
    d.tables.commit("orders")
    result = d.tick()
    assert len(result.run_requests or ()) + len(result.asset_events) > 0
    d.tables.snapshots.clear()
    assert f"broken: {type(error).__name__}: {error}" in str(d.tick().skip_reason)


@pytest.mark.parametrize("operation", ["merge_curated", "rewrite_data_files", "landing_snapshots"])
def test_a_tick_fails_when_no_table_can_be_read(operation: str) -> None:
    d = daemon(operation, "orders")
    d.tables.broken["orders"] = GONE
    with pytest.raises(UnavailableError):
        d.tick()


def reported(result: dg.SensorResult, layer: str) -> list[dg.AssetMaterialization | dg.AssetObservation]:
    return [
        e for e in result.asset_events if not isinstance(e, dg.AssetCheckEvaluation) and e.asset_key.path[0] == layer
    ]


def test_landing_snapshots_are_reported_in_one_event_a_tick() -> None:
    d = daemon("landing_snapshots", "orders")
    assert "no snapshot yet" in str(d.tick().skip_reason)
    for _ in range(3):
        d.tables.commit("orders")
    [landing] = reported(d.tick(), "landing")
    assert {k: v.value for k, v in landing.metadata.items() if k != "dagster/column_schema"} == {
        "log_position": "30",
        "lag_s": 0.25,
        "events_update": 6,
        "events_dead": 0,
        "events_stale": 0,
        "events_redelivered": 0,
        "snapshot_id": "3",
        "snapshots_reported": 3,
        "snapshots": 3,
        "commits_since_rewrite": 3,
        "data_files": 3,
        "delete_files": 2,
        "equality_deletes": 5,
    }
    assert not d.tick().asset_events
    d.tables.commit("orders")
    [landing] = reported(d.tick(), "landing")
    assert landing.metadata["snapshots_reported"].value == 1


def test_a_rewrite_is_no_news_of_the_stream() -> None:
    d = daemon("landing_snapshots", "orders")
    d.tables.commit("orders")
    d.tick()
    d.tables.commit("orders", "replace")
    assert not d.tick().asset_events


def test_columns_reach_the_source_and_the_changelog_once() -> None:
    d = daemon("landing_snapshots", "orders")
    d.tables.commit("orders")
    first = d.tick()
    [source], [changelog] = reported(first, "source"), reported(first, "changelog")
    schema = source.metadata["dagster/column_schema"].value
    assert schema == changelog.metadata["dagster/column_schema"].value
    assert isinstance(schema, dg.TableSchema)
    assert [(c.name, c.type, c.constraints.nullable) for c in schema.columns] == [
        ("order_id", "long", False),
        ("status", "string", True),
    ]
    d.tables.commit("orders")
    assert reported(d.tick(), "source") == []


@pytest.mark.parametrize("cursor", [None, "", "[]", "{}", "nonsense", '{"v": 99}', '{"v": 1, "seen": {"a": 1}}'])
def test_a_lost_cursor_costs_one_more_event_and_nothing_else(cursor: str | None) -> None:
    d = daemon("landing_snapshots", "orders")
    d.tables.commit("orders")
    d.tick()
    d.cursor = cursor
    assert len(reported(d.tick(), "landing")) == 1
    assert not d.tick().asset_events


ACTIONS = st.lists(st.sampled_from(["commit", "tick", "fail", "succeed", "lose cursor"]), max_size=40)


def played(operation: str, actions: Sequence[str], *, lose: bool) -> list[tuple[str, str, str]]:
    d = daemon(operation, "orders", "items")
    for action in actions:
        running = bool(d.runs) and d.runs[-1].status is dg.DagsterRunStatus.NOT_STARTED
        if action == "commit":
            d.tables.commit("orders")
            d.tables.commit("items")
        elif action == "tick":
            d.tick()
        elif action == "fail" and running:
            d.end(FAILURE)
        elif action == "succeed" and running:
            name = d.runs[-1].tags["cdc/table"]
            d.tables.merge(name) if operation == "merge_curated" else d.tables.commit(name, "replace")
            d.end(SUCCESS)
        elif action == "lose cursor" and lose:
            d.cursor = None
    return d.requested


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["merge_curated", "rewrite_data_files"]), ACTIONS)
def test_deleting_the_cursor_at_any_tick_changes_no_run(operation: str, actions: list[str]) -> None:
    assert played(operation, actions, lose=True) == played(operation, actions, lose=False)


def test_an_invariant_error_of_one_table_is_told_with_its_action() -> None:
    d = daemon("merge_curated", "broken", "orders")
    d.tables.broken["broken"] = InvariantError("torn", where="landing.broken", action="Rebuild it")
    assert "landing.broken: torn. Rebuild it." in str(d.tick().skip_reason)
