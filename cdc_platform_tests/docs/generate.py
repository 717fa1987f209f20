"""Writes docs/reference/ from the code: `python -m cdc_platform_tests.docs.generate`.

Belongs here: the pages, each a function from code to text. Does not: whether the files are up to date
(`test_reference.py`), or prose that code does not hold (`docs/operating/`, `docs/start.md`).
"""

import ast
import sys
import types
import typing
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import cdc_platform
from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END
from cdc_platform.cli import main as root
from cdc_platform.hops import merge
from cdc_platform.landing import commit, dead_letters, events, position
from cdc_platform.maintenance import halted, runs
from cdc_platform.orchestration import automation
from cdc_platform.registry import model
from cdc_platform.registry.declared import Name
from cdc_platform.registry.maintenance import BUILT_IN, Maintenance, MaintenanceClass, MaintenanceKeys
from cdc_platform.source import types as source_types

REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "docs" / "reference"
_HELP_COLUMNS = 100
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def _page(title: str, about: str, *lines: str) -> str:
    note = "<!-- Generated: python -m cdc_platform_tests.docs.generate -->"
    return "\n".join([f"# {title}", "", note, "", about, "", *lines]).rstrip() + "\n"


# ---- tables.yaml ----------------------------------------------------------------------------------------


def tables() -> str:
    """Every key that tables.yaml may hold, from the pydantic model."""
    about = (
        "Every key. One that is not listed here stops the load, with file, line and the nearest known key.\n\n"
        "A *duration* is a number and a unit: `ms`, `s`, `m`, `h` or `d`, for example `500ms` or `5m`. "
        f"A *name* matches `{_pattern(Name)}`, 40 characters at most: it becomes part of slots, "
        "Iceberg tables and asset keys."
    )
    return _page("tables.yaml", about, *_sections(model.Registry, ""), *_maintenance_classes())


def _sections(declared: type[BaseModel], prefix: str) -> Iterator[str]:
    yield f"## {f'`{prefix}`' if prefix else 'Top level'}"
    yield ""
    yield f"{_first_paragraph(declared)}"
    yield ""
    yield "| key | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    nested: list[tuple[type[BaseModel], str]] = []
    own, told_elsewhere = _fields(declared)
    for name, info in own:
        inner, named = _nested(info.annotation)
        path = f"{prefix}.{name}".lstrip(".") + (".<name>" if named else "")
        kind = _type(info.annotation, info.metadata)
        if inner is not None:
            nested.append((inner, path))
            kind = f"{'one section for each name' if named else 'section'} [`{path}`](#{_anchor(path)})"
        meaning = info.description or (_first_paragraph(inner) if inner is not None else "")
        meaning = meaning.replace("<", "\\<")  # Or a browser takes `<table>` for HTML.
        yield f"| `{info.alias or name}` | {kind} | {_default(info, inner)} | {meaning} |".replace("  ", " ")
    if told_elsewhere:
        path = "maintenance.<name>"
        yield f"| any key of [`{path}`](#{_anchor(path)}) but `like` | | the class's | What differs from the class. |"
    yield ""
    for inner, path in nested:
        yield from _sections(inner, path)


def _fields(declared: type[BaseModel]) -> tuple[list[tuple[str, FieldInfo]], bool]:
    """A section's own keys first; the many of a maintenance policy are told once, where classes are declared."""
    fields = declared.model_fields.items()
    if not issubclass(declared, MaintenanceKeys):
        return list(fields), False
    own = [(name, info) for name, info in fields if name not in MaintenanceKeys.model_fields]
    if declared is MaintenanceClass:
        return [*own, *MaintenanceKeys.model_fields.items()], False
    return own, True


def _maintenance_classes() -> Iterator[str]:
    yield "## Built-in maintenance classes"
    yield ""
    yield "| class | differs from `standard` in | because |"
    yield "| --- | --- | --- |"
    standard = Maintenance()
    for name, one in BUILT_IN.items():
        differing = [
            f"`{key}: {_written(value)}`"
            for key in Maintenance.model_fields
            if (value := getattr(one.policy, key)) != getattr(standard, key)
        ]
        yield f"| `{name}` | {', '.join(differing)} | {one.why} |".replace("  ", " ")
    yield ""


def _nested(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model that a key holds, and whether it holds one for each name."""
    if get_origin(annotation) is typing.Annotated:
        return _nested(get_args(annotation)[0])
    named = get_origin(annotation) is dict
    candidates = get_args(annotation)[1:] if named else (annotation, *get_args(annotation))
    candidates = [get_args(c)[0] if get_origin(c) is typing.Annotated else c for c in candidates]
    models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
    return (models[0] if models else None), named


def _type(annotation: Any, metadata: list[Any]) -> str:
    if get_origin(annotation) is typing.Annotated:
        return _type(get_args(annotation)[0], [*get_args(annotation)[1:], *metadata])
    if get_origin(annotation) is tuple:
        kind = f"list of {_plural(_type(get_args(annotation)[0], []))}"
    elif get_origin(annotation) is typing.Literal:
        kind = " or ".join(f"`{value}`" for value in get_args(annotation))
    elif get_origin(annotation) is dict:
        kind = f"for each name: {_type(get_args(annotation)[1], [])}"
    elif get_origin(annotation) in {typing.Union, types.UnionType}:
        return _type(next(a for a in get_args(annotation) if a is not type(None)), metadata)
    else:
        kind = {timedelta: "duration", int: "integer", float: "number", str: "text"}.get(annotation, str(annotation))
    bounds = [_bound(m) for m in metadata]
    if kind == "text" and any(_pattern_of(m) == _pattern(Name) for m in metadata):
        return "name"
    return ", ".join([kind, *filter(None, bounds)])


def _plural(kind: str) -> str:
    return kind.replace("text", "texts", 1)


def _bound(constraint: Any) -> str:
    if (pattern := _pattern_of(constraint)) is not None:
        return "`" + pattern.replace("|", "\\|") + "`"
    told = {"ge": "at least", "le": "at most", "gt": "more than", "min_length": "at least"}
    for attribute, words in told.items():
        value = getattr(constraint, attribute, None)
        if value is not None and value not in {1, timedelta(0)}:
            return f"{words} {_written(value)}"
        if value == 1 and attribute == "min_length" and not hasattr(constraint, "strip_whitespace"):
            return "not empty"
    return ""


def _pattern_of(constraint: Any) -> str | None:
    return getattr(constraint, "pattern", None)


def _pattern(annotated: Any) -> str:
    return next(p for m in get_args(annotated)[1:] if (p := _pattern_of(m)))


def _default(info: FieldInfo, inner: type[BaseModel] | None) -> str:
    if info.is_required():
        return "required"
    value = info.default
    if value is None:
        return "none"
    if inner is not None:
        return "its defaults"
    if value in ((), "", {}):
        return "empty"
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    """A value as tables.yaml spells it."""
    if isinstance(value, timedelta):
        unit, seconds = next((u, s) for u, s in _UNITS if not value.total_seconds() % s)
        return f"{int(value.total_seconds() // seconds)}{unit}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, typing.cast('tuple[object, ...]', value)))}]"
    return str(value)


def _first_paragraph(declared: type[BaseModel]) -> str:
    return " ".join((declared.__doc__ or "").split("\n\n")[0].split())


def _anchor(path: str) -> str:
    """As GitHub makes anchors of headings: letters, digits, `-` and `_` stay."""
    return "".join(c for c in path.lower() if c.isalnum() or c in "-_")


# ---- Command line ---------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Every command that people type, by name, in the order of `--help`."""
    context = click.Context(root)
    found: dict[str, click.Command] = {}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if command is not None and not command.hidden:
            found[name] = command
            family = command.commands if isinstance(command, click.Group) else {}
            found |= {f"{name} {one}": member for one, member in family.items()}
    return found


def cli() -> str:
    """Each command's help, as the terminal shows it."""
    about = (
        "Each command as `--help` shows it. Results go to stdout, hints and errors to stderr. An error has "
        "three parts: where, what happened, what to do."
    )
    lines = ["```text", _help(root, "cdc-platform"), "```", ""]
    for name, command in commands().items():
        lines += [f"## {name}", "", "```text", _help(command, f"cdc-platform {name}"), "```", ""]
    return _page("Command line", about, *lines)


def _help(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=_HELP_COLUMNS, max_content_width=_HELP_COLUMNS)
    return command.get_help(context)


# ---- Types ----------------------------------------------------------------------------------------------


def types_page() -> str:
    """Where each PostgreSQL type lands, how it is spelled, and what becomes of a value that its column can't hold."""
    about = (
        "What a column of the source becomes in landing (and in curated, which has landing's types). Measured on "
        "PostgreSQL 18 and Debezium 3.6.3 with `capture/settings.py`, by initial load and by stream; "
        "`cdc_platform_tests/e2e/test_types.py` measures it again.\n\n"
        "A *value without a home* is one that the landing type can't hold. `landing.types` in tables.yaml "
        "([tables.yaml](tables.md)) says what becomes of it, for a family of types or, before that, for one column:\n\n"
        "```yaml\nlanding: {types: {date: clamp, column.total: string}}\n```"
    )
    policies = [
        "| policy | the value becomes |",
        "| --- | --- |",
        "| `error` | nothing: its record is a dead letter, whose reason names the column and no value |",
        "| `null` | NULL |",
        "| `clamp` | the nearest that the type holds: 0001-01-01 or 9999-12-31, to its last microsecond |",
        "| `string` | its text: the whole column is a `string`, spelled as PostgreSQL writes it |",
        "",
    ]
    rows = ["| PostgreSQL type | landing type | spelling | values without a home | policies, default first | key |"]
    rows += ["| --- | --- | --- | --- | --- | --- |"]
    for one in (*source_types.HOMES, source_types.ARRAY):
        names = ", ".join(f"`{name}`" for name in one.names) or "an array of any type above but for the refused"
        landing = "`list<...>` of its element's" if one is source_types.ARRAY else f"`{one.landing}`"
        declared = (
            "" if one.family is None else f"`{one.family}`: " + ", ".join(f"`{p}`" for p in model.POLICIES[one.family])
        )
        policy = declared or ("`error`" if one.homeless else "")
        key = f"no: {one.no_key}" if one.no_key else "yes"
        rows.append(f"| {names} | {landing} | {one.note} | {one.homeless} | {policy} | {key} |".replace("<b", "\\<b"))
    refused = ["| type | why |", "| --- | --- |"]
    refused += [f"| `{name}` | {why} |" for name, why in source_types.REFUSED.items()]
    refused += [f"| any other, such as `geometry` | {source_types.refusal('geometry')} |"]
    return _page(
        "Types",
        about,
        *policies,
        "## Where values live",
        "",
        *rows,
        "",
        *_TYPE_RULES,
        "## Refused",
        "",
        "`cdc-platform doctor` names a table with a column of such a type, and capture leaves it out: leave "
        "the table out, or make the column `text`.",
        "",
        *refused,
    )


_TYPE_RULES = (
    "A domain is its base type, however many lie over each other. An explicit NULL in a column with a default is NULL. "
    "Column names may be any but those that begin with `__cdc_`.",
    "",
    "## Generated columns",
    "",
    "From PostgreSQL 18 on, a STORED generated column is captured as any other: the publication is made with "
    "`publish_generated_columns = stored`. Without that, and for a VIRTUAL one whatever the publication says, "
    "PostgreSQL refuses *every update and delete* of a published table with REPLICA IDENTITY FULL, so the doctor "
    "refuses the table first. Before 18 an initial load brings the column and the stream does not: refused, too.",
    "",
    "## Unchanged TOAST values",
    "",
    "An update that leaves a large value alone does not write it to the WAL again. What arrives instead:",
    "",
    "| REPLICA IDENTITY | an unchanged large value |",
    "| --- | --- |",
    "| FULL | the value: Debezium takes it from the row before |",
    "| DEFAULT, USING INDEX | `__debezium_unavailable_value` (its base64, its character codes or its UUID in other "
    "types), but NULL in arrays of boolean, real, double precision, numeric, timestamp, timestamptz and enum, and in a "
    "vector |",
    "| NOTHING | PostgreSQL refuses the update |",
    "",
    "The doctor asks for FULL, so neither arrives. If the placeholder does (the identity was changed while capture "
    "ran), its record is a dead letter under every policy: it is no value of the column, so nothing may land for it. "
    "A text that is the placeholder letter by letter is taken for it.",
    "",
    "## What stops capture",
    "",
    "Debezium can't convert these; by default it would send NULL. Capture ends instead, and goes on once the value is "
    "corrected and `cdc-platform recapture SOURCE` was run: a NaN in `numeric[]`, a NULL in an array of an "
    "enumeration, a `timetz` whose zone has seconds. A domain over an enumeration, or an enumeration without labels, "
    "anywhere in the database ends Debezium at its start: the doctor names it.",
    "",
)


# ---- Metadata keys --------------------------------------------------------------------------------------

_LANDING = {
    position.SINK_ID: "Who wrote the snapshot: `cdc_platform:landing.<table>`. One sink writes one table.",
    position.LOG_POSITION: "Change-log position through which the table is complete: the next record's number.",
    position.LOG_ID: "The change log that the positions count in: its id is made with its folder.",
    position.WINDOW: "Number of this commit window, from 1; grows by one with each commit of the sink.",
    position.SOURCE_LSN: "Newest streamed event applied, `<commit LSN>/<LSN>/<ordinal>` as integers: the commit "
    "LSN ends the transaction before the event's own, the ordinal counts within the transaction from 1. Absent "
    "before the first streamed event.",
    position.SOURCE_TS_MS: "Commit time of the newest event at the source, milliseconds since 1970, UTC.",
    position.OWNER_EPOCH: "Number of the sink that wrote it: each that takes a table over has the next number, and "
    "fences those before it.",
    position.HEARTBEAT: "`true` on a snapshot that changes nothing and says again where the table stands.",
    position.LOAD_LSN: "LSN of that load's rows at the source, an integer. Absent when it brought none.",
    position.LOAD_POSITION: "Change-log position after the newest complete initial load. Absent before one: such "
    "a table is not merged.",
}
_CURATED = {
    merge.UPSTREAM_TABLE: "The table that this one was merged from: `landing.<table>`.",
    merge.UPSTREAM_SNAPSHOT: "Snapshot id of that table through which this one is complete.",
    merge.CONTRACT: "Short hash of key and compared columns: the same text carries the same rows.",
    merge.RUN_ID: "The Dagster run that merged, if one did.",
}
_EVENTS = {
    "create": "Inserts.",
    "update": "Updates.",
    "delete": "Deletes.",
    "read": "Rows of an initial load.",
    "truncate": "Truncates.",
    "redelivered": "Events sent again after a restart, which were dropped.",
    "stale": "Events that came after a newer one of their key: in the dead letters.",
    "dead": "Events that could not be applied: in the dead letters.",
    "message": "Logical messages, which change no row.",
    "tombstone": "Null records, which change no row: the delete before them did.",
    "other": "Records without a change: heartbeats, transaction marks.",
}
_RUN_TAGS = {
    automation.TABLE_TAG: "Name of the table in tables.yaml.",
    automation.OPERATION_TAG: "The operation, which is its job's name.",
    automation.STAGE_TAG: "The stage it works on. A run from before this tag: `curated` of a merge, else `landing`.",
    automation.TARGET_TAG: "Where the operation starts from: attempts are counted for one target.",
    automation.TRIGGER_TAG: "Why the sensor asked for the run.",
    automation.ATTEMPT_TAG: "Number of this attempt, from 1.",
}


def metadata_keys() -> str:
    """The names that other programs see: snapshot summaries, table properties, tags, markers, run tags."""
    about = (
        "The table is the state: how far it has come stands in its own snapshots, written by the commit that "
        "got it there. The prefix `cdc.` is the platform's; a property of yours may not use it. Spark shows the "
        "keys with `SELECT summary FROM lake.landing.orders.snapshots`."
    )
    counts = {position.EVENTS + kind: told for kind, told in _EVENTS.items()}
    properties = {
        f"{position.PROPERTY}<sink id>": "The snapshot keys above (but the event counts) as JSON, set by the "
        "same commit: it outlives another engine's `expire_snapshots`.",
        f"{commit.OWNER}<sink id>": "`<epoch>:<word>` of the sink that owns the table. One that finds another's stops.",
        commit.SOURCE_COLUMNS: "The columns as the source had them when the table took them, as JSON.",
    }
    dead_letters_keys = {
        position.LOG_POSITION: "Through which position of the log (`cdc.log-id`) the letters are complete.",
        dead_letters.COMPLETE: "Property: both as JSON; it outlives another engine's expiry.",
    }
    curated_properties = {
        merge.FILLING: "Columns that curated has newly and no merge has filled yet, as JSON. Absent for none.",
        merge.COMPLETE_THROUGH: "`<landing snapshot>:<curated head>`, after a merge that found nothing to commit: "
        "complete through that snapshot for as long as that is the head.",
    }
    maintained = {
        f"{runs.PROPERTY}<operation>": f"The newest {runs.RUNS_KEPT_MAX} runs of a maintenance operation, "
        "as JSON, newest first, failed ones too: when, at which snapshot, how long, what it met, "
        "the seconds of a read before and after. Decisions and the delete-debt model read it. "
        "Removed, it costs one run too early.",
        halted.PROPERTY: "Set by a run whose proof failed: which snapshot changed rows, its parent, the operation, "
        "when and what, as JSON. As long as it is there no maintenance of the table runs, and `files_are_healthy` "
        "fails. A person takes it away.",
    }
    tags = {
        position.POSITION_TAG: "On `landing.<table>`: the sink's newest snapshot. It keeps expiry from taking it.",
        f"{halted.KEEP_BEFORE}<snapshot>": "On landing and curated: the parent of a snapshot by which maintenance "
        "changed rows, to roll back to. No expiry takes it.",
        merge.reader_tag("<table>"): "On `landing.<table>`: the snapshot that curated was last made from, or found "
        "equal to. It keeps `expire_snapshots` from taking it.",
    }
    markers = {
        LOAD_BEGIN: "A load begins; `ts_ms`, and `columns` with name, the source's type, required and doc.",
        LOAD_END: "It is complete; `ts_ms`. A load that ends otherwise is void.",
    }
    sections: list[tuple[str, str, dict[str, str]]] = [
        ("Snapshot summary of landing", "", _LANDING),
        ("", "Counts of change events in the window; a kind that did not occur is absent:", counts),
        ("Table properties of landing", "", properties),
        ("Dead letters", "On `dead_letters.<table>`:", dead_letters_keys),
        ("Snapshot summary of curated", "", _CURATED),
        ("Table properties of curated", "", curated_properties),
        ("Table properties of landing and curated", "", maintained),
        ("Tags", "", tags),
        ("Markers in the change log", "Records with this `op`; all others are Debezium's events.", markers),
        ("Tags of Dagster runs", "On runs that a sensor has started.", _RUN_TAGS),
    ]
    lines: list[str] = []
    for title, intro, rows in sections:
        lines += ([f"## {title}", ""] if title else []) + ([intro, ""] if intro else [])
        lines += ["| key | meaning |", "| --- | --- |"]
        lines += [f"| `{key}` | {told} |" for key, told in rows.items()] + [""]
    return _page("Metadata keys", about, *lines)


def keys_written() -> set[str]:
    """Every `cdc.*` key, or prefix of keys, that stands as a text in the package's code."""
    package = Path(cdc_platform.__file__).parent
    found: set[str] = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if text.startswith("cdc.") and text.replace("-", "").replace(".", "").isalpha():
                    found.add(text)
    return found


def event_kinds() -> set[str]:
    """Kinds of events that a window counts."""
    return {*events.KINDS.values(), "stale", "dead", "redelivered", "tombstone", "other"}


PAGES: dict[str, Callable[[], str]] = {
    "tables.md": tables,
    "cli.md": cli,
    "metadata-keys.md": metadata_keys,
    "types.md": types_page,
}


def main() -> None:
    """Write every page."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
        sys.stdout.write(f"{REFERENCE / name}\n")


if __name__ == "__main__":
    main()
