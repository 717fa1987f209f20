"""One sink in a process of its own, which a fault may end.

Belongs here: arming the fault, and serving the table as the product's service does. Does not: when a child runs
(`sinklab.py`), what it must leave (`model.py`).
What the child says on its pipe: ("paused",) at a step where another writer is to act, ("done", errors met, whether the
fault was met) at its end. One that is killed says nothing more.
"""

import itertools
import logging
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from cdc_platform.errors import CdcError
from cdc_platform.faults import Step, arm
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.commit import Owner
from cdc_platform_tests.crashlab.history import Shape
from cdc_platform_tests.crashlab.plan import CatalogStep, Fault
from cdc_platform_tests.crashlab.product import SlicedLog, Switch, around_catalog, open_sink, switch_off

_OPENED_MAX = 4  # As often the service would open a sink again before the lab calls it stuck.


@dataclass(frozen=True, slots=True)
class Order:
    """What a child is to do."""

    catalog: dict[str, str]
    table: str
    shape: Shape
    log: Path
    reads: tuple[int, ...]
    window_reads: int
    fault: Fault | None
    stops_after: int | None
    without: tuple[Switch, ...]


class Stopped(Exception):
    """The child was to end here."""


def serve(order: Order, pipe: Connection) -> None:
    """Run the product's sink over the log, as ordered."""
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # It warns of each conflict that it resolves.
    met = _arm(order.fault, pipe)
    heard = [switch_off(switch, order.log / "read-to") for switch in order.without]
    reads, ticks = itertools.count(1), itertools.count()
    now = 0.0

    def on_read(end: int) -> None:
        nonlocal now
        for hear in heard:
            hear(end)
        if order.stops_after is not None and next(reads) > order.stops_after:
            raise Stopped
        if next(ticks) % order.window_reads == order.window_reads - 1:
            now += 10.0

    def sizes() -> Iterator[int]:
        yield from order.reads
        yield from itertools.repeat(order.reads[-1])

    errors: list[str] = []
    log = SlicedLog(order.log, sizes(), on_read)
    lake, owner = Lake("lake", order.catalog), Owner()
    for _ in range(_OPENED_MAX):
        try:
            open_sink(lake, order.table, order.shape, log, owner, lambda: now).catch_up()
            break
        except CdcError as error:
            errors.append(f"{type(error).__name__}: {error}")
            if errors[-1].startswith("FencedError"):  # For good: another sink serves the table.
                break
        except Stopped:
            break
    pipe.send(("done", errors, met()))


def _arm(fault: Fault | None, pipe: Connection) -> Callable[[], bool]:
    arrivals = 0
    met = False

    def on(step: Step | CatalogStep) -> None:
        nonlocal arrivals, met
        if fault is None or step != fault.step or met:
            return
        arrivals += 1
        if arrivals < fault.nth:
            return
        met = True
        match fault.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "answer":
                from sqlalchemy.exc import OperationalError

                raise OperationalError("COMMIT", None, ConnectionError("the lab lost the catalog's answer"))
            case _:
                pipe.send(("paused",))
                pipe.recv()

    arm(on)
    around_catalog(on)
    return lambda: met
