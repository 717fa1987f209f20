"""What goes wrong in an operator's hands: each is said with its remedy, and after the remedy nothing is lost.

The source goes on changing while capture is down; what it did then has to be in landing at the end.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from cdc_platform.deployment import Deployment
from cdc_platform.operations import Operations
from cdc_platform.source.doctor import drop_slot
from cdc_platform.stack.control import ServiceStatus, Stack
from cdc_platform.stack.supervisor import Supervisor
from cdc_platform_tests.conftest import RunningStack, cli
from cdc_platform_tests.e2e.source_rows import execute, source_rows, stage_rows, until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("by_hand")]
CAPTURE = "capture-bookshop"


@pytest.fixture
def stack(running_stack: RunningStack) -> Stack:
    return Stack(running_stack.deployment)


def capture(stack: Stack) -> ServiceStatus:
    return next(s for s in stack.status() if s.service == CAPTURE)


def says(stack: Stack, *parts: str) -> Callable[[], bool]:
    return lambda: capture(stack).state != "ready" and all(part in capture(stack).detail for part in parts)


def new_order(running: RunningStack, order_id: int) -> None:
    execute(running.operations, f"INSERT INTO orders VALUES ({order_id}, 1, 'new', 1, NULL, now(), now())")


def recovered(running: RunningStack, stack: Stack) -> None:
    """Everything is there, and what comes after it, too."""
    until(lambda: capture(stack).state == "ready", "capture did not come back")
    for _ in range(2):
        verdict = running.operations.converge("orders", "landing")
        assert verdict.outcome == "converged", verdict.reason
        assert stage_rows(running.operations, "landing.orders") == source_rows(running.operations)
        new_order(running, time.time_ns())


def test_a_replica_identity_that_is_not_full(running_stack: RunningStack, stack: Stack) -> None:
    execute(running_stack.operations, "ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    stack.restart(CAPTURE)
    until(says(stack, "REPLICA IDENTITY is not FULL", "ALTER TABLE public.orders REPLICA IDENTITY FULL"), "not said")
    assert cli(running_stack.deployment.project, "status").returncode == 4
    new_order(running_stack, 900_001)
    execute(running_stack.operations, "UPDATE order_items SET quantity = quantity + 1 WHERE order_id = 5")
    assert running_stack.operations.converge("order_items", "landing").outcome == "converged"  # The others go on.
    left_out = running_stack.operations.converge("orders", "landing")
    assert (left_out.outcome, "this table alone is not captured until then" in left_out.reason) == ("unknown", True)
    execute(running_stack.operations, "ALTER TABLE orders REPLICA IDENTITY FULL")
    recovered(running_stack, stack)


def test_a_source_that_is_down_at_start(running_stack: RunningStack, stack: Stack) -> None:
    supervisor = Supervisor(running_stack.deployment.state)
    supervisor.stop_service("postgres")
    stack.restart(CAPTURE)
    until(says(stack, "the source does not answer", "this goes on by itself"), "not said")
    checked = cli(running_stack.deployment.project, "doctor")
    assert (checked.returncode, "does not answer" in checked.stderr) == (4, True)
    supervisor.start("postgres")
    until(lambda: all(s.state == "ready" for s in stack.status() if s.service == "postgres"), "postgres")
    new_order(running_stack, 900_002)
    recovered(running_stack, stack)


def test_a_slot_that_is_gone(running_stack: RunningStack, stack: Stack) -> None:
    operations, name = running_stack.operations, running_stack.deployment.part_name("bookshop")
    with stack.paused(CAPTURE):
        drop_slot(operations.engine("orders"), name)
        new_order(running_stack, 900_003)  # Passes unseen: no slot keeps it.
    until(says(stack, "the slot is gone", "cdc-platform recapture bookshop"), "not said")
    again = cli(running_stack.deployment.project, "recapture", "bookshop", "--yes")
    assert again.returncode == 0, again.stderr
    recovered(running_stack, stack)


def test_a_slot_that_somebody_made_anew(running_stack: RunningStack, stack: Stack) -> None:
    operations, name = running_stack.operations, running_stack.deployment.part_name("bookshop")
    with stack.paused(CAPTURE):
        drop_slot(operations.engine("orders"), name)
        for order_id in range(910_000, 910_040):
            new_order(running_stack, order_id)
        execute(operations, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    until(says(stack, "after where capture ended", "cdc-platform recapture bookshop"), "not said")
    assert cli(running_stack.deployment.project, "recapture", "bookshop", "--yes").returncode == 0
    recovered(running_stack, stack)


def test_a_segment_half_written_when_capture_was_killed(running_stack: RunningStack, stack: Stack) -> None:
    pid = capture(stack).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # So that nothing is written between the kill and the tear.
    folder = running_stack.deployment.changelog_dir("orders")
    os.kill(pid, signal.SIGKILL)
    with sorted(folder.glob("*.jsonl"))[-1].open("ab") as segment:
        segment.write(b'{"before":null,"after":{"order_id":1,"cust')
    new_order(running_stack, 900_004)
    until(lambda: capture(stack).pid not in {None, pid}, "capture was not started again")
    recovered(running_stack, stack)


def test_a_spark_that_can_not_be_reached(running_stack: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    merged = cli(running_stack.deployment.project, "merge", "orders")
    assert merged.returncode == 4
    assert "Spark Connect at sc://127.0.0.1:1: nothing listens there" in merged.stderr
    checked = cli(running_stack.deployment.project, "check", "orders", "--json")
    assert checked.returncode == 4
    assert {r["outcome"] for r in json.loads(checked.stdout).values()} == {"unknown"}


@contextmanager
def declared(project: Path, name: str, entry: dict[str, object]) -> Generator[None]:
    """One more entry in tables.yaml, for a block."""
    file = project / "tables.yaml"
    before = file.read_text()
    tables = yaml.safe_load(before)
    tables["tables"][name] = entry
    file.write_text(yaml.safe_dump(tables))
    try:
        yield
    finally:
        file.write_text(before)


def test_a_table_added_to_a_running_deployment_is_one_entry(running_stack: RunningStack, stack: Stack) -> None:
    """First with a key that does not exist; then right. Its rows are loaded, and the others are not loaded again."""
    project, operations = running_stack.deployment.project, running_stack.operations
    execute(
        operations,
        "CREATE TABLE books (isbn text PRIMARY KEY, title text); ALTER TABLE books REPLICA IDENTITY FULL;"
        "INSERT INTO books SELECT 'isbn ' || i, 'Volume ' || i FROM generate_series(1, 500) AS i",
    )
    entry: dict[str, object] = {"source": "bookshop.public.books", "key": ["nr"], "owners": ["team:books"]}
    windows = operations.landing("orders")
    with declared(project, "books", entry):
        stack.restart(CAPTURE)
        until(says(stack, "key column `nr` does not exist", "Use some of: isbn, title"), "not said")
        assert list(capture(stack).facts["left_out"]) == ["books"]
    with declared(project, "books", entry | {"key": ["isbn"]}):
        stack.restart(CAPTURE)
        stack.restart("sink")
        until(lambda: capture(stack).state == "ready", "capture did not come back")
        execute(operations, "UPDATE books SET title = 'changed' WHERE isbn = 'isbn 7'")
        added = Operations(Deployment.load(project))
        verdict = added.converge("books", "landing")
        assert verdict.outcome == "converged", verdict.reason
        with added.spark() as spark:
            [row] = spark.rows("SELECT count(*) AS n, count_if(title = 'changed') AS changed FROM lake.landing.books")
        assert row == {"n": 500, "changed": 1}
        assert added.merge("books").inserts == 500
        assert added.converge("books", "curated").outcome == "converged"
        after = added.landing("orders")
        assert windows is not None
        assert after is not None
        assert {s.summary.get("cdc.load-position") for s in windows.ancestry()} >= {
            s.summary.get("cdc.load-position") for s in after.ancestry()
        }
    stack.restart(CAPTURE)
    stack.restart("sink")
