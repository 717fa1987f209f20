"""The capture service of one source: looks the source over, then keeps Debezium writing the change log.

Belongs here: the order of start, asking for a new initial load, what the service reports: `records` by kind
(`capture/batch.py`), `log_end` of each table, `slot` (`source/slot.py`, null when it can't be read), and `problems`.
Does not: the engine, the routing.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from sqlalchemy import Engine

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
from cdc_platform.errors import UnavailableError
from cdc_platform.reporting import Report
from cdc_platform.source.columns import Catalog, read_catalog
from cdc_platform.source.doctor import Inspection, drop_slot, ensure_publication, inspect, unpublished
from cdc_platform.source.postgres import source_engine
from cdc_platform.source.slot import SlotLag, read_slot

_REPORT_EVERY_S = 1.0
_SLOT_READ_EVERY_S = 5.0


def look_over(deployment: Deployment, source: str) -> Inspection:
    """What the doctor finds at `source`."""
    return inspect(
        source_engine(deployment.source_url(source)),
        deployment.registry.tables_of(source),
        name=deployment.part_name(source),
        captured_lsn=captured_lsn(deployment.offsets_file(source)),
    )


def run(deployment: Deployment, source: str, report: Report, *, free: Callable[[Path], int] = free_bytes) -> None:
    """Capture until `report.stopping` is set. Raises the first lack that the doctor finds."""
    tables = deployment.registry.tables_of(source)
    found = look_over(deployment, source)
    if found.findings:
        raise found.findings[0].as_error()
    url, name = deployment.source_url(source), deployment.part_name(source)
    engine = source_engine(url)

    folders = {table: deployment.changelog_dir(table) for table in tables}
    writers = {table: SegmentWriter(folder) for table, folder in folders.items()}

    def look_up(table: str) -> Catalog:
        return read_catalog(engine, tables[table].source_schema, tables[table].source_table)

    # What happened to a table while it was not published is in no log: a load that begins and does not end says so.
    for table in unpublished(engine, name, tables):
        columns = TableColumns.of_catalog(look_up(table))
        writers[table].append_marker(marker(LOAD_BEGIN, time.time_ns() // 1_000_000, **columns.facts()))
        writers[table].sync()
    ensure_publication(engine, name, tables)
    offsets = deployment.offsets_file(source)
    offsets.parent.mkdir(parents=True, exist_ok=True)
    signals = deployment.signals_file(source)
    signals.write_text("")
    router = Router(
        prefix=name,
        tables=tables,
        look_up=look_up,
        known={t: TableColumns.of_marker(m) for t, f in folders.items() if (m := newest_columns(f)) is not None},
        writers=writers,
        unloaded={table for table, folder in folders.items() if newest_marker(folder) != LOAD_END},
        request_load=lambda collections: request_load(signals, collections),
        cuts=Cuts(deployment.cuts_file(source)),
    )
    problems = _Problems(report)
    room = Room(
        deployment.state, deployment.registry.stack.disk_free_min_mb, report.stopping, problems.of("room"), free
    )
    mb_max = deployment.registry.sources[source].slot_lag_max_mb
    watch = threading.Thread(
        target=_watch_slot, args=(engine, name, mb_max, report, problems.of("slot")), name="slot", daemon=True
    )
    reported_at = 0.0

    def handle(records: Sequence[tuple[str, str | None]], schema_of: Callable[[int], RecordSchema]) -> None:
        nonlocal reported_at
        if not reported_at:
            report.ready()
            watch.start()
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


class _Problems:
    """What keeps capture from its work, by cause; together they make it impaired."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._found: dict[str, str] = {}

    def of(self, cause: str) -> Callable[[str | None], None]:
        """Takes the problem of that cause, None when there is none any more."""

        def tell(problem: str | None) -> None:
            known = self._found.get(cause)
            if problem is None:
                self._found.pop(cause, None)
            else:
                self._found[cause] = problem
            if problem != known:
                self._report.progress(problems=list(self._found.values()))

        return tell


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


def request_load(signals: Path, collections: list[str]) -> None:
    """Ask a running Debezium, through its signal file, to pause streaming and load these tables (patterns)."""
    signal = {
        "id": str(uuid.uuid4()),
        "type": "execute-snapshot",
        "data": {"type": "BLOCKING", "data-collections": collections},
    }
    with signals.open("a") as file:
        file.write(json.dumps(signal) + "\n")
