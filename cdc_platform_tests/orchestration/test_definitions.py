import subprocess
import sys
from pathlib import Path

import dagster as dg

from cdc_platform.definitions import build_defs
from cdc_platform_tests.orchestration.fakes import deployment

PROJECT = Path(__file__).parents[2]
HEAVY = ("pyspark", "pyiceberg", "pyarrow", "pandas", "numpy", "sqlalchemy", "jpype")
LOAD = f"""
import sys
from cdc_platform.definitions import defs
defs().get_repository_def().get_all_jobs()
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_definitions_load_without_the_heavy_libraries() -> None:
    """Which is what makes them load fast: 2.0 s on two quiet cores, of a budget of 3 s."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_definitions_can_be_loaded_and_name_what_others_call() -> None:
    defs = build_defs(deployment("orders", "items"))
    dg.Definitions.validate_loadable(defs)
    repository = defs.get_repository_def()
    assert {job.name for job in repository.get_all_jobs()} >= {
        "merge_curated",
        "rewrite_data_files",
        "rewrite_position_delete_files",
        "expire_snapshots",
        "rewrite_manifests",
        "remove_orphan_files",
        "check_convergence",
        "replay_dead_letters",
    }
    assert {s.name: s.minimum_interval_seconds for s in repository.sensor_defs} == {
        "alerts_sensor": 15,
        "landing_snapshots_sensor": 5,
        "merge_curated_sensor": 5,
        "rewrite_data_files_sensor": 15,
        "rewrite_position_delete_files_sensor": 60,
        "expire_snapshots_sensor": 300,
    }
    assert {s.name: s.cron_schedule for s in repository.schedule_defs} == {"check_convergence_schedule": "*/5 * * * *"}


def test_a_job_runs_its_own_operation_and_no_check() -> None:
    defs = build_defs(deployment("orders"))
    steps = {
        job: sorted(node.name for node in defs.resolve_job_def(job).nodes)
        for job in ("merge_curated", "rewrite_data_files", "check_convergence")
    }
    assert steps == {
        "merge_curated": ["curated__orders"],
        "rewrite_data_files": [
            "maintenance__rewrite_data_files__curated__orders",
            "maintenance__rewrite_data_files__landing__orders",
        ],
        "check_convergence": [
            "curated__orders_automation_succeeds",
            "curated_orders_converged",
            "curated_orders_health",
            "landing__orders_dead_letters_are_closed",
            "landing_orders_converged",
            "landing_orders_health",
            "maintenance__expire_snapshots__curated__orders_automation_succeeds",
            "maintenance__expire_snapshots__landing__orders_automation_succeeds",
            "maintenance__rewrite_data_files__curated__orders_automation_succeeds",
            "maintenance__rewrite_data_files__landing__orders_automation_succeeds",
            "maintenance__rewrite_position_delete_files__landing__orders_automation_succeeds",
            "platform__automation_alerts_are_delivered",
            "platform__automation_sensors_are_running",
            "source__public__orders_slot_lag_is_bounded",
        ],
    }


def test_a_table_without_sums_or_distribution_declares_only_the_checks_it_can_answer() -> None:
    d = deployment("orders")
    bare = d.registry.tables["orders"].model_copy(
        update={"convergence": type(d.registry.tables["orders"].convergence)()}
    )
    registry = d.registry.model_copy(update={"tables": {"orders": bare}})
    defs = build_defs(type(d)(d.project, registry))
    keys = {key for check in defs.asset_checks or () for key in check.check_keys}
    assert {key.name for key in keys} == {
        "row_count_matches",
        "automation_succeeds",
        "dead_letters_are_closed",
        "files_are_healthy",
        "history_is_bounded",
        "slot_lag_is_bounded",
        "sensors_are_running",
        "alerts_are_delivered",
    }
