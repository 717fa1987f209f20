"""Other ways to bring the same events into a table: pure Parquet files, PyIceberg's upsert, a Spark MERGE per window.

Belongs here: each of them, as its user would write it, over the log of `orders.py`. Does not: our sink (`sink_run.py`).
What a rival could not do without more code is given to it: upsert and Parquet get decoded rows for nothing, upsert
gets each key once. Spark reads the log itself, as it would have to.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from benchmarks.orders import COLUMNS, KEY, Log
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.spark import Spark

_READ_BYTES = 4 << 20
_AS_TEXT = ("decimal", "timestamptz")
_ARROW = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "decimal(12, 2)": pa.decimal128(12, 2),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_ROWS = pa.schema([pa.field(name, _ARROW[kind], nullable=not required) for name, _, kind, required in COLUMNS])
_SPELLED = pa.struct(
    [(name, pa.string() if kind.startswith(_AS_TEXT) else _ARROW[kind]) for name, _, kind, _ in COLUMNS]
)


@dataclass
class Bound:
    """What pyarrow alone takes for the events, on one thread's wall clock: to read them, and to write them."""

    events: int
    read_s: float
    write_s: float


def in_own_process(function: Any, *args: Any) -> Any:
    """The function's result; it runs in a fresh process, so that nobody's memory or threads are in its way."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *args).result()


def parquet_bounds(log: Log, folder: Path, file_events: int) -> tuple[Bound, Bound]:
    """Every event of the load, and of the updates in files of `file_events`, as rows of Parquet and nothing else."""
    folder.mkdir()
    load, updates = Bound(0, 0.0, 0.0), Bound(0, 0.0, 0.0)
    for bound, first, last, size in (
        (load, 1, log.load_end - 1, log.rows),
        (updates, log.load_end, log.load_end + log.updates, file_events),
    ):
        waiting: list[pa.Table] = []
        for segment in _segments(log, first, last):
            began = time.perf_counter()
            waiting.append(_read(segment))
            bound.read_s += time.perf_counter() - began
            bound.events += waiting[-1].num_rows
            if sum(t.num_rows for t in waiting) >= size:
                bound.write_s += _write(waiting, folder / f"{bound.events}-{first}.parquet")
                waiting = []
        if waiting:
            bound.write_s += _write(waiting, folder / f"{bound.events}-{first}.parquet")
    return load, updates


def upsert_events_per_s(catalog: dict[str, str], log: Log, windows: int) -> float:
    """PyIceberg's Table.upsert into a table that holds the load, a window for each segment; the median of windows."""
    lake = Lake("lake", catalog).catalog
    lake.create_namespace_if_not_exists("rivals")
    table = lake.create_table("rivals.upsert", _ROWS)
    for segment in _segments(log, 1, log.load_end - 1):
        table.append(_read(segment))
    took: list[float] = []
    for segment in [*_segments(log, log.load_end, log.load_end + log.updates)][:windows]:
        rows = _read(segment)
        index = pa.array(range(rows.num_rows))
        last = rows.select([KEY]).append_column("n", index).group_by(KEY).aggregate([("n", "max")])
        once = rows.take(last["n_max"])
        began = time.perf_counter()
        table.upsert(once, join_cols=[KEY])
        took.append((time.perf_counter() - began) / rows.num_rows)
    return 1 / median(took)


class SparkMerge:
    """Tables that hold the load, and a MERGE into them for each window of one segment."""

    def __init__(self, spark: Spark, log: Log) -> None:
        self._spark = spark
        self._log = log
        spark.rows("CREATE NAMESPACE IF NOT EXISTS lake.rivals")
        first = [*_segments(log, 1, log.load_end - 1)]
        fields = ", ".join(f"CAST(after.{name} AS {_spark_type(kind)}) AS {name}" for name, _, kind, _ in COLUMNS)
        files = "{" + ",".join(s.name for s in first) + "}"
        self._make = f"SELECT {fields} FROM ({self._events(f'{log.folder}/{files}')})"

    def events_per_s(self, mode: str, *, windows: int) -> float:
        """Median over `windows` MERGEs in `mode`, after one that is not counted: the JVM warms up in it."""
        table = f"lake.rivals.{mode.replace('-', '_')}"
        self._spark.rows(
            f"CREATE TABLE {table} USING iceberg TBLPROPERTIES ('format-version' = '2', 'write.merge.mode' = '{mode}') "
            f"AS {self._make}"
        )
        sets = ", ".join(f"t.{name} = s.{name}" for name, *_ in COLUMNS)
        names = ", ".join(name for name, *_ in COLUMNS)
        values = ", ".join(f"s.{name}" for name, *_ in COLUMNS)
        fields = ", ".join(f"CAST(row.{name} AS {_spark_type(kind)}) AS {name}" for name, _, kind, _ in COLUMNS)
        took: list[float] = []
        segments = [*_segments(self._log, self._log.load_end, self._log.load_end + self._log.updates)]
        for segment in segments[: windows + 1]:
            began = time.perf_counter()
            self._spark.rows(
                f"MERGE INTO {table} AS t USING (SELECT {fields} FROM ("
                f"SELECT max_by(after, struct(source.lsn, transaction.total_order)) AS row "
                f"FROM ({self._events(str(segment))}) GROUP BY after.{KEY})) AS s ON t.{KEY} = s.{KEY} "
                f"WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
            )
            took.append((time.perf_counter() - began) / self._log.segment)
        return 1 / median(took[1:])

    @staticmethod
    def _events(path: str) -> str:
        row = ", ".join(
            f"{name}: {'STRING' if kind.startswith(_AS_TEXT) else _spark_type(kind)}" for name, _, kind, _ in COLUMNS
        )
        shape = f"STRUCT<after: STRUCT<{row}>, source: STRUCT<lsn: BIGINT>, transaction: STRUCT<total_order: BIGINT>>"
        return f"SELECT e.* FROM (SELECT from_json(value, '{shape}') AS e FROM text.`{path}`)"


def _spark_type(iceberg: str) -> str:
    return {"long": "BIGINT", "timestamptz": "TIMESTAMP"}.get(iceberg, iceberg.upper())


def _segments(log: Log, first: int, last: int) -> Iterator[Path]:
    """Segment files whose records are from `first` to before `last`."""
    for segment in sorted(log.folder.glob("*.jsonl")):
        if first <= int(segment.stem) < last:
            yield segment


def read_rows(log: Log, first: int, last: int) -> Iterator[pa.Table]:
    """The rows after each event from `first` to before `last`, a table for each segment."""
    return map(_read, _segments(log, first, last))


def _read(segment: Path) -> pa.Table:
    """The rows after the events of a segment, by the shortest way that pyarrow has."""
    raw = pa_json.read_json(
        segment,
        read_options=pa_json.ReadOptions(block_size=_READ_BYTES),
        parse_options=pa_json.ParseOptions(
            explicit_schema=pa.schema([("after", _SPELLED)]), unexpected_field_behavior="ignore"
        ),
    )
    after = raw["after"].combine_chunks()
    columns = [pc.cast(after.field(f.name), f.type) for f in _ROWS]
    return pa.table(columns, schema=_ROWS)


def _write(parts: list[pa.Table], path: Path) -> float:
    """Write one file with the settings of `landing/commit.py`; return the seconds."""
    rows = pa.concat_tables(parts)
    began = time.perf_counter()
    with pq.ParquetWriter(
        path, _ROWS, compression="zstd", compression_level=1, store_decimal_as_integer=True
    ) as writer:
        writer.write_table(rows)
    return time.perf_counter() - began
