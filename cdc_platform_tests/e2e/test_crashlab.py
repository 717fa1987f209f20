"""What the crash lab's histories leave is the same to Spark and DuckDB, and to capture's real processes."""

from pathlib import Path

import pytest

from cdc_platform_tests.conftest import RunningStack
from cdc_platform_tests.crashlab.capturelab import CaptureLab
from cdc_platform_tests.crashlab.plan import plan
from cdc_platform_tests.crashlab.readers import SparkReader, duckdb
from cdc_platform_tests.crashlab.services import deployment, services
from cdc_platform_tests.crashlab.sinklab import SinkLab

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("by_hand")]


def test_spark_and_duckdb_read_what_the_fold_holds_after_kills_and_rewrites(
    running_stack: RunningStack, tmp_path: Path
) -> None:
    operations = running_stack.operations
    made = plan(3, 9_001, 10, rewrites=True)
    with duckdb() as second, operations.spark() as session:
        spark = SparkReader(session)
        lab = SinkLab(
            tmp_path,
            running_stack.deployment.catalog_properties,
            readers={"DuckDB": second.rows, "Spark": spark.rows},
            rewrite=spark.rewrite,
        )
        try:
            outcome = lab.run(made)
        finally:
            operations.lake.catalog.drop_table(made.table)
    assert (outcome.failed, outcome.missed.total(), outcome.faults.total()) == ("", 0, 10)
    assert not outcome.verdict, outcome.verdict


def test_capture_and_sink_killed_at_every_step_lose_nothing_of_a_real_source(tmp_path: Path) -> None:
    lab = deployment(tmp_path / "lab")
    with services(lab, ("postgres",)), duckdb() as second:
        outcome = CaptureLab(lab, 5, 8, {"DuckDB": second.rows}, print).run()
    assert (outcome.failed, outcome.faults.total()) == ("", 8)
    assert not outcome.verdict, outcome.verdict
