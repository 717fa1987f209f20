"""Each service is killed while the source goes on; nothing is lost, doubled or stale, and all come back."""

import os
import signal
import time

import pytest

from cdc_platform.errors import InvariantError
from cdc_platform.maintenance.probe import columns, probe, require_same
from cdc_platform.source.postgres import connected
from cdc_platform.stack.control import ServiceStatus, Stack
from cdc_platform_tests.conftest import RunningStack, cli
from cdc_platform_tests.e2e.source_rows import execute, source_rows, stage_rows, until, writing

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("by_hand")]


def service(running: RunningStack, name: str) -> ServiceStatus:
    return next(s for s in Stack(running.deployment).status() if s.service == name)


@pytest.mark.parametrize("name", ["capture-bookshop", "sink", "postgres", "spark", "webserver", "daemon"])
def test_a_service_killed_in_the_middle_comes_back_and_nothing_is_lost(running_stack: RunningStack, name: str) -> None:
    operations = running_stack.operations
    before = service(running_stack, name)
    assert before.pid is not None
    with writing(operations):
        time.sleep(1.5)
        os.kill(before.pid, signal.SIGKILL)
        time.sleep(1.5)
        until(lambda: service(running_stack, name).state == "ready", f"{name} did not come back")
        assert service(running_stack, name).pid != before.pid
        time.sleep(1)
    until(lambda: service(running_stack, "sink").state == "ready", "the sink did not recover")
    verdict = operations.converge("orders", "landing")
    assert verdict.outcome == "converged", verdict.reason
    assert stage_rows(operations, "landing.orders") == source_rows(operations)


def test_a_capture_killed_inside_a_copy_loses_no_row_of_it(running_stack: RunningStack) -> None:
    """Rows of a COPY share LSNs, and Debezium's ordinals count from elsewhere after a resume inside a transaction."""
    operations, first = running_stack.operations, 5_000_000_000
    log, before = operations.changelog("orders"), service(running_stack, "capture-bookshop")
    start = log.end()
    rows = "".join(f"{first + i}\t1\tcopied\t1.00\t\\N\t2026-01-01\t2026-01-01\n" for i in range(60_000))
    with connected(operations.engine("orders")) as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        with driver.cursor().copy("COPY orders FROM STDIN") as copy:
            copy.write(rows)
        driver.commit()
    until(lambda: log.end() > start + 5_000, "nothing of the COPY came")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: service(running_stack, "capture-bookshop").pid not in {None, before.pid}, "not started again")
    verdict = operations.converge("orders", "landing")
    assert verdict.outcome == "converged", verdict.reason
    assert stage_rows(operations, "landing.orders") == source_rows(operations)
    execute(operations, f"DELETE FROM orders WHERE order_id >= {first} AND status = 'copied'")


def test_a_rewrite_that_changed_rows_would_be_told(running_stack: RunningStack) -> None:
    operations = running_stack.operations
    execute(operations, "DELETE FROM orders WHERE order_id = 50001")
    assert operations.converge("orders", "landing").outcome == "converged"
    landing = operations.landing("orders")
    assert landing is not None
    assert landing.head is not None
    with (
        operations.spark() as spark,
        pytest.raises(InvariantError, match=r"changed the number of rows from \d+ to \d+.*roll back"),
    ):
        assert landing.head.parent_id is not None
        ids = (landing.head.parent_id, landing.head.snapshot_id)
        of = columns(operations.lake, "landing.orders", landing.head.snapshot_id)
        before, after = (probe(spark, operations.lake, "landing.orders", i, of) for i in ids)
        require_same("landing.orders", "rewrite_data_files", before, after)


def test_a_busy_source_converges_while_it_is_busy(running_stack: RunningStack) -> None:
    """The cut is exact: a source that never stands still is no excuse, and no difference either."""
    with writing(running_stack.operations, every_s=0.0):
        time.sleep(1)
        verdicts = [running_stack.operations.converge("orders", "landing") for _ in range(3)]
    assert [v.outcome for v in verdicts] == ["converged"] * 3, [v.reason for v in verdicts]
    assert any(v.reading is not None and v.cut is not None and v.reading.expected != v.cut.state for v in verdicts)


def test_a_landing_table_with_a_doubled_key_is_not_merged(running_stack: RunningStack) -> None:
    operations = running_stack.operations
    before = operations.curated("order_items")
    with operations.spark() as session:
        session.rows("INSERT INTO lake.landing.order_items SELECT * FROM lake.landing.order_items LIMIT 3")
    # The sink's next commit makes the damage part of what it stands for.
    execute(operations, "UPDATE order_items SET quantity = quantity + 1 WHERE order_id = 9999")
    operations.converge("order_items", "landing")
    with pytest.raises(InvariantError, match="keys stand in more than one row"):
        operations.merge("order_items")
    after = operations.curated("order_items")
    assert before is not None
    assert after is not None
    assert after.head_id == before.head_id


def test_a_row_that_is_wrong_is_diverged_and_a_recapture_makes_it_right(running_stack: RunningStack) -> None:
    """A check that can't fail is no check: another writer damages landing behind the platform's back."""
    operations = running_stack.operations
    with operations.spark() as spark:
        spark.rows("DELETE FROM lake.landing.orders WHERE order_id IN (50011, 50012)")
    verdict = operations.converge("orders", "landing")
    assert verdict.outcome == "diverged"
    assert [
        (d.measure, d.expected - d.found) for d in verdict.differences if d.measure in {"rows", "sum(order_id)"}
    ] == [
        ("rows", 2),
        ("sum(order_id)", 100_023),
    ]
    project = running_stack.deployment.project
    operations.merge("orders")  # Else `check` would wait for curated, too.
    checked = cli(project, "check", "orders")
    assert checked.returncode == 3
    assert "landing.orders: diverged" in checked.stdout
    execute(operations, "DELETE FROM orders WHERE order_id = 50013")
    again = cli(project, "recapture", "bookshop", "--yes")
    assert again.returncode == 0, again.stderr
    execute(operations, "DELETE FROM orders WHERE order_id = 50014")
    until(lambda: service(running_stack, "capture-bookshop").state == "ready", "capture did not come back")
    for table in ("orders", "order_items"):  # Both were damaged above; the load mends both.
        verdict = operations.converge(table, "landing")
        assert verdict.outcome == "converged", verdict.reason
    assert stage_rows(operations, "landing.orders") == source_rows(operations)


def test_curated_takes_a_reload_as_the_changes_that_it_is(running_stack: RunningStack) -> None:
    """A new load replaces landing whole; rows that did not change keep their lineage in curated."""
    operations = running_stack.operations
    lineage = "SELECT order_id, _row_id, _last_updated_sequence_number AS n FROM lake.curated.orders"
    operations.merge("orders")
    with operations.spark() as spark:
        before = {tuple(r.values()) for r in spark.rows(lineage)}
    assert cli(running_stack.deployment.project, "recapture", "bookshop", "--yes").returncode == 0
    execute(operations, "UPDATE orders SET status = 'reloaded' WHERE order_id = 50021")
    assert operations.converge("orders", "landing").outcome == "converged"
    result = operations.merge("orders")
    assert (result.inserts, result.updates, result.deletes) == (0, 1, 0)
    with operations.spark() as spark:
        after = {tuple(r.values()) for r in spark.rows(lineage)}
    assert len(before - after) == len(after - before) == 1
    again = operations.merge("orders")
    assert (again.snapshot_id, again.inserts, again.updates, again.deletes) == (None, 0, 0, 0)
