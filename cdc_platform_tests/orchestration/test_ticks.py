"""A tick over many tables, with reads that hang, fail or are many. A read ends when the test says so."""

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from cdc_platform.errors import UnavailableError
from cdc_platform.orchestration import ticks
from cdc_platform.orchestration.ticks import Passed, for_each

LOG = logging.getLogger("test")


class Storage:
    """Reads of some names hang until `release`."""

    def __init__(self, *hanging: str) -> None:
        self.hanging = set(hanging)
        self.asked: list[str] = []
        self.released = threading.Event()

    def read(self, name: str) -> str:
        self.asked.append(name)
        if name in self.hanging:
            self.released.wait(30)
        return name.upper()

    def release(self) -> None:
        self.hanging.clear()
        self.released.set()
        for _ in range(1_000):
            if not ticks._hung:
                return
            threading.Event().wait(0.01)
        raise AssertionError("a read that has returned is still counted as hung")


@pytest.fixture
def storage() -> Iterator[Callable[..., Storage]]:
    made: list[Storage] = []

    def make(*hanging: str) -> Storage:
        made.append(Storage(*hanging))
        return made[-1]

    yield make
    for one in made:
        one.release()


def tick(storage: Storage, *names: str, first: str = "", read_s: float = 0.05, tick_s: float = 20.0) -> Passed:
    return for_each(
        names,
        storage.read,
        lambda _name, answer: f"read {answer}",
        first=first,
        log=LOG,
        read_within_s=read_s,
        tick_within_s=tick_s,
    )


def test_every_table_is_read_and_told_in_the_order_of_the_registry(storage: Callable[..., Storage]) -> None:
    names = [f"t{n}" for n in range(50)]
    passed = tick(storage(), *names, first="t7")
    assert passed == Passed(tuple(f"{n}: read {n.upper()}" for n in names), "")


def test_a_table_that_hangs_costs_only_itself_and_is_not_asked_again_until_it_answers(
    storage: Callable[..., Storage],
) -> None:
    names = [f"t{n}" for n in range(12)]
    s = storage("t0", "t1", "t2", "t3", "t4")  # More than there are threads.
    reasons = tick(s, *names).reasons
    assert reasons[5:] == tuple(f"{n}: read {n.upper()}" for n in names[5:])
    assert all("no answer within" in reason for reason in reasons[:5])
    again = tick(s, *names).reasons
    assert all("no answer to a read that began" in reason for reason in again[:5])
    assert again[5:] == reasons[5:]
    assert s.asked.count("t0") == 1, "its thread hangs still: no second one is started"
    s.release()
    assert tick(s, *names).reasons[0] == "t0: read T0"


def test_a_tick_that_runs_out_of_time_leaves_the_next_turn_to_whom_it_left_out(
    storage: Callable[..., Storage],
) -> None:
    names = [f"t{n}" for n in range(8)]
    s = storage("t0", "t1", "t2", "t3")
    with pytest.raises(UnavailableError):
        tick(s, *names, read_s=30, tick_s=0.05)
    reasons = tick(s, *names, read_s=30).reasons
    assert reasons[4:] == ("t4: read T4", "t5: read T5", "t6: read T6", "t7: read T7")


def test_who_had_no_turn_is_first_in_the_next_tick(storage: Callable[..., Storage]) -> None:
    s = storage("b", "c", "d", "e")
    passed = tick(s, "a", "b", "c", "d", "e", "f", read_s=30, tick_s=0.05)
    assert passed.reasons[0] == "a: read A"
    assert passed.first == "f" and "had no turn in this tick" in passed.reasons[5]
    tick(s, "a", "f", first="f")
    assert s.asked[-2:] in (["f", "a"], ["a", "f"])
    assert s.asked[5] in {"f", "a"}


def test_an_error_of_reading_or_of_acting_costs_that_table_alone_and_all_of_them_the_tick() -> None:
    def read(name: str) -> str:
        if name == "broken":
            raise ValueError("torn")
        return name

    def act(name: str, _answer: str) -> str:
        if name == "odd":
            raise KeyError("x")
        return "fine"

    assert for_each(["broken", "odd", "good"], read, act, log=LOG).reasons == (
        "broken: ValueError: torn",
        "odd: KeyError: 'x'",
        "good: fine",
    )
    with pytest.raises(ValueError, match="torn"):
        for_each(["broken", "odd"], read, act, log=LOG)


def test_hung_reads_are_bounded(storage: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "_HUNG_MAX", 4)  # The limit itself, lowered.
    names = [f"t{n}" for n in range(20)]
    s = storage(*names)
    with pytest.raises(UnavailableError):
        tick(s, *names)
    assert len(s.asked) == 4
