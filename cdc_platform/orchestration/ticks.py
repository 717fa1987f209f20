"""How one tick goes over many tables: a slow or broken one costs only itself, and the tick ends in time.

Belongs here: reading tables side by side, deadlines, whose turn is next. Does not: what is read or what follows from
it (`sensors.py`). No dagster here.
Rules: Dagster gives a tick 60 s and then throws all of it away, so reads run in threads that the tick does not wait for
beyond a deadline. A thread can't be ended: one that hangs is left, and its table is not read again until it returns
(the code server's process lives on, so `_hung` does). What must not be in these threads: Dagster's instance, and
anything that two tables share and one may change. Threads are daemons: a hung one does not keep the process alive.
Units: `*_s` seconds of the monotonic clock.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from cdc_platform.errors import UnavailableError

READ_WITHIN_S = 10.0  # Of one table: metadata of 1,000 snapshots takes a tenth of a second.
TICK_WITHIN_S = 25.0  # Of all: the rest of the tick (run records, Spark's socket) has as much again.
_THREADS = 4  # Reads mostly hold the interpreter's lock: more would only help against slow storage.
_HUNG_MAX = 64
_LOOK_EVERY_S = 0.05

T = TypeVar("T")
_lock = threading.Lock()
_hung: dict[str, list[float]] = {}  # By table: when each read that was given up began.


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What each table's read gave, in the order of the names; `left` had no turn in this tick."""

    read: Mapping[str, T | Exception]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passed:
    """A tick over all tables. `first` is who has the first turn in the next one."""

    reasons: tuple[str, ...]
    first: str


def for_each(
    names: Sequence[str],
    read: Callable[[str], T],
    act: Callable[[str, T], str],
    *,
    first: str = "",
    log: logging.Logger,
    read_within_s: float = READ_WITHIN_S,
    tick_within_s: float = TICK_WITHIN_S,
) -> Passed:
    """Read every table in threads, then `act` on each answer here, one by one; return what `act` says of each.

    An error of either costs that table alone. Raises when there was not one that could be read and acted on.
    """
    start = names.index(first) if first in names else 0
    turns = [*names[start:], *names[:start]]
    answers = read_each(turns, read, read_within_s=read_within_s, tick_within_s=tick_within_s)
    reasons: dict[str, str] = dict.fromkeys(
        answers.left, "had no turn in this tick, and has one of the first in the next"
    )
    failures: list[Exception] = []
    for name, answer in answers.read.items():
        try:
            if isinstance(answer, Exception):
                raise answer
            reasons[name] = act(name, answer)
        except Exception as error:
            log.exception(f"{name} was left out of this tick")
            failures.append(error)
            reasons[name] = f"{type(error).__name__}: {error}"
    if failures and len(failures) == len(answers.read):
        raise failures[0]
    return Passed(tuple(f"{name}: {reasons[name]}" for name in names), answers.left[0] if answers.left else "")


def read_each(
    names: Sequence[str], read: Callable[[str], T], *, read_within_s: float, tick_within_s: float
) -> Answers[T]:
    """Call `read` on each name in a few threads; what gives no answer in time is an UnavailableError."""
    return _Reading(names, read, read_within_s, tick_within_s).answers()


class _Reading(Generic[T]):
    """The reads of one tick."""

    def __init__(
        self, names: Sequence[str], read: Callable[[str], T], read_within_s: float, tick_within_s: float
    ) -> None:
        self._names = names
        self._read = read
        self._read_within_s = read_within_s
        self._ends = time.monotonic() + tick_within_s
        self._waiting: deque[str] = deque()
        self._running: dict[str, float] = {}
        self._done: SimpleQueue[tuple[str, T | Exception]] = SimpleQueue()
        self._found: dict[str, T | Exception] = {}

    def answers(self) -> Answers[T]:
        now = time.monotonic()
        with _lock:
            for name in self._names:
                if name in _hung:
                    age_s = now - _hung[name][0]
                    self._found[name] = _no_answer(name, f"no answer to a read that began {age_s:.0f} s ago", "again")
                else:
                    self._waiting.append(name)
        for _ in range(min(_THREADS, len(self._waiting))):
            self._start_thread()
        while self._running_or_waiting() and (now := time.monotonic()) < self._ends:
            self._give_up(lambda began: now - began >= self._read_within_s)
            try:
                # Not until the next deadline: a read that has not begun when it is computed would have none.
                name, answer = self._done.get(timeout=_LOOK_EVERY_S)
            except Empty:
                continue
            self._found[name] = answer
        with _lock:
            left = tuple(self._waiting)
            self._waiting.clear()
        self._give_up(lambda _began: True)
        while not self._done.empty():
            name, answer = self._done.get()
            self._found[name] = answer
        return Answers({name: self._found[name] for name in self._names if name in self._found}, left)

    def _running_or_waiting(self) -> bool:
        with _lock:
            return bool(self._running or self._waiting or not self._done.empty())

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name="cdc-tick", daemon=True).start()

    def _work(self) -> None:
        while True:
            with _lock:
                if not self._waiting:
                    return
                name = self._waiting.popleft()
                self._running[name] = began = time.monotonic()
            try:
                answer: T | Exception = self._read(name)
            except Exception as error:
                answer = error
            with _lock:
                if self._running.pop(name, None) is None:  # Given up meanwhile: another thread has taken over.
                    _hung[name].remove(began)
                    if not _hung[name]:
                        del _hung[name]
                    return
                self._done.put((name, answer))

    def _give_up(self, overdue: Callable[[float], bool]) -> None:
        """Leave reads without an answer, and put other threads in the place of theirs."""
        with _lock:
            late = {name: began for name, began in self._running.items() if overdue(began)}
            for name, began in late.items():
                del self._running[name]
                _hung.setdefault(name, []).append(began)
                waited_s = time.monotonic() - began
                self._found[name] = _no_answer(name, f"no answer within {waited_s:.0f} s", "once it has come")
            hung = sum(map(len, _hung.values()))
            if hung >= _HUNG_MAX:
                for name in self._waiting:
                    self._found[name] = _no_answer(name, f"not read while {hung} reads hang", "once they have returned")
                self._waiting.clear()
            fresh = min(len(late), len(self._waiting))
        for _ in range(fresh):
            self._start_thread()


def _no_answer(name: str, what: str, when: str) -> UnavailableError:
    return UnavailableError(
        what, where=name, action=f"It is read {when}; look at the catalog and at the store of the table's metadata"
    )
