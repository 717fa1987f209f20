"""`cdc-platform doctor`, `recapture`, `reload`, `check` and `merge`: a table's operations at a terminal.

Belongs here: words, JSON keys, exit codes. Does not: the operations (`operations.py`, `capture/service.py`).
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cdc_platform.deployment import Deployment
from cdc_platform.errors import CdcError, UnavailableError
from cdc_platform.operations import Operations, Stage

_DIVERGED, _UNAVAILABLE = 3, 4
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON with the keys named here on stdout.")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a list of {source, table, where, what, action}.")
@click.pass_obj
def doctor(project: Path | None, as_json: bool) -> None:
    """Look the sources over: everything that capture needs and does not find, with its cure.

    A `table` is one of tables.yaml, null for what concerns all of a source. Without --json, also how much WAL each
    source keeps for capture.

    Exit codes: 0 nothing is lacking, 2 something is, 4 a source does not answer.
    """
    from cdc_platform.capture.service import look_over
    from cdc_platform.source.postgres import source_engine
    from cdc_platform.source.slot import read_slot

    deployment = Deployment.load(project)
    lacking = [
        {
            "source": source,
            "table": finding.table,
            "where": finding.where,
            "what": finding.what,
            "action": finding.action,
        }
        for source in deployment.registry.sources
        if deployment.registry.tables_of(source)
        for finding in look_over(deployment, source).findings
    ]
    if as_json:
        click.echo(json.dumps(lacking))
    elif not lacking:
        click.echo("Nothing is lacking.")
    for finding in [] if as_json else lacking:
        click.echo(f"{finding['where']}: {finding['what']}. {finding['action']}.")
    for source, declared in () if as_json else deployment.registry.sources.items():
        if not deployment.registry.tables_of(source):
            continue
        slot = deployment.part_name(source)
        try:
            lag = read_slot(source_engine(deployment.source_url(source)), slot)
        except UnavailableError as unknown:
            click.echo(unknown)
            continue
        kept = "unknown" if lag.retained_bytes is None else f"{lag.retained_bytes / 2**20:.1f} MB"
        click.echo(
            f"Replication slot {slot}: {kept} of WAL kept, status {lag.wal_status}, "
            f"{'read' if lag.active else 'not read'} now; `slot_lag_max_mb` is {declared.slot_lag_max_mb}."
        )
    sys.exit(2 if lacking else 0)


@click.command()
@click.argument("source")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def recapture(project: Path | None, source: str, yes: bool) -> None:
    """Drop SOURCE's slot and offsets, so that capture begins with a new initial load.

    The load replaces each landing table in one snapshot; curated takes only what differs. The change log is
    kept. The stack's capture of SOURCE is stopped meanwhile; one that runs elsewhere you stop first.
    """
    from cdc_platform.capture.service import recapture as forget
    from cdc_platform.stack.control import Stack
    from cdc_platform.stack.services import CAPTURE

    deployment = Deployment.load(project)
    if source not in deployment.registry.sources:
        raise click.UsageError(f"no source `{source}`; declared: {', '.join(deployment.registry.sources)}")
    if not yes:
        click.confirm(f"Take a new initial load of every table of `{source}`?", abort=True)
    with Stack(deployment).paused(f"{CAPTURE}{source}"):
        forget(deployment, source)
    click.echo("Done. Capture begins with an initial load; `cdc-platform check TABLE` waits for it.")


@click.command()
@click.argument("table")
@_as_json
@click.pass_obj
def reload(project: Path | None, table: str, as_json: bool) -> None:
    """Load TABLE anew from its source, while all other tables stream on.

    For a table whose columns changed in a way that landing can't follow, or whose rows are wrong. Capture has to run
    and reads the table once; its own stream waits meanwhile, and nothing of it is lost. The load replaces the landing
    table in one snapshot, and curated takes only what differs. Returns when the load has begun; `cdc-platform check
    TABLE` waits for it. For a lost slot it is `recapture SOURCE`.

    JSON: {table, log_position (where the load begins in the change log)}.
    Exit codes: 0 it has begun, 2 no capture runs here, 4 it has not begun within a minute.
    """
    begun = Operations(Deployment.load(project)).reload(table)
    if as_json:
        click.echo(json.dumps({"table": table, "log_position": begun}))
    else:
        click.echo(f"The load has begun, at change-log record {begun}. `cdc-platform check {table}` waits for it.")


@click.command()
@click.argument("table")
@_as_json
@click.pass_obj
def check(project: Path | None, table: str, as_json: bool) -> None:
    """Compare TABLE's landing and curated stages with the source, at an exact cut.

    JSON: {stage: {outcome, reason, took_s, snapshot_id, differences: [{measure, expected, found}]}}.
    Exit codes: 0 converged, 3 diverged, 4 unknown.
    """
    operations = Operations(Deployment.load(project))
    results: dict[str, dict[str, Any]] = {}
    stages: tuple[Stage, ...] = ("landing", "curated")
    for stage in stages:
        verdict = operations.converge(table, stage)
        results[stage] = {
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "took_s": round(verdict.took_s, 3),
            "snapshot_id": str(verdict.reading.snapshot_id) if verdict.reading else None,
            "differences": [asdict(d) for d in verdict.differences],
        }
        if not as_json:
            rows = f", {verdict.reading.found.rows:,} rows" if verdict.reading else ""
            click.echo(f"{stage}.{table}: {verdict.outcome} ({verdict.took_s:.1f} s{rows}): {verdict.reason}")
            for d in verdict.differences[:20]:
                click.echo(f"  {d.measure}: source {d.expected}, {stage} {d.found}")
    if as_json:
        click.echo(json.dumps(results))
    elif results["landing"]["outcome"] != "converged" and (letters := _open_letters(operations, table)):
        click.echo(f"{letters} dead letters are open, which landing lacks: `cdc-platform dead-letters list {table}`")
    outcomes = {r["outcome"] for r in results.values()}
    sys.exit(_DIVERGED if "diverged" in outcomes else _UNAVAILABLE if "unknown" in outcomes else 0)


def _open_letters(operations: Operations, table: str) -> int:
    """How many, 0 when they can't be read: the comparison has its own word."""
    try:
        return len(operations.letters(table))
    except CdcError:
        return 0


@click.command()
@click.argument("table")
@_as_json
@click.pass_obj
def merge(project: Path | None, table: str, as_json: bool) -> None:
    """Merge TABLE's landing into curated.

    JSON: {upstream_id, snapshot_id (null: nothing differed), inserts, updates, deletes, watermark, took_s}.
    """
    result = Operations(Deployment.load(project)).merge(table)
    if as_json:
        ids: dict[str, str | None] = {"upstream_id": str(result.upstream_id)}
        ids["snapshot_id"] = str(result.snapshot_id) if result.snapshot_id is not None else None
        click.echo(json.dumps(asdict(result) | ids))
    elif result.snapshot_id is None:
        click.echo(f"Nothing differed; nothing was committed ({result.took_s:.1f} s).")
    else:
        click.echo(
            f"{result.inserts:,} inserted, {result.updates:,} updated, {result.deletes:,} deleted "
            f"in snapshot {result.snapshot_id} ({result.took_s:.1f} s)."
        )
