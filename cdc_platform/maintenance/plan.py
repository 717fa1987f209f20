"""What an operation would do to a table, told before it does it.

Belongs here: plans as plain values, and how they follow from files, history and past runs. Does not: whether it is due
(`maintenance/policy.py`), or carrying it out (`maintenance/maintain.py`).
An estimate comes from this table's own past runs; before there are any it is None: unknown, never a guess.
Rules (Iceberg 1.12.0): `rewrite_data_files` takes a data file to which a delete applies, and one outside 0.75 to 1.8
times the target size when there are two or more together in a partition, or when they hold more than 1.8 times the
target (`SizeBasedFileRewritePlanner`, `BinPackRewriteFilePlanner`); files of older partition specs count as one
partition. The same call removes delete files that apply to nothing. Which deletes apply: Iceberg spec, "Scan Planning".
Units: `*_s` seconds, `*_bytes` bytes.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from cdc_platform.lake.files import FileListing, LiveFile, Reach
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.maintenance.health import LARGE, SMALL, dangling, place
from cdc_platform.maintenance.protection import Keeping, Kept
from cdc_platform.maintenance.runs import PastRun
from cdc_platform.registry.maintenance import MB

GROUPS_MAX = 10  # Calls of one run: each commit of theirs is read before and after it (`maintenance/maintain.py`).
# Heap that a running task holds for an equality-delete key: 210 bytes for a long, 260 for a text of 36 characters (live
# objects while 1 M keys were applied, Iceberg 1.12.0, 2026-11; docs/maintenance.md).
KEY_BYTES = 260
_LISTED_MAX = 20
_ADDED_MEANWHILE = 1_000  # Files: a commit a second for a quarter of an hour.


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Data files to write anew, with all deletes that apply to them."""

    snapshot_id: int
    data_files: int
    data_bytes: int
    delete_files: int
    deletes: int
    dangling_delete_files: int
    groups: int  # Calls, at most: each takes a file group of at most `group_mb_max`, and is one commit or more.
    memory_bytes: int  # That one running task must hold for equality deletes; Spark runs one a core.
    estimated_s: float | None
    files_per_call: int = 0  # So many, whichever Iceberg picks, are no more than a group.
    paths: frozenset[str] = field(default=frozenset(), repr=False)  # The data files that it is about.

    @property
    def is_empty(self) -> bool:
        """Nothing to do: no data file, and no delete that applies to nothing, which the same call removes."""
        return not (self.data_files or self.dangling_delete_files)

    def lines(self) -> tuple[str, ...]:
        """For people."""
        return (
            f"{_n(self.data_files, 'data file')} of {_size(self.data_bytes)} to write anew, in at most "
            f"{_n(self.groups, 'call')}",
            f"{_n(self.delete_files, 'delete file')} with {self.deletes:,} deletes apply to them; "
            f"{self.dangling_delete_files} more apply to nothing and go as well",
            f"memory for equality deletes: {_size(self.memory_bytes)} for each task that runs",
            _time(self.estimated_s),
        )

    def figures(self) -> dict[str, float]:
        """As numbers, under names that do not change."""
        return _figures(
            self,
            "data_files data_bytes delete_files deletes dangling_delete_files groups memory_bytes",
        )


@dataclass(frozen=True, slots=True)
class PositionDeletePlan:
    """Position-delete files to merge; those that name no live data file vanish."""

    snapshot_id: int
    delete_files: int
    deletes: int
    delete_bytes: int
    estimated_s: float | None

    @property
    def is_empty(self) -> bool:
        """Nothing to do."""
        return not self.delete_files

    def lines(self) -> tuple[str, ...]:
        """For people."""
        return (
            f"{_n(self.delete_files, 'position-delete file')} with {self.deletes:,} deletes, "
            f"{_size(self.delete_bytes)}",
            _time(self.estimated_s),
        )

    def figures(self) -> dict[str, float]:
        """As numbers."""
        return _figures(self, "delete_files deletes delete_bytes")


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """Manifests to cluster by partition."""

    snapshot_id: int
    manifests: int
    manifest_bytes: int
    planning_s: float
    estimated_s: float | None

    @property
    def is_empty(self) -> bool:
        """One manifest is as good as it gets."""
        return self.manifests <= 1

    def lines(self) -> tuple[str, ...]:
        """For people."""
        return (
            f"{_n(self.manifests, 'manifest')} of {_size(self.manifest_bytes)}, read in {self.planning_s:.2f} s",
            _time(self.estimated_s),
        )

    def figures(self) -> dict[str, float]:
        """As numbers."""
        return _figures(self, "manifests manifest_bytes planning_s")


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """Exactly these snapshots and files would go."""

    snapshot_ids: tuple[int, ...]  # Oldest first.
    files: tuple[str, ...]  # Data and delete files that no remaining snapshot reaches.
    file_bytes: int
    metadata_files: int  # Manifests and manifest lists.
    kept: tuple[Kept, ...]  # Beyond age and count: what pins more.
    reason: str
    refs_gone: tuple[str, ...] = ()  # Past their own declared age.
    refs_renewed: tuple[str, ...] = ()  # As much, but `keep_refs` names them.
    snapshots: int = 0  # Before.

    @property
    def is_empty(self) -> bool:
        """Nothing to do."""
        return not self.snapshot_ids

    def lines(self) -> tuple[str, ...]:
        """For people."""
        shown = [f"  goes: snapshot {i}" for i in self.snapshot_ids[:_LISTED_MAX]]
        shown += [f"  goes: file {path}" for path in self.files[:_LISTED_MAX]]
        left = max(0, len(self.snapshot_ids) - _LISTED_MAX) + max(0, len(self.files) - _LISTED_MAX)
        return (
            self.reason,
            f"{_n(len(self.snapshot_ids), 'snapshot')} of {self.snapshots}, {_n(len(self.files), 'file')} of "
            f"{_size(self.file_bytes)} and {_n(self.metadata_files, 'metadata file')} would go",
            *(f"  stays: snapshot {k.snapshot_id} for {k.by}" for k in self.kept),
            *(f"  goes: ref {name}, whose declared age is over" for name in self.refs_gone),
            *(f"  stays: ref {name}, by keep_refs; its declared age is lifted" for name in self.refs_renewed),
            *shown,
            *((f"  and {left} more",) if left else ()),
        )

    def figures(self) -> dict[str, float]:
        """As numbers."""
        return {
            "snapshots": self.snapshots,
            "expired_snapshots": len(self.snapshot_ids),
            "expired_files": len(self.files),
            "expired_bytes": self.file_bytes,
            "expired_metadata_files": self.metadata_files,
            "pins": len(self.kept),
        }


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    """Files in the table's folder that nothing of it leads to."""

    files: tuple[str, ...]
    bytes: int
    older_than_ms: int  # UTC: younger files are left, they may belong to a commit that is under way.
    reachable: int  # Files that were compared with.

    @property
    def is_empty(self) -> bool:
        """Nothing to do."""
        return not self.files

    def lines(self) -> tuple[str, ...]:
        """For people."""
        left = len(self.files) - _LISTED_MAX
        return (
            f"{_n(len(self.files), 'file')} of {_size(self.bytes)} that none of {self.reachable:,} reachable files is",
            *(f"  goes: {path}" for path in self.files[:_LISTED_MAX]),
            *((f"  and {left} more",) if left > 0 else ()),
        )

    def figures(self) -> dict[str, float]:
        """As numbers."""
        return {"orphan_files": len(self.files), "orphan_bytes": self.bytes}


Plan = RewritePlan | PositionDeletePlan | ManifestPlan | ExpiryPlan | OrphanPlan


def rewrite_plan(
    listing: FileListing, past: Sequence[PastRun], *, target_mb: int, group_mb_max: int, run_mb_max: int
) -> RewritePlan:
    """Return what a rewrite of data files would take."""
    reach = _Reach(listing)
    data = [f for f in listing.files if f.content == "data"]
    deletes = [f for f in listing.files if f.content != "data"]
    chosen = [f for f in data if reach.reaches(f)]
    odd = defaultdict[Any, list[LiveFile]](list)
    taken = {f.path for f in chosen}
    together = {place(listing, f) for f in chosen}
    for file in data:
        if file.path not in taken and not SMALL * target_mb * MB <= file.bytes <= LARGE * target_mb * MB:
            odd[place(listing, file)].append(file)
    for where, files in odd.items():
        much = sum(f.bytes for f in files) > LARGE * target_mb * MB
        chosen += files if len(files) > 1 or much or where in together else []
    loose = dangling(listing)
    apart = {id(d) for d in loose}
    applying = [d for d in deletes if id(d) not in apart]
    sizes = sorted((f.bytes for f in chosen), reverse=True)
    files_per_call = _fitting(sizes, group_mb_max * MB)
    # A call takes so many files whatever their size, so that many small ones beside a large one make many calls.
    a_call = files_per_call * sum(sizes) / len(sizes) if sizes else 0.0
    planned_bytes = min(sum(sizes), run_mb_max * MB)
    groups = min(GROUPS_MAX, math.ceil(planned_bytes / a_call)) if a_call else 0
    keys = sum(d.records for d in applying if d.content == "equality_deletes")
    return RewritePlan(
        snapshot_id=listing.snapshot_id,
        data_files=len(chosen),
        data_bytes=sum(sizes),
        delete_files=len(applying),
        deletes=sum(d.records for d in applying),
        dangling_delete_files=len(deletes) - len(applying),
        groups=groups or int(bool(chosen or loose)),
        memory_bytes=keys * KEY_BYTES,
        estimated_s=estimate(past, min(planned_bytes, math.ceil(groups * a_call))),
        files_per_call=files_per_call,
        paths=frozenset(f.path for f in chosen),
    )


def position_delete_plan(listing: FileListing, past: Sequence[PastRun]) -> PositionDeletePlan:
    """Return what a rewrite of position deletes would take."""
    found = [f for f in listing.files if f.content == "position_deletes" and not f.vector]
    size = sum(f.bytes for f in found)
    return PositionDeletePlan(
        listing.snapshot_id, len(found), sum(f.records for f in found), size, estimate(past, size)
    )


def expiry_plan(history: TableHistory, keeping: Keeping, reach: Reach) -> ExpiryPlan:
    """Return what an expiry would take: all but what is kept, and the files that only those reach."""
    goes = sorted(
        (s for s in history.snapshots.values() if s.snapshot_id not in keeping.ids),
        key=lambda s: (s.timestamp_ms, s.sequence_number),
    )
    ids = tuple(s.snapshot_id for s in goes)
    files, metadata = reach.only(ids)
    reason = f"{len(ids)} of {len(history.snapshots)} snapshots are neither young, nor among the newest, nor pinned"
    return ExpiryPlan(
        snapshot_ids=ids,
        files=tuple(sorted(files)),
        file_bytes=sum(files.values()),
        metadata_files=len(metadata),
        kept=keeping.kept,
        reason=reason,
        refs_gone=keeping.refs_gone,
        refs_renewed=tuple(ref.name for ref in keeping.refs_renewed),
        snapshots=len(history.snapshots),
    )


def manifest_plan(listing: FileListing, past: Sequence[PastRun]) -> ManifestPlan:
    """Return what a rewrite of manifests would take."""
    return ManifestPlan(
        listing.snapshot_id,
        listing.manifests,
        listing.manifest_bytes,
        listing.planning_s,
        estimate(past, listing.manifest_bytes),
    )


def estimate(past: Sequence[PastRun], size: int) -> float | None:
    """Seconds for so many bytes, from this table's own runs; None before there is one that did something.

    By the median rate, and never less than its quickest run: small ones are all overhead.
    """
    done = [run for run in past if run.changed]
    if not done:
        return None
    least = min(run.took_s for run in done)
    rates = [run.took_s / run.rewritten_bytes for run in done if run.rewritten_bytes]
    return max(least, median(rates) * size) if rates else median(run.took_s for run in done)


class _Reach:
    """Which data files of a listing a delete applies to."""

    def __init__(self, listing: FileListing) -> None:
        self._newest_equality: dict[Any, int] = {}
        self._positions = defaultdict[Any, list[LiveFile]](list)
        self._named: dict[str, int] = {}
        for file in listing.files:
            where = (file.spec_id, file.partition)
            if file.content == "equality_deletes":
                place = None if file.spec_id in listing.unpartitioned_specs else where
                self._newest_equality[place] = max(self._newest_equality.get(place, 0), file.sequence_number)
            elif file.content == "position_deletes" and file.names_from == file.names_to is not None:
                named = str(file.names_from)
                self._named[named] = max(self._named.get(named, 0), file.sequence_number)
            elif file.content == "position_deletes":
                self._positions[where].append(file)

    def reaches(self, data: LiveFile) -> bool:
        """Whether any delete applies to a data file."""
        where = (data.spec_id, data.partition)
        newest = max(self._newest_equality.get(None, 0), self._newest_equality.get(where, 0))
        if data.sequence_number < newest or data.sequence_number <= self._named.get(data.path, 0):
            return True
        return any(
            data.sequence_number <= p.sequence_number
            and (p.names_from is None or p.names_from <= data.path)
            and (p.names_to is None or data.path <= p.names_to)
            for p in self._positions[where]
        )


def _fitting(sizes: Sequence[int], bytes_max: int) -> int:
    """How many of the largest files fit; at least two, for one file alone is not merged.

    Where all fit there is room for those that a writer adds between the plan and the call: Iceberg takes whichever
    files it likes, and an old one that it leaves out keeps every delete since alive (a soak had 151 delete files beside
    18 data files after a rewrite, 2026-12).
    """
    total, fitting = 0, 0
    for size in sizes:  # Largest first: so many others are no more.
        total += size
        if total > bytes_max:
            return max(2, fitting)
        fitting += 1
    return max(2, 2 * fitting + _ADDED_MEANWHILE)


def _figures(plan: Any, names: str) -> dict[str, float]:
    found: Mapping[str, float] = {name: getattr(plan, name) for name in names.split()}
    return dict(found) | ({"estimated_s": plan.estimated_s} if plan.estimated_s is not None else {})


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _size(size: int) -> str:
    return f"{size / MB:,.1f} MB"


def _time(estimated_s: float | None) -> str:
    if estimated_s is None:
        return "time: unknown, no run of this table is recorded yet"
    return f"time: about {estimated_s:.1f} s, by this table's past runs"
