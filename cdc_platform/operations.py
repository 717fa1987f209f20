"""What can be done to a deployment's tables, by name: the same for the command line, the demo and Dagster.

Belongs here: putting together a table's declaration, its addresses and a stage's work. Does not: the work.
Heavy libraries are imported inside the methods, for Dagster's code location loads this module.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.errors import CdcError, ConfigError, UnavailableError
from cdc_platform.hops.merge import MergeResult, curated_table, merge
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.landing.position import LandingPosition, landing_table
from cdc_platform.registry.maintenance import Stage

if TYPE_CHECKING:
    import pandas as pd
    from sqlalchemy import Engine

    from cdc_platform.changelog.log import ChangeLog
    from cdc_platform.convergence.converge import Verdict
    from cdc_platform.convergence.rows import RowsApart
    from cdc_platform.lake.spark import Spark
    from cdc_platform.landing.corrections import Answer, Correction
    from cdc_platform.landing.letters import Choice, OpenLetters
    from cdc_platform.maintenance.due import Due, Examined
    from cdc_platform.maintenance.health import TableHealth
    from cdc_platform.maintenance.maintain import Effect, Plan
    from cdc_platform.maintenance.runs import Operation
    from cdc_platform.source.slot import SlotLag

_LOAD_BEGINS_WITHIN_S = 60.0
_ASKED_EVERY_S = 0.2


def stage_table(stage: Stage, name: str) -> str:
    """A stage's table in the catalog."""
    return landing_table(name) if stage == "landing" else curated_table(name)


class Operations:
    """Operations on the tables of one deployment. Raises CdcError."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._local = threading.local()

    @property
    def lake(self) -> Lake:
        """The catalog: one for each thread, PyIceberg's are not shared."""
        if not hasattr(self._local, "lake"):
            self._local.lake = Lake(CATALOG, self.deployment.catalog_properties)
        return self._local.lake

    def landing(self, name: str) -> TableHistory | None:
        """History of the landing table, None before it exists. Cheap: metadata alone."""
        return self.lake.history(landing_table(name))

    def curated(self, name: str) -> TableHistory | None:
        """History of the curated table, None before its first merge. Cheap: metadata alone."""
        return self.lake.history(curated_table(name))

    def engine(self, name: str) -> "Engine":
        """Connections to the table's source."""
        from cdc_platform.source.postgres import source_engine

        return source_engine(self.deployment.source_url(self.deployment.table(name).source_name))

    def changelog(self, name: str) -> "ChangeLog":
        """The table's change log."""
        from cdc_platform.changelog.segments import SegmentLog

        return SegmentLog(self.deployment.changelog_dir(name))

    def require_spark(self) -> None:
        """Raise UnavailableError unless Spark Connect can be reached. Cheap."""
        from cdc_platform.lake.spark import require_spark

        require_spark(self.deployment.spark_url)

    @contextmanager
    def spark(self) -> "Generator[Spark]":
        """A Spark Connect session of its own."""
        from cdc_platform.lake.spark import spark_session

        with spark_session(self.deployment.spark_url) as session:
            yield session

    def merge(self, name: str, *, run_id: str = "") -> MergeResult:
        """Merge landing into curated."""
        with self.spark() as spark:
            return merge(spark, self.lake, name, self.deployment.table(name), run_id=run_id)

    def maintain(
        self,
        name: str,
        stage: Stage,
        operation: "Operation",
        *,
        dry_run: bool = False,
        run_id: str = "",
        say: Callable[[str], None] = lambda _line: None,
    ) -> "Effect | Plan":
        """Plan an operation and, unless `dry_run`, carry it out and verify it; see `maintenance.maintain`."""
        from cdc_platform.maintenance.maintain import maintain

        policy = self.deployment.table(name).maintenance(stage)
        table = stage_table(stage, name)
        with self.spark() as spark:
            return maintain(spark, self.lake, table, operation, policy, dry_run=dry_run, run_id=run_id, say=say)

    def health(self, name: str, stage: Stage) -> "TableHealth | None":
        """What state a stage's table is in, None before it has a snapshot. Cheap: metadata alone."""
        from cdc_platform.maintenance.health import table_health

        target_mb = self.deployment.table(name).maintenance(stage).target_file_mb
        return table_health(self.lake, stage_table(stage, name), target_mb)

    def examine(self, name: str, stage: Stage) -> "Examined | None":
        """Its state with what only history holds, and what of it is beyond its limits. Metadata alone."""
        from cdc_platform.maintenance.due import examine

        policy = self.deployment.table(name).maintenance(stage)
        return examine(self.lake, stage_table(stage, name), policy, now_ms=time.time_ns() // 1_000_000)

    def due(self, name: str, stage: Stage, operation: "Operation") -> "Due":
        """Whether a maintenance operation is due. Cheap: metadata alone."""
        from cdc_platform.maintenance.due import due

        policy = self.deployment.table(name).maintenance(stage)
        return due(self.lake, stage_table(stage, name), operation, policy, now_ms=time.time_ns() // 1_000_000)

    def replay(self, name: str, *, into: str) -> "tuple[LandingPosition, RowsApart]":
        """Build `into` from the change log, and compare it with landing, row by row."""
        from cdc_platform.convergence.rows import rows_apart
        from cdc_platform.lake.spark import quoted
        from cdc_platform.landing.replay import replay

        table = self.deployment.table(name)
        position = replay(self.lake, self.changelog(name), key=table.key, into=into, policy=table.landing)
        with self.spark() as spark:
            served, rebuilt = (quoted(self.lake.name, *one.split(".")) for one in (landing_table(name), into))
            return position, rows_apart(spark, served, rebuilt)

    def dead_letters(self, name: str) -> TableHistory | None:
        """History of the table's dead letters, None before the first. Cheap: metadata alone."""
        from cdc_platform.landing.dead_letters import dead_letter_table

        return self.lake.history(dead_letter_table(landing_table(name)))

    def letters(self, name: str, *, closed: bool = False, payload: bool = False) -> "pd.DataFrame":
        """The table's open dead letters, oldest first; with `closed`, all rows. Payloads are people's data."""
        from cdc_platform.landing.dead_letters import DeadLetters

        self.deployment.table(name)
        return DeadLetters(self.lake, landing_table(name)).read(closed=closed, payload=payload)

    def replay_letters(
        self,
        name: str,
        choice: "Choice",
        correction: "Correction | None" = None,
        *,
        dry_run: bool,
        wait_s: float | None = None,
    ) -> "list[Answer]":
        """Send dead letters again, corrected, through the source; see `landing.letters.OpenLetters.replay`."""
        from cdc_platform.landing.corrections import NO_CORRECTION

        return self._open_letters(name).replay(choice, correction or NO_CORRECTION, dry_run=dry_run, wait_s=wait_s)

    def discard_letters(self, name: str, choice: "Choice", *, dry_run: bool) -> "list[Answer]":
        """Close dead letters that nobody wants applied."""
        return self._open_letters(name).discard(choice, dry_run=dry_run)

    def _open_letters(self, name: str) -> "OpenLetters":
        from cdc_platform.landing.letters import OpenLetters
        from cdc_platform.source.messages import emit_replay

        return OpenLetters(
            name,
            self.deployment.table(name),
            lake=self.lake,
            log=self.changelog(name),
            send=lambda record: emit_replay(self.engine(name), name, record),
        )

    def slot_lag(self, name: str) -> "SlotLag":
        """How much WAL the table's source keeps for capture."""
        from cdc_platform.source.slot import read_slot

        return read_slot(self.engine(name), self.deployment.part_name(self.deployment.table(name).source_name))

    def reload(self, name: str, *, within_s: float = _LOAD_BEGINS_WITHIN_S) -> int:
        """Have the running capture load this table anew, while all others stream on; return where the log has it.

        Returns when the load has begun. Raises ConfigError when no capture of the source runs here, or it leaves
        the table out, UnavailableError when none begins: it is asked for all the same, and may come yet.
        """
        from cdc_platform.capture.service import request_load
        from cdc_platform.capture.settings import collection_pattern
        from cdc_platform.changelog.segments import newest_load_begin
        from cdc_platform.stack.report import is_at_work

        table, folder = self.deployment.table(name), self.deployment.changelog_dir(name)
        service = f"capture-{table.source_name}"
        if not is_at_work(self.deployment.state / "run", service):
            raise ConfigError(
                f"no capture of source `{table.source_name}` runs, so nothing can load `{name}`",
                where=service,
                action="Start it: `cdc-platform up`, or cure what `cdc-platform status` shows of it; then run this "
                "again",
            )
        if (problem := self._left_out(name)) is not None:
            raise ConfigError(
                f"capture leaves `{name}` out, so nothing can load it: {problem.rstrip('.')}",
                where=service,
                action="Do that; this command is not needed then",
            )
        before = newest_load_begin(folder)
        signals = self.deployment.signals_file(table.source_name)
        request_load(self.engine(name), signals, [collection_pattern(table)])
        give_up = time.monotonic() + within_s
        while (begun := newest_load_begin(folder)) == before or begun is None:
            if time.monotonic() > give_up:
                raise UnavailableError(
                    f"no load of `{name}` has begun within {within_s:.0f} s",
                    where=str(folder),
                    action=f"Look at `cdc-platform status` and `cdc-platform logs {service}`; the "
                    "load may come yet, or run this again",
                )
            time.sleep(_ASKED_EVERY_S)
        return begun

    def converge(self, name: str, stage: Stage) -> "Verdict":
        """Compare a stage with the source, waiting for it. What can't be asked is `unknown`, not an error."""
        from cdc_platform.changelog.cuts import Cuts
        from cdc_platform.convergence.converge import Verdict, converge
        from cdc_platform.convergence.stages import CuratedStage, LandingStage
        from cdc_platform.source.state import Measures, read_cut

        table = self.deployment.table(name)
        measures = Measures(table.convergence.sums, table.convergence.distribution)
        kind = {"landing": LandingStage, "curated": CuratedStage}[stage]
        try:
            engine = self.engine(name)
            with self.spark() as spark:
                compared = kind(
                    name=name,
                    engine=engine,
                    log=self.changelog(name),
                    cuts=Cuts(self.deployment.cuts_file(table.source_name)),
                    lake=self.lake,
                    spark=spark,
                    measures=measures,
                )
                verdict = converge(
                    lambda: read_cut(engine, schema=table.source_schema, table=table.source_table, measures=measures),
                    compared,
                    within_s=table.convergence.within.total_seconds(),
                )
        except CdcError as error:
            return Verdict("unknown", str(error), 0.0)
        if verdict.outcome == "unknown" and (problem := self._left_out(name)) is not None:
            return replace(verdict, reason=f"{verdict.reason}; {problem.rstrip('.')}")
        return verdict

    def _left_out(self, name: str) -> str | None:
        """Why the capture that runs here leaves the table out; None: it does not, or none runs."""
        from cdc_platform.stack.report import is_at_work, read_report

        run_dir, service = self.deployment.state / "run", f"capture-{self.deployment.table(name).source_name}"
        if not is_at_work(run_dir, service):
            return None
        return read_report(run_dir, service).get("left_out", {}).get(name)
