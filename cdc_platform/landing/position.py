"""How far a landing table has come, as its own snapshots say it. Nothing else is trusted.

Belongs here: the `cdc.*` keys of landing, and reading them back from a table's history.
Does not: committing them (`landing/commit.py`).
The position is written twice by one commit: in the snapshot's summary, and in a table property, which outlives
another engine's `expire_snapshots`. The newest snapshot in the ancestry that has one decides; the property
serves when expiry has taken that snapshot.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from cdc_platform.errors import InvariantError
from cdc_platform.lake.snapshot import Snapshot, TableHistory

SINK_ID = "cdc.sink-id"
LOG_POSITION = "cdc.log-position"
LOG_ID = "cdc.log-id"
LOAD_POSITION = "cdc.load-position"
LOAD_LSN = "cdc.load-lsn"
OWNER_EPOCH = "cdc.owner-epoch"
HEARTBEAT = "cdc.heartbeat"
POSITION_TAG = "sink_position"  # Keeps the newest position's snapshot from expiry.
SOURCE_LSN = "cdc.source-lsn"
SOURCE_TS_MS = "cdc.source-ts-ms"
WINDOW = "cdc.window"
EVENTS = "cdc.events."
PROPERTY = "cdc.position."  # Followed by the sink's id.


class SourcePosition(NamedTuple):
    """Where an event stands in the source's order of commits; ordered as a tuple.

    `commit_lsn` ends the transaction before the event's own, so it is one for all of a transaction's
    events and grows from one to the next. `lsn` alone is no order: rows of one COPY share it, and
    transactions interleave in the WAL. `ordinal` counts within the transaction, from 1.
    """

    commit_lsn: int
    lsn: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.commit_lsn}/{self.lsn}/{self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote."""
        return cls(*(int(part) for part in text.split("/")))


@dataclass(frozen=True, slots=True)
class LandingPosition:
    """Through where a landing table is complete."""

    log: int = 0  # Position in the change log: the next record to apply.
    window: int = 0  # Commit windows so far.
    source: SourcePosition | None = None  # Newest streamed event applied; None before the first.
    source_ts_ms: int = 0  # Commit time of the newest event at the source, UTC.
    load: int | None = None  # Position after the newest complete initial load; None before one.
    load_lsn: int | None = None  # WAL byte position of that load at the source; None when it brought no row.
    epoch: int = 0  # Of the sink that committed it: the higher one fences the lower.
    log_id: str = ""  # The change log that `log` and `load` count in.

    def summary(self, sink_id: str) -> dict[str, str]:
        """As snapshot-summary entries."""
        entries = {
            SINK_ID: sink_id,
            LOG_POSITION: str(self.log),
            WINDOW: str(self.window),
            SOURCE_TS_MS: str(self.source_ts_ms),
            LOG_ID: self.log_id,
            OWNER_EPOCH: str(self.epoch),
        }
        if self.source is not None:
            entries[SOURCE_LSN] = str(self.source)
        if self.load is not None:
            entries[LOAD_POSITION] = str(self.load)
        if self.load_lsn is not None:
            entries[LOAD_LSN] = str(self.load_lsn)
        return entries

    @classmethod
    def of(cls, summary: Mapping[str, str], where: str) -> Self:
        """Read a summary that holds LOG_POSITION."""
        try:
            source, load, load_lsn = (summary.get(key) for key in (SOURCE_LSN, LOAD_POSITION, LOAD_LSN))
            return cls(
                log=int(summary[LOG_POSITION]),
                window=int(summary[WINDOW]),
                source=SourcePosition.parse(source) if source else None,
                source_ts_ms=int(summary.get(SOURCE_TS_MS, 0)),
                load=int(load) if load else None,
                load_lsn=int(load_lsn) if load_lsn else None,
                epoch=int(summary.get(OWNER_EPOCH, 0)),
                log_id=summary.get(LOG_ID, ""),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise InvariantError(
                "the sink's position can't be read",
                where=where,
                action="Another program wrote `cdc.*` entries: find it, then rebuild the table",
            ) from error

    def after(self, **changes: object) -> "LandingPosition":
        """The next window's position."""
        return replace(self, window=self.window + 1, **changes)  # type: ignore[arg-type]


def landing_table(name: str) -> str:
    """Identifier of a table's landing stage in the catalog."""
    return f"landing.{name}"


def landed(snapshot: Snapshot) -> bool:
    """Whether the sink wrote this snapshot."""
    return LOG_POSITION in snapshot.summary


def advanced(snapshot: Snapshot) -> bool:
    """Whether the sink wrote this snapshot for events, and not just to say that it is where it was."""
    return landed(snapshot) and HEARTBEAT not in snapshot.summary


def sink_id(table: str) -> str:
    """The sink's id for a landing table; one sink writes one table."""
    return f"cdc_platform:{table}"


def landing_position(history: TableHistory) -> LandingPosition:
    """The table's position, or the beginning when no sink has written to it."""
    newest = history.newest(landed)
    if newest is not None:
        return LandingPosition.of(newest.summary, f"{history.table} at snapshot {newest.snapshot_id}")
    kept = history.properties.get(PROPERTY + sink_id(history.table))
    if kept is not None:
        return LandingPosition.of(json.loads(kept), f"{history.table}, table property")
    return LandingPosition()
