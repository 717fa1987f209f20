"""Capture stops writing before the disk is full, and goes on by itself when there is room.

Belongs here: looking at the free space, and holding a batch. Does not: freeing any.
Why: capture never waits for the sink, so a sink that stands still lets the logs grow. A full disk would stop everything
that writes to it, the catalog included. A batch that is held is not acknowledged: Debezium stops reading when its queue
is full, and the source's slot keeps the WAL, which `slot_lag_is_bounded` watches.
"""

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LOOKED_AGAIN_S = 1.0


class StoppedError(Exception):
    """The service ends while it holds a batch: it is not acknowledged, and comes again."""


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written where `folder` is."""
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True)
class Room:
    """`free_min_mb` is `stack.disk_free_min_mb`; `tell` hears of the problem, and None once it is over."""

    folder: Path
    free_min_mb: int
    stopping: threading.Event
    tell: Callable[[str | None], None]
    free: Callable[[Path], int] = free_bytes
    again_s: float = _LOOKED_AGAIN_S

    def wait(self) -> None:
        """Return when there is room. Raises StoppedError when the service ends first."""
        if self.free(self.folder) >= self.free_min_mb << 20:
            return
        while (found := self.free(self.folder)) < self.free_min_mb << 20:
            self.tell(
                f"{self.folder}: {found >> 20} MB are free, capture writes nothing below {self.free_min_mb} MB "
                "(`stack.disk_free_min_mb`). Free space or enlarge the disk, and it goes on by itself; the source "
                "keeps the WAL meanwhile."
            )
            if self.stopping.wait(self.again_s):
                raise StoppedError
        self.tell(None)
