"""A table's snapshots as plain values, and the walk back through their parents.

Belongs here: what Iceberg metadata says of a table's history. Does not: reading it (`lake/catalog.py`),
or what a `cdc.*` key means to a stage.
Rules: a snapshot names its parent; `replace` changes no live row (Iceberg spec, "Snapshots").
Totals in a summary count files truly; `total-records` overcounts on a table that has deletes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

_DIGITS_MAX = 19  # Of a 64-bit count.


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed state of a table. `timestamp_ms` is UTC, by the writer's clock."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    operation: str
    timestamp_ms: int
    summary: Mapping[str, str]

    def total(self, name: str) -> int:
        """A `total-*` figure of the summary, 0 when the writer left it out."""
        return self.figure(f"total-{name}") or 0

    def figure(self, key: str) -> int | None:
        """A count in the summary; None when the writer left it out, or wrote what is none (all keys are optional)."""
        text = self.summary.get(key, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or a tag, and what it declares of its own retention; None: the table's defaults."""

    name: str
    snapshot_id: int
    branch: bool
    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None  # Branches: of their ancestors.
    snapshots_min: int | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column as Iceberg's schema has it."""

    name: str
    type: str
    required: bool
    doc: str = ""


@dataclass(frozen=True, slots=True)
class TableHistory:
    """A table's schema, properties and snapshots, read at one moment."""

    table: str
    columns: tuple[Column, ...]
    head_id: int | None
    snapshots: Mapping[int, Snapshot]
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    refs: Mapping[str, int] = field(default_factory=dict[str, int])
    retention: tuple[Ref, ...] = ()  # The same refs, with what each declares.

    @property
    def head(self) -> Snapshot | None:
        """The current snapshot of the main branch."""
        return self.snapshots.get(self.head_id) if self.head_id is not None else None

    def ancestry(self, of: int | None = None) -> Iterator[Snapshot]:
        """The head (or snapshot `of`) and its parents, newest first; ends where a parent has been expired.

        Only snapshots that are asked for are looked at: most callers want one of the newest.
        """
        visited = set[int]()
        cursor = self.head_id if of is None else of
        while cursor is not None and cursor in self.snapshots and cursor not in visited:  # Bounded by `visited`.
            visited.add(cursor)
            snapshot = self.snapshots[cursor]
            yield snapshot
            cursor = snapshot.parent_id

    def newest(self, wanted: Callable[[Snapshot], bool]) -> Snapshot | None:
        """The newest snapshot in the ancestry that `wanted` accepts."""
        return next((s for s in self.ancestry() if wanted(s)), None)
