"""Whether an operation is due on a table, and which figures are alarming: one pure function for each question.

Belongs here: decisions with their reasons, from history, health, policy and the time. Does not: reading any of them,
attempts and back-off after failures (`orchestration/attempts.py`), what a run does (`maintenance/plan.py`).
A reason reads as a sensor's skip reason: what was measured, the threshold, what makes it run. Figures that nobody
measured are said to be unknown and start nothing.
What a run could not take away starts no other: its figure counts from what the newest run left (`_left`). What came
while it ran was not left by it; what it planned and did not take is taken up by the next.
Units: `*_ms` UTC milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Literal

from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.maintenance.debt import RUNS_MIN, Debt, debt_of
from cdc_platform.maintenance.halted import Halted
from cdc_platform.maintenance.health import TableHealth
from cdc_platform.maintenance.protection import Kept
from cdc_platform.maintenance.runs import (
    Operation,
    PastRun,
    failures_in_a_row,
    past_runs,
    rewrote,
    settled,
    since_rewrite,
)
from cdc_platform.registry.maintenance import Maintenance, quiet_minutes

METADATA_BYTES_MAX = 32 << 20  # Every commit writes it anew: at 32 MiB, a commit every second keeps a disk busy.
HALTED = "halted"  # A finding that is no figure.
HISTORY_BYTES_MIN = 1 << 30  # Below a GiB, history is no matter, however small the table.
_DAY_MIN = 24 * 60
_MINUTE_MS = 60_000
_KEPT_NAMED_MAX = 3
_BACK_OFF_MAX_MS, _DOUBLED_MAX = 3_600_000, 32


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an operation is due. `trigger` is the policy's key that starts it, None when it is not due."""

    due: bool
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    trigger: str | None = None


Group = Literal["files", "history"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A figure beyond its limit."""

    group: Group
    figure: str  # As in the health's metadata.
    measured: float
    limit: float
    action: str


@dataclass(frozen=True, slots=True)
class _Trigger:
    """A figure that starts an operation when it reaches `threshold`."""

    key: str
    measured: float | None  # None: unknown.
    threshold: float
    counted: str  # What, in the plural.
    told: str = ""  # From where, or why from there.
    at_least: bool = False  # The measured value may be more.

    @property
    def share(self) -> float:
        """How near it is: 1 starts."""
        return 0.0 if self.measured is None else self.measured / self.threshold

    @property
    def text(self) -> str:
        if self.measured is None:
            return f"{self.counted} are unknown before the table's health is read"
        least = "at least " if self.at_least else ""
        return f"{least}{_figure(self.measured)} of {_figure(self.threshold)} {self.counted}{self.told}"

    @property
    def makes_it_run(self) -> str:
        return f"runs at {_figure(self.threshold)} {self.counted}"


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of a snapshot: of the head from its health if that was read, else from its summary. None: unknown."""

    delete_files: int | None
    deletes: int | None
    data_records: int | None
    small_files: int | None

    @property
    def delete_ratio(self) -> float | None:
        if self.deletes is None or self.data_records is None:
            return None
        return self.deletes / self.data_records if self.data_records else 0.0


_NOTHING = _Files(0, 0, 0, 0)


def quiet(policy: Maintenance, now_ms: int) -> int | None:
    """When the quiet hours that `now_ms` lies in end; None when it lies in none."""
    ranges = [quiet_minutes(hours) for hours in policy.quiet_hours]
    minute = begin = now_ms // _MINUTE_MS
    for _ in ranges:  # One range may end in another; each is passed at most once.
        ends = [
            minute + (end - minute) % _DAY_MIN
            for start, end in ranges
            if (minute - start) % _DAY_MIN < (end - start) % _DAY_MIN
        ]
        if not ends:
            break
        minute = max(ends)
    return minute * _MINUTE_MS if minute > begin else None


def rewrite_due(history: TableHistory | None, health: TableHealth | None, policy: Maintenance, now_ms: int) -> Decision:
    """Whether rewrite_data_files is due. Without `health` (a tick reads summaries alone) small files are unknown."""
    if history is None or history.head is None:
        return _no_snapshot(history)
    runs = past_runs(history.properties, "rewrite_data_files")
    since = since_rewrite(history)
    files, left = _files(history, history.head, health), _left(settled(runs), since.start)
    debt = debt_of(history, runs, reads_per_hour=policy.reads_per_hour, now_ms=now_ms, left=left.delete_files or 0)
    by_model = policy.rewrite_by == "model" and debt.known
    times, told = (policy.alarm_at, " (whatever the model says)") if by_model else (1, "")
    counted = _Trigger(
        "rewrite_after_commits",
        since.commits,
        times * policy.rewrite_after_commits,
        "commits",
        f" since {since.named}",
        at_least=not since.whole,
    )
    figured = [
        ("rewrite_delete_files", files.delete_files, left.delete_files, "delete files"),
        ("rewrite_delete_ratio", files.delete_ratio, left.delete_ratio, "deletes for each data record"),
        ("rewrite_small_files", files.small_files, left.small_files, "small files"),
    ]
    triggers = [counted] + [
        _beyond(key, measured, now_left or 0, times * getattr(policy, key), what)
        for key, measured, now_left, what in figured
    ]
    triggers = [replace(trigger, told=trigger.told + told) for trigger in triggers]
    if _goes_on(settled(runs), since.start):
        triggers.append(_Trigger("min_interval", 1, 1, "runs", " was cut short, and what it planned is not all taken"))
    measured = {
        "commits": since.commits,
        "delete_files": files.delete_files,
        "delete_ratio": files.delete_ratio,
        "small_files": files.small_files,
    }
    figures = {name: float(value) for name, value in measured.items() if value is not None} | _debt_figures(debt)
    return _decided("rewrite_data_files", triggers, runs=runs, policy=policy, now_ms=now_ms, figures=figures, debt=debt)


def positions_due(
    history: TableHistory | None, health: TableHealth | None, policy: Maintenance, now_ms: int
) -> Decision:
    """Whether rewrite_position_delete_files is due. It knows nothing of equality deletes and of deletion vectors.

    A summary tells no kind of delete file from another: without `health` the count is known only of a table that has
    no deletes of another kind.
    """
    if history is None or history.head is None:
        return _no_snapshot(history)
    runs = past_runs(history.properties, "rewrite_position_delete_files")
    measured = _position_files(history, history.head, health)
    left = _positions_left(history, settled(runs))
    trigger = _beyond("positions_after_files", measured, left, policy.positions_after_files, "position-delete files")
    figures = {} if measured is None else {"position_delete_files": float(measured)}
    return _decided(
        "rewrite_position_delete_files", [trigger], runs=runs, policy=policy, now_ms=now_ms, figures=figures
    )


def expiry_due(
    history: TableHistory | None,
    policy: Maintenance,
    now_ms: int,
    *,
    expirable: Sequence[int],
    kept: Sequence[Kept] = (),
) -> Decision:
    """Whether expire_snapshots is due: `expirable` are the snapshots that may go, `kept` those that somebody pins."""
    if history is None or history.head is None:
        return _no_snapshot(history)
    runs = past_runs(history.properties, "expire_snapshots")
    trigger = _Trigger("expire_after_snapshots", len(expirable), policy.expire_after_snapshots, "snapshots that may go")
    by = sorted({one.by for one in kept})
    named = ", ".join(by[:_KEPT_NAMED_MAX]) + (
        f" and {len(by) - _KEPT_NAMED_MAX} more" if len(by) > _KEPT_NAMED_MAX else ""
    )
    rest = [f"{len(history.snapshots)} in all"] + ([f"{len(kept)} past their age are kept by {named}"] if kept else [])
    figures = {
        "snapshots": float(len(history.snapshots)),
        "snapshots_expirable": float(len(expirable)),
        "snapshots_kept": float(len(kept)),
    }
    return _decided("expire_snapshots", [trigger], runs=runs, policy=policy, now_ms=now_ms, figures=figures, rest=rest)


def past_retention(history: TableHistory, policy: Maintenance, now_ms: int) -> tuple[int, ...]:
    """Snapshots that neither age nor count keeps, and that no tag or branch names; whoever may need them."""
    newest = {s.snapshot_id for s, _ in zip(history.ancestry(), range(policy.keep_snapshots_min), strict=False)}
    stay = newest | set(history.refs.values()) | {history.head_id}
    oldest_ms = now_ms - _ms(policy.keep_snapshots_for)
    return tuple(
        s.snapshot_id for s in history.snapshots.values() if s.timestamp_ms < oldest_ms and s.snapshot_id not in stay
    )


def limits(
    health: TableHealth,
    policy: Maintenance,
    *,
    past_retention_ids: Sequence[int] | None = None,
    mark: Halted | None = None,
) -> tuple[Finding, ...]:
    """Figures far beyond what should have started an operation: it does not run, or it does not help.

    `past_retention_ids` as `past_retention` has them; None: nobody looked. A tag that never moves keeps them all, and
    then nothing may go and nothing is due: only this tells.
    `mark` as `halted` finds it: with it no operation runs, and rows may be wrong.
    """
    stage, _, name = health.table.partition(".")
    command = f"cdc-platform maintain {name} {{}}{' --stage curated' if stage == 'curated' else ''} --dry-run"
    rewrite = f"`{command.format('rewrite_data_files')}` shows what a rewrite would take away"
    expire = f"`{command.format('expire_snapshots')}` lists what would go, and who pins what stays"
    times, past = policy.alarm_at, None if past_retention_ids is None else len(past_retention_ids)
    history_max = max(HISTORY_BYTES_MIN, times * (health.data_bytes + health.delete_bytes))
    looked_at: list[tuple[Group, str, float | None, float, str]] = [
        ("files", HALTED, 1 if mark else None, 0, f"{mark.what}. {mark.action()}" if mark else ""),
        ("files", "delete_files", health.delete_files, times * policy.rewrite_delete_files, rewrite),
        ("files", "delete_ratio", health.delete_ratio, times * policy.rewrite_delete_ratio, rewrite),
        ("files", "small_files", health.small_files, times * policy.rewrite_small_files, rewrite),
        ("history", "snapshots_past_retention", past, times * policy.expire_after_snapshots, expire),
        (
            "history",
            "metadata_bytes",
            health.metadata_bytes,
            METADATA_BYTES_MAX,
            f"{expire}; if nothing would go, lower `keep_snapshots_for`",
        ),
        ("history", "history_bytes", health.history_bytes, history_max, expire),
    ]
    return tuple(
        Finding(group, figure, measured, limit, action)
        for group, figure, measured, limit, action in looked_at
        if measured is not None and measured > limit
    )


# ---- How a decision is made -------------------------------------------------------------------------------


def _no_snapshot(history: TableHistory | None) -> Decision:
    return Decision(False, f"{history.table if history else 'the table'} has no snapshot yet")


def _decided(
    operation: Operation,
    triggers: Sequence[_Trigger],
    *,
    runs: Sequence[PastRun],
    policy: Maintenance,
    now_ms: int,
    figures: Mapping[str, float],
    debt: Debt | None = None,
    rest: Sequence[str] = (),
) -> Decision:
    """The nearest trigger first, then all other figures. One that is reached waits for the hour and the interval."""
    ordered = sorted(triggers, key=lambda t: -t.share)
    by_model = policy.rewrite_by == "model" and debt is not None and debt.known
    started = ordered[0].key if ordered[0].share >= 1 else None
    if started is None and by_model and debt is not None and debt.due:
        started = "rewrite_by"
    told = [trigger.text for trigger in ordered] + list(rest)
    if debt is not None:
        told.insert(0 if by_model and ordered[0].share < 1 else len(told), _debt_text(debt))
    if started is None:
        makes = "runs when they have paid that" if by_model and debt is not None else ordered[0].makes_it_run
        return Decision(False, "; ".join([*told, makes]), figures)
    if (until_ms := quiet(policy, now_ms)) is not None:
        return Decision(False, "; ".join([f"quiet hours until {_at(until_ms)}, then it runs", *told]), figures)
    if (until_ms := _interval_end(runs, policy, now_ms)) is not None:
        failures = failures_in_a_row(runs)
        ended = f"failed {failures} times in a row, last" if failures else "ended"
        twice = ", twice as long after each failure" if failures else ""
        wait = f"{operation} {ended} at {_at(runs[0].at_ms)}: runs from {_at(until_ms)} on (min_interval{twice})"
        return Decision(False, "; ".join([wait, *told]), figures)
    return Decision(True, "; ".join([f"{started} is reached: {told[0]}", *told[1:]]), figures, started)


def _interval_end(runs: Sequence[PastRun], policy: Maintenance, now_ms: int) -> int | None:
    """When the next run may start; None: now. A run recorded far in the future is a clock's error and stops nothing.

    After failures in a row the interval is twice as long for each, up to an hour, or to what the policy says.
    """
    least_ms = _ms(policy.min_interval)
    longer_ms = least_ms << min(failures_in_a_row(runs), _DOUBLED_MAX)
    interval_ms = max(least_ms, min(longer_ms, _BACK_OFF_MAX_MS))
    if not runs or not -least_ms < now_ms - runs[0].at_ms < interval_ms:
        return None
    return runs[0].at_ms + interval_ms


def _beyond(key: str, measured: float | None, left: float, threshold: float, what: str) -> _Trigger:
    """A trigger that counts from what the newest run left behind."""
    if not left:
        return _Trigger(key, measured, threshold, what)
    return _Trigger(key, measured, left + threshold, what, f" ({_figure(left)} were left by the last run)")


# ---- What is measured -------------------------------------------------------------------------------------


def _files(history: TableHistory, head: Snapshot, health: TableHealth | None) -> _Files:
    """A health of an older snapshot is behind the head's own summary; its small files count until a rewrite."""
    small = None
    if health is not None and not _rewritten_after(history, health.snapshot_id):
        small = health.small_files
    if health is not None and health.snapshot_id == head.snapshot_id:
        return _Files(health.delete_files, health.deletes, health.data_records, small)
    return _Files(head.figure("total-delete-files"), _deletes(head), head.figure("total-records"), small)


def _deletes(snapshot: Snapshot) -> int | None:
    """By its summary; those of deletion vectors are position deletes, too."""
    equality, positions = (snapshot.figure(f"total-{kind}-deletes") for kind in ("equality", "position"))
    return None if equality is None or positions is None else equality + positions


def _position_files(history: TableHistory, head: Snapshot, health: TableHealth | None) -> int | None:
    if health is not None and health.snapshot_id == head.snapshot_id:
        return health.position_delete_files
    if head.figure("total-position-deletes") == 0:
        return 0
    vectors = any("added-dvs" in snapshot.summary for snapshot in history.ancestry())
    known = not vectors and head.figure("total-equality-deletes") == 0 and head.figure("total-position-deletes")
    return head.figure("total-delete-files") if known else None


def _positions_left(history: TableHistory, runs: Sequence[PastRun]) -> int:
    """Position-delete files that the newest run left, or wrote itself: one for each data file may be the fewest."""
    if not runs or _rewritten_after(history, runs[0].snapshot_id):
        return 0
    if not runs[0].changed:
        return runs[0].delete_files
    if not runs[0].complete:
        return 0
    made = history.snapshots[runs[0].snapshot_id]
    wrote = made.figure("added-position-delete-files") or made.figure("added-delete-files")
    return min(wrote or 0, runs[0].delete_files)


def _rewritten_after(history: TableHistory, snapshot_id: int) -> bool:
    """Whether data files were rewritten after a snapshot, or it is not in the ancestry, so that nobody can say."""
    after = list(takewhile(lambda s: s.snapshot_id != snapshot_id, history.ancestry()))
    return any(map(rewrote, after)) or len(after) == sum(1 for _ in history.ancestry())


def _left(runs: Sequence[PastRun], start: Snapshot | None) -> _Files:
    """What the newest rewrite left because it can't take it; nothing if it was cut short, for the next goes on.

    What its last snapshot says, and no more than there was before it: the rest came while it ran.
    """
    if not runs or start is None or start.snapshot_id != runs[0].snapshot_id:  # A rewrite that nobody recorded.
        return _NOTHING
    run = runs[0]
    if run.changed and not run.complete:
        return _NOTHING
    delete_files, deletes = start.figure("total-delete-files"), _deletes(start)
    return _Files(
        min(run.delete_files if delete_files is None else delete_files, run.delete_files),
        min(run.deletes if deletes is None else deletes, run.deletes),
        start.figure("total-records"),
        _small_left(run, start),
    )


def _small_left(run: PastRun, start: Snapshot) -> int:
    if run.small_files_left is None:  # A run that found nothing to do has left all data files as they are.
        return 0 if run.changed else start.total("data-files")
    there = start.figure("total-data-files")
    return run.small_files_left if there is None else min(run.small_files_left, there)


def _goes_on(runs: Sequence[PastRun], start: Snapshot | None) -> bool:
    """The newest run was cut short at a bound, and nothing was rewritten after it.

    One that changed nothing has shown that it can't; one that failed is tried again if a figure says so.
    """
    if not runs or start is None or start.snapshot_id != runs[0].snapshot_id:
        return False
    return runs[0].changed and not runs[0].complete and not runs[0].failed


# ---- In words and figures ---------------------------------------------------------------------------------


def _debt_figures(debt: Debt) -> dict[str, float]:
    found = {
        "debt_cost_s": debt.cost_s,
        "debt_paid_s": debt.paid_s,
        "debt_extra_s_per_read": debt.extra_s_per_read,
        "debt_s_per_delete_file": debt.slope_s_per_delete_file,
        "debt_pays_back_after_reads": debt.pays_back_after_reads,
        "debt_due_at_ms": debt.due_at_ms,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _debt_text(debt: Debt) -> str:
    if debt.paid_s is None or debt.cost_s is None or debt.extra_s_per_read is None:
        if not debt.counted:
            return "what readers pay is unknown while a writer leaves total-delete-files out of its summaries"
        return f"what readers pay is unknown until {RUNS_MIN} rewrites of delete files are recorded"
    least = "" if debt.whole else "at least "
    text = f"readers have paid {least}{_figure(debt.paid_s)} s of the {_figure(debt.cost_s)} s that a rewrite costs"
    if debt.due_at_ms is not None and not debt.due:
        text += f", and will have at {_at(debt.due_at_ms)} if deletes go on as they do"
    if debt.pays_back_after_reads is None:
        return f"{text}; now a read pays nothing"
    return (
        f"{text}; now a read pays {_figure(debt.extra_s_per_read)} s, so that a rewrite pays back after "
        f"{_figure(debt.pays_back_after_reads)} reads"
    )


def _figure(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)


def _at(time_ms: int) -> str:
    """A moment for people, UTC; a number that is no moment stays one."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
