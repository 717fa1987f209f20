"""Which snapshots stay: pins, chains, ages. Histories are drawn; the rules are asked of each."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.lake.snapshot import Ref, Snapshot, TableHistory
from cdc_platform.maintenance.protection import Retention, keeping, neighbour, swept
from cdc_platform_tests.builders import history

NOW = 1_000_000
NONE = Retention(age_ms=0, count_min=1)
FLINK = {"flink.operator-id": "op", "flink.max-committed-checkpoint-id": "1"}


def of(count: int, *refs: Ref, **summaries: dict[str, str]) -> TableHistory:
    """Snapshots 1 to `count`; `s3={...}` is the summary of the third."""
    made = history("landing.t", *[("append", summaries.get(f"s{n}", {})) for n in range(1, count + 1)])
    return replace(made, refs={r.name: r.snapshot_id for r in refs}, retention=refs)


def gone(found: TableHistory, retention: Retention = NONE) -> set[int]:
    return set(found.snapshots) - keeping(found, retention, now_ms=NOW).ids


@st.composite
def histories(draw: st.DrawFn) -> TableHistory:
    """A tree of snapshots with branches and tags anywhere on it."""
    count = draw(st.integers(1, 12))
    made = {
        n: Snapshot(n, draw(st.integers(1, n - 1)) if n > 1 else None, n, "append", 1_000 * n, {})
        for n in range(1, count + 1)
    }
    names = draw(st.lists(st.sampled_from(["reader_a", "reader_b", "keep_x", "dev", "sink_position"]), unique=True))
    refs = tuple(
        Ref(
            name,
            draw(st.integers(1, count)),
            branch=name == "dev",
            max_ref_age_ms=draw(st.none() | st.integers(1, 2 * NOW)) if name in {"keep_x", "dev"} else None,
        )
        for name in names
    )
    head = draw(st.integers(1, count))
    refs = (Ref("main", head, branch=True), *refs)
    return TableHistory("landing.t", (), head, made, {}, {r.name: r.snapshot_id for r in refs}, refs)


@given(histories(), st.integers(0, 2 * NOW), st.integers(1, 5))
def test_no_ref_loses_its_snapshot_and_no_reader_a_hop(found: TableHistory, age_ms: int, count_min: int) -> None:
    kept = keeping(found, Retention(age_ms, count_min, keep_refs=("keep_*",)), now_ms=NOW)
    assert found.head_id in kept.ids
    for ref in found.retention:
        if ref.name not in kept.refs_gone:
            assert ref.snapshot_id in kept.ids
        if ref.name.startswith("reader_"):
            chain = [s.snapshot_id for s in found.ancestry()]
            if ref.snapshot_id in chain:
                assert set(chain[: chain.index(ref.snapshot_id) + 1]) <= kept.ids
    assert "keep_x" not in kept.refs_gone
    assert len([s for s in found.ancestry() if s.snapshot_id in kept.ids]) >= min(
        count_min, len(list(found.ancestry()))
    )


def test_age_and_count_keep_the_newest() -> None:
    assert gone(of(5)) == {1, 2, 3, 4}
    assert gone(of(5), Retention(0, 3)) == {1, 2}
    assert gone(of(5), Retention(NOW - 3_000, 1)) == {1, 2}


def test_a_reader_keeps_every_snapshot_back_to_its_own_and_a_tag_only_its_own() -> None:
    kept = keeping(of(6, Ref("reader_x", 4, branch=False), Ref("keep_y", 2, branch=False)), NONE, now_ms=NOW)
    assert kept.ids == {2, 4, 5, 6}
    assert [(k.snapshot_id, k.by) for k in kept.kept] == [
        (4, "tag reader_x, 2 snapshots"),
        (2, "tag keep_y, 1 snapshot"),
    ]


def test_the_newest_position_of_the_sink_of_a_merge_and_of_flink_stay_with_the_way_back_to_them() -> None:
    assert gone(of(5, s2={"cdc.log-position": "1"}, s3={"cdc.log-position": "2"})) == {1, 2}
    assert gone(of(5, s4={"cdc.upstream-snapshot": "9"})) == {1, 2, 3}
    assert gone(of(5, s3={"flink.job-id": "a"} | FLINK)) == {1, 2}


def test_a_flink_job_that_another_followed_is_waited_for_as_long_as_a_snapshot_lives() -> None:
    both = of(5, s2={"flink.job-id": "a"} | FLINK, s4={"flink.job-id": "b"} | FLINK)
    assert gone(both) == {1, 2, 3}
    assert gone(both, Retention(NOW - 2_000, 1)) == {1}
    other = of(5, s2={"flink.job-id": "a"} | FLINK, s4={"flink.job-id": "b"} | FLINK | {"flink.operator-id": "o2"})
    assert gone(other) == {1}


def test_a_ref_past_its_own_age_goes_unless_a_pattern_keeps_it() -> None:
    found = of(5, Ref("old", 1, branch=False, max_ref_age_ms=10), Ref("main", 5, branch=True))
    assert keeping(found, NONE, now_ms=NOW).refs_gone == ("old",)
    kept = keeping(found, Retention(0, 1, keep_refs=("o*",)), now_ms=NOW)
    assert (kept.refs_gone, [r.name for r in kept.refs_renewed], 1 in kept.ids) == ((), ["old"], True)


def test_what_a_branch_declares_of_itself_is_what_the_procedure_sweeps() -> None:
    declared = Ref("main", 5, branch=True, max_snapshot_age_ms=NOW - 4_000, snapshots_min=1)
    assert swept(of(5, declared), now_ms=NOW) == {1, 2, 3}
    assert swept(of(5, Ref("main", 5, branch=True)), now_ms=NOW) == set()


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        ("file:///w/outer", "other"),
        ("file:/w/outer/", "other"),
        ("/w/outer/parts/inner", "other"),
        ("file:///w", "other"),
        ("file:/w/outer2", None),
        ("file:/w/out", None),
        ("file:/w/outer_parts/inner", None),
    ],
)
def test_a_table_in_above_or_below_the_same_folder_is_a_neighbour(theirs: str, found: str | None) -> None:
    places = {"far": ["file:/elsewhere"], "other": ["file:/apart", theirs]}
    assert neighbour("file:/w/outer", places) == found


def test_a_bucket_under_another_scheme_is_the_same_place() -> None:
    assert neighbour("s3a://b/t", {"other": ["s3://b/t/data"]}) == "other"
    assert neighbour("s3a://b/t", {"other": ["s3://c/t"]}) is None
