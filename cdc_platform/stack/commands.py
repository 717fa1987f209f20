"""`cdc-platform up`, `down`, `restart`, `status` and `logs`: the stack for someone at a terminal.

Belongs here: words, tables, JSON, waiting for Ctrl-C. Does not: what starts when (`control.py`).
"""

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from cdc_platform.deployment import Deployment
from cdc_platform.errors import CdcError, ConfigError, UnavailableError
from cdc_platform.registry.model import DEFAULT_STATE
from cdc_platform.stack.control import DEMO_MARK, ServiceStatus, Stack
from cdc_platform.stack.supervisor import Supervisor

_FOLLOWED_EVERY_S = 0.3
_INTERRUPTED = 130  # The shell's code for Ctrl-C.
_COLOURS = {
    "ready": "green",
    "impaired": "red",
    "starting": "yellow",
    "backing off": "red",
    "failed": "red",
    "stopped": "dim",
}


@click.command()
@click.option("--detach", is_flag=True, help="Return when all services are ready, and leave them running.")
@click.pass_obj
def up(project: Path | None, detach: bool) -> None:
    """Start the embedded services and wait until each is ready.

    Stays in the foreground, where Ctrl-C stops everything. A service that is not ready within 180 seconds
    does not stop the others: its error is shown and it is tried again and again, so that it goes on once
    its cause is gone. With --detach the command then ends with that error's exit code, and the stack stays
    up to be looked at. What a ready service leaves out is shown, and changes no exit code.

    Exit codes: 0 all ready (or stopped by Ctrl-C), 2 already running or wrong configuration, 4 not ready.
    """
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.default_int_handler)  # As Ctrl-C.
    stack = Stack(Deployment.load(project))
    supervisord = stack.launch(bound=not detach, warn=_warn)
    (Deployment.load(project).state / DEMO_MARK).unlink(missing_ok=True)  # From here on it is the operator's.
    try:
        problem = _start(stack)
        if problem is not None and supervisord.poll() is not None:  # Nothing is left to wait for.
            stack.stop()
            sys.exit(problem.exit_code)
        click.echo(f"Dagster UI: {Deployment.load(project).endpoint('webserver')}")
        if problem is not None:
            _warn(f"The rest runs on. Look with `cdc-platform status`, and in {stack.logs_dir}.")
        if detach:
            sys.exit(problem.exit_code if problem is not None else 0)
        click.echo("Ctrl-C stops everything.")
        ended = supervisord.wait()  # Until Ctrl-C, `down` elsewhere, or its death.
        stack.stop()
    except KeyboardInterrupt:
        _warn("Stopping ...")
        stack.stop()
        ended = _INTERRUPTED if detach else 0  # A script must not go on as if all were ready.
    click.echo("Stopped.")
    sys.exit(ended if ended >= 0 else UnavailableError.exit_code)


def _start(stack: Stack) -> CdcError | None:
    console = Console(highlight=False)
    try:
        with console.status("Starting. The first time, Spark fetches its jars ..."):
            stack.start(tell=lambda name, seconds: console.print(f"{name:<20} ready in {seconds:.1f} s"))
    except CdcError as error:
        _warn(str(error))
        return error
    for one in stack.status():
        if one.state == "impaired":
            _warn(f"{one.service}: {one.detail}")
    return None


@click.command()
@click.pass_obj
def down(project: Path | None) -> None:
    """Stop all embedded services and wait until no process is left."""
    stopped = _supervisor(project).stop()
    click.echo("Stopped." if stopped else "Nothing was running.")


@click.command()
@click.argument("service")
@click.pass_obj
def restart(project: Path | None, service: str) -> None:
    """Stop SERVICE and start it again at once, also when its back-off would wait.

    For after a remedy: a service that keeps failing is started by itself too, a second later each time.
    """
    Stack(Deployment.load(project)).restart(service)
    click.echo(f"{service} was started again; `cdc-platform status` shows how it is.")


def _supervisor(project: Path | None) -> Supervisor:
    """The stack's, also while tables.yaml is being edited and does not load: what runs has to be stoppable."""
    try:
        return Supervisor(Deployment.load(project).state)
    except ConfigError:
        state = (project or Path(os.environ.get("CDC_PLATFORM_PROJECT") or Path.cwd())) / DEFAULT_STATE
        if not state.exists():
            raise
        return Supervisor(state.resolve())


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.pass_obj
def status(project: Path | None, as_json: bool) -> None:
    """Show each service: state, process, memory, and the last error of one that is not ready.

    \b
    JSON: {"services": [...], "addresses": {service: address}}; each service with
      service    its name, as `logs` takes it
      state      ready | impaired (works, but not all of it) | starting | backing off | failed | stopped
      pid        process id, or null
      uptime_s   seconds since that process started
      restarts   times it was started again since `up`
      memory_mb  resident memory of the process and its children
      detail     the last error and its remedy, empty once all is well
      facts      what a service of ours tells of its work, empty unless it is ready

    \b
    Facts of `capture-SOURCE`:
      records  how many of each kind since its start: change, tombstone, cut, replay, replay_refused,
               message (another application's), transaction, heartbeat, notification, unknown
      log_end  by table, the position after the newest record of its change log
      slot     {retained_bytes, unconfirmed_bytes, wal_status, safe_bytes, active, inactive_s}, the WAL that
               the source keeps for it; null when the source does not answer
      left_out the tables that it does not capture, each with why and what to do

    Facts of `sink`:
      tables   by table, {window, log_position} of its newest commit

    Exit codes: 0 all ready, 4 otherwise.
    """
    deployment = Deployment.load(project)
    found = Stack(deployment).status()
    addresses = {n: str(a).split("@")[-1] for n, a in deployment.endpoints().items()}
    if as_json:
        click.echo(json.dumps({"services": [asdict(one) for one in found], "addresses": addresses}, indent=2))
    else:
        _print_table(found)
        click.echo("".join(f"{name}: {address}\n" for name, address in addresses.items()), nl=False)
    if any(one.state != "ready" for one in found):
        sys.exit(UnavailableError.exit_code)


def _print_table(found: tuple[ServiceStatus, ...]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("service", "state"):
        table.add_column(heading)
    for heading in ("pid", "up s", "restarts", "MB"):
        table.add_column(heading, justify="right")
    for one in found:
        state = f"[{_COLOURS[one.state]}]{one.state}[/]"
        numbers = (one.pid, one.uptime_s, one.restarts, one.memory_mb)
        table.add_row(one.service, state, *("" if one.pid is None else str(number) for number in numbers))
    Console().print(table)
    for one in found:
        if one.detail:
            click.echo(f"{one.service}: {one.detail}")


@click.command()
@click.argument("service")
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("--lines", "-n", default=50, show_default=True, type=click.IntRange(min=0), help="Last lines.")
@click.pass_obj
def logs(project: Path | None, service: str, follow: bool, lines: int) -> None:
    """Print the end of SERVICE's log (or of `supervisord`'s)."""
    folder = Stack(Deployment.load(project)).logs_dir
    file = folder / f"{service}.log"
    if not file.exists():
        known = ", ".join(sorted(log.stem for log in folder.glob("*.log"))) or "none yet"
        raise ConfigError(f"no log of `{service}`", where=str(folder), action=f"Use one of: {known}")
    with file.open(encoding="utf-8", errors="replace") as text:
        for line in deque(text, maxlen=lines):
            click.echo(line, nl=False)
        end = text.tell()
    if follow:
        for new in _new_text(file, end):
            click.echo(new, nl=False)


def _new_text(file: Path, position: int) -> Iterator[str]:
    """Yield what is written to `file` after `position`, for ever, across its rotation."""
    log = file.open("rb")
    log.seek(position)
    while True:
        yield log.read().decode(errors="replace")
        if file.exists() and not os.path.samestat(file.stat(), os.fstat(log.fileno())):
            yield log.read().decode(errors="replace")
            log.close()
            log = file.open("rb")
        else:
            time.sleep(_FOLLOWED_EVERY_S)


def _warn(text: str) -> None:
    click.echo(text, err=True)
