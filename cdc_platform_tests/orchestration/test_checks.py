from dataclasses import replace

import dagster as dg
import pytest

from cdc_platform.convergence.converge import Outcome, Reading, Verdict
from cdc_platform.convergence.state import Difference
from cdc_platform.definitions import build_defs
from cdc_platform.errors import UnavailableError
from cdc_platform.orchestration.checks import check_result
from cdc_platform.orchestration.watchdog import AUTOMATION
from cdc_platform.source.slot import SlotLag
from cdc_platform.source.state import Cut, State
from cdc_platform_tests.orchestration.fakes import HEALTH, FakeTables, deployment

CURATED, LANDING = dg.AssetKey(["curated", "orders"]), dg.AssetKey(["landing", "orders"])
SOURCE = dg.AssetKey(["source", "public", "orders"])
HEALTH_CHECKS = ("files_are_healthy", "history_is_bounded")
MEASURES = ("distribution_matches", "key_sums_match", "row_count_matches")
STATE = State(7, {"order_id": 28}, {"new": 7})
CUT = Cut(STATE, lsn=(0x1 << 32) + 0xAB, xmin=1, xmax=2, running=frozenset())
SEVERITY = dg.AssetCheckSeverity


def verdict(outcome: Outcome, *measures: str) -> Verdict:
    differences = tuple(Difference(measure, 7, 6) for measure in measures)
    if outcome == "unknown":
        return Verdict("unknown", "after 60 s: Spark Connect does not answer", 60.0)
    return Verdict(outcome, "why", 1.23456, CUT, Reading(1 << 60, STATE, STATE), differences)


def result(found: Verdict, check: str) -> dg.AssetCheckResult:
    return check_result(found, dg.AssetCheckKey(CURATED, check))


@pytest.mark.parametrize("check", MEASURES)
def test_unknown_is_a_warning_with_its_reason_and_never_an_error(check: str) -> None:
    r = result(verdict("unknown"), check)
    assert (r.passed, r.severity) == (False, SEVERITY.WARN)
    assert r.metadata["outcome"].value == "unknown"
    assert r.metadata["reason"].value == "after 60 s: Spark Connect does not answer"


@pytest.mark.parametrize("check", MEASURES)
def test_converged_passes_and_tells_where_it_was_compared(check: str) -> None:
    r = result(verdict("converged"), check)
    assert r.passed
    assert {k: v.value for k, v in r.metadata.items()} == {
        "outcome": "converged",
        "reason": "why",
        "seconds_to_converge": 1.235,
        "cut_lsn": "1/AB",
        "snapshot_id": "1152921504606846976",
        "rows": 7,
    }


@pytest.mark.parametrize(
    ("measure", "fails"),
    [
        ("rows", "row_count_matches"),
        ("sum(order_id)", "key_sums_match"),
        ("value='rows'", "distribution_matches"),
        ("value='sum('", "distribution_matches"),
        ("value=NULL", "distribution_matches"),
    ],
)
def test_only_the_check_of_a_differing_measure_fails(measure: str, fails: str) -> None:
    for check in MEASURES:
        r = result(verdict("diverged", measure), check)
        assert r.passed == (check != fails)
        if check == fails:
            assert r.severity is SEVERITY.ERROR
            assert r.metadata["outcome"].value == "diverged"
            table = r.metadata["differences"]
            assert isinstance(table, dg.TableMetadataValue)
            assert [record.data for record in table.records] == [{"measure": measure, "expected": 7, "found": 6}]


def test_shown_differences_are_bounded_and_all_are_counted() -> None:
    r = result(verdict("diverged", *(f"value={i}" for i in range(500))), "distribution_matches")
    table = r.metadata["differences"]
    assert isinstance(table, dg.TableMetadataValue)
    assert (len(table.records), r.metadata["differing_figures"].value) == (20, 500)


def run_checks(tables: FakeTables, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    defs = build_defs(deployment("orders"), resources={"tables": tables})
    return defs.resolve_job_def("check_convergence").execute_in_process(instance=instance, raise_on_error=False)


def test_the_job_evaluates_every_check_and_a_converged_stream_is_fresh() -> None:
    tables, instance = FakeTables(), dg.DagsterInstance.ephemeral()
    tables.commit("orders")
    tables.merge("orders")
    tables.verdicts = {"landing": verdict("unknown"), "curated": verdict("converged")}
    done = run_checks(tables, instance)
    assert done.success
    found = {(e.asset_key, e.check_name): e.passed for e in done.get_asset_check_evaluations()}
    automated = [
        CURATED,
        *(
            dg.AssetKey(["maintenance", operation, stage, "orders"])
            for operation, stage in (
                ("rewrite_data_files", "landing"),
                ("rewrite_data_files", "curated"),
                ("rewrite_position_delete_files", "landing"),
                ("expire_snapshots", "landing"),
                ("expire_snapshots", "curated"),
            )
        ),
    ]
    assert found == (
        {(LANDING, check): False for check in MEASURES}
        | {(CURATED, check): True for check in MEASURES}
        | {(asset, "automation_succeeds"): True for asset in automated}
        | {
            (asset, check): True
            for asset in (LANDING, CURATED)
            for check in ("files_are_healthy", "history_is_bounded")
        }
        | {(LANDING, "dead_letters_are_closed"): True}
        | {(SOURCE, "slot_lag_is_bounded"): False}
        | {(AUTOMATION, "sensors_are_running"): False}  # Unknown, in a run outside the daemon.
        | {(AUTOMATION, "alerts_are_delivered"): True}
    )
    event = instance.get_latest_materialization_event(CURATED)
    assert event is not None and event.asset_materialization is not None
    assert event.asset_materialization.metadata["committed"].value is False
    assert event.asset_materialization.metadata["confirmed_at_lsn"].value == "1/AB"


def test_a_part_of_the_checks_leaves_the_results_of_the_others_valid() -> None:
    """A result counts for the newest materialization, so only a whole comparison makes one."""
    tables, instance = FakeTables(verdicts={"curated": verdict("converged")}), dg.DagsterInstance.ephemeral()
    tables.commit("orders")
    tables.merge("orders")
    defs = build_defs(deployment("orders"), resources={"tables": tables})
    one = dg.AssetCheckKey(CURATED, "row_count_matches")
    job = (
        defs.get_repository_def()
        .get_job("check_convergence")
        .get_subset(asset_selection=set(), asset_check_selection={one})
    )
    done = job.execute_in_process(instance=instance)
    assert [(e.check_name, e.passed) for e in done.get_asset_check_evaluations()] == [(one.name, True)]
    assert instance.get_latest_materialization_event(CURATED) is None


@pytest.mark.parametrize("found", [verdict("unknown"), verdict("diverged", "rows")])
def test_a_curated_table_that_is_not_proven_equal_is_not_made_fresh(found: Verdict) -> None:
    tables, instance = FakeTables(), dg.DagsterInstance.ephemeral()
    tables.commit("orders")
    tables.merge("orders")
    tables.verdicts = {"landing": verdict("converged"), "curated": found}
    assert run_checks(tables, instance).success, "a failed check leaves the run green"
    assert instance.get_latest_materialization_event(CURATED) is None


def slot_check(slot: SlotLag | None) -> dg.ExecuteInProcessResult:
    defs = build_defs(deployment("orders"), resources={"tables": FakeTables(slot=slot)})
    key = dg.AssetCheckKey(SOURCE, "slot_lag_is_bounded")
    job = defs.get_repository_def().get_job("check_convergence")
    subset = job.get_subset(asset_selection=set(), asset_check_selection={key})
    return subset.execute_in_process(instance=dg.DagsterInstance.ephemeral(), raise_on_error=False)


@pytest.mark.parametrize(
    ("slot", "passed", "severity"),
    [
        (SlotLag(1 << 30, 1 << 20, "reserved", None, active=True, inactive_s=None), True, SEVERITY.WARN),
        (SlotLag((1 << 30) + 1, 1 << 20, "extended", 9, active=True, inactive_s=None), False, SEVERITY.WARN),
        (SlotLag(1 << 20, 1 << 20, "unreserved", -9, active=False, inactive_s=9.0), False, SEVERITY.ERROR),
        (SlotLag(None, None, "lost", None, active=False, inactive_s=9.0), False, SEVERITY.ERROR),
    ],
)
def test_a_slot_that_keeps_too_much_is_told_and_one_in_danger_is_an_error(
    slot: SlotLag, passed: bool, severity: dg.AssetCheckSeverity
) -> None:
    [found] = slot_check(slot).get_asset_check_evaluations()
    assert (found.passed, found.severity) == (passed, severity)
    metadata = {label: value.value for label, value in found.metadata.items()}
    assert metadata["limit_bytes"] == float(1 << 30)
    assert metadata.get("retained_bytes") == (None if slot.retained_bytes is None else float(slot.retained_bytes))


def test_a_slot_that_can_not_be_read_is_unknown_and_not_a_failed_check() -> None:
    done = slot_check(None)
    assert not done.success
    assert done.get_asset_check_evaluations() == []


def test_a_table_far_beyond_its_limits_warns_in_the_check_of_that_group_alone() -> None:
    tables = FakeTables(states={"landing.orders": replace(HEALTH, equality_delete_files=501)})
    done = run_checks(tables, dg.DagsterInstance.ephemeral())
    found = {e.check_name: e for e in done.get_asset_check_evaluations() if e.asset_key == LANDING}
    assert not found["files_are_healthy"].passed
    assert found["files_are_healthy"].severity is SEVERITY.WARN
    assert "| delete_files | 501 | 500 | `cdc-platform maintain orders rewrite_data_files" in str(
        found["files_are_healthy"].metadata["beyond"].value
    )
    assert found["history_is_bounded"].passed
    assert found["history_is_bounded"].metadata["delete_files"].value == 501
    tables = FakeTables(states={"landing.orders": replace(HEALTH, equality_delete_files=500)}, past_retention=501)
    done = run_checks(tables, dg.DagsterInstance.ephemeral())
    found = {e.check_name: e for e in done.get_asset_check_evaluations() if e.asset_key == LANDING}
    assert (found["files_are_healthy"].passed, found["history_is_bounded"].passed) == (True, False)


def test_a_table_whose_metadata_cannot_be_read_is_neither_healthy_nor_not() -> None:
    tables = FakeTables(broken={"orders": UnavailableError("no answer", where="landing.orders", action="Wait")})
    done = run_checks(tables, dg.DagsterInstance.ephemeral())
    assert not done.success
    assert not [e for e in done.get_asset_check_evaluations() if e.check_name == "files_are_healthy"]
