"""What a tick reads of a real table to decide, and where the operation starts from."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.sink import TableSink
from cdc_platform.maintenance.due import BEGINNING, due
from cdc_platform.maintenance.runs import PROPERTY, Operation, PastRun, with_run
from cdc_platform.registry.maintenance import Maintenance
from cdc_platform_tests.builders import SOURCE_COLUMNS, MemoryLog, event, lines

TABLE = "landing.orders"
OPERATION: Operation = "rewrite_data_files"
NOW_MS = 1_764_543_021_000
RUN = PastRun(NOW_MS - 10_000_000, 1, took_s=1.0, changed=True)
COMMITS = 5  # The load, then an update each: as many data files, and an equality delete less.


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table as the sink lands it."""
    (tmp_path / "warehouse").mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    lake = Lake("lake", properties)
    begin = marker(LOAD_BEGIN, 1, columns=[asdict(column) for column in SOURCE_COLUMNS])
    log = MemoryLog(begin + b"\n" + lines(event("r", row) for row in (1, 2, 3)) + marker(LOAD_END, 2) + b"\n")
    sink = TableSink(lake, TABLE, key=("id",), log=log, window_s=0.0)
    sink.catch_up()
    for n in range(1, COMMITS):
        log.append(lines([event("u", 1, f"s{n}", commit=n, lsn=n)]))
        sink.catch_up()
    return lake


def record(lake: Lake, *runs: PastRun) -> None:
    """Write these runs into the table, oldest first."""
    for run in runs:
        history, loaded = lake.history(TABLE), lake.load(TABLE)
        assert history is not None and loaded is not None
        with loaded.transaction() as change:
            change.set_properties(dict([with_run(history.properties, OPERATION, run)]))


def leave_out(lake: Lake, totals: Mapping[str, None]) -> None:
    """A commit by a writer that leaves these totals out of its summary, as a metadata file would show it."""
    import json

    loaded = lake.load(TABLE)
    assert loaded is not None
    file = Path(loaded.metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    for snapshot in metadata["snapshots"]:
        for name in totals:
            snapshot["summary"].pop(f"total-{name}", None)
    file.write_text(json.dumps(metadata))


def test_a_run_that_failed_is_no_new_start_and_has_no_fresh_attempts(lake: Lake) -> None:
    """It records what it made: were that a start, an operation that always fails would be tried for ever."""

    def start() -> str:
        return due(lake, TABLE, OPERATION, Maintenance(), now_ms=NOW_MS).start

    failed = replace(RUN, failed=True, complete=False)
    assert start() == BEGINNING
    record(lake, failed)
    assert start() == BEGINNING
    record(lake, RUN, replace(failed, at_ms=RUN.at_ms + 1), replace(failed, at_ms=RUN.at_ms + 2))
    assert start() == str(RUN.at_ms)
    record(lake, replace(RUN, at_ms=RUN.at_ms + 3, complete=False))  # Cut short at a bound: it did something.
    assert start() == str(RUN.at_ms + 3)


@pytest.mark.parametrize("name", ["data-files", "delete-files", "equality-deletes", "position-deletes", "records"])
def test_a_table_whose_writer_leaves_a_total_out_is_counted_from_its_manifests(lake: Lake, name: str) -> None:
    policy = Maintenance(rewrite_delete_files=COMMITS - 1, rewrite_small_files=99)
    assert due(lake, TABLE, OPERATION, policy, now_ms=NOW_MS).decision.trigger == "rewrite_delete_files"
    leave_out(lake, {name: None})
    found = due(lake, TABLE, OPERATION, policy, now_ms=NOW_MS).decision
    assert found.trigger == "rewrite_delete_files"
    assert (found.figures["delete_files"], found.figures["small_files"]) == (COMMITS - 1, COMMITS)
    assert "unknown before" not in found.reason


def test_small_files_are_counted_where_there_may_be_enough_of_them(lake: Lake) -> None:
    few, enough = (
        due(lake, TABLE, OPERATION, Maintenance(rewrite_small_files=n), now_ms=NOW_MS).decision
        for n in (COMMITS + 1, COMMITS)
    )
    assert ("small_files" in few.figures, few.due) == (False, False)
    assert enough.trigger == "rewrite_small_files"


def test_position_deletes_that_a_writer_does_not_count_are_looked_for(lake: Lake) -> None:
    leave_out(lake, {"position-deletes": None})
    found = due(lake, TABLE, "rewrite_position_delete_files", Maintenance(), now_ms=NOW_MS).decision
    assert found.figures == {"position_delete_files": 0}


@pytest.mark.parametrize("text", ["[", "[null]", '[{"at_ms": "x"}]', "\ud7ff"])
def test_a_record_that_nobody_can_read_stops_no_decision(lake: Lake, text: str) -> None:
    loaded = lake.load(TABLE)
    assert loaded is not None
    with loaded.transaction() as change:
        change.set_properties({PROPERTY + OPERATION: text})
    found = due(lake, TABLE, OPERATION, Maintenance(rewrite_after_commits=COMMITS), now_ms=NOW_MS)
    assert (found.start, found.decision.trigger) == (BEGINNING, "rewrite_after_commits")
