"""How long a sensor's tick takes over many tables: real landing tables in a real catalog, a real Dagster instance.

Belongs here: making such a deployment, and timing each sensor that looks at the tables. Does not: a limit for it.
- Each landing table is made by the sink's own code: a load and 29 windows, so 30 snapshots. Each curated table is
  written by PyIceberg (no Spark is needed) with the summary of a merge, and stands at landing's head.
- Half of the tables are idle. Of the other half, curated is behind by a commit, so a merge is due, and the rewrite's
  figure is reached. Spark "answers" at a socket that only listens: a tick asks no more of it.
- The instance is SQLite with 200 runs of sensors. A tick is evaluated as Dagster's code server does, resources and all,
  with the cursor of the tick before: `first` starts with an empty process cache, `next` is the median of those after,
  and `next_cpu` the CPU time of all threads in them, which other load on the machine moves less.
"""

import argparse
import json
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import dagster as dg  # noqa: TID251  A sensor is what is measured.
import yaml

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.changelog.segments import SegmentLog, SegmentWriter
from cdc_platform.definitions import build_defs
from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.hops.merge import UPSTREAM_SNAPSHOT, curated_table
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.position import landing_table
from cdc_platform.landing.sink import TableSink
from cdc_platform.orchestration.resources import Platform
from cdc_platform.source.types import SourceColumn

_COMMITS = 30
_RUNS = 200
_TICKS = 3
_COLUMNS = (
    SourceColumn("id", "bigint", True),
    SourceColumn("status", "text", False),
    SourceColumn("total", "numeric(12,2)", False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of a tick, by sensor and number of tables.")
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 10, 100])
    for tables in parser.parse_args().tables:
        print(json.dumps({"tables": tables, **tick_seconds(tables)}))


def tick_seconds(tables: int, *, ticks: int = _TICKS) -> dict[str, dict[str, float]]:
    """Seconds of a tick over `tables` tables, by sensor: `first` in a process, `next`, `next_cpu`."""
    with tempfile.TemporaryDirectory(prefix="cdc-ticks-") as folder, _listening() as address:
        deployment = _deployment(Path(folder), tables, address)
        for n, name in enumerate(deployment.registry.tables):
            _make(deployment, name, behind=n % 2 == 1)
        home = deployment.state / "dagster"
        home.mkdir(parents=True)
        with dg.DagsterInstance.local_temp(str(home)) as instance:
            _add_runs(instance, list(deployment.registry.tables))
            return _timed(deployment, instance, ticks)


def _deployment(folder: Path, tables: int, spark: str) -> Deployment:
    declared: dict[str, Any] = {
        "deployment": "bench",
        "sources": {"shop": {"postgres": {"url": {"env": "NOT_USED"}}}},
        "tables": {
            f"t{n:03d}": {"source": f"shop.public.t{n:03d}", "key": ["id"], "owners": ["team:bench"]}
            for n in range(tables)
        },
    }
    (folder / "tables.yaml").write_text(yaml.safe_dump(declared))
    deployment = Deployment.load(folder)
    deployment.endpoints_file.parent.mkdir(parents=True)
    deployment.endpoints_file.write_text(json.dumps({"spark": spark}))
    return Deployment.load(folder)


@contextmanager
def _listening() -> Iterator[str]:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"sc://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _make(deployment: Deployment, name: str, *, behind: bool) -> None:
    """A landing table with its history, and its curated table."""
    lake, folder = Lake(CATALOG, deployment.catalog_properties), deployment.changelog_dir(name)
    (deployment.state / "lake").mkdir(parents=True, exist_ok=True)
    writer = SegmentWriter(folder)
    writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in _COLUMNS]))
    writer.append([_event("r", row, 1) for row in range(5)])
    writer.append_marker(marker(LOAD_END, 2))
    writer.sync()
    sink = TableSink(lake, landing_table(name), key=("id",), log=SegmentLog(folder), window_s=0.0)
    sink.catch_up()
    for lsn in range(2, _COMMITS + 1):
        if lsn == _COMMITS and behind:
            _merge(lake, name)
        writer.append([_event("u", lsn % 5, lsn)])
        writer.sync()
        sink.catch_up()
    writer.close()
    if not behind:
        _merge(lake, name)


def _event(op: str, row_id: int, lsn: int) -> bytes:
    row = {"id": row_id, "status": "new", "total": "1.00"}
    event = {
        "before": row if op == "u" else None,
        "after": row,
        "source": {"ts_ms": 1_000 + lsn, "sequence": f'["{lsn}","{lsn}"]', "lsn": lsn, "txId": lsn},
        "transaction": None,
        "op": op,
    }
    return json.dumps(event).encode()


def _merge(lake: Lake, name: str) -> None:
    """Curated as a merge would leave it, as far as a tick looks: snapshots, and the upstream in the newest."""
    import pyarrow as pa

    landing = lake.load(landing_table(name))
    assert landing is not None
    head = landing.current_snapshot()
    assert head is not None
    lake.catalog.create_namespace_if_not_exists("curated")
    table = lake.catalog.create_table(curated_table(name), landing.schema())
    rows = pa.Table.from_pylist([{"id": 1, "status": "new", "total": None}], schema=landing.schema().as_arrow())
    for _ in range(10):
        table.append(rows, snapshot_properties={UPSTREAM_SNAPSHOT: str(head.snapshot_id)})


def _add_runs(instance: dg.DagsterInstance, tables: list[str]) -> None:
    """Runs that ended well, of targets that are none any more."""
    operations = ("merge_curated", "rewrite_data_files")
    for n in range(_RUNS):
        operation = operations[n % 2]
        tags = {
            "cdc/table": tables[n // 2 % len(tables)],
            "cdc/operation": operation,
            "cdc/target": f"old{n}",
            "cdc/attempt": "1",
        }
        instance.add_run(dg.DagsterRun(operation, str(uuid4()), tags=tags, status=dg.DagsterRunStatus.SUCCESS))


def _timed(deployment: Deployment, instance: dg.DagsterInstance, ticks: int) -> dict[str, dict[str, float]]:
    repository = build_defs(deployment).get_repository_def()
    found: dict[str, dict[str, float]] = {}
    for sensor in repository.sensor_defs:
        cursor, took, cpu = None, [], []
        for _ in range(1 + ticks):
            began, cpu_began = time.perf_counter(), time.process_time()
            with dg.build_sensor_context(
                instance=instance,
                cursor=cursor,
                repository_def=repository,
                sensor_name=sensor.name,
                resources={"tables": Platform(project=str(deployment.project))},
            ) as context:
                result = sensor.evaluate_tick(context)
                cursor = result.cursor or cursor
            took.append(time.perf_counter() - began)
            cpu.append(time.process_time() - cpu_began)
        found[sensor.name] = {
            "first": round(took[0], 3),
            "next": round(median(took[1:]), 3),
            "next_cpu": round(median(cpu[1:]), 3),
        }
    return found


if __name__ == "__main__":
    main()
