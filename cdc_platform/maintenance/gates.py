"""Which operations an engine must not do to a table: known to corrupt it, or to do nothing.

Belongs here: the table of versions and conditions, and the refusal that follows. Does not: asking the engine
(`maintenance/procedures.py`), whether an operation is due.
Rules: each gate names where it was reported or who measured it. A version that can't be read is refused where any
version corrupts: unknown is never taken for right. `fixed` is the first version that is free of it.
What is no gate, though reported: `rewrite_data_files` loses no equality delete as long as it keeps the starting
sequence number (apache/iceberg #10312 asks), which `maintenance/procedures.py` always does (Iceberg 1.12.0, measured:
with it 100 keys deleted meanwhile stay deleted; without it the rewrite fails).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cdc_platform.errors import ConfigError
from cdc_platform.maintenance.runs import Operation

Version = tuple[int, int, int]
_TEXT_MAX = 200  # Characters; a longer text is no version.
FORMATS = frozenset({1, 2, 3})  # That this release was tested against; a later one is refused.


@dataclass(frozen=True, slots=True)
class Engine:
    """What a server says of itself, as it says it."""

    iceberg: str
    spark: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What of a table decides."""

    format_version: int
    refs: int = 1  # Branches and tags, main among them.
    position_delete_files: int = 0  # Deletion vectors apart.
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    mixed_specs: bool = False  # A spec without a partition beside one with: the sink's own layout, once partitioned.


@dataclass(frozen=True, slots=True)
class Gate:
    """One known case. `fixed` None: no version is free of it."""

    operation: Operation
    harm: Literal["corrupts", "does nothing", "fails"]
    fixed: Version | None
    reason: str
    source: str
    when: Callable[[Facts], bool] = lambda _: True


def _gc_is_off(facts: Facts) -> bool:
    return facts.properties.get("gc.enabled", "true").lower() == "false"


_DELETING: tuple[Operation, ...] = ("expire_snapshots", "remove_orphan_files")
GATES: tuple[Gate, ...] = (
    Gate(
        "rewrite_manifests",
        "corrupts",
        (1, 12, 0),
        "it gives every row of a v3 table a new _row_id, so each reader by row lineage sees every row as new",
        "measured with 1.10.2, 1.11.0 and 1.12.0; apache/iceberg #16263",
        lambda facts: facts.format_version >= 3,
    ),
    Gate(
        "rewrite_data_files",
        "corrupts",
        (1, 10, 0),
        "it loses the row lineage of a v3 table and may leave deletion vectors of files that are gone",
        "apache/iceberg #13555, #13245, #13222",
        lambda facts: facts.format_version >= 3,
    ),
    Gate(
        "expire_snapshots",
        "corrupts",
        (1, 10, 0),
        "on a table with more than one branch or tag it may delete data files that a snapshot still needs",
        "apache/iceberg #13568, fixed by #13614",
        lambda facts: facts.refs > 1,
    ),
    Gate(
        "rewrite_data_files",
        "corrupts",
        (1, 12, 0),
        "it removes equality deletes of the unpartitioned spec as dangling where data is under a partitioned one, so "
        "that deleted rows come back",
        "measured with 1.11.0: 7,992 rows became 7,998; apache/iceberg #15727",
        lambda facts: facts.mixed_specs,
    ),
    Gate(
        "rewrite_data_files",
        "fails",
        (1, 7, 0),
        "it does not know the option remove-dangling-deletes",
        "apache/iceberg #9724, #11377",
    ),
    Gate(
        "rewrite_position_delete_files",
        "does nothing",
        None,
        "the table has no position-delete file, and it touches no deletion vector",
        "measured with 1.12.0",
        lambda facts: facts.format_version >= 3 and facts.position_delete_files == 0,
    ),
    *(
        Gate(
            operation,
            "fails",
            None,
            "the table says gc.enabled=false: its files may belong to another table too",
            "measured with 1.12.0",
            _gc_is_off,
        )
        for operation in _DELETING
    ),
)


# What may stand behind the numbers of a release: semver build metadata, Amazon's builds, "(commit ...)".
_BUILD = re.compile(r"(-amzn-\d+(\.\d+)*)?(\+[-.\w]+)?(\s*\(.*\))?\s*", re.ASCII | re.IGNORECASE)


def version_of(text: str) -> Version | None:
    """The numbers of a version such as `1.12.0` or `1.13.0-SNAPSHOT`; None when there are none.

    A pre-release counts as the version before it: what its release fixes, it may not. Whatever stands behind the
    numbers makes one, unless it is known to mark a build of the release itself: there are too many words for it.
    """
    found = re.match(r"\s*v?(\d+)\.(\d+)(?:\.(\d+))?(.*)", text, re.ASCII | re.DOTALL)
    if found is None or len(found[0]) > _TEXT_MAX:
        return None
    major, minor, patch = int(found[1]), int(found[2]), int(found[3] or 0)
    return (major, minor, patch if _BUILD.fullmatch(found[4]) else patch - 1)


def refusal(operation: Operation, facts: Facts, engine: Engine) -> str | None:
    """Why `operation` must not be run on such a table by this engine; None when it may."""
    if facts.format_version not in FORMATS:
        return f"format version {facts.format_version} is not known to this release; it was tested with 1, 2 and 3"
    found = version_of(engine.iceberg)
    for gate in GATES:
        if gate.operation != operation or not gate.when(facts):
            continue
        if gate.fixed is None:
            return f"{gate.reason} ({gate.source})"
        fixed = ".".join(map(str, gate.fixed))
        if found is None:
            return (
                f"the engine's Iceberg version is unknown (it says {engine.iceberg!r}), and before {fixed} "
                f"{gate.reason} ({gate.source})"
            )
        if found < gate.fixed:
            return f"Iceberg {engine.iceberg} {gate.harm}: {gate.reason}; {fixed} does not ({gate.source})"
    return None


def require(operation: Operation, table: str, facts: Facts, engine: Engine) -> None:
    """Raise ConfigError when `operation` must not be run on this table by this engine."""
    if (reason := refusal(operation, facts, engine)) is not None:
        raise ConfigError(
            f"{operation} is refused: {reason}",
            where=f"{table}, format version {facts.format_version}, Iceberg {engine.iceberg}, Spark {engine.spark}",
            action="Leave this operation out for this table, or upgrade the engine to the version named",
        )
