"""Waits until a stage has reached the cut, then says: converged, diverged, or unknown, and why.

Belongs here: the wait, the verdict and its reasons. Does not: how a side is read: the caller gives a `Stage`.
Rules: *diverged* needs a stage that is complete through the cut and still differs from what the log makes of it;
a stage that does not get there in time, or a side that can't be read, is *unknown*: never wrong, nor right.
Units: `*_s` are seconds of a monotonic clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from cdc_platform.convergence.cut import LoadUnderWayError
from cdc_platform.convergence.state import Difference, differences
from cdc_platform.errors import CdcError
from cdc_platform.source.state import Cut, State

Outcome = Literal["converged", "diverged", "unknown"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A stage at one of its snapshots, and what it should hold there."""

    snapshot_id: int
    found: State
    expected: State


class Stage(Protocol):
    """A table on the way of the data, compared with the source at a cut."""

    def begin(self) -> None:
        """Called before the source is read: note where the change log ends.

        Every record before that end is of a transaction that the cut will hold.
        """
        ...

    def reached(self) -> str | None:
        """None once the stage is complete through what was committed at the first call; else what it waits for."""
        ...

    def read(self, cut: Cut) -> Reading:
        """Read the stage's newest snapshot. Called once `reached` has returned None."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """`took_s` runs from the cut to the verdict: for `converged`, the time to converge."""

    outcome: Outcome
    reason: str
    took_s: float
    cut: Cut | None = None
    reading: Reading | None = None
    differences: tuple[Difference, ...] = ()


def converge(
    read_source: Callable[[], Cut],
    stage: Stage,
    *,
    within_s: float,
    poll_s: float = 0.25,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Verdict:
    """Compare `stage` with the source as it is now; wait at most `within_s` for both to be there."""
    began = clock()
    cut: Cut | None = None
    while True:  # Bounded by `within_s`.
        try:
            if cut is None:
                stage.begin()
                cut = read_source()
            waiting = stage.reached()
            if waiting is None:
                reading = stage.read(cut)
                found = differences(reading.expected, reading.found)
                took_s = clock() - began
                if not found:
                    return Verdict("converged", "every figure is equal", took_s, cut, reading)
                reason = f"{len(found)} figures differ at snapshot {reading.snapshot_id}"
                return Verdict("diverged", reason, took_s, cut, reading, found)
        except LoadUnderWayError:
            waiting, cut = "an initial load was under way", None  # A later cut lies behind it.
        except CdcError as error:
            waiting = str(error)
        if clock() - began >= within_s:
            return Verdict("unknown", f"after {within_s:g} s: {waiting}", clock() - began)
        sleep(poll_s)
