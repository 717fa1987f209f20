"""The services of a deployment, with their addresses.

Belongs here: which services there are, in which order they start, and endpoints.json. Does not: how each
program is started (a module for each), or supervision (`supervisor.py`).
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from cdc_platform.deployment import Deployment
from cdc_platform.stack import dagster_services, postgres, spark
from cdc_platform.stack.ports import choose_ports
from cdc_platform.stack.report import is_ready
from cdc_platform.stack.service import Service

PORTS = ("postgres", "spark", "webserver")
CAPTURE = "capture-"  # Before the source's name.


def services(deployment: Deployment, ports: Mapping[str, int]) -> tuple[Service, ...]:
    """Return the services of `deployment` in the order in which they start."""
    found: list[Service] = []
    if databases := embedded_databases(deployment):
        found.append(postgres.service(deployment.state / "postgres", ports["postgres"], databases))
    if not os.environ.get("SPARK_REMOTE"):  # Else it is a cluster of yours.
        found.append(spark.service(deployment, ports["spark"]))
    before = tuple(service.name for service in found)
    for source in deployment.registry.sources:
        found.append(_reporting(deployment, f"{CAPTURE}{source}", ("capture", source), before))
    found.append(_reporting(deployment, "sink", ("sink",), before))
    webserver, daemon = dagster_services.services(deployment, ports["webserver"])
    return (*found, webserver, daemon)


def embedded_databases(deployment: Deployment) -> tuple[str, ...]:
    """Databases that the sources want in our own PostgreSQL."""
    declared = (source.postgres.embedded for source in deployment.registry.sources.values())
    return tuple(sorted({database for database in declared if database is not None}))


def choose_endpoint_ports(deployment: Deployment) -> dict[str, int]:
    """Choose each service's port: as configured, else as last time, else a free one."""
    configured = deployment.registry.stack.ports
    return choose_ports(
        PORTS,
        configured.model_dump(),
        previous_ports(deployment),
        where=str(deployment.project / "tables.yaml"),
    )


def write_endpoints(deployment: Deployment, ports: Mapping[str, int]) -> None:
    """Write the addresses for `Deployment.endpoint`, for the owner only: they hold a password."""
    endpoints: dict[str, Any] = {
        "spark": f"sc://127.0.0.1:{ports['spark']}",
        "webserver": f"http://127.0.0.1:{ports['webserver']}",
    }
    if embedded_databases(deployment):
        endpoints["postgres"] = postgres.url(deployment.state / "postgres", ports["postgres"])
    file = deployment.endpoints_file
    fresh = file.with_suffix(".json.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(0o600)
    fresh.write_text(json.dumps(endpoints))
    fresh.replace(file)


def previous_ports(deployment: Deployment) -> dict[str, int]:
    """Return the ports in endpoints.json, empty before the first `up`."""
    try:
        endpoints: dict[str, str] = json.loads(deployment.endpoints_file.read_text())
    except FileNotFoundError:
        return {}
    return {name: int(address.rpartition(":")[2]) for name, address in endpoints.items()}


def _reporting(deployment: Deployment, name: str, arguments: tuple[str, ...], before: tuple[str, ...]) -> Service:
    """A service of ours, which says itself when it is ready (`report.py`)."""
    run_dir = deployment.state / "run"
    return Service(
        name=name,
        command=(sys.executable, "-m", "cdc_platform.cli", "service", *arguments),
        ready=lambda pid: is_ready(run_dir, name, pid),
        starts_after=before,
        startsecs=10,
    )
