"""Maintenance on real Spark and Iceberg: what each operation proves of itself, and what it refuses."""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_platform.errors import ConfigError, ConflictError, InvariantError, LimitError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.files import normal_path
from cdc_platform.lake.spark import Spark, spark_session
from cdc_platform.maintenance.maintain import Effect, maintain
from cdc_platform.maintenance.plan import ExpiryPlan, OrphanPlan
from cdc_platform.maintenance.probe import Probe, columns, probe, require_same
from cdc_platform.maintenance.procedures import Procedures
from cdc_platform.maintenance.runs import Operation, past_runs
from cdc_platform.registry.maintenance import Maintenance

pytestmark = [pytest.mark.e2e]
SOON = Maintenance(keep_snapshots_for=timedelta(milliseconds=1), keep_snapshots_min=1)
TABLE = "curated.kept"
_DAYS_AGO_S = 5 * 86_400
Connected = tuple[Spark, Lake, str]


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def connected(spark_lake: Connected, request: pytest.FixtureRequest) -> Iterator[Connected]:
    """A table of four data files and merge-on-read deletes."""
    spark, lake, url = spark_lake
    make(spark, TABLE, request.param)
    yield spark, lake, url


def make(spark: Spark, table: str, version: int, *, files: int = 4, rows: int = 100) -> None:
    spark.rows(f"DROP TABLE IF EXISTS lake.{table} PURGE")
    spark.rows(
        f"CREATE TABLE lake.{table} (id bigint, v string, m map<string, int>) USING iceberg TBLPROPERTIES "
        f"('format-version'='{version}', 'write.delete.mode'='merge-on-read', 'write.delete.granularity'='partition')"
    )
    for n in range(files):
        spark.rows(
            f"INSERT INTO lake.{table} SELECT /*+ REPARTITION(1) */ id, sha2(cast(id AS string), 512), map('a', 1) "
            f"FROM range({n * rows}, {(n + 1) * rows})"
        )
    spark.rows(f"DELETE FROM lake.{table} WHERE id % 10 = 3")


def done(
    connected: Connected,
    operation: Operation,
    policy: Maintenance = SOON,
    table: str = TABLE,
    procedures: type[Procedures] = Procedures,
) -> Effect:
    spark, lake, _ = connected
    effect = maintain(spark, lake, table, operation, policy, dry_run=False, procedures=procedures)
    assert isinstance(effect, Effect)
    return effect


def test_a_dry_run_changes_nothing(connected: Connected) -> None:
    spark, lake, _ = connected
    before = lake.history(TABLE)
    for operation in ("rewrite_data_files", "rewrite_manifests", "expire_snapshots", "remove_orphan_files"):
        assert maintain(spark, lake, TABLE, operation, SOON, dry_run=True).lines()  # type: ignore[union-attr]
    after = lake.history(TABLE)
    assert before is not None and after is not None
    assert (before.head_id, before.properties, set(before.snapshots)) == (
        after.head_id,
        after.properties,
        set(after.snapshots),
    )


def test_a_rewrite_shows_what_it_bought_and_is_recorded(connected: Connected) -> None:
    effect = done(connected, "rewrite_data_files")
    assert (effect.before.data_files, effect.after.data_files) == (4, 1)
    assert len(effect.snapshot_ids) == 1
    assert effect.probe_before is not None and effect.probe_after is not None
    assert effect.probe_before.rows == effect.probe_after.rows == 360
    assert effect.probe_before.checksum == effect.probe_after.checksum
    assert effect.probe_before.lineage == effect.probe_after.lineage
    assert (effect.probe_after.lineage is not None) == (effect.after.format_version == 3)
    assert effect.notes == ()
    history = connected[1].history(TABLE)
    assert history is not None
    [run] = past_runs(history.properties, "rewrite_data_files")
    assert (run.changed, run.deletes, run.snapshot_id) == (True, 40, effect.snapshot_ids[-1])
    again = done(connected, "rewrite_manifests")
    assert again.probe_after is not None and again.probe_after.lineage == effect.probe_after.lineage


def test_a_rewrite_with_nothing_to_do_is_recorded_as_such(connected: Connected) -> None:
    done(connected, "rewrite_data_files")
    effect = done(connected, "rewrite_data_files")
    if effect.plan.is_empty:  # On v2 the newest position deletes outlive the rewrite of their data.
        assert (effect.snapshot_ids, effect.outcome) == ((), "nothing to do; no snapshot was made")
    history = connected[1].history(TABLE)
    assert history is not None
    assert len(past_runs(history.properties, "rewrite_data_files")) == 2


def test_a_group_at_a_time_is_a_commit_at_a_time(spark_lake: Connected) -> None:
    make(spark_lake[0], TABLE, 2, files=6, rows=20_000)  # 1.4 MB each.
    effect = done(spark_lake, "rewrite_data_files", Maintenance(group_mb_max=3, target_file_mb=1))
    assert effect.plan.figures()["groups"] > 1
    assert len(effect.snapshot_ids) > 1
    assert effect.probe_after is not None and effect.probe_after.rows == 108_000


def test_position_deletes_go_where_there_are_any_and_it_is_refused_where_there_are_none(connected: Connected) -> None:
    if connected[1].load(TABLE).metadata.format_version == 3:  # type: ignore[union-attr]
        with pytest.raises(ConfigError, match="touches no deletion vector"):
            done(connected, "rewrite_position_delete_files")
        return
    done(connected, "rewrite_data_files")
    effect = done(connected, "rewrite_position_delete_files")
    assert (effect.before.position_deletes, effect.after.position_deletes) == (40, 0)


# The canary.


def replaced(lake: Lake, change: Callable[[], Any], table: str = TABLE) -> tuple[int, int]:
    """The snapshot before and after a change."""
    before = lake.history(table)
    change()
    after = lake.history(table)
    assert before is not None and after is not None and before.head_id and after.head_id
    assert before.head_id != after.head_id
    return before.head_id, after.head_id


def both(spark: Spark, lake: Lake, before: int, after: int) -> list[Probe]:
    """Both snapshots as a run compares them."""
    pairs = ((before, after), (after, before))
    return [probe(spark, lake, TABLE, i, columns(lake, TABLE, i, beside=j)) for i, j in pairs]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE lake.{t} SET v = 'other' WHERE id = 5", "changed rows"),
        ("INSERT INTO lake.{t} SELECT * FROM lake.{t} WHERE id = 5", "number of rows from 360 to 361"),
        ("DELETE FROM lake.{t} WHERE id = 5", "number of rows from 360 to 359"),
        # Two rows twice over in place of two others: a XOR alone takes them for nothing.
        ("INSERT OVERWRITE lake.{t} SELECT CASE WHEN id IN (5, 6) THEN 7 ELSE id END, "
         "CASE WHEN id IN (5, 6) THEN sha2('7', 512) ELSE v END, m FROM lake.{t}", "changed rows"),
    ],
)  # fmt: skip
def test_the_canary_sees_a_changed_row_and_names_the_way_back(connected: Connected, change: str, says: str) -> None:
    spark, lake, _ = connected
    before, after = replaced(lake, lambda: spark.rows(change.format(t=TABLE)))
    probes = both(spark, lake, before, after)
    with pytest.raises(InvariantError, match=says) as raised:
        require_same(TABLE, "rewrite_data_files", *probes)
    rollback = f"CALL lake.system.rollback_to_snapshot(table => '{TABLE}', snapshot_id => {before})"
    assert rollback in raised.value.action
    with pytest.raises(InvariantError, match="`cdc-platform down` stops the sink"):
        require_same(TABLE, "rewrite_data_files", *probes, newer_commits=[1])
    spark.rows(rollback)
    assert spark.rows(f"SELECT count(*) AS n FROM lake.{TABLE}") == [{"n": 360}]


def test_the_canary_sees_rows_that_are_the_same_under_other_row_ids(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    make(spark, TABLE, 3)
    same_rows_anew = f"INSERT OVERWRITE lake.{TABLE} SELECT id, v, m FROM lake.{TABLE}"
    before, after = replaced(lake, lambda: spark.rows(same_rows_anew))
    probes = both(spark, lake, before, after)
    assert probes[0].checksum == probes[1].checksum
    with pytest.raises(InvariantError, match="row lineage"):
        require_same(TABLE, "rewrite_manifests", *probes)


def test_a_run_that_changes_rows_fails(connected: Connected) -> None:
    """An engine that does too much: a `replace` with one row less."""
    spark, lake, _ = connected

    class Broken(Procedures):
        def rewrite_data_files(self, **given: Any) -> int:
            spark.rows(f"DELETE FROM lake.{TABLE} WHERE id = 5")
            call_it_replace(lake, TABLE)
            return super().rewrite_data_files(**given)

    with pytest.raises(InvariantError, match="from 360 to 359"):
        done(connected, "rewrite_data_files", procedures=Broken)


def call_it_replace(lake: Lake, table: str) -> None:
    """Edit the head's operation in the metadata file: no engine writes such a snapshot on purpose."""
    import json

    loaded = lake.load(table)
    assert loaded is not None
    file = Path(loaded.metadata_location.removeprefix("file:"))
    metadata = json.loads(file.read_text())
    for snapshot in metadata["snapshots"]:
        if snapshot["snapshot-id"] == metadata["current-snapshot-id"]:
            snapshot["summary"]["operation"] = "replace"
    file.write_text(json.dumps(metadata))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's own checksum.


def test_a_claim_without_a_snapshot_fails(connected: Connected) -> None:
    class Boastful(Procedures):
        def rewrite_data_files(self, **given: Any) -> int:
            return 4 if given else 0

    with pytest.raises(InvariantError, match="rewrote 4 files, but made no snapshot"):
        done(connected, "rewrite_data_files", procedures=Boastful)


def test_a_table_that_was_upgraded_has_no_lineage_to_compare_and_is_maintained(spark_lake: Connected) -> None:
    spark = spark_lake[0]
    make(spark, TABLE, 2)
    spark.rows(f"ALTER TABLE lake.{TABLE} SET TBLPROPERTIES ('format-version'='3')")
    effect = done(spark_lake, "rewrite_data_files")
    assert effect.probe_before is not None and effect.probe_before.lineage is None
    assert any("before the upgrade to v3" in note for note in effect.notes)


def test_a_column_that_came_and_one_that_was_widened_and_renamed_do_not_alarm_the_canary(connected: Connected) -> None:
    spark, lake, _ = connected
    spark.rows(f"ALTER TABLE lake.{TABLE} ADD COLUMN n int")
    spark.rows(f"INSERT INTO lake.{TABLE} VALUES (9999, 'x', map('a', 1), 5)")
    spark.rows(f"ALTER TABLE lake.{TABLE} ALTER COLUMN n TYPE bigint")
    spark.rows(f"ALTER TABLE lake.{TABLE} RENAME COLUMN n TO number")
    spark.rows(f"ALTER TABLE lake.{TABLE} ADD COLUMN newest string")
    effect = done(connected, "rewrite_data_files")
    assert len(effect.snapshot_ids) == 1
    assert lake.history(TABLE) is not None


# Conflicts, cancellation.


def test_a_run_that_is_over_its_time_leaves_the_table_whole(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    make(spark, TABLE, 2, files=2, rows=400_000)
    before = lake.history(TABLE)

    class Late(Procedures):
        def rewrite_data_files(self, *, files_max: int, group_mb_max: int, target_mb: int) -> int:
            with spark.within(0.3, setting="run_time_max"):
                return super().rewrite_data_files(files_max=files_max, group_mb_max=group_mb_max, target_mb=target_mb)

    with pytest.raises(LimitError, match="stopped after 0 s"):
        done(spark_lake, "rewrite_data_files", procedures=Late)
    began = iter([0.0])
    with pytest.raises(LimitError, match="over before this statement"):
        maintain(
            spark,
            lake,
            TABLE,
            "rewrite_data_files",
            SOON,
            dry_run=False,
            timer=lambda: next(began, 86_400.0),
        )
    after = lake.history(TABLE)
    assert before is not None and after is not None and after.head_id == before.head_id
    assert spark.rows(f"SELECT count(*) AS n FROM lake.{TABLE}") == [{"n": 720_000}]


def test_a_run_that_is_cancelled_stops_the_server_too_and_leaves_the_table_whole(spark_lake: Connected) -> None:
    """The exception comes in the middle of a statement, as Dagster's interrupt does: once the rewrite's file is there.

    How fast the machine is decides nothing: a file that has begun is not committed yet.
    """
    spark, lake, url = spark_lake
    make(spark, TABLE, 2, files=2, rows=400_000)
    before = lake.history(TABLE)
    made = lake.load(TABLE)
    assert before is not None and made is not None
    folder = Path(normal_path(made.location()).removeprefix("file:")) / "data"

    class Cancelled(BaseException):
        pass

    main = threading.get_ident()

    class Watched(Procedures):
        def rewrite_data_files(self, **given: Any) -> int:
            there, over = set(folder.rglob("*.parquet")), threading.Event()

            def cancel() -> None:
                while not over.wait(0.01):
                    if set(folder.rglob("*.parquet")) - there:
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(Cancelled))
                        return

            thread = threading.Thread(target=cancel)
            thread.start()
            try:
                return super().rewrite_data_files(**given)
            finally:
                over.set()
                thread.join()

    with pytest.raises(Cancelled), spark_session(url) as own:
        maintain(own, lake, TABLE, "rewrite_data_files", SOON, dry_run=False, procedures=Watched)
    time.sleep(8)  # Longer than the rewrite would have taken: it must not be committed by a server that goes on.
    after = lake.history(TABLE)
    assert after is not None and after.head_id == before.head_id
    assert done(spark_lake, "rewrite_data_files").after.data_files == 1


def test_a_lost_plan_is_made_anew_and_its_seconds_are_counted(spark_lake: Connected) -> None:
    """A row of a file that is being rewritten is deleted meanwhile: what was read is void."""
    spark, lake, url = spark_lake
    make(spark, TABLE, 2, files=2, rows=400_000)
    said, pauses, deleted = list[str](), list[float](), list[int]()
    effect = maintain(
        spark,
        lake,
        TABLE,
        "rewrite_data_files",
        SOON,
        dry_run=False,
        say=said.append,
        sleep=pauses.append,
        procedures=disturbed(url, times=1, deleted=deleted),
    )
    assert isinstance(effect, Effect)
    assert (effect.conflicts, len(pauses), effect.after.data_files) == (1, 1, 1)
    assert effect.lost_s > 0
    assert any("found new position delete for replaced data file" in line for line in said)
    assert effect.probe_after is not None and effect.probe_after.rows == 720_000 - len(deleted)


def test_a_run_gives_up_after_so_many_lost_plans(spark_lake: Connected) -> None:
    spark, lake, url = spark_lake
    make(spark, TABLE, 2, files=2, rows=400_000)
    policy, pauses = Maintenance(conflicts_max=2), list[float]()
    with pytest.raises(ConflictError, match="2 plans lost") as raised:
        maintain(
            spark,
            lake,
            TABLE,
            "rewrite_data_files",
            policy,
            dry_run=False,
            sleep=pauses.append,
            procedures=disturbed(url, times=9),
        )
    assert "conflicts_max" in raised.value.action
    assert len(pauses) == 1


def disturbed(url: str, *, times: int, deleted: list[int] | None = None) -> type[Procedures]:
    """Another writer deletes row after row of the table while each of the first calls runs."""
    gone, calls = deleted if deleted is not None else list[int](), list[int]()

    class Disturbed(Procedures):
        def rewrite_data_files(self, **given: Any) -> int:
            call = partial(super().rewrite_data_files, **given)
            if len(calls) >= times:
                return call()
            calls.append(1)
            over = threading.Event()

            def delete() -> None:
                with spark_session(url) as other:
                    while not over.is_set():
                        other.rows(f"DELETE FROM lake.{TABLE} WHERE id = {10 * len(gone)}")
                        gone.append(1)

            thread = threading.Thread(target=delete)
            thread.start()
            try:
                return call()
            finally:
                over.set()
                thread.join()

    return Disturbed


# Expiry and orphans.


def test_expiry_takes_exactly_what_its_preview_lists(connected: Connected) -> None:
    spark, lake, _ = connected
    history = lake.history(TABLE)
    assert history is not None
    ids = [s.snapshot_id for s in history.ancestry()][::-1]
    done(connected, "rewrite_data_files")
    spark.rows(f"ALTER TABLE lake.{TABLE} CREATE TAG reader_x AS OF VERSION {ids[3]}")
    spark.rows(f"ALTER TABLE lake.{TABLE} CREATE TAG keep_audit AS OF VERSION {ids[0]} RETAIN 1 DAYS")
    plan = maintain(spark, lake, TABLE, "expire_snapshots", SOON, dry_run=True)
    assert isinstance(plan, ExpiryPlan)
    assert set(plan.snapshot_ids) == {ids[1], ids[2]}
    assert [k.snapshot_id for k in plan.kept if "reader_x" in k.by] == [ids[3]]
    effect = done(connected, "expire_snapshots")
    assert set(lake.history(TABLE).snapshots) == set(history.snapshots) - {ids[1], ids[2]} | {effect.after.snapshot_id}  # type: ignore[union-attr]
    assert effect.checked_files > 0
    assert not any(Path(path.removeprefix("file:")).exists() for path in plan.files)
    assert spark.rows(f"SELECT count(*) AS n FROM lake.{TABLE} VERSION AS OF 'keep_audit'") == [{"n": 100}]


def test_a_ref_that_is_too_old_by_its_own_word_goes_unless_it_is_to_be_kept(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    make(spark, TABLE, 2)
    oldest = list(lake.history(TABLE).ancestry())[-1].snapshot_id  # type: ignore[union-attr]
    for tag in ("keep_audit", "old"):
        spark.rows(f"ALTER TABLE lake.{TABLE} CREATE TAG {tag} AS OF VERSION {oldest} RETAIN 1 DAYS")
    policy = Maintenance(keep_snapshots_for=timedelta(milliseconds=1), keep_snapshots_min=1, keep_refs=("keep_*",))
    # Two days from now both are over their own age.
    plan = maintain(
        spark, lake, TABLE, "expire_snapshots", policy, dry_run=True, clock=lambda: time.time() + 2 * 86_400
    )
    assert isinstance(plan, ExpiryPlan)
    assert (plan.refs_gone, plan.refs_renewed) == (("old",), ("keep_audit",))
    assert oldest not in plan.snapshot_ids


def test_orphans_are_listed_first_and_files_of_java_and_python_are_both_known(spark_lake: Connected) -> None:
    spark, lake, _ = spark_lake
    table = "landing.orphaned"
    if lake.load(table) is not None:
        lake.catalog.drop_table(table)
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    made = lake.catalog.create_table(table, Schema(NestedField(1, "id", LongType())))
    made.append(pa.table({"id": [1, 2, 3]}))
    spark.rows(f"INSERT INTO lake.{table} VALUES (4)")
    folder = Path(normal_path(made.location()).removeprefix("file:"))
    orphan, fresh = folder / "data" / "orphan.parquet", folder / "data" / "fresh.parquet"
    orphan.write_text("x")
    old_s = time.time() - _DAYS_AGO_S
    for path in folder.rglob("*.*"):
        os.utime(path, (old_s, old_s))
    fresh.write_text("x")
    names = {f.name for f in folder.rglob("*.*")}
    plan = maintain(spark, lake, table, "remove_orphan_files", SOON, dry_run=True)
    assert isinstance(plan, OrphanPlan)
    assert [normal_path(path) for path in plan.files] == [f"file:{orphan}"]
    assert orphan.exists()
    effect = done(spark_lake, "remove_orphan_files", table=table)
    assert effect.removed_files == 1
    left = {f.name for f in folder.rglob("*.*")}
    assert names - left == {"orphan.parquet"}
    assert spark.rows(f"SELECT sum(id) AS s FROM lake.{table}") == [{"s": 10}]


def test_files_that_a_snapshot_needs_are_never_removed_as_orphans(spark_lake: Connected) -> None:
    """An engine that lists a live file under another spelling, as one with a wrong idea of schemes would."""
    spark, _, _ = spark_lake
    make(spark, TABLE, 2)
    [live] = spark.rows(f"SELECT min(file_path) AS p FROM lake.{TABLE}.files")

    class Wrong(Procedures):
        def orphans(self, older_than_ms: int) -> tuple[str, ...]:
            return ("file://" + live["p"].removeprefix("file:"),) if older_than_ms else ()

    with pytest.raises(InvariantError, match="1 files that a snapshot needs"):
        done(spark_lake, "remove_orphan_files", procedures=Wrong)
    assert spark.rows(f"SELECT count(*) AS n FROM lake.{TABLE}") == [{"n": 360}]


def test_a_table_whose_files_may_belong_to_another_is_refused(spark_lake: Connected) -> None:
    spark, _, _ = spark_lake
    make(spark, TABLE, 2)
    spark.rows(f"ALTER TABLE lake.{TABLE} SET TBLPROPERTIES ('gc.enabled'='false')")
    for operation in ("expire_snapshots", "remove_orphan_files"):
        with pytest.raises(ConfigError, match=r"gc\.enabled=false"):
            done(spark_lake, operation)
    spark.rows(f"ALTER TABLE lake.{TABLE} UNSET TBLPROPERTIES ('gc.enabled')")  # Else no test can drop it.
