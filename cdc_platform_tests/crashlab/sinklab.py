"""One planned history, done: the log written, children run and killed, the table judged after each fault.

Belongs here: carrying out a plan. Does not: the plan (`plan.py`), the verdict's rules (`model.py`).
After every fault each new snapshot is read and compared with the fold of the log through the position that it names:
the table has to be exactly that at every commit, so what a later one would heal is seen too.
"""

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cdc_platform.changelog.segments import SegmentWriter
from cdc_platform.lake.catalog import Lake
from cdc_platform_tests.crashlab import product
from cdc_platform_tests.crashlab.child import Order, serve
from cdc_platform_tests.crashlab.model import Ledger, Record, Verdict, compare, compare_dead
from cdc_platform_tests.crashlab.plan import Fault, Plan, Round
from cdc_platform_tests.crashlab.product import Switch
from cdc_platform_tests.crashlab.readers import FileReader, Rows

_CHILD_WITHIN_S = 120
PRELOADED = (
    "cdc_platform_tests.crashlab.child",
    "cdc_platform.landing.sink",
    "pyarrow.json",
    "pyarrow.parquet",
    "pyarrow.compute",
    "numpy",
    "sqlalchemy",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "pyiceberg.table.update.snapshot",
)

Reader = Callable[[Lake, str], Rows]
Rewrite = Callable[[Lake, str], None]


@dataclass
class Outcome:
    """What became of one history."""

    plan: Plan
    verdict: Verdict = field(default_factory=Verdict)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])  # By name and step.
    missed: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])  # Never arrived at their step.
    failed: str = ""  # The lab itself could not go on.
    seconds: float = 0.0
    records: int = 0
    commits: int = 0


@dataclass
class SinkLab:
    """Runs plans on one catalog; each has a table and a log of its own."""

    folder: Path
    catalog: dict[str, str]
    readers: dict[str, Reader] = field(default_factory=dict[str, Reader])  # Asked at a history's end.
    rewrite: Rewrite | None = None
    without: tuple[Switch, ...] = ()
    told: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*PRELOADED])
        # Histories run side by side, which is the lab's doing alone: none of them is to make these at the same time.
        Lake("lake", self.catalog).catalog.create_namespace_if_not_exists("landing")

    def run(self, plan: Plan) -> Outcome:
        """Do all of one plan."""
        outcome, begun = Outcome(plan), time.monotonic()
        history = _History(self, plan, outcome)
        try:
            for number, one in enumerate(plan.rounds):
                history.round(one)
                history.judge(f"round {number}")
            history.finish()
        except Exception as error:
            outcome.failed = f"{type(error).__name__}: {error}"
        finally:
            history.close()
        outcome.seconds = time.monotonic() - begun
        return outcome

    def child(self, order: Order) -> "Child":
        """Start a child."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(order, theirs), daemon=True)
        process.start()
        theirs.close()
        return Child(process, ours)


@dataclass
class Child:
    """A sink's process, seen from outside."""

    process: Any
    pipe: Connection

    def hear(self) -> tuple[Any, ...] | None:
        """Its next word; None when it was killed before it said one."""
        try:
            if not self.pipe.poll(_CHILD_WITHIN_S):
                self.process.kill()
                raise RuntimeError(f"a child said nothing for {_CHILD_WITHIN_S} s")
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None

    def end(self) -> int:
        """Wait for its end; its exit code."""
        self.process.join(_CHILD_WITHIN_S)
        code = self.process.exitcode
        self.process.close()
        self.pipe.close()
        return -1 if code is None else code


class _History:
    def __init__(self, lab: SinkLab, plan: Plan, outcome: Outcome) -> None:
        self._lab, self._plan, self._outcome = lab, plan, outcome
        self._columns = tuple(plan.shape.columns)
        self._folder = lab.folder / "logs" / f"{plan.shape.name}_{plan.number:04d}"
        self._writer = SegmentWriter(self._folder, segment_bytes_max=20_000)
        self._lake = Lake("lake", lab.catalog)
        self._key = plan.shape.key
        self._ledger = Ledger(self._columns, self._key)
        self._files = FileReader()
        self._judged: set[int] = set()
        self._ends: list[int] = []  # Log positions that the sink's commits named.
        self._position = 0
        self._foreign = 0

    def round(self, one: Round) -> None:
        self._append(one.records)
        child = self._lab.child(self._order(one))
        word = child.hear()
        if word == ("paused",):
            assert one.fault is not None
            self._disturb(one.fault)
            child.pipe.send("go")
            word = child.hear()
        self._count(one.fault, word, child.end())

    def finish(self) -> None:
        """One more child, which nothing disturbs; then every reader."""
        calm = Round((), (1_000,), 1, None, None)
        child = self._lab.child(self._order(calm))
        word = child.hear()
        if (code := child.end()) != 0 or word is None:
            raise RuntimeError(f"the last child ended with exit code {code}")
        self.judge("end")
        log = self._ledger.log
        if self._position != len(log):
            self._amiss("end", Verdict(lost={f"records from {self._position}: {'; '.join(word[1])[:300]}"}))
        must = self._ledger.through(self._position)
        for name, rows in self._lab.readers.items():
            found = compare(must, rows(self._lake, self._plan.table), self._columns, self._key)
            self._amiss(f"end, by {name}", found)
        self._outcome.records, self._outcome.commits = len(log), len(self._ends)

    def judge(self, when: str) -> None:
        """Compare each snapshot since the last time with the log through the position that it names."""
        loaded = self._lake.load(self._plan.table)
        for snapshot_id, position, ours in product.states(self._lake, self._plan.table):
            if snapshot_id in self._judged:
                continue
            self._judged.add(snapshot_id)
            self._position = position
            if ours:
                self._ends.append(position)
            must = self._ledger.through(position)
            rows = self._files.rows(loaded, snapshot_id, self._key)
            self._amiss(f"{when}, log position {position}", compare(must, rows, self._columns, self._key))
        must = self._ledger.through(self._position)
        letters = product.dead_letters(self._lake, self._plan.table)
        self._amiss(when, compare_dead(must, letters, self._ledger.passed_over(self._ends)))

    def close(self) -> None:
        self._writer.close()

    def _append(self, records: tuple[Record, ...]) -> None:
        product.append(self._writer, self._plan.shape, [r.line for r in records])
        self._ledger.log += records

    def _order(self, one: Round) -> Order:
        lab, plan = self._lab, self._plan
        return Order(
            catalog=lab.catalog,
            table=plan.table,
            shape=plan.shape,
            log=self._folder,
            reads=one.reads,
            window_reads=one.window_reads,
            fault=one.fault,
            stops_after=one.stops_after,
            without=lab.without,
        )

    def _disturb(self, fault: Fault) -> None:
        """What another writer does while the child waits."""
        if fault.kind == "zombie":
            other = self._lab.child(self._order(Round((), (7,), 1, None, None)))
            other.hear()
            other.end()
            return
        self._foreign += 1
        loaded = self._lake.load(self._plan.table)
        if loaded is None:
            return
        if loaded.metadata.current_snapshot_id is None or fault.detail == "property":
            with loaded.transaction() as transaction:
                transaction.set_properties({"lab.foreign": str(self._foreign)})
        elif fault.detail == "rewrite" and self._lab.rewrite is not None:
            self._lab.rewrite(self._lake, self._plan.table)
        else:
            tag = f"reader_{self._foreign}"
            loaded.manage_snapshots().create_tag(loaded.metadata.current_snapshot_id, tag).commit()

    def _count(self, fault: Fault | None, word: tuple[Any, ...] | None, code: int) -> None:
        if fault is None:
            if code != 0:
                raise RuntimeError(f"a child without a fault ended with exit code {code}")
            return
        where = (fault.name, fault.step or "in the log")
        if fault.kind == "kill":
            met = word is None and code == -9
            if word is None and code != -9:
                raise RuntimeError(f"a child that was to be killed ended with exit code {code}")
        elif word is None:
            raise RuntimeError(f"a child ended with exit code {code} ({fault.name})")
        else:
            met = fault.step is None or bool(word[2])
            if fault.kind != "zombie" and any(e.startswith("FencedError") for e in word[1]):
                self._amiss("fence", Verdict(wrong={f"record {self._position}: a sink gave up though it was alone"}))
            if (
                fault.kind == "zombie"
                and met
                and not any(e.startswith(("ConflictError", "FencedError")) for e in word[1])
            ):
                self._amiss("zombie", Verdict(wrong={f"fence {self._foreign}: the older sink was not refused"}))
        (self._outcome.faults if met else self._outcome.missed)[where] += 1

    def _amiss(self, when: str, found: Verdict) -> None:
        if not found:
            return
        known = self._outcome.verdict
        for kind in ("lost", "doubled", "wrong"):
            for what in sorted(getattr(found, kind) - getattr(known, kind))[:3]:
                self._lab.told(f"history {self._plan.number}, {when}: {kind}: {what}")
        known.add(found)
