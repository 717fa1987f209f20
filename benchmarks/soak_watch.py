"""What a soak sees of a table from its metadata: figures over time, and commit windows that may have been lost.

Belongs here: the count of windows, samples, and whether a series of them is bounded. Does not: running a stack
(`soak.py`).
Rules: a sink's commits carry their window's number, each one more than the last. A commit that another writer undid
leaves a number that no ancestor of the head has, or one that two snapshots bear: the sink went back and took it again.
A snapshot may be expired once it was seen, so one has to look more often than expiry takes what is new.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.landing.position import WINDOW, landed, landing_position
from cdc_platform.maintenance.runs import PROPERTY

# Growth without a bound doubles the peak from the first half to the second; what is bounded keeps it.
GROWTH_MAX = 1.5


@dataclass(frozen=True, slots=True)
class Sample:
    """The table at one moment. `at_s` counts from the soak's beginning."""

    at_s: float
    data_files: int
    delete_files: int
    equality_deletes: int
    snapshots: int
    metadata_bytes: int  # Of the metadata.json.


@dataclass
class Windows:
    """The sink's windows after `first`, as the heads' ancestors say them."""

    first: int  # The last window before the watch.
    _of: dict[int, set[int]] = field(default_factory=dict[int, set[int]])  # Window to snapshots.
    _walked: set[int] = field(default_factory=set[int])
    newest: int = 0
    rewrites: set[int] = field(default_factory=set[int])  # Snapshots that were made by maintenance.
    delete_files_max: int = 0  # After any commit, whenever it was looked at.

    def see(self, history: TableHistory) -> None:
        """Take in what has come since the last look."""
        for snapshot in history.ancestry():  # Bounded by the history.
            if snapshot.snapshot_id in self._walked:
                break
            self._walked.add(snapshot.snapshot_id)
            self.delete_files_max = max(self.delete_files_max, snapshot.total("delete-files"))
            if snapshot.operation == "replace":
                self.rewrites.add(snapshot.snapshot_id)
            if landed(snapshot) and (number := int(snapshot.summary[WINDOW])) > self.first:
                self._of.setdefault(number, set()).add(snapshot.snapshot_id)
        self.newest = max(self.newest, landing_position(history).window)

    @property
    def committed(self) -> int:
        """Windows that the sink has said to be committed."""
        return max(self.newest - self.first, 0)

    @property
    def missing(self) -> list[int]:
        """Windows that no ancestor of any head had."""
        return [n for n in range(self.first + 1, self.newest + 1) if n not in self._of]

    @property
    def repeated(self) -> list[int]:
        """Windows that were committed twice: the first of the two commits was undone."""
        return sorted(n for n, snapshots in self._of.items() if len(snapshots) > 1)


def runs_recorded(history: TableHistory) -> set[str]:
    """Operations that maintenance has recorded in the table, with the time of the newest run of each."""
    found = set[str]()
    for key, text in history.properties.items():
        if key.startswith(PROPERTY):
            found |= {f"{key.removeprefix(PROPERTY)} {run['at_ms']}" for run in json.loads(text)}
    return found


def growth(values: Sequence[float]) -> float:
    """Peak of the second half over the peak of the first; 1 when there is nothing to compare."""
    half = len(values) // 2
    first, second = max(values[:half], default=0), max(values[half:], default=0)
    return second / first if first else 1.0
