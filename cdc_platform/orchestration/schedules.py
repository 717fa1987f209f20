"""What runs by the clock.

Belongs here: schedules. Does not: what reacts to the tables (`sensors.py`).
"""

import dagster as dg

from cdc_platform.orchestration.assets import CHECK_INTERVAL
from cdc_platform.orchestration.jobs import check_convergence

check_convergence_schedule = dg.ScheduleDefinition(
    name="check_convergence_schedule",
    job=check_convergence,
    cron_schedule=f"*/{CHECK_INTERVAL.seconds // 60} * * * *",
    execution_timezone="UTC",
    description="Every stage of every table is compared with its source.",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)

SCHEDULES = (check_convergence_schedule,)
