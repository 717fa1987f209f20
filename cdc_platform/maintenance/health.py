"""What state a table is in, from its metadata: figures, and nothing decided.

Belongs here: the figures and how they follow from files and history. Does not: reading manifests (`lake/files.py`),
limits and decisions (`maintenance/policy.py`).
Rules (Iceberg spec, "Scan Planning"): an equality delete applies to data files of a lower data sequence number in its
partition, or in all when its spec is unpartitioned; a position delete to those of its own or a lower one that it
names. A deletion vector is for one data file, and stands for all position deletes of it. A delete file that applies
to no live data file is *dangling*: readers still plan with it.
Units: `*_bytes` bytes, `*_s` seconds; `*_deletes` count rows, `*_files` files.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cdc_platform.lake.catalog import Lake, history_of
from cdc_platform.lake.files import FileListing, LiveFile, listing_of, reach_of
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.maintenance.runs import since_rewrite
from cdc_platform.registry.maintenance import MB

if TYPE_CHECKING:
    from pyiceberg.table import Table

SMALL, LARGE = 0.75, 1.8  # Times the target size: Iceberg's own bounds of what a rewrite takes.
_LAST = chr(0x10FFFF)  # Sorts after every letter that a path has.


@dataclass(frozen=True, slots=True)
class TableHealth:
    """A table at one snapshot."""

    table: str
    snapshot_id: int
    format_version: int
    data_files: int
    data_records: int
    data_bytes: int
    small_files: int  # Data files below three quarters of the target size, if a rewrite can merge them (`small`).
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

    def figures(self) -> dict[str, Any]:
        """All that is known of it by name, what follows from it included; its snapshot as text, for JSON readers."""
        derived = ("delete_files", "deletes", "delete_ratio", "equality_deletes_per_data_file")
        return asdict(self) | {name: getattr(self, name) for name in derived} | {"snapshot_id": str(self.snapshot_id)}


@dataclass(frozen=True, slots=True)
class TableFigures:
    """What the head's summary alone tells of a table: no manifest is read.

    `delete_files` is also the most that position-delete files or vectors can be, `data_files` the most that small
    files can be: below a limit here, there is no need to read manifests for it.
    """

    data_files: int
    data_records: int
    data_bytes: int  # With those of delete files: a summary does not part them.
    delete_files: int  # Each vector counts.
    deletes: int


_TOTALS = ("data-files", "records", "files-size", "delete-files", "equality-deletes", "position-deletes")


def figures_of(history: TableHistory) -> TableFigures | None:
    """The head's figures by its summary; None without a snapshot, or when its writer left a total out.

    The specification makes totals optional: where one is missing, `health_of` counts.
    """
    head = history.head
    if head is None or any(head.figure(f"total-{name}") is None for name in _TOTALS):
        return None
    return TableFigures(
        data_files=head.total("data-files"),
        data_records=head.total("records"),
        data_bytes=head.total("files-size"),
        delete_files=head.total("delete-files"),
        deletes=head.total("equality-deletes") + head.total("position-deletes"),
    )


def health_of(
    listing: FileListing,
    history: TableHistory,
    *,
    target_file_mb: int,
    history_bytes: int | None = None,
) -> TableHealth:
    """The figures of `listing`; `history` is of the same moment: its head is the listing's snapshot."""
    assert history.head_id == listing.snapshot_id, "files and history are of one load"
    data = [f for f in listing.files if f.content == "data"]
    equality = [f for f in listing.files if f.content == "equality_deletes"]
    vectors = [f for f in listing.files if f.vector]
    positions = [f for f in listing.files if f.content == "position_deletes" and not f.vector]
    return TableHealth(
        table=listing.table,
        snapshot_id=listing.snapshot_id,
        format_version=listing.format_version,
        data_files=len(data),
        data_records=sum(f.records for f in data),
        data_bytes=sum(f.bytes for f in data),
        small_files=len(small(listing, target_file_mb)),
        equality_delete_files=len(equality),
        equality_deletes=sum(f.records for f in equality),
        position_delete_files=len(positions),
        position_deletes=sum(f.records for f in positions),
        deletion_vectors=len(vectors),
        vector_deletes=sum(f.records for f in vectors),
        delete_bytes=sum(f.bytes for f in listing.files if f.content != "data"),
        dangling_delete_files=len(dangling(listing)),
        snapshots=len(history.snapshots),
        oldest_snapshot_ms=min(s.timestamp_ms for s in history.snapshots.values()),
        commits_since_rewrite=since_rewrite(history).commits,
        manifests=listing.manifests,
        manifest_bytes=listing.manifest_bytes,
        metadata_bytes=listing.metadata_bytes,
        planning_s=listing.planning_s,
        history_bytes=history_bytes,
    )


def table_health(lake: Lake, table: str, target_file_mb: int, *, with_history: bool = False) -> TableHealth | None:
    """Read and calculate, with one load of the table; None when there is no such table, or it has no snapshot yet."""
    loaded = lake.load(table)
    return None if loaded is None else health_of_loaded(table, loaded, target_file_mb, with_history=with_history)


def health_of_loaded(
    table: str, loaded: "Table", target_file_mb: int, *, with_history: bool = False
) -> TableHealth | None:
    """`table_health` of a table that is loaded already.

    `with_history` reads the manifests of every snapshot, for `history_bytes`: not for a tick.
    """
    listing = listing_of(table, loaded)
    if listing is None:
        return None
    held = reach_of(table, loaded).history_bytes if with_history else None
    return health_of(listing, history_of(table, loaded), target_file_mb=target_file_mb, history_bytes=held)


def small(listing: FileListing, target_file_mb: int) -> list[LiveFile]:
    """Data files that are small, and have a companion: a rewrite leaves one alone that is the only one of its place.

    A companion is another file of a wrong size. One that a rewrite takes for its deletes is none: deletes are counted
    on their own.
    """
    low, high = SMALL * target_file_mb * MB, LARGE * target_file_mb * MB
    wrong = [f for f in listing.files if f.content == "data" and not low <= f.bytes <= high]
    beside = Counter(place(listing, f) for f in wrong)
    return [f for f in wrong if f.bytes < low and beside[place(listing, f)] > 1]


def place(listing: FileListing, file: LiveFile) -> tuple[object, ...]:
    """Files of one place are rewritten together: a partition, or whatever was written under older specs."""
    return file.partition if listing.spec_id in {None, file.spec_id} else ()


def dangling(listing: FileListing) -> list[LiveFile]:
    """Delete files and vectors that apply to no live data file, so that readers plan with them for nothing.

    A position delete without bounds may name any file of its partition, and one with bounds any between them: it
    dangles only when there is none. Of those, fewer may be found than there are: Spark writes one for several data
    files where `write.delete.granularity` is `partition`, and a rewrite leaves data under its number. It also dangles
    where every file that it may name has a deletion vector, which takes the place of position deletes (spec, "Scan
    Planning"). By scope and bounds alone: whether a row that a delete names is still there is not in metadata.
    O(n log n) for n files.
    """
    lowest = _Lowest(listing)
    return [f for f in listing.files if f.content != "data" and not lowest.applies(f)]


_Scope = tuple[int, tuple[object, ...]]  # Spec and partition: a delete reaches data under both.


class _Lowest:
    """The lowest data sequence number of live data files: anywhere, in a scope, at a path, between two paths."""

    def __init__(self, listing: FileListing) -> None:
        self._unpartitioned = listing.unpartitioned_specs
        self._in_scope: dict[_Scope, int] = {}
        self._at: dict[tuple[_Scope, str], int] = {}
        for f in listing.files:
            if f.content == "data":
                scope = (f.spec_id, f.partition)
                self._in_scope[scope] = min(f.sequence_number, self._in_scope.get(scope, f.sequence_number))
                self._at[scope, f.path] = min(f.sequence_number, self._at.get((scope, f.path), f.sequence_number))
        self._anywhere = min(self._in_scope.values(), default=None)
        vectors = (f for f in listing.files if f.vector and f.names_from is not None)
        covered = {((f.spec_id, f.partition), f.names_from) for f in vectors if self.applies(f)}
        self._bare: dict[tuple[_Scope, str], int] = {k: n for k, n in self._at.items() if k not in covered}
        by_scope: dict[_Scope, list[tuple[str, int]]] = {}
        for (scope, path), number in self._bare.items():
            by_scope.setdefault(scope, []).append((path, number))
        self._ranges = {scope: _Ranges(sorted(files)) for scope, files in by_scope.items()}

    def applies(self, delete: LiveFile) -> bool:
        """Whether there is a live data file that this delete applies to."""
        scope = (delete.spec_id, delete.partition)
        if delete.content == "equality_deletes":
            everywhere = delete.spec_id in self._unpartitioned
            lowest = self._anywhere if everywhere else self._in_scope.get(scope)
            return lowest is not None and lowest < delete.sequence_number
        if delete.vector or (delete.names_from is not None and delete.names_from == delete.names_to):
            files = self._at if delete.vector else self._bare
            lowest = files.get((scope, delete.names_from or ""))
        else:
            ranges = self._ranges.get(scope)
            lowest = None if ranges is None else ranges.lowest(delete.names_from, delete.names_to)
        return lowest is not None and lowest <= delete.sequence_number


class _Ranges:
    """Lowest number between two paths, in O(log n): a tree of minima over files in the order of their paths."""

    def __init__(self, files: list[tuple[str, int]]) -> None:
        self._paths = [path for path, _ in files]
        self._minima = [0] * len(files) + [number for _, number in files]
        for node in range(len(files) - 1, 0, -1):
            self._minima[node] = min(self._minima[2 * node], self._minima[2 * node + 1])

    def lowest(self, first: str | None, last: str | None) -> int | None:
        """Of paths from `first` to `last`; None is no bound.

        A path that begins with `last` is between them: writers cut long bounds, and not all of them raise one that
        they cut. Where they do, or do not cut, no path lies there that is not named, or it is counted as if it were.
        """
        size = len(self._paths)
        low = (0 if first is None else bisect_left(self._paths, first)) + size
        high = (size if last is None else bisect_right(self._paths, last + _LAST)) + size
        found: int | None = None
        while low < high:
            for node in ([low] if low % 2 else []) + ([high - 1] if high % 2 else []):
                found = self._minima[node] if found is None else min(found, self._minima[node])
            low, high = (low + 1) // 2, high // 2
        return found
