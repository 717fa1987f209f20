"""What maintenance has done to a table, as the table itself keeps it.

Belongs here: the record of a run, its place in a table property, and how far back the last rewrite lies. Does not:
making runs (`maintenance/maintain.py`), or learning from them (`maintenance/debt.py`).
The newest runs of an operation stand in the property `cdc.maintenance.<operation>` as JSON, newest first: the table is
the state, so a schedule that lost its memory goes on where it was. Lost, it costs one run too early.
Rules: each record is read by itself, so one that can't be read costs itself alone; what is written can be read.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.landing.position import HEARTBEAT

Operation = Literal[
    "rewrite_data_files",
    "rewrite_position_delete_files",
    "expire_snapshots",
    "rewrite_manifests",
    "remove_orphan_files",
]
PROPERTY = "cdc.maintenance."  # Followed by the operation.
RUNS_KEPT_MAX = 10
_TEXT_MAX = 64 * 1024  # Characters; ten runs are 3,000. A longer text is not ours.
_DIGITS = 3  # After the point of seconds.
_COUNT_MAX = 2**63 - 1
_SECONDS_MAX = 366 * 86_400.0  # Longer is a clock's error.
_Count = Annotated[int, Field(ge=0, le=_COUNT_MAX)]
_Seconds = Annotated[float, Field(ge=0, le=_SECONDS_MAX, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run that got as far as its record: with or without something to do, well or not."""

    at_ms: _Count  # Its end, UTC.
    snapshot_id: int  # The last that it made itself, or the head at its start: what came later is none of its work.
    took_s: _Seconds
    changed: bool  # False: it found nothing to do.
    rewritten_bytes: _Count = 0
    delete_files: _Count = 0  # Before it.
    deletes: _Count = 0  # Rows and keys, before it.
    read_before_s: _Seconds | None = None  # The probe read; None where the operation has none.
    read_after_s: _Seconds | None = None
    lost_s: _Seconds = 0.0  # Work thrown away to conflicts.
    small_files_left: _Count | None = None  # After it; None when nobody counted.
    complete: bool = True  # False: it was cut short, by a limit or a conflict, with planned files not taken.
    failed: bool = False  # It ended with an error all the same: it is no progress, and the next run is a retry.
    failures: _Count = 0  # Void ones in a row, of which this record is the last; `lost_s` is of all of them.

    @property
    def void(self) -> bool:
        """It failed and changed nothing: the table is as the run before it left it."""
        return self.failed and not self.changed


def settled(runs: Sequence[PastRun]) -> list[PastRun]:
    """Runs that left a table where the next decision begins: all but void ones."""
    return [run for run in runs if not run.void]


def failures_in_a_row(runs: Sequence[PastRun]) -> int:
    """How many of the newest runs failed, one after the other."""
    return sum(max(1, run.failures) for run in takewhile(lambda run: run.failed, runs))


def _or_none(value: Any, validate: ValidatorFunctionWrapHandler) -> PastRun | None:
    try:
        return validate(value)
    except ValidationError:
        return None


_RUNS = TypeAdapter(tuple[PastRun, ...])
_READABLE = TypeAdapter(tuple[Annotated[PastRun | None, WrapValidator(_or_none)], ...])


def past_runs(properties: Mapping[str, str], operation: Operation) -> tuple[PastRun, ...]:
    """Recorded runs of `operation`, newest first. What can't be read is no run: a record is a hint, not a truth."""
    text = properties.get(PROPERTY + operation, "[]")
    if len(text) > _TEXT_MAX:
        return ()
    try:
        found = _READABLE.validate_json(text, strict=True)
    except ValidationError:
        return ()
    return tuple(run for run in found if run is not None)[:RUNS_KEPT_MAX]


def with_run(properties: Mapping[str, str], operation: Operation, run: PastRun) -> tuple[str, str]:
    """The property and its new value: `run`, then those recorded before it.

    Of too many, the oldest that changed nothing goes first: what a table has learnt of its rewrites stays; and so does
    the newest that did not fail, for attempts count from it. Void runs in a row are one record.
    """
    newest, past = _readable(run), past_runs(properties, operation)
    if newest.void:
        before = past[0] if past and past[0].void else None
        lost_s, failures = (before.lost_s, max(1, before.failures)) if before else (0.0, 0)
        newest = _readable(replace(newest, lost_s=newest.lost_s + lost_s, failures=failures + 1))
        past = past[1:] if before else past
    kept = [newest, *past]
    while len(kept) > RUNS_KEPT_MAX:  # Bounded: each turn takes one away.
        start = next((n for n, one in enumerate(kept) if not one.failed), 0)
        spare = [n for n in reversed(range(1, len(kept))) if n != start]
        kept.pop(next((n for n in spare if not kept[n].changed), spare[0]))
    return PROPERTY + operation, _RUNS.dump_json(tuple(kept), exclude_defaults=True).decode()


def _readable(run: PastRun) -> PastRun:
    """The run with figures that `past_runs` can read: a clock that was set meanwhile makes others."""

    def seconds(value: float) -> float:
        return round(min(max(value, 0.0), _SECONDS_MAX), _DIGITS) if math.isfinite(value) else 0.0

    def measured(value: float | None) -> float | None:
        sound = value is not None and 0 <= value <= _SECONDS_MAX
        return round(value, _DIGITS) if value is not None and sound else None

    def count(value: int) -> int:
        return min(max(value, 0), _COUNT_MAX)

    return replace(
        run,
        at_ms=count(run.at_ms),
        took_s=seconds(run.took_s),
        rewritten_bytes=count(run.rewritten_bytes),
        delete_files=count(run.delete_files),
        deletes=count(run.deletes),
        read_before_s=measured(run.read_before_s),
        read_after_s=measured(run.read_after_s),
        lost_s=seconds(run.lost_s),
        failures=count(run.failures),
        small_files_left=None if run.small_files_left is None else count(run.small_files_left),
    )


def rewrote(snapshot: Snapshot) -> bool:
    """Data files were written anew; a `replace` of delete files or manifests alone is none."""
    return snapshot.operation == "replace" and (snapshot.figure("deleted-data-files") or 0) > 0


def counts(snapshot: Snapshot) -> bool:
    """It changed rows: no rewrite, and no heartbeat, which says the same position again."""
    return snapshot.operation != "replace" and HEARTBEAT not in snapshot.summary


@dataclass(frozen=True, slots=True)
class SinceRewrite:
    """A table since its data files were last rewritten."""

    snapshots: tuple[Snapshot, ...]  # Newest first, without `start`.
    start: Snapshot | None  # The rewrite, or where the last run left off. None: it is not in the ancestry any more.
    whole: bool  # False: expiry has cut the ancestry, so there was more than is seen.

    @property
    def commits(self) -> int:
        """Commits that changed rows; at least these, unless `whole`."""
        return sum(map(counts, self.snapshots))

    @property
    def named(self) -> str:
        """Where the count begins, for people."""
        if self.start is not None:
            return f"{'rewrite' if rewrote(self.start) else 'the run at'} {self.start.snapshot_id}"
        return "the beginning" if self.whole else "the oldest snapshot that is left"


def since_rewrite(history: TableHistory) -> SinceRewrite:
    """Walk back to the newest rewrite of data files, or to where the newest run left off, which may have made none."""
    runs = settled(past_runs(history.properties, "rewrite_data_files"))
    run_head = runs[0].snapshot_id if runs else None
    walked: list[Snapshot] = []
    for snapshot in history.ancestry():
        if rewrote(snapshot) or snapshot.snapshot_id == run_head:
            return SinceRewrite(tuple(walked), snapshot, whole=True)
        walked.append(snapshot)
    return SinceRewrite(tuple(walked), None, whole=not walked or walked[-1].parent_id is None)
