"""When each operation is due, why not, and what is alarming."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.landing.position import HEARTBEAT
from cdc_platform.maintenance.health import TableHealth
from cdc_platform.maintenance.plan import Kept
from cdc_platform.maintenance.policy import (
    HISTORY_BYTES_MIN,
    METADATA_BYTES_MAX,
    Decision,
    expiry_due,
    limits,
    past_retention,
    positions_due,
    quiet,
    rewrite_due,
)
from cdc_platform.maintenance.runs import PROPERTY, Operation, PastRun, with_run
from cdc_platform.registry.maintenance import Maintenance
from cdc_platform_tests.builders import history

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
NOW_MS = 20_000 * DAY_MS + 12 * HOUR_MS  # 2024-10-04, noon.
POLICY = Maintenance(
    rewrite_after_commits=10,
    rewrite_delete_files=100,
    rewrite_delete_ratio=0.5,
    rewrite_small_files=50,
    positions_after_files=5,
    expire_after_snapshots=20,
)
COMMIT = ("overwrite", {"total-records": "1000"})
REWRITE = ("replace", {"deleted-data-files": "3", "total-records": "1000"})
RUN = PastRun(NOW_MS - HOUR_MS, 2, took_s=30.0, changed=True)


TOTALS_OF_NONE = {
    f"total-{name}": "0"
    for name in ("data-files", "records", "files-size", "delete-files", "equality-deletes", "position-deletes")
}


def table(*snapshots: tuple[str, dict[str, str]], commits: int = 0, **totals: int) -> TableHistory:
    """These snapshots, then `commits` of the sink; the head's summary has `totals`. One a second, the head now."""
    made = history("landing.t", *snapshots, *[COMMIT] * commits)
    last = len(made.snapshots)
    dated = {
        n: replace(s, timestamp_ms=NOW_MS - 1000 * (last - n), summary={**TOTALS_OF_NONE, **s.summary})
        for n, s in made.snapshots.items()
    }
    if last:
        summary = {**dated[last].summary, **{f"total-{k.replace('_', '-')}": str(v) for k, v in totals.items()}}
        dated[last] = replace(dated[last], summary=summary)
    return replace(made, snapshots=dated)


def without(made: TableHistory, key: str, value: str | None = None) -> TableHistory:
    """The table as a writer makes it that leaves this key out of its summaries, or writes this instead."""
    snapshots = {
        n: replace(
            s, summary={k: v for k, v in s.summary.items() if k != key} | ({} if value is None else {key: value})
        )
        for n, s in made.snapshots.items()
    }
    return replace(made, snapshots=snapshots)


def recorded(made: TableHistory, *runs: PastRun, operation: Operation = "rewrite_data_files") -> TableHistory:
    """The table with these runs, oldest first."""
    properties = dict(made.properties)
    for run in runs:
        name, value = with_run(properties, operation, run)
        properties[name] = value
    return replace(made, properties=properties)


def healthy(**other: object) -> TableHealth:
    """A table of nine good files at snapshot 3, but for `other`."""
    made = TableHealth(
        table="landing.t",
        snapshot_id=3,
        format_version=2,
        data_files=9,
        data_records=1000,
        data_bytes=9 << 27,
        small_files=0,
        equality_delete_files=0,
        equality_deletes=0,
        position_delete_files=0,
        position_deletes=0,
        deletion_vectors=0,
        vector_deletes=0,
        delete_bytes=0,
        dangling_delete_files=0,
        snapshots=3,
        oldest_snapshot_ms=NOW_MS,
        commits_since_rewrite=3,
        manifests=1,
        manifest_bytes=1000,
        metadata_bytes=1000,
        planning_s=0.01,
    )
    return replace(made, **other)  # type: ignore[arg-type]


def due(made: TableHistory | None, health: TableHealth | None = None, policy: Maintenance = POLICY) -> Decision:
    return rewrite_due(made, health, policy, NOW_MS)


# ---- rewrite_data_files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "health", "trigger"),
    [
        (table(commits=10), None, "rewrite_after_commits"),
        (table(commits=9), None, None),
        (table(REWRITE, commits=10), None, "rewrite_after_commits"),
        (table(COMMIT, REWRITE, commits=9), None, None),
        (table(("append", {HEARTBEAT: "true"}), commits=9), None, None),
        (table(commits=3, delete_files=100), None, "rewrite_delete_files"),
        (table(commits=3, delete_files=99), None, None),
        (table(commits=3, equality_deletes=300, position_deletes=200), None, "rewrite_delete_ratio"),
        (table(commits=3, equality_deletes=300, position_deletes=199), None, None),
        (table(commits=3), healthy(equality_delete_files=60, deletion_vectors=40), "rewrite_delete_files"),
        (table(commits=3), healthy(equality_delete_files=60, deletion_vectors=39), None),
        (table(commits=3), healthy(equality_deletes=500), "rewrite_delete_ratio"),
        (table(commits=3), healthy(equality_deletes=499), None),
        (table(commits=3), healthy(small_files=50), "rewrite_small_files"),
        (table(commits=3), healthy(small_files=49), None),
    ],
)
def test_each_figure_alone_starts_a_rewrite_and_one_below_it_does_not(
    made: TableHistory, health: TableHealth | None, trigger: str | None
) -> None:
    found = due(made, health)
    assert (found.due, found.trigger) == (trigger is not None, trigger)
    assert trigger is None or found.reason.startswith(f"{trigger} is reached: ")


def test_a_reason_has_the_nearest_figure_first_then_the_rest_then_what_makes_it_run() -> None:
    found = due(table(COMMIT, REWRITE, commits=7, delete_files=3, equality_deletes=20), healthy(snapshot_id=8))
    assert found.reason == (
        "7 of 10 commits since rewrite 2; 0.02 of 0.5 deletes for each data record; 3 of 100 delete files; "
        "0 of 50 small files; what readers pay is unknown until 2 rewrites of delete files are recorded; "
        "runs at 10 commits"
    )
    assert found.figures == {"commits": 7, "delete_files": 3, "delete_ratio": 0.02, "small_files": 0}


def test_small_files_are_unknown_to_a_tick_and_start_nothing() -> None:
    found = due(table(commits=3))
    assert "small files are unknown before the table's health is read" in found.reason
    assert "small_files" not in found.figures


def test_nothing_is_due_before_the_first_snapshot() -> None:
    for made in (None, table()):
        for found in (
            due(made),
            positions_due(made, None, POLICY, NOW_MS),
            expiry_due(made, POLICY, NOW_MS, expirable=range(99)),
        ):
            assert (found.due, "has no snapshot yet" in found.reason) == (False, True)


def test_commits_that_expiry_took_were_at_least_there() -> None:
    whole = table(commits=8)
    cut = replace(whole, snapshots={n: s for n, s in whole.snapshots.items() if n > 2})
    assert due(cut).reason.startswith("at least 6 of 10 commits since the oldest snapshot that is left")


def test_a_health_from_before_the_rewrite_says_nothing_any_more() -> None:
    old = healthy(snapshot_id=1, small_files=400, equality_delete_files=400)
    assert due(table(COMMIT, REWRITE, commits=2), old).due is False
    since = due(table(COMMIT, COMMIT, commits=2), old)  # Its delete files are behind the head's summary, too.
    assert (since.trigger, since.figures["delete_files"]) == ("rewrite_small_files", 0)


# ---- What the last run could not take ---------------------------------------------------------------------


def test_a_rewrite_that_found_nothing_is_due_again_only_after_as_much_once_more() -> None:
    nothing = replace(RUN, snapshot_id=12, changed=False, delete_files=100)
    at_head = recorded(table(commits=12, delete_files=100), nothing)
    assert due(at_head).due is False
    assert "0 of 10 commits since the run at 12" in due(at_head).reason

    def later(delete_files: int) -> Decision:
        made = table(commits=11, delete_files=100)
        return due(
            recorded(table(*_states(made), commits=1, delete_files=delete_files), replace(nothing, snapshot_id=11))
        )

    assert later(199).due is False
    assert "199 of 200 delete files (100 were left by the last run)" in later(199).reason
    assert later(200).trigger == "rewrite_delete_files"


def test_a_whole_rewrite_leaves_what_another_would_leave_and_a_cut_one_leaves_work() -> None:
    made = table(commits=2, delete_files=150)
    whole = replace(RUN, delete_files=150)
    assert due(recorded(made, whole)).due is False
    assert due(recorded(made, replace(whole, complete=False))).trigger == "rewrite_delete_files"


def test_what_a_run_was_cut_short_of_goes_on_though_no_figure_is_reached() -> None:
    cut = replace(RUN, complete=False)
    found = due(recorded(table(commits=2), cut))
    assert (found.due, found.trigger) == (True, "min_interval")
    assert "1 of 1 runs was cut short, and what it planned is not all taken" in found.reason
    assert due(recorded(table(commits=2), replace(cut, at_ms=NOW_MS - 1000))).due is False  # The interval.
    assert due(recorded(table(commits=3), cut)).due is True  # Whatever the sink commits meanwhile,
    assert due(recorded(table(COMMIT, COMMIT, REWRITE), cut)).due is False  # until data is rewritten.


@pytest.mark.parametrize("how", [{"changed": False}, {"failed": True}])
def test_a_run_that_could_not_or_failed_does_not_go_on(how: dict[str, bool]) -> None:
    assert due(recorded(table(commits=2), replace(RUN, complete=False, **how))).due is False


def test_a_run_that_changed_nothing_left_everything_however_it_says_it_ended() -> None:
    """A plan that Iceberg will not carry out would else be due for ever."""
    could_not = replace(RUN, changed=False, complete=False, delete_files=150)
    assert due(recorded(table(commits=2, delete_files=150), could_not)).due is False


def test_what_came_while_a_run_proved_itself_was_not_left_by_it() -> None:
    rewrite = ("replace", {"deleted-data-files": "3", "total-data-files": "1"})
    came = [("overwrite", {"added-data-files": "1"})] * 99
    run = replace(RUN, snapshot_id=2, at_ms=NOW_MS - HOUR_MS, delete_files=40, deletes=40, small_files_left=100)
    made = table(COMMIT, rewrite, *came, delete_files=99, data_files=100, equality_deletes=99, records=1000)
    made = replace(
        made, snapshots={n: replace(s, timestamp_ms=s.timestamp_ms - 2 * HOUR_MS) for n, s in made.snapshots.items()}
    )
    loose = POLICY.model_copy(update={"rewrite_after_commits": 200})
    found = due(recorded(made, run), healthy(snapshot_id=101, small_files=49, equality_delete_files=99), policy=loose)
    assert found.reason.startswith("99 of 100 delete files; 49 of 51 small files (1 were left by the last run); 99 of")


def test_what_came_between_the_groups_of_a_run_was_not_left_by_it_either() -> None:
    """Its last snapshot has them, too: no more can be left than there was before the run."""
    last = ("replace", {"deleted-data-files": "3", "total-delete-files": "1800", "total-equality-deletes": "1800"})
    run = replace(RUN, snapshot_id=2, delete_files=40, deletes=40)
    found = due(recorded(table(COMMIT, last, commits=1, delete_files=1801), run))
    assert found.trigger == "rewrite_delete_files"
    assert "1801 of 140 delete files (40 were left by the last run)" in found.reason


def test_a_rewrite_that_nobody_recorded_left_nothing_on_purpose() -> None:
    states = _states(table(commits=2, delete_files=90))
    replaced = ("replace", {"deleted-data-files": "1", "total-delete-files": "90"})
    made = recorded(table(*states, replaced, commits=1, delete_files=100), RUN)
    assert due(made).trigger == "rewrite_delete_files"


@pytest.mark.parametrize(
    ("left", "changed", "small", "is_due"),
    [
        (30, True, 79, False),
        (30, True, 80, True),
        (None, True, 50, True),
        (None, False, 58, False),
        (None, False, 59, True),
    ],
)
def test_small_files_count_from_those_that_the_last_run_left(
    left: int | None, changed: bool, small: int, is_due: bool
) -> None:
    states = _states(table(commits=2, data_files=90 if left else 9))
    made = recorded(table(*states, commits=1), replace(RUN, changed=changed, small_files_left=left))
    assert due(made, healthy(small_files=small)).due is is_due


def _states(made: TableHistory) -> list[tuple[str, dict[str, str]]]:
    return [(s.operation, dict(s.summary)) for s in made.snapshots.values()]


def test_more_small_files_than_its_last_snapshot_has_data_files_were_not_left_by_a_run() -> None:
    states = _states(table(commits=2, data_files=9))
    made = recorded(table(*states, commits=1), replace(RUN, small_files_left=30))
    assert "(9 were left by the last run)" in due(made, healthy(small_files=50)).reason


# ---- Totals that a writer leaves out ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "many", "-1", "1.5", "9" * 30, "٣"])
@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("total-delete-files", "delete files are unknown"),
        ("total-equality-deletes", "deletes for each data record are unknown"),
        ("total-position-deletes", "deletes for each data record are unknown"),
        ("total-records", "deletes for each data record are unknown"),
    ],
)
def test_a_total_that_is_left_out_is_unknown_and_not_nothing(key: str, what: str, value: str | None) -> None:
    made = without(table(commits=3, delete_files=7), key, value)
    assert what in due(made).reason
    sick = healthy(equality_delete_files=100, equality_deletes=500)
    assert due(made, sick).trigger in {"rewrite_delete_files", "rewrite_delete_ratio"}  # Its health counts them.


def test_position_deletes_that_a_writer_left_out_are_unknown() -> None:
    made = without(table(commits=3, delete_files=9), "total-position-deletes")
    assert "unknown" in positions_due(made, None, POLICY, NOW_MS).reason
    assert positions_due(made, healthy(position_delete_files=5), POLICY, NOW_MS).due is True


# ---- Hours and intervals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "at", "until"),
    [
        ("08:00-18:00", "07:59", None),
        ("08:00-18:00", "08:00", "18:00"),
        ("08:00-18:00", "17:59", "18:00"),
        ("08:00-18:00", "18:00", None),
        ("22:00-06:00", "21:59", None),
        ("22:00-06:00", "22:00", "30:00"),
        ("22:00-06:00", "00:00", "06:00"),
        ("22:00-06:00", "05:59", "06:00"),
        ("22:00-06:00", "06:00", None),
        ("22:00-00:00", "23:59", "24:00"),
        ("22:00-00:00", "00:00", None),
        ("08:00-12:00 12:00-18:00", "09:00", "18:00"),  # One ends where the next begins.
        ("08:00-13:00 12:00-18:00", "12:30", "18:00"),
        ("08:00-12:00 12:01-18:00", "09:00", "12:00"),
    ],
)
def test_quiet_hours_end_when_they_say(hours: str, at: str, until: str | None) -> None:
    midnight = 20_000 * DAY_MS
    policy = Maintenance(quiet_hours=tuple(hours.split()))
    found = quiet(policy, midnight + _minutes(at) * MINUTE_MS + 59_999)
    assert found == (None if until is None else midnight + _minutes(until) * MINUTE_MS)


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def test_quiet_hours_hold_back_what_is_due_and_say_until_when() -> None:
    policy = POLICY.model_copy(update={"quiet_hours": ("08:00-18:30",)})
    made = table(commits=10)
    held = due(made, policy=policy)
    assert (held.due, held.trigger) == (False, None)
    assert held.reason.startswith("quiet hours until 2024-10-04 18:30:00 UTC, then it runs; 10 of 10 commits")
    assert rewrite_due(made, None, policy, NOW_MS + 6 * HOUR_MS + 30 * MINUTE_MS).due is True
    assert "quiet" not in due(table(commits=9), policy=policy).reason  # Nothing is held back.


def test_the_interval_holds_back_what_is_due_and_says_until_when() -> None:
    policy = POLICY.model_copy(update={"min_interval": timedelta(minutes=5)})

    def after(ms: int) -> Decision:
        return due(recorded(table(commits=12), replace(RUN, at_ms=NOW_MS - ms)), policy=policy)

    assert after(5 * MINUTE_MS).due is True
    held = after(5 * MINUTE_MS - 1)
    assert held.due is False
    assert "runs from 2024-10-04 12:00:00 UTC on (min_interval)" in held.reason
    assert after(-1000).due is False  # A clock that is a second behind.
    assert after(-DAY_MS).due is True  # A clock that was a day ahead stops nothing.


@pytest.mark.parametrize(
    ("least", "failures", "minutes"), [(1, 1, 2), (1, 2, 4), (1, 5, 32), (1, 6, 60), (1, 500, 60), (90, 3, 90)]
)
def test_the_interval_doubles_with_each_failure_in_a_row_up_to_an_hour(least: int, failures: int, minutes: int) -> None:
    policy = POLICY.model_copy(update={"min_interval": timedelta(minutes=least)})
    void = replace(RUN, changed=False, complete=False, failed=True)

    def after(ms: int) -> Decision:
        runs = [replace(void, at_ms=NOW_MS - ms)] * failures
        return due(
            recorded(table(commits=12), replace(RUN, at_ms=NOW_MS - DAY_MS, snapshot_id=1), *runs), policy=policy
        )

    assert after(minutes * MINUTE_MS).due is True
    held = after(minutes * MINUTE_MS - 1)
    assert (held.due, held.reason.startswith(f"rewrite_data_files failed {failures} times in a row, last at")) == (
        False,
        True,
    )
    assert after(-DAY_MS).due is True  # A clock that was a day ahead stops nothing.


def test_a_void_run_has_left_nothing_and_settled_nothing() -> None:
    """It is no run that found nothing to do, which would move each trigger by all that there is."""
    void = replace(RUN, snapshot_id=13, changed=False, complete=False, failed=True, delete_files=100, deletes=100)
    made = recorded(table(REWRITE, commits=12, delete_files=100), replace(RUN, snapshot_id=1), void)
    found = due(made)
    assert (found.due, found.figures["commits"]) == (True, 12)
    assert "left by the last run" not in found.reason


# ---- The model --------------------------------------------------------------------------------------------

LEARNT = replace(RUN, snapshot_id=99, took_s=36.0, delete_files=50, read_before_s=6.0, read_after_s=1.0)
MODEL = POLICY.model_copy(update={"rewrite_by": "model"})


def indebted(minutes: int, *runs: PastRun, delete_files: int = 60) -> TableHistory:
    """`delete_files` for so many minutes, after a rewrite."""
    made = recorded(table(REWRITE, commits=1, delete_files=delete_files), *runs)
    return replace(
        made, snapshots={n: replace(s, timestamp_ms=NOW_MS - minutes * MINUTE_MS) for n, s in made.snapshots.items()}
    )


def test_the_model_starts_a_rewrite_once_readers_have_paid_its_cost() -> None:
    """12 reads an hour of 60 delete files at 0.1 s each are 72 s an hour; a rewrite costs 36."""
    before, after = (due(indebted(n, LEARNT, LEARNT), policy=MODEL) for n in (29, 30))
    assert (before.due, after.due, after.trigger) == (False, True, "rewrite_by")
    assert before.reason.startswith(
        "readers have paid 34.8 s of the 36 s that a rewrite costs, and will have at 2024-10-04 12:00:59 UTC"
    )
    assert before.reason.endswith("runs when they have paid that")
    due_at_ms = before.figures["debt_due_at_ms"]  # A minute, had there been no more deletes to come.
    assert due_at_ms == pytest.approx(NOW_MS + 59_000, abs=500)
    assert after.figures["debt_pays_back_after_reads"] == pytest.approx(6)


def test_the_model_is_shown_and_starts_nothing_while_the_count_decides() -> None:
    found = due(indebted(600, LEARNT, LEARNT))
    assert found.due is False
    assert "readers have paid 720 s of the 36 s" in found.reason
    assert due(recorded(table(commits=10), LEARNT, LEARNT)).trigger == "rewrite_after_commits"  # Not at the alarm.


def test_a_run_that_found_nothing_to_do_settles_what_was_paid_for_deletes_that_it_can_not_take() -> None:
    """It moves no snapshot, so that what readers pay for its leftovers would be due for ever."""
    nothing = PastRun(NOW_MS - HOUR_MS, 2, took_s=0.0, changed=False, delete_files=60)
    made = indebted(600, LEARNT, LEARNT)
    assert due(made, policy=MODEL).trigger == "rewrite_by"
    settled = due(recorded(made, nothing), policy=MODEL)
    assert settled.due is False
    assert settled.reason.startswith("readers have paid 0 s of the 36 s that a rewrite costs; now a read pays nothing")
    more = table(*_states(indebted(1)), commits=1, delete_files=120)
    more = replace(more, snapshots={n: replace(s, timestamp_ms=NOW_MS - HOUR_MS) for n, s in more.snapshots.items()})
    again = due(recorded(more, LEARNT, LEARNT, nothing), policy=MODEL)
    assert again.trigger == "rewrite_by"
    assert "readers have paid 72 s of" in again.reason  # For an hour of 60 more; the first 60 can't be taken.


def test_the_model_is_unknown_of_a_table_whose_writer_counts_no_delete_files() -> None:
    found = due(without(indebted(600, LEARNT, LEARNT), "total-delete-files"), policy=MODEL)
    assert (found.due, "debt_paid_s" in found.figures) == (False, False)
    assert "unknown while a writer leaves total-delete-files out of its summaries" in found.reason


def test_an_unknown_model_leaves_it_to_the_count() -> None:
    found = due(recorded(table(commits=10), LEARNT), policy=MODEL)
    assert found.trigger == "rewrite_after_commits"
    assert "unknown until 2 rewrites" in found.reason


def test_under_the_model_a_count_starts_only_what_is_alarming() -> None:
    free = replace(LEARNT, read_before_s=1.0)  # Readers do not notice.
    quiet_table, loud = (due(recorded(table(commits=n), free, free), policy=MODEL) for n in (49, 50))
    assert (quiet_table.due, loud.trigger) == (False, "rewrite_after_commits")
    assert loud.reason.startswith("rewrite_after_commits is reached: 50 of 50 commits since the beginning (whatever")


def test_what_the_last_run_left_is_no_nearer_to_an_alarm_nor_further_from_it() -> None:
    free = replace(LEARNT, read_before_s=1.0)
    nothing = PastRun(NOW_MS - HOUR_MS, 2, took_s=0.0, changed=False, delete_files=1000)

    def later(delete_files: int) -> Decision:
        states = _states(table(commits=2, delete_files=1000))
        return due(recorded(table(*states, commits=1, delete_files=delete_files), free, free, nothing), policy=MODEL)

    assert "1499 of 1500 delete files (1000 were left by the last run) (whatever the model says)" in later(1499).reason
    assert later(1500).trigger == "rewrite_delete_files"


# ---- The other operations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("totals", "health", "is_due"),
    [
        ({"position_deletes": 9, "delete_files": 5}, None, True),
        ({"position_deletes": 9, "delete_files": 4}, None, False),
        ({"equality_deletes": 9, "delete_files": 50}, None, False),
        ({"position_deletes": 9, "equality_deletes": 1, "delete_files": 50}, None, False),
        ({}, healthy(position_delete_files=5), True),
        ({}, healthy(position_delete_files=4, equality_delete_files=50, deletion_vectors=50), False),
        ({"position_deletes": 9, "delete_files": 50}, healthy(snapshot_id=2), True),
    ],
)
def test_position_deletes_are_rewritten_at_their_number_where_it_is_known(
    totals: dict[str, int], health: TableHealth | None, is_due: bool
) -> None:
    assert positions_due(table(commits=3, **totals), health, POLICY, NOW_MS).due is is_due


def test_what_may_be_equality_deletes_or_vectors_is_unknown_without_health() -> None:
    mixed = positions_due(table(commits=3, position_deletes=9, equality_deletes=1), None, POLICY, NOW_MS)
    vectors = positions_due(table(("delete", {"added-dvs": "9"}), commits=2, position_deletes=9), None, POLICY, NOW_MS)
    for found in (mixed, vectors):
        assert found.reason.startswith("position-delete files are unknown before the table's health is read")


def test_position_deletes_that_a_run_could_not_merge_start_no_other_until_data_is_rewritten() -> None:
    run = replace(RUN, snapshot_id=2, changed=False, delete_files=6)
    operation: Operation = "rewrite_position_delete_files"
    made = recorded(table(commits=3, position_deletes=9, delete_files=10), run, operation=operation)
    assert positions_due(made, None, POLICY, NOW_MS).due is False
    more = recorded(table(commits=3, position_deletes=9, delete_files=11), run, operation=operation)
    assert positions_due(more, None, POLICY, NOW_MS).due is True
    rewritten = table(COMMIT, COMMIT, REWRITE, commits=1, position_deletes=9, delete_files=6)
    assert positions_due(recorded(rewritten, run, operation=operation), None, POLICY, NOW_MS).due is True


@pytest.mark.parametrize("key", ["added-position-delete-files", "added-delete-files"])
def test_position_deletes_that_a_run_wrote_itself_start_no_other(key: str) -> None:
    """Where each data file has its own (`write.delete.granularity`: file), they can't be fewer."""
    run = replace(RUN, snapshot_id=3, delete_files=40)
    operation: Operation = "rewrite_position_delete_files"
    made = [COMMIT, COMMIT, ("replace", {key: "9"})]

    def later(files: int, run: PastRun = run) -> bool:
        history = table(*made, commits=1, position_deletes=99, delete_files=files)
        return positions_due(recorded(history, run, operation=operation), None, POLICY, NOW_MS).due

    assert (later(13), later(14)) == (False, True)  # 9 and the 5 that start one.
    assert later(13, replace(run, complete=False)) is True


def test_expiry_is_due_at_so_many_snapshots_that_may_go_and_names_who_keeps_others() -> None:
    kept = [Kept(n, f"tag reader_{n}") for n in range(5)]
    below, at = (expiry_due(table(commits=30), POLICY, NOW_MS, expirable=range(n), kept=kept) for n in (19, 20))
    assert (below.due, at.due, at.trigger) == (False, True, "expire_after_snapshots")
    assert below.reason == (
        "19 of 20 snapshots that may go; 30 in all; 5 past their age are kept by tag reader_0, tag reader_1, "
        "tag reader_2 and 2 more; runs at 20 snapshots that may go"
    )
    assert at.figures == {"snapshots": 30, "snapshots_expirable": 20, "snapshots_kept": 5}


# ---- Alarms -----------------------------------------------------------------------------------------------


def test_past_retention_are_those_that_age_count_and_refs_do_not_keep() -> None:
    policy = Maintenance(keep_snapshots_for=timedelta(seconds=5), keep_snapshots_min=2)
    made = replace(table(commits=10), refs={"keep_2": 2})
    assert past_retention(made, policy, NOW_MS) == (1, 3, 4)  # 5 is five seconds old to the millisecond.
    assert past_retention(made, policy.model_copy(update={"keep_snapshots_min": 7}), NOW_MS) == (1, 3)
    aside = Snapshot(77, 1, 99, "append", NOW_MS - HOUR_MS, {})  # Rolled back, no ref left.
    beside = replace(made, snapshots={**made.snapshots, 77: aside})
    assert 77 in past_retention(beside, policy.model_copy(update={"keep_snapshots_min": 99}), NOW_MS)


LIVE_BYTES = 1 << 30


@pytest.mark.parametrize(
    ("state", "past", "group", "figure"),
    [
        ({"equality_delete_files": 501}, 0, "files", "delete_files"),
        ({"equality_deletes": 2501}, 0, "files", "delete_ratio"),
        ({"small_files": 251}, 0, "files", "small_files"),
        ({}, 101, "history", "snapshots_past_retention"),
        ({"metadata_bytes": METADATA_BYTES_MAX + 1}, 0, "history", "metadata_bytes"),
        ({"data_bytes": LIVE_BYTES, "history_bytes": 5 * LIVE_BYTES + 1}, 0, "history", "history_bytes"),
        ({"data_bytes": 0, "history_bytes": HISTORY_BYTES_MIN + 1}, 0, "history", "history_bytes"),
    ],
)
def test_a_figure_far_beyond_its_trigger_is_found_and_one_below_is_not(
    state: dict[str, int], past: int, group: str, figure: str
) -> None:
    [found] = limits(healthy(**state), POLICY, past_retention_ids=range(past))
    assert (found.group, found.figure) == (group, figure)
    assert found.measured > found.limit
    less = {name: value - 1 for name, value in state.items()}
    less |= {"data_bytes": state["data_bytes"]} if "data_bytes" in state else {}
    assert limits(healthy(**less), POLICY, past_retention_ids=range(past - 1)) == ()


def test_what_nobody_looked_at_is_no_finding() -> None:
    assert limits(healthy(history_bytes=None), POLICY) == ()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("landing.t", "`cdc-platform maintain t rewrite_data_files --dry-run`"),
        ("curated.t", "`cdc-platform maintain t rewrite_data_files --stage curated --dry-run`"),
    ],
)
def test_a_finding_names_the_command_to_run(name: str, command: str) -> None:
    [found] = limits(healthy(table=name, small_files=1000), POLICY)
    assert command in found.action


# ---- Whatever comes ---------------------------------------------------------------------------------------

TOTALS = st.dictionaries(
    st.sampled_from(
        [
            "total-delete-files",
            "total-equality-deletes",
            "total-position-deletes",
            "total-records",
            "total-data-files",
            "deleted-data-files",
            "added-data-files",
            "added-position-delete-files",
            "added-dvs",
            HEARTBEAT,
        ]
    ),
    st.integers(0, 1 << 62).map(str) | st.text(),
)
SNAPSHOTS = st.lists(
    st.tuples(
        st.integers(0, 8) | st.none(),
        st.sampled_from(["append", "overwrite", "delete", "replace"]),
        st.integers(-(1 << 62), 1 << 62),
        TOTALS,
    ),
    max_size=8,
)
RUNS = st.lists(
    st.builds(
        PastRun,
        at_ms=st.integers(0, 1 << 62),
        snapshot_id=st.integers(0, 8),
        took_s=st.floats(0, 1e12),
        changed=st.booleans(),
        delete_files=st.integers(0, 1 << 62),
        read_before_s=st.none() | st.floats(0, 1e12),
        read_after_s=st.none() | st.floats(0, 1e12),
        small_files_left=st.none() | st.integers(0, 1 << 62),
        complete=st.booleans(),
        failed=st.booleans(),
    ),
    max_size=4,
)


@given(
    SNAPSHOTS,
    st.integers(0, 8) | st.none(),
    RUNS,
    st.text() | st.none(),
    st.sampled_from(["count", "model"]),
    st.none() | st.integers(0, 8),
    st.integers(-(1 << 62), 1 << 62),
)
def test_deciding_never_fails_and_what_is_due_says_by_which_trigger(
    snapshots: list[tuple[int | None, str, int, dict[str, str]]],
    head: int | None,
    runs: list[PastRun],
    foreign: str | None,
    rewrite_by: str,
    health_at: int | None,
    now_ms: int,
) -> None:
    made = {n: Snapshot(n, parent, n, op, at, summary) for n, (parent, op, at, summary) in enumerate(snapshots)}
    world = recorded(TableHistory("landing.t", (), head, made), *runs)
    for operation in ("rewrite_position_delete_files", "expire_snapshots"):
        world = recorded(world, *runs, operation=operation)
    if foreign is not None:
        world = replace(world, properties={PROPERTY + "rewrite_data_files": foreign})
    policy = POLICY.model_copy(update={"rewrite_by": rewrite_by, "quiet_hours": ("22:00-06:00",)})
    health = None if health_at is None else healthy(snapshot_id=health_at)
    past = past_retention(world, policy, now_ms)
    for found in (
        rewrite_due(world, health, policy, now_ms),
        positions_due(world, health, policy, now_ms),
        expiry_due(world, policy, now_ms, expirable=past),
    ):
        assert found.reason
        assert found.due is (found.trigger is not None)
        assert found.trigger is None or (found.trigger in Maintenance.model_fields and found.trigger in found.reason)
