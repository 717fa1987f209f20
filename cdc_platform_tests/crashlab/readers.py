"""Three independent readers of a landing table: DuckDB, Spark, and a small one of our own.

Belongs here: rows as dictionaries. Does not: judging them (`model.py`).
DuckDB runs in a process of its own: beside a JVM in one process it crashed (1.5.5).
"""

import json
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.spark import Spark, quoted

Rows = list[Mapping[str, Any]]


class FileReader:
    """The specification's rule in a few lines: a delete applies to data of a lower sequence number. Keeps what it read."""

    def __init__(self) -> None:
        self._files: dict[str, list[dict[str, Any]]] = {}
        self._manifests: dict[str, list[Any]] = {}

    def rows(self, lake: Lake, table: str, key: Sequence[str]) -> Rows:
        import pyarrow.parquet as pq
        from pyiceberg.manifest import DataFileContent

        loaded = lake.load(table)
        snapshot = loaded.current_snapshot() if loaded is not None else None
        if loaded is None or snapshot is None:
            return []
        data: list[tuple[int, list[dict[str, Any]]]] = []
        deleted: dict[tuple[Any, ...], int] = {}  # The newest delete of a key is the one that counts.
        for manifest in snapshot.manifests(loaded.io):
            if manifest.manifest_path not in self._manifests:
                self._manifests[manifest.manifest_path] = manifest.fetch_manifest_entry(loaded.io)
            for entry in self._manifests[manifest.manifest_path]:
                path = entry.data_file.file_path.removeprefix("file:").replace("//", "/")
                if path not in self._files:
                    self._files[path] = pq.ParquetFile(path).read(use_threads=False).to_pylist()
                if entry.data_file.content == DataFileContent.DATA:
                    data.append((entry.sequence_number, self._files[path]))
                    continue
                assert entry.data_file.content == DataFileContent.EQUALITY_DELETES
                for row in self._files[path]:
                    which = tuple(row[k] for k in key)
                    deleted[which] = max(deleted.get(which, -1), entry.sequence_number)
        return [r for number, rows in data for r in rows if deleted.get(tuple(r[k] for k in key), -1) <= number]


class DuckDB:
    """DuckDB's Iceberg reader, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def rows(self, lake: Lake, table: str) -> Rows:
        loaded = lake.load(table)
        if loaded is None or loaded.current_snapshot() is None:
            return []
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(loaded.metadata_location.removeprefix("file://") + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "DuckDB ended"}')
        if "error" in answer:
            raise RuntimeError(f"DuckDB on {table}: {answer['error']}")
        return answer["rows"]


@contextmanager
def duckdb() -> Generator[DuckDB]:
    """Start DuckDB; end it with the block."""
    command = [sys.executable, "-m", "cdc_platform_tests.crashlab.duckdb_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield DuckDB(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=10)


def spark_rows(spark: Spark, table: str) -> Rows:
    """The table's rows as Spark has them."""
    return [*spark.rows(f"SELECT * FROM {quoted('lake', *table.split('.'))}")]
