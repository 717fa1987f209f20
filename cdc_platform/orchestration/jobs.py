"""What can be started by name: by hand, by a sensor, by the schedule.

Belongs here: jobs, their priority and time limit. Does not: when they run (`sensors.py`, `schedules.py`).
"""

import dagster as dg

from cdc_platform.orchestration.automation import MERGE, OPERATION_TAG, REWRITE


def _tags(operation: str, *, priority: int, runtime_max_s: int) -> dict[str, str]:
    return {
        OPERATION_TAG: operation,
        "dagster/priority": str(priority),
        "dagster/max_runtime": str(runtime_max_s),
    }


# What consumers wait for goes first; a rewrite only makes reads cheaper.
merge_curated = dg.define_asset_job(
    MERGE.name,
    selection=dg.AssetSelection.groups("curated").without_checks(),
    description="Merge landing into curated, for the selected tables.",
    tags=_tags(MERGE.name, priority=10, runtime_max_s=1800),
)
check_convergence = dg.define_asset_job(
    "check_convergence",
    selection=dg.AssetSelection.all_asset_checks(),
    description="Compare every stage of every table with its source.",
    tags=_tags("check_convergence", priority=5, runtime_max_s=3600),
)
rewrite_data_files = dg.define_asset_job(
    REWRITE.name,
    selection=dg.AssetSelection.groups(REWRITE.name).without_checks(),
    description="Apply deletes and merge small files of landing, for the selected tables.",
    tags=_tags(REWRITE.name, priority=0, runtime_max_s=3600),
)

JOBS = (merge_curated, check_convergence, rewrite_data_files)
