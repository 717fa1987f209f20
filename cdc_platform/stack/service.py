"""What a supervised service is.

Belongs here: the shape that every embedded service has. Does not: the services (`services.py`, and a module
for each program), or running them (`supervisor.py`).
Units: `*_s` are seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


def _nothing() -> None:
    """What most services need before and after their start."""


@dataclass(frozen=True, slots=True)
class Service:
    """One program under supervision."""

    name: str
    command: tuple[str, ...]
    ready: Callable[[int], bool]  # Asked with the process's pid; answers within about two seconds.
    starts_after: tuple[str, ...] = ()  # Only at `up`: each service outlives a restart of these.
    startsecs: int = 1  # A process that ends sooner has failed to start, and is retried ever more slowly.
    stop_signal: Literal["TERM", "INT"] = "TERM"
    stop_within_s: int = 20
    privileges: tuple[str, ...] = ()  # setpriv's options, for a service that must not run as root.
    prepare: Callable[[], None] = _nothing  # Run by `up` before anything starts.
    once_ready: Callable[[], None] = _nothing  # Run by `up` before what starts after this one.
