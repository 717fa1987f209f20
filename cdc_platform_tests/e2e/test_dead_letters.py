"""A change that can't be applied, from PostgreSQL to the operator's hands and back: corrected, refused, discarded."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from cdc_platform.definitions import build_defs
from cdc_platform.landing.corrections import Correction
from cdc_platform.landing.letters import Choice
from cdc_platform.stack.control import Stack
from cdc_platform_tests.conftest import RunningStack, cli
from cdc_platform_tests.e2e.source_rows import execute, stage_rows, until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("by_hand")]
ORDERS = range(920_001, 920_004)
CHECK = dg.AssetCheckKey(dg.AssetKey(["landing", "orders"]), "dead_letters_are_closed")


@pytest.fixture
def orders(running_stack: RunningStack) -> Iterator[RunningStack]:
    """Three orders, and none of them afterwards: other tests compare the tables row by row."""
    rows = ", ".join(f"({order_id}, 1, 'new', 1, NULL, now(), now())" for order_id in ORDERS)
    execute(running_stack.operations, f"INSERT INTO orders VALUES {rows}")
    yield running_stack
    execute(running_stack.operations, f"DELETE FROM orders WHERE order_id BETWEEN {ORDERS[0]} AND {ORDERS[-1]}")
    assert run(running_stack, "discard", "orders", "--all", "--yes")[0] == 0


def run(running: RunningStack, command: str, *arguments: str) -> tuple[int, Any]:
    done = cli(running.deployment.project, "dead-letters", command, *arguments, "--json")
    assert done.returncode in {0, 2}, done.stderr
    return done.returncode, json.loads(done.stdout)


def letters_of_all(running: RunningStack) -> list[dict[str, Any]]:
    """The open letters of the orders, once they are there."""
    keys = [json.dumps({"order_id": order_id}) for order_id in ORDERS]

    def come() -> bool:
        return {*keys} <= {*running.operations.letters("orders")["key"]}

    until(come, "the letters did not come")
    listed = {x["key"]: x for x in run(running, "list", "orders")[1]}
    return [listed[key] for key in keys]


def total(running: RunningStack, order_id: int) -> str:
    return stage_rows(running.operations, "landing.orders")[order_id][3]


def the_check(running: RunningStack) -> dg.AssetCheckEvaluation:
    job = build_defs(running.deployment).get_repository_def().get_job("check_convergence")
    subset = job.get_subset(asset_selection=set(), asset_check_selection={CHECK})
    done = subset.execute_in_process(instance=dg.DagsterInstance.ephemeral())
    [evaluation] = done.get_asset_check_evaluations()
    return evaluation


def test_a_letter_is_corrected_and_lands_and_one_whose_row_changed_since_is_refused(orders: RunningStack) -> None:
    corrected, changed, raced = ORDERS
    assert the_check(orders).passed
    execute(orders.operations, f"UPDATE orders SET total = 'NaN' WHERE order_id BETWEEN {ORDERS[0]} AND {ORDERS[-1]}")
    letters = letters_of_all(orders)
    letter, offsets = letters[0], [x["log_offset"] for x in letters]
    assert (letter["reason"], letter["op"]) == ("no_home", "u")
    assert letter["detail"] == "column `total`: NaN is no value of a decimal"
    assert "payload" not in letter
    _, [shown] = run(orders, "show", "orders", str(offsets[0]))
    assert json.loads(shown["payload"])["after"]["total"] == "NAN"
    warned = the_check(orders)
    assert (warned.passed, warned.metadata["open_no_home"].value) == (False, 3)
    assert total(orders, corrected) == "1.00"

    code, told = run(orders, "replay", "orders", str(offsets[0]), "--set", "total=12.50", "--wait")
    assert (code, told["letters"][0]["outcome"]) == (0, "replayed"), told
    assert total(orders, corrected) == "12.50"

    execute(orders.operations, f"UPDATE orders SET total = 5 WHERE order_id = {changed}")
    until(lambda: total(orders, changed) == "5.00", "the newer value did not land")
    code, told = run(orders, "replay", "orders", str(offsets[1]), "--set", "total=12.50", "--wait")
    assert (code, told["letters"][0]["outcome"]) == (2, "stale"), told
    assert total(orders, changed) == "5.00"

    refused_by_the_sink(orders, raced, offsets[2])
    assert the_check(orders).metadata["open"].value == 3  # Two letters, and the second one of the last.
    code, told = run(orders, "discard", "orders", str(offsets[1]), str(offsets[2]), "--yes")
    assert (code, told["dry_run"], len(told["letters"])) == (0, False, 3)
    assert the_check(orders).passed


def refused_by_the_sink(running: RunningStack, order_id: int, offset: int) -> None:
    """The row changes while capture holds still, so that only the sink can tell."""
    pid = next(s.pid for s in Stack(running.deployment).status() if s.service == "capture-bookshop")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        execute(running.operations, f"UPDATE orders SET total = 7 WHERE order_id = {order_id}")
        [told] = running.operations.replay_letters(
            "orders", Choice((offset,)), Correction({"total": 12}), dry_run=False
        )
    finally:
        os.kill(pid, signal.SIGCONT)
    assert told.outcome == "sent"
    until(lambda: "stale" in running.operations.letters("orders")["reason"].tolist(), "the sink did not say no")
    assert total(running, order_id) == "7.00"
