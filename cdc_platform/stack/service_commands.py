"""`cdc-platform service ...`: what the supervisor runs; nobody types these.

Belongs here: the way from a process to a service's `run`. Does not: the services.
"""

import sys
from pathlib import Path

import click

from cdc_platform.deployment import Deployment
from cdc_platform.stack.report import Report, run_reported
from cdc_platform.stack.services import CAPTURE


@click.group(hidden=True)
def service() -> None:
    """Run one service in this process."""


@service.command()
@click.argument("source")
@click.pass_obj
def capture(project: Path | None, source: str) -> None:
    """Capture the changes of SOURCE into the change log."""
    deployment = Deployment.load(project)

    def run(report: Report) -> None:
        from cdc_platform.capture.service import run as run_capture

        run_capture(deployment, source, report)

    sys.exit(run_reported(Report(deployment.state / "run", f"{CAPTURE}{source}"), run))


@service.command()
@click.pass_obj
def sink(project: Path | None) -> None:
    """Commit the change log to the landing tables."""
    deployment = Deployment.load(project)

    def run(report: Report) -> None:
        from cdc_platform.landing.service import run as run_sink

        run_sink(deployment, report)

    sys.exit(run_reported(Report(deployment.state / "run", "sink"), run))
