"""Dagster's webserver and daemon: their home, their workspace, and whether they answer.

Belongs here: starting Dagster's two programs for the project. Does not: definitions, or anything that
imports dagster (`orchestration/`).
"""

import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from cdc_platform.deployment import Deployment
from cdc_platform.stack.service import Service

_HEALTH = "{instance {daemonHealth {allDaemonStatuses {required healthy lastHeartbeatTime}}}}"
_DEFAULT_SETTINGS = "telemetry:\n  enabled: false\n"
_ANSWERS_WITHIN_S = 2


def services(deployment: Deployment, port: int) -> tuple[Service, Service]:
    """Return the webserver and the daemon."""
    workspace = _workspace(deployment.project)
    webserver = ("-h", "127.0.0.1", "-p", str(port))
    address = f"http://127.0.0.1:{port}"
    return (
        Service(
            name="webserver",
            command=(sys.executable, "-m", "dagster_webserver", *webserver, *workspace),
            ready=lambda _pid: _answer(f"{address}/server_info") is not None,
            startsecs=5,
        ),
        Service(
            name="daemon",
            command=(sys.executable, "-m", "dagster._daemon", "run", *workspace),
            ready=lambda pid: _daemons_healthy(address, pid),
            startsecs=5,
        ),
    )


def prepare_home(deployment: Deployment) -> Path:
    """Copy the project's dagster.yaml to DAGSTER_HOME, so that a change takes effect at the next `up`."""
    home = deployment.state / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    settings = deployment.project / "dagster.yaml"
    if settings.exists():
        shutil.copyfile(settings, home / "dagster.yaml")
    else:
        (home / "dagster.yaml").write_text(_DEFAULT_SETTINGS)
    return home


def _workspace(project: Path) -> tuple[str, str]:
    file = project / "workspace.yaml"
    return ("-w", str(file)) if file.exists() else ("-m", "cdc_platform.definitions")


def _daemons_healthy(address: str, pid: int) -> bool:
    answer = _answer(f"{address}/graphql", json.dumps({"query": _HEALTH}).encode())
    if answer is None:
        return False
    try:
        started = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return False
    # A heartbeat outlives its daemon in Dagster's database: only one after this start counts.
    statuses = answer["data"]["instance"]["daemonHealth"]["allDaemonStatuses"]
    required = [status for status in statuses if status["required"]]
    return bool(required) and all(
        status["healthy"] and (status["lastHeartbeatTime"] or 0) >= started for status in required
    )


def _answer(address: str, body: bytes | None = None) -> dict[str, Any] | None:
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_ANSWERS_WITHIN_S) as response:  # noqa: S310  Ours.
            return json.load(response)
    except (OSError, ValueError):
        return None
