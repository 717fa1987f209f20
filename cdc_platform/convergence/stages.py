"""The landing and the curated table as stages that `converge` can wait for and read.

Belongs here: what "complete through the cut" means for each, and reading its state through Spark.
Does not: the verdict (`convergence/converge.py`), the arithmetic (`convergence/cut.py`).
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import Engine

from cdc_platform.changelog.cuts import Cuts
from cdc_platform.changelog.log import ChangeLog
from cdc_platform.convergence.converge import Reading
from cdc_platform.convergence.cut import expected_state
from cdc_platform.errors import UnavailableError
from cdc_platform.hops.merge import curated_table, merged_through
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.lake.spark import Spark, quoted
from cdc_platform.landing.position import LandingPosition, landing_position, landing_table
from cdc_platform.source.messages import emit_cut
from cdc_platform.source.state import Cut, Measures, State, state_sql

_READ_BYTES_MAX = 8 << 20
_EMIT_EVERY_POLLS = 4


@dataclass
class LandingStage:
    """The landing table: complete through the cut once the sink has applied all that the log then held."""

    name: str  # The table's name in the registry.
    engine: Engine
    log: ChangeLog
    cuts: Cuts
    lake: Lake
    spark: Spark
    measures: Measures
    _log_before: int = field(default=0, init=False)
    _log_needed: int | None = field(default=None, init=False)
    _polls: int = field(default=0, init=False)
    _cut_ids: list[str] = field(default_factory=list[str], init=False)

    def begin(self) -> None:
        """Note where the log ends before the cut."""
        self._log_before = self.log.end()
        self._log_needed = None
        self._polls, self._cut_ids = 0, []

    def reached(self) -> str | None:
        """None once the stage holds everything that the cut holds."""
        if self._log_needed is None:
            if self._polls % _EMIT_EVERY_POLLS == 0:  # Again now and then: a slot made later does not deliver it.
                self._cut_ids.append(uuid.uuid4().hex)
                emit_cut(self.engine, self._cut_ids[-1])
            self._polls += 1
            self._log_needed = self.cuts.find(self._cut_ids, self.name)
            if self._log_needed is None:
                return "capture has not come to the cut (`cdc-platform status` shows whether it runs)"
        _, _, position = self._at()
        if position.log < self._log_needed:
            return f"{self._table} is complete through log record {position.log}, the cut needs {self._log_needed}"
        return None

    def read(self, cut: Cut) -> Reading:
        """Read the newest snapshot, and what the log says that it should hold."""
        table, snapshot_id, position = self._at()
        name = quoted(self.lake.name, *table.split("."))
        groups = self.spark.rows(
            state_sql(self.measures, table=f"{name} VERSION AS OF {snapshot_id}", quote="`", as_text="string")
        )
        lines = self._lines(self._log_before, position.log)
        return Reading(snapshot_id, State.of_groups(self.measures, groups), expected_state(self.measures, cut, lines))

    @property
    def _table(self) -> str:
        return landing_table(self.name)

    def _at(self) -> tuple[str, int, LandingPosition]:
        """Table, snapshot to read, and the change-log position through which that snapshot is complete."""
        history = self._history(self._table)
        assert history.head_id is not None
        return self._table, history.head_id, landing_position(history)

    def _history(self, table: str) -> TableHistory:
        history = self.lake.history(table)
        if history is None or history.head is None:
            raise UnavailableError("it has no snapshot yet", where=table, action="Wait for the initial load")
        return history

    def _lines(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:  # Bounded: each turn reads at least one record.
            batch = self.log.read(start, bytes_max=_READ_BYTES_MAX)
            yield from batch.lines.split(b"\n", end - start)[: min(batch.end, end) - start]
            if batch.end == start:
                raise UnavailableError("the change log ends early", where=self.name, action="Try again later")
            start = batch.end


@dataclass
class CuratedStage(LandingStage):
    """The curated table: complete through the position of the landing snapshot that it was made from."""

    @property
    def _table(self) -> str:
        return curated_table(self.name)

    def _at(self) -> tuple[str, int, LandingPosition]:
        # Curated first: the landing snapshot that it names is in any later reading of landing.
        curated = self._history(self._table)
        landing = self._history(landing_table(self.name))
        upstream = merged_through(landing, curated)
        if upstream is None:
            raise UnavailableError(
                "the landing snapshot it was made from is gone",
                where=self._table,
                action="Merge again: job `merge_curated`",
            )
        assert curated.head_id is not None
        position = LandingPosition.of(upstream.summary, f"landing snapshot {upstream.snapshot_id}")
        return self._table, curated.head_id, position
