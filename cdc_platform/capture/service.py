"""The capture service of one source: looks the source over, then keeps Debezium writing the change log.

Belongs here: the order of start, asking for a new initial load, what the service reports: `records` by kind
(`capture/batch.py`), `log_end` of each table, `slot` (`source/slot.py`, null when it can't be read), `left_out`, and
`problems`. Does not: the engine, the routing, which tables are left out (`capture/admission.py`).
A table that is left out is looked at again and again. Once nothing is lacking the service ends and is started anew, for
the connector's tables are chosen when it starts, and a process has one engine (`capture/engine.py`).
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from cdc_platform.capture.admission import admit, by_table, captured_problem, left_out_problem
from cdc_platform.capture.batch import Router
from cdc_platform.capture.engine import run_engine
from cdc_platform.capture.offsets import captured_lsn
from cdc_platform.capture.room import Room, StoppedError, free_bytes
from cdc_platform.capture.schemas import RecordSchema, TableColumns
from cdc_platform.capture.settings import connector_properties
from cdc_platform.changelog.cuts import Cuts
from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.changelog.segments import SegmentWriter, newest_columns, newest_marker
from cdc_platform.deployment import Deployment
from cdc_platform.errors import CdcError, UnavailableError
from cdc_platform.reporting import Report
from cdc_platform.source.columns import Catalog, read_catalog
from cdc_platform.source.doctor import (
    Inspection,
    drop_slot,
    ensure_publication,
    inspect,
    inspect_tables,
    unpublished,
)
from cdc_platform.source.messages import wake
from cdc_platform.source.postgres import source_engine
from cdc_platform.source.slot import SlotLag, read_slot

_REPORT_EVERY_S = 1.0
_SLOT_READ_EVERY_S = 5.0
_TABLES_READ_EVERY_S = 15.0


def look_over(deployment: Deployment, source: str) -> Inspection:
    """What the doctor finds at `source`."""
    return inspect(
        source_engine(deployment.source_url(source)),
        deployment.registry.tables_of(source),
        name=deployment.part_name(source),
        captured_lsn=captured_lsn(deployment.offsets_file(source)),
    )


def run(deployment: Deployment, source: str, report: Report, *, free: Callable[[Path], int] = free_bytes) -> None:
    """Capture until `report.stopping` is set. Raises the first lack that stops the whole source.

    Raises UnavailableError, which has the service started anew, when a table that was left out can be captured.
    """
    declared = deployment.registry.tables_of(source)
    url, name = deployment.source_url(source), deployment.part_name(source)
    engine = source_engine(url)
    folders = {table: deployment.changelog_dir(table) for table in declared}
    lacking = look_over(deployment, source).findings
    unseen = unpublished(engine, name, declared)
    whole = {table for table, folder in folders.items() if newest_marker(folder) == LOAD_END}
    admission = admit(declared, lacking, streaming=whole - unseen)
    tables = {table: declared[table] for table in admission.captured}
    left_out = {table: declared[table] for table in admission.left_out}

    def look_up(table: str) -> Catalog:
        return read_catalog(engine, tables[table].source_schema, tables[table].source_table)

    # Also of what is left out now, for the publication may hold it until it is taken in again.
    for table in whole & left_out.keys():
        _say_unseen(folders[table], TableColumns.of_marker(newest_columns(folders[table]) or {"columns": []}))
    for table in unseen & tables.keys():
        _say_unseen(folders[table], TableColumns.of_catalog(look_up(table)))
    writers = {table: SegmentWriter(folders[table]) for table in tables}
    ensure_publication(engine, name, tables, left_out=left_out.values())
    offsets = deployment.offsets_file(source)
    offsets.parent.mkdir(parents=True, exist_ok=True)
    signals = deployment.signals_file(source)
    signals.write_text("")
    router = Router(
        prefix=name,
        tables=tables,
        look_up=look_up,
        known={t: TableColumns.of_marker(m) for t in tables if (m := newest_columns(folders[t])) is not None},
        writers=writers,
        unloaded={table for table in tables if newest_marker(folders[table]) != LOAD_END},
        request_load=lambda collections: request_load(engine, signals, collections),
        cuts=Cuts(deployment.cuts_file(source)),
    )
    problems = _Problems(report)
    problems.of_tables(admission.problems, left_out=left_out)
    room = Room(
        deployment.state, deployment.registry.stack.disk_free_min_mb, report.stopping, problems.of("room"), free
    )
    mb_max = deployment.registry.sources[source].slot_lag_max_mb
    slot = threading.Thread(
        target=_watch_slot, args=(engine, name, mb_max, report, problems.of("slot")), name="slot", daemon=True
    )
    watch = _TableWatch(deployment, source, tables, left_out, problems)
    looks = threading.Thread(target=watch.run, args=(engine, report.stopping), name="tables", daemon=True)
    reported_at = 0.0

    def handle(records: Sequence[tuple[str, str | None]], schema_of: Callable[[int], RecordSchema]) -> None:
        nonlocal reported_at
        if not reported_at:
            problems.tell_ready()
            slot.start()
            looks.start()
        room.wait()
        router.write(records, schema_of)
        if time.monotonic() - reported_at >= _REPORT_EVERY_S:
            reported_at = time.monotonic()
            report.progress(records=dict(router.records), log_end={t: w.end for t, w in writers.items()})

    try:
        run_engine(
            connector_properties(name=name, url=url, tables=tables.values(), offsets=offsets, signals=signals),
            handle,
            memory_mb=deployment.registry.stack.capture_memory_mb,
            stopping=report.stopping,
        )
    except StoppedError:
        pass  # What was held was not acknowledged.
    finally:
        for writer in writers.values():
            writer.close()
    if watch.cured:
        raise UnavailableError(
            f"nothing is lacking any more of {', '.join(sorted(watch.cured))}",
            where=f"capture of source {source}",
            action="Nothing: capture is started anew by itself, and loads what it had left out",
        )


def _say_unseen(folder: Path, columns: TableColumns) -> None:
    """Say that what happens to a table while nothing captures it is in no log: a load that begins and does not end."""
    writer = SegmentWriter(folder)
    writer.append_marker(marker(LOAD_BEGIN, time.time_ns() // 1_000_000, **columns.facts()))
    writer.close()


class _Problems:
    """What keeps capture from its work, by cause; together they make it impaired."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._found: dict[str, str] = {}
        self._tables: dict[str, str] = {}
        self._left_out: dict[str, str] = {}
        self._is_ready = False
        self._telling = threading.Lock()

    def of(self, cause: str) -> Callable[[str | None], None]:
        """Takes the problem of that cause, None when there is none any more."""

        def tell(problem: str | None) -> None:
            with self._telling:
                known = self._found.get(cause)
                if problem is None:
                    self._found.pop(cause, None)
                else:
                    self._found[cause] = problem
                if problem != known:
                    self._tell()

        return tell

    def of_tables(self, problems: Mapping[str, str], *, left_out: Collection[str]) -> None:
        """Takes the problems of all tables that have one now, in place of those before."""
        told = {t: p for t, p in problems.items() if t not in left_out}
        with self._telling:
            before = self._facts
            self._tables, self._left_out = told, {t: p for t, p in problems.items() if t in left_out}
            if self._facts != before:
                self._tell()

    def tell_ready(self) -> None:
        """Report that the service works, and with it what was found before."""
        with self._telling:
            self._is_ready = True
            self._report.ready(**self._facts)

    @property
    def _facts(self) -> dict[str, Any]:
        problems = [*self._left_out.values(), *self._tables.values(), *self._found.values()]
        return {"problems": problems, "left_out": self._left_out}

    def _tell(self) -> None:
        if self._is_ready:
            self._report.progress(**self._facts)


class _TableWatch:
    """Looks the tables over again while capture runs: tells what is lacking, and ends the service for a cure."""

    def __init__(
        self,
        deployment: Deployment,
        source: str,
        captured: Collection[str],
        left_out: Collection[str],
        problems: _Problems,
    ) -> None:
        self._deployment, self._source = deployment, source
        self._captured, self._left_out, self._problems = tuple(captured), set(left_out), problems
        self.cured: set[str] = set()  # Why the service was asked to end.

    def run(self, engine: Engine, stopping: threading.Event) -> None:
        """Look now and then until `stopping` is set, or set it."""
        while not stopping.wait(_TABLES_READ_EVERY_S):
            try:
                self.cured = self._look(engine)
            except (CdcError, DBAPIError, OSError):  # No answer, a table that goes meanwhile, tables.yaml being edited.
                continue
            if self.cured:
                stopping.set()

    def _look(self, engine: Engine) -> set[str]:
        """Tell what is lacking now; return the tables that are left out for nothing."""
        # As tables.yaml is now, for the cure may be there, or the slip. A table may be declared no more.
        declared = Deployment.load(self._deployment.project).registry.tables_of(self._source)
        looked_at = {t: declared[t] for t in (*self._captured, *self._left_out) if t in declared}
        lacking = by_table(inspect_tables(engine, looked_at, name=self._deployment.part_name(self._source)))
        told = {t: left_out_problem(f) if t in self._left_out else captured_problem(f) for t, f in lacking.items()}
        self._problems.of_tables(told, left_out=self._left_out)
        return self._left_out - lacking.keys()


def _watch_slot(engine: Engine, slot: str, mb_max: int, report: Report, tell: Callable[[str | None], None]) -> None:
    """Report the slot's lag while capture runs; what can't be read is reported as unknown."""
    wait_s = 0.0
    while not report.stopping.wait(wait_s):
        wait_s = _SLOT_READ_EVERY_S
        try:
            lag = read_slot(engine, slot)
        except UnavailableError:
            report.progress(slot=None)
            continue
        report.progress(slot=asdict(lag))
        tell(None if lag.within(mb_max) else slot_problem(slot, lag, mb_max))


def slot_problem(slot: str, lag: SlotLag, mb_max: int) -> str:
    """What is wrong with the slot, and what to do."""
    held = "unknown" if lag.retained_bytes is None else f"{lag.retained_bytes >> 20} MB"
    return (
        f"replication slot {slot}: the source keeps {held} of WAL for it (status {lag.wal_status}), more than "
        f"{mb_max} MB (`slot_lag_max_mb`) is too much. See docs/operating/slot_lag_is_bounded.md."
    )


def recapture(deployment: Deployment, source: str) -> None:
    """Forget how far capture came, so that it begins with a new initial load, which replaces the landing tables.

    The change log is kept: what it holds stays readable. Raises ConfigError while capture reads the slot.
    """
    drop_slot(source_engine(deployment.source_url(source)), deployment.part_name(source))
    deployment.offsets_file(source).unlink(missing_ok=True)


def request_load(engine: Engine, signals: Path, collections: list[str]) -> None:
    """Ask a running Debezium, through its signal file, to pause streaming and load these tables (patterns)."""
    signal = {
        "id": str(uuid.uuid4()),
        "type": "execute-snapshot",
        "data": {"type": "BLOCKING", "data-collections": collections},
    }
    with signals.open("a") as file:
        file.write(json.dumps(signal) + "\n")
    wake(engine)
