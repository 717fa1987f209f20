import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.orchestration.attempts import (
    Attempt,
    Exhausted,
    Request,
    Wait,
    at_target,
    next_step,
    since_success,
)

FAILED = Attempt("f", "t", "failed")
DONE = Attempt("d", "t", "succeeded")
RUNNING = Attempt("r", "t", "in flight")
OTHER = Attempt("o", "u", "failed")


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ([], Request(1, None)),
        ([FAILED], Request(2, "f")),
        ([FAILED, DONE], Request(3, "f")),
        ([FAILED, DONE, FAILED], Exhausted(3, "f")),
        ([RUNNING, FAILED], Wait("r")),
        ([RUNNING, FAILED, FAILED, FAILED], Wait("r")),
    ],
)
def test_an_attempt_follows_until_all_are_used_up(counted: list[Attempt], expected: object) -> None:
    assert next_step(counted, counted, attempts_max=3) == expected


def test_a_run_in_flight_for_another_target_is_waited_for() -> None:
    running = Attempt("r", "u", "in flight")
    assert next_step([running], [], attempts_max=3) == Wait("r")


def test_the_key_of_a_first_attempt_names_the_run_before_it() -> None:
    """A table made anew starts from a target that was used before, whose key is spent."""
    assert next_step([OTHER, FAILED], at_target([OTHER, FAILED], "t"), attempts_max=3) == Request(1, "o")


def test_only_attempts_in_a_row_count() -> None:
    assert at_target([FAILED, DONE, OTHER, FAILED], "t") == (FAILED, DONE)
    assert at_target([OTHER, FAILED], "t") == ()
    assert since_success([FAILED, FAILED, DONE, FAILED]) == (FAILED, FAILED)


@given(st.integers(1, 20), st.lists(st.sampled_from(["failed", "succeeded"]), max_size=60))
def test_no_target_gets_more_runs_than_attempts_max(attempts_max: int, ends: list[str]) -> None:
    """Whatever runs end in, each request has a new number and there are `attempts_max` of them at most."""
    earlier: list[Attempt] = []
    numbers: list[int] = []
    for i, end in enumerate(ends):
        step = next_step(earlier, at_target(earlier, "t"), attempts_max=attempts_max)
        if isinstance(step, Exhausted):
            break
        assert isinstance(step, Request)
        numbers.append(step.number)
        earlier.insert(0, Attempt(str(i), "t", end))  # type: ignore[arg-type]
    assert numbers == list(range(1, min(len(ends), attempts_max) + 1))
