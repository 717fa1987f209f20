"""What a table as it stands now asks for: an operation that is due, a figure beyond its limit. Reads what that needs.

Belongs here: one load of the table's metadata for one answer. Does not: the decision (`maintenance/policy.py`), which
snapshots must stay (`maintenance/protection.py`). Manifests are read only where the head's summary says that they can
matter: a tick asks this of every table.
"""

from dataclasses import dataclass

from cdc_platform.lake.catalog import Lake, history_of
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.maintenance.halted import halted
from cdc_platform.maintenance.health import TableHealth, figures_of, health_of_loaded
from cdc_platform.maintenance.policy import (
    Decision,
    Finding,
    expiry_due,
    limits,
    past_retention,
    positions_due,
    rewrite_due,
)
from cdc_platform.maintenance.protection import Retention, keeping
from cdc_platform.maintenance.runs import Operation, past_runs
from cdc_platform.registry.maintenance import Maintenance

BEGINNING = "beginning"


@dataclass(frozen=True, slots=True)
class Due:
    """A decision, and where the operation starts from: each run that ends well moves it (`maintenance/runs.py`).

    One that failed does not, though it is recorded: else it would have fresh attempts for ever.
    """

    decision: Decision
    start: str


def due(lake: Lake, table: str, operation: Operation, policy: Maintenance, *, now_ms: int) -> Due:
    """Decide on one table. One that is carried out by hand alone, or of a halted table, is never due."""
    loaded = lake.load(table)
    history = None if loaded is None else history_of(table, loaded)

    def health() -> TableHealth | None:
        return None if loaded is None else health_of_loaded(table, loaded, policy.target_file_mb)

    mark = None if history is None else halted(history)
    match operation:
        case _ if mark is not None:
            decision = Decision(False, f"{mark.what}. {mark.action(lake.name)}")
        case "rewrite_data_files":
            found = health() if history and _may_be_small(history, policy) else None
            decision = rewrite_due(history, found, policy, now_ms)
        case "rewrite_position_delete_files":
            found = health() if history and _may_have_positions(history) else None
            decision = positions_due(history, found, policy, now_ms)
        case "expire_snapshots":
            decision = _expiry(history, policy, now_ms)
        case _:
            decision = Decision(False, f"{operation} is started by hand")
    runs = [run for run in past_runs(history.properties, operation) if not run.failed] if history else []
    return Due(decision, str(runs[0].at_ms) if runs else BEGINNING)


@dataclass(frozen=True, slots=True)
class Examined:
    """A table's state, with what only history holds, and what of it is beyond its limits."""

    state: TableHealth
    findings: tuple[Finding, ...]


def examine(lake: Lake, table: str, policy: Maintenance, *, now_ms: int) -> Examined | None:
    """Look at one table in full; None before it has a snapshot. Reads every snapshot's manifests: not for a tick."""
    loaded = lake.load(table)
    state = None if loaded is None else health_of_loaded(table, loaded, policy.target_file_mb, with_history=True)
    if loaded is None or state is None:
        return None
    history = history_of(table, loaded)
    past = past_retention(history, policy, now_ms)
    return Examined(state, limits(state, policy, past_retention_ids=past, mark=halted(history)))


def _may_be_small(history: TableHistory, policy: Maintenance) -> bool:
    """There are at least as many data files as small files start a rewrite: all of them may be small.

    So it may be where a total is missing, and then the other figures are unknown, too.
    """
    figures = figures_of(history)
    return history.head is not None and (figures is None or figures.data_files >= policy.rewrite_small_files)


def _may_have_positions(history: TableHistory) -> bool:
    return history.head is not None and history.head.figure("total-position-deletes") != 0


def _expiry(history: TableHistory | None, policy: Maintenance, now_ms: int) -> Decision:
    if history is None:
        return expiry_due(None, policy, now_ms, expirable=())
    stays = keeping(history, Retention.of(policy), now_ms=now_ms)
    expirable = [snapshot_id for snapshot_id in history.snapshots if snapshot_id not in stays.ids]
    return expiry_due(history, policy, now_ms, expirable=expirable, kept=stays.kept)
