"""How a landing table follows a change of the source's columns, or why it can't.

Belongs here: the rule, on plain values. Does not: finding out that columns changed (`capture/schemas.py`), or changing
the Iceberg table (`landing/commit.py`).
Rules: landing follows where its present rows then read as the source's do, with no row told anew. Iceberg v2 widens int
to long, float to double, and a decimal's precision (spec, "Schema Evolution"); an added column reads as NULL in
rows that were there before. A narrowing that PostgreSQL allows only where every value fits changes no value, so landing
keeps the wider type. All else stops the table, and a new load of it alone is the remedy.
What no column tells: `ALTER ... TYPE ... USING` may change values under any type, the same one included; PostgreSQL
sends no event for it. The convergence checks find it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc_platform.errors import ConfigError
from cdc_platform.lake.types import promotes
from cdc_platform.registry.model import Policy
from cdc_platform.source.types import SourceColumn, iceberg_type, policy_of

_PLATFORMS_OWN = "__cdc_"
_INTEGERS = ("smallint", "integer", "bigint")
_MODIFIER = re.compile(r"^([a-z ]+?)\s*\((\d+)(?:,\s*(-?\d+))?\)(.*)$")
_TIMES = {
    "timestamp with time zone",
    "timestamp without time zone",
    "time with time zone",
    "time without time zone",
}
_MICROSECONDS = 6
# Casts between two types that landing keeps as text, under which the text stays what it is.
_SAME_TEXT = {
    "name": {"text", "citext", "character varying"},
    "character varying": {"text", "citext"},
    "text": {"citext", "character varying"},
    "citext": {"text", "character varying"},
    "uuid": {"text", "citext", "character varying"},
    "enum": {"text", "citext", "character varying"},
    "json": {"text"},
    "jsonb": {"text", "json"},
    "xml": {"text"},
}


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Landing loses the column."""

    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """The column keeps its field id, so rows keep their values."""

    name: str
    to: str


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """The column gets a wider Iceberg type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column that may be NULL, and is in all rows so far."""

    name: str
    type: str
    doc: str


Step = DropColumn | RenameColumn | WidenColumn | AddColumn


@dataclass(frozen=True, slots=True)
class Evolution:
    """`steps` in the order in which each is possible; none when landing is as it has to be.

    `columns` are what landing's columns stand for from here on: the source's, but with the wider type where the
    source's became narrower. They are the `before` of the next change.
    """

    steps: tuple[Step, ...]
    columns: tuple[SourceColumn, ...]


def evolution(
    before: Sequence[SourceColumn],
    after: Sequence[SourceColumn],
    *,
    table: str,
    key: Collection[str],
    named: Mapping[str, Collection[str]],
    types: Mapping[str, Policy] | None = None,
) -> Evolution:
    """Return how landing gets from `before` to `after`.

    `table` is the name in tables.yaml, `named` the columns that each of its entries names (`curated.contract`), `types`
    its `landing.types`.
    A column's number tells a rename from a drop and an add; where it is not known (0), names stand for it.

    Raises ConfigError with the reason and the remedy where landing can't follow.
    """
    rule = _Rule(table, key, named, types or {})
    rule.refuse_unreadable(after)
    pairs = rule.pairs(before, after)
    kept = {id(new): old for old, new in pairs}
    gone = [old for old in before if all(old is not o for o, _ in pairs)]
    steps: list[Step] = []
    for old in gone:
        rule.refuse_named(old.name, "is gone at the source")
        steps.append(DropColumn(old.name))
    renamed = {old.name: new.name for old, new in pairs if old.name != new.name}
    for name, to in renamed.items():
        rule.refuse_named(name, f"is called `{to}` at the source now")
    steps += rule.ordered(renamed)
    columns: list[SourceColumn] = []
    for new in after:
        old = kept.get(id(new))
        if old is None:
            steps.append(rule.added(new))
            columns.append(replace(new, filled=False))
        else:
            column, widened = rule.retyped(old, new)
            steps += [WidenColumn(new.name, widened)] if widened else []
            columns.append(column)
    adds = [s for s in steps if isinstance(s, AddColumn)]
    return Evolution((*[s for s in steps if not isinstance(s, AddColumn)], *adds), tuple(columns))


@dataclass(frozen=True, slots=True)
class _Rule:
    table: str
    key: Collection[str]
    named: Mapping[str, Collection[str]]
    types: Mapping[str, Policy]

    def home(self, column: SourceColumn) -> str | None:
        """The Iceberg type of the column's values, None when they have none."""
        return iceberg_type(column.type, policy_of(column, self.types))

    def refusal(self, what: str, action: str | None = None) -> ConfigError:
        return ConfigError(
            what,
            where=f"landing.{self.table}",
            action=action or f"Take a new load of this table: `cdc-platform reload {self.table}`",
        )

    def refuse_unreadable(self, after: Sequence[SourceColumn]) -> None:
        unknown = [c.name for c in after if not c.type]
        if unknown:
            raise self.refusal(
                f"capture met records of before a change of the columns after it, and the source no longer tells what "
                f"`{unknown[0]}` was then"
            )
        for column in after:
            if column.name.startswith(_PLATFORMS_OWN):
                raise self.refusal(
                    f"column `{column.name}` has a name that the platform keeps",
                    f"Rename it at the source, then run `cdc-platform reload {self.table}`",
                )

    def refuse_named(self, name: str, what: str) -> None:
        entries = [entry for entry, columns in self.named.items() if name in columns]
        if name in self.key:
            entries.insert(0, "key")
        if entries:
            raise self.refusal(
                f"column `{name}`, which `{entries[0]}` names, {what}",
                f"Correct tables.{self.table}.{entries[0]} in tables.yaml and restart the sink (`cdc-platform restart "
                f"sink`), or change it back at the source; then run `cdc-platform reload {self.table}`",
            )

    def pairs(
        self, before: Sequence[SourceColumn], after: Sequence[SourceColumn]
    ) -> list[tuple[SourceColumn, SourceColumn]]:
        """Which column after is which before."""
        by_number = {c.number: c for c in before if c.number}
        still = {c.number for c in after if c.number}
        by_name = {c.name: c for c in before if c.number not in still}
        found: list[tuple[SourceColumn, SourceColumn]] = []
        for new in after:
            old = by_number.get(new.number) if new.number else None
            if old is None and (same := by_name.get(new.name)) is not None:
                if new.number and same.number:
                    raise self.refusal(f"column `{new.name}` was dropped and added again at the source")
                old = same
            if old is not None:
                found.append((old, new))
        gone = [old for old in before if all(old is not o for o, _ in found)]
        come = [new for new in after if all(new is not n for _, n in found)]
        if any(not old.number for old in gone) and come:
            names = f"`{gone[0].name}` is gone and `{come[0].name}` is new"
            raise self.refusal(f"column {names} at the source: a rename can't be told from a drop and an add")
        if len({id(old) for old, _ in found}) < len(found):
            raise self.refusal("two columns at the source may be what one was before")
        return found

    def ordered(self, renamed: Mapping[str, str]) -> list[Step]:
        """Renames, each to a name that is free by then."""
        waiting, steps = dict(renamed), list[Step]()
        while waiting:  # Bounded: each turn takes one out, or ends.
            name = next((old for old, new in waiting.items() if new not in waiting), None)
            if name is None:
                raise self.refusal(
                    f"columns {', '.join(f'`{n}`' for n in waiting)} exchanged their names at the source"
                )
            steps.append(RenameColumn(name, waiting.pop(name)))
        return steps

    def added(self, new: SourceColumn) -> AddColumn:
        home = self.home(new)
        if home is None:
            raise self.refusal(
                f"column `{new.name}` is new and has type {new.type}, which is not supported",
                f"Change its type at the source, then run `cdc-platform reload {self.table}`",
            )
        if new.filled:
            raise self.refusal(
                f"column `{new.name}` was added with a value for the rows that were there, which the source sends to "
                "nobody"
            )
        return AddColumn(new.name, home, new.doc)

    def retyped(self, old: SourceColumn, new: SourceColumn) -> tuple[SourceColumn, str | None]:
        """What the column stands for now, and the Iceberg type that it is widened to, if it is."""
        if old.type == new.type or _is_same_or_wider(_parts(old.type), _parts(new.type)):
            was, becomes = self.home(old), self.home(new)
            new = replace(new, number=new.number or old.number)
            if was == becomes:
                return new, None
            if was is not None and becomes is not None and promotes(was, becomes):
                if new.name in self.key:
                    raise self.refusal(f"the type of key column `{new.name}` changed from {old.type} to {new.type}")
                return new, becomes
        elif _is_narrower(_parts(old.type), _parts(new.type)):
            return replace(new, type=old.type, number=new.number or old.number), None
        raise self.refusal(
            f"the type of column `{new.name}` changed from {old.type} to {new.type}, which may have changed values "
            "that no event tells"
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """`numeric(12,2)` is ("numeric", 12, 2); a modifier that is not given is None."""

    base: str
    first: int | None
    second: int | None


def _parts(postgres: str) -> _Parts:
    match = _MODIFIER.match(postgres)
    if match is None:
        return _Parts(postgres, None, None)
    return _Parts((match[1] + match[4]).strip(), int(match[2]), int(match[3] or 0))


def _is_same_or_wider(old: _Parts, new: _Parts) -> bool:
    """Whether every value of `old` is one of `new` and is spelled alike."""
    if old.base in _INTEGERS and new.base in _INTEGERS:
        return _INTEGERS.index(old.base) <= _INTEGERS.index(new.base)
    if old.base != new.base:
        # A limit cuts trailing spaces without a word, so only a text without one keeps all.
        kept = new.base in _SAME_TEXT.get(old.base, ()) and new.first is None
        return kept or (old.base, new.base) == ("real", "double precision")
    if old.base == "numeric":  # Without precision the digits after the point stay as many as they were.
        return new.first is None or (old.first is not None and old.first <= new.first and old.second == new.second)
    if old.base in _TIMES:
        return _precision(old) <= _precision(new)
    return old.base == "character varying" and (new.first is None or (old.first or new.first + 1) <= new.first)


def _precision(time: _Parts) -> int:
    return _MICROSECONDS if time.first is None else time.first


def _is_narrower(old: _Parts, new: _Parts) -> bool:
    """Whether PostgreSQL changes the type only where each value fits as it is, and otherwise refuses."""
    if old.base in _INTEGERS and new.base in _INTEGERS:
        return True
    same_scale = old.second == new.second
    return old.base == new.base == "numeric" and None not in (old.first, new.first) and same_scale
