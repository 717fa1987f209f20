"""Runs that go wrong on real Spark: cut short, overtaken by another, or claiming more than was done."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_platform.errors import CdcError, ConfigError, ConflictError, InvariantError, LimitError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.files import normal_path
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.lake.spark import Spark
from cdc_platform.maintenance import maintain as module
from cdc_platform.maintenance.maintain import Effect, maintain
from cdc_platform.maintenance.plan import ExpiryPlan, Plan, RewritePlan
from cdc_platform.maintenance.procedures import Procedures
from cdc_platform.maintenance.runs import Operation, PastRun, past_runs
from cdc_platform.registry.maintenance import Maintenance

pytestmark = [pytest.mark.e2e]
TABLE = "curated.failing"
SOON = Maintenance(keep_snapshots_for=timedelta(milliseconds=1), keep_snapshots_min=1)
_DAYS_AGO_S = 9 * 86_400
Connected = tuple[Spark, Lake, str]


def made_of(spark: Spark, inserts: int, *, overwrite: bool = False, table: str = TABLE, declared: str = "") -> None:
    spark.rows(f"DROP TABLE IF EXISTS lake.{table} PURGE")
    spark.rows(f"CREATE TABLE lake.{table} (id bigint, g int) USING iceberg {declared}")
    for n in range(inserts):
        spark.rows(
            f"INSERT {'OVERWRITE' if overwrite else 'INTO'} lake.{table} "
            f"SELECT /*+ COALESCE(1) */ id, cast(id % 4 AS int) FROM range({n * 10}, {n * 10 + 10})"
        )


def history_of(lake: Lake, table: str = TABLE) -> TableHistory:
    found = lake.history(table)
    assert found is not None
    return found


def newest(lake: Lake, operation: Operation, table: str = TABLE) -> PastRun:
    return past_runs(history_of(lake, table).properties, operation)[0]


def done(
    connected: Connected, operation: Operation, procedures: type[Procedures] = Procedures, table: str = TABLE
) -> Effect:
    spark, lake, _ = connected
    effect = maintain(
        spark, lake, table, operation, SOON, dry_run=False, procedures=procedures, sleep=lambda _seconds: None
    )
    assert isinstance(effect, Effect)
    return effect


# Runs that are cut short.


@pytest.fixture
def two_files_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables in several calls."""
    plan = module.rewrite_plan

    def small(*given: Any, **limits: Any) -> RewritePlan:
        made = plan(*given, **limits)
        return replace(made, groups=(made.data_files + 1) // 2, files_per_call=2)

    monkeypatch.setattr(module, "rewrite_plan", small)


def failing(error: CdcError | None) -> type[Procedures]:
    """The first call works; the second raises, or claims what it has not done."""
    calls = list[int]()

    class Failing(Procedures):
        def rewrite_data_files(self, **given: Any) -> int:
            calls.append(1)
            if len(calls) == 1:
                return super().rewrite_data_files(**given)
            if error is not None:
                raise error
            return 2

    return Failing


@pytest.mark.usefixtures("two_files_a_call")
def test_a_run_whose_second_call_breaks_a_rule_is_recorded_and_fails(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, 8)
    with pytest.raises(InvariantError, match="rewrote 2 files, but made no snapshot"):
        done(spark_lake, "rewrite_data_files", failing(None))
    run = newest(lake, "rewrite_data_files")
    assert (run.changed, run.complete, run.snapshot_id) == (True, False, history_of(lake).head_id)


@pytest.mark.usefixtures("two_files_a_call")
@pytest.mark.parametrize("error", [ConflictError, InvariantError])
def test_an_error_after_the_first_commit_is_raised_and_what_was_done_is_recorded(
    spark_lake: Connected, error: type[CdcError]
) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, 8)
    with pytest.raises(error):
        done(spark_lake, "rewrite_data_files", failing(error("it broke", where="x", action="y")))
    run = newest(lake, "rewrite_data_files")
    assert (run.changed, run.complete, run.failed, run.small_files_left) == (True, False, True, 7)


@pytest.mark.usefixtures("two_files_a_call")
def test_a_run_that_is_over_its_time_after_a_commit_says_so_and_leaves_the_rest_to_the_next(
    spark_lake: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, 8)
    sizes = {row["file_path"]: row["file_size_in_bytes"] for row in files(spark)}
    limit = LimitError("it was stopped after 1 s", where="x", action="y")
    effect = done(spark_lake, "rewrite_data_files", failing(limit))
    run = newest(lake, "rewrite_data_files")
    assert (len(effect.snapshot_ids), effect.complete, run.complete, run.failed) == (1, False, False, False)
    assert effect.outcome.startswith("stopped before its end (it was stopped after 1 s)")
    gone = sizes.keys() - {row["file_path"] for row in files(spark)}
    assert len(gone) == 2
    assert run.rewritten_bytes == effect.rewritten_bytes == sum(sizes[path] for path in gone)
    monkeypatch.undo()
    rest = done(spark_lake, "rewrite_data_files")
    assert (rest.complete, newest(lake, "rewrite_data_files").complete, rest.after.data_files) == (True, True, 1)


def files(spark: Spark, table: str = TABLE) -> list[dict[str, Any]]:
    return spark.rows(f"SELECT file_path, file_size_in_bytes FROM lake.{table}.files")


@pytest.mark.usefixtures("two_files_a_call")
def test_a_call_that_makes_two_commits_is_one_call(spark_lake: Connected) -> None:
    """As where it removes dangling deletes in a commit of its own."""
    spark, lake, _ = spark_lake
    made_of(spark, 8)
    calls = list[int]()

    class Twice(Procedures):
        def rewrite_data_files(self, **given: Any) -> int:
            calls.append(1)
            return super().rewrite_data_files(**given) + super().rewrite_manifests()

    effect = done(spark_lake, "rewrite_data_files", Twice)
    assert (len(calls), len(effect.snapshot_ids) > 4) == (4, True)
    assert newest(lake, "rewrite_data_files").snapshot_id == effect.snapshot_ids[-1]


def test_what_was_committed_while_a_run_proved_itself_is_not_what_it_left(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, 4)

    class Overtaken(Procedures):
        def rewrite_data_files(self, **given: Any) -> int:
            rewritten = super().rewrite_data_files(**given)
            for n in range(3):
                spark.rows(f"INSERT INTO lake.{TABLE} VALUES ({n}, 0)")
            return rewritten

    effect = done(spark_lake, "rewrite_data_files", Overtaken)
    run = newest(lake, "rewrite_data_files")
    assert history_of(lake).head_id != effect.snapshot_ids[-1]
    assert (run.snapshot_id, run.small_files_left, run.complete) == (effect.snapshot_ids[-1], 1, True)
    again = done(spark_lake, "expire_snapshots")
    assert newest(lake, "expire_snapshots").snapshot_id == again.before.snapshot_id


def test_durations_do_not_follow_the_clock_of_the_day(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, 3)
    days = iter(range(10_000, 0, -1))
    effect = maintain(
        spark, lake, TABLE, "rewrite_data_files", SOON, dry_run=False, clock=lambda: next(days) * 86_400.0
    )
    assert isinstance(effect, Effect)
    assert effect.took_s > 0
    assert newest(lake, "rewrite_data_files").took_s > 0


# Dangling deletes, old specs, one large file: as Iceberg itself has it.


def test_dangling_deletes_alone_are_removed_from_a_partitioned_table(spark_lake: Connected) -> None:
    spark, _, _ = spark_lake
    declared = (
        "PARTITIONED BY (g) TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read', "
        "'write.delete.granularity'='file')"
    )
    made_of(spark, 1, declared=declared)
    for n in range(3):
        spark.rows(f"DELETE FROM lake.{TABLE} WHERE id = {n}")
    spark.rows(
        f"CALL lake.system.rewrite_data_files(table => '{TABLE}', "
        "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'false'))"
    )
    effect = done(spark_lake, "rewrite_data_files")
    assert isinstance(effect.plan, RewritePlan)
    assert effect.before.dangling_delete_files == effect.before.delete_files > 0
    assert (effect.plan.data_files, effect.after.delete_files, effect.changed) == (0, 0, True)


def test_files_of_an_old_spec_are_merged(spark_lake: Connected) -> None:
    spark, _, _ = spark_lake
    made_of(spark, 1, declared="PARTITIONED BY (g)")
    spark.rows(f"ALTER TABLE lake.{TABLE} DROP PARTITION FIELD g")
    effect = done(spark_lake, "rewrite_data_files")
    assert (effect.before.data_files, effect.after.data_files) == (4, 1)


def test_one_file_that_is_too_large_is_split(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    spark.rows(f"DROP TABLE IF EXISTS lake.{TABLE} PURGE")
    spark.rows(f"CREATE TABLE lake.{TABLE} (id bigint, v string) USING iceberg")
    spark.rows(f"INSERT INTO lake.{TABLE} SELECT /*+ COALESCE(1) */ id, uuid() FROM range(150000)")
    policy = Maintenance(target_file_mb=1, group_mb_max=100)
    effect = maintain(spark, lake, TABLE, "rewrite_data_files", policy, dry_run=False)
    assert isinstance(effect, Effect)
    assert (effect.before.data_files, effect.complete) == (1, True)
    assert effect.after.data_files > 1


# Expiry.


def planned(connected: Connected) -> ExpiryPlan:
    plan: Effect | Plan = maintain(connected[0], connected[1], TABLE, "expire_snapshots", SOON, dry_run=True)
    assert isinstance(plan, ExpiryPlan)
    return plan


def test_a_tag_that_is_made_while_expiry_runs_makes_a_new_plan(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, 4, overwrite=True)
    tagged = planned(spark_lake).snapshot_ids[1]
    tags = list[str]()

    class Tagged(Procedures):
        def expire_snapshots(self, snapshot_ids: Sequence[int]) -> int:
            if not tags:
                tags.append("keep_it")
                spark.rows(f"ALTER TABLE lake.{TABLE} CREATE TAG keep_it AS OF VERSION {tagged}")
            return super().expire_snapshots(snapshot_ids)

    effect = done(spark_lake, "expire_snapshots", Tagged)
    assert (effect.conflicts, len(effect.plan.figures())) == (1, 6)
    assert history_of(lake).snapshots.keys() == {tagged, history_of(lake).head_id}


@pytest.mark.parametrize("when", ["before the call", "in the call"])
def test_an_expiry_that_another_overtook_ends_well(spark_lake: Connected, when: str) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, 4, overwrite=True)
    others = list[Effect]()

    class Overtaken(Procedures):
        def expire_snapshots(self, snapshot_ids: Sequence[int]) -> int:
            if when == "in the call":
                others.append(done(spark_lake, "expire_snapshots"))
            return super().expire_snapshots(snapshot_ids)

    def other(line: str) -> None:
        if when == "before the call" and "would go" in line:
            others.append(done(spark_lake, "expire_snapshots"))

    effect = maintain(
        spark,
        lake,
        TABLE,
        "expire_snapshots",
        SOON,
        dry_run=False,
        procedures=Overtaken,
        say=other,
        sleep=lambda _seconds: None,
    )
    assert isinstance(effect, Effect)
    assert [one.removed_files for one in others] == [3]
    assert (len(history_of(lake).snapshots), effect.files_left) == (1, 0)


@pytest.mark.parametrize("error", [None, LimitError("it was stopped", where="x", action="y")], ids=["green", "limit"])
def test_an_expiry_whose_files_stay_says_how_many(spark_lake: Connected, error: CdcError | None) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, 4, overwrite=True)

    class MetadataAlone(Procedures):
        def expire_snapshots(self, snapshot_ids: Sequence[int]) -> int:
            table = lake.load(TABLE)
            assert table is not None
            with table.maintenance.expire_snapshots() as expiry:
                expiry.by_ids(list(snapshot_ids))
            if error is not None:
                raise error
            return 0

    effect = done(spark_lake, "expire_snapshots", MetadataAlone)
    assert isinstance(effect.plan, ExpiryPlan)
    assert (effect.removed_files, effect.files_left, len(effect.plan.files)) == (0, 3, 3)
    assert effect.outcome.endswith("3 files that were to go are still there")
    assert any("only remove_orphan_files finds them" in note for note in effect.notes)
    assert effect.figures()["files_left"] == 3
    assert newest(lake, "expire_snapshots").changed
    assert spark.rows(f"SELECT count(*) AS n FROM lake.{TABLE}") == [{"n": 10}]


# Orphans.


@pytest.mark.parametrize(
    "place", ["LOCATION '{0}/parts/inner'", "LOCATION '{0}'", "TBLPROPERTIES ('write.data.path'='{0}/x')"]
)
def test_orphans_of_a_table_that_shares_its_folder_are_never_removed(spark_lake: Connected, place: str) -> None:
    spark, lake, _ = spark_lake
    made_of(spark, 1)
    table = lake.load(TABLE)
    assert table is not None
    inner = "curated.inner"
    spark.rows(f"DROP TABLE IF EXISTS lake.{inner}")
    spark.rows(f"CREATE TABLE lake.{inner} (id bigint) USING iceberg {place.format(table.location())}")
    try:
        spark.rows(f"INSERT INTO lake.{inner} SELECT id FROM range(10)")
        old_s = time.time() - _DAYS_AGO_S
        for path in Path(normal_path(table.location()).removeprefix("file:")).rglob("*.*"):
            os.utime(path, (old_s, old_s))
        for dry_run in (True, False):
            with pytest.raises(ConfigError, match=r"table curated\.inner has files in the same folder"):
                maintain(spark, lake, TABLE, "remove_orphan_files", SOON, dry_run=dry_run)
        assert spark.rows(f"SELECT count(*) AS n FROM lake.{inner}") == [{"n": 10}]
    finally:
        spark.rows(f"DROP TABLE IF EXISTS lake.{inner}")
