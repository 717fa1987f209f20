"""For tests that start what they want to see themselves."""

import pytest

from cdc_platform.demo.dagster_api import DagsterApi
from cdc_platform_tests.conftest import RunningStack


@pytest.fixture(scope="session")
def by_hand(running_stack: RunningStack) -> None:
    """Sensors and schedules are off from here on."""
    DagsterApi(running_stack.webserver).turn_sensors(on=False)
