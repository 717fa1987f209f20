"""Landing follows a change of columns only where its rows then read as the source's do; else it says what to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.errors import ConfigError
from cdc_platform.landing.evolution import (
    AddColumn,
    DropColumn,
    Evolution,
    RenameColumn,
    Step,
    WidenColumn,
    evolution,
)
from cdc_platform.source.types import SourceColumn

ID = SourceColumn("id", "integer", required=True, number=1)
NOTE = SourceColumn("note", "text", required=False, number=2)
TOTAL = SourceColumn("total", "numeric(12,2)", required=False, number=3)
BEFORE = (ID, NOTE, TOTAL)


def evolve(
    after: Sequence[SourceColumn], before: Sequence[SourceColumn] = BEFORE, **named: tuple[str, ...]
) -> Evolution:
    entries = {k.replace("__", "."): v for k, v in named.items()}
    return evolution(before, after, table="orders", key=("id",), named=entries)


def typed(postgres: str, number: int = 9) -> SourceColumn:
    return SourceColumn("v", postgres, required=False, number=number)


def test_nothing_changes_where_nothing_changed_but_what_landing_does_not_hold() -> None:
    assert evolve(BEFORE) == Evolution((), BEFORE)
    nullable = replace(TOTAL, required=True)
    assert evolve((ID, NOTE, nullable)) == Evolution((), (ID, NOTE, nullable))
    assert evolve((ID, NOTE, replace(TOTAL, filled=True))).steps == ()


def test_each_safe_change_is_a_step() -> None:
    new = SourceColumn("new", "date", required=False, doc="d", number=4)
    assert evolve((*BEFORE, new)).steps == (AddColumn("new", "date", "d"),)
    assert evolve((ID, TOTAL)).steps == (DropColumn("note"),)
    assert evolve((ID, replace(NOTE, name="remark"), TOTAL)).steps == (RenameColumn("note", "remark"),)
    assert evolve((ID, NOTE, replace(TOTAL, type="numeric(14,2)"))).steps == (WidenColumn("total", "decimal(14, 2)"),)


def test_steps_are_in_an_order_in_which_each_is_possible() -> None:
    """`total` takes the name of the dropped `note`, and a new column takes `total`."""
    after = (ID, replace(TOTAL, name="note", type="numeric(13,2)"), SourceColumn("total", "text", False, number=4))
    assert evolve(after).steps == (
        DropColumn("note"),
        RenameColumn("total", "note"),
        WidenColumn("note", "decimal(13, 2)"),
        AddColumn("total", "string", ""),
    )
    chain = (ID, replace(NOTE, name="total"), replace(TOTAL, name="sum"))
    assert evolve(chain).steps == (RenameColumn("total", "sum"), RenameColumn("note", "total"))


@pytest.mark.parametrize(
    ("old", "new", "widened"),
    [
        ("smallint", "integer", None),  # Both are Iceberg's int.
        ("smallint", "bigint", "long"),
        ("integer", "bigint", "long"),
        ("real", "double precision", "double"),
        ("numeric(5)", "numeric(6)", "decimal(6, 0)"),
        ("numeric(50,2)", "numeric(60,2)", None),  # Text already.
        ("numeric(50,2)", "numeric", None),
        ("character varying(20)", "character varying(30)", None),
        ("character varying(20)", "text", None),
        ("enum", "text", None),
        ("timestamp(3) with time zone", "timestamp with time zone", None),
        ("uuid", "character varying", None),
    ],
)
def test_a_wider_type_keeps_every_value(old: str, new: str, widened: str | None) -> None:
    found = evolve((ID, typed(new)), before=(ID, typed(old)))
    assert found.steps == (() if widened is None else (WidenColumn("v", widened),))
    assert found.columns == (ID, typed(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bigint", "integer"),
        ("bigint", "smallint"),
        ("numeric(12,2)", "numeric(9,2)"),
        ("numeric(50,2)", "numeric(4,2)"),
    ],
)
def test_a_narrower_type_that_changes_no_value_leaves_landing_as_it_is_and_may_go_back(old: str, new: str) -> None:
    found = evolve((ID, typed(new)), before=(ID, typed(old)))
    assert found == Evolution((), (ID, typed(old)))
    assert evolve((ID, typed(new)), before=found.columns) == found
    assert evolve((ID, typed(old)), before=found.columns) == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("double precision", "real"),
        ("numeric(12,2)", "numeric(12,3)"),
        ("numeric(12,3)", "numeric(12,2)"),
        ("numeric(12,2)", "numeric"),  # Landing's decimal can't become text.
        ("numeric(38,2)", "numeric(39,2)"),
        ("numeric", "numeric(12,2)"),
        ("numeric(50,2)", "numeric(50,1)"),
        ("integer", "numeric(10,0)"),
        ("integer", "text"),
        ("bigint", "double precision"),
        ("timestamp with time zone", "timestamp(3) with time zone"),
        ("timestamp without time zone", "timestamp with time zone"),
        ("date", "timestamp without time zone"),
        ("text", "jsonb"),
        ("json", "jsonb"),
        ("text", "character varying(10)"),  # Trailing spaces would be cut.
        ("character varying(20)", "character varying(10)"),
        ("enum", "character varying(10)"),
        ("character(3)", "character(5)"),
        ("character(3)", "text"),
        ("text", "enum"),
        ("inet", "text"),
        ("text", "bytea"),
        ("text", "public.made_up"),
    ],
)
def test_a_type_change_that_may_change_values_stops_the_table(old: str, new: str) -> None:
    with pytest.raises(ConfigError) as refused:
        evolve((ID, typed(new)), before=(ID, typed(old)))
    assert str(refused.value) == (
        f"landing.orders: the type of column `v` changed from {old} to {new}, which may have changed values that no "
        "event tells. Take a new load of this table: `cdc-platform reload orders`."
    )


@pytest.mark.parametrize(
    ("after", "named", "what", "action"),
    [
        (
            (*BEFORE, SourceColumn("new", "integer", False, number=4, filled=True)),
            {},
            "column `new` was added with a value for the rows that were there",
            "cdc-platform reload orders",
        ),
        (
            (*BEFORE, SourceColumn("new", "tsvector[]", False, number=4)),
            {},
            r"has type tsvector[], which is not supported",
            "Change its type at the source, then run `cdc-platform reload orders`",
        ),
        ((*BEFORE, SourceColumn("__cdc_op", "text", False, number=4)), {}, "a name that the platform keeps", "Rename"),
        ((*BEFORE, SourceColumn("new", "", False)), {}, "no longer tells what `new` was", "reload orders"),
        ((ID, replace(NOTE, number=7), TOTAL), {}, "`note` was dropped and added again", "reload orders"),
        ((ID, replace(NOTE, name="total"), replace(TOTAL, name="note")), {}, "exchanged their names", "reload orders"),
        ((NOTE, TOTAL), {}, "`id`, which `key` names, is gone", "tables.orders.key in tables.yaml"),
        ((replace(ID, name="nr"), NOTE, TOTAL), {}, "`id`, which `key` names, is called `nr`", "tables.orders.key"),
        ((replace(ID, type="bigint"), NOTE, TOTAL), {}, "the type of key column `id` changed", "reload orders"),
        (
            (ID, TOTAL),
            {"curated__contract": ("note",)},
            "`note`, which `curated.contract` names, is gone",
            "Correct tables.orders.curated.contract in tables.yaml",
        ),
        (
            (ID, NOTE, replace(TOTAL, name="sum")),
            {"convergence__sums": ("total",)},
            "`total`, which `convergence.sums` names, is called `sum` at the source now",
            "or change it back at the source",
        ),
    ],
)
def test_what_landing_can_not_follow_is_refused_with_what_to_do(
    after: tuple[SourceColumn, ...], named: dict[str, tuple[str, ...]], what: str, action: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        evolve(after, **named)
    assert what in refused.value.what
    assert action in refused.value.action


def test_without_numbers_names_stand_for_columns_and_a_rename_is_not_guessed() -> None:
    unnumbered = tuple(replace(c, number=0) for c in BEFORE)
    assert evolve(BEFORE, before=unnumbered) == Evolution((), BEFORE)
    assert evolve(unnumbered) == Evolution((), BEFORE)
    assert evolve((*BEFORE, typed("date", 4)), before=unnumbered).steps == (AddColumn("v", "date", ""),)
    assert evolve((ID, TOTAL), before=unnumbered).steps == (DropColumn("note"),)
    with pytest.raises(ConfigError, match="a rename can't be told from a drop and an add"):
        evolve((ID, replace(NOTE, name="remark"), TOTAL), before=unnumbered)


# A model of the source: PostgreSQL's DDL on rows in memory, and landing's rows under the steps.

_FITS = {"smallint": 1 << 15, "integer": 1 << 31, "bigint": 1 << 63}


@dataclass
class Source:
    """A table whose columns change. `events` alone reach landing."""

    columns: list[SourceColumn] = field(default_factory=lambda: [ID])
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    numbered: int = 1

    def add(self, name: str, kind: str, default: int | None) -> None:
        if any(c.name == name for c in self.columns):
            return
        self.numbered += 1
        filled = default is not None and bool(self.rows)
        self.columns.append(SourceColumn(name, kind, required=False, number=self.numbered, filled=filled))
        for row in self.rows.values():
            row[name] = default

    def drop(self, at: int) -> None:
        if len(self.columns) > 1:
            gone = self.columns.pop(1 + at % (len(self.columns) - 1))
            for row in self.rows.values():
                del row[gone.name]

    def rename(self, at: int, to: str) -> None:
        if len(self.columns) > 1 and all(c.name != to for c in self.columns):
            i = 1 + at % (len(self.columns) - 1)
            old = self.columns[i].name
            self.columns[i] = replace(self.columns[i], name=to)
            for row in self.rows.values():
                row[to] = row.pop(old)

    def retype(self, at: int, kind: str) -> None:
        if len(self.columns) > 1:
            i = 1 + at % (len(self.columns) - 1)
            name, limit = self.columns[i].name, _FITS[kind]
            if all(r[name] is None or -limit <= r[name] < limit for r in self.rows.values()):  # Or PostgreSQL refuses.
                self.columns[i] = replace(self.columns[i], type=kind)

    def require(self, at: int, required: bool) -> None:
        i = at % len(self.columns)
        self.columns[i] = replace(self.columns[i], required=required)


def follow(rows: dict[int, dict[str, Any]], steps: Sequence[Step]) -> None:
    for step in steps:
        for row in rows.values():
            if isinstance(step, AddColumn):
                assert step.name not in row
                row[step.name] = None
            elif isinstance(step, DropColumn):
                del row[step.name]
            elif isinstance(step, RenameColumn):
                assert step.to not in row
                row[step.to] = row.pop(step.name)


NAMES, KINDS = st.sampled_from("abcd"), st.sampled_from(sorted(_FITS))
CHANGES: st.SearchStrategy[Callable[[Source], None]] = st.one_of(
    st.builds(lambda n, k, d: lambda s: s.add(n, k, d), NAMES, KINDS, st.none() | st.integers(0, 9)),
    st.builds(lambda i: lambda s: s.drop(i), st.integers(0, 9)),
    st.builds(lambda i, n: lambda s: s.rename(i, n), st.integers(0, 9), NAMES),
    st.builds(lambda i, k: lambda s: s.retype(i, k), st.integers(0, 9), KINDS),
    st.builds(lambda i, r: lambda s: s.require(i, r), st.integers(0, 9), st.booleans()),
)


@given(moments=st.lists(st.lists(CHANGES, max_size=4), max_size=6), values=st.lists(st.integers(-99_999, 99_999)))
def test_landing_under_the_steps_holds_what_the_source_holds_or_is_refused(
    moments: list[list[Callable[[Source], None]]], values: list[int]
) -> None:
    """At each moment several changes come at once, then a row; landing sees only the columns before and after."""
    source, landing = Source(), dict[int, dict[str, Any]]()
    before: tuple[SourceColumn, ...] = (ID,)
    for n, changes in enumerate(moments):
        for change in changes:
            change(source)
        try:
            found = evolve(tuple(source.columns), before=before)
        except ConfigError:
            return
        follow(landing, found.steps)
        before = found.columns
        assert landing == source.rows
        row = {c.name: (values[n] % 99 if n < len(values) else None) for c in source.columns} | {"id": n}
        source.rows[n], landing[n] = dict(row), dict(row)
        # What landing's columns stand for holds every value that the source's do.
        for stands, is_now in zip(before, source.columns, strict=True):
            assert stands.name == is_now.name
            assert _FITS[stands.type] >= _FITS[is_now.type]
        assert evolve(tuple(source.columns), before=before) == Evolution((), before)


@given(changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_a_single_change_that_fills_nothing_is_never_refused(changes: list[Callable[[Source], None]]) -> None:
    source = Source()
    source.add("a", "integer", None)
    source.add("b", "integer", None)
    for change in changes:  # The table is empty: nothing is filled.
        before = tuple(source.columns)
        change(source)
        evolve(tuple(source.columns), before=before)
