"""One run of the production sink over a log, in a process of its own, its time told by stage.

Belongs here: all that knows the sink's classes. Does not: what is compared with it (`rivals.py`), reporting.
Everything is on as in the service: position check, re-delivery filter, column check, fsync of the log. The sink runs
unchanged; its methods are wrapped by a stopwatch, and a commit is made due by the clock that it takes as an argument.
A stage's time is its own, without that of the stages it calls. CPU time counts all threads, pyarrow's too.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.orders import KEY, Log
from cdc_platform.changelog.log import Batch
from cdc_platform.changelog.segments import SegmentLog
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing import sink as sink_module
from cdc_platform.landing import window as window_module
from cdc_platform.landing.commit import LandingTable
from cdc_platform.landing.events import Decoder
from cdc_platform.landing.sink import TableSink
from cdc_platform.landing.window import Window

STAGES = ("decode", "collapse", "write", "commit", "other")
# Where each stage's work is done. The filter of what was sent again belongs to the collapse. "Other" is the rest:
# reading the log, its fsync, the steps of the sink itself.
_WORK = {
    "decode": [(Decoder, "decode")],
    "collapse": [
        (sink_module, "sift"),
        (Window, "add"),
        (window_module, "last_of_each_key"),
        (sink_module, "last_of_each_key"),
    ],
    "write": [(LandingTable, "write_rows"), (LandingTable, "write_deletes")],
    "commit": [(LandingTable, "commit")],
}
_IMPORTS = (
    "numpy",
    "pyarrow.compute",
    "pyarrow.json",
    "pyarrow.parquet",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
)


@dataclass
class Span:
    """What a part of a run took."""

    events: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    stage_wall_s: dict[str, float] = field(default_factory=dict[str, float])
    stage_cpu_s: dict[str, float] = field(default_factory=dict[str, float])
    commits_ms: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])  # Each one's wall, CPU.

    @property
    def events_per_s(self) -> float:
        """By wall time."""
        return self.events / self.wall_s


@dataclass
class Run:
    """The load of the log, its updates, and the most memory that the process held."""

    load: Span
    updates: Span
    peak_memory_mb: int
    idle_memory_mb: int  # After the imports, before the first event.
    snapshots: int


def run(catalog: dict[str, str], table: str, log: Log, *, window: int, updates: int | None = None) -> Run:
    """Serve `log` into a new `table`, a commit every `window` updates; in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_run, catalog, table, log, window, log.updates if updates is None else updates).result()


class _Watched(SegmentLog):
    """A log that says how far it was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.read_to = 0

    def read(self, start: int, *, bytes_max: int) -> Batch:
        batch = super().read(start, bytes_max=bytes_max)
        self.read_to = batch.end
        return batch


class _Stopwatch:
    """Own time of each stage, on both clocks."""

    def __init__(self) -> None:
        self._running: list[str] = ["other"]
        self._since = self._now()
        self.spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.commits_ms: list[tuple[float, float]] = []

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def _book(self) -> None:
        now = self._now()
        for clock in (0, 1):
            self.spent[self._running[-1]][clock] += now[clock] - self._since[clock]
        self._since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._book()
        self._running.append(name)
        began = self._since
        try:
            yield
        finally:
            self._book()
            self._running.pop()
            if name == "commit":
                wall_s, cpu_s = (self._since[clock] - began[clock] for clock in (0, 1))
                self.commits_ms.append((wall_s * 1000, cpu_s * 1000))

    def span(self, events: int) -> Span:
        """What was spent since the last call."""
        self._book()
        wall, cpu = ({s: self.spent[s][clock] for s in STAGES} for clock in (0, 1))
        span = Span(events, sum(wall.values()), sum(cpu.values()), wall, cpu, self.commits_ms)
        self.spent.clear()
        self.commits_ms = []
        return span


def _run(catalog: dict[str, str], table: str, log: Log, window: int, updates: int) -> Run:
    for module in _IMPORTS:  # A service has them long before.
        import_module(module)
    idle_mb = _memory_mb("VmRSS")
    watch = _Stopwatch()
    for stage, places in _WORK.items():
        for owner, name in places:
            setattr(owner, name, _timed(watch, stage, getattr(owner, name)))
    lake, source = Lake("lake", catalog), _Watched(log.folder)
    now = 0.0
    sink = TableSink(lake, table, key=(KEY,), log=source, window_s=1.0, clock=lambda: now)
    watch.span(0)
    while source.read_to < log.load_end:  # Bounded by the log.
        sink.step()
    load = watch.span(log.rows)
    for end in range(log.load_end + window, log.load_end + updates + 1, window):
        while source.read_to < end:
            if end - source.read_to <= log.segment:  # The window's last read.
                now += 1.0
            sink.step()
    changes = watch.span(updates // window * window)
    history = lake.history(table)
    assert history is not None
    assert len(history.snapshots) == 1 + updates // window, "a commit for the load, and one every `window` events"
    return Run(load, changes, _memory_mb("VmHWM"), idle_mb, len(history.snapshots))


def _timed(watch: _Stopwatch, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with watch.stage(stage):
            return function(*args, **kwargs)

    return timed


def _memory_mb(figure: str) -> int:
    """From /proc: getrusage's maximum would begin with what the parent held when it forked."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(f"{figure}:")]
    return int(line.split()[1]) // 1024
