"""`cdc-platform health` and `maintain`: what state the tables are in, and what can be done about it.

Belongs here: words, JSON keys, exit codes. Does not: figures, limits and operations (`cdc_platform.maintenance`).
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.console import Console
from rich.table import Table as Grid

from cdc_platform.deployment import Deployment
from cdc_platform.errors import CdcError
from cdc_platform.maintenance.runs import Operation
from cdc_platform.operations import Operations, Stage

if TYPE_CHECKING:
    from cdc_platform.maintenance.health import TableHealth
    from cdc_platform.maintenance.plan import Plan

_BEYOND_A_LIMIT = 3
_stage = click.option(
    "--stage",
    type=click.Choice(get_args(Stage)),
    default="landing",
    show_default=True,
    help="Which of TABLE's tables.",
)


@click.command()
@click.argument("table", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with the keys named here on stdout.")
@click.pass_obj
def health(project: Path | None, table: str | None, as_json: bool) -> None:
    """Show what state TABLE (or every table) is in, from Iceberg metadata alone: no data file is opened.

    Deletes that readers still apply, delete files that apply to nothing (dangling), small files, snapshots, what only
    history holds, and what of it is beyond its limit (`maintenance` in tables.yaml).

    JSON: {relation: {the figures of docs/operating/files_are_healthy.md, findings: [{group, figure, measured, limit,
    action}]}}; null for a table without a snapshot, {error: {where, what, action}} for one that can't be read.
    Exit codes: 0 within the limits, 2 a table is not declared or is of a kind that can't be read, 3 a figure is beyond
    its limit, 4 a table can't be read: the others are shown.
    """
    deployment = Deployment.load(project)
    operations = Operations(deployment)
    names = [table] if table else list(deployment.registry.tables)
    found: dict[str, dict[str, Any] | None] = {}
    grid = Grid(box=None, header_style="bold")
    grid.add_column("table", no_wrap=True)
    for column in _COLUMNS:
        grid.add_column(column, justify="right", no_wrap=True)
    said: list[str] = []
    codes = {0}
    for name, stage in ((name, stage) for name in names for stage in get_args(Stage)):
        deployment.table(name)
        relation = f"{stage}.{name}"
        try:
            examined = operations.examine(name, stage)
        except CdcError as error:
            found[relation] = {"error": {"where": error.where, "what": error.what, "action": error.action}}
            said.append(str(error))
            codes.add(error.exit_code)
            continue
        if examined is None:
            found[relation] = None
            continue
        state, findings = examined.state, examined.findings
        found[relation] = state.figures() | {"findings": [asdict(f) for f in findings]}
        grid.add_row(relation, *_cells(state))
        said += [f"{relation}: {f.figure} is {f.measured:,.6g}, limit {f.limit:,.6g}. {f.action}." for f in findings]
        codes.add(_BEYOND_A_LIMIT if findings else 0)
    if as_json:
        click.echo(json.dumps(found))
    else:
        console = Console()
        console.width = max(console.width, _WIDTH_MIN)  # Cut figures say nothing; a narrow terminal wraps.
        console.print(grid)
        for line in said:
            click.echo(line)
    sys.exit(max(codes))


_WIDTH_MIN = 180
_COLUMNS = (
    "data files",
    "small",
    "delete files",
    "dangling",
    "deletes",
    "per record",
    "snapshots",
    "metadata MB",
    "planning s",
    "MB in history",
)


def _cells(state: "TableHealth") -> list[str]:
    history = "unknown" if state.history_bytes is None else f"{state.history_bytes / 2**20:.1f}"
    return [
        f"{state.data_files:,}",
        f"{state.small_files:,}",
        f"{state.delete_files:,}",
        f"{state.dangling_delete_files:,}",
        f"{state.deletes:,}",
        f"{state.delete_ratio:.3f}",
        f"{state.snapshots:,}",
        f"{(state.metadata_bytes + state.manifest_bytes) / 2**20:.1f}",
        f"{state.planning_s:.3f}",
        history,
    ]


@click.command()
@click.argument("table")
@click.argument("operation", type=click.Choice(get_args(Operation)))
@_stage
@click.option(
    "--dry-run/--run",
    default=None,
    help="Only print the plan, or carry it out  [default: --run; --dry-run for remove_orphan_files]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with the keys named here on stdout.")
@click.pass_obj
def maintain(  # noqa: PLR0917  click's order does not matter.
    project: Path | None, table: str, operation: Operation, stage: Stage, dry_run: bool | None, as_json: bool
) -> None:
    """Run OPERATION on one of TABLE's tables: print its plan, carry it out, and show what it bought.

    No live row changes: rows and checksums before and after are compared, and a run that changed one fails and names
    the snapshot to go back to.

    JSON: {outcome, notes, snapshot_ids (made, oldest first), plan: {...}, figures: {...}}; a dry run has the plan
    alone. A plan that deletes has whole lists: {snapshot_ids, files, kept: [{snapshot_id, by}], refs_gone}; in words,
    the first of them.
    Exit codes: 0 done, or nothing to do; 2 refused, the reason says why; 4 unavailable, or another writer was always
    first; 5 a row changed.
    """
    from cdc_platform.maintenance.maintain import Effect

    dry = operation == "remove_orphan_files" if dry_run is None else dry_run
    operations = Operations(Deployment.load(project))
    say = _to_stderr if as_json else click.echo
    found = operations.maintain(table, stage, operation, dry_run=dry, say=say)
    effect, plan = (found, found.plan) if isinstance(found, Effect) else (None, found)
    if as_json:
        shown: dict[str, Any] = {"plan": plan.figures() | _lists(plan)}
        if effect is not None:
            shown |= {
                "outcome": effect.outcome,
                "notes": list(effect.notes),
                "snapshot_ids": [str(i) for i in effect.snapshot_ids],
                "figures": effect.figures(),
            }
        click.echo(json.dumps(shown))
        return
    if effect is None:
        click.echo("Dry run: nothing was changed. Carry it out with --run.")
        return
    click.echo(effect.outcome)
    for note in effect.notes:
        click.echo(f"  {note}")
    grid = Grid("", "before", "after", box=None, header_style="bold")
    figures = effect.figures()
    for label, value in figures.items():
        name = label.removesuffix("_before")
        if name != label and f"{name}_after" in figures:
            grid.add_row(name.replace("_", " "), _figure(value), _figure(figures[f"{name}_after"]))
    Console().print(grid)


def _lists(plan: "Plan") -> dict[str, Any]:
    """All that a plan would delete, and what it must leave."""
    whole = asdict(plan)
    found: dict[str, Any] = {key: whole[key] for key in ("files", "refs_gone") if key in whole}
    if "kept" in whole:
        found["snapshot_ids"] = [str(i) for i in whole["snapshot_ids"]]
        found["kept"] = [{"snapshot_id": str(k["snapshot_id"]), "by": k["by"]} for k in whole["kept"]]
    return found


def _figure(value: object) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else "unknown"


def _to_stderr(line: str) -> None:
    click.echo(line, err=True)
