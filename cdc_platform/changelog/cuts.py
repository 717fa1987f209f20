"""Where a moment of the source lies in the change logs.

Who wants to know emits a logical message with an id at the source. It comes through the replication stream in the
order of commits, so when capture meets it, everything committed before it is in the logs; capture then notes where each
log ends. (The slot's `confirmed_flush_lsn` proves less: a slot that was just made confirms what it never delivered.)

Belongs here: the note. Does not: emitting the message (`source/state.py`), meeting it (`capture/batch.py`).
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

_KEPT_MAX = 200


class Cuts:
    """The newest cuts that capture has met, in one small file of a source: written whole, read by anyone."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def record(self, cut_id: str, log_ends: Mapping[str, int]) -> None:
        """Note that each table's log, up to its end here, holds everything committed before the cut."""
        kept = [*self._read().items(), (cut_id, dict(log_ends))][-_KEPT_MAX:]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(dict(kept)))
        fresh.replace(self._file)

    def find(self, cut_ids: Iterable[str], table: str) -> int | None:
        """Position in the table's log that holds the first of these cuts that was met; None when none was."""
        known = self._read()
        return next((known[i][table] for i in cut_ids if i in known and table in known[i]), None)

    def _read(self) -> dict[str, dict[str, int]]:
        try:
            return json.loads(self._file.read_text())
        except (FileNotFoundError, ValueError):  # The file is a hint: who does not find a cut emits another.
            return {}
