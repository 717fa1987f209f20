"""Alerts from real check events and runs, to a real file and a real HTTP server."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from cdc_platform.definitions import build_defs
from cdc_platform.deployment import Deployment
from cdc_platform.orchestration.outbox import Outbox
from cdc_platform_tests.orchestration.fakes import deployment

LANDING = dg.AssetKey(["landing", "orders"])
ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


@dataclass
class Webhook:
    """A destination; `answers` are used up first, then each post is taken."""

    answers: list[int] = field(default_factory=list)
    posts: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    @property
    def taken(self) -> list[tuple[str, str]]:
        return [(post["subject"], post["state"]) for post in self.posts]


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = hook.answers.pop(0) if hook.answers else 200
            if code == 200:
                hook.posts.append(json.loads(body))
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hook.url = f"http://127.0.0.1:{server.server_address[1]}/secret-path"
        monkeypatch.setenv("ALERTS_URL", hook.url)
        yield hook
        server.shutdown()


class Bench:
    """One deployment's sensor on an instance of its own."""

    def __init__(self, folder: Path, *, webhook: bool = False) -> None:
        declared = deployment("orders", "items").registry.model_dump(mode="json")
        if webhook:
            declared["automation"]["alerts"] = {"webhook": {"env": "ALERTS_URL"}}
        registry = deployment("orders").registry.model_validate(_as_text(declared))
        self.deployment = Deployment(folder, registry)
        self.instance = dg.DagsterInstance.ephemeral()
        self.repository = build_defs(self.deployment).get_repository_def()
        self.sensor = self.repository.get_sensor_def("alerts_sensor")
        self.outbox = Outbox(self.deployment.state)

    def tick(self) -> str:
        with dg.build_sensor_context(instance=self.instance, repository_def=self.repository) as context:
            result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        return str(result.skip_reason)

    def check(
        self, passed: bool, severity: dg.AssetCheckSeverity = ERROR, name: str = "row_count_matches", **metadata: Any
    ) -> None:
        self.instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=LANDING, check_name=name, passed=passed, severity=severity, metadata=metadata
            )
        )

    def run(self, status: dg.DagsterRunStatus, *, attempt: int = 1) -> str:
        tags = {"cdc/table": "orders", "cdc/operation": "merge_curated", "cdc/attempt": str(attempt)}
        return self.instance.add_run(dg.DagsterRun("merge_curated", str(uuid4()), tags=tags, status=status)).run_id

    @property
    def lines(self) -> list[dict[str, Any]]:
        file = self.deployment.state / "alerts.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def told(self) -> list[tuple[str, str, str]]:
        return [(line["subject"], line["was"], line["state"]) for line in self.lines]


def _as_text(value: Any) -> Any:
    """Durations as tables.yaml writes them: `model_dump` makes ISO texts of them."""
    if isinstance(value, dict):
        return {k: _as_text(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_as_text(v) for v in value]
    if isinstance(value, str) and value.startswith("P"):
        import pydantic

        seconds = pydantic.TypeAdapter(__import__("datetime").timedelta).validate_python(value).total_seconds()
        return f"{seconds}s"
    return value


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


COUNT = "landing/orders:row_count_matches"


def test_a_change_is_told_once_and_an_evaluation_that_says_the_same_never(bench: Bench) -> None:
    bench.tick()
    for passed in (True, False, False, False, True, True):
        bench.check(passed, reason="3 figures differ")
        bench.tick()
        bench.tick()
    assert bench.told == [(COUNT, "passed", "failed"), (COUNT, "failed", "passed")]
    failed = bench.lines[0]
    assert failed["owners"] == ["team:orders"]
    assert failed["message"] == "landing/orders: row_count_matches failed. 3 figures differ"
    assert (failed["deployment"], failed["asset"], failed["kind"]) == ("shop", "landing/orders", "check")


def test_unknown_and_a_warning_are_told_as_what_they_are(bench: Bench) -> None:
    bench.tick()
    bench.check(False, WARN, outcome="unknown", reason="no answer")
    bench.check(False, WARN)
    bench.check(False, ERROR)
    bench.tick()
    assert [state for _, _, state in bench.told] == ["unknown", "warning", "failed"]
    assert bench.lines[0]["message"] == "landing/orders: row_count_matches could not be told. no answer"


def test_a_backlog_is_told_in_order_and_without_gaps(bench: Bench) -> None:
    bench.tick()
    for n in range(700):  # More than one tick takes.
        bench.check(n % 2 == 1)
    for _ in range(4):
        bench.tick()
    assert len(bench.lines) == 700
    assert [state for _, _, state in bench.told] == ["failed", "passed"] * 350
    assert len({line["id"] for line in bench.lines}) == 700


def test_what_failed_before_anybody_listened_is_told_once(bench: Bench) -> None:
    bench.check(True)
    bench.check(False)
    bench.check(True, name="key_sums_match")
    bench.tick()
    bench.tick()
    assert bench.told == [(COUNT, "passed", "failed")]


def test_lost_memory_costs_one_alert_for_each_check_that_fails_now(bench: Bench) -> None:
    bench.tick()
    for _ in range(5):
        bench.check(False)
        bench.check(True)
    bench.check(False)
    bench.check(True, name="key_sums_match")
    bench.tick()
    before = len(bench.told)
    (bench.deployment.state / "alerts.state.json").write_text("torn")
    bench.tick()
    bench.tick()
    assert bench.told[before:] == [(COUNT, "passed", "failed")]
    bench.check(True)
    bench.tick()
    assert bench.told[-1] == (COUNT, "failed", "passed")


def test_a_failing_operation_is_told_once_for_all_its_attempts_and_when_it_succeeds_again(bench: Bench) -> None:
    bench.tick()
    first = bench.run(dg.DagsterRunStatus.FAILURE)
    bench.tick()
    for attempt in (2, 3):
        bench.run(dg.DagsterRunStatus.FAILURE, attempt=attempt)
        bench.tick()
    bench.run(dg.DagsterRunStatus.CANCELED)
    bench.run(dg.DagsterRunStatus.SUCCESS)
    bench.run(dg.DagsterRunStatus.SUCCESS)
    bench.tick()
    assert bench.told == [("merge_curated orders", "passed", "failed"), ("merge_curated orders", "failed", "passed")]
    assert (bench.lines[0]["run_id"], bench.lines[0]["owners"]) == (first, ["team:orders"])


def test_a_failed_check_in_a_run_that_is_green_is_told(bench: Bench) -> None:
    @dg.asset_check(asset=LANDING, name="row_count_matches")
    def failing() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, metadata={"reason": "2 figures differ"})

    bench.tick()
    job = dg.define_asset_job("only_checks", dg.AssetSelection.all_asset_checks())
    defs = dg.Definitions(assets=[dg.AssetSpec(LANDING)], asset_checks=[failing], jobs=[job])
    done = defs.resolve_job_def("only_checks").execute_in_process(instance=bench.instance)
    assert done.success
    bench.tick()
    assert bench.told == [(COUNT, "passed", "failed")]
    assert bench.lines[0]["run_id"] == done.run_id


def test_a_dead_webhook_loses_nothing_and_gets_each_alert_once_when_it_is_back(
    tmp_path: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, webhook=True)
    bench.tick()
    monkeypatch.setenv("ALERTS_URL", "http://127.0.0.1:1/secret-path")
    for passed in (False, True, False):
        bench.check(passed)
        said = bench.tick()
    assert "the webhook has taken no alert since" in said and "3 alerts wait" in said
    assert len(bench.lines) == 3 and webhook.posts == []
    webhook.answers = [503, 302]
    monkeypatch.setenv("ALERTS_URL", webhook.url)
    for _ in range(4):
        said = bench.tick()
    assert webhook.taken == [(COUNT, "failed"), (COUNT, "passed"), (COUNT, "failed")]
    assert said.count("no alert") == 0 and "0 wait" in said
    assert webhook.posts == [{"v": 1, **line} for line in bench.lines]
    kept = (bench.deployment.state / "alerts.state.json").read_text() + said
    assert "secret-path" not in kept


def test_an_alert_that_is_refused_is_given_up_and_those_behind_it_arrive(tmp_path: Path, webhook: Webhook) -> None:
    bench = Bench(tmp_path, webhook=True)
    bench.tick()
    webhook.answers = [400] * 5
    bench.check(False)
    bench.check(True)
    for _ in range(6):
        bench.tick()
    assert webhook.taken == [(COUNT, "passed")]
    memory = bench.outbox.memory()
    assert (memory.delivery.given_up, memory.pending) == (1, [])
    assert len(bench.lines) == 2, "the file has it"


def test_a_webhook_without_an_address_is_said_and_its_alerts_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALERTS_URL", raising=False)
    bench = Bench(tmp_path, webhook=True)
    bench.tick()
    bench.check(False)
    for _ in range(3):
        said = bench.tick()
    assert "the webhook's environment variable holds no http:// or https:// address" in said
    assert len(bench.outbox.memory().pending) == 1
