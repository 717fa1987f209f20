"""The record of runs in a table property, and how far back the last rewrite lies."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.landing.position import HEARTBEAT
from cdc_platform.maintenance.runs import (
    PROPERTY,
    RUNS_KEPT_MAX,
    PastRun,
    failures_in_a_row,
    past_runs,
    since_rewrite,
    with_run,
)
from cdc_platform_tests.builders import history

OPERATION = "rewrite_data_files"
RUN = PastRun(at_ms=1_764_543_021_000, snapshot_id=6_523_999_999_999_999_999, took_s=12.5, changed=True)

COMMIT = ("overwrite", dict[str, str]())
BEAT = ("append", {HEARTBEAT: "true"})
REWRITE = ("replace", {"deleted-data-files": "3"})
DELETES_ONLY = ("replace", {"removed-delete-files": "3"})


def stored(**other: object) -> str:
    """A record as JSON, with what is other about it."""
    return json.dumps([{"at_ms": 1, "snapshot_id": 2, "took_s": 3, "changed": True} | other])


def read(text: str) -> tuple[PastRun, ...]:
    return past_runs({PROPERTY + OPERATION: text}, OPERATION)


ANY_RUN = st.builds(
    PastRun,
    at_ms=st.integers(),
    snapshot_id=st.integers(-(1 << 63), (1 << 63) - 1),
    took_s=st.floats(),
    changed=st.booleans(),
    rewritten_bytes=st.integers(),
    delete_files=st.integers(),
    deletes=st.integers(),
    read_before_s=st.none() | st.floats(),
    read_after_s=st.none() | st.floats(),
    lost_s=st.floats(),
    small_files_left=st.none() | st.integers(),
    complete=st.booleans(),
    failed=st.booleans(),
    failures=st.integers(),
)


def kept(*runs: PastRun) -> tuple[PastRun, ...]:
    """These runs, recorded one after the other, as they are read."""
    properties = {"other": "kept"}
    for run in runs:
        name, value = with_run(properties, OPERATION, run)
        properties[name] = value
    assert past_runs(properties, "expire_snapshots") == ()
    assert properties.get(PROPERTY + OPERATION, "").count("at_ms") <= RUNS_KEPT_MAX
    assert len(properties.get(PROPERTY + OPERATION, "")) < 5_000
    return past_runs(properties, OPERATION)


@given(
    st.lists(
        st.builds(
            PastRun,
            at_ms=st.integers(0, 1 << 45),
            snapshot_id=st.integers(1, (1 << 63) - 1),
            took_s=st.floats(0, 1e6).map(lambda s: round(s, 3)),
            changed=st.just(True),
            delete_files=st.integers(0, 1 << 31),
            read_before_s=st.none() | st.floats(0, 1e6).map(lambda s: round(s, 3)),
            small_files_left=st.none() | st.integers(0, 1 << 31),
            complete=st.booleans(),
        ),
        max_size=RUNS_KEPT_MAX + 3,
    )
)
def test_runs_are_read_as_they_were_recorded_the_newest_first_and_at_most_ten(runs: list[PastRun]) -> None:
    assert kept(*runs) == tuple(reversed(runs))[:RUNS_KEPT_MAX]


@given(st.lists(ANY_RUN, max_size=RUNS_KEPT_MAX + 3))
def test_whatever_a_clock_or_a_count_gives_every_record_can_be_read(runs: list[PastRun]) -> None:
    read_back = kept(*runs)
    records = [
        run for run, before in zip(runs, [None, *runs], strict=False) if not (run.void and before and before.void)
    ]
    assert len(read_back) == min(len(records), RUNS_KEPT_MAX)
    assert [r.snapshot_id for r in read_back[:1]] == [r.snapshot_id for r in runs[-1:]]


VOID = replace(RUN, changed=False, complete=False, failed=True, lost_s=1.5)


def test_void_runs_in_a_row_are_one_record_that_counts_them_and_what_they_lost() -> None:
    read_back = kept(RUN, *[replace(VOID, at_ms=n) for n in range(30)])
    assert read_back == (replace(VOID, at_ms=29, failures=30, lost_s=45.0), RUN)
    assert failures_in_a_row(read_back) == 30
    assert failures_in_a_row(kept(*read_back[::-1], RUN)) == 0
    assert failures_in_a_row(kept(RUN, replace(RUN, failed=True), VOID, VOID)) == 3


def test_the_newest_run_that_did_not_fail_is_never_pushed_out_by_those_that_did() -> None:
    """Attempts count from it: without it an operation that always fails would have fresh ones."""
    nothing_to_do = replace(RUN, at_ms=77, changed=False)
    read_back = kept(*[RUN] * 12, nothing_to_do, *[replace(RUN, failed=True), VOID] * 20)
    assert next(run for run in read_back if not run.failed) == nothing_to_do


def test_a_void_run_leaves_the_count_of_commits_where_it_was() -> None:
    table = history("landing.t", COMMIT, REWRITE, COMMIT, COMMIT)
    name, value = with_run({}, OPERATION, replace(VOID, snapshot_id=4))
    assert since_rewrite(replace(table, properties={name: value})).commits == 2


def test_a_clock_that_was_set_back_during_a_run_costs_its_seconds_alone() -> None:
    set_back = replace(RUN, at_ms=-5, took_s=-2.0, lost_s=float("nan"), read_before_s=-1.0, read_after_s=float("inf"))
    read_back = kept(RUN, set_back)
    assert read_back == (replace(RUN, at_ms=0, took_s=0.0, lost_s=0.0, read_before_s=None, read_after_s=None), RUN)


def test_runs_that_found_nothing_to_do_do_not_push_out_what_a_table_has_learnt() -> None:
    nothing = [replace(RUN, at_ms=n, changed=False) for n in range(30)]
    learnt = [replace(RUN, at_ms=1000 + n) for n in range(3)]
    read_back = kept(*learnt, *nothing)
    assert read_back[0] == nothing[-1]
    assert read_back[-3:] == tuple(reversed(learnt))


@pytest.mark.parametrize(
    "bad", ["null", "7", "[]", "{}", stored(took_s=-1)[1:-1], stored(at_ms="1")[1:-1], stored(took_s=1e300)[1:-1]]
)
def test_a_record_that_can_not_be_read_costs_itself_alone(bad: str) -> None:
    one, two = stored(at_ms=5)[1:-1], stored(at_ms=4)[1:-1]
    assert [run.at_ms for run in read(f"[{one}, {bad}, {two}]")] == [5, 4]


def test_seconds_are_kept_to_the_millisecond() -> None:
    long = replace(RUN, took_s=1 / 3, read_before_s=2 / 3, read_after_s=None, lost_s=1 / 9)
    [read_back] = read(with_run({}, OPERATION, long)[1])
    assert read_back == replace(RUN, took_s=0.333, read_before_s=0.667, lost_s=0.111)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "{}",
        "7",
        "[1]",
        '[{"at_ms": 1}]',
        stored(took_s=float("nan")),
        stored(took_s=-1),
        stored(delete_files=1.5),
        stored(delete_files="1"),
        stored(changed=1),
        stored(at_ms=None),
        "[" * 60_000,
        stored() + " " * 70_000,
    ],
)
def test_what_is_not_ours_is_no_run(text: str) -> None:
    assert read(text) == ()


@given(st.text())
def test_reading_a_property_never_fails(text: str) -> None:
    assert read(text) == ()


def test_a_key_of_a_newer_version_is_left_alone() -> None:
    assert read(stored(new=1)) == (PastRun(1, 2, 3.0, True),)


def test_a_run_is_recorded_over_what_can_not_be_read() -> None:
    name, value = with_run({PROPERTY + OPERATION: "broken"}, OPERATION, RUN)
    assert past_runs({name: value}, OPERATION) == (RUN,)


@pytest.mark.parametrize(
    ("snapshots", "commits", "named"),
    [
        ([], 0, "the beginning"),
        ([COMMIT, COMMIT], 2, "the beginning"),
        ([COMMIT, REWRITE, COMMIT], 1, "rewrite 2"),
        ([COMMIT, REWRITE, COMMIT, REWRITE], 0, "rewrite 4"),
        ([COMMIT, REWRITE, COMMIT, DELETES_ONLY, COMMIT], 2, "rewrite 2"),
        ([COMMIT, BEAT, COMMIT], 2, "the beginning"),
        ([REWRITE, ("append", {}), ("delete", {})], 2, "rewrite 1"),
    ],
)
def test_commits_count_from_the_newest_rewrite_of_data_files(
    snapshots: list[tuple[str, dict[str, str]]], commits: int, named: str
) -> None:
    since = since_rewrite(history("landing.t", *snapshots))
    assert (since.commits, since.named, since.whole) == (commits, named, True)


@pytest.mark.parametrize(
    ("at", "commits", "named"), [(3, 1, "the run at 3"), (1, 2, "rewrite 2"), (99, 2, "rewrite 2")]
)
def test_a_run_that_found_nothing_counts_as_the_last_one(at: int, commits: int, named: str) -> None:
    name, value = with_run({}, OPERATION, replace(RUN, snapshot_id=at, changed=False))
    table = replace(history("landing.t", COMMIT, REWRITE, COMMIT, COMMIT), properties={name: value})
    since = since_rewrite(table)
    assert (since.commits, since.named) == (commits, named)


def test_a_cut_ancestry_is_said_to_be_cut() -> None:
    table = history("landing.t", COMMIT, COMMIT, COMMIT)
    cut = replace(table, snapshots={n: s for n, s in table.snapshots.items() if n > 1})
    since = since_rewrite(cut)
    assert (since.commits, since.named, since.whole) == (2, "the oldest snapshot that is left", False)
