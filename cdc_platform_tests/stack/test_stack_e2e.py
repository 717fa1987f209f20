"""A real supervisord with a real PostgreSQL, and the ways in which both can die."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import psycopg
import pytest

from cdc_platform.deployment import Deployment
from cdc_platform.errors import ConfigError
from cdc_platform.stack import postgres, processes
from cdc_platform.stack.control import Stack
from cdc_platform.stack.service import Service
from cdc_platform.stack.services import embedded_databases
from cdc_platform.stack.supervisor import Supervisor

pytestmark = pytest.mark.e2e

TABLES = """
deployment: shop
sources: {shop: {postgres: {embedded: shop}}, stock: {postgres: {embedded: stock}}}
tables: {orders: {source: shop.public.orders, key: [id], owners: ["team:orders"]}}
"""
WITHIN_S = 30


def only_postgres(deployment: Deployment, ports: Mapping[str, int]) -> tuple[Service, ...]:
    home = deployment.state / "postgres"
    return (postgres.service(home, ports["postgres"], embedded_databases(deployment)),)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    (tmp_path / "tables.yaml").write_text(TABLES)
    return Deployment.load(tmp_path)


@pytest.fixture
def stack(deployment: Deployment) -> Iterator[Stack]:
    found = Stack(deployment, only_postgres)
    yield found
    found.stop()


def _start(stack: Stack) -> list[str]:
    warnings: list[str] = []
    stack.launch(bound=False, warn=warnings.append)
    stack.start(tell=lambda _name, _seconds: None)
    return warnings


def _until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def _url(deployment: Deployment, database: str) -> str:
    return f"{Deployment.load(deployment.project).endpoint('postgres')}/{database}".replace("+psycopg", "")


def test_postgres_is_ready_for_logical_decoding_with_the_declared_databases(
    deployment: Deployment, stack: Stack
) -> None:
    assert _start(stack) == []
    for database in ("shop", "stock"):
        with psycopg.connect(_url(deployment, database)) as connection:
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
    (status,) = stack.status()
    assert (status.service, status.state, status.restarts, status.detail) == ("postgres", "ready", 0, "")
    assert status.pid is not None
    assert psutil.Process(status.pid).uids().real != 0
    assert (deployment.endpoints_file.stat().st_mode & 0o777) == 0o600


def test_a_killed_postgres_comes_back_at_its_address(deployment: Deployment, stack: Stack) -> None:
    _start(stack)
    url = _url(deployment, "shop")
    (before,) = stack.status()
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    _until(lambda: stack.status()[0].state == "ready" and stack.status()[0].pid != before.pid)
    assert stack.status()[0].restarts >= 1
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_starting_twice_says_that_it_runs_and_where(deployment: Deployment, stack: Stack) -> None:
    _start(stack)
    with pytest.raises(ConfigError) as raised:
        _start(stack)
    pid = Supervisor(deployment.state).pid()
    address = Deployment.load(deployment.project).endpoint("webserver")
    assert raised.value.what == f"the stack already runs (pid {pid}), with its UI at {address}"
    assert raised.value.action == "Use it, or stop it first with `cdc-platform down`"


def test_down_leaves_no_process_and_a_second_start_finds_the_data(deployment: Deployment, stack: Stack) -> None:
    _start(stack)
    url = _url(deployment, "shop")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    left = processes.marked(deployment.state)
    assert left
    assert stack.stop() is True
    assert not any(process.is_running() and process.status() != "zombie" for process in left)
    assert [one.state for one in stack.status()] == ["stopped"]
    assert stack.stop() is False
    _start(stack)
    assert _url(deployment, "shop") == url  # The port too.
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_killed_supervisord_leaves_no_process_and_the_next_start_explains(
    deployment: Deployment, stack: Stack
) -> None:
    _start(stack)
    pid = Supervisor(deployment.state).pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _until(lambda: not processes.marked(deployment.state))
    assert [one.state for one in stack.status()] == ["stopped"]
    (warning,) = _start(stack)
    assert f"pid {pid} no longer runs. Cleaned up." in warning
    assert [one.state for one in stack.status()] == ["ready"]


def test_a_stack_bound_to_its_caller_ends_with_it_even_by_a_kill(deployment: Deployment, stack: Stack) -> None:
    program = (
        "import sys, time\n"
        "from cdc_platform.deployment import Deployment\n"
        "from cdc_platform.stack.control import Stack\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_stack_e2e import only_postgres\n"
        "stack = Stack(Deployment.load(sys.argv[1]), only_postgres)\n"
        "stack.launch(bound=True, warn=print)\n"
        "stack.start(tell=lambda *_: None)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", program, str(deployment.project)], stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    assert caller.stdout.readline() == "ready\n"
    assert [one.state for one in stack.status()] == ["ready"]
    caller.kill()
    caller.wait()
    _until(lambda: not processes.marked(deployment.state))
    assert stack.stop() is False


def test_a_state_path_too_long_for_a_socket_works(tmp_path: Path) -> None:
    project = tmp_path / ("long" * 20) / ("path" * 20)
    project.mkdir(parents=True)
    (project / "tables.yaml").write_text(TABLES)
    stack = Stack(Deployment.load(project), only_postgres)
    try:
        _start(stack)
        assert [one.state for one in stack.status()] == ["ready"]
    finally:
        stack.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders that its services may not pass")
def test_a_project_in_a_folder_closed_to_others_works_for_root(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "tables.yaml").write_text(TABLES)
    stack = Stack(Deployment.load(closed), only_postgres)
    try:
        _start(stack)
        assert [one.state for one in stack.status()] == ["ready"]
    finally:
        stack.stop()
