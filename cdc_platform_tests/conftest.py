"""Real services for the tests that need them, started once for a session.

`postgres`: a PostgreSQL server of our own. `running_stack`: the whole stack, after `cdc-platform demo`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from cdc_platform.deployment import Deployment
from cdc_platform.operations import Operations
from cdc_platform.stack import postgres as postgres_service
from cdc_platform.stack import processes
from cdc_platform.stack.control import Stack
from cdc_platform.stack.service import Service
from cdc_platform.stack.services import embedded_databases

settings.register_profile("untimed", deadline=None)  # The machine is shared: no test is about time.
settings.load_profile("untimed")

REPOSITORY = Path(__file__).parents[1]
DEMO_WITHIN_S = 540


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs no service first; then the demo and its UI, before other tests change what it left."""

    def rank(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return 1 if path.endswith("e2e/test_demo.py") else 2 if "/ui/" in path else 3 if "/e2e/" in path else 0

    items.sort(key=rank)


def cli(project: Path, *arguments: str, within_s: int = 120) -> subprocess.CompletedProcess[str]:
    """Run a command as an operator does."""
    return subprocess.run(
        [sys.executable, "-m", "cdc_platform.cli", "--project", str(project), *arguments],
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
        env={**os.environ, "COLUMNS": "110"},
    )


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SQLAlchemy URL of a PostgreSQL server, without a database; `/postgres` is there."""
    project = tmp_path_factory.mktemp("postgres")
    (project / "tables.yaml").write_text(
        "deployment: t\nsources: {t: {postgres: {embedded: t}}}\n"
        "tables: {t: {source: t.public.t, key: [id], owners: ['team:t']}}\n"
    )

    def only_postgres(deployment: Deployment, ports: Mapping[str, int]) -> tuple[Service, ...]:
        home = deployment.state / "postgres"
        return (postgres_service.service(home, ports["postgres"], embedded_databases(deployment)),)

    stack = Stack(Deployment.load(project), only_postgres)
    stack.launch(bound=False, warn=print)
    try:
        stack.start(tell=lambda _name, _seconds: None)
        yield Deployment.load(project).endpoint("postgres")
    finally:
        stack.stop()


@dataclass(frozen=True)
class RunningStack:
    """A stack whose demo has run; `story` is what it printed, `figures` what it measured."""

    deployment: Deployment
    operations: Operations
    webserver: str
    story: str
    figures: dict[str, Any]


@pytest.fixture(scope="session")
def running_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """The bookshop's stack, left up by `cdc-platform demo`; `down` has to leave no process."""
    project = tmp_path_factory.mktemp("bookshop")
    for name in ("tables.yaml", "dagster.yaml", "workspace.yaml"):
        shutil.copy(REPOSITORY / name, project)
    state = Deployment.load(project).state
    try:
        told = cli(project, "demo", "--json", within_s=DEMO_WITHIN_S)
        assert told.returncode == 0, told.stderr
        deployment = Deployment.load(project)
        yield RunningStack(
            deployment,
            Operations(deployment),
            deployment.endpoint("webserver"),
            told.stderr,
            json.loads(told.stdout),
        )
    finally:
        cli(project, "down")
    assert processes.marked(state) == []
