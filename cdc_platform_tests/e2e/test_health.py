"""Health against Spark: its metadata tables say which files are live, and its delete files which rows they name.

The truth is by brute force over `.entries` and `.position_deletes`; ours is from manifests through PyIceberg alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_platform.errors import ConfigError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.files import FileListing, live_files, normal_path, reachable
from cdc_platform.lake.spark import Spark
from cdc_platform.landing.transaction import cached_transaction, row_delta
from cdc_platform.maintenance.health import TableHealth, dangling, figures_of, table_health
from cdc_platform_tests.landing.test_transaction import ROWS, SCHEMA, file_of

pytestmark = [pytest.mark.e2e]
MERGE_ON_READ = ", ".join(f"'write.{o}.mode'='merge-on-read'" for o in ("delete", "update", "merge"))
NO_REMOVAL = "map('rewrite-all', 'true', 'remove-dangling-deletes', 'false')"
Key = tuple[str, Any]  # A file's path, and the data file it is for when it is a vector.


@dataclass(frozen=True)
class Truth:
    """What Spark says."""

    live: set[tuple[Any, ...]]  # Content, path, records, bytes, sequence number, spec.
    dangling: set[Key]


def truth_of(spark: Spark, table: str, *, unpartitioned: set[int]) -> Truth:
    name = f"lake.{table}"
    entries = spark.rows(f"SELECT sequence_number AS number, data_file FROM {name}.entries WHERE status < 2")
    # The table of an unpartitioned table has no column `partition`.
    rows: list[dict[str, Any]] = [{"partition": None, "number": e["number"]} | e["data_file"].asDict() for e in entries]
    named: dict[str, set[str]] = {}
    for row in spark.rows(f"SELECT DISTINCT delete_file_path AS d, file_path AS f FROM {name}.position_deletes"):
        named.setdefault(row["d"], set()).add(row["f"])
    for row in rows:
        row["vector"] = row["file_format"].upper() == "PUFFIN"
        row["bytes"] = row["content_size_in_bytes"] if row["vector"] else row["file_size_in_bytes"]
    data = [r for r in rows if r["content"] == 0]

    def applies(delete: dict[str, Any], file: dict[str, Any]) -> bool:
        same = (delete["spec_id"], delete["partition"]) == (file["spec_id"], file["partition"])
        if delete["content"] == 2:
            return file["number"] < delete["number"] and (same or delete["spec_id"] in unpartitioned)
        if not same or file["number"] > delete["number"]:
            return False
        if delete["vector"]:
            return delete["referenced_data_file"] == file["file_path"]
        covered = any(r["vector"] and r["referenced_data_file"] == file["file_path"] for r in rows)
        return file["file_path"] in named.get(delete["file_path"], ()) and not covered

    loose = [d for d in rows if d["content"] != 0 and not any(applies(d, f) for f in data)]
    return Truth(
        {(r["content"], r["file_path"], r["record_count"], r["bytes"], r["number"], r["spec_id"]) for r in rows},
        {(d["file_path"], d["referenced_data_file"] if d["vector"] else None) for d in loose},
    )


def ours(lake: Lake, table: str) -> tuple[FileListing, TableHealth, set[Key]]:
    listing, health = live_files(lake, table), table_health(lake, table, 128, with_history=True)
    assert listing is not None
    assert health is not None
    loose = {(f.path, f.names_from if f.vector else None) for f in dangling(listing)}
    assert len(loose) == health.dangling_delete_files
    return listing, health, loose


def live_of(listing: FileListing) -> set[tuple[Any, ...]]:
    contents = {"data": 0, "position_deletes": 1, "equality_deletes": 2}
    return {(contents[f.content], f.path, f.records, f.bytes, f.sequence_number, f.spec_id) for f in listing.files}


def agrees_with_summary(lake: Lake, table: str, health: TableHealth) -> None:
    """The cheap figures are the counted ones."""
    history = lake.history(table)
    assert history is not None
    figures = figures_of(history)
    assert figures is not None
    assert (figures.data_files, figures.delete_files) == (health.data_files, health.delete_files)
    assert (figures.data_records, figures.deletes) == (health.data_records, health.deletes)


def create(spark: Spark, table: str, columns: str, tail: str = "", **properties: str) -> None:
    spark.rows(f"DROP TABLE IF EXISTS lake.{table} PURGE")
    more = "".join(f", '{k}'='{v}'" for k, v in properties.items())
    spark.rows(f"CREATE TABLE lake.{table} ({columns}) USING iceberg {tail} TBLPROPERTIES ({MERGE_ON_READ}{more})")


def rewrite(spark: Spark, table: str, where: str) -> None:
    spark.rows(f"CALL lake.system.rewrite_data_files(table => '{table}', where => '{where}', options => {NO_REMOVAL})")


def test_deletion_vectors_that_share_a_file_under_several_specs(spark_lake: tuple[Spark, Lake, str]) -> None:
    spark, lake, _ = spark_lake
    table = "curated.vectors"
    create(spark, table, "id bigint, g int, d date, amt decimal(10,2)", "PARTITIONED BY (g)", **{"format-version": "3"})
    rows = "SELECT id, CAST(id % 4 AS int), DATE'2024-01-0{day}', {day}.5 FROM range({start}, {start} + 1000)"
    spark.rows(f"INSERT INTO lake.{table} {rows.format(day=1, start=0)}")
    spark.rows(f"DELETE FROM lake.{table} WHERE id % 10 = 3")
    spark.rows(f"DELETE FROM lake.{table} WHERE id % 10 = 4")
    spark.rows(f"ALTER TABLE lake.{table} ADD PARTITION FIELD days(d)")
    spark.rows(f"ALTER TABLE lake.{table} ADD PARTITION FIELD amt")
    spark.rows(f"INSERT INTO lake.{table} {rows.format(day=2, start=1000)}")
    spark.rows(f"DELETE FROM lake.{table} WHERE id % 10 = 5")
    truth, (listing, health, loose) = truth_of(spark, table, unpartitioned=set()), ours(lake, table)
    assert live_of(listing) == truth.live
    assert loose == truth.dangling == set()
    vectors = [f for f in listing.files if f.vector]
    assert (health.format_version, health.data_files, health.deletion_vectors) == (3, 8, 6)
    assert health.position_delete_files == 0
    assert len({f.path for f in vectors}) < len(vectors)  # They do share Puffin files.
    assert {f.spec_id for f in listing.files} == {0, 2}
    agrees_with_summary(lake, table, health)


def test_position_deletes_of_a_spark_merge_and_what_a_rewrite_leaves_of_them(
    spark_lake: tuple[Spark, Lake, str],
) -> None:
    spark, lake, _ = spark_lake
    table = "curated.positions"
    properties = {"format-version": "2", "write.delete.granularity": "file"}
    create(spark, table, "id bigint, g int, s string", "PARTITIONED BY (g)", **properties)
    for start in (0, 1000):
        spark.rows(f"INSERT INTO lake.{table} SELECT id, CAST(id % 4 AS int), 'a' FROM range({start}, {start} + 1000)")
    for remainder in (3, 4):
        spark.rows(
            f"MERGE INTO lake.{table} t USING (SELECT id FROM range(2000) WHERE id % 10 = {remainder}) s "
            "ON t.id = s.id WHEN MATCHED AND s.id % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET s = 'b'"
        )
    truth, (listing, before, loose) = truth_of(spark, table, unpartitioned=set()), ours(lake, table)
    assert live_of(listing) == truth.live
    assert before.position_delete_files > 0
    assert loose == truth.dangling == set()
    rewrite(spark, table, "g = 1")
    truth, (listing, health, loose) = truth_of(spark, table, unpartitioned=set()), ours(lake, table)
    assert live_of(listing) == truth.live
    assert loose == truth.dangling != set()
    agrees_with_summary(lake, table, health)
    assert (before.commits_since_rewrite, health.commits_since_rewrite) == (4, 0)


def test_a_position_delete_without_bounds_is_never_called_dangling_wrongly(spark_lake: tuple[Spark, Lake, str]) -> None:
    """One file of deletes for several data files has no bounds: some that dangle are not found, none is invented."""
    spark, lake, _ = spark_lake
    table = "curated.unbounded"
    properties = {"format-version": "2", "write.delete.granularity": "partition"}
    create(spark, table, "id bigint, g int", "PARTITIONED BY (g)", **properties)
    for start in (0, 1000):
        spark.rows(f"INSERT INTO lake.{table} SELECT id, CAST(id % 2 AS int) FROM range({start}, {start} + 1000)")
    spark.rows(f"DELETE FROM lake.{table} WHERE id % 10 IN (3, 4)")
    rewrite(spark, table, "g = 1")
    truth, (listing, _, loose) = truth_of(spark, table, unpartitioned=set()), ours(lake, table)
    assert live_of(listing) == truth.live
    assert any(f.content == "position_deletes" and f.names_from is None for f in listing.files)
    # The rewritten file keeps the starting sequence number, which is the delete's: by metadata it may be named.
    assert (len(truth.dangling), loose) == (1, set())


def test_vectors_that_a_table_got_after_it_had_position_deletes(spark_lake: tuple[Spark, Lake, str]) -> None:
    spark, lake, _ = spark_lake
    table = "curated.upgraded"
    properties = {"format-version": "2", "write.delete.granularity": "file"}
    create(spark, table, "id bigint", **properties)
    spark.rows(f"INSERT INTO lake.{table} SELECT /*+ COALESCE(1) */ id FROM range(1000)")
    spark.rows(f"INSERT INTO lake.{table} SELECT /*+ COALESCE(1) */ id FROM range(1000, 2000)")
    spark.rows(f"DELETE FROM lake.{table} WHERE id % 10 = 3")
    spark.rows(f"ALTER TABLE lake.{table} SET TBLPROPERTIES ('format-version'='3')")
    spark.rows(f"DELETE FROM lake.{table} WHERE id < 1000 AND id % 10 = 4")
    truth, (listing, health, loose) = truth_of(spark, table, unpartitioned={0}), ours(lake, table)
    assert live_of(listing) == truth.live
    assert loose == truth.dangling
    assert (health.deletion_vectors, health.format_version) == (1, 3)
    agrees_with_summary(lake, table, health)


def test_equality_deletes_of_the_sink_and_what_a_rewrite_leaves_of_them(spark_lake: tuple[Spark, Lake, str]) -> None:
    spark, lake, _ = spark_lake
    name = "landing.health"
    if lake.load(name) is not None:
        lake.catalog.drop_table(name)
    table = lake.catalog.create_table(name, SCHEMA)

    def commit(ids: list[int]) -> None:
        rows = pa.table({"id": ids, "status": ["x"] * len(ids)}, schema=ROWS)
        transaction = cached_transaction(table)
        files = {"data": [file_of(table, rows)], "deletes": [file_of(table, rows, of="id")]}
        row_delta()(transaction, **files, summary={}, replace_all=False, check=lambda: None).commit()
        transaction.commit_transaction()

    for number in range(1, 6):
        commit([number, 100])
    truth, (listing, health, loose) = truth_of(spark, name, unpartitioned={0}), ours(lake, name)
    assert live_of(listing) == truth.live
    assert loose == truth.dangling
    assert (health.equality_delete_files, health.dangling_delete_files) == (5, 1)
    spark.rows(f"CALL lake.system.rewrite_data_files(table => '{name}', options => {NO_REMOVAL})")
    truth, (listing, health, loose) = truth_of(spark, name, unpartitioned={0}), ours(lake, name)
    assert live_of(listing) == truth.live
    assert loose == truth.dangling
    assert (health.data_files, health.dangling_delete_files) == (1, health.equality_delete_files)
    assert health.history_bytes is not None
    held = spark.rows(
        f"SELECT DISTINCT data_file.file_path AS p, data_file.file_size_in_bytes AS n FROM lake.{name}.all_entries "
        f"WHERE status < 2 AND data_file.file_path NOT IN "
        f"(SELECT data_file.file_path FROM lake.{name}.entries WHERE status < 2)"
    )
    assert health.history_bytes == sum(row["n"] for row in held) > 0


def test_the_files_that_expiry_takes_are_those_that_no_other_snapshot_reaches(
    spark_lake: tuple[Spark, Lake, str],
) -> None:
    spark, lake, _ = spark_lake
    table = "curated.reach"
    create(spark, table, "id bigint", **{"format-version": "3"})
    spark.rows(f"INSERT INTO lake.{table} SELECT /*+ COALESCE(1) */ id FROM range(1000)")
    spark.rows(f"DELETE FROM lake.{table} WHERE id % 10 = 3")
    spark.rows(f"INSERT OVERWRITE lake.{table} SELECT /*+ COALESCE(1) */ id FROM range(500)")
    spark.rows(f"DELETE FROM lake.{table} WHERE id % 10 = 4")
    before = reachable(lake, table)
    assert before is not None
    history = lake.history(table)
    assert history is not None
    old = [s.snapshot_id for s in history.ancestry()][2:]
    files, metadata = before.only(old)
    assert len(files) == 2  # A data file and the Puffin file of its vector.
    existed = {row["p"] for row in spark.rows(f"SELECT file_path AS p FROM lake.{table}.all_files")}
    assert files.keys() < {normal_path(p) for p in existed}
    ids = ", ".join(str(i) for i in old)
    spark.rows(f"CALL lake.system.expire_snapshots(table => '{table}', snapshot_ids => ARRAY({ids}))")
    after = reachable(lake, table)
    assert after is not None
    gone = {*before.files(before.manifests_of), *before.metadata(before.manifests_of)} - {
        *after.files(after.manifests_of),
        *after.metadata(after.manifests_of),
    }
    assert gone == {*files, *metadata}
    local = [p.removeprefix("file:") for p in gone]
    assert not any(Path(p).exists() for p in local)
    assert all(Path(p.removeprefix("file:")).exists() for p in after.files(after.manifests_of))


def test_a_table_with_a_variant_column_is_refused_with_what_to_do(spark_lake: tuple[Spark, Lake, str]) -> None:
    spark, lake, _ = spark_lake
    create(spark, "curated.variant", "id bigint, v variant", **{"format-version": "3"})
    spark.rows("""INSERT INTO lake.curated.variant SELECT 1, parse_json('{"a":1}')""")
    try:
        with pytest.raises(ConfigError, match="variant"):
            table_health(lake, "curated.variant", 128)
    finally:  # Another test's removal of orphans reads every table of the catalog.
        spark.rows("DROP TABLE lake.curated.variant")
