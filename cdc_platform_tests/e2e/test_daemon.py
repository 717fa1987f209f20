"""Dagster's real daemon over a project without services: what fails reaches an operator, though its run is green."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.changelog.segments import SegmentLog, SegmentWriter
from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.sink import TableSink
from cdc_platform.orchestration.watchdog import AUTOMATION
from cdc_platform_tests.builders import SOURCE_COLUMNS, event

pytestmark = [pytest.mark.e2e]
REPOSITORY = Path(__file__).parents[2]
WITHIN_S = 150
TABLES = """\
deployment: shop
automation: {alerts: {webhook: {env: ALERTS_URL}}}
sources: {shop: {postgres: {url: {env: NOT_USED}}}}
tables: {orders: {source: shop.public.orders, key: [id], owners: ["team:orders"]}}
"""
DEFINITIONS = """\
import dagster as dg
from cdc_platform.definitions import build_defs

KEYS = [
    dg.AssetCheckKey(dg.AssetKey(["landing", "orders"]), "dead_letters_are_closed"),
    dg.AssetCheckKey(dg.AssetKey(["platform", "automation"]), "sensors_are_running"),
]
job = dg.define_asset_job("two_checks", dg.AssetSelection.checks(*KEYS))

@dg.sensor(job=job, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
def once():
    return dg.RunRequest(run_key="once")

defs = dg.Definitions.merge(build_defs(), dg.Definitions(jobs=[job], sensors=[once]))
"""


@dataclass
class Shop:
    deployment: Deployment
    posts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def lines(self) -> list[dict[str, Any]]:
        file = self.deployment.state / "alerts.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A table with one dead letter, no Spark, no source; the daemon runs until the test has seen enough."""
    project = tmp_path_factory.mktemp("shop")
    (project / "tables.yaml").write_text(TABLES)
    (project / "shop_defs.py").write_text(DEFINITIONS)
    deployment = Deployment.load(project)
    _land_with_a_dead_letter(deployment)
    made = Shop(deployment)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    home = deployment.state / "dagster"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text((REPOSITORY / "dagster.yaml").read_text())
    with HTTPServer(("127.0.0.1", 0), Handler) as server, (project / "daemon.log").open("w") as log:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = os.environ | {
            "DAGSTER_HOME": str(home),
            "CDC_PLATFORM_PROJECT": str(project),
            "ALERTS_URL": f"http://127.0.0.1:{server.server_address[1]}/",
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{project}",
        }
        daemon = subprocess.Popen(
            [sys.executable, "-m", "dagster._daemon", "run", "-m", "shop_defs"],
            cwd=project,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield made
        finally:
            daemon.terminate()
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
            server.shutdown()


def _land_with_a_dead_letter(deployment: Deployment) -> None:
    (deployment.state / "lake").mkdir(parents=True)
    folder = deployment.changelog_dir("orders")
    writer = SegmentWriter(folder)
    writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in SOURCE_COLUMNS]))
    writer.append([json.dumps(event("r", 1, lsn=1)).encode()])
    writer.append_marker(marker(LOAD_END, 2))
    writer.append([json.dumps(event("u", 1, lsn=2) | {"op": "x"}).encode()])
    writer.sync()
    lake = Lake(CATALOG, deployment.catalog_properties)
    TableSink(lake, "landing.orders", key=("id",), log=SegmentLog(folder), window_s=0.0).catch_up()
    writer.close()


def _until(seen: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + WITHIN_S
    while not seen():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.5)
    return True


def test_a_failed_check_in_a_green_run_and_a_failing_sensor_reach_the_file_and_the_webhook(shop: Shop) -> None:
    letters = ("landing/orders:dead_letters_are_closed", "warning")
    watchdog = "platform/automation:sensors_are_running"
    failing = "merge_curated_sensor failing"  # There is no Spark.

    def told(alerts: list[dict[str, Any]]) -> bool:
        return letters in {(a["subject"], a["state"]) for a in alerts} and any(
            a["subject"] == watchdog and a["state"] == "failed" and "merge_curated_sensor" in a["message"]
            for a in alerts
        )

    assert _until(lambda: told(shop.posts)), (shop.deployment.project / "daemon.log").read_text()[-4_000:]
    assert told(shop.lines)
    alert = next(a for a in shop.posts if a["subject"] == letters[0])
    assert alert["owners"] == ["team:orders"]
    with dg.DagsterInstance.from_config(str(shop.deployment.state / "dagster")) as instance:
        run = instance.get_run_by_id(alert["run_id"])
        assert run is not None and run.status is dg.DagsterRunStatus.SUCCESS, "green, and yet told"
        records = instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(AUTOMATION, "sensors_are_running"), limit=20
        )
        in_run = [r.evaluation for r in records if r.run_id == alert["run_id"]]
        assert in_run and in_run[0] is not None
        assert "code location" not in str(in_run[0].metadata["reason"].value), "the run knows where it belongs"
        runless = [r.evaluation for r in records if not r.run_id]
        assert any(e and failing in str(e.metadata["affected"].value) for e in runless)
    assert len({a["id"] for a in shop.posts}) == len(shop.posts), "each once"
