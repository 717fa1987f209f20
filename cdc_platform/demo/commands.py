"""`cdc-platform demo`: the stack, the bookshop, the story.

Belongs here: starting services in the order that the story needs, and how it ends. Does not: the story's scenes.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from cdc_platform.demo import bookshop
from cdc_platform.demo.dagster_api import DagsterApi
from cdc_platform.demo.story import Story
from cdc_platform.deployment import Deployment
from cdc_platform.errors import ConfigError
from cdc_platform.operations import Operations
from cdc_platform.stack.control import DEMO_MARK, Stack

_SOURCE = "bookshop"
_PIPED_COLUMNS = 110
_UNTRUE = 5


@click.command()
@click.option("--once", is_flag=True, help="Stop everything after the story.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the measured figures as JSON on stdout, the story on stderr.",
)
@click.pass_obj
def demo(project: Path | None, once: bool, as_json: bool) -> None:
    """Capture a seeded PostgreSQL into Iceberg and tell, with measured figures, what the platform makes of it.

    \b
    JSON: total_s, initial_load_s, initial_load_rows, initial_load_rows_per_s, burst_s, churn_s, replay_s,
          files_opened_before, files_opened_after, delta_rows, row_ids_moved, memory_mb {service: MB}

    Exit codes: 0 everything told is so, 5 something is not, 2 the stack runs already or is not the demo's.
    Without --once the stack stays up: `cdc-platform down` stops it. The next demo replaces this one's state, unless
    `cdc-platform up` has been run on it since.
    """
    began = time.monotonic()
    deployment = Deployment.load(project)
    _prepare(deployment)
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = _PIPED_COLUMNS
    stack = Stack(deployment)
    stack.launch(bound=once, warn=lambda line: click.echo(line, err=True))  # Refused: nothing of ours to stop.
    try:
        (deployment.state / DEMO_MARK).touch()
        story, true = _play(deployment.project, stack, console)
        story.figures["total_s"] = time.monotonic() - began
        story.figures["memory_mb"] = {s.service: s.memory_mb for s in stack.status()}
    except BaseException:
        stack.stop()
        raise
    if as_json:
        click.echo(json.dumps(story.figures))
    console.print(
        f"\nTold in {story.figures['total_s']:.0f} s.",
        "Every claim held." if true else "NOT TRUE: " + ", ".join(story.untrue),
    )
    if once:
        stack.stop()
    else:
        webserver = Deployment.load(project).endpoint("webserver")
        console.print(
            f"Dagster UI: {webserver}   (sensors are on; `{os.path.relpath(sys.argv[0])} down` stops everything)"
        )
    if not true:
        sys.exit(_UNTRUE)


def _play(project: Path, stack: Stack, console: Console) -> tuple[Story, bool]:
    def ready(name: str, seconds: float) -> None:
        console.print(f"[dim]{name} ready after {seconds:.1f} s[/dim]", highlight=False)

    with console.status("Starting PostgreSQL, Spark and Dagster ..."):
        stack.start("postgres", "spark", "webserver", "daemon", tell=ready)
    deployment = Deployment.load(project)  # With the addresses that the start has chosen.
    operations, dagster = Operations(deployment), DagsterApi(deployment.endpoint("webserver"))
    dagster.turn_sensors(on=False)  # The story starts each run itself, to measure it.
    with console.status("Seeding the bookshop ..."):
        bookshop.seed(operations.engine("orders"))
    with operations.spark() as spark:
        spark.rows("SELECT 1")  # The first statement of a server's life costs seconds that are not the data's.
    since = time.monotonic()
    with console.status("Starting capture and sink ..."):
        stack.start("sink", f"capture-{_SOURCE}", tell=ready)
    story = Story(operations, dagster, console)
    true = story.tell(loading_since=since)
    dagster.turn_sensors(on=True)
    return story, true


def _prepare(deployment: Deployment) -> None:
    """Make sure that this is the bookshop's deployment and that its state may begin anew."""
    source = deployment.registry.sources.get(_SOURCE)
    if (
        source is None
        or source.postgres.embedded is None
        or {"orders", "order_items"} - set(deployment.registry.tables)
    ):
        raise ConfigError(
            "the demo tells of the embedded source `bookshop` and its tables `orders` and `order_items`",
            where=str(deployment.project / "tables.yaml"),
            action="Run it in a clone whose tables.yaml has them",
        )
    if not deployment.state.exists() or Stack(deployment).is_running:
        return  # Nothing to replace, or `launch` says that it runs already.
    if any(deployment.state.iterdir()) and not (deployment.state / DEMO_MARK).exists():
        raise ConfigError(
            "there is state that is more than a demo's",
            where=str(deployment.state),
            action="Move it away, or declare another folder under `stack.state`",
        )
    click.echo(f"Replacing what the last demo left in {deployment.state}.", err=True)
    shutil.rmtree(deployment.state)
