"""The Dagster definitions of a project: composition only.

Belongs here: putting the pieces together. Does not: any piece (`orchestration/`). Loading reads tables.yaml
and nothing else: no network, no Spark, no Iceberg library.
"""

from collections.abc import Mapping

import dagster as dg

from cdc_platform.deployment import Deployment
from cdc_platform.orchestration.alerts import build_alerts_sensor
from cdc_platform.orchestration.assets import build_assets
from cdc_platform.orchestration.checks import build_checks
from cdc_platform.orchestration.jobs import JOBS
from cdc_platform.orchestration.maintenance import build_maintenance
from cdc_platform.orchestration.resources import Platform
from cdc_platform.orchestration.schedules import SCHEDULES
from cdc_platform.orchestration.sensors import build_sensors
from cdc_platform.orchestration.watchdog import build_platform


def build_defs(
    deployment: Deployment | None = None, *, resources: Mapping[str, object] | None = None
) -> dg.Definitions:
    """Definitions of `deployment`, else of the project found as `Deployment.load` finds it.

    `resources` replace those of the same name: tests give `tables` that are in memory.
    """
    deployment = deployment or Deployment.load()
    platform, watchdog = build_platform(deployment)
    return dg.Definitions(
        assets=[*build_assets(deployment.registry), *build_maintenance(deployment.registry), platform],
        asset_checks=[*build_checks(deployment.registry), *watchdog],
        jobs=JOBS,
        sensors=[*build_sensors(deployment.registry), build_alerts_sensor(deployment)],
        schedules=SCHEDULES,
        resources={"tables": Platform(project=str(deployment.project))} | dict(resources or {}),
        # A run is one step, or a few that share a source: a process for each would only cost its start.
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads."""
    return build_defs()
