"""The capture service on a real PostgreSQL: its fault steps in their order, and holding still for want of space.

Each test is a process: a JVM starts once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cdc_platform.changelog.log import LOAD_END
from cdc_platform.changelog.segments import SegmentLog, newest_marker
from cdc_platform.source.postgres import connected, source_engine
from cdc_platform.source.slot import read_slot
from cdc_platform_tests.e2e.source_rows import until

pytestmark = pytest.mark.e2e
TABLES = """
deployment: served
sources: {shop: {postgres: {url: {env: SHOP_URL}}}}
stack: {capture_memory_mb: 256, disk_free_min_mb: 100}
tables: {orders: {source: shop.public.orders, key: [id], owners: ["team:t"]}}
"""
SCRIPT = """
import sys
from pathlib import Path
from cdc_platform import faults
from cdc_platform.capture.service import run
from cdc_platform.deployment import Deployment
from cdc_platform.stack.report import Report, run_reported
project = Path(sys.argv[1])
deployment = Deployment.load(project)
steps = (project / "steps").open("a", buffering=1)
faults.arm(lambda step: steps.write(step + chr(10)))
free = lambda folder: 0 if (project / "full").exists() else 1 << 40
report = Report(deployment.state / "run", "capture-shop")
sys.exit(run_reported(report, lambda report: run(deployment, "shop", report, free=free)))
"""


class Capture:
    """The service as a process of its own. `full` is whether its disk is."""

    def __init__(self, project: Path, url: str, engine: Engine) -> None:
        self.project, self.engine = project, engine
        (project / "tables.yaml").write_text(TABLES)
        self.url = url.replace("+psycopg", "")
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        with (self.project / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(self.project)],
                env=os.environ | {"SHOP_URL": self.url},
                stdout=log,
                stderr=log,
            )

    @property
    def report(self) -> dict[str, Any]:
        try:
            return json.loads((self.project / ".cdc-platform/run/capture-shop.json").read_text())
        except FileNotFoundError:
            return {}

    @property
    def log(self) -> SegmentLog:
        return SegmentLog(self.project / ".cdc-platform/changelog/orders")

    @property
    def ops(self) -> list[str]:
        log, found = self.log, list[str]()
        while (batch := log.read(len(found), bytes_max=1 << 26)).lines:
            found += [json.loads(line)["op"] for line in batch.lines.splitlines()]
        return found

    def revive(self) -> None:
        """What the supervisor does."""
        if self.process.poll() is not None:
            self.process = self.start()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)


@pytest.fixture
def capture(tmp_path: Path, postgres: str) -> Iterator[Capture]:
    admin = source_engine(f"{postgres}/postgres")
    with connected(admin, isolation="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("DROP DATABASE IF EXISTS served WITH (FORCE)")
        connection.exec_driver_sql("CREATE DATABASE served")
        connection.exec_driver_sql("ALTER DATABASE served SET wal_sender_timeout = '3s'")
    engine = source_engine(f"{postgres}/served")
    execute(engine, "CREATE TABLE orders (id int PRIMARY KEY, v text); ALTER TABLE orders REPLICA IDENTITY FULL")
    found = Capture(tmp_path, f"{postgres}/served", engine)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        time.sleep(0.5)  # The server ends its walsender.
        with connected(engine, isolation="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def execute(engine: Engine, sql: str) -> None:
    with connected(engine) as connection:
        connection.exec_driver_sql(sql)
        connection.commit()


def test_the_fault_steps_come_in_their_order(capture: Capture) -> None:
    until(lambda: "ready_at" in capture.report, "not ready", within_s=40)
    until(lambda: len(capture.ops) >= 3, "no load", within_s=40)
    execute(capture.engine, "INSERT INTO orders VALUES (1, 'a')")
    until(lambda: capture.ops[-1] == "c", "not captured", within_s=30)
    time.sleep(2)  # Two heartbeats: each moves the offset.
    assert capture.end() == 0
    steps = (capture.project / "steps").read_text().split("\n")[:-1]
    assert set(steps) == {"segment written", "acknowledged", "offset flushed"}
    assert steps.index("segment written") < steps.index("acknowledged") < steps.index("offset flushed")
    for i, step in enumerate(steps):
        assert step != "offset flushed" or steps[i - 1] == "acknowledged"


def test_without_room_it_holds_and_the_slot_keeps_the_wal_then_it_goes_on(capture: Capture) -> None:
    """Longer than the server's patience with a silent reader (3 s here): then a restart is part of going on."""
    until(lambda: len(capture.ops) >= 3, "no load", within_s=40)
    (capture.project / "full").touch()
    for first in range(0, 60_000, 10_000):  # More than Debezium's queue holds.
        execute(
            capture.engine,
            f"INSERT INTO orders SELECT i, repeat('x', 99) FROM generate_series({first + 1}, {first + 10_000}) i",
        )
    until(lambda: bool(capture.report.get("problems")), "no problem was told", within_s=30)
    assert "capture writes nothing below 100 MB (`stack.disk_free_min_mb`)" in capture.report["problems"][0]
    written = len(capture.ops)
    until(
        lambda: (read_slot(capture.engine, "cdc_served_shop").unconfirmed_bytes or 0) > 5 << 20,
        "the slot moved on",
        within_s=20,
    )
    time.sleep(8)
    assert len(capture.ops) == written
    assert capture.process.poll() is None
    (capture.project / "full").unlink()

    def all_came() -> bool:
        capture.revive()
        return capture.log.end() >= written + 60_000

    until(all_came, "it did not go on", within_s=240)
    assert capture.ops.count("c") >= 60_000
    assert not capture.report.get("problems")
    assert capture.end() == 0


def test_it_ends_in_order_while_it_holds_and_loses_nothing(capture: Capture) -> None:
    until(lambda: len(capture.ops) >= 3, "no load", within_s=40)
    (capture.project / "full").touch()
    execute(capture.engine, "INSERT INTO orders VALUES (1, 'held')")
    until(lambda: bool(capture.report.get("problems")), "no problem was told", within_s=30)
    assert capture.end() == 0
    assert "c" not in capture.ops
    (capture.project / "full").unlink()
    capture.process = capture.start()
    until(lambda: capture.ops[-1] == "c", "what was held did not come again", within_s=40)


def test_a_captured_table_that_may_not_be_read_any_more_goes_on_and_a_new_one_is_left_out(
    capture: Capture, postgres: str
) -> None:
    """Streaming needs no SELECT; a load does. The user publishes what others own: it stays published."""
    capture.process.kill()  # It has just begun, as another role.
    capture.process.wait()
    execute(
        capture.engine,
        "DROP ROLE IF EXISTS capturer; CREATE ROLE capturer LOGIN REPLICATION PASSWORD 'x';"
        "CREATE TABLE items (id int PRIMARY KEY); ALTER TABLE items REPLICA IDENTITY FULL;"
        "INSERT INTO items VALUES (1); DROP PUBLICATION IF EXISTS cdc_served_shop;"
        "CREATE PUBLICATION cdc_served_shop FOR TABLE orders, items WITH "
        "(publish_via_partition_root = true, publish_generated_columns = stored); GRANT SELECT ON orders TO capturer",
    )
    items = ", items: {source: shop.public.items, key: [id], owners: ['team:t']}}"
    (capture.project / "tables.yaml").write_text(TABLES.rstrip().removesuffix("}") + items)
    server = postgres.split("@", maxsplit=1)[1]
    capture.url = f"postgresql://capturer:x@{server}/served"
    capture.process = capture.start()
    until(lambda: capture.ops[-1:] == [LOAD_END], "no load", within_s=40)
    assert list(capture.report["left_out"]) == ["items"]
    assert "the user may not read it; this table alone is not captured until then" in capture.report["problems"][0]

    execute(capture.engine, "REVOKE SELECT ON orders FROM capturer; GRANT SELECT ON items TO capturer")
    until(lambda: capture.process.poll() == 4, "it did not end for the cure", within_s=60)
    assert "nothing is lacking any more of items" in capture.report["error"]["what"]
    capture.process = capture.start()
    until(lambda: "ready_at" in capture.report, "not ready", within_s=40)
    assert capture.report["left_out"] == {}
    [problem] = capture.report["problems"]
    assert problem.endswith("the user may not read it. Run `GRANT SELECT ON public.orders TO <user>` as an admin.")
    execute(capture.engine, "INSERT INTO orders VALUES (1, 'a')")
    until(lambda: capture.ops[-1] == "c", "it did not go on", within_s=40)
    folder = capture.project / ".cdc-platform/changelog/items"
    until(lambda: newest_marker(folder) == LOAD_END, "the other was not loaded", within_s=40)
    execute(capture.engine, "GRANT SELECT ON orders TO capturer")
    until(lambda: capture.report["problems"] == [], "a cured problem is still told", within_s=30)
    assert capture.end() == 0
