"""The delete-debt model: its figures by hand, its rule against the best choice in hindsight."""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.maintenance.debt import Debt, debt_of
from cdc_platform.maintenance.runs import PastRun, with_run
from cdc_platform_tests.builders import history

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
RUN = PastRun(0, 1, took_s=36.0, changed=True, delete_files=50, read_before_s=6.0, read_after_s=1.0)  # 0.1 s a file.
RUNS = (RUN, RUN)
READS = 12.0


def table(*states: tuple[int, int], rewritten: bool = True) -> TableHistory:
    """One snapshot for each (time, live delete files); the first is a rewrite, unless told otherwise."""
    made = history("landing.t", *[("overwrite", {"total-delete-files": str(files)}) for _, files in states])
    dated = {n: replace(s, timestamp_ms=states[n - 1][0]) for n, s in made.snapshots.items()}
    if rewritten and states:
        first = dated[1]
        dated[1] = replace(first, operation="replace", summary={**first.summary, "deleted-data-files": "1"})
    return replace(made, snapshots=dated)


def growing(minutes: int) -> TableHistory:
    """A delete file more every minute since the rewrite at 0."""
    return table(*[(n * MINUTE_MS, n) for n in range(minutes + 1)])


def test_the_worked_case_of_the_module() -> None:
    """36 s a rewrite, 0.1 s a delete file, 12 reads an hour, a file a minute: due after an hour, at 60 files."""
    before, at = (debt_of(growing(n), RUNS, reads_per_hour=READS, now_ms=(n + 1) * MINUTE_MS - 1) for n in (58, 60))
    assert (before.due, at.due) == (False, True)
    assert before.paid_s == pytest.approx(34.22, abs=0.001)  # Steps, not a line: 58*59/2 file minutes.
    assert before.due_at_ms == pytest.approx(HOUR_MS, rel=0.02)
    early = debt_of(growing(10), RUNS, reads_per_hour=READS, now_ms=10 * MINUTE_MS)
    assert early.due_at_ms == pytest.approx(HOUR_MS, rel=0.02)  # Growth is in it, not the present rate alone.
    assert (at.slope_s_per_delete_file, at.cost_s, at.extra_s_per_read) == pytest.approx((0.1, 36.0, 6.0))
    assert at.pays_back_after_reads == pytest.approx(6.0)


@pytest.mark.parametrize(
    "runs",
    [
        (),
        (RUN,),
        (RUN, replace(RUN, delete_files=0)),
        (RUN, replace(RUN, read_before_s=None)),
        (RUN, replace(RUN, read_after_s=None)),
        (RUN, replace(RUN, changed=False)),
        (RUN, replace(RUN, complete=False)),
    ],
)
def test_fewer_than_two_runs_that_tell_something_leave_it_unknown(runs: Sequence[PastRun]) -> None:
    debt = debt_of(growing(500), runs, reads_per_hour=READS, now_ms=500 * MINUTE_MS)
    assert (debt.known, debt.due, debt.paid_s, debt.delete_files) == (False, False, None, 500)


def test_figures_are_medians_and_work_lost_to_conflicts_is_a_cost() -> None:
    slow = replace(RUN, took_s=400.0, read_before_s=600.0)
    lost = replace(RUN, took_s=36.0, lost_s=4.0)
    debt = debt_of(growing(1), (RUN, slow, lost), reads_per_hour=READS, now_ms=MINUTE_MS)
    assert (debt.slope_s_per_delete_file, debt.cost_s) == (0.1, 40.0)


def test_a_read_that_was_slower_after_the_rewrite_is_no_saving_and_no_debt() -> None:
    noise = replace(RUN, read_before_s=1.0, read_after_s=2.0)
    debt = debt_of(growing(60), (noise, noise), reads_per_hour=READS, now_ms=HOUR_MS * 100)
    assert (debt.slope_s_per_delete_file, debt.paid_s, debt.due) == (0.0, 0.0, False)
    assert (debt.pays_back_after_reads, debt.due_at_ms) == (None, None)


def test_nothing_is_due_of_a_table_without_snapshots_or_deletes() -> None:
    assert debt_of(table(), RUNS, reads_per_hour=READS, now_ms=0).due is False
    clean = debt_of(table((0, 0)), RUNS, reads_per_hour=READS, now_ms=HOUR_MS)
    assert (clean.paid_s, clean.due, clean.due_at_ms) == (0.0, False, None)


def test_a_rewrite_that_cost_nothing_is_not_due_for_nothing() -> None:
    free = replace(RUN, took_s=0.0)
    assert debt_of(table((0, 0)), (free, free), reads_per_hour=READS, now_ms=HOUR_MS).due is False


def test_what_a_rewrite_left_is_paid_for_from_its_commit_on() -> None:
    debt = debt_of(table((HOUR_MS, 10)), RUNS, reads_per_hour=READS, now_ms=2 * HOUR_MS)
    assert debt.paid_s == pytest.approx(12 * 10 * 0.1)


def test_nobody_reads_in_an_interval_that_a_clock_made_negative() -> None:
    straight = debt_of(table((0, 0), (HOUR_MS, 10)), RUNS, reads_per_hour=READS, now_ms=2 * HOUR_MS)
    back = table((9 * HOUR_MS, 5), (HOUR_MS, 10))
    assert debt_of(back, RUNS, reads_per_hour=READS, now_ms=2 * HOUR_MS).paid_s == straight.paid_s
    assert debt_of(growing(3), RUNS, reads_per_hour=READS, now_ms=-HOUR_MS).paid_s == pytest.approx(3 * 12 / 60 * 0.1)


@pytest.mark.parametrize("other", [{"changed": False, "read_after_s": 6.0}, {"complete": False, "read_after_s": 5.9}])
def test_runs_that_left_what_they_met_do_not_teach_that_delete_files_cost_nothing(other: dict[str, object]) -> None:
    poor = replace(RUN, **other)  # type: ignore[arg-type]
    debt = debt_of(growing(1), (poor, poor, poor, RUN, RUN), reads_per_hour=READS, now_ms=MINUTE_MS)
    assert (debt.slope_s_per_delete_file, debt.cost_s) == (0.1, 36.0)


def at_start(**other: object) -> PastRun:
    return replace(RUN, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("newest", "paid_hours"),
    [
        (at_start(at_ms=HOUR_MS, changed=False), 1.0),  # It found nothing to do: what came before is settled.
        (at_start(at_ms=HOUR_MS), 2.0),  # It made snapshot 1: from there.
        (at_start(at_ms=HOUR_MS, snapshot_id=77), 1.0),  # Its snapshot has been expired.
        (at_start(at_ms=9 * HOUR_MS, changed=False), 2.0),  # By a clock that was ahead.
    ],
)
def test_debt_begins_where_the_last_run_settled_it(newest: PastRun, paid_hours: float) -> None:
    made = table((0, 10), rewritten=False)
    name, value = with_run({}, "rewrite_data_files", newest)
    debt = debt_of(
        replace(made, properties={name: value}), (newest, RUN, RUN), reads_per_hour=READS, now_ms=2 * HOUR_MS
    )
    assert debt.paid_s == pytest.approx(paid_hours * 12 * 10 * 0.1)


def test_what_the_last_run_left_is_no_debt() -> None:
    made = table((0, 10), (HOUR_MS, 15))
    debt = debt_of(made, RUNS, reads_per_hour=READS, now_ms=2 * HOUR_MS, left=10)
    assert (debt.delete_files, debt.paid_s, debt.extra_s_per_read) == (5, pytest.approx(12 * 5 * 0.1), 0.5)


def test_debt_is_unknown_where_a_summary_does_not_count_delete_files() -> None:
    made = table((0, 10), (HOUR_MS, 15), (HOUR_MS, 20))
    silent = replace(made, snapshots={**made.snapshots, 2: replace(made.snapshots[2], summary={})})
    debt = debt_of(silent, RUNS, reads_per_hour=READS, now_ms=2 * HOUR_MS)
    assert (debt.known, debt.counted, debt.delete_files) == (False, False, 20)


def test_a_cut_ancestry_makes_it_a_lower_bound() -> None:
    whole = table((0, 4), (HOUR_MS, 6), rewritten=False)
    assert debt_of(whole, RUNS, reads_per_hour=READS, now_ms=HOUR_MS).whole is True
    cut = replace(whole, snapshots={2: whole.snapshots[2]})
    debt = debt_of(cut, RUNS, reads_per_hour=READS, now_ms=2 * HOUR_MS)
    assert (debt.whole, debt.paid_s) == (False, pytest.approx(12 * 6 * 0.1))


STEPS = st.lists(st.tuples(st.integers(0, HOUR_MS), st.integers(0, 50)), min_size=1, max_size=10)


def walked(steps: Sequence[tuple[int, int]]) -> TableHistory:
    """Each step: so many milliseconds later, so many delete files more."""
    at, files, states = 0, 0, list[tuple[int, int]]()
    for later_ms, more in steps:
        at, files = at + later_ms, files + more
        states.append((at, files))
    return table(*states)


@given(STEPS, st.integers(0, HOUR_MS), st.integers(0, HOUR_MS))
def test_what_is_paid_never_shrinks_with_time(steps: list[tuple[int, int]], after_ms: int, later_ms: int) -> None:
    made = walked(steps)
    end_ms = sum(ms for ms, _ in steps) + after_ms
    first, second = (debt_of(made, RUNS, reads_per_hour=READS, now_ms=end_ms + ms) for ms in (0, later_ms))
    assert first.paid_s is not None
    assert second.paid_s is not None
    assert second.paid_s >= first.paid_s


@given(STEPS, st.data())
def test_what_is_paid_never_shrinks_with_deletes(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    index, more = data.draw(st.integers(0, len(steps) - 1)), data.draw(st.integers(0, 50))
    heavier = [*steps]
    heavier[index] = (steps[index][0], steps[index][1] + more)
    now_ms = sum(ms for ms, _ in steps) + HOUR_MS
    light, heavy = (debt_of(walked(s), RUNS, reads_per_hour=READS, now_ms=now_ms) for s in (steps, heavier))
    assert light.paid_s is not None
    assert heavy.paid_s is not None
    assert heavy.paid_s >= light.paid_s


@given(STEPS)
def test_paid_is_what_the_prediction_says_once_that_moment_has_come_without_new_deletes(
    steps: list[tuple[int, int]],
) -> None:
    still = [(steps[0][0], steps[0][1]), *((ms, 0) for ms, _ in steps[1:])]
    made, now_ms = walked(still), sum(ms for ms, _ in still)
    debt = debt_of(made, RUNS, reads_per_hour=READS, now_ms=now_ms)
    assume(debt.due_at_ms is not None and not debt.due)
    assert debt.due_at_ms is not None
    then, just_before = (debt_of(made, RUNS, reads_per_hour=READS, now_ms=debt.due_at_ms + ms).due for ms in (1, -2))
    assert (then, just_before) == (True, False)


@given(st.integers(20, 120), st.floats(0.01, 1.0), st.floats(1.0, 60.0))
def test_for_debt_that_grows_evenly_the_rule_finds_the_cheapest_cycle(
    best_minutes: int, slope_s: float, reads_per_hour: float
) -> None:
    """A delete file a minute; a rewrite costs what makes a cycle of `best_minutes` the cheapest by calculus."""
    cost_s = reads_per_hour / 60 * slope_s * best_minutes**2 / 2
    run = replace(RUN, took_s=cost_s, delete_files=1000, read_before_s=slope_s * 1000, read_after_s=0.0)

    @cache
    def debt(minutes: int) -> Debt:
        return debt_of(growing(minutes), (run, run), reads_per_hour=reads_per_hour, now_ms=minutes * MINUTE_MS)

    def cost_a_minute(minutes: int) -> float:
        paid = debt(minutes).paid_s
        assert paid is not None
        return (cost_s + paid) / minutes

    due_at = bisect(range(1, 2 * best_minutes), False, key=lambda n: debt(n).due) + 1
    assert abs(due_at - best_minutes) <= 1.5
    assert cost_a_minute(due_at) <= 1.01 * min(map(cost_a_minute, {*range(1, 3 * best_minutes, 7), best_minutes}))


@given(
    st.lists(st.tuples(st.integers(1, 6 * 60), st.integers(0, 200)), min_size=1, max_size=14),
    st.floats(1.0, 300.0),
)
def test_the_rule_never_costs_more_than_twice_the_best_choice_in_hindsight(
    arrivals: list[tuple[int, int]], cost_s: float
) -> None:
    """At the start of each interval some delete files come, at its end one may rewrite. What a decision at the end of
    an interval comes too late by is the interval's fault and is taken off.
    """
    run = replace(RUN, took_s=cost_s)

    def debt(begin: int, end: int) -> Debt:
        """After the intervals from `begin` to `end`, with a rewrite before them."""
        at, files, states = 0, 0, [(0, 0)]
        for minutes, more in arrivals[begin:end]:
            files += more
            states.append((at, files))
            at += minutes * MINUTE_MS
        return debt_of(table(*states), (run, run), reads_per_hour=READS, now_ms=at)

    def paid_s(begin: int, end: int) -> float:
        paid = debt(begin, end).paid_s
        assert paid is not None
        return paid

    last = len(arrivals)
    rule_s, begun = 0.0, 0
    for end in range(1, last + 1):
        if debt(begun, end).due:
            rule_s, begun = rule_s + cost_s + cost_s, end  # Paid until the moment at which it was due, and the rewrite.
    rule_s += paid_s(begun, last)
    best_s = [0.0] * (last + 1)
    for begin in reversed(range(last)):
        best_s[begin] = min(
            paid_s(begin, last), *(paid_s(begin, end) + cost_s + best_s[end] for end in range(begin + 1, last + 1))
        )
    assert rule_s <= 2 * best_s[0] + 1e-6


def test_what_void_runs_lost_is_part_of_what_the_next_rewrite_cost() -> None:
    good = PastRun(2, 1, took_s=30.0, changed=True, delete_files=10, read_before_s=2.0, read_after_s=1.0)
    void = PastRun(1, 1, took_s=0.0, changed=False, lost_s=12.0, complete=False, failed=True, failures=3)
    made = history("landing.t", ("append", {"total-delete-files": "1"}))

    def cost(*runs: PastRun) -> float | None:
        return debt_of(made, runs, reads_per_hour=1.0, now_ms=10_000).cost_s

    assert cost(good, void, good, void) == 42.0
    assert cost(void, good, good) == 30.0  # It is the next one's.
