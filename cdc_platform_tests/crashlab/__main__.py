"""`python -m cdc_platform_tests.crashlab --faults 300 --seed 1`: run the lab, print a table, end with one line.

Belongs here: the command, who runs when, what is printed. Does not: faults (`sinklab.py`, `capturelab.py`).
Exit codes: 0 nothing was lost, doubled or wrong; 1 the lab itself could not go on; 5 something was.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cdc_platform.lake.spark import spark_session
from cdc_platform_tests.crashlab.capturelab import CaptureLab
from cdc_platform_tests.crashlab.plan import KINDS, Kind, Plan, plan
from cdc_platform_tests.crashlab.product import SWITCHES
from cdc_platform_tests.crashlab.readers import SparkReader, duckdb
from cdc_platform_tests.crashlab.services import deployment, services
from cdc_platform_tests.crashlab.sinklab import Outcome, SinkLab

FAULTS_OF_A_HISTORY = 12
_CAPTURE_SHARE = 10  # One fault in so many is capture's: its children start a JVM.
_CAPTURE_MAX = 40


@dataclass
class Totals:
    """What is printed at the end."""

    faults: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # By kind, step, and where it was.
    missed: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, name: str, outcome: Outcome) -> None:
        """Take in one history."""
        for (kind, step), n in outcome.faults.items():
            self.faults[kind, step, name] += n
        self.missed += outcome.missed.total()
        self.lost += len(outcome.verdict.lost)
        self.doubled += len(outcome.verdict.doubled)
        self.wrong += len(outcome.verdict.wrong)
        if outcome.failed:
            self.failed.append(outcome.failed)

    @property
    def last_line(self) -> str:
        """The line that a run ends with."""
        return f"faults {self.faults.total()} lost {self.lost} doubled {self.doubled} wrong {self.wrong}"

    @property
    def exit_code(self) -> int:
        """0, 1 or 5."""
        if self.lost or self.doubled or self.wrong:
            return 5
        return 1 if self.failed else 0


def plans(seed: int, faults: int, kinds: Sequence[Kind], *, rewrites: bool) -> Iterator[Plan]:
    """Histories with so many faults together."""
    for number, done in enumerate(range(0, faults, FAULTS_OF_A_HISTORY)):
        yield plan(seed, number, min(FAULTS_OF_A_HISTORY, faults - done), kinds, rewrites=rewrites)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="crashlab", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of faults of the sink, comma-separated")
    parser.add_argument("--readers", default="duckdb,spark", help="at each history's end, of: duckdb, spark")
    parser.add_argument("--capture", type=int, help="faults with PostgreSQL and Debezium; 0: none")
    parser.add_argument("--history", type=int, help="run this one of the sink's histories alone")
    parser.add_argument("--without", default="", help=f"switch off in the children: {', '.join(SWITCHES)}")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep everything here")
    parser.add_argument("--plain", action="store_true", help="no moving progress")
    found = parser.parse_args(given)
    found.kinds, found.readers, found.without = (
        [part for part in text.split(",") if part] for text in (found.kinds, found.readers, found.without)
    )
    for name, allowed in (("kinds", KINDS), ("readers", ("duckdb", "spark")), ("without", SWITCHES)):
        if unknown := set(getattr(found, name)) - set(allowed):
            parser.error(f"--{name} takes {', '.join(allowed)}; not {min(unknown)}")
    if found.capture is None:
        found.capture = min(_CAPTURE_MAX, found.faults // _CAPTURE_SHARE) if found.history is None else 0
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Run the lab."""
    options = arguments(given)
    console = Console(highlight=False, soft_wrap=True)
    where = nullcontext(str(options.folder)) if options.folder else tempfile.TemporaryDirectory(prefix="crashlab-")
    totals = Totals()
    with where as folder, ExitStack() as stack:
        lab = deployment(Path(folder).resolve())
        needed = ("postgres",) * bool(options.capture) + ("spark",) * ("spark" in options.readers)
        stack.enter_context(services(lab, needed))
        sink = SinkLab(lab.state, lab.catalog_properties, without=tuple(options.without), told=console.print)
        if "duckdb" in options.readers:
            sink.readers["DuckDB"] = stack.enter_context(duckdb()).rows
        if "spark" in options.readers:
            spark = SparkReader(stack.enter_context(spark_session(lab.spark_url)))
            sink.readers["Spark"], sink.rewrite = spark.rows, spark.rewrite
        wanted = plans(options.seed, options.faults - options.capture, options.kinds, rewrites=sink.rewrite is not None)
        chosen = [p for p in wanted if options.history in {None, p.number}]
        _run_histories(sink, chosen, options, console, totals)
        if options.capture:
            capture = CaptureLab(lab, options.seed, options.capture, sink.readers, console.print)
            totals.add("capture and sink", capture.run())
    _print(totals, options, console)
    return totals.exit_code


def _run_histories(
    sink: SinkLab, chosen: list[Plan], options: argparse.Namespace, console: Console, totals: Totals
) -> None:
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=options.plain) as progress,
        ThreadPoolExecutor(options.workers) as pool,
    ):
        task = progress.add_task("faults of the sink", total=sum(_faults(p) for p in chosen))
        for outcome in pool.map(sink.run, chosen):
            progress.advance(task, _faults(outcome.plan))
            totals.add("sink", outcome)
            console.print(_line(outcome, options))


def _faults(one: Plan) -> int:
    return sum(r.fault is not None for r in one.rounds)


def _line(outcome: Outcome, options: argparse.Namespace) -> str:
    met = ", ".join(f"{n} {kind}" for kind, n in sorted(_by_kind(outcome).items()))
    text = (
        f"seed {options.seed} history {outcome.plan.number} ({outcome.plan.shape.name}): {outcome.records} records, "
        f"{outcome.commits} commits, {outcome.seconds:.1f} s: {met}"
    )
    if outcome.missed:
        text += f"; {outcome.missed.total()} never came to their step"
    if outcome.failed:
        text += f"; FAILED: {outcome.failed}"
    if outcome.verdict or outcome.failed:
        text += f"\n  again: --seed {options.seed} --kinds {','.join(options.kinds)} --history {outcome.plan.number}"
    return text


def _by_kind(outcome: Outcome) -> Counter[str]:
    found: Counter[str] = Counter()
    for (name, _), n in outcome.faults.items():
        found[name.partition(":")[0]] += n
    return found


def _print(totals: Totals, options: argparse.Namespace, console: Console) -> None:
    table = Table("where", "kind", "step", "faults", title=f"Faults, seed {options.seed}")
    table.columns[-1].justify = "right"
    for (kind, step, where), n in sorted(totals.faults.items(), key=lambda item: (item[0][2], *item[0])):
        table.add_row(where, kind, step, str(n))
    console.print(table)
    if options.without:
        console.print(f"Switched off in the children: {', '.join(options.without)}.")
    if totals.missed:
        console.print(f"{totals.missed} faults are not counted: their child ended before their step came.")
    for failure in totals.failed:
        console.print(f"The lab could not go on: {failure}")
    console.file.flush()
    sys.stdout.write(totals.last_line + "\n")


if __name__ == "__main__":
    sys.exit(main())
