"""Capture and sink as they are, on PostgreSQL and Debezium: both killed while the source goes on.

Belongs here: the source's random statements, the children, the verdict. Does not: the sink's own lab (`sinklab.py`).
The statements and the faults are a pure function of the seed; how they meet is not, for the processes are real.
At the end the source's rows are compared with the landing tables as each reader has them, the fold of each log with
the source's rows, and every snapshot of the landing tables with the fold of the log through its position.
"""

import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sqlalchemy import text

from cdc_platform.changelog.segments import SegmentLog
from cdc_platform.deployment import Deployment
from cdc_platform.faults import Step, arm
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.position import landing_table
from cdc_platform.source.postgres import connected, source_engine
from cdc_platform_tests.crashlab import product
from cdc_platform_tests.crashlab.history import SHAPES, Shape
from cdc_platform_tests.crashlab.model import Expected, Ledger, Record, Verdict, compare, compare_dead
from cdc_platform_tests.crashlab.plan import Plan
from cdc_platform_tests.crashlab.readers import FileReader, Rows
from cdc_platform_tests.crashlab.sinklab import PRELOADED, Outcome

SOURCE = "shop"
TABLES = dict(zip(("accounts", "lines"), SHAPES, strict=True))
_CAPTURE_STEPS: tuple[Step, ...] = ("segment written", "acknowledged", "offset flushed")
_SINK_STEPS: tuple[Step, ...] = ("parquet written", "commit sent", "commit answered")
_FIRST_ROWS = 3_000
_DIES_WITHIN_S = 90
_CONVERGES_WITHIN_S = 120
_LAST_WITHIN = 1_000  # Records from the log's end.
_BIG_ID = 1_000_000_000  # From here on are the rows that tell the log's end.


@dataclass(frozen=True, slots=True)
class Kill:
    """When a child dies: at the n-th arrival at a step, or so many seconds after its start (`step` None)."""

    step: Step | None
    nth: int = 1
    after_s: float = 0.0


def kills(rng: random.Random, steps: tuple[Step, ...], count: int, after_s: tuple[float, float]) -> list[Kill]:
    """So many kills, every step among them before any comes again."""
    found: list[Kill] = []
    while len(found) < count:
        one_of_each: list[Step | None] = [*steps, None]
        rng.shuffle(one_of_each)
        found += [Kill(s, rng.randint(1, 12), rng.uniform(*after_s)) for s in one_of_each]
    return found[:count]


def statements(seed: int) -> Iterator[list[str]]:
    """Transactions without end, each a list of statements; a COPY is written as `COPY <table> <first id> <rows>`."""
    rng = random.Random(f"{seed}/statements")
    fresh = _FIRST_ROWS * 10
    written = 0
    while True:
        transaction: list[str] = []
        for _ in range(rng.choice((1, 1, 2, 4))):
            written += 1
            table = rng.choice(tuple(TABLES))
            part = f"id % {rng.choice((7, 31, 211))} = {rng.randint(0, 6)} AND id < {_BIG_ID}"
            kind = rng.choices(("insert", "update", "delete", "move", "copy", "truncate"), (30, 38, 14, 12, 5, 1))[0]
            if kind == "insert":
                shop = "'s', " if table == "lines" else ""
                transaction.append(f"INSERT INTO {table} VALUES ({shop}{fresh}, 'i{written}', {written}.25)")
                fresh += 1
            elif kind == "update":
                transaction.append(f"UPDATE {table} SET status = 'u{written}', total = {written} WHERE {part}")
            elif kind == "delete":
                transaction.append(f"DELETE FROM {table} WHERE {part} AND id % 3 = 0")
            elif kind == "move":
                transaction.append(
                    f"UPDATE {table} SET id = {fresh}, status = 'm{written}' WHERE id = "
                    f"(SELECT min(id) FROM {table} WHERE {part})"
                )
                fresh += 1
            elif kind == "copy":
                rows = rng.choice((50, 400, 2_000))
                transaction.append(f"COPY {table} {fresh} {rows}")
                fresh += rows
            else:
                transaction.append(f"TRUNCATE {table}")
        if rng.random() < 0.05:
            transaction.append("ROLLBACK")
        yield transaction


class _Quiet:
    """A service's report that nobody reads."""

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def ready(self, **facts: Any) -> None: ...

    def progress(self, **facts: Any) -> None: ...


def serve(project: str, service: str, kill: Kill | None, pipe: Connection) -> None:
    """Run the product's capture or sink service, to be killed as ordered; "stop" on the pipe ends it in order."""
    lab = Deployment.load(project)
    _write_to(lab.state / "logs" / f"{service}.log")
    _arm(kill)
    report = _Quiet()

    def listen() -> None:
        pipe.recv()
        report.stopping.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        if service == "capture":
            from cdc_platform.capture.service import run as run_capture

            run_capture(lab, SOURCE, report)
        else:
            from cdc_platform.landing.service import run as run_sink

            run_sink(lab, report)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from error


def _write_to(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def _arm(kill: Kill | None) -> None:
    if kill is None:
        return
    arrivals = 0

    def on(step: Step) -> None:
        nonlocal arrivals
        arrivals += step == kill.step
        if step == kill.step and arrivals >= kill.nth:
            os.kill(os.getpid(), signal.SIGKILL)

    if kill.step is not None:
        arm(on)
        return
    timer = threading.Timer(kill.after_s, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()


@dataclass
class CaptureLab:
    """One long history of a real source."""

    deployment: Deployment
    seed: int
    faults: int
    readers: dict[str, Callable[[Lake, str], Rows]]
    told: Callable[[str], None]
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*PRELOADED])
        self._engine = source_engine(self.deployment.source_url(SOURCE))
        self._begun = 0.0
        self._quiet = threading.Event()  # The source rests.
        self._ending = threading.Event()
        self._calm: set[str] = set()  # Services that are killed no more.
        self._met: Counter[tuple[str, str]] = Counter()
        self._trouble: list[str] = []
        self.outcome = Outcome(Plan(-1, self.seed, SHAPES[0], (), ()))

    def run(self) -> Outcome:
        """Do all of it."""
        self._begun = time.monotonic()
        rng = random.Random(f"{self.seed}/capture")
        of_capture = kills(rng, _CAPTURE_STEPS, (self.faults + 1) // 2, (1.0, 9.0))
        of_sink = kills(rng, _SINK_STEPS, self.faults // 2, (0.3, 4.0))
        # The first deaths are in the initial load, which takes some batches.
        of_capture[:2] = [Kill(k.step, 1 + i, k.after_s) for i, k in enumerate(of_capture[:2])]
        self._create()
        writer = threading.Thread(target=self._guarded, args=("the source's writer", self._write))
        services = [
            threading.Thread(target=self._guarded, args=(name, self._serve, name, wanted))
            for name, wanted in (("capture", of_capture), ("sink", of_sink))
        ]
        try:
            for thread in (writer, *services):
                thread.start()
            self._wait(lambda: len(self._calm) == len(services), "not all kills came", 60.0 * self.faults)
            self._quiet.set()
            writer.join()
            self._write_last()
            self.told(f"capture lab, {self._elapsed():.0f} s: the source rests")
            self._wait(self._has_arrived, "the landing tables did not come to the source's end", _CONVERGES_WITHIN_S)
        except Exception as error:
            self._trouble.append(f"{type(error).__name__}: {error}")
        finally:
            self._quiet.set()
            self._ending.set()
            for thread in (writer, *services):
                thread.join()
        self.told(f"capture lab, {self._elapsed():.0f} s: the services have ended")
        if not self._trouble:
            self._guarded("verdict", self._judge)
        self.outcome.failed = f"capture lab: {self._trouble[0]}" if self._trouble else ""
        self.outcome.faults = self._met
        self.outcome.seconds = self._elapsed()
        judged = f"{self.outcome.records} records, {self.outcome.commits} commits"
        self.told(f"capture lab, {self._elapsed():.0f} s: judged {judged}")
        return self.outcome

    def _guarded(self, what: str, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:
            self._trouble.append(f"{what}: {type(error).__name__}: {error}")

    def _create(self) -> None:
        for table, shape in TABLES.items():
            columns = ", ".join(f"{name} {kind}" for name, kind in shape.columns.items())
            shop = "'s', " if len(shape.key) == 2 else ""
            self._execute(
                [
                    f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({', '.join(shape.key)}))",
                    f"ALTER TABLE {table} REPLICA IDENTITY FULL",
                    f"INSERT INTO {table} SELECT {shop}n, 'first', n FROM generate_series(1, {_FIRST_ROWS}) n",
                ]
            )

    def _execute(self, transaction: list[str]) -> None:
        with connected(self._engine) as connection:
            for statement in transaction:
                if statement.startswith("COPY "):
                    _, table, first, rows = statement.split()
                    shop = "s\t" if table == "lines" else ""
                    driver = connection.connection.driver_connection
                    assert driver is not None
                    with driver.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                        copy.write("".join(f"{shop}{int(first) + i}\tcopied\t1.00\n" for i in range(int(rows))))
                elif statement == "ROLLBACK":
                    return
                else:
                    connection.execute(text(statement))
            connection.commit()

    def _write(self) -> None:
        for transaction in statements(self.seed):
            if self._quiet.is_set():
                return
            self._execute(transaction)
            time.sleep(0.03)

    def _write_last(self) -> None:
        for table, shape in TABLES.items():
            shop = "'s', " if len(shape.key) == 2 else ""
            self._execute([f"INSERT INTO {table} VALUES ({shop}{_BIG_ID}, 'last', 1)"])

    def _serve(self, service: str, wanted: list[Kill]) -> None:
        """Kill the service as often as wanted, then let it live until the end."""
        for number, kill in enumerate(wanted, 1):
            self._kill(service, kill)
            name = kill.step or "any moment"
            self._met[f"kill {service}", name] += 1
            self.told(f"capture lab, {self._elapsed():.0f} s: {service} killed {number} of {len(wanted)}, at {name}")
        process, pipe = self._start(service, None)
        self._calm.add(service)
        while not self._ending.wait(0.2):
            if process.exitcode is not None:
                raise RuntimeError(f"ended: {pipe.recv() if pipe.poll() else process.exitcode}")
        pipe.send("stop")
        process.join(30)
        if process.exitcode is None:
            process.kill()

    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    def _kill(self, service: str, kill: Kill) -> None:
        """Start a child and wait for its death; one that ends otherwise is started again, as its supervisor would."""
        give_up = time.monotonic() + _DIES_WITHIN_S
        while time.monotonic() < give_up:
            process, pipe = self._start(service, kill)
            process.join(give_up - time.monotonic())
            if process.exitcode is None:
                process.kill()
                raise RuntimeError(f"did not come to {kill.step} ({kill.nth}) within {_DIES_WITHIN_S} s")
            code = process.exitcode
            words = pipe.recv() if code != -signal.SIGKILL and pipe.poll() else ""
            pipe.close()
            if code == -signal.SIGKILL:
                return
            self.told(f"capture lab: {service} ended by itself: {words}")
            time.sleep(0.5)
        raise RuntimeError(f"did not live long enough to be killed at {kill.step}")

    def _start(self, service: str, kill: Kill | None) -> tuple[Any, Connection]:
        if service == "capture":
            self._wait(self._slot_is_free, "the slot stays in use", 30)
        ours, theirs = self._context.Pipe()
        arguments = (str(self.deployment.project), service, kill, theirs)
        process = self._context.Process(target=serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _slot_is_free(self) -> bool:
        with connected(self._engine) as connection:
            return not connection.execute(text("SELECT count(*) FROM pg_replication_slots WHERE active")).scalar_one()

    def _has_arrived(self) -> bool:
        """Whether the landing tables are complete through the source's last rows."""
        lake = Lake("lake", self.deployment.catalog_properties)
        last = f'"id":{_BIG_ID}'.encode()
        return all(
            any(last in line for line in self._lines(table)[: self._position(lake, table)][-_LAST_WITHIN:])
            for table in TABLES
        )

    @staticmethod
    def _position(lake: Lake, table: str) -> int:
        return max((p for _, p, _ in product.states(lake, landing_table(table))), default=0)

    def _lines(self, table: str) -> list[bytes]:
        log, position, found = SegmentLog(self.deployment.changelog_dir(table)), 0, list[bytes]()
        while True:  # Bounded by the log, which nobody writes any more, or whose new end the next call sees.
            batch = log.read(position, bytes_max=16 << 20)
            if batch.end == position:
                return found
            found += batch.lines.split(b"\n")[: batch.end - position]
            position = batch.end

    def _wait(self, true: Callable[[], bool], what: str, within_s: float) -> None:
        give_up = time.monotonic() + within_s
        while not true() and not self._trouble:
            if time.monotonic() > give_up:
                raise RuntimeError(f"{what} within {within_s:.0f} s")
            time.sleep(0.3)

    def _judge(self) -> None:
        lake = Lake("lake", self.deployment.catalog_properties)
        for table, shape in TABLES.items():
            columns = tuple(shape.columns)
            listed = ", ".join(f'"{c}"' for c in columns)
            with connected(self._engine) as connection:
                source = [dict(r) for r in connection.execute(text(f"SELECT {listed} FROM {table}")).mappings()]
            ledger = Ledger(columns, shape.key, [Record(line) for line in self._lines(table)])
            self._amiss(table, "the log's fold", compare(ledger.through(len(ledger.log)), source, columns, shape.key))
            must = Expected(rows={tuple(map(str, (r[k] for k in shape.key))): _values(r, shape) for r in source})
            for name, rows in self.readers.items():
                found = rows(lake, landing_table(table))
                self._amiss(table, f"landing by {name}", compare(must, found, columns, shape.key))
            self._judge_snapshots(lake, table, shape, Ledger(columns, shape.key, ledger.log))
            self.outcome.records += len(ledger.log)

    def _judge_snapshots(self, lake: Lake, table: str, shape: Shape, ledger: Ledger) -> None:
        files, ends = FileReader(), list[int]()
        loaded = lake.load(landing_table(table))
        position = 0
        for snapshot_id, position, ours in product.states(lake, landing_table(table)):
            rows = files.rows(loaded, snapshot_id, shape.key)
            found = compare(ledger.through(position), rows, ledger.columns, shape.key)
            self._amiss(table, f"log position {position}", found)
            ends += [position] if ours else []
        letters = product.dead_letters(lake, landing_table(table))
        must = ledger.through(position)
        self._amiss(table, "dead letters", compare_dead(must, letters, ledger.passed_over(ends)))
        self.outcome.commits += len(ends)

    def _amiss(self, table: str, when: str, found: Verdict) -> None:
        for kind in ("lost", "doubled", "wrong"):
            for what in sorted(getattr(found, kind))[:3]:
                self.told(f"capture lab, {table}, {when}: {kind}: {what}")
        named = (({f"{table} {what}" for what in getattr(found, kind)}) for kind in ("lost", "doubled", "wrong"))
        self.outcome.verdict.add(Verdict(*named))


def _values(row: dict[str, Any], shape: Shape) -> tuple[str | None, ...]:
    return tuple(None if row[c] is None else str(row[c]) for c in shape.columns)
