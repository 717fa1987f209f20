"""`cdc-platform dead-letters`: records that were not applied, at a terminal.

Belongs here: words, JSON keys, exit codes. Does not: what may be replayed (`landing/corrections.py`,
`landing/letters.py`). A payload is people's data: `show` alone prints it, and no message holds a value of it.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.deployment import Deployment
from cdc_platform.operations import Operations

if TYPE_CHECKING:
    import pandas as pd

    from cdc_platform.landing.corrections import Answer

_REFUSED, _UNAVAILABLE = 2, 4
_REASONS = ("unreadable", "unknown_kind", "no_key", "no_home", "unavailable", "stale")
_LISTED = ("log_offset", "reason", "op", "key", "source_position", "source_ts", "dead_at", "window", "log_id", "detail")
_table = click.argument("table")
_reason = click.option("--reason", type=click.Choice(_REASONS), help="Only letters of this reason.")
_all = click.option("--all", "all_open", is_flag=True, help="All open letters; with --reason, all of that reason.")


@click.group()
def dead_letters() -> None:
    """Look at, correct, replay or discard records that could not be applied.

    Each stands in the Iceberg table `dead_letters.<table>` with its reason and its offset in the table's change log,
    until a replay of it was applied or a person discarded it.
    """


@dead_letters.command(name="list")
@_table
@_reason
@click.option("--closed", is_flag=True, help="Also what was replayed or discarded, with the row that closed it.")
@click.option("--json", "as_json", is_flag=True, help="Print a list with the keys named here on stdout.")
@click.pass_obj
def list_letters(project: Path | None, table: str, reason: str | None, closed: bool, as_json: bool) -> None:
    """List TABLE's open dead letters, oldest first, without their payloads.

    JSON: [{log_offset, reason, op, key, source_position, source_ts, dead_at, window, log_id, detail, closes}]. `closes`
    is null on a letter; a row whose reason is `replayed` or `discarded` closes the letter of that offset.
    Exit codes: 0 done, 4 the catalog does not answer.
    """
    rows = Operations(Deployment.load(project)).letters(table, closed=closed)
    if reason is not None:
        rows = rows[rows["reason"] == reason]
    records = _records(rows, (*_LISTED, "closes"))
    if as_json:
        click.echo(json.dumps(records))
        return
    for one in records:
        closes = f" closes {one['closes']}" if one["closes"] is not None else ""
        op, key = one["op"] or "-", one["key"] or "-"
        click.echo(f"{one['log_offset']:>10}  {one['reason']:<12} {op}  {key}  {one['detail']}{closes}")
    if records and not closed:
        hint = f"`cdc-platform dead-letters show {table} OFFSET` shows one with its payload"
        click.echo(f"{len(records)} open. {hint}.", err=True)
    elif not records:
        click.echo("None.", err=True)


@dead_letters.command()
@_table
@click.argument("offsets", type=int, nargs=-1, required=True, metavar="OFFSET...")
@click.option("--json", "as_json", is_flag=True, help="Print a list with the keys named here on stdout.")
@click.pass_obj
def show(project: Path | None, table: str, offsets: tuple[int, ...], as_json: bool) -> None:
    """Show TABLE's letters at these offsets, open or closed, with their payloads: the records as they came.

    JSON: what `dead-letters list --json` prints, and `payload`, a text.
    Exit codes: 0 done, 2 there is no letter at an offset, 4 the catalog does not answer.
    """
    rows = Operations(Deployment.load(project)).letters(table, closed=True, payload=True)
    rows = rows[rows["log_offset"].isin(offsets) & rows["closes"].isna()]
    if missing := sorted({*offsets} - {int(n) for n in rows["log_offset"]}):
        raise click.UsageError(f"no letter of `{table}` is at {', '.join(map(str, missing))}")
    records = _records(rows, (*_LISTED, "closes", "payload"))
    if as_json:
        click.echo(json.dumps(records))
        return
    for one in records:
        for name in _LISTED:
            click.echo(f"{name:>15}: {one[name]}")
        click.echo(f"{'payload':>15}: {_pretty(one['payload'])}\n")


@dead_letters.command()
@_table
@click.argument("offsets", type=int, nargs=-1, metavar="[OFFSET...]")
@click.option(
    "--set",
    "values",
    multiple=True,
    metavar="COLUMN=JSON",
    help="What the row holds instead, as JSON: --set total=12.50, --set 'note=\"x\"', --set due=null. Dates and times "
    "as PostgreSQL writes them, in quotes. May be given again.",
)
@click.option(
    "--record",
    metavar="JSON",
    help='For a payload that can\'t be read: the change\'s kind, before and after, as JSON: {"op": "u", "before": '
    'null, "after": {...}}, every column as the change log spells it.',
)
@_all
@_reason
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@click.option("--yes", is_flag=True, help="With --all: do it. Without, --all is a dry run.")
@click.option("--wait", is_flag=True, help="Wait until the sink has applied each, or has said no.")
@click.option("--within", "within_s", default=60, show_default=True, help="Seconds that --wait waits.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with the keys named here on stdout.")
@click.pass_obj
def replay(
    project: Path | None,
    table: str,
    offsets: tuple[int, ...],
    *,
    values: tuple[str, ...],
    record: str | None,
    all_open: bool,
    reason: str | None,
    dry_run: bool,
    yes: bool,
    wait: bool,
    within_s: int,
    as_json: bool,
) -> None:
    """Send TABLE's letters at these offsets again, corrected, through the source and its change log.

    A letter is sent only if it would be applied now: a row that has changed since is not put back. Letters that are
    named are sent all or none; of --all, those that would be applied. The sink judges each once more when it arrives;
    without --wait its word stands in `dead-letters list`.

    JSON: {dry_run, letters: [{log_offset, reason, outcome, why}]}. Outcomes before sending: applies, unfit (it would
    fail again), stale (its row has changed since), sent_before, refused. After: sent, and with --wait replayed, stale,
    dead, dropped or unknown.
    Exit codes: 0 each would be applied, was sent, or landed, 2 one is refused or did not land, 4 a side does not
    answer, or not within the time.
    """
    from cdc_platform.landing.corrections import Correction

    choice = _choice(offsets, all_open=all_open, reason=reason)
    if record is not None and len(offsets) != 1:
        raise click.UsageError("--record is for one OFFSET")
    correction = Correction(dict(_assignment(v) for v in values), _parsed(record, "--record") if record else None)
    dry_run = dry_run or (all_open and not yes)
    operations = Operations(Deployment.load(project))
    answers = operations.replay_letters(table, choice, correction, dry_run=dry_run, wait_s=within_s if wait else None)
    _tell(answers, table, dry_run=dry_run, as_json=as_json, how="with --yes" if all_open else "without --dry-run")


@dead_letters.command()
@_table
@click.argument("offsets", type=int, nargs=-1, metavar="[OFFSET...]")
@_all
@_reason
@click.option("--yes", is_flag=True, help="Do it. Without, this is a dry run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with the keys named here on stdout.")
@click.pass_obj
def discard(
    project: Path | None,
    table: str,
    offsets: tuple[int, ...],
    *,
    all_open: bool,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Close TABLE's letters at these offsets without applying them, and replays of them that failed.

    They stay in the table. Landing keeps the row without that change until the source changes it again.

    JSON: {dry_run, letters: [{log_offset, reason, outcome, why}]}, with the outcome `discarded`.
    Exit codes: 0 done, 2 a letter is not open, 4 the catalog does not answer.
    """
    choice = _choice(offsets, all_open=all_open, reason=reason)
    answers = Operations(Deployment.load(project)).discard_letters(table, choice, dry_run=not yes)
    _tell(answers, table, dry_run=not yes, as_json=as_json, how="with --yes")


def _choice(offsets: tuple[int, ...], *, all_open: bool, reason: str | None) -> Any:
    from cdc_platform.landing.letters import Choice

    if bool(offsets) == all_open:
        raise click.UsageError("name OFFSETs, or --all with or without --reason")
    if offsets and reason:
        raise click.UsageError("--reason goes with --all")
    return Choice(offsets, reason or "")


def _assignment(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--set {name}: write COLUMN=JSON")
    return name, _parsed(value, f"--set {name}")


def _parsed(text: str, what: str) -> Any:
    from cdc_platform.landing.corrections import parse_json

    try:
        return parse_json(text)
    except ValueError as error:
        raise click.UsageError(
            f"{what}: what follows is no JSON; a text is in double quotes, and these in single ones for the shell"
        ) from error


def _tell(answers: "Sequence[Answer]", table: str, *, dry_run: bool, as_json: bool, how: str) -> None:
    from cdc_platform.landing.corrections import DONE

    done = all(a.outcome in DONE for a in answers)
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "letters": [asdict(a) for a in answers]}))
    else:
        for a in answers:
            click.echo(f"{a.log_offset:>10}  {a.reason:<12} {a.outcome}{f': {a.why}' if a.why else ''}")
    if not answers:
        click.echo("No open letter matches.", err=True)
    elif dry_run:
        click.echo(f"A dry run: nothing was changed. Run it {how} to do it.", err=True)
    elif any(a.outcome == "applies" for a in answers):
        click.echo("Nothing was sent: letters that are named are sent all or none.", err=True)
    elif any(a.outcome == "sent" for a in answers):
        click.echo(f"Sent. `cdc-platform dead-letters list {table}` no longer shows those that landed.", err=True)
    sys.exit(0 if done else _UNAVAILABLE if any(a.outcome == "unknown" for a in answers) else _REFUSED)


def _records(rows: "pd.DataFrame", columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows as JSON has them: times as ISO 8601 in UTC, nothing as null."""
    import pandas as pd

    def plain(value: Any) -> Any:
        if pd.isna(value):
            return None
        return value.isoformat() if isinstance(value, pd.Timestamp) else value

    return [{name: plain(row[name]) for name in columns} for row in rows.to_dict("records")]


def _pretty(payload: str) -> str:
    try:
        return json.dumps(json.loads(payload), indent=2, ensure_ascii=False).replace("\n", "\n" + " " * 17)
    except ValueError:
        return payload
