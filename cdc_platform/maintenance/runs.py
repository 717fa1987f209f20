"""What maintenance has done to a table, as the table itself keeps it.

Belongs here: the record of a run and its place in a table property. Does not: making runs (`maintenance/maintain.py`),
or learning from them (`maintenance/debt.py`).
The newest runs of an operation stand in the property `cdc.maintenance.<operation>` as JSON, newest first: the table is
the state, so a schedule that lost its memory goes on where it was. Lost, it costs one run too early.
"""

from dataclasses import dataclass
from typing import Literal

Operation = Literal[
    "rewrite_data_files",
    "rewrite_position_delete_files",
    "expire_snapshots",
    "rewrite_manifests",
    "remove_orphan_files",
]
PROPERTY = "cdc.maintenance."  # Followed by the operation.
RUNS_KEPT_MAX = 10


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run that ended well, with or without something to do."""

    at_ms: int  # Its end, UTC.
    snapshot_id: int  # Head after it.
    took_s: float
    changed: bool  # False: it found nothing to do.
    rewritten_bytes: int = 0
    delete_files: int = 0  # Before it.
    deletes: int = 0  # Rows and keys, before it.
    read_before_s: float | None = None  # The probe read; None where the operation has none.
    read_after_s: float | None = None
    lost_s: float = 0.0  # Work thrown away to conflicts.
