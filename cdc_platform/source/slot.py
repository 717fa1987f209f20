"""How much WAL the source keeps for capture: what a capture that stands still costs the source's disk.

Belongs here: one reading of the slot. Does not: whether that is too much (`orchestration/checks.py`), or a slot that
does not continue where capture ended (`doctor.py`).
Units: bytes of WAL. `retained` is what the server may not remove; `unconfirmed` what capture has yet to confirm. The
first is the larger by what transactions still open need, and by up to a checkpoint's delay.
"""

from dataclasses import dataclass

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from cdc_platform.errors import UnavailableError
from cdc_platform.source.postgres import address, connected

# Through JSON, for `inactive_since` is PostgreSQL 17's.
_SLOT = """
SELECT (now_at - s.restart_lsn)::bigint AS retained_bytes,
       (now_at - s.confirmed_flush_lsn)::bigint AS unconfirmed_bytes,
       s.wal_status, s.safe_wal_size::bigint AS safe_bytes, s.active,
       extract(epoch FROM clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float AS inactive_s
FROM pg_replication_slots s,
     (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS now_at) AS wal
WHERE s.slot_name = :slot
"""


@dataclass(frozen=True, slots=True)
class SlotLag:
    """One reading. `None` where the server does not tell."""

    retained_bytes: int | None  # None: the slot is lost.
    unconfirmed_bytes: int | None
    wal_status: str | None  # reserved, extended, unreserved (about to be lost) or lost.
    safe_bytes: (
        int | None
    )  # WAL that may be written before the slot is in danger; None: `max_slot_wal_keep_size` is -1.
    active: bool  # Something reads it.
    inactive_s: float | None  # Since when nothing does (PostgreSQL 17).

    @property
    def in_danger(self) -> bool:
        """Whether the server removes, or has removed, WAL that capture needs."""
        return self.wal_status in {"unreserved", "lost"}

    def within(self, mb_max: int) -> bool:
        """Whether the slot retains at most that, and is in no danger."""
        return not self.in_danger and self.retained_bytes is not None and self.retained_bytes <= mb_max << 20


def read_slot(engine: Engine, slot: str) -> SlotLag:
    """Read how far the slot is behind. Raises UnavailableError when that can't be known: no answer, or no slot."""
    try:
        with connected(engine) as connection:
            found = connection.execute(text(_SLOT), {"slot": slot}).mappings().one_or_none()
    except DBAPIError as error:
        raise UnavailableError(
            f"the slot can't be read ({type(error.orig).__name__})",
            where=f"{address(engine)}, replication slot {slot}",
            action="Run `cdc-platform doctor`",
        ) from error
    if found is None:
        raise UnavailableError(
            "there is no such slot",
            where=f"{address(engine)}, replication slot {slot}",
            action="Capture makes it at its first start; if it has run before, run `cdc-platform doctor`",
        )
    return SlotLag(**found)
