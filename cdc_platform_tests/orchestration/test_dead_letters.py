"""Dead letters in Dagster: the asset, the check, the job that replays them."""

from typing import Any

import dagster as dg

from cdc_platform.definitions import build_defs
from cdc_platform.errors import ConfigError, UnavailableError
from cdc_platform.landing.corrections import Answer, Correction
from cdc_platform.landing.letters import Choice
from cdc_platform.orchestration.sensors import build_sensors
from cdc_platform_tests.orchestration.fakes import Daemon, FakeTables, deployment

LETTERS, LANDING = dg.AssetKey(["dead_letters", "orders"]), dg.AssetKey(["landing", "orders"])
CHECK = dg.AssetCheckKey(LANDING, "dead_letters_are_closed")
NONE_OPEN = {"open": 0} | {
    f"open_{reason}": 0 for reason in ("unreadable", "unknown_kind", "no_key", "no_home", "unavailable", "stale")
}


def checked(tables: FakeTables) -> dg.ExecuteInProcessResult:
    defs = build_defs(deployment("orders"), resources={"tables": tables})
    job = defs.get_repository_def().get_job("check_convergence")
    subset = job.get_subset(asset_selection=set(), asset_check_selection={CHECK})
    return subset.execute_in_process(instance=dg.DagsterInstance.ephemeral(), raise_on_error=False)


def replayed(tables: FakeTables, **config: Any) -> dg.ExecuteInProcessResult:
    defs = build_defs(deployment("orders"), resources={"tables": tables})
    return defs.resolve_job_def("replay_dead_letters").execute_in_process(
        run_config={"ops": {"replay_dead_letters_op": {"config": {"table": "orders", **config}}}},
        instance=dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
    )


def metadata_of(done: dg.ExecuteInProcessResult) -> dict[str, Any]:
    [event] = done.filter_events(lambda e: e.is_successful_output or e.is_step_failure)
    data: Any = event.event_specific_data
    found = data.metadata if event.is_successful_output else data.user_failure_data.metadata
    return {name: value.value for name, value in found.items()}


def test_the_check_passes_when_no_letter_is_open_and_warns_with_counts_when_some_are() -> None:
    tables = FakeTables()
    [passed] = checked(tables).get_asset_check_evaluations()
    assert passed.passed
    assert {k: v.value for k, v in passed.metadata.items()} == NONE_OPEN
    for offset, reason in ((3, "no_home"), (5, "stale"), (9, "stale")):
        tables.reject("orders", reason, offset)
    [failed] = checked(tables).get_asset_check_evaluations()
    assert (failed.passed, failed.severity) == (False, dg.AssetCheckSeverity.WARN)
    found = {k: v.value for k, v in failed.metadata.items()}
    assert found.pop("letters") == (
        "| log_offset | reason | op | key | detail |\n| --- | --- | --- | --- | --- |\n"
        '| 9 | stale | u | {"order_id": 9} | a \\| b |\n'
        '| 5 | stale | u | {"order_id": 5} | a \\| b |\n'
        '| 3 | no_home | u | {"order_id": 3} | a \\| b |'
    )
    assert found == NONE_OPEN | {
        "open": 3,
        "open_no_home": 1,
        "open_stale": 2,
        "newest": 9.0,
        "action": "`cdc-platform dead-letters list orders`",
    }


def test_letters_that_can_not_be_read_are_neither_closed_nor_open() -> None:
    tables = FakeTables()
    tables.broken["orders"] = UnavailableError("no answer", where="the catalog", action="Try again later")
    done = checked(tables)
    assert not done.success
    assert done.get_asset_check_evaluations() == []


def test_the_sensor_reports_letters_once_for_each_change_of_their_table() -> None:
    sensors = {s.name: s for s in build_sensors(deployment("orders").registry)}
    d = Daemon(FakeTables(), sensors["landing_snapshots_sensor"])

    def news() -> list[dict[str, Any]]:
        events = [e for e in d.tick().asset_events if isinstance(e, dg.AssetMaterialization)]
        return [{k: v.value for k, v in e.metadata.items()} for e in events if e.asset_key == LETTERS]

    d.tables.commit("orders")
    assert news() == []
    d.tables.reject("orders", "no_key", 4)  # The sink commits the letters before the window they are of.
    [one] = news()
    assert (one["open"], one["open_no_key"], one["snapshot_id"]) == (1, 1, "7001")
    d.tables.commit("orders")
    assert news() == []
    d.tables.discard("orders")
    assert news() == [NONE_OPEN | {"snapshot_id": "7002"}]
    d.cursor = None
    assert len(news()) == 1


def test_the_job_is_a_dry_run_unless_told_otherwise() -> None:
    tables = FakeTables(answers=[Answer(3, "no_home", "applies"), Answer(5, "stale", "refused", "newer | data")])
    done = replayed(tables, reason="no_home", corrections={"total": "12.50", "note": '"x"'})
    assert done.success
    [(name, choice, correction, dry_run, wait_s)] = tables.asked
    assert (name, choice, dry_run, wait_s) == ("orders", Choice((), "no_home"), True, 60)
    assert isinstance(correction, Correction)
    assert {k: str(v) for k, v in correction.values.items()} == {"total": "12.50", "note": "x"}
    assert metadata_of(done) == {
        "letters": 2,
        "dry_run": True,
        "outcome_applies": 1,
        "outcome_refused": 1,
        "reason_no_home": 1,
        "reason_stale": 1,
        "answers": "| log_offset | reason | outcome | why |\n| --- | --- | --- | --- |\n"
        "| 3 | no_home | applies |  |\n| 5 | stale | refused | newer \\| data |",
    }


def test_a_run_is_green_only_if_every_letter_was_replayed() -> None:
    landed, overtaken = Answer(3, "no_home", "replayed"), Answer(5, "no_home", "stale", "newer")
    assert replayed(FakeTables(answers=[landed]), offsets=[3], dry_run=False).success
    red = replayed(FakeTables(answers=[landed, overtaken]), offsets=[3, 5], dry_run=False)
    assert not red.success
    assert metadata_of(red)["outcome_stale"] == 1


def test_a_correction_that_is_no_json_and_a_refused_choice_fail_with_their_reason() -> None:
    assert not replayed(FakeTables(), corrections={"note": "x"}).success

    class Refusing(FakeTables):
        def replay_letters(self, *_args: object, **_options: object) -> list[Answer]:
            raise ConfigError("no open letter is at 9", where="dead_letters.orders", action="List them")

    assert metadata_of(replayed(Refusing(), offsets=[9]))["action"] == "List them"
