"""Plans from listings: what is taken, how it is bounded, what is known of the time."""

from dataclasses import replace

from cdc_platform.lake.files import FileListing, LiveFile
from cdc_platform.maintenance.plan import (
    GROUPS_MAX,
    KEY_BYTES,
    MB,
    RewritePlan,
    estimate,
    position_delete_plan,
    rewrite_plan,
)
from cdc_platform.maintenance.runs import PastRun


def data(path: str, number: int = 1, mb: float = 100, partition: tuple[object, ...] = ()) -> LiveFile:
    return LiveFile("data", path, 1_000, int(mb * MB), number, 0, partition)


def keys(path: str, number: int, records: int = 50) -> LiveFile:
    return LiveFile("equality_deletes", path, records, 1_000, number, 0, (), equality_ids=(1,))


def positions(path: str, number: int, of: str | None = None) -> LiveFile:
    return LiveFile("position_deletes", path, 5, 1_000, number, 0, (), names_from=of, names_to=of)


def listing(*files: LiveFile, spec_id: int | None = None) -> FileListing:
    return FileListing("landing.t", 7, 2, files, frozenset({0}), 3, 3_000, 900, 0.1, spec_id=spec_id)


def plan(*files: LiveFile, past: tuple[PastRun, ...] = (), spec_id: int | None = None, **limits: int) -> RewritePlan:
    given = {"target_mb": 128, "group_mb_max": 1024, "run_mb_max": 102_400} | limits
    return rewrite_plan(listing(*files, spec_id=spec_id), past, **given)


def in_spec(file: LiveFile, spec_id: int = 1, partition: tuple[object, ...] = ("p",)) -> LiveFile:
    return replace(file, spec_id=spec_id, partition=partition)


def test_files_with_deletes_are_taken_and_those_written_after_them_are_not() -> None:
    found = plan(data("a", 1), data("b", 3), keys("d", 2), keys("d3", 3))
    assert found.paths == {"a"}
    assert (found.data_bytes, found.delete_files, found.deletes) == (100 * MB, 2, 100)
    assert found.memory_bytes == 100 * KEY_BYTES
    written_after = plan(data("a", 2), keys("d", 2))
    assert (written_after.data_files, written_after.dangling_delete_files) == (0, 1)
    assert (written_after.is_empty, written_after.groups) == (False, 1)  # The same call removes what dangles.
    assert plan(data("a", 2)).is_empty


def test_a_position_delete_takes_the_file_that_it_names() -> None:
    found = plan(data("a"), data("b"), positions("p", 1, of="b"))
    assert (found.paths, found.dangling_delete_files) == ({"b"}, 0)
    assert plan(data("a"), positions("p", 1, of="gone")).dangling_delete_files == 1


def test_small_files_are_merged_when_there_are_two_in_a_partition() -> None:
    assert plan(data("a", mb=1), data("b", mb=1)).paths == {"a", "b"}
    assert plan(data("a", mb=1), data("b", mb=100)).is_empty
    assert plan(data("a", mb=1, partition=(1,)), data("b", mb=1, partition=(2,))).is_empty


def test_a_call_takes_no_more_than_a_group_whichever_files_are_picked() -> None:
    files = [data(f"f{n}", mb=300 if n == 0 else 100) for n in range(10)]
    found = plan(*files, keys("d", 2), group_mb_max=550)
    assert (found.files_per_call, found.groups) == (3, 4)  # 300 + 100 + 100 fit, one more does not.
    assert plan(*files, keys("d", 2), group_mb_max=100).files_per_call == 2
    # Where all fit, those that a writer adds until the call fit too: none of the plan's may be left out for them.
    whole = plan(*files, keys("d", 2), group_mb_max=1200)
    assert (whole.files_per_call >= 10 + 500, whole.groups) == (True, 1)
    assert plan(*files, keys("d", 2), group_mb_max=1199).files_per_call == 9


def test_a_run_is_bounded_by_its_bytes() -> None:
    files = [data(f"f{n}") for n in range(40)]
    assert plan(*files, keys("d", 2), group_mb_max=1000).groups == 4
    assert plan(*files, keys("d", 2), group_mb_max=1000, run_mb_max=2000).groups == 2
    assert plan(*files, keys("d", 2), group_mb_max=100).groups == 10  # GROUPS_MAX


def test_many_small_files_beside_a_large_one_are_as_many_calls_as_they_need() -> None:
    """A call is bounded by the number of its files, and that by the largest."""
    files = [data("large", mb=1000), *(data(f"f{n}", mb=1) for n in range(90))]
    found = plan(*files, keys("d", 2))
    assert (found.files_per_call, found.groups) == (25, 4)
    assert found.groups * found.files_per_call >= found.data_files
    more = plan(*files, *(data(f"g{n}", mb=1) for n in range(2_000)), keys("d", 2))
    assert more.groups == GROUPS_MAX


def test_one_file_that_is_too_large_is_split_and_one_that_is_too_small_stays() -> None:
    assert plan(data("a", mb=1.8 * 128 + 1)).paths == {"a"}
    assert plan(data("a", mb=1.8 * 128)).is_empty
    assert plan(data("a", mb=1)).is_empty


def test_files_of_older_specs_are_one_partition_whatever_theirs_was() -> None:
    old = [in_spec(data(f"f{n}", mb=1), partition=(n,)) for n in range(3)]
    assert plan(*old, spec_id=1).is_empty
    assert plan(*old, spec_id=2).paths == {"f0", "f1", "f2"}
    # Where new files have no partitions, they are one with the old ones.
    assert plan(old[0], data("new", mb=1), spec_id=0).paths == {"f0", "new"}


def test_dangling_deletes_alone_are_work_for_one_call() -> None:
    young = in_spec(data("a", 5))
    found = plan(young, in_spec(positions("p", 4)), in_spec(keys("d", 5)), spec_id=1)
    assert (found.data_files, found.dangling_delete_files, found.groups, found.is_empty) == (0, 2, 1, False)
    assert not plan(in_spec(keys("d", 5)), spec_id=1).is_empty  # No data is left.


def test_time_is_unknown_before_the_first_run_and_then_by_the_median_of_past_ones() -> None:
    run = PastRun(1, 1, took_s=10, changed=True, rewritten_bytes=100 * MB)
    assert estimate((), MB) is None
    assert estimate((replace(run, changed=False),), MB) is None
    assert estimate((run, replace(run, took_s=30), replace(run, took_s=20)), 200 * MB) == 40
    assert estimate((run,), 1) == 10  # A small one is all overhead.
    assert "unknown" in plan(data("a"), keys("d", 2)).lines()[-1]


def test_vectors_are_not_position_delete_files() -> None:
    vector = replace(positions("v", 1, of="a"), vector=True)
    assert position_delete_plan(listing(data("a"), vector), ()).is_empty
    assert position_delete_plan(listing(data("a"), positions("p", 1)), ()).deletes == 5
