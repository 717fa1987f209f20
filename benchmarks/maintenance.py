"""What delete files cost a reader, and what a rewrite gives back; what a sensor's tick costs.

    python -m benchmarks.maintenance --scale small|full        (make bench NAME=maintenance SCALE=small)

- The production sink makes the tables (`sink_run.py`): a load, then windows of updates of random rows. Each window is
  one commit: one data file, one equality-delete file. The table's own history holds the states that are read, at 0, 10,
  25, 50 and 100 delete files: `read_decay`, in seconds by engine and number of delete files.
- A read is `count(*)` and a column's sum over all rows: the deletes have to be applied, metadata can't answer.
  Both engines must find what a dict makes of the change log.
- Spark is read through Connect, in one warm session; DuckDB in a process of its own (beside a JVM in one process it
  crashed), warm, too. DuckDB's time is linear in deleted rows times data, so that its table has far fewer of them:
  `tables` says how many rows and updates each engine's has. The engines are not to be compared with one another.
- *After*: the platform's rewrite of the newest state, and an expiry (a reader parses a hundred snapshots in a
  millisecond, a tenth of DuckDB's read). *Clean*: the same rows written anew by Spark with the same target file size,
  in as many files. `read_after_over_clean` is the median of paired ratios, by engine.
- States are read by turns, `repeats` times (after and clean: 31), every second turn in the other order; figures are
  medians, `*_range_s` the fastest and the slowest.
- `tick_s`: seconds of a sensor's tick by number of tables (`ticks.py`); `tick_first_s` is the first in a new process.

Nothing is asserted by time.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from decimal import Decimal
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import unquote, urlparse

from rich.console import Console
from rich.table import Table

from benchmarks.orders import KEY, Log, write_log
from benchmarks.results import results_file, write_results
from benchmarks.rivals import read_rows
from benchmarks.sink_run import run
from cdc_platform.deployment import Deployment
from cdc_platform.errors import CdcError
from cdc_platform.lake.spark import Spark, quoted
from cdc_platform.maintenance.maintain import maintain
from cdc_platform.operations import Operations
from cdc_platform.stack.control import Stack

_AT = (0, 10, 25, 50, 100)  # Delete files.
_WINDOWS = max(_AT)
_TABLES = (1, 10, 100)
_WARM_TURNS = 2
_PAIRS = 31  # Of reads after the rewrite and of the clean table: short ones, which other load moves by much.
_LOAD_SEGMENT = 10_000
_PROJECT = """\
deployment: bench
sources: {bookshop: {postgres: {url: {env: NOT_USED}}}}
tables: {orders: {source: bookshop.public.orders, key: [order_id], owners: ["team:bench"]}}
"""
_READ = "SELECT count(*) AS n, sum(total) AS total"
_AFTER, _CLEAN = "after", "clean"
_Seconds = Mapping[str, Mapping[str, list[float]]]  # By engine and state.


@dataclass(frozen=True, slots=True)
class Size:
    """Of an engine's table."""

    rows: int
    updates_per_window: int


@dataclass(frozen=True, slots=True)
class Scale:
    """One table for each engine, and how often each of its states is read."""

    spark: Size
    duckdb: Size
    repeats: int


_SCALES = {
    "small": Scale(spark=Size(50_000, 100), duckdb=Size(200_000, 5), repeats=3),
    "full": Scale(spark=Size(1_000_000, 1_000), duckdb=Size(1_000_000, 5), repeats=7),
}


@dataclass(frozen=True, slots=True)
class State:
    """A table at a snapshot, and what a reader has to find: rows, and the sum of their totals."""

    table: str
    snapshot_id: int
    expected: tuple[int, Decimal]


Read = Callable[[State], tuple[float, tuple[int, Decimal]]]  # Seconds, and what was found.


def main() -> None:
    parser = argparse.ArgumentParser(description="What delete files cost a reader.")
    parser.add_argument("--scale", choices=sorted(_SCALES), default="small")
    scale: str = parser.parse_args().scale
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="cdc-maintenance-", ignore_cleanup_errors=True) as folder:
        Path(folder, "tables.yaml").write_text(_PROJECT)
        deployment = Deployment.load(folder)
        try:
            figures = _measure(deployment, console, _SCALES[scale])
        except CdcError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(error.exit_code)
        finally:
            Stack(deployment).stop()
    _show(console, figures)
    figures |= _ticks(console)
    file = write_results("maintenance", scale=scale, figures=figures)
    _plot(results_file("maintenance", "png"), figures)
    console.print(f"Written to {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}, .png")


def _measure(deployment: Deployment, console: Console, scale: Scale) -> dict[str, Any]:
    work = deployment.project / "work"
    (deployment.state / "lake").mkdir(parents=True)
    work.mkdir()
    sizes = {"spark": scale.spark, "duckdb": scale.duckdb}
    logs = {engine: _make_table(deployment, console, work, engine, size) for engine, size in sizes.items()}
    stack = Stack(deployment)
    stack.launch(bound=True, warn=print)
    stack.start("spark", tell=lambda _name, _seconds: None)
    operations = Operations(Deployment.load(deployment.project))  # With the address that the start has chosen.
    figures: dict[str, Any] = {
        "repeats": scale.repeats,
        "tables": {engine: asdict(size) for engine, size in sizes.items()},
    }
    with operations.spark() as spark, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as duckdb:
        readers: dict[str, Read] = {
            "spark": lambda state: _spark_read(spark, state),
            "duckdb": lambda state: duckdb.submit(duckdb_read, _metadata_file(operations, state), state).result(),
        }
        states = {engine: _states(operations, f"bench.{engine}", log) for engine, log in logs.items()}
        decay = _by_turns(readers, states, scale.repeats, console)
        figures |= {"read_decay": _each(decay, median), "read_decay_range_s": _each(decay, _range)}
        figures["rewrite"] = {}
        for engine, of in states.items():
            with console.status(f"The rewrite of {engine}'s table ..."):
                newest = of[str(_WINDOWS)]
                figures["rewrite"][engine] = _rewrite(operations, spark, newest.table)
                states[engine] = _after_and_clean(operations, spark, newest)
        ended = _by_turns(readers, states, _PAIRS, console)
    ratios = {e: [a / c for a, c in zip(of[_AFTER], of[_CLEAN], strict=True)] for e, of in ended.items()}
    return figures | {
        "read_after_over_clean": {engine: round(median(values), 3) for engine, values in ratios.items()},
        "read_after_over_clean_range": {engine: _range(values) for engine, values in ratios.items()},
        "read_after_rewrite_s": _each(ended, median),
        "read_after_rewrite_range_s": _each(ended, _range),
        "files_after_rewrite": {
            engine: {label: _files(operations, state.table) for label, state in of.items()}
            for engine, of in states.items()
        },
    }


def _make_table(deployment: Deployment, console: Console, work: Path, engine: str, size: Size) -> Log:
    per_window = size.updates_per_window
    with console.status(f"{engine}: {size.rows:,} rows, {_WINDOWS} windows of {per_window:,} updates ..."):
        log = write_log(
            work / engine,
            rows=size.rows,
            updates=_WINDOWS * per_window,
            keys=size.rows,
            segment=per_window,
            load_segment=_LOAD_SEGMENT,
        )
        run(deployment.catalog_properties, f"bench.{engine}", log, window=per_window)
    return log


def _states(operations: Operations, table: str, log: Log) -> dict[str, State]:
    """The table's own snapshots, by their number of delete files."""
    history = operations.lake.history(table)
    assert history is not None
    by_files = {s.total("delete-files"): s for s in history.ancestry()}
    assert by_files.keys() == set(range(_WINDOWS + 1)), "one delete file with each window"
    expected = _expected(log)
    return {str(n): State(table, by_files[n].snapshot_id, expected[n]) for n in _AT}


def _expected(log: Log) -> dict[int, tuple[int, Decimal]]:
    """What the table holds after so many windows, by a dict."""
    rows: dict[int, Decimal] = {}
    for part in read_rows(log, 1, log.load_end - 1):
        rows |= zip(part[KEY].to_pylist(), part["total"].to_pylist(), strict=True)
    found = {0: (len(rows), sum(rows.values(), Decimal(0)))}
    for window, part in enumerate(read_rows(log, log.load_end, log.load_end + log.updates), 1):
        rows |= zip(part[KEY].to_pylist(), part["total"].to_pylist(), strict=True)
        if window in _AT:
            found[window] = len(rows), sum(rows.values(), Decimal(0))
    return found


def _rewrite(operations: Operations, spark: Spark, table: str) -> dict[str, float]:
    """The platform's own rewrite under the default policy of a landing table; then an expiry, of whatever may go."""
    before = _files(operations, table)
    began = time.monotonic()
    policy = operations.deployment.table("orders").maintenance("landing")
    policy = policy.model_copy(update={"keep_snapshots_for": timedelta(0), "keep_snapshots_min": 1})
    maintain(spark, operations.lake, table, "rewrite_data_files", policy, dry_run=False)
    took_s = time.monotonic() - began
    maintain(spark, operations.lake, table, "expire_snapshots", policy, dry_run=False)
    return {"took_s": round(took_s, 2)} | {f"{name}_before": value for name, value in before.items()}


def _after_and_clean(operations: Operations, spark: Spark, newest: State) -> dict[str, State]:
    """The rewritten table, and its rows written anew into as many files under the same target size."""
    files = _files(operations, newest.table)
    assert files["delete_files"] == 0, "the rewrite applies every delete"
    clean = f"{newest.table}_clean"
    target_bytes = operations.deployment.table("orders").maintenance("landing").target_file_mb << 20
    spark.rows(
        f"CREATE TABLE {_name(clean)} USING iceberg TBLPROPERTIES ('format-version' = '2', "
        f"'write.target-file-size-bytes' = '{target_bytes}') "
        f"AS SELECT /*+ COALESCE({files['data_files']}) */ * FROM {_name(newest.table)}"
    )
    return {
        label: State(table, _head_id(operations, table), newest.expected)
        for label, table in ((_AFTER, newest.table), (_CLEAN, clean))
    }


def _by_turns(
    readers: Mapping[str, Read], states: Mapping[str, Mapping[str, State]], repeats: int, console: Console
) -> dict[str, dict[str, list[float]]]:
    """Read every state of every engine's table once in each turn; the first turns only warm the readers."""
    found: dict[str, dict[str, list[float]]] = {engine: {label: [] for label in of} for engine, of in states.items()}
    for turn in range(-_WARM_TURNS, repeats):
        with console.status(f"Reads, turn {turn + 1} of {repeats} ..." if turn >= 0 else "Warming the readers ..."):
            for engine, of in states.items():
                for label, state in list(of.items())[:: 1 if turn % 2 else -1]:  # None is always first.
                    seconds, rows = readers[engine](state)
                    assert rows == state.expected, f"{engine} finds {rows} at {label}, the log says {state.expected}"
                    if turn >= 0:
                        found[engine][label].append(seconds)
    return found


def _spark_read(spark: Spark, state: State) -> tuple[float, tuple[int, Decimal]]:
    began = time.monotonic()
    [row] = spark.rows(f"{_READ} FROM {_name(state.table)} VERSION AS OF {state.snapshot_id}")
    return time.monotonic() - began, (row["n"], row["total"])


_duckdb: Any = None  # The connection of the process that reads for us.


def duckdb_read(metadata_file: str, state: State) -> tuple[float, tuple[int, Decimal]]:
    """Runs in a process of its own, always the same."""
    global _duckdb  # noqa: PLW0603  One connection for the process's life, so that it is warm.
    import duckdb

    if _duckdb is None:
        _duckdb = duckdb.connect()
        load_iceberg(_duckdb)
    began = time.monotonic()
    sql = f"{_READ} FROM iceberg_scan(?, snapshot_from_id = {state.snapshot_id})"
    rows, total = _duckdb.execute(sql, [metadata_file]).fetchone()
    return time.monotonic() - began, (rows, total)


def load_iceberg(connection: Any) -> None:
    """Load DuckDB's Iceberg reader from its wheel: nothing is fetched."""
    import duckdb

    for name in ("avro", "iceberg"):  # In this order: iceberg would fetch avro from the network.
        spec = find_spec(f"duckdb_extension_{name}")
        assert spec is not None and spec.origin is not None
        extension = Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        connection.execute(f"LOAD '{extension}'")


def _metadata_file(operations: Operations, state: State) -> str:
    table = operations.lake.load(state.table)
    assert table is not None
    return unquote(urlparse(table.metadata_location).path)


def _files(operations: Operations, table: str) -> dict[str, float]:
    history = operations.lake.history(table)
    assert history is not None and history.head is not None
    head = history.head
    return {
        "data_files": head.total("data-files"),
        "delete_files": head.total("delete-files"),
        "equality_deletes": head.total("equality-deletes"),
        "snapshots": len(history.snapshots),
        "mb": round(head.total("files-size") / 2**20, 1),
    }


def _head_id(operations: Operations, table: str) -> int:
    history = operations.lake.history(table)
    assert history is not None and history.head_id is not None
    return history.head_id


def _name(table: str) -> str:
    return quoted("lake", *table.split("."))


def _each(seconds: _Seconds, figure: Callable[[list[float]], Any]) -> dict[str, dict[str, Any]]:
    rounded = {e: {label: [round(v, 4) for v in values] for label, values in of.items()} for e, of in seconds.items()}
    return {engine: {label: figure(values) for label, values in of.items()} for engine, of in rounded.items()}


def _range(values: list[float]) -> list[float]:
    return [round(min(values), 4), round(max(values), 4)]


def _ticks(console: Console) -> dict[str, dict[str, dict[str, float]]]:
    """Seconds of a tick, by sensor and number of tables: in a warm process, and the first in a process."""
    from benchmarks.ticks import tick_seconds

    found: dict[str, dict[str, dict[str, float]]] = {"tick_s": {}, "tick_first_s": {}}
    for tables in _TABLES:
        with console.status(f"Ticks over {tables} tables ..."):
            for sensor, of in tick_seconds(tables).items():
                for figure, which in (("tick_s", "next"), ("tick_first_s", "first")):
                    found[figure].setdefault(sensor, {})[str(tables)] = round(of[which], 4)
    for sensor, of in found["tick_s"].items():
        console.print(f"A tick of {sensor}: " + ", ".join(f"{s:.3f} s over {n}" for n, s in of.items()))
    return found


def _show(console: Console, figures: dict[str, Any]) -> None:
    title = "Seconds of a read by delete files; x: rewritten over clean"
    table = Table("", *map(str, _AT), "rewritten", "clean", "x", title=title, title_justify="left")
    for engine, of in figures["read_decay"].items():
        after = figures["read_after_rewrite_s"][engine]
        seconds = [*of.values(), after[_AFTER], after[_CLEAN]]
        table.add_row(engine, *(f"{s:.3f}" for s in seconds), str(figures["read_after_over_clean"][engine]))
    console.print(table)
    for engine, of in figures["rewrite"].items():
        size = figures["tables"][engine]
        console.print(
            f"{engine}: {size['rows']:,} rows, {size['updates_per_window']:,} updates a delete file; the rewrite of "
            f"{of['mb_before']} MB with {of['equality_deletes_before']:,} deleted keys took {of['took_s']} s"
        )


def _plot(file: Path, figures: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plot, axes = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for axis, (engine, of) in zip(axes, figures["read_decay"].items(), strict=True):
        size, ranges = figures["tables"][engine], figures["read_decay_range_s"][engine]
        spread = [[s - ranges[n][0] for n, s in of.items()], [ranges[n][1] - s for n, s in of.items()]]
        axis.errorbar(
            [int(n) for n in of], list(of.values()), yerr=spread, fmt="o-", capsize=3, color="C3", label="before"
        )
        after = figures["read_after_rewrite_s"][engine]
        axis.axhline(after[_AFTER], color="C0", label=f"after the rewrite: {after[_AFTER]:.3f} s")
        axis.axhline(after[_CLEAN], color="black", linestyle=":", label=f"written anew: {after[_CLEAN]:.3f} s")
        axis.annotate(f"{of[str(_WINDOWS)]:.2f} s", (_WINDOWS, of[str(_WINDOWS)]), ha="right", va="bottom", fontsize=8)
        axis.set(
            title=f"{'Spark' if engine == 'spark' else 'DuckDB'}: {size['rows']:,} rows, "
            f"{size['updates_per_window']:,} updates a window",
            xlabel="delete files",
            ylabel="seconds of a full read",
            xticks=_AT,
            ylim=(0, 1.15 * max(r[1] for r in ranges.values())),
        )
        axis.legend(fontsize=8, loc="upper left")
    plot.savefig(file, dpi=110)
    plt.close(plot)


if __name__ == "__main__":
    main()
