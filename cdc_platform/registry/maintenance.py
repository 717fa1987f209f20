"""The maintenance policy of a table: when each operation is due, within which bounds, and what must stay.

Belongs here: the declaration, its classes and overrides. Does not: deciding by it (`maintenance/policy.py`).
"""

from datetime import timedelta
from typing import Literal

from pydantic import Field

from cdc_platform.registry.declared import Declared, Duration


class Maintenance(Declared):
    """One policy. Each figure that starts an operation does so alone; the first that is reached counts."""

    rewrite_after_commits: int = Field(default=50, ge=2, description="Commits that start rewrite_data_files.")
    rewrite_delete_files: int = Field(default=100, ge=1, description="Live delete files that start it.")
    rewrite_delete_ratio: float = Field(default=1.0, gt=0, description="Deleted rows and keys per data record that start it.")
    rewrite_small_files: int = Field(default=100, ge=2, description="Small data files that start it.")
    rewrite_by: Literal["count", "model"] = Field(
        default="count",
        description="`count`: by the figures above. `model`: once readers have paid as many extra seconds since the "
        "last rewrite as a rewrite costs, by this table's own past runs; until there are two, by count.",
    )
    reads_per_hour: float = Field(default=12, gt=0, description="Full reads of the table, for the model.")
    positions_after_files: int = Field(
        default=10, ge=1, description="Position-delete files that start rewrite_position_delete_files."
    )
    expire_after_snapshots: int = Field(
        default=100, ge=1, description="Snapshots beyond those to keep that start expire_snapshots."
    )
    keep_snapshots_for: Duration = Field(default=timedelta(days=5), description="Age below which a snapshot stays.")
    keep_snapshots_min: int = Field(default=10, ge=1, description="Newest snapshots that stay whatever their age.")
    keep_refs: tuple[str, ...] = Field(
        default=(), description="Patterns (`*`) of tags and branches that stay even past their own declared age."
    )
    min_interval: Duration = Field(
        default=timedelta(minutes=1), description="Between the end of a run and the next of the same operation."
    )
    quiet_hours: tuple[str, ...] = Field(
        default=(), description="Hours of the day, UTC, in which no sensor starts maintenance: `22:00-06:00`."
    )
    run_time_max: Duration = Field(default=timedelta(minutes=30), description="After which a run is stopped.")
    run_mb_max: int = Field(default=102_400, ge=1, description="Data that one run may write anew; the rest is for the next.")
    group_mb_max: int = Field(default=1024, ge=1, description="Data rewritten and committed at a time.")
    target_file_mb: int = Field(default=128, ge=1, description="Size of the files that a rewrite makes.")
    conflicts_max: int = Field(default=3, ge=1, le=20, description="Plans of one run that may lose to another writer.")
    alarm_at: float = Field(
        default=5.0, gt=1, description="Times its trigger beyond which a figure fails the table's health check."
    )
    orphans_min_age: Duration = Field(
        default=timedelta(days=3), description="Age below which remove_orphan_files takes no file; at least a day."
    )
