"""How many events a second the sink brings into landing, where the time goes, and what else would take.

    python -m benchmarks.landing --scale small|full        (make bench NAME=landing SCALE=small)

- The events are one change log on disk, made anew: a load of all rows, then updates of a fifth of them, as capture
  writes them (`orders.py`). The production sink serves it (`sink_run.py`) in a fresh process, from the log's bytes to
  the committed snapshot, with a commit every 10 k, 50 k and 200 k updates. Each run serves the load, too.
- `*_per_s` are by wall time, `*_per_cpu_s` by the CPU time of all threads, which other load on the machine moves less.
  Runs are repeated by turns; figures are medians of the repeats, stages those of the median run.
- The *bound* is what pyarrow alone takes to read the same JSON lines and write every event as a Parquet row: no
  filter, no collapse, no delete, no commit. `time_over_parquet_bound` is the sink's time over it, paired in each
  repeat; `parquet_write_us_per_event` is the writing alone.
- *Upsert* and *MERGE* serve a few windows of 10 k and are compared per event with the sink in windows of 10 k, in a
  run just before theirs, so that other load on the machine is about the same. The sink's deletes need a compaction
  that a copy-on-write MERGE does not: `spark_merge_speedup` counts it, after as many windows as tables.yaml declares by
  default. It compares with the better of MERGE's two modes, and charges neither for a compaction of its own.
  `spark_merge_speedup_without_compaction` is beside it.
- Commit latency: a table of its own, windows of 100 events until it has over 1,000 snapshots and no compaction; at N
  it is the median of the 25 commits after the Nth, from the call of `commit` until the catalog's answer. The plot's
  frame leaves out the slowest twentieth, among them each 32nd, which folds manifests.
- Peak memory is of the process that serves load and updates, imports included.

Nothing is asserted by time. That the rows are right is: Spark compares the compacted table with the log's newest rows.
"""

import argparse
import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.orders import KEY, Log, write_log
from benchmarks.results import percentile, results_file, write_results
from benchmarks.rivals import Bound, SparkMerge, in_own_process, parquet_bounds, read_rows, upsert_events_per_s
from benchmarks.sink_run import STAGES, Run, Span, run
from cdc_platform.deployment import Deployment
from cdc_platform.errors import CdcError
from cdc_platform.maintenance.maintain import Effect, maintain
from cdc_platform.operations import Operations
from cdc_platform.registry.maintenance import BUILT_IN
from cdc_platform.stack.control import Stack

_SCALES = {
    "small": {"rows": 200_000, "updates": 200_000, "repeats": 3, "upserts": 1, "merges": 2},
    "full": {"rows": 1_000_000, "updates": 1_000_000, "repeats": 5, "upserts": 3, "merges": 5},
}
_KEYS_SHARE = 5
_WINDOWS = (10_000, 50_000, 200_000)
_SEGMENT = min(_WINDOWS)
_BOUND_WINDOW = 50_000
_HISTORY_AT = (10, 100, 300, 1_000)
_HISTORY_WINDOW = 100
_COMMITS = 25
_MERGE_MODES = ("copy-on-write", "merge-on-read")
_PROJECT = """\
deployment: bench
sources: {bookshop: {postgres: {url: {env: NOT_USED}}}}
tables: {orders: {source: bookshop.public.orders, key: [order_id], owners: ["team:bench"]}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Events a second into landing.")
    parser.add_argument("--scale", choices=sorted(_SCALES), default="small")
    scale: str = parser.parse_args().scale
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="cdc-landing-") as folder:
        Path(folder, "tables.yaml").write_text(_PROJECT)
        deployment = Deployment.load(folder)
        try:
            figures, commits_ms = _measure(deployment, console, **_SCALES[scale])
        except CdcError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(error.exit_code)
        finally:
            Stack(deployment).stop()
    _show(console, figures)
    file = write_results("landing", scale=scale, figures=figures)
    _plot(results_file("landing", "png"), figures, commits_ms)
    console.print(f"Written to {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}, .png")


def _measure(
    deployment: Deployment, console: Console, *, rows: int, updates: int, repeats: int, upserts: int, merges: int
) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    work, catalog = deployment.project / "work", deployment.catalog_properties
    (deployment.state / "lake").mkdir(parents=True)
    work.mkdir()
    with console.status("Writing the change log ..."):
        log = write_log(work / "log", rows=rows, updates=updates, keys=rows // _KEYS_SHARE, segment=_SEGMENT)
        short = write_log(
            work / "short",
            rows=10_000,
            updates=(_HISTORY_AT[-1] + _COMMITS) * _HISTORY_WINDOW,
            keys=10_000,
            segment=_HISTORY_WINDOW,
        )
    console.print(f"{rows:,} rows and {updates:,} updates, {log.bytes / (rows + updates):.0f} bytes a record.")

    runs: dict[int, list[Run]] = {window: [] for window in _WINDOWS}
    bounds: list[tuple[Bound, Bound]] = []
    for n in range(repeats):
        with console.status(f"The sink and pyarrow alone, {n + 1} of {repeats} ..."):
            bounds.append(in_own_process(parquet_bounds, log, work / "parquet", _BOUND_WINDOW))
            shutil.rmtree(work / "parquet")
            for window in _WINDOWS:
                runs[window].append(run(catalog, f"runs.w{window}_{n}", log, window=window))
    figures: dict[str, Any] = {
        "rows": rows,
        "updates": updates,
        "bytes_per_record": round(log.bytes / (rows + updates)),
    }
    figures |= _throughput(runs, bounds)
    with console.status(f"{_HISTORY_AT[-1]:,} commits ..."):
        history = run(catalog, "runs.history", short, window=_HISTORY_WINDOW)
    figures |= _commit_latency(history.updates.commits_ms)
    windows = min(deployment.table("orders").maintenance("landing").rewrite_after_commits, updates // _SEGMENT)
    beside = partial(run, catalog, log=log, window=_SEGMENT, updates=windows * _SEGMENT)
    with console.status("PyIceberg's upsert ..."):
        ours = beside("runs.beside_upsert").updates.events_per_s
        upsert: float = in_own_process(upsert_events_per_s, catalog, log, upserts)
    figures |= {"table_upsert_events_per_s": round(upsert), "table_upsert_speedup": round(ours / upsert, 1)}
    figures["table_upsert_windows"] = upserts
    with console.status("Spark ..."):
        ours = beside("runs.compacted").updates.events_per_s
        figures |= _beside_spark(deployment, log, ours, windows, merges)
    return figures, history.updates.commits_ms


def _throughput(runs: dict[int, list[Run]], bounds: list[tuple[Bound, Bound]]) -> dict[str, Any]:
    every = [r for of_window in runs.values() for r in of_window]
    loads = [r.load for r in every]
    updates = {str(window): [r.updates for r in of_window] for window, of_window in runs.items()}
    per_load = [(b.read_s + b.write_s) / b.events for b, _ in bounds]
    per_update = [(b.read_s + b.write_s) / b.events for _, b in bounds]
    over = {
        "snapshot": median(
            median(_per_event(of_window[n].load) for of_window in runs.values()) / per_load[n]
            for n in range(len(bounds))
        )
    } | {
        window: median(_per_event(span) / per_update[n] for n, span in enumerate(spans))
        for window, spans in updates.items()
    }
    return {
        "repeats": len(bounds),
        "snapshot_events_per_s": _rate(loads),
        "snapshot_events_per_cpu_s": _rate(loads, cpu=True),
        "update_events_per_s": {w: _rate(spans) for w, spans in updates.items()},
        "update_events_per_cpu_s": {w: _rate(spans, cpu=True) for w, spans in updates.items()},
        "best_events_per_s": {"snapshot": round(max(s.events_per_s for s in loads))}
        | {w: round(max(s.events_per_s for s in spans)) for w, spans in updates.items()},
        "stage_us_per_event": {"snapshot": _stages(loads)} | {w: _stages(spans) for w, spans in updates.items()},
        "stage_cpu_us_per_event": {"snapshot": _stages(loads, cpu=True)}
        | {w: _stages(spans, cpu=True) for w, spans in updates.items()},
        "parquet_bound_events_per_s": {
            "snapshot": round(1 / median(per_load)),
            "updates": round(1 / median(per_update)),
        },
        "parquet_write_us_per_event": {
            "snapshot": round(median(b.write_s / b.events for b, _ in bounds) * 1e6, 2),
            "updates": round(median(b.write_s / b.events for _, b in bounds) * 1e6, 2),
        },
        "time_over_parquet_bound": {name: round(value, 2) for name, value in over.items()},
        "peak_memory_mb": max(r.peak_memory_mb for r in every),
        "peak_memory_mb_by_window": {str(w): max(r.peak_memory_mb for r in of) for w, of in runs.items()},
        "idle_memory_mb": median(r.idle_memory_mb for r in every),
    }


def _per_event(span: Span) -> float:
    return span.wall_s / span.events


def _rate(spans: Sequence[Span], *, cpu: bool = False) -> int:
    return round(median(s.events / (s.cpu_s if cpu else s.wall_s) for s in spans))


def _stages(spans: Sequence[Span], *, cpu: bool = False) -> dict[str, float]:
    """Of the run in the middle: the stages of one run add up."""
    middle = sorted(spans, key=lambda s: s.cpu_s if cpu else s.wall_s)[len(spans) // 2]
    spent = middle.stage_cpu_s if cpu else middle.stage_wall_s
    return {stage: round(spent[stage] / middle.events * 1e6, 2) for stage in STAGES}


def _commit_latency(commits_ms: list[tuple[float, float]]) -> dict[str, Any]:
    """The load was the first snapshot, so commit N of the updates comes after N snapshots."""
    figures: dict[str, Any] = {}
    for clock, name in enumerate(("commit", "commit_cpu")):
        after = {n: [of[clock] for of in commits_ms[n - 1 : n - 1 + _COMMITS]] for n in _HISTORY_AT}
        p50 = {n: percentile(values, 0.5) for n, values in after.items()}
        figures |= {f"{name}_ms_at_{n}_snapshots": round(value, 1) for n, value in p50.items()}
        figures[f"{name}_growth"] = round(p50[_HISTORY_AT[-1]] / p50[_HISTORY_AT[0]], 2)
    return figures


def _beside_spark(deployment: Deployment, log: Log, ours_per_s: float, windows: int, merges: int) -> dict[str, Any]:
    """MERGE beside `runs.compacted`, which the sink has just served with so many windows."""
    stack = Stack(deployment)
    stack.launch(bound=True, warn=print)
    stack.start("spark", tell=lambda _name, _seconds: None)
    operations = Operations(Deployment.load(deployment.project))  # With the address that the start has chosen.
    with operations.spark() as spark:
        merge = SparkMerge(spark, log)
        rates = {mode: merge.events_per_s(mode, windows=merges) for mode in _MERGE_MODES}
        policy = BUILT_IN["hot"].policy
        effect = maintain(spark, operations.lake, "runs.compacted", "rewrite_data_files", policy, dry_run=False)
        assert isinstance(effect, Effect), "it was no dry run"
        compaction_s = effect.took_s
        found = spark.rows(f"SELECT count(*) AS n, sum(total) AS total FROM {operations.lake.name}.runs.compacted")
    expected = _newest(log, windows)
    assert (found[0]["n"], found[0]["total"]) == expected, f"landing has {found[0]}, the log {expected}"
    best = max(rates.values())
    per_event = 1 / ours_per_s + compaction_s / (windows * _SEGMENT)
    return {
        "spark_merge_events_per_s": {mode: round(rate) for mode, rate in rates.items()},
        "spark_merge_windows": merges,
        "spark_merge_speedup": round(1 / best / per_event, 1),
        "spark_merge_speedup_without_compaction": round(ours_per_s / best, 1),
        "compaction_s": round(compaction_s, 1),
        "compaction_after_windows": windows,
        "sink_and_compaction_events_per_s": round(1 / per_event),
    }


def _newest(log: Log, windows: int) -> tuple[int, Any]:
    """Rows and the sum of their totals after so many windows, by a dict."""
    rows: dict[int, Any] = {}
    load = read_rows(log, 1, log.load_end - 1)
    for part in chain(load, read_rows(log, log.load_end, log.load_end + windows * _SEGMENT)):
        rows |= zip(part[KEY].to_pylist(), part["total"].to_pylist(), strict=True)
    return len(rows), sum(rows.values())


def _show(console: Console, figures: dict[str, Any]) -> None:
    title = "Into landing; x: time over pyarrow's from JSON to Parquet; stages in µs an event"
    table = Table("", "events/s", "a CPU s", "x", *STAGES, title=title, title_justify="left", padding=0)
    per_s = {"snapshot": figures["snapshot_events_per_s"]} | figures["update_events_per_s"]
    per_cpu_s = {"snapshot": figures["snapshot_events_per_cpu_s"]} | figures["update_events_per_cpu_s"]
    for name, rate in per_s.items():
        table.add_row(
            name if name == "snapshot" else f"by {int(name) // 1000} k",
            f"{rate:,}",
            f"{per_cpu_s[name]:,}",
            f"{figures['time_over_parquet_bound'][name]:.2f}",
            *(f"{figures['stage_us_per_event'][name][stage]:.2f}" for stage in STAGES),
        )
    console.print(table)
    compacted = f"with a compaction every {figures['compaction_after_windows']} windows"
    beside = Table("beside it, windows of 10 k", "events/s", "the sink is faster", title_justify="left")
    beside.add_row("Table.upsert", f"{figures['table_upsert_events_per_s']:,}", f"{figures['table_upsert_speedup']}x")
    for mode, rate in figures["spark_merge_events_per_s"].items():
        beside.add_row(f"Spark MERGE, {mode}", f"{rate:,}", "")
    beside.add_row("the better MERGE", "", f"{figures['spark_merge_speedup_without_compaction']}x")
    beside.add_row(f"the same, the sink {compacted}", "", f"{figures['spark_merge_speedup']}x")
    console.print(beside)
    for clock, label in (("commit", "wall"), ("commit_cpu", "CPU")):
        at = ", ".join(f"{figures[f'{clock}_ms_at_{n}_snapshots']} ms at {n:,}" for n in _HISTORY_AT)
        console.print(f"A commit's median, {label}, by snapshots: {at}; {figures[f'{clock}_growth']}x at the end.")
    console.print(f"Peak memory {figures['peak_memory_mb']} MB, {figures['idle_memory_mb']} MB of it before any event.")


def _plot(file: Path, figures: dict[str, Any], commits_ms: list[tuple[float, float]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    stages: dict[str, dict[str, float]] = figures["stage_us_per_event"]
    labels = ["snapshot" if n == "snapshot" else f"updates,\nwindows of {int(n) // 1000} k" for n in stages]
    base = [0.0] * len(labels)
    for stage in STAGES:
        values = [of[stage] for of in stages.values()]
        left.bar(labels, values, bottom=base, label=stage)
        base = [b + v for b, v in zip(base, values, strict=True)]
    for i, name in enumerate(stages):
        bound = figures["parquet_bound_events_per_s"]["snapshot" if name == "snapshot" else "updates"]
        label = "JSON to Parquet with pyarrow alone" if i == 0 else None
        left.hlines(1e6 / bound, i - 0.4, i + 0.4, colors="black", linestyles="dashed", label=label)
        updates: dict[str, int] = figures["update_events_per_s"]
        events_per_s = figures["snapshot_events_per_s"] if name == "snapshot" else updates[name]
        left.annotate(f"{events_per_s:,} events/s", (i, base[i]), ha="center", va="bottom", fontsize=8)
    left.set(title="Sink: time per event, by stage", ylabel="µs", ylim=(0, 1.35 * max(base)))
    left.legend(fontsize=8, loc="upper center", ncols=3)
    at = range(1, len(commits_ms) + 1)
    half = _COMMITS // 2
    for clock, (name, color) in enumerate((("wall", "C0"), ("CPU", "C1"))):
        values = [of[clock] for of in commits_ms]
        smooth = [median(values[max(i - half, 0) : i + half + 1]) for i in range(len(values))]
        right.plot(at, values, ".", markersize=2, color=color, alpha=0.25)
        right.plot(at, smooth, color=color, label=f"{name} time, median of {_COMMITS}")
    top = math.ceil(percentile([wall for wall, _ in commits_ms], 0.95))
    right.set(title="A commit, by the table's history", xlabel="snapshots before it", ylabel="ms", ylim=(0, top))
    right.legend(fontsize=8)
    figure.savefig(file, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
