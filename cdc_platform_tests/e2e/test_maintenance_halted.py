"""Runs that fail on real Spark, and what they leave: the halt after changed rows, the record, the gate's facts."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args

import pytest

from cdc_platform.errors import ConfigError, ConflictError, InvariantError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.lake.spark import Spark
from cdc_platform.maintenance.due import BEGINNING, due
from cdc_platform.maintenance.gates import Engine
from cdc_platform.maintenance.halted import PROPERTY
from cdc_platform.maintenance.maintain import Effect, maintain
from cdc_platform.maintenance.plan import RewritePlan
from cdc_platform.maintenance.procedures import Procedures
from cdc_platform.maintenance.runs import Operation, past_runs
from cdc_platform.registry.maintenance import Maintenance
from cdc_platform_tests.e2e.test_maintenance import call_it_replace

pytestmark = [pytest.mark.e2e]
SOON = Maintenance(keep_snapshots_for=timedelta(milliseconds=1), keep_snapshots_min=1, conflicts_max=2)


@dataclass
class Bench:
    """A table of three files, and Spark."""

    spark: Spark
    lake: Lake
    table: str = "curated.halting"

    def __post_init__(self) -> None:
        self.spark.rows(f"DROP TABLE IF EXISTS lake.{self.table} PURGE")
        self.spark.rows(
            f"CREATE TABLE lake.{self.table} (id bigint) USING iceberg TBLPROPERTIES ('format-version'='2')"
        )
        for n in range(3):
            self.spark.rows(
                f"INSERT INTO lake.{self.table} SELECT /*+ COALESCE(1) */ id FROM range({n * 10}, {(n + 1) * 10})"
            )

    @property
    def history(self) -> TableHistory:
        found = self.lake.history(self.table)
        assert found is not None
        return found

    def run(self, operation: Operation, procedures: type[Procedures] = Procedures, *, dry_run: bool = False) -> Any:
        return maintain(
            *(self.spark, self.lake, self.table, operation, SOON),
            dry_run=dry_run,
            procedures=procedures,
            sleep=lambda _seconds: None,
        )

    def losing_a_row(self) -> type[Procedures]:
        """A rewrite that makes a snapshot without row 5, as a bug of an engine would."""
        bench = self

        class Losing(Procedures):
            def rewrite_data_files(self, **given: Any) -> int:
                bench.spark.rows(f"DELETE FROM lake.{bench.table} WHERE id = 5")
                call_it_replace(bench.lake, bench.table)
                return super().rewrite_data_files(**given)

        return Losing


@pytest.fixture
def bench(spark_lake: tuple[Spark, Lake, str]) -> Bench:
    spark, lake, _ = spark_lake
    return Bench(spark, lake)


def test_changed_rows_halt_everything_until_a_person_rolled_back_and_took_the_mark_away(bench: Bench) -> None:
    whole_id = bench.history.head_id
    bench.spark.rows(f"ALTER TABLE lake.{bench.table} SET TBLPROPERTIES ('history.expire.max-ref-age-ms'='1')")
    with pytest.raises(InvariantError, match="from 30 to 29"):
        bench.run("rewrite_data_files", bench.losing_a_row())
    mark = json.loads(bench.history.properties[PROPERTY])
    assert (mark["parent_id"], mark["operation"]) == (whole_id, "rewrite_data_files")
    assert "from 30 to 29" in mark["what"]
    tag = f"keep_before_{mark['snapshot_id']}"
    assert bench.history.refs[tag] == whole_id

    for operation in get_args(Operation):
        with pytest.raises(InvariantError, match="maintenance is halted since snapshot"):
            bench.run(operation)
        assert not due(bench.lake, bench.table, operation, SOON, now_ms=1 << 50).decision.due
    assert isinstance(bench.run("rewrite_data_files", dry_run=True), RewritePlan)

    # An expiry that knows the mark no more, or that a person carries out: the tag holds what is needed to go back.
    bench.spark.rows(f"ALTER TABLE lake.{bench.table} UNSET TBLPROPERTIES ('{PROPERTY}')")
    expired = bench.run("expire_snapshots")
    assert isinstance(expired, Effect)
    assert (expired.expired_snapshots > 0, bench.history.refs[tag]) == (True, whole_id)
    bench.spark.rows(f"CALL lake.system.set_current_snapshot(table => '{bench.table}', ref => '{tag}')")
    bench.spark.rows(f"ALTER TABLE lake.{bench.table} DROP TAG {tag}")
    assert bench.spark.rows(f"SELECT count(*) AS n FROM lake.{bench.table}") == [{"n": 30}]
    assert bench.run("rewrite_data_files").after.data_files == 1


def test_a_run_that_lost_everything_to_conflicts_is_recorded_and_the_next_one_waits_longer(bench: Bench) -> None:
    class Losing(Procedures):
        def rewrite_data_files(self, **_given: Any) -> int:
            raise ConflictError("another writer committed first", where="x", action="y")

    for _ in range(2):
        with pytest.raises(ConflictError, match="plans lost"):
            bench.run("rewrite_data_files", Losing)
    [run] = past_runs(bench.history.properties, "rewrite_data_files")
    assert (run.changed, run.complete, run.failed, run.failures) == (False, False, True, 2)
    every_commit = SOON.model_copy(update={"rewrite_after_commits": 1})
    minute_ms, found = 60_000, []
    for minutes in (3.9, 4.1):  # A minute, twice as long after each failure.
        now_ms = run.at_ms + int(minutes * minute_ms)
        found.append(due(bench.lake, bench.table, "rewrite_data_files", every_commit, now_ms=now_ms))
    assert [(one.decision.due, one.start) for one in found] == [(False, BEGINNING), (True, BEGINNING)]
    assert bench.run("rewrite_data_files").after.data_files == 1
    assert [one.failed for one in past_runs(bench.history.properties, "rewrite_data_files")] == [False, True]


def test_a_table_that_was_partitioned_later_is_refused_by_an_engine_that_takes_its_deletes_for_dangling(
    bench: Bench,
) -> None:
    class Old(Procedures):
        def engine(self) -> Engine:
            return Engine("1.11.0", "4.1.4")

    assert isinstance(bench.run("rewrite_data_files", Old, dry_run=True), RewritePlan)
    bench.spark.rows(f"ALTER TABLE lake.{bench.table} ADD PARTITION FIELD bucket(4, id)")
    with pytest.raises(ConfigError, match="deleted rows come back"):
        bench.run("rewrite_data_files", Old, dry_run=True)
    assert isinstance(bench.run("rewrite_data_files", dry_run=True), RewritePlan)
