"""How long a change takes from its commit at the source until a reader of landing can see it.

    python -m benchmarks.freshness --scale small|full        (make bench NAME=freshness SCALE=small)

It starts a stack of its own (PostgreSQL, capture, sink; metadata tells all, so Spark is not needed) in a
temporary folder with a copy of tables.yaml, seeds the bookshop, waits for the initial load, then updates
single rows.

- *Busy* changes come at random intervals, 0.3 s on average, so that they keep no step with the commit window;
  they are the `latency_*` figures. *Lone* changes are further apart than the window: each opens its own.
- A latency starts just before COMMIT is sent, so it includes the source's own flush. It ends when the catalog
  first shows a landing snapshot that holds the change; it is asked every 20 ms, which adds 10 ms on average.
- A snapshot holds a change when the LSN in its `cdc.source-lsn` is at or past the end of the WAL as the
  change's transaction saw it before its UPDATE. That is exact: there is one writer, so WAL order is commit
  order, and the snapshot names the newest event applied. The change log is read beside it, every 5 ms, which
  parts capture from sink. At the end each change must be in the log once, and the log position of each
  snapshot must agree with its LSN on what it holds.
- `initial_load_rows_per_s` counts both tables between the first and the last load marker in the change log,
  which carry Debezium's times. `initial_load_s` runs from the order to start capture until the catalog shows
  both loads.
- `initial_load_cpu_s` (start included) and `streaming_cores` (CPU seconds a second while the changes came) say what a
  service costs, whatever else the machine does. PostgreSQL's leave out backends that have ended.
- `metadata_tick_ms` is what a sensor's tick pays for one table: both histories read anew, both decisions.

On a machine with other load the figures are what that moment allowed: compare runs of one quiet machine.
Nothing is asserted by time; the exactness of the comparison is.
"""

import argparse
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from benchmarks.results import percentile, write_results
from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END
from cdc_platform.changelog.segments import SegmentLog
from cdc_platform.demo import bookshop
from cdc_platform.deployment import Deployment
from cdc_platform.errors import CdcError
from cdc_platform.hops.merge import merge_decision
from cdc_platform.landing.position import LandingPosition, landed, landing_position
from cdc_platform.maintenance.policy import rewrite_due
from cdc_platform.operations import Operations
from cdc_platform.stack.control import Stack

_SOURCE, _TABLE = "bookshop", "orders"
_BUSY = {"small": 60, "full": 600}
_LONE = {"small": 10, "full": 60}
_BUSY_GAP_S = 0.3
_CATALOG_POLL_S = 0.02
_LOG_POLL_S = 0.005
_WITHIN_S = 120
_TICKS = 20


@dataclass
class Change:
    """One committed update. Times are of the monotonic clock."""

    lsn: int  # End of the WAL in its transaction, before the update: its event lies at or after this.
    committed_at: float


@dataclass
class Watch:
    """What a reader of the catalog, and one of the change log, saw and when."""

    operations: Operations
    log_start: int
    snapshots: list[tuple[float, LandingPosition]] = field(default_factory=list)
    records: list[tuple[float, int, int]] = field(default_factory=list)  # Time, offset, LSN.
    _stopping: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=t, daemon=True) for t in (self._catalog, self._log)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def _catalog(self) -> None:
        """Poll the catalog's pointer; read metadata only once it has moved: a reader must not be the load."""
        catalog = sqlite3.connect(self.operations.deployment.state / "lake" / "catalog.db", timeout=30)
        tables = "iceberg_tables WHERE table_namespace = 'landing' AND table_name = ?"
        known = None
        while not self._stopping.wait(_CATALOG_POLL_S):
            found = catalog.execute(f"SELECT metadata_location FROM {tables}", (_TABLE,)).fetchone()
            seen_at = time.monotonic()
            if found != known:
                known = found
                history = self.operations.landing(_TABLE)
                assert history is not None
                self.snapshots.append((seen_at, landing_position(history)))
        catalog.close()

    def _log(self) -> None:
        log, position = SegmentLog(self.operations.deployment.changelog_dir(_TABLE)), self.log_start
        while not self._stopping.wait(_LOG_POLL_S):
            batch = log.read(position, bytes_max=1 << 20)
            seen_at = time.monotonic()
            for offset, line in enumerate(batch.lines.splitlines(), position):
                self.records.append((seen_at, offset, int(json.loads(line)["source"]["lsn"])))
            position = batch.end


def main() -> None:
    parser = argparse.ArgumentParser(description="Change-to-visible latency of landing.")
    parser.add_argument("--scale", choices=sorted(_BUSY), default="small")
    scale: str = parser.parse_args().scale
    console = Console(highlight=False)
    try:
        with _own_project() as deployment:
            figures = _measure(deployment, scale, console)
    except CdcError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    _show(console, figures)
    file = write_results("freshness", scale=scale, figures=figures)
    console.print(f"Written to {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}")


@contextmanager
def _own_project() -> Iterator[Deployment]:
    """A copy of tables.yaml in a folder of its own; its stack is stopped and all of it removed at the end."""
    with tempfile.TemporaryDirectory(prefix="cdc-freshness-") as folder:
        shutil.copy(Path(__file__).parents[1] / "tables.yaml", folder)
        deployment = Deployment.load(folder)
        try:
            yield deployment
        finally:
            Stack(deployment).stop()


def _measure(deployment: Deployment, scale: str, console: Console) -> dict[str, Any]:
    stack = Stack(deployment)
    stack.launch(bound=True, warn=console.print)
    stack.start("postgres", "sink", tell=_tell(console))
    operations = Operations(Deployment.load(deployment.project))  # With the addresses that the start has chosen.
    bookshop.seed(operations.engine(_TABLE))
    console.print("The bookshop is seeded.")
    capture_started_at = time.monotonic()
    stack.start(f"capture-{_SOURCE}", tell=_tell(console))
    tables = deployment.registry.tables
    _until(lambda: all(_loaded(operations, name) for name in tables), "the initial load")
    initial_load_s = time.monotonic() - capture_started_at
    load_cpu_s = _cpu_s(stack)
    rows, load_s = _load(operations, tuple(tables))
    window = tables[_TABLE].landing.window

    watch = Watch(operations, log_start=operations.changelog(_TABLE).end())
    streaming_since = time.monotonic()
    gaps = random.Random(3)  # The same intervals each time; no cryptography.
    with watch.running():
        with console.status(f"{_BUSY[scale]} busy changes ..."):
            busy = _update(operations, _BUSY[scale], lambda: gaps.expovariate(1 / _BUSY_GAP_S))
            _until(lambda: _holds(watch, busy[-1]), "the last busy change")
        with console.status(f"{_LONE[scale]} lone changes ..."):
            lone_s = window.total_seconds()
            lone = _update(operations, _LONE[scale], lambda: lone_s + gaps.uniform(0.5, 1.5))
            _until(lambda: _holds(watch, lone[-1]), "the last lone change")
    streamed_s, cpu_s = time.monotonic() - streaming_since, _cpu_s(stack)
    tick_ms = [_tick_ms(operations) for _ in range(_TICKS)]
    memory_mb = {s.service: s.memory_mb for s in stack.status() if s.pid is not None}
    restarts = sum(s.restarts for s in stack.status())
    history = operations.landing(_TABLE)
    return (
        _latencies(watch, busy, lone, window)
        | {"initial_load_rows": rows, "initial_load_rows_per_s": round(rows / load_s)}
        | {"initial_load_markers_s": load_s, "initial_load_s": round(initial_load_s, 2)}
        | {"initial_load_cpu_s": load_cpu_s}
        | {"streaming_cores": {s: round((cpu_s[s] - load_cpu_s[s]) / streamed_s, 3) for s in load_cpu_s}}
        | {"memory_mb": memory_mb, "restarts": restarts}
        | {"metadata_tick_ms": round(percentile(tick_ms, 0.5), 1)}
        | {"snapshots": len(history.snapshots) if history else 0}
    )


def _latencies(watch: Watch, busy: list[Change], lone: list[Change], window: timedelta) -> dict[str, Any]:
    changes = [*busy, *lone]
    assert len(watch.records) == len(changes), "each change is one record of the log, and nothing else is"
    capture: list[float] = []
    visible: list[float] = []
    for i, (change, (read_at, offset, lsn)) in enumerate(zip(changes, watch.records, strict=True)):
        end = changes[i + 1].lsn if i + 1 < len(changes) else sys.maxsize
        assert change.lsn <= lsn < end, "records come in the order of the commits"
        shown_at, position = next((at, p) for at, p in watch.snapshots if p.source and p.source.lsn >= change.lsn)
        assert position.log > offset, "the LSN says that the snapshot holds the change, the log position does not"
        earlier = [p for at, p in watch.snapshots if at < shown_at]
        assert all(p.log <= offset for p in earlier), "by its log position an earlier snapshot held the change"
        capture.append(read_at - change.committed_at)
        visible.append(shown_at - change.committed_at)
    sink = [v - c for v, c in zip(visible, capture, strict=True)]
    n = len(busy)
    spread = lambda name, values: {  # noqa: E731
        f"{name}_{label}_s": round(percentile(values, share), 3)
        for label, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
    }
    return (
        spread("latency", visible[:n])
        | {"changes": n, "window_s": window.total_seconds(), "interval_mean_s": _BUSY_GAP_S}
        | spread("capture", capture)
        | spread("sink", sink[:n])
        | spread("latency_lone", visible[n:])
        | {"changes_lone": len(lone)}
    )


def _update(operations: Operations, count: int, gap_s: Callable[[], float]) -> list[Change]:
    """Update one row in each of `count` transactions, over one connection."""
    done: list[Change] = []
    with operations.engine(_TABLE).connect() as connection:
        for i in range(1, count + 1):
            time.sleep(gap_s())
            lsn = connection.execute(text("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")).scalar_one()
            connection.execute(
                text("UPDATE orders SET note = :note, updated_at = now() WHERE order_id = :id"),
                {"note": f"freshness {i}", "id": 1 + i * 997 % bookshop.ORDERS},
            )
            committed_at = time.monotonic()
            connection.commit()
            done.append(Change(int(lsn), committed_at))
    return done


def _holds(watch: Watch, change: Change) -> bool:
    return any(p.source is not None and p.source.lsn >= change.lsn for _, p in watch.snapshots[-1:])


def _loaded(operations: Operations, name: str) -> bool:
    history = operations.landing(name)
    return history is not None and landing_position(history).load is not None


def _load(operations: Operations, tables: tuple[str, ...]) -> tuple[int, float]:
    """Rows of the initial load, and the seconds from its first marker to its last."""
    rows, times_ms = 0, list[int]()
    for name in tables:
        log, position = operations.changelog(name), 0
        while (batch := log.read(position, bytes_max=8 << 20)).lines:  # Bounded by the log.
            position = batch.end
            first = batch.lines[: batch.lines.find(b"\n")]
            if first.startswith((f'{{"op":"{LOAD_BEGIN}"'.encode(), f'{{"op":"{LOAD_END}"'.encode())):
                times_ms.append(json.loads(first)["ts_ms"])
        rows += position - 2  # All but the two markers: nothing else has happened yet.
    return rows, (max(times_ms) - min(times_ms)) / 1000


def _cpu_s(stack: Stack) -> dict[str, float]:
    """CPU seconds of each running service so far, with its children's."""
    found: dict[str, float] = {}
    for service in stack.status():
        if service.pid is not None:
            process = psutil.Process(service.pid)
            times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
            found[service.service] = round(sum(t.user + t.system for t in times), 2)
    return found


def _tick_ms(operations: Operations) -> float:
    began = time.monotonic()
    history, curated = operations.landing(_TABLE), operations.curated(_TABLE)
    assert history is not None and history.newest(landed) is not None
    merge_decision(history, curated)
    rewrite_due(history, None, operations.deployment.table(_TABLE).maintenance("landing"), int(time.time() * 1000))
    return (time.monotonic() - began) * 1000


def _tell(console: Console) -> Callable[[str, float], None]:
    return lambda service, seconds: console.print(f"{service} ready in {seconds:.1f} s")


def _until(true: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + _WITHIN_S
    while not true():
        if time.monotonic() > give_up:
            sys.exit(f"{what} was not there after {_WITHIN_S} s")
        time.sleep(0.05)


def _show(console: Console, figures: dict[str, Any]) -> None:
    about = (
        f"{figures['changes']} changes, every {figures['interval_mean_s']} s on average; "
        f"window {figures['window_s']:g} s"
    )
    table = Table("", "p50 s", "p95 s", "max s", title=about, title_justify="left")
    for name, label in (
        ("latency", "commit → visible in landing"),
        ("capture", "  commit → change log"),
        ("sink", "  change log → visible"),
        ("latency_lone", f"commit → visible, {figures['changes_lone']} lone changes"),
    ):
        table.add_row(label, *(f"{figures[f'{name}_{at}_s']:.3f}" for at in ("p50", "p95", "max")))
    console.print(table)
    console.print(
        f"Initial load: {figures['initial_load_rows']:,} rows, between its markers "
        f"{figures['initial_load_rows_per_s']:,} rows/s; both tables visible {figures['initial_load_s']} s "
        "after capture was started."
    )
    console.print(f"Memory: {', '.join(f'{s} {mb} MB' for s, mb in figures['memory_mb'].items())}.")
    cores = ", ".join(f"{s} {c:.3f}" for s, c in figures["streaming_cores"].items())
    console.print(f"CPU seconds to the end of the load: {figures['initial_load_cpu_s']}; cores after it: {cores}.")
    console.print(f"A sensor's tick: {figures['metadata_tick_ms']} ms a table, at {figures['snapshots']} snapshots.")


if __name__ == "__main__":
    main()
