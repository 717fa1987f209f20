"""Which columns a record has: proven by the catalog or the log, else said to be unknown."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.capture.schemas import RecordColumn, TableColumns, agree, columns_of, starts
from cdc_platform.source.columns import Catalog, CatalogColumn, Declared
from cdc_platform.source.types import SourceColumn

WRITER = 500
BEFORE, AFTER = 400, 600  # A transaction older, and one younger, than the record's.
INT = Declared("int4", -1)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_every_beginning_is_found_with_few_questions(lengths: list[int]) -> None:
    kinds = [kind for kind, length in enumerate(lengths) for _ in range(length)]
    asked: set[tuple[int, int]] = set()

    def same(a: int, b: int) -> bool:
        asked.add((a, b))
        return kinds[a] == kinds[b]

    assert starts(len(kinds), same) == [i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1]]
    assert len(asked) <= 1 + 2 * (len(lengths) - 1) * max(1, len(kinds).bit_length())


def known(*columns: tuple[str, int], storage: int = 7) -> TableColumns:
    return TableColumns(
        tuple(SourceColumn(name, "integer", required=False, number=n) for name, n in columns),
        (INT,) * len(columns),
        storage,
    )


def now(*columns: tuple[str, int, int], dropped: set[int] = frozenset(), storage: int = 7) -> Catalog:  # type: ignore[assignment]
    """Integer columns: name, number, and who changed them last."""
    return Catalog(
        tuple(CatalogColumn(SourceColumn(name, "integer", False, number=n), INT, by) for name, n, by in columns),
        frozenset(dropped),
        storage,
    )


def found(
    *names: str, catalog: Catalog, old: TableColumns | None, writer: int | None = WRITER
) -> list[tuple[str, int]]:
    """Name and number of each column of a record; number 0 where it is unknown."""
    columns = columns_of([RecordColumn(n, "INT4") for n in names], writer=writer, catalog=catalog, known=old)
    assert all(c.type == ("integer" if c.number else "") for c in columns.columns)
    return [(c.name, c.number) for c in columns.columns]


def test_what_was_last_changed_before_the_record_was_written_is_the_catalogs() -> None:
    catalog = now(("id", 1, BEFORE), ("b", 2, BEFORE), ("new", 3, WRITER))  # The writer may have altered it itself.
    assert found("id", "b", "new", catalog=catalog, old=known(("id", 1), ("a", 2))) == [("id", 1), ("b", 2), ("new", 3)]


def test_a_column_dropped_and_added_again_has_its_new_number() -> None:
    catalog = now(("id", 1, BEFORE), ("a", 3, BEFORE), dropped={2})
    assert found("id", "a", catalog=catalog, old=known(("id", 1), ("a", 2))) == [("id", 1), ("a", 3)]


def test_a_record_of_before_a_change_has_the_columns_that_the_log_knows() -> None:
    """Capture was down while `a` was dropped, or renamed, or dropped and added again; `b` came later."""
    old = known(("id", 1), ("a", 2))
    for catalog in (
        now(("id", 1, BEFORE), dropped={2}),
        now(("id", 1, BEFORE), ("z", 2, AFTER)),
        now(("id", 1, BEFORE), ("a", 3, AFTER), dropped={2}),
        now(("id", 1, AFTER), ("a", 2, AFTER), ("b", 3, AFTER)),
    ):
        assert found("id", "a", catalog=catalog, old=old) == [("id", 1), ("a", 2)]


def test_columns_added_one_after_another_while_capture_was_down_are_known_by_their_place() -> None:
    """The entries changed since (NOT NULL, a default), but no later number is gone and the names stand in a row."""
    catalog = now(("id", 1, BEFORE), ("a", 2, AFTER), ("b", 3, AFTER))
    assert found("id", "a", catalog=catalog, old=known(("id", 1))) == [("id", 1), ("a", 2)]
    assert found("id", "a", "b", catalog=catalog, old=known(("id", 1))) == [("id", 1), ("a", 2), ("b", 3)]
    gone_since = replace(catalog, dropped=frozenset({4}))
    assert found("id", "a", "b", catalog=gone_since, old=known(("id", 1))) == [("id", 1), ("a", 2), ("b", 3)]


def test_what_is_not_proven_is_unknown() -> None:
    old = known(("id", 1))
    assert found("id", "a", catalog=now(("id", 1, BEFORE)), old=old) == [("id", 1), ("a", 0)]
    gone = now(("id", 1, BEFORE), ("a", 3, AFTER), dropped={2})  # Was it number 2 then?
    assert found("id", "a", catalog=gone, old=old) == [("id", 1), ("a", 0)]
    renamed = now(("id", 1, BEFORE), ("b", 2, AFTER), ("a", 3, AFTER))
    assert found("id", "a", catalog=renamed, old=old) == [("id", 1), ("a", 0)]
    retyped = Catalog((CatalogColumn(SourceColumn("id", "bigint", True, number=1), Declared("int8", -1), AFTER),))
    assert found("id", catalog=retyped, old=None) == [("id", 0)]


def test_a_row_of_a_load_is_as_the_load() -> None:
    """JDBC names types otherwise (`serial`), and the load's moment is the look-up's, or a little later."""
    assert found("id", catalog=now(("id", 1, AFTER)), old=known(("id", 1)), writer=None) == [("id", 1)]
    assert found("id", "a", catalog=now(("id", 1, AFTER)), old=known(("id", 1)), writer=None) == [("id", 1), ("a", 0)]


@pytest.mark.parametrize(
    ("attribute", "before", "after", "filled"),
    [(False, 7, 7, False), (True, 7, 7, True), (False, 7, 8, True), (False, 0, 8, True)],
)
def test_a_new_column_is_filled_if_the_catalog_holds_a_value_or_the_table_was_written_anew(
    attribute: bool, before: int, after: int, filled: bool
) -> None:
    catalog = now(("id", 1, BEFORE), ("a", 2, BEFORE), storage=after)
    catalog = replace(
        catalog,
        columns=tuple(replace(k, column=replace(k.column, filled=attribute)) for k in catalog.columns),
    )
    columns = columns_of(
        [RecordColumn("id", "INT4"), RecordColumn("a", "INT4")],
        writer=WRITER,
        catalog=catalog,
        known=known(("id", 1), storage=before),
    )
    assert columns.columns[1].filled is filled
    assert columns.storage == after


def test_a_storage_file_counts_from_a_moment_at_which_the_catalog_held_nothing_newer() -> None:
    """Else a column that a rewrite fills, after the look-up, would not show as filled."""
    catalog = now(("id", 1, BEFORE), ("z", 2, AFTER), storage=8)
    first = columns_of([RecordColumn("id", "INT4")], writer=WRITER, catalog=catalog, known=known(("id", 1)))
    assert first.storage == 7
    load = columns_of([RecordColumn("id", "INT4")], writer=None, catalog=catalog, known=known(("id", 1), storage=8))
    assert load.storage == 0
    both = [RecordColumn("id", "INT4"), RecordColumn("z", "INT4")]
    assert columns_of(both, writer=AFTER, catalog=catalog, known=first).columns[1].filled
    assert columns_of(both, writer=AFTER, catalog=catalog, known=load).columns[1].filled


def test_a_marker_says_all_of_it() -> None:
    columns = TableColumns(
        (SourceColumn("id", "integer", True, "doc", 1, True), SourceColumn("x", "", False)), (INT, None), 9
    )
    assert TableColumns.of_marker(columns.facts()) == columns
    assert TableColumns.of_marker({"columns": [{"name": "a", "type": "text", "required": False}]}) == TableColumns(
        (SourceColumn("a", "text", False),), (None,), 0
    )


@pytest.mark.parametrize(
    ("record", "declared", "agrees"),
    [
        (RecordColumn("c", "INT4", 10, 0), Declared("int4", -1), True),
        (RecordColumn("c", "INT8", 19, 0), Declared("int4", -1), False),
        (RecordColumn("c", "NUMERIC", 12, 2), Declared("numeric", (12 << 16 | 2) + 4), True),
        (RecordColumn("c", "NUMERIC", 12, 3), Declared("numeric", (12 << 16 | 2) + 4), False),
        (RecordColumn("c", "NUMERIC", 131089, 0), Declared("numeric", -1), True),
        (RecordColumn("c", "NUMERIC", 12, 2), Declared("numeric", -1), False),
        (RecordColumn("c", "_NUMERIC", 5, 1), Declared("_numeric", (5 << 16 | 1) + 4), True),
        (RecordColumn("c", "VARCHAR", 20, 0), Declared("varchar", 24), True),
        (RecordColumn("c", "VARCHAR", 20, 0), Declared("varchar", 34), False),
        (RecordColumn("c", "VARCHAR", 2**31 - 1, 0), Declared("varchar", -1), True),
        (RecordColumn("c", "TIMESTAMPTZ", 35, 6), Declared("timestamptz", -1), True),
        (RecordColumn("c", "TIMESTAMP", 26, 3), Declared("timestamp", 3), True),
        (RecordColumn("c", "TIMESTAMP", 26, 3), Declared("timestamp", -1), False),
        (RecordColumn("c", "MOOD", 2**31 - 1, 0), Declared("Mood", -1), True),
    ],
)
def test_precision_is_part_of_a_type(record: RecordColumn, declared: Declared, agrees: bool) -> None:
    """As Debezium 3.6.3 tells them; the real ones are in the end-to-end tests."""
    assert agree(record, declared) is agrees
