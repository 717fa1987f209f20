"""What state a table is in, from its metadata: figures, and nothing decided.

Belongs here: the figures and how they follow from files and history. Does not: reading them (`lake/files.py`), limits
and decisions (`maintenance/policy.py`).
Rules (Iceberg spec, "Scan Planning"): an equality delete applies to data files of a lower data sequence number in its
partition, or in all when its spec is unpartitioned; a position delete to those of its own or a lower one that it
names. A delete file that applies to no live data file is *dangling*: readers still plan with it.
Units: `*_bytes` bytes, `*_s` seconds; `*_deletes` count rows, `*_files` files.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableHealth:
    """A table at one snapshot."""

    table: str
    snapshot_id: int
    format_version: int
    data_files: int
    data_records: int
    data_bytes: int
    small_files: int  # Data files below three quarters of the target size (Iceberg's own bound).
    equality_delete_files: int
    equality_deletes: int
    position_delete_files: int  # Deletion vectors apart.
    position_deletes: int
    deletion_vectors: int
    vector_deletes: int
    delete_bytes: int
    dangling_delete_files: int
    snapshots: int
    oldest_snapshot_ms: int  # UTC.
    commits_since_rewrite: int  # Commits that changed rows since data files were last rewritten.
    manifests: int
    manifest_bytes: int
    metadata_bytes: int
    planning_s: float
    history_bytes: int | None = None  # Held only by older snapshots; None when it was not asked for.

    @property
    def delete_files(self) -> int:
        """All files and vectors of deletes."""
        return self.equality_delete_files + self.position_delete_files + self.deletion_vectors

    @property
    def deletes(self) -> int:
        """All deleted rows and keys that readers still apply."""
        return self.equality_deletes + self.position_deletes + self.vector_deletes

    @property
    def delete_ratio(self) -> float:
        """Deletes per data record; 0 in an empty table."""
        return self.deletes / self.data_records if self.data_records else 0.0

    @property
    def equality_deletes_per_data_file(self) -> float:
        """Equality-delete rows that each data file is read against, on average; 0 without data files."""
        return self.equality_deletes / self.data_files if self.data_files else 0.0
