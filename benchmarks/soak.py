"""The sink commits every second, maintenance runs beside it, and at the end every commit must be there.

    python -m benchmarks.soak --minutes 60        (make soak MINUTES=60)

It starts a whole stack in a temporary folder: PostgreSQL, capture, sink, Spark, Dagster with every sensor on, which
merge, rewrite and expire by the table's policy. One thread writes to the source: updates, inserts and deletes of
random orders, two or three transactions a second. tables.yaml is the repository's, but that landing keeps its history
for minutes only, so that expiry has something to do within the soak.

- *Commits* are the sink's windows, by their number in the snapshots' summaries. Metadata is read every few seconds,
  far more often than expiry takes a new snapshot.
- *Lost* counts windows that are missing from that sequence or were committed twice (the first was undone), and, at the
  end, keys whose row differs between source and landing in any column, or is on one side alone. Both stages are then
  compared by `converge` as well.
- *read_over_clean*: every minute (twelve times at least) a reader reads all of landing (count and a checksum of every
  column), and right after it a *clean* table: a copy of landing of the beginning, one data file, no delete. One warm
  Spark session reads both, so a busy machine slows both; the figure is the median of the ratios in the last third. At
  the end, with nothing else running, both are read again after a last rewrite: `quiet_*`. `read_s_over_quiet_clean`
  compares the soak's reads with that, so that it also has what the machine's other work costs a reader.
- *Bounded*: of data files, delete files, equality deletes, snapshots and bytes of metadata the peak of the second half
  is at most 1.5 times that of the first; unbounded growth doubles it. A soak under half an hour is too short to
  tell, and says so.

Exit code 5 when something is lost or grows without a bound. Nothing is asserted by time. Ctrl-C stops everything.
"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import yaml
from rich.console import Console
from sqlalchemy import text

from benchmarks.results import results_file, write_results
from benchmarks.soak_watch import GROWTH_MAX, Sample, Windows, growth, runs_recorded
from cdc_platform.convergence.converge import Verdict
from cdc_platform.demo import bookshop
from cdc_platform.demo.dagster_api import DagsterApi
from cdc_platform.deployment import Deployment
from cdc_platform.errors import CdcError, UnavailableError
from cdc_platform.lake.catalog import history_of
from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.lake.spark import Spark, quoted
from cdc_platform.landing.position import landing_position
from cdc_platform.operations import Operations, Stage
from cdc_platform.source.postgres import connected
from cdc_platform.stack.control import Stack

_SOURCE, _TABLE = "bookshop", "orders"
_LANDING, _CLEAN = "landing.orders", "soak.clean"
_POLICY = {"class": "hot", "keep_snapshots_for": "2m", "keep_snapshots_min": 10, "expire_after_snapshots": 50}
_WRITE_EVERY_S = 0.4
_SAMPLE_EVERY_S = 5.0
_READ_EVERY_S = 60.0
_READS_MIN = 12  # A short soak reads more often.
_UPDATES, _INSERTS, _DELETES = 5, 1, 1  # Of a transaction.
_WARM_READS = 5
_QUIET_READS = 11
_BOUND_FROM_MINUTES = 30  # Six or so expiries, and the first half has its peak.
_BOUNDED = ("data_files", "delete_files", "equality_deletes", "snapshots", "metadata_bytes")
_START_WITHIN_S, _LOAD_WITHIN_S = 600, 600
_CONVERGE_TRIES = 10
_RUNS_END_WITHIN_S = 600
_NOT_SO = 5
# Each column of orders as text, spelt alike by PostgreSQL and Spark; times in microseconds since 1970.
_COLUMNS = ("order_id", "customer_id", "status", "total", "note", "placed_at", "updated_at")
_TIMES = ("placed_at", "updated_at")


@dataclass
class Seen:
    """All that was measured while the sink was writing."""

    windows: Windows
    read_every_s: float
    samples: list[Sample] = field(default_factory=list[Sample])
    reads: list[tuple[float, float, float]] = field(default_factory=list)  # At, landing's seconds, clean's seconds.
    runs: set[str] = field(default_factory=set[str])
    looks_failed: int = 0
    reads_failed: int = 0
    transactions: int = 0
    failure: Exception | None = None  # What ended a thread.


def main() -> None:
    parser = argparse.ArgumentParser(description="The sink and maintenance beside each other, for long.")
    parser.add_argument("--minutes", type=float, default=60)
    minutes: float = parser.parse_args().minutes
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        figures, seen = _soak(minutes, console)
    except CdcError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped: nothing is written.\n")
        sys.exit(130)
    file = write_results("soak", scale=f"{minutes:g} minutes", figures=figures)
    _plot(results_file("soak", "png"), seen)
    console.print(f"Written to {file}, .png")
    for complaint in figures["not_so"]:
        console.print(f"NOT SO: {complaint}")
    print(
        f"commits {figures['commits']} lost {figures['lost']} max_delete_files {figures['max_delete_files']} "
        f"read_over_clean {figures['read_over_clean']}"
    )
    sys.exit(_NOT_SO if figures["not_so"] else 0)


def _soak(minutes: float, console: Console) -> tuple[dict[str, Any], Seen]:
    with _own_project() as deployment:
        stack = Stack(deployment)
        stack.launch(bound=True, warn=console.print)
        tell = lambda name, seconds: console.print(f"{name} ready in {seconds:.1f} s")  # noqa: E731
        start = lambda *names: _until(lambda: stack.start(*names, tell=tell), f"{', '.join(names)}", _START_WITHIN_S)  # noqa: E731
        start("postgres", "spark", "sink", "webserver", "daemon")
        operations = Operations(Deployment.load(deployment.project))  # With the addresses that the start has chosen.
        bookshop.seed(operations.engine(_TABLE))
        start(f"capture-{_SOURCE}")
        _until(lambda: _loaded(operations), "the initial load", _LOAD_WITHIN_S)
        console.print("The bookshop has landed.")
        with operations.spark() as spark:
            _make_clean(spark, operations)
            _reads(spark, _WARM_READS)
        history = operations.landing(_TABLE)
        assert history is not None
        seen = Seen(Windows(landing_position(history).window), min(_READ_EVERY_S, minutes * 60 / _READS_MIN))
        load = _Load()
        _run(operations, seen, minutes, console)
        figures = load.figures() | _after(operations, seen, console)
        services = {s.service: s for s in stack.status()}
        figures |= {"restarts": {n: s.restarts for n, s in services.items() if s.restarts}}
        figures |= {"memory_mb": {n: s.memory_mb for n, s in services.items() if s.pid is not None}}
        return _figures(figures, seen, minutes), seen


@contextmanager
def _own_project() -> Generator[Deployment]:
    """The repository's project in a folder of its own; its stack is stopped and all of it removed at the end."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory(prefix="cdc-soak-", ignore_cleanup_errors=True) as folder:
        for name in ("dagster.yaml", "workspace.yaml"):
            shutil.copy(root / name, folder)
        declared = yaml.safe_load((root / "tables.yaml").read_text())
        declared["tables"][_TABLE]["landing"]["maintenance"] = _POLICY
        Path(folder, "tables.yaml").write_text(yaml.safe_dump(declared, sort_keys=False))
        deployment = Deployment.load(folder)
        try:
            yield deployment
        finally:
            Stack(deployment).stop()


def _run(operations: Operations, seen: Seen, minutes: float, console: Console) -> None:
    """Write, look and read for so many minutes."""
    ending = threading.Event()
    began = time.monotonic()
    with ExitStack() as stack:
        for work in (_write, _look, _keep_reading):
            thread = threading.Thread(target=_guarded, args=(work, operations, seen, began, ending), daemon=True)
            thread.start()
            stack.callback(thread.join)
        stack.callback(ending.set)
        while (passed_s := time.monotonic() - began) < minutes * 60 and not ending.is_set():
            time.sleep(min(60, minutes * 60 - passed_s))
            _progress(console, seen, (time.monotonic() - began) / 60)
    if seen.failure is not None:
        raise seen.failure


def _guarded(
    work: Callable[[Operations, Seen, float, threading.Event], None],
    operations: Operations,
    seen: Seen,
    began: float,
    ending: threading.Event,
) -> None:
    """A thread that fails ends the soak: a soak without its writer would find nothing lost."""
    try:
        work(operations, seen, began, ending)
    except Exception as error:
        seen.failure = error
        ending.set()


def _write(operations: Operations, seen: Seen, _began: float, ending: threading.Event) -> None:
    chance = random.Random(5)  # No cryptography.
    engine, next_id = operations.engine(_TABLE), 10_000_000
    ours: list[int] = []
    while not ending.wait(_WRITE_EVERY_S * chance.uniform(0.5, 1.5)):
        ids = chance.sample(range(1, bookshop.ORDERS + 1), _UPDATES)
        first, last = next_id, next_id + _INSERTS - 1
        ours += range(first, last + 1)
        next_id += _INSERTS
        gone = [chance.choice((chance.choice(ours), chance.randint(1, bookshop.ORDERS))) for _ in range(_DELETES)]
        with connected(engine) as connection:
            connection.execute(
                text(
                    "UPDATE orders SET status = :status, total = :total, updated_at = now() "
                    "WHERE order_id = ANY(:ids) OR order_id = :own"
                ),
                {
                    "status": chance.choice(("paid", "packed", "sent", "returned")),
                    "total": chance.randrange(500, 10_000) / 100,
                    "ids": ids,
                    "own": chance.choice(ours),
                },
            )
            connection.execute(text("DELETE FROM orders WHERE order_id = ANY(:ids)"), {"ids": gone})
            connection.execute(
                text(
                    "INSERT INTO orders SELECT i, i % 5000, 'placed', 9.99, NULL, now(), now() "
                    "FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS i"
                ),
                {"first": first, "last": last},
            )
            connection.commit()
        seen.transactions += 1


def _look(operations: Operations, seen: Seen, began: float, ending: threading.Event) -> None:
    while not ending.wait(_SAMPLE_EVERY_S):
        at_s = time.monotonic() - began
        try:
            table = operations.lake.load(_LANDING)
            assert table is not None
            metadata_bytes = len(table.io.new_input(table.metadata_location))
        except (UnavailableError, OSError):  # A metadata file goes once there are twenty newer ones.
            seen.looks_failed += 1
            continue
        head = _take_in(seen, history_of(_LANDING, table))
        seen.samples.append(
            Sample(
                round(at_s, 1),
                data_files=head.total("data-files"),
                delete_files=head.total("delete-files"),
                equality_deletes=head.total("equality-deletes"),
                snapshots=len(table.metadata.snapshots),
                metadata_bytes=metadata_bytes,
            )
        )


def _take_in(seen: Seen, history: TableHistory | None) -> Snapshot:
    """Note what has come since the last look; return the head."""
    assert history is not None and history.head is not None
    seen.windows.see(history)
    seen.runs |= runs_recorded(history)
    return history.head


def _keep_reading(operations: Operations, seen: Seen, began: float, ending: threading.Event) -> None:
    """One session for all reads; another one after a failure, for it may be the server that was started again."""
    while not ending.is_set():
        try:
            with operations.spark() as spark:
                while not ending.wait(seen.read_every_s):
                    at_s = time.monotonic() - began
                    [(landing_s, clean_s)] = _reads(spark, 1)
                    seen.reads.append((round(at_s, 1), landing_s, clean_s))
        except CdcError:
            seen.reads_failed += 1
            ending.wait(_SAMPLE_EVERY_S)


def _reads(spark: Spark, times: int) -> list[tuple[float, float]]:
    """Seconds of full reads of landing and of the clean table, by turns. The checksum makes Spark read every value."""
    found: list[tuple[float, float]] = []
    for _ in range(times):
        at = [time.monotonic()]
        for table in (_LANDING, _CLEAN):
            spark.rows(f"SELECT count(*) AS n, bit_xor(xxhash64(*)) AS checksum FROM {_name(table)}")
            at.append(time.monotonic())
        found.append((round(at[1] - at[0], 4), round(at[2] - at[1], 4)))
    return found


def _make_clean(spark: Spark, operations: Operations) -> None:
    """A table as a rewrite leaves landing: one file of all rows, no delete."""
    target_bytes = operations.deployment.table(_TABLE).maintenance("landing").target_file_mb << 20
    spark.rows("CREATE NAMESPACE IF NOT EXISTS lake.soak")
    spark.rows(
        f"CREATE TABLE {_name(_CLEAN)} USING iceberg TBLPROPERTIES ('format-version' = '2', "
        f"'write.target-file-size-bytes' = '{target_bytes}') AS SELECT /*+ COALESCE(1) */ * FROM {_name(_LANDING)}"
    )


def _after(operations: Operations, seen: Seen, console: Console) -> dict[str, Any]:
    """Writing has ended: let everything come to rest, then compare, clean and read."""
    console.print("Writing has ended; waiting for landing and for running maintenance.")
    landing = _converged(operations, "landing")
    dagster = DagsterApi(operations.deployment.endpoint("webserver"))
    _until(lambda: dagster.turn_sensors(on=False), "the end of the sensors", _RUNS_END_WITHIN_S)
    for _ in range(2):  # A tick that was under way may yet have started one.
        time.sleep(_SAMPLE_EVERY_S)
        _until(lambda: not dagster.runs_in_flight(), "the end of running jobs", _RUNS_END_WITHIN_S)
    _take_in(seen, operations.landing(_TABLE))
    failed = _failures(lambda: operations.merge(_TABLE))
    curated = _converged(operations, "curated")
    source = _source_rows(operations)
    with operations.spark() as spark:
        landed, doubled = _landing_rows(spark)
        apart = sum(source.get(key) != landed.get(key) for key in source.keys() | landed.keys()) + doubled
        console.print(f"{len(source):,} rows at the source, {apart} keys differ in landing.")
        failed += _failures(lambda: operations.maintain(_TABLE, "landing", "rewrite_data_files"))
        failed += _failures(lambda: operations.maintain(_TABLE, "landing", "expire_snapshots"))
        _reads(spark, _WARM_READS)
        quiet = _reads(spark, _QUIET_READS)
    return {
        "keys_apart": apart,
        "failed_at_end": failed,
        "rows": len(source),
        "landing_verdict": f"{landing.outcome}: {landing.reason}",
        "curated_verdict": f"{curated.outcome}: {curated.reason}",
        "quiet_landing_read_s": round(median(of[0] for of in quiet), 3),
        "quiet_clean_read_s": round(median(of[1] for of in quiet), 3),
        "dagster_runs": dagster.runs(),
    }


def _failures(work: Callable[[], object]) -> list[str]:
    """Do it; return what it died of, for an hour's figures do not go with it."""
    try:
        work()
    except CdcError as error:
        return [str(error)]
    return []


def _converged(operations: Operations, stage: Stage) -> Verdict:
    """What `converge` says; a late stage is asked again."""
    verdict = operations.converge(_TABLE, stage)
    for _ in range(_CONVERGE_TRIES):
        if verdict.outcome != "unknown":
            break
        verdict = operations.converge(_TABLE, stage)
    return verdict


def _source_rows(operations: Operations) -> dict[str, tuple[str | None, ...]]:
    columns = ", ".join(
        f"CAST(CAST(extract(epoch FROM {c}) * 1000000 AS bigint) AS text)" if c in _TIMES else f"CAST({c} AS text)"
        for c in _COLUMNS
    )
    with connected(operations.engine(_TABLE)) as connection:
        return {row[0]: tuple(row) for row in connection.execute(text(f"SELECT {columns} FROM orders"))}


def _landing_rows(spark: Spark) -> tuple[dict[str, tuple[str | None, ...]], int]:
    """Rows by key, and how many more there are than keys."""
    columns = ", ".join(f"CAST({f'unix_micros({c})' if c in _TIMES else c} AS string) AS {c}" for c in _COLUMNS)
    rows = [tuple(row.values()) for row in spark.rows(f"SELECT {columns} FROM {_name(_LANDING)}")]
    by_key = {row[0]: row for row in rows}
    return by_key, len(rows) - len(by_key)


def _figures(figures: dict[str, Any], seen: Seen, minutes: float) -> dict[str, Any]:
    windows, last_third = seen.windows, [r for r in seen.reads if r[0] >= minutes * 60 * 2 / 3] or seen.reads
    lost = len(windows.missing) + len(windows.repeated) + figures["keys_apart"]
    growths = {name: round(growth([getattr(s, name) for s in seen.samples]), 2) for name in _BOUNDED}
    clean_s: float = figures["quiet_clean_read_s"]
    not_so = [
        *(f"{len(windows.missing)} windows are missing: {windows.missing[:10]}" for _ in windows.missing[:1]),
        *(f"{len(windows.repeated)} windows came twice: {windows.repeated[:10]}" for _ in windows.repeated[:1]),
        *(f"{figures['keys_apart']} keys differ between source and landing" for _ in range(figures["keys_apart"])[:1]),
        *(v for v in (figures["landing_verdict"], figures["curated_verdict"]) if not v.startswith("converged")),
        *figures["failed_at_end"],
    ]
    long_enough = minutes >= _BOUND_FROM_MINUTES
    if long_enough:
        not_so += [
            f"{name} grow: the second half's peak is {by} times the first's"
            for name, by in growths.items()
            if by > GROWTH_MAX
        ]
    by_operation = sorted(run.split()[0] for run in seen.runs)
    return (
        {
            "commits": windows.committed,
            "lost": lost,
            "max_delete_files": windows.delete_files_max,
            "read_over_clean": _ratio([landing / clean for _, landing, clean in last_third]),
            "read_over_clean_max": _ratio([landing / clean for _, landing, clean in last_third], max),
            "read_s_over_quiet_clean": _ratio([landing / clean_s for _, landing, _ in last_third]),
            "not_so": not_so,
            **{f"max_{n}": max(getattr(s, n) for s in seen.samples) for n in _BOUNDED if n != "delete_files"},
            "windows_missing": len(windows.missing),
            "windows_repeated": len(windows.repeated),
            "growth": growths if long_enough else "too short to tell",
            "minutes": minutes,
            "commits_per_s": round(windows.committed / (minutes * 60), 2),
            "transactions": seen.transactions,
            "policy": _POLICY,
            "replace_snapshots": len(windows.rewrites),
            "maintenance_runs": {operation: by_operation.count(operation) for operation in by_operation},
            "reads": len(seen.reads),
            "reads_failed": seen.reads_failed,
            "looks_failed": seen.looks_failed,
        }
        | figures
        | {
            "reads_s": seen.reads,
            "samples": {name: [asdict(s)[name] for s in seen.samples] for name in ("at_s", *_BOUNDED)},
        }
    )


def _ratio(ratios: list[float], of: Callable[[list[float]], float] = median) -> float | None:
    return round(of(ratios), 2) if ratios else None


class _Load:
    """How busy the machine was between the two ends of a soak, with what else ran on it."""

    def __init__(self) -> None:
        psutil.cpu_percent()

    def figures(self) -> dict[str, float]:
        return {"machine_cpu_percent": psutil.cpu_percent()}


def _progress(console: Console, seen: Seen, minute: float) -> None:
    windows = seen.windows
    line = f"minute {minute:.0f}: {windows.committed} commits, {len(windows.missing)} missing"
    if seen.samples:
        s = seen.samples[-1]
        line += (
            f"; {s.data_files} data and {s.delete_files} delete files (peak {windows.delete_files_max}), "
            f"{s.snapshots} snapshots, {s.metadata_bytes // 1024} KiB metadata; {len(windows.rewrites)} rewrites, "
            f"{len(seen.runs)} runs recorded"
        )
    if seen.reads:
        _, landing_s, clean_s = seen.reads[-1]
        line += f"; read {landing_s:.2f} s, clean {clean_s:.2f} s"
    console.print(line)


def _loaded(operations: Operations) -> bool:
    histories = [operations.landing(name) for name in operations.deployment.registry.tables]
    return all(h is not None and landing_position(h).load is not None for h in histories)


def _until(true: Callable[[], bool | None], what: str, within_s: float) -> None:
    """Wait until `true` returns anything but False; what does not answer on a busy machine is asked again."""
    give_up = time.monotonic() + within_s
    while True:
        waiting = f"{what} was not there after {within_s:.0f} s"
        try:
            if true() is not False:
                return
        except UnavailableError as error:
            waiting = f"{waiting} ({error})"
        if time.monotonic() > give_up:
            raise UnavailableError(waiting, where="soak", action="Run it on a machine that is less busy")
        time.sleep(0.5)


def _name(table: str) -> str:
    return quoted("lake", *table.split("."))


def _plot(file: Path, seen: Seen) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(3, 1, figsize=(10, 8), sharex=True, layout="constrained")
    at = [s.at_s / 60 for s in seen.samples]
    axes[0].plot(at, [s.delete_files for s in seen.samples], color="C3", label="delete files")
    axes[0].plot(at, [s.data_files for s in seen.samples], color="C0", label="data files")
    axes[0].set(title=f"landing.orders, {seen.windows.committed:,} commits of the sink", ylabel="files")
    axes[1].plot(at, [s.snapshots for s in seen.samples], color="C2", label="snapshots")
    axes[1].plot(at, [s.metadata_bytes / 1024 for s in seen.samples], color="C4", label="KiB of metadata.json")
    for values, color, label in ((1, "C3", "landing"), (2, "C7", "a clean copy, read right after")):
        axes[2].plot([r[0] / 60 for r in seen.reads], [r[values] for r in seen.reads], ".-", color=color, label=label)
    axes[2].set(title="a full read in Spark, with all else running", xlabel="minutes", ylabel="s")
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8)
    figure.savefig(file, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
