"""The verdict: waiting, and which of the three words. Time is an argument."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from cdc_platform.convergence.converge import Reading, Verdict, converge
from cdc_platform.convergence.cut import LoadUnderWayError
from cdc_platform.errors import UnavailableError
from cdc_platform.source.state import Cut, State

ONE, TWO = State(1, {}, {}), State(2, {}, {})
CUT = Cut(ONE, lsn=9, xmin=1, xmax=1, running=frozenset())


@dataclass
class FakeStage:
    """Waits for what `waits` says, one a poll; then holds `found` where `expected` is right."""

    found: State = ONE
    expected: State = ONE
    waits: list[str] = field(default_factory=list)
    loads: int = 0
    begun: int = 0

    def begin(self) -> None:
        self.begun += 1

    def reached(self) -> str | None:
        return self.waits.pop(0) if self.waits else None

    def read(self, cut: Cut) -> Reading:
        assert cut is CUT
        if self.loads:
            self.loads -= 1
            raise LoadUnderWayError
        return Reading(7, self.found, self.expected)


def verdict(stage: FakeStage, *sources: Cut | Exception, within_s: float = 3.0) -> Verdict:
    answers: Iterator[Cut | Exception] = iter(sources or [CUT])
    last: list[Cut | Exception] = []
    now = [100.0]

    def read() -> Cut:
        answer = next(answers, None) or last[-1]
        last.append(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return converge(read, stage, within_s=within_s, poll_s=1.0, clock=lambda: now[0], sleep=sleep)


def test_equal_at_once_is_converged_in_no_time() -> None:
    found = verdict(FakeStage())
    assert (found.outcome, found.took_s, found.differences) == ("converged", 0.0, ())


def test_the_time_to_converge_is_the_time_waited() -> None:
    assert verdict(FakeStage(waits=["behind", "behind"])).took_s == 2.0


def test_a_stage_that_is_there_and_differs_is_diverged_at_once() -> None:
    found = verdict(FakeStage(found=TWO))
    assert (found.outcome, found.took_s) == ("diverged", 0.0)
    assert [(d.measure, d.expected, d.found) for d in found.differences] == [("rows", 1, 2)]


def test_a_stage_that_does_not_get_there_is_unknown_even_if_it_would_differ() -> None:
    found = verdict(FakeStage(found=TWO, waits=["capture has not come to the cut"] * 9))
    assert found.outcome == "unknown"
    assert found.reason == "after 3 s: capture has not come to the cut"
    assert found.differences == ()


@pytest.mark.parametrize("answers_after", [1, 3, 99])
def test_a_source_that_does_not_answer_is_asked_again_and_is_never_diverged(answers_after: int) -> None:
    down = UnavailableError("the source does not answer", where="postgresql://db", action="Start it")
    found = verdict(FakeStage(found=ONE), *[down] * answers_after, CUT)
    assert found.outcome == ("converged" if answers_after <= 3 else "unknown")
    assert found.outcome == "converged" or "the source does not answer" in found.reason


def test_a_load_in_between_takes_a_later_cut() -> None:
    stage = FakeStage(loads=2)
    assert verdict(stage).outcome == "converged"
    assert stage.begun == 3
