"""What an operation would do to a table, told before it does it.

Belongs here: plans as plain values, and how they follow from files, history and past runs. Does not: whether it is due
(`maintenance/policy.py`), or carrying it out (`maintenance/maintain.py`).
An estimate comes from this table's own past runs; before there are any it is None: unknown, never a guess.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Data files to write anew, with all deletes that apply to them."""

    snapshot_id: int
    data_files: int
    data_bytes: int
    delete_files: int
    deletes: int
    dangling_delete_files: int
    groups: int  # File groups, each at most `group_mb_max`; one or more commits.
    memory_bytes: int  # That Spark must hold for the equality deletes of one group.
    estimated_s: float | None


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot that expiry must leave, and who needs it."""

    snapshot_id: int
    by: str  # `tag reader_curated_orders`, `branch main`, `the sink's position`, `Flink checkpoint 17 of job ...`.


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """Exactly these snapshots and files would go."""

    snapshot_ids: tuple[int, ...]  # Oldest first.
    files: tuple[str, ...]  # Data and delete files that no remaining snapshot reaches.
    file_bytes: int
    metadata_files: int  # Manifests and manifest lists.
    kept: tuple[Kept, ...]  # Beyond age and count: what pins more.
    reason: str
