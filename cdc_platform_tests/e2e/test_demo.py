"""The main job as an operator meets it: `cdc-platform demo`, and what it leaves."""

import json
import time

import pytest

from cdc_platform.convergence.rows import rows_apart
from cdc_platform_tests.conftest import RunningStack, cli
from cdc_platform_tests.e2e.source_rows import execute, until

pytestmark = pytest.mark.e2e


def test_the_story_is_told_in_one_screen_and_every_claim_holds(running_stack: RunningStack) -> None:
    """The exit code was 0; here are the figures that someone could get wrong."""
    figures = running_stack.figures
    assert figures["initial_load_rows"] == 60_025 + 20_000
    assert (figures["delta_rows"], figures["row_ids_moved"]) == (201, 0)
    assert figures["files_opened_after"] < figures["files_opened_before"]
    told = [line for line in running_stack.story.splitlines() if line.strip() and not line.endswith(" s")]
    assert len(told) <= 40, running_stack.story
    assert "✗" not in running_stack.story


def test_status_shows_every_service_ready_with_its_memory(running_stack: RunningStack) -> None:
    answer = cli(running_stack.deployment.project, "status", "--json")
    services = {s["service"]: s for s in json.loads(answer.stdout)["services"]}
    assert services.keys() == {"postgres", "spark", "capture-bookshop", "sink", "webserver", "daemon"}
    assert {s["state"] for s in services.values()} == {"ready"}, answer.stdout
    assert all(s["memory_mb"] > 10 for s in services.values())


def test_the_doctor_finds_nothing_lacking_in_a_stack_that_runs(running_stack: RunningStack) -> None:
    answer = cli(running_stack.deployment.project, "doctor")
    lacking, slot = answer.stdout.splitlines()
    assert (answer.returncode, lacking) == (0, "Nothing is lacking.")
    assert slot.startswith("Replication slot cdc_bookshop_bookshop: ")
    assert "status reserved, read now" in slot


def test_no_other_user_of_the_machine_reads_the_rows(running_stack: RunningStack) -> None:
    """The folders are closed: Spark's files in them follow Hadoop's own mask."""
    state = running_stack.deployment.state
    closed = [state / name for name in ("changelog", "lake", "offsets", "postgres", "run/endpoints.json")]
    assert {p.name: oct(p.stat().st_mode & 0o077) for p in closed} == {p.name: "0o0" for p in closed}


def test_a_second_up_says_that_it_runs_and_where(running_stack: RunningStack) -> None:
    answer = cli(running_stack.deployment.project, "up", "--detach")
    assert answer.returncode == 2
    assert running_stack.webserver in answer.stderr


def test_curated_holds_landings_rows_down_to_the_row(running_stack: RunningStack) -> None:
    """On the contract; `note` and `updated_at` are outside it, so the story's 500 changes of them were not taken."""
    columns = "order_id, status, customer_id, total"
    with running_stack.operations.spark() as spark:
        apart = rows_apart(
            spark,
            f"(SELECT {columns} FROM lake.landing.orders)",
            f"(SELECT {columns} FROM lake.curated.orders)",
        )
        whole = rows_apart(spark, "lake.landing.orders", "lake.curated.orders")
        items = rows_apart(spark, "lake.landing.order_items", "lake.curated.order_items")
    assert (apart.only_left, apart.only_right) == (0, 0)
    assert (whole.only_left, whole.only_right) == (500, 500)
    assert (items.only_left, items.only_right) == (0, 0)


def test_sensors_carry_a_change_to_curated_and_rewrite_landing_by_themselves(running_stack: RunningStack) -> None:
    """After the story all sensors are on: from here on nobody starts anything."""
    operations = running_stack.operations
    for n in range(12):  # More commits than `rewrite_after_commits`.
        execute(operations, f"UPDATE orders SET status = 'auto{n}' WHERE order_id = 31")
        time.sleep(1.3)

    def curated_has_it() -> bool:
        with operations.spark() as spark:
            rows = spark.rows("SELECT status FROM lake.curated.orders WHERE order_id = 31")
        return rows == [{"status": "auto11"}]

    def landing_was_rewritten() -> bool:
        landing = operations.landing("orders")
        assert landing is not None
        newest = landing.newest(lambda s: s.operation == "replace")
        return newest is not None and newest.snapshot_id != rewritten_by_the_story

    landing = operations.landing("orders")
    assert landing is not None
    rewritten_by_the_story = next(s.snapshot_id for s in [*landing.ancestry()][::-1] if s.operation == "replace")
    until(curated_has_it, "no sensor merged the change")
    until(landing_was_rewritten, "no sensor rewrote landing")
    verdict = operations.converge("orders", "curated")
    assert verdict.outcome == "converged", verdict.reason
