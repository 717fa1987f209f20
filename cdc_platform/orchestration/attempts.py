"""Whether an automated operation is tried again: from the runs there have been, not from a sensor's cursor.

Belongs here: plain values and the rule. Does not: finding the runs (`automation.py`), or dagster.
Rules: a run key is spent even when its run fails, so each attempt needs a key of its own. A *target* names
where an operation starts from, not the newest data: a busy stream makes new data all the time, and would give
a failing operation fresh attempts for ever. What moves the target is a run that succeeds, an operator's too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of an operation on a table."""

    run_id: str
    target: str
    state: Literal["in flight", "failed", "succeeded"]


@dataclass(frozen=True, slots=True)
class Wait:
    """A run is queued or under way."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for a run. `after` is the run before it, which makes the key of this one unlike any before."""

    number: int
    after: str | None


@dataclass(frozen=True, slots=True)
class Exhausted:
    """All attempts for this target are used up: a person has to look."""

    attempts: int
    last_run_id: str


Step = Wait | Request | Exhausted


def at_target(earlier: Sequence[Attempt], target: str) -> tuple[Attempt, ...]:
    """The newest runs in a row with this target. `earlier` is newest first, here and below.

    Only those in a row: a table that was dropped and made again starts once more "from the beginning".
    """
    return tuple(takewhile(lambda attempt: attempt.target == target, earlier))


def since_success(earlier: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """The newest runs in a row that did not succeed."""
    return tuple(takewhile(lambda attempt: attempt.state != "succeeded", earlier))


def in_flight(earlier: Sequence[Attempt]) -> Wait | None:
    """The run that is queued or under way, if there is one."""
    return next((Wait(attempt.run_id) for attempt in earlier if attempt.state == "in flight"), None)


def next_step(earlier: Sequence[Attempt], counted: Sequence[Attempt], *, attempts_max: int) -> Step:
    """Return what to do about an operation that is due.

    `earlier` are all runs of the operation on the table, `counted` those of them that were for this target.
    """
    if running := in_flight(earlier):
        return running
    if len(counted) >= attempts_max:
        return Exhausted(len(counted), counted[0].run_id)
    return Request(len(counted) + 1, earlier[0].run_id if earlier else None)
