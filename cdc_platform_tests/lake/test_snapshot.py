"""A table's history: the walk through parents, and names in SQL."""

from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.lake.spark import columns_sql, quoted, text


def made(*parents: tuple[int, int | None], head: int | None) -> TableHistory:
    snapshots = {i: Snapshot(i, parent, i, "append", 0, {"total-data-files": str(i)}) for i, parent in parents}
    return TableHistory("t", (), head, snapshots)


def ids(history: TableHistory) -> list[int]:
    return [s.snapshot_id for s in history.ancestry()]


def test_the_ancestry_follows_parents_and_not_numbers() -> None:
    assert ids(made((1, None), (2, 1), (3, 1), (4, 3), head=4)) == [4, 3, 1]  # 2 was rolled back.


def test_the_ancestry_ends_where_a_parent_was_expired() -> None:
    assert ids(made((3, 2), (4, 3), head=4)) == [4, 3]


def test_an_empty_table_has_none_and_a_ring_ends() -> None:
    assert ids(made(head=None)) == []
    assert ids(made((1, 2), (2, 1), head=1)) == [1, 2]


def test_a_total_that_the_writer_left_out_is_zero() -> None:
    head = made((7, None), head=7).head
    assert head is not None
    assert (head.total("data-files"), head.total("delete-files")) == (7, 0)


def test_names_and_texts_are_quoted_whatever_they_hold() -> None:
    assert quoted("lake", "a`b") == "`lake`.`a``b`"
    assert columns_sql(["a", "b`"], "s") == "`s`.`a`, `s`.`b```"
    assert text("it's a \\") == "'it\\'s a \\\\'"
