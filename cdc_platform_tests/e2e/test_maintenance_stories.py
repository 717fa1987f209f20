"""Two stories of maintenance with exact figures: a merge-on-read table, and an upsert table like Flink's."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.files import live_files
from cdc_platform.lake.snapshot import Column
from cdc_platform.lake.spark import Spark
from cdc_platform.landing.commit import LandingTable
from cdc_platform.maintenance.maintain import Effect, maintain
from cdc_platform.maintenance.runs import Operation
from cdc_platform.registry.maintenance import Maintenance
from cdc_platform.source.types import SourceColumn

pytestmark = [pytest.mark.e2e]
POLICY = Maintenance(keep_snapshots_for=timedelta(milliseconds=1), keep_snapshots_min=1)
Connected = tuple[Spark, Lake, str]
Counts = dict[str, tuple[int, int]]  # Files and records, by content.


def counts(lake: Lake, table: str) -> Counts:
    listing = live_files(lake, table)
    assert listing is not None
    found: Counts = {}
    for file in listing.files:
        files, records = found.get(file.content, (0, 0))
        found[file.content] = (files + 1, records + file.records)
    return found


def done(connected: Connected, table: str, operation: Operation) -> Effect:
    effect = maintain(connected[0], connected[1], table, operation, POLICY, dry_run=False)
    assert isinstance(effect, Effect)
    return effect


def merge_on_read(spark: Spark, granularity: str) -> str:
    """5,000 rows and three merges of 400 changes, a fifth of them deletes; in the last two, 40 keys are new."""
    table = f"landing.merged_{granularity}"
    spark.rows(f"DROP TABLE IF EXISTS lake.{table} PURGE")
    spark.rows(
        f"CREATE TABLE lake.{table} (id bigint, v string) USING iceberg TBLPROPERTIES ('format-version'='2', "
        f"'write.merge.mode'='merge-on-read', 'write.delete.granularity'='{granularity}')"
    )
    spark.rows(f"INSERT INTO lake.{table} SELECT /*+ REPARTITION(2) */ id, concat('v', id) FROM range(5000)")
    for n in range(3):
        new = 40 if n else 0
        spark.rows(
            f"MERGE INTO lake.{table} t USING (SELECT CASE WHEN n % 5 = 1 AND n < {5 * new} THEN 10000 + {n} * 400 + n "
            f"ELSE n * 12 + {n} END AS id, n % 5 = 0 AS gone FROM (SELECT id AS n FROM range(400))) s ON t.id = s.id "
            f"WHEN MATCHED AND s.gone THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'merged' "
            "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'new')"
        )
    return table


def test_the_merge_on_read_story(spark_lake: Connected) -> None:
    """A rewrite of data leaves the position deletes, theirs drops them, expiry frees the files of both."""
    spark, lake, _ = spark_lake
    table = merge_on_read(spark, "partition")
    assert counts(lake, table) == {"data": (5, 5_960), "position_deletes": (3, 1_120)}
    assert spark.rows(f"SELECT count(*) AS n FROM lake.{table}") == [{"n": 4_840}]
    done(spark_lake, table, "rewrite_data_files")
    # The newest merge's deletes have the new file's own sequence number: they name none of its rows, and stay.
    assert counts(lake, table) == {"data": (1, 4_840), "position_deletes": (1, 360)}
    positions = done(spark_lake, table, "rewrite_position_delete_files")
    assert counts(lake, table) == {"data": (1, 4_840)}
    assert positions.probe_after is not None and positions.probe_after.rows == 4_840
    expiry = done(spark_lake, table, "expire_snapshots")
    assert (len(expiry.plan.files), expiry.removed_files) == (8, 8)  # type: ignore[union-attr]
    assert spark.rows(f"SELECT count(*) AS n FROM lake.{table}") == [{"n": 4_840}]


def test_by_its_default_1_12_keeps_one_position_delete_file_for_a_data_file(spark_lake: Connected) -> None:
    """Older versions have one for each merge; now a merge replaces those of the data files that it deletes from."""
    spark, lake, _ = spark_lake
    table = merge_on_read(spark, "file")
    assert counts(lake, table) == {"data": (5, 5_960), "position_deletes": (2, 1_120)}


def upserts(lake: Lake) -> str:
    """Five checkpoints: 61,378 keys deleted and written, and in each one row written twice, as Flink does."""
    table = "landing.upserted"
    if lake.load(table) is not None:
        lake.catalog.drop_table(table)
    landing = LandingTable(lake, table, ("id",))
    landing.create(
        [Column("id", "long", True), Column("v", "string", False)],
        [SourceColumn("id", "bigint", True), SourceColumn("v", "text", False)],
    )
    position = landing.position()
    first = 0
    for n, keys in enumerate((12_276, 12_276, 12_276, 12_275, 12_275)):
        # Half of the keys were there before.
        ids = pa.array(range(first // 2, first // 2 + keys), pa.int64())
        rows = pa.table({"id": pa.concat_arrays([ids[:1], ids]), "v": pa.array([f"v{n}"] * (keys + 1))})
        data = landing.write_rows(rows)
        again = position_delete(lake, table, data[0].file_path, 0)
        deletes = [*landing.write_deletes(pa.table({"id": ids})), again]
        position = landing.commit(position, position.after(log=n + 1), data=data, deletes=deletes, events={})
        first += keys
    return table


def position_delete(lake: Lake, table: str, data_path: str, row: int) -> Any:
    """A position-delete file of one row, as Flink writes one for a key that came twice in a checkpoint."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    loaded = lake.load(table)
    assert loaded is not None
    path = f"{loaded.location()}/data/pos-{Path(data_path).stem}.parquet"
    fields = [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
    rows = pa.table({"file_path": [data_path], "pos": [row]}, schema=pa.schema(fields))
    file = Path(path.removeprefix("file://"))
    pq.write_table(rows, file)
    bound = data_path.encode()
    made = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=file.stat().st_size,
        lower_bounds={2147483546: bound},
        upper_bounds={2147483546: bound},
    )
    made.spec_id = loaded.spec().spec_id
    return made


def test_the_upsert_story(spark_lake: Connected) -> None:
    """61,378 equality deletes and 5 position deletes on 5 data files become 1 file and none, and no row changes."""
    spark, lake, _ = spark_lake
    table = upserts(lake)
    # As tables were made before they said it, and as Flink makes them: Java would write gzip.
    spark.rows(f"ALTER TABLE lake.{table} UNSET TBLPROPERTIES ('write.parquet.compression-codec')")
    before = spark.rows(f"SELECT count(*) AS n, count(DISTINCT id) AS keys FROM lake.{table}")
    assert counts(lake, table) == {
        "data": (5, 61_383),
        "equality_deletes": (5, 61_378),
        "position_deletes": (5, 5),
    }
    assert before[0]["n"] == before[0]["keys"]
    effect = done(spark_lake, table, "rewrite_data_files")
    # Two snapshots: the rewrite, and the removal of the newest checkpoint's deletes, which have its sequence number.
    assert len(effect.snapshot_ids) == 2
    assert spark.rows(f"SELECT count(*) AS n, count(DISTINCT id) AS keys FROM lake.{table}") == before
    assert counts(lake, table) == {"data": (1, before[0]["n"])}
    listing = live_files(lake, table)
    assert listing is not None
    [file] = listing.files
    written = pq.ParquetFile(urlparse(file.path).path).metadata.row_group(0).column(0)
    assert written.compression == "ZSTD"
