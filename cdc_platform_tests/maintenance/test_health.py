"""What files and history say of a table; which deletes apply, against the specification's own words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.lake import files
from cdc_platform.lake.files import FileListing, LiveFile, live_files
from cdc_platform.maintenance.health import (
    dangling,
    figures_of,
    health_of,
    small,
    table_health,
)
from cdc_platform.maintenance.plan import rewrite_plan
from cdc_platform.maintenance.runs import since_rewrite
from cdc_platform_tests.builders import history
from cdc_platform_tests.landing.test_transaction import NAME, Bench

MB = 1024 * 1024
PATHS = ("d/a", "d/ab", "d/abc", "d/b", "d/ba", "d/c", "é", "\U0001f600")
SCOPES = ((0, ()), (1, (1,)), (1, (2,)), (2, (1,)))  # Spec 0 is unpartitioned; 2 has a partition that looks like 1's.


def data(path: str, number: int, scope: Any = (0, ()), *, size: int = 1, records: int = 10) -> LiveFile:
    return LiveFile("data", path, records, size, number, *scope)


def equality(number: int, scope: Any = (0, ()), records: int = 1) -> LiveFile:
    return LiveFile("equality_deletes", f"e{number}", records, 7, number, *scope, equality_ids=(1,))


def position(
    number: int, names: tuple[str | None, str | None], scope: Any = (0, ()), *, vector: bool = False, records: int = 1
) -> LiveFile:
    return LiveFile(
        *("position_deletes", "p", records, 5, number, *scope), vector=vector, names_from=names[0], names_to=names[1]
    )


def listing(*found: LiveFile, snapshot_id: int = 1) -> FileListing:
    return FileListing("t", snapshot_id, 3, found, frozenset({0}), 3, 300, 1000, 0.5)


def names(delete: LiveFile, path: str) -> bool:
    if delete.names_from is not None and delete.names_from == delete.names_to:
        return path == delete.names_from
    after = delete.names_from is None or path >= delete.names_from
    # A bound that was cut without being raised: what begins with it may be named.
    before = delete.names_to is None or path <= delete.names_to or path.startswith(delete.names_to)
    return after and before


def applies(delete: LiveFile, file: LiveFile, found: FileListing) -> bool:
    """Iceberg spec, "Scan Planning", for one delete and one data file."""
    same_scope = (delete.spec_id, delete.partition) == (file.spec_id, file.partition)
    if delete.content == "equality_deletes":
        everywhere = delete.spec_id in found.unpartitioned_specs
        return file.sequence_number < delete.sequence_number and (everywhere or same_scope)
    if not (same_scope and file.sequence_number <= delete.sequence_number and names(delete, file.path)):
        return False
    return delete.vector or not any(v.vector and applies(v, file, found) for v in found.files)


def by_the_book(found: FileListing) -> list[LiveFile]:
    live = [f for f in found.files if f.content == "data"]
    return [d for d in found.files if d.content != "data" and not any(applies(d, f, found) for f in live)]


numbers, scopes, paths = st.integers(1, 6), st.sampled_from(SCOPES), st.sampled_from(PATHS)
bounds = st.one_of(
    st.just((None, None)), paths.map(lambda p: (p, p)), st.tuples(st.none() | paths, st.none() | paths | st.just("d/"))
)
deletes = st.one_of(
    st.builds(equality, numbers, scopes),
    st.builds(position, numbers, bounds, scopes),
    st.builds(lambda n, p, s: position(n, (p, p), s, vector=True), numbers, paths, scopes),
)
lives = st.dictionaries(paths, st.tuples(numbers, scopes)).map(lambda d: [data(p, n, s) for p, (n, s) in d.items()])


@given(lives, st.lists(deletes, max_size=8))
def test_a_delete_dangles_exactly_when_the_specification_applies_it_to_no_file(
    live: list[LiveFile], gone: list[LiveFile]
) -> None:
    found = listing(*live, *gone)
    assert dangling(found) == by_the_book(found)


@pytest.mark.parametrize(
    ("delete", "applied"),
    [
        (equality(5), False),  # Equal numbers: rows of the same commit stay.
        (equality(6), True),
        (equality(6, (1, (1,))), False),  # Under a partition, it is for that partition of that spec.
        (position(5, (None, None)), True),  # Equal numbers: a position delete is for its own commit's files, too.
        (position(4, (None, None)), False),
        (position(5, ("d/a", "d/a")), True),
        (position(5, ("d/b", "d/c")), False),
        (position(5, ("c", "d/")), True),  # A bound cut to `d/` may name all below it.
        (position(5, ("d/a", "d/a"), (1, (1,))), False),
        (position(5, ("d/a", "d/a"), vector=True), True),
        (position(5, ("d/b", "d/b"), vector=True), False),
    ],
)
def test_each_rule_of_what_a_delete_applies_to(delete: LiveFile, applied: bool) -> None:
    assert (dangling(listing(data("d/a", 5), delete)) == []) is applied


def test_a_vector_takes_the_place_of_the_position_deletes_of_its_file() -> None:
    vector, other = position(6, ("d/a", "d/a"), vector=True), position(5, ("d/a", "d/b"))
    assert dangling(listing(data("d/a", 5), vector, other)) == [other]
    assert dangling(listing(data("d/a", 5), data("d/b", 5), vector, other)) == []


def test_figures_are_by_kind_of_file_and_a_vector_weighs_its_own_bytes() -> None:
    found = listing(
        data("d/a", 1, size=96 * MB),  # Three quarters of the target: no longer small.
        data("d/b", 1, size=96 * MB - 1),
        data("d/c", 1, size=231 * MB),  # Too large: the small one's companion.
        equality(2, records=30),
        position(2, (None, None), records=4),
        position(2, ("d/a", "d/a"), vector=True, records=2),
        snapshot_id=3,
    )
    past = history("t", ("append", {}), ("replace", {"deleted-data-files": "1"}), ("append", {}))
    health = health_of(found, past, target_file_mb=128, history_bytes=9)
    assert (health.data_files, health.data_records, health.data_bytes) == (3, 30, 423 * MB - 1)
    assert health.small_files == 1
    assert (health.equality_delete_files, health.equality_deletes) == (1, 30)
    assert (health.position_delete_files, health.position_deletes) == (1, 4)
    assert (health.deletion_vectors, health.vector_deletes) == (1, 2)
    assert (health.delete_files, health.deletes, health.delete_bytes) == (3, 36, 7 + 5 + 5)
    assert (health.delete_ratio, health.equality_deletes_per_data_file) == (36 / 30, 10)
    assert (health.snapshots, health.oldest_snapshot_ms, health.commits_since_rewrite) == (3, 1000, 1)
    assert (health.manifests, health.manifest_bytes, health.metadata_bytes) == (3, 300, 1000)
    assert (health.planning_s, health.history_bytes, health.dangling_delete_files) == (0.5, 9, 0)


def test_a_file_that_is_alone_in_its_partition_is_not_small_for_no_rewrite_merges_it() -> None:
    one, two = (1, (1,)), (1, (2,))
    alone = listing(data("d/a", 1, one), data("d/b", 1, two), data("d/c", 1, two, size=100 * MB))
    assert small(alone, 128) == []
    beside = listing(data("d/a", 1, one), data("d/b", 1, two), data("d/c", 1, two))
    assert [f.path for f in small(beside, 128)] == ["d/b", "d/c"]
    large = listing(data("d/a", 1, one, size=250 * MB), data("d/b", 1, one))  # It is split, and takes the other along.
    assert [f.path for f in small(large, 128)] == ["d/b"]
    older = replace(listing(data("d/a", 1, one), data("d/b", 1, two)), spec_id=2)  # Under an older spec: one place.
    assert len(small(older, 128)) == 2


@given(lives)
def test_small_files_without_deletes_are_those_that_a_rewrite_plans_to_take(live: list[LiveFile]) -> None:
    plan = rewrite_plan(listing(*live), (), target_mb=128, group_mb_max=1000, run_mb_max=1000)
    assert plan.paths == {f.path for f in small(listing(*live), 128)}


def test_an_empty_table_has_no_ratio_to_speak_of_and_all_its_deletes_dangle() -> None:
    health = health_of(listing(equality(2)), history("t", ("overwrite", {})), target_file_mb=1)
    assert (health.delete_ratio, health.equality_deletes_per_data_file, health.dangling_delete_files) == (0, 0, 1)


def test_a_summary_without_all_totals_gives_no_figures_rather_than_zeros() -> None:
    names = ("data-files", "records", "files-size", "delete-files", "equality-deletes", "position-deletes")
    totals = {f"total-{name}": str(n) for n, name in enumerate(names, 1)}
    found = figures_of(history("t", ("append", totals)))
    assert found is not None
    assert (found.data_files, found.data_records, found.data_bytes) == (1, 2, 3)
    assert (found.delete_files, found.deletes) == (4, 5 + 6)
    for left_out in totals:
        rest = {k: v for k, v in totals.items() if k != left_out}
        assert figures_of(history("t", ("append", rest))) is None
    assert figures_of(history("t")) is None


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    files.CACHE.clear()
    return Bench(tmp_path)


def test_health_of_a_table_that_the_sink_wrote_agrees_with_its_summary_and_the_book(bench: Bench) -> None:
    assert table_health(bench.other, NAME, 128) is None
    assert table_health(bench.other, "landing.none", 128) is None
    for number in range(1, 36):
        bench.commit(number, ids=(number, 100))
    health, found, past = (
        table_health(bench.other, NAME, 128, with_history=True),
        live_files(bench.other, NAME),
        bench.other.history(NAME),
    )
    assert health is not None
    assert found is not None
    assert past is not None
    figures = figures_of(past)
    assert figures is not None
    assert (health.data_files, health.delete_files, health.deletes) == (35, 35, 70)
    assert (figures.data_files, figures.delete_files, figures.deletes) == (35, 35, 70)
    assert (figures.data_records, figures.data_bytes) == (
        health.data_records,
        health.data_bytes + health.delete_bytes,
    )
    assert (health.commits_since_rewrite, since_rewrite(past).commits) == (35, 35)
    assert dangling(found) == by_the_book(found)
    assert health.dangling_delete_files == 1  # The first commit's: nothing was there before it.
    assert health.history_bytes == 0
    bench.commit(36, ids=(1,), replace_all=True)
    replaced = table_health(bench.other, NAME, 128, with_history=True)
    assert replaced is not None
    assert (replaced.data_files, replaced.delete_files) == (1, 0)
    assert replaced.history_bytes == health.data_bytes + health.delete_bytes
