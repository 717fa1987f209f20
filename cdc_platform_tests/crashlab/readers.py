"""Three independent readers of a landing table: DuckDB, Spark, and a small one of our own.

Belongs here: rows as dictionaries. Does not: judging them (`model.py`).
DuckDB runs in a process of its own: beside a JVM in one process it crashed (1.5.5).
"""

import json
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.spark import Spark, quoted
from cdc_platform.maintenance.maintain import maintain
from cdc_platform.registry.maintenance import BUILT_IN

Rows = list[Mapping[str, Any]]


class FileReader:
    """The specification in a few lines: a delete applies to data of a lower sequence number. Keeps what it has read."""

    def __init__(self) -> None:
        self._files: dict[str, list[dict[str, Any]]] = {}
        self._manifests: dict[str, list[Any]] = {}

    def rows(self, table: Any, snapshot_id: int, key: Sequence[str]) -> Rows:
        """Rows of one snapshot of PyIceberg's table."""
        import pyarrow.parquet as pq
        from pyiceberg.manifest import DataFileContent

        data: list[tuple[int, list[dict[str, Any]]]] = []
        deleted: dict[tuple[Any, ...], int] = {}  # The newest delete of a key is the one that counts.
        for manifest in table.snapshot_by_id(snapshot_id).manifests(table.io):
            if manifest.manifest_path not in self._manifests:
                self._manifests[manifest.manifest_path] = manifest.fetch_manifest_entry(table.io)
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
    """DuckDB's Iceberg reader, in a process of its own; any thread may ask it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lock = threading.Lock()

    def rows(self, lake: Lake, table: str) -> Rows:
        loaded = lake.load(table)
        if loaded is None or loaded.current_snapshot() is None:
            return []
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
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


class SparkReader:
    """Spark Connect; one session, which any thread may use in its turn."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._lock = threading.Lock()

    def rows(self, lake: Lake, table: str) -> Rows:
        loaded = lake.load(table)
        if loaded is None or loaded.current_snapshot() is None:
            return []
        with self._lock:
            return [*self._spark.rows(f"SELECT * FROM {quoted(lake.name, *table.split('.'))}")]

    def rewrite(self, lake: Lake, table: str) -> None:
        """What the platform's maintenance does to a landing table."""
        with self._lock:
            maintain(self._spark, lake, table, "rewrite_data_files", BUILT_IN["hot"].policy, dry_run=False)
