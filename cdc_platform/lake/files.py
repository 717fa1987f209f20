"""A table's live files as its manifests list them: from metadata alone, no data file is opened.

Belongs here: reading manifests through PyIceberg into plain values, and what any snapshot still reaches.
Does not: what the files say of a table's health (`maintenance/health.py`).
Rules: manifests are immutable, so one that was read is not read again (bounded cache by path). Reading works on v2
with equality deletes and on v3 with deletion vectors, where PyIceberg's own `inspect` fails.
Units: `bytes` as in the manifest (file size; of a deletion vector its content size), `*_s` seconds.
"""

from dataclasses import dataclass
from typing import Literal

Content = Literal["data", "position_deletes", "equality_deletes"]


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One live data or delete file. A deletion vector is a position delete in a Puffin file."""

    content: Content
    path: str
    records: int
    bytes: int
    sequence_number: int  # Data sequence number.
    spec_id: int
    partition: tuple[object, ...]
    equality_ids: tuple[int, ...] = ()
    vector: bool = False
    names_from: str | None = None  # Position deletes: the range of data-file paths that it names.
    names_to: str | None = None


@dataclass(frozen=True, slots=True)
class FileListing:
    """Everything that a scan of one snapshot has to plan with."""

    table: str
    snapshot_id: int
    format_version: int
    files: tuple[LiveFile, ...]
    unpartitioned_specs: frozenset[int]  # Deletes under these apply to every partition (equality deletes alone).
    manifests: int
    manifest_bytes: int
    metadata_bytes: int  # Of the metadata.json.
    planning_s: float  # Reading manifest list and manifests: what a scan's planning has to read at least.
