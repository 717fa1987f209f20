"""The tables as assets, checks and sensors reach them.

Belongs here: the interface `Tables`, and `Platform`, which opens it for a project. Does not: deciding anything,
or any of the work (`cdc_platform.operations`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import dagster as dg
from pydantic import Field

from cdc_platform.deployment import Deployment
from cdc_platform.hops.merge import MergeResult
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.operations import Operations, Stage

if TYPE_CHECKING:
    import pandas as pd

    from cdc_platform.convergence.converge import Verdict
    from cdc_platform.landing.corrections import Answer, Correction
    from cdc_platform.landing.letters import Choice
    from cdc_platform.maintenance.due import Due, Examined
    from cdc_platform.maintenance.maintain import Effect, Plan
    from cdc_platform.maintenance.runs import Operation
    from cdc_platform.source.slot import SlotLag


class Tables(Protocol):
    """What Dagster needs of the platform, by table name; `Operations` is one. Raises CdcError."""

    def landing(self, name: str) -> TableHistory | None:
        """History of the landing table, None before it exists. Cheap: metadata alone."""
        ...

    def curated(self, name: str) -> TableHistory | None:
        """History of the curated table, None before its first merge. Cheap: metadata alone."""
        ...

    def require_spark(self) -> None:
        """Raise UnavailableError unless Spark, which every run needs, can be reached. Cheap."""
        ...

    def merge(self, name: str, *, run_id: str) -> MergeResult:
        """Merge landing into curated."""
        ...

    def maintain(
        self,
        name: str,
        stage: Stage,
        operation: "Operation",
        *,
        dry_run: bool = False,
        run_id: str = "",
        say: Callable[[str], None] = ...,
    ) -> "Effect | Plan":
        """Plan a maintenance operation and, unless `dry_run`, carry it out and verify it."""
        ...

    def examine(self, name: str, stage: Stage) -> "Examined | None":
        """A stage's state and what of it is beyond its limits, None before it has a snapshot. Metadata alone."""
        ...

    def due(self, name: str, stage: Stage, operation: "Operation") -> "Due":
        """Whether a maintenance operation is due. Cheap: metadata alone."""
        ...

    def slot_lag(self, name: str) -> "SlotLag":
        """How much WAL the table's source keeps for capture. What can't be known raises."""
        ...

    def converge(self, name: str, stage: Stage) -> "Verdict":
        """Compare a stage with the source; wait for it. What can't be asked is `unknown`, not an error."""
        ...

    def dead_letters(self, name: str) -> TableHistory | None:
        """History of the table's dead letters, None before the first. Cheap: metadata alone."""
        ...

    def letters(self, name: str) -> "pd.DataFrame":
        """The table's open dead letters, oldest first, without their payloads."""
        ...

    def replay_letters(
        self,
        name: str,
        choice: "Choice",
        correction: "Correction | None" = None,
        *,
        dry_run: bool,
        wait_s: float | None = None,
    ) -> "list[Answer]":
        """Send dead letters again, corrected; return what became of each, or would become."""
        ...


class Platform(dg.ConfigurableResource[Operations]):
    """The tables of one project, opened anew for each run and each tick: addresses may have changed."""

    project: str = Field(description="Folder that holds tables.yaml.")

    def create_resource(self, context: dg.InitResourceContext) -> Operations:  # noqa: ARG002  Dagster's signature.
        """Read the registry; nothing is connected before it is used."""
        return Operations(Deployment.load(self.project))
