"""When a rewrite pays: what readers have lost to delete files since the last one, against what a rewrite costs.

Belongs here: the model, as arithmetic on a table's own past runs and summaries. Does not: starting anything by it
(`maintenance/policy.py`).
Units: `*_s` seconds, `*_ms` UTC milliseconds; a *read* is a full read of the table.
Delete files that the last run left because it can't take them are no debt: no rewrite pays them back.

The rule: rewrite as soon as readers have paid, since the last rewrite, as many extra seconds as a rewrite costs.
Debt that grows linearly costs `a*t*t/2` by time t after a rewrite. A cycle of length t costs `(C + a*t*t/2) / t` a
second; its derivative is 0 at `a*t*t/2 = C`: the best moment is when paid equals cost (the economic order quantity).
Debt that grows in any other way costs at most twice what the best choice in hindsight would (rent or buy): in a cycle,
this rule pays C for reads and C for the rewrite, and any other choice either rewrites in it too (C) or reads through
all of it with at least as many delete files (C).

Worked case: a rewrite takes 36 s; each delete file costs a read 0.1 s; 12 reads an hour; a delete file more every
minute. Extra seconds per second: 12/3600 * 0.1 * t/60 = t / 180,000. Paid by t: t*t / 360,000. It is 36 s at
t = 3,600 s: rewrite once an hour, at 60 delete files.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.maintenance.runs import PastRun, SinceRewrite, settled, since_rewrite

RUNS_MIN = 2  # One run may have been an exception.
_AHEAD_MAX_MS = 366 * 86_400_000  # Further ahead, a prediction says nothing.
_HOUR_MS = 3_600_000.0


@dataclass(frozen=True, slots=True)
class Debt:
    """A table's delete debt. Seconds are None while they are unknown."""

    delete_files: int  # Now, beyond those that the last run left.
    slope_s_per_delete_file: float | None = None  # That each delete file adds to a read.
    cost_s: float | None = None  # Of a rewrite, with work that it loses to conflicts.
    paid_s: float | None = None  # By all readers since the last rewrite.
    extra_s_per_read: float | None = None  # Now.
    pays_back_after_reads: float | None = None  # At the present number of delete files; None: it never does.
    due_at_ms: int | None = None  # When paid reaches cost if delete files go on growing as they do; None: not soon.
    whole: bool = True  # False: expiry has cut the ancestry, so readers have paid more than is seen.
    counted: bool = True  # False: a writer left the number of delete files out of a summary.

    @property
    def known(self) -> bool:
        """Whether this table's past runs say enough."""
        return self.paid_s is not None and self.cost_s is not None

    @property
    def due(self) -> bool:
        """Whether readers have paid what a rewrite costs."""
        # A rewrite that took no time at all was none worth learning from: nothing paid is no reason.
        return self.paid_s is not None and self.cost_s is not None and self.paid_s >= self.cost_s and self.paid_s > 0


def debt_of(
    history: TableHistory, runs: Sequence[PastRun], *, reads_per_hour: float, now_ms: int, left: int = 0
) -> Debt:
    """The debt of a table from its history and its recorded rewrites, newest first.

    `left` are delete files that the newest of them could not take away.
    """
    head = history.head
    since = since_rewrite(history)
    # Oldest first; the rewrite itself begins the first interval, for it may have left delete files.
    snapshots = [*([since.start] if since.start else []), *reversed(since.snapshots)]
    known = [s.figure("total-delete-files") for s in snapshots]
    files = [max(0, n - left) for n in known if n is not None]
    delete_files = files[-1] if files else 0
    slope, cost_s = _slope(runs), _cost_s(runs)
    if head is None or slope is None or cost_s is None or len(files) < len(snapshots):
        return Debt(delete_files, slope, cost_s, whole=since.whole, counted=len(files) == len(snapshots))
    from_ms = _paid_from_ms(since, settled(runs), now_ms)
    begins = [max(s.timestamp_ms, from_ms) for s in snapshots]
    ends = [*begins[1:], now_ms]
    rate = reads_per_hour / _HOUR_MS * slope  # Seconds paid per millisecond and delete file.
    # A clock that jumped back makes a negative interval: nobody reads in it.
    file_ms = sum(n * max(0, end - begin) for n, begin, end in zip(files, begins, ends, strict=True))
    elapsed_ms = max(0, now_ms - begins[0])
    growth = max(0.0, (delete_files - files[0]) / elapsed_ms) if elapsed_ms else 0.0
    extra_s = slope * delete_files
    paid_s = rate * file_ms
    wait_ms = _until(cost_s - paid_s, rate * delete_files, rate * growth)
    return Debt(
        delete_files,
        slope,
        cost_s,
        paid_s,
        extra_s,
        cost_s / extra_s if extra_s > 0 else None,
        now_ms + math.ceil(wait_ms) if wait_ms <= _AHEAD_MAX_MS else None,
        since.whole,
    )


def _paid_from_ms(since: SinceRewrite, runs: Sequence[PastRun], now_ms: int) -> int:
    """When the present debt begins, if not with a snapshot: at a run that left no snapshot to count from.

    One that found nothing to do has moved none, and yet what was paid before it is settled: it would be due for ever.
    """
    if not runs or runs[0].at_ms > now_ms:  # A clock's error is no settlement.
        return 0
    return 0 if runs[0].changed and since.start is not None else runs[0].at_ms


def _slope(runs: Sequence[PastRun]) -> float | None:
    """Median of what each run saved a read for each delete file it met. Noise may show a loss: that is no saving.

    Of runs that rewrote all that they planned: others met delete files that they left.
    """
    found = [
        max(0.0, run.read_before_s - run.read_after_s) / run.delete_files
        for run in runs
        if run.changed
        and run.complete
        and run.delete_files > 0
        and run.read_before_s is not None
        and run.read_after_s is not None
    ]
    return median(found) if len(found) >= RUNS_MIN else None


def _cost_s(runs: Sequence[PastRun]) -> float | None:
    """Median of what a rewrite took, with what it lost, and what void runs lost before it."""
    found, lost_s = list[float](), 0.0
    for run in reversed(runs):
        if run.void:
            lost_s += run.lost_s
        elif run.changed and run.complete:
            found.append(run.took_s + run.lost_s + lost_s)
            lost_s = 0.0
    return median(found) if len(found) >= RUNS_MIN else None


def _until(left: float, speed: float, acceleration: float) -> float:
    """Smallest t >= 0 with `speed*t + acceleration*t*t/2 >= left`; infinite when there is none."""
    if left <= 0:
        return 0.0
    # The form of the root that has no difference of near-equal numbers in it; its divisor is 0 if nothing grows.
    divisor = speed + math.sqrt(speed * speed + 2 * acceleration * left)
    return 2 * left / divisor if divisor > 0 else math.inf
