"""For tests that start what they want to see themselves, and for those that need Spark alone."""

from collections.abc import Iterator

import pytest

from cdc_platform.demo.dagster_api import DagsterApi
from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.spark import Spark, spark_session
from cdc_platform_tests.conftest import RunningStack
from cdc_platform_tests.crashlab.services import services

_SPARK_ALONE = """\
deployment: spark_alone
stack: {spark_memory_mb: 2048}
sources: {none: {postgres: {url: {env: NO_SOURCE}}}}
tables: {none: {source: none.public.none, key: [id], owners: ['team:lab']}}
"""


@pytest.fixture(scope="session")
def by_hand(running_stack: RunningStack) -> None:
    """Sensors and schedules are off from here on."""
    DagsterApi(running_stack.webserver).turn_sensors(on=False)


@pytest.fixture(scope="session")
def spark_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Spark, Lake, str]]:
    """A Spark Connect server over an empty warehouse, the same catalog through PyIceberg, and the server's address.

    Nothing else runs. The namespaces `landing` and `curated` are there.
    """
    project = tmp_path_factory.mktemp("spark_lake")
    (project / "tables.yaml").write_text(_SPARK_ALONE)
    lab = Deployment.load(project)
    with services(lab, ("spark",)), spark_session(lab.spark_url) as spark:
        for namespace in ("landing", "curated"):
            spark.rows(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{namespace}")
        yield spark, Lake(CATALOG, lab.catalog_properties), lab.spark_url
