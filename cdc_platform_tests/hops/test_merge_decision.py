"""Whether a merge is due, from both tables' histories alone."""

from dataclasses import replace

from cdc_platform.hops.merge import COMPLETE_THROUGH, UPSTREAM_SNAPSHOT, merge_decision, merged_through, reader_tag
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.landing.position import HEARTBEAT, LOAD_POSITION, LOG_POSITION
from cdc_platform_tests.builders import history

LOADED = {LOG_POSITION: "5", LOAD_POSITION: "5"}
REWRITE = ("replace", dict[str, str]())


def landing(*snapshots: tuple[str, dict[str, str]], tag: int | None = None) -> TableHistory:
    return history("landing.t", *snapshots, refs={reader_tag("t"): tag} if tag else {})


def curated(*upstream: int, word: str = "") -> TableHistory:
    made = history("curated.t", *[("overwrite", {UPSTREAM_SNAPSHOT: str(u)}) for u in upstream])
    return replace(made, properties={COMPLETE_THROUGH: word} if word else {})


COMMIT = ("overwrite", LOADED)


def test_nothing_is_due_before_landing_has_a_whole_load() -> None:
    assert merge_decision(None, None).due is False
    assert merge_decision(landing(), None).due is False
    half = merge_decision(landing(("overwrite", {LOG_POSITION: "5"})), None)
    assert (half.due, "would delete rows" in half.reason) == (False, True)


def test_the_first_load_is_due_and_named() -> None:
    found = merge_decision(landing(COMMIT), None)
    assert found.upstream is not None
    assert (found.due, found.upstream.snapshot_id, found.reason) == (True, 1, "1 landing commits since the beginning")


def test_commits_after_the_merged_one_are_due_and_counted_without_rewrites() -> None:
    found = merge_decision(landing(COMMIT, COMMIT, REWRITE, COMMIT), curated(1))
    assert found.upstream is not None
    assert (found.due, found.upstream.snapshot_id, found.reason) == (
        True,
        4,
        "2 landing commits since landing snapshot 1",
    )


def test_a_rewrite_alone_is_nothing_to_merge() -> None:
    assert merge_decision(landing(COMMIT, REWRITE), curated(1)).due is False


def test_a_merge_that_committed_nothing_leaves_its_word_for_as_long_as_the_head_is_the_same() -> None:
    two = landing(COMMIT, COMMIT)
    assert merge_decision(two, curated(1, word="2:1")).due is False
    assert merge_decision(two, curated(1, 1, word="2:1")).due is True  # Another merge committed since.
    assert merge_decision(two, curated(word="2:None")).due is False  # An empty landing, and an empty curated.


def test_an_older_merge_that_ends_last_is_seen_for_what_it_is() -> None:
    """It read landing 2, another merged 3, then it went on: curated's head is 2's, whatever the tag says."""
    through = merged_through(landing(COMMIT, COMMIT, COMMIT, tag=3), curated(1, 3, 2))
    assert through is not None
    assert through.snapshot_id == 2


def test_a_curated_table_that_was_dropped_is_due_whatever_the_tag_says() -> None:
    assert merge_decision(landing(COMMIT, tag=1), None).due is True
    assert merge_decision(landing(COMMIT, tag=1), curated()).due is True


def test_an_upstream_that_was_expired_is_due_from_the_beginning() -> None:
    assert merge_decision(landing(COMMIT), curated(99)).reason == "1 landing commits since the beginning"


def test_a_heartbeat_is_nothing_to_merge_but_stands_for_a_window_that_expired() -> None:
    beat = ("append", LOADED | {HEARTBEAT: "true"})
    idle = merge_decision(landing(COMMIT, beat), curated(1))
    assert (idle.due, idle.reason) == (False, "curated is complete through landing snapshot 1")
    whole = landing(COMMIT, COMMIT, beat)
    expired = replace(whole, snapshots={3: whole.snapshots[3]})
    found = merge_decision(expired, curated(1))
    assert found.upstream is not None
    assert (found.due, found.upstream.snapshot_id) == (True, 3)
