"""The sink service: every table of the deployment, one after another, each failing alone.

Belongs here: the loop, back-off of a failed table, what is reported. Does not: a table's work (`landing/sink.py`).
A table whose sink failed is opened again from its own position, after a wait that doubles up to a bound: the cure
may come from outside (a remedy at the source, a catalog that answers again), and the others go on meanwhile. One whose
table another sink has taken over stays closed until the service is started anew.
"""

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from cdc_platform.changelog.segments import SegmentLog
from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.errors import CdcError, FencedError
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.commit import Owner
from cdc_platform.landing.position import landing_table
from cdc_platform.landing.sink import TableSink
from cdc_platform.reporting import Report

_IDLE_S = 0.02
_RETRY_FIRST_S, _RETRY_MAX_S = 1.0, 30.0


@dataclass
class _Served:
    name: str
    sink: TableSink | None = None
    owner: Owner = field(default_factory=Owner)
    error: CdcError | None = None
    retry_at: float = 0.0
    wait_s: float = _RETRY_FIRST_S

    def step(self, reopen: Callable[[Owner], TableSink]) -> bool:
        """Do what there is to do; return whether there was anything. What goes wrong is kept, and tried again later."""
        try:
            if self.sink is None:
                self.sink = reopen(self.owner)
            busy = self.sink.step()
            if self.error is not None and self.sink.position.window:
                self.error, self.wait_s = None, _RETRY_FIRST_S
            return busy
        except Exception as error:  # One table's trouble is not the others'.
            if not isinstance(error, CdcError):
                traceback.print_exc()
            if self.sink is not None:
                with suppress(OSError):  # What is left behind are files that no table names.
                    self.sink.close()
            self.sink, self.error = None, _known(error, self.name)
            self.retry_at = time.monotonic() + self.wait_s
            self.wait_s = min(2 * self.wait_s, _RETRY_MAX_S)
            if isinstance(error, FencedError):
                self.retry_at = float("inf")  # To open it again would fence the sink that took over.
            return False


def run(deployment: Deployment, report: Report) -> None:
    """Serve until `report.stopping` is set."""
    lake = Lake(CATALOG, deployment.catalog_properties)
    served = {name: _Served(name) for name in deployment.registry.tables}
    reported: object = None
    report.ready()
    while not report.stopping.is_set():
        busy = False
        for name, one in served.items():
            if one.sink is None and time.monotonic() < one.retry_at:
                continue
            busy = one.step(partial(_open, deployment, lake, name)) or busy
        positions = {name: _position(one) for name, one in served.items()}
        problems = [str(one.error) for one in served.values() if one.error is not None]
        if (positions, problems) != reported:
            report.progress(tables=positions, problems=problems)
            reported = (positions, problems)
        if not busy:
            report.stopping.wait(_IDLE_S)
    for one in served.values():
        if one.sink is not None:
            one.sink.commit()


def _known(error: Exception, name: str) -> CdcError:
    if isinstance(error, CdcError):
        return error
    return CdcError(
        f"{type(error).__name__}: {error}".rstrip("."),
        where=landing_table(name),
        action="Read the traceback with `cdc-platform logs sink`, and report it",
    )


def _open(deployment: Deployment, lake: Lake, name: str, owner: Owner) -> TableSink:
    table = deployment.registry.tables[name]
    return TableSink(
        lake,
        landing_table(name),
        key=table.key,
        log=SegmentLog(deployment.changelog_dir(name)),
        policy=table.landing,
        owner=owner,
        named=table.named_columns,
    )


def _position(one: _Served) -> dict[str, int]:
    if one.sink is None:
        return {}
    return {"window": one.sink.position.window, "log_position": one.sink.position.log}
