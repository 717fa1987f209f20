"""Which columns a record has: where in a batch they change, and what the source calls them.

A record carries its names and types, nothing else. Whether a column is an old one renamed, or whether rows hold a value
that no event told, only the source's catalog knows, and that is read now: it may be newer than the record (capture
lags, or begins again further back). So each column of a record is taken from the catalog only where that is proven,
else from the newest marker in the log, else it is said to be unknown (type ""): nothing is guessed.

Belongs here: the search in a batch, and that proof. Does not: Java (`capture/engine.py`), the catalog's SQL
(`source/columns.py`), what a change means for landing (`landing/evolution.py`).
Rule: pgoutput sends a table's description anew after anything that may have changed it, ANALYZE included, and Debezium
then makes a new schema instance, which never gives way to an older one (seen, 3.6.3). So of a batch's records of one
table only as many are asked as a search by halves needs, and equal instances at both ends mean no change between.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

from cdc_platform.source.columns import Catalog, CatalogColumn, Declared
from cdc_platform.source.types import SourceColumn

_XID_EPOCH = 1 << 32
_UNBOUNDED_NUMERIC = {0, 131089}  # Length of a numeric without precision, by JDBC's metadata and by pgoutput's.
_NO_LENGTH = 2**31 - 1
_MICROSECONDS = 6


@dataclass(frozen=True, slots=True)
class RecordColumn:
    """A column as the record's schema has it. `type` is the type's own name in upper case; a domain's is the domain."""

    name: str
    type: str
    length: int | None = None
    scale: int | None = None


class RecordSchema(Protocol):
    """The schema instance of one record."""

    def is_same(self, other: "RecordSchema") -> bool:
        """Whether it is the very same instance."""
        ...

    def columns(self) -> tuple[RecordColumn, ...]:
        """The row's columns, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class TableColumns:
    """A table's columns as a marker in the log holds them."""

    columns: tuple[SourceColumn, ...]
    declared: tuple[Declared | None, ...]  # For each column; None where it is not known.
    storage: int = 0  # Storage file that the rows were in, from when no newer columns were in the catalog; 0: unknown.

    @classmethod
    def of_catalog(cls, catalog: Catalog) -> Self:
        """The columns as they are now."""
        return cls(
            tuple(k.column for k in catalog.columns), tuple(k.declared for k in catalog.columns), catalog.storage
        )

    @classmethod
    def of_marker(cls, facts: Mapping[str, Any]) -> Self:
        """What a marker says."""
        columns = tuple(SourceColumn(**c) for c in facts["columns"])
        declared = facts.get("declared") or [None] * len(columns)
        return cls(columns, tuple(None if d is None else Declared(*d) for d in declared), int(facts.get("storage", 0)))

    def facts(self) -> dict[str, Any]:
        """As the fields of a marker."""
        return {
            "columns": [asdict(c) for c in self.columns],
            "declared": [None if d is None else [d.type, d.modifier] for d in self.declared],
            "storage": self.storage,
        }

    def same_columns(self, other: "TableColumns") -> bool:
        """Whether no marker is needed between records of both."""
        return [(c.name, c.type, c.required, c.number) for c in self.columns] == [
            (c.name, c.type, c.required, c.number) for c in other.columns
        ]


def starts(count: int, same: Callable[[int, int], bool]) -> list[int]:
    """Which of `count` things in a row, but for the first, begin a new kind, where an old kind never comes back."""

    def between(low: int, high: int) -> Iterator[int]:  # Depth: the logarithm of a batch.
        if same(low, high):
            return
        if high - low == 1:
            yield high
            return
        middle = (low + high) // 2
        yield from between(low, middle)
        yield from between(middle, high)

    return list(between(0, count - 1)) if count > 1 else []


def columns_of(
    record: Sequence[RecordColumn], *, writer: int | None, catalog: Catalog, known: TableColumns | None
) -> TableColumns:
    """The columns of a record, each proven or of type "".

    `writer` is the 32-bit id of the record's transaction, None for a row of an initial load, whose names were read
    through JDBC (other type names) and whose moment is the load's. `known` is what the log's newest marker says.

    A column is the catalog's of that name and type if its entry was last touched by a transaction older than the
    writer: it has the table's lock to itself, so nothing came between. Else it is the known one if that still agrees;
    else the catalog's if the number proves it: the same as the known one's, or new ones that follow the known in the
    catalog exactly as in the record, with no number between that is gone (numbers are given in order).
    """
    now = {k.column.name: k for k in catalog.columns}
    before = {c.name: (c, d) for c, d in zip(known.columns, known.declared, strict=True)} if known else {}
    last = max((c.number for c, _ in before.values()), default=0)
    added = [c.name for c in record if c.name not in before]
    later = [k.column for k in catalog.columns if k.column.number > last][: len(added)]
    in_place = (
        last > 0
        and [c.name for c in later] == added
        and not any(last < n <= later[-1].number for n in catalog.dropped if later)
    )

    columns: list[SourceColumn] = []
    declared: list[Declared | None] = []
    proven = True
    for one in record:
        found, old = now.get(one.name), before.get(one.name)
        agrees = found is not None and (writer is None or agree(one, found.declared))
        if found is not None and agrees and (writer is None or _precedes(found.changed_by, writer)):
            column, kind = found.column, found.declared
        elif old is not None and old[1] is not None and agree(one, old[1]):
            (column, kind), proven = old, False
        elif found is not None and agrees and (_same_number(found, old) or (old is None and in_place)):
            column, kind, proven = found.column, found.declared, False
        else:
            column, kind, proven = SourceColumn(one.name, "", required=False), None, False
        columns.append(column)
        declared.append(kind)
    is_now = proven and [c.name for c in record] == [k.column.name for k in catalog.columns]
    storage = catalog.storage if is_now else known.storage if known and writer is not None else 0
    if known is not None:
        numbers = {c.number for c in known.columns if c.number}
        rewritten = not known.storage or known.storage != catalog.storage
        columns = [c if not c.number or c.number in numbers else _filled(c, rewritten) for c in columns]
    return TableColumns(tuple(columns), tuple(declared), storage)


def _filled(column: SourceColumn, rewritten: bool) -> SourceColumn:
    """A column that is new: what a rewrite of the table put into it is in no event."""
    return replace(column, filled=column.filled or rewritten)


def _same_number(found: CatalogColumn, old: tuple[SourceColumn, Declared | None] | None) -> bool:
    return old is not None and old[0].number == found.column.number


def _precedes(a: int, b: int) -> bool:
    """PostgreSQL's order of 32-bit transaction ids; a transaction sees its own changes."""
    return (b - a) % _XID_EPOCH < _XID_EPOCH // 2


def agree(record: RecordColumn, declared: Declared) -> bool:
    """Whether a streamed record's column may have that type; precision is compared where Debezium tells it."""
    if record.type != declared.type.upper():
        return False
    base, modifier = declared.type.removeprefix("_"), declared.modifier
    if base == "numeric":
        if modifier < 0:
            return record.length in _UNBOUNDED_NUMERIC
        scale = (modifier - 4) & 0x7FF
        return record.length == (modifier - 4) >> 16 & 0xFFFF and (scale > 1000 or record.scale == scale)
    if base in {"timestamp", "timestamptz", "time", "timetz"}:
        return record.scale == (modifier if modifier >= 0 else _MICROSECONDS)
    if base in {"varchar", "bpchar"}:
        return record.length == (modifier - 4 if modifier >= 0 else _NO_LENGTH)
    return True
