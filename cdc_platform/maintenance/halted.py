"""The mark of a table whose maintenance changed rows: nothing else may touch it before a person has looked.

Belongs here: the table property and the tag, what they say, and the refusal. Does not: the proof that failed
(`maintenance/probe.py`), setting the mark (`maintenance/maintain.py`).
Rules: the tag keeps the snapshot to go back to, with its files, from every expiry (`maintenance/protection.py`). A mark
that can't be read halts all the same: only its absence says that the table is whole.
"""

from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from cdc_platform.errors import InvariantError
from cdc_platform.lake.snapshot import TableHistory

PROPERTY = "cdc.maintenance.halted"
KEEP_BEFORE = "keep_before_"  # Followed by the snapshot that changed rows: a tag on its parent.
_TEXT_MAX = 4_096  # Characters; a longer text is not ours.


@dataclass(frozen=True, slots=True)
class Halt:
    """Which run changed rows, and what is wrong."""

    snapshot_id: int  # That it made.
    parent_id: int  # To go back to; the tag is on it.
    operation: str
    at_ms: int  # UTC.
    what: str

    @property
    def tag(self) -> str:
        """The tag that keeps the parent."""
        return f"{KEEP_BEFORE}{self.snapshot_id}"

    def property(self) -> dict[str, str]:
        """The mark, to be set on the table."""
        return {PROPERTY: _HALT.dump_json(self).decode()}


_HALT = TypeAdapter(Halt)


@dataclass(frozen=True, slots=True)
class Halted:
    """A table that bears the mark. `halt` is None where the mark can't be read."""

    table: str
    halt: Halt | None

    @property
    def what(self) -> str:
        """What happened."""
        if self.halt is None:
            return f"maintenance is halted: the property {PROPERTY} is set, and what it says can't be read"
        return f"maintenance is halted since snapshot {self.halt.snapshot_id}: {self.halt.what}"

    def action(self, catalog: str = "lake") -> str:
        """How it goes on, for a person."""
        table = f"{catalog}.{self.table}"
        unset = f"`ALTER TABLE {table} UNSET TBLPROPERTIES ('{PROPERTY}')`"
        if self.halt is None:
            return f"Find out who set it, compare the table with its source, then {unset}"
        # By the tag: `rollback_to_snapshot` refuses a snapshot that an expiry has cut off from the head.
        back = f"CALL {catalog}.system.set_current_snapshot(table => '{self.table}', ref => '{self.halt.tag}')"
        return (
            f"Stop the table's writer, roll back to the tag with `{back}` (commits since go with it), start the "
            f"writer, which writes them again, then {unset} and `ALTER TABLE {table} DROP TAG {self.halt.tag}`"
        )

    def error(self, catalog: str) -> InvariantError:
        """The refusal of an operation."""
        return InvariantError(self.what, where=self.table, action=self.action(catalog))


def halted(history: TableHistory) -> Halted | None:
    """Whether the table bears the mark."""
    text = history.properties.get(PROPERTY)
    return None if text is None else Halted(history.table, _read(text))


def _read(text: str) -> Halt | None:
    try:
        return _HALT.validate_json(text, strict=True) if len(text) <= _TEXT_MAX else None
    except ValidationError:
        return None
