"""Alerts from real check events and runs, to a real file and a real HTTP server."""

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.definitions import build_defs
from cdc_platform.deployment import Deployment
from cdc_platform.orchestration.outbox import Delivery, Memory, Outbox
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
    said = [bench.tick() for _ in range(3)][-1]
    assert "the webhook's environment variable holds no http:// or https:// address" in said
    assert len(bench.outbox.memory().pending) == 1


# ---- Whatever answers, and whatever is remembered ---------------------------------------------------------


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A destination that does with each connection what it likes; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/secret-path"


def no_http(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


def broken_off(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 2")


def endless_line(connection: socket.socket) -> None:
    connection.recv(65536)
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000)
    except OSError:
        return


@pytest.mark.parametrize("answer", [no_http, broken_off, endless_line])
def test_a_destination_that_speaks_no_http_is_no_answer_and_ends_no_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], None]
) -> None:
    with answering(answer) as url:
        monkeypatch.setenv("ALERTS_URL", url)
        ends_no_tick(tmp_path)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:port/secret-path", "http://127.0.0.1:9/secret-path b", "http://[::1/secret-path", "http:///"],
)
def test_an_address_that_is_none_ends_no_tick_and_is_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("ALERTS_URL", url)
    ends_no_tick(tmp_path)


def ends_no_tick(folder: Path) -> None:
    bench = Bench(folder, webhook=True)
    bench.tick()
    bench.check(False)
    said = [bench.tick() for _ in range(3)][-1]
    assert "the webhook has taken no alert since" in said and "(3 posts, 1 alerts wait" in said
    assert "secret-path" not in said + (bench.deployment.state / "alerts.state.json").read_text()


def test_a_destination_that_drips_is_left_within_the_time_of_a_post_and_its_connection_is_ended(tmp_path: Path) -> None:
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        try:
            while True:  # Until the other end is closed: then a byte too many is an error.
                connection.sendall(b"X-A: b\r\n")
                if ended.wait(0.05):
                    return
                connection.settimeout(0.05)
                try:
                    if connection.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
        except OSError:
            pass
        ended.set()

    outbox, memory = Outbox(tmp_path), Memory(pending=[{"id": "a"}])
    with answering(drip) as url:
        outbox.deliver(memory, url, log=logging.getLogger(), now=datetime.now(UTC), post_within_s=0.5)
        assert memory.delivery.error.startswith("no whole answer within")
        assert memory.pending == [{"id": "a"}]
        assert ended.wait(20)


@pytest.mark.parametrize(
    "other",
    [
        {"event": "x"},
        {"event": 1 << 70},
        {"told": None},
        {"told": {"a": 1}},
        {"pending": [{"no": "id"}]},
        {"pending": ["alert"]},
        {"runs_after": 1e20},
        {"runs_after": -1},
        {"runs_seen": [7]},
        {"delivery": None},
        {"delivery": {"failures": "many"}},
        {"delivery": {"given_up_at": "yesterday"}},
        {"v": "1"},
    ],
)
def test_a_state_of_another_shape_is_none_and_ends_no_tick(bench: Bench, other: dict[str, Any]) -> None:
    bench.tick()
    bench.check(False)
    bench.tick()
    file = bench.deployment.state / "alerts.state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | other))
    bench.tick()
    assert bench.told == [(COUNT, "passed", "failed")] * 2  # Told again, as when it is lost.
    bench.check(True)
    bench.tick()
    assert bench.told[-1] == (COUNT, "failed", "passed")


@pytest.mark.parametrize("torn", [b"", b"\xff\xfe\x00", b"[" * 100_000, b"[]", b"7"])
def test_a_state_that_is_torn_is_none(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "alerts.state.json").write_bytes(torn)
    assert Outbox(tmp_path).memory() == Memory()


@given(st.dictionaries(st.text(), st.text()), st.lists(st.text()), st.text(), st.integers(-1, (1 << 63) - 1))
def test_what_is_written_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, told: dict[str, str], seen: list[str], text: str, event: int
) -> None:
    outbox = Outbox(tmp_path_factory.mktemp("state"))
    memory = Memory(event, 1.5, seen, told, [{"id": text, "message": text}], Delivery(1, 2, 3, "", text, text))
    outbox.write(memory)
    assert outbox.memory() == memory


def test_half_a_letter_in_a_message_does_not_make_the_state_unreadable(tmp_path: Path) -> None:
    """It would be lost in each tick, and each tick would tell all that fails."""
    outbox = Outbox(tmp_path)
    outbox.write(Memory(7, told={"a\ud800": "failed"}, pending=[{"id": "a", "message": "\udfff"}]))
    assert (outbox.memory().event, outbox.memory().told) == (7, {"a?": "failed"})


def test_an_id_that_no_header_can_hold_is_delivered(tmp_path: Path, webhook: Webhook) -> None:
    """The oldest alert is posted first: one that can't be would hold up all behind it."""
    outbox = Outbox(tmp_path)
    pending = [{"id": f"check:landing/{name}", "subject": name, "state": "failed"} for name in ("żółw\n", "orders")]
    memory = Memory(pending=pending)
    outbox.deliver(memory, webhook.url, log=logging.getLogger(), now=datetime.now(UTC))
    assert (memory.pending, memory.delivery.error) == ([], "")
    assert [post["subject"] for post in webhook.posts] == ["żółw\n", "orders"]


def test_a_storage_of_events_that_was_made_anew_is_told_as_it_stands(bench: Bench) -> None:
    bench.tick()
    for n in range(6):
        bench.check(n % 2 == 0)
    bench.tick()
    before = len(bench.told)
    bench.instance = dg.DagsterInstance.ephemeral()
    bench.tick()
    bench.check(False, name="key_sums_match")  # Its id is lower than those that were looked at.
    bench.tick()
    assert bench.told[before:] == [("landing/orders:key_sums_match", "passed", "failed")]
    bench.check(True)
    bench.tick()
    assert bench.told[-1] == (COUNT, "failed", "passed")


def test_runs_are_told_again_though_a_clock_was_ahead(bench: Bench) -> None:
    bench.tick()
    memory = bench.outbox.memory()
    memory.runs_after = (datetime.now(UTC) + timedelta(days=400)).timestamp()
    bench.outbox.write(memory)
    bench.run(dg.DagsterRunStatus.FAILURE)
    bench.tick()
    assert bench.told == [("merge_curated orders", "passed", "failed")]
