"""Records that could not be applied, in an Iceberg table of their own beside each landing table.

Belongs here: the table, adding to it exactly once, what is open, a person's decision on one. Does not: which records
these are (`landing/events.py`, `landing/late.py`), applying one again (`landing/sink.py`).
Rules: letters are committed before the window that leaves them out, so none is lost; each window is found again at
the same offsets after a crash, and the table says through which offset its letters are complete, so none is
doubled. A letter is closed by a later row that names its offset: `replayed` (the sink applied it), `discarded` (a
person did not want it). Nothing is ever deleted from it.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdc_platform.errors import ConflictError, UnavailableError
from cdc_platform.lake.catalog import Lake, history_of
from cdc_platform.lake.types import pyiceberg_type
from cdc_platform.landing.files import write_rows
from cdc_platform.landing.position import LOG_ID, LOG_POSITION
from cdc_platform.landing.transaction import cached_transaction, row_delta, translated

if TYPE_CHECKING:
    import pandas as pd
    from pyiceberg.table import Table

NAMESPACE = "dead_letters"
_PROPERTIES = {"format-version": "2", "write.metadata.delete-after-commit.enabled": "true"}
COMPLETE = "cdc.complete-through"  # Property: as the summary's position, and outlives another engine's expiry.
_LAST_MS = 253_402_300_800_000  # Year 10,000.
CLOSED = {"replayed", "discarded"}


@dataclass(frozen=True, slots=True)
class Letter:
    """One row: a record that was not applied, or the word that closes one (`closes` is its offset)."""

    log_offset: int
    reason: str
    detail: str = ""
    op: str = ""
    key: str = ""
    source_position: str = ""
    source_ts_ms: int = 0
    payload: str = ""
    closes: int | None = None


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A row as it stands in the table, of which operators need these."""

    log_id: str
    log_offset: int
    reason: str
    detail: str
    op: str
    key: str
    payload: str
    closes: int | None = None


def dead_letter_table(landing: str) -> str:
    """Identifier of a landing table's dead letters in the catalog."""
    return f"{NAMESPACE}.{landing.split('.', 1)[1]}"


class DeadLetters:
    """The dead letters of one landing table. Made with the first of them. Not shared between threads."""

    def __init__(self, lake: Lake, landing: str) -> None:
        self.name = dead_letter_table(landing)
        self._lake = lake

    def add(self, letters: Sequence[Letter], *, log_id: str, through: int, window: int) -> int:
        """Add the letters that the table does not have; return how many. `through` is the log position they reach to.

        Raises ConflictError when another writer added letters meanwhile.
        """
        table = self._open()
        at = _complete(self.name, table)
        fresh = [x for x in letters if at is None or at[0] != log_id or x.log_offset >= at[1]]
        if fresh:
            self._append(table, fresh, log_id=log_id, window=window, complete=(log_id, through), expected=at)
        return len(fresh)

    def close(self, offsets: Sequence[int], *, reason: str, log_id: str) -> None:
        """Close letters by a person's word. What the sink adds meanwhile is no conflict: it closes others."""
        letters = [Letter(log_offset=offset, reason=reason, closes=offset) for offset in offsets]
        self._append(self._open(), letters, log_id=log_id, window=0, complete=None, expected=None)

    def read(self, *, closed: bool = False, payload: bool = True) -> "pd.DataFrame":
        """The open letters, oldest first; with `closed`, all rows. Empty when there is no table.

        Without `payload` the largest column is not read. Raises UnavailableError.
        """
        import pandas as pd

        columns = [name for name, _ in _COLUMNS if payload or name != "payload"]
        table = self._lake.load(self.name)
        if table is None:
            return pd.DataFrame(columns=columns)
        try:
            rows = table.scan(selected_fields=tuple(columns)).to_pandas()
        except OSError as error:
            raise UnavailableError("its files can't be read", where=self.name, action="Try again later") from error
        rows = rows[columns].sort_values(["dead_at", "log_offset"], kind="stable", ignore_index=True)
        rows["closes"] = rows["closes"].astype("Int64")  # A number, or nothing: never 5.0.
        if closed:
            return rows
        shut = {(i, int(n)) for i, n in zip(rows["log_id"], rows["closes"], strict=True) if n is not pd.NA}
        is_open = [
            reason not in CLOSED and (log_id, offset) not in shut
            for reason, log_id, offset in zip(rows["reason"], rows["log_id"], rows["log_offset"], strict=True)
        ]
        # As booleans: of a table that is just made, the list is empty, and would pick columns.
        return rows[pd.Series(is_open, dtype=bool)].reset_index(drop=True)

    def _open(self) -> "Table":
        from pyiceberg.schema import Schema
        from pyiceberg.types import NestedField

        table = self._lake.load(self.name)
        if table is not None:
            return table
        self._lake.catalog.create_namespace_if_not_exists(NAMESPACE)
        fields = [
            NestedField(i, name, pyiceberg_type(kind), required=False) for i, (name, kind) in enumerate(_COLUMNS, 1)
        ]
        return self._lake.catalog.create_table_if_not_exists(self.name, Schema(*fields), properties=_PROPERTIES)

    def _append(
        self,
        table: "Table",
        letters: Sequence[Letter],
        *,
        log_id: str,
        window: int,
        complete: tuple[str, int] | None,
        expected: tuple[str, int] | None,
    ) -> None:
        import pyarrow as pa
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        now = datetime.now(UTC)
        rows = [
            {
                "log_id": log_id,
                "log_offset": x.log_offset,
                "reason": x.reason,
                "detail": x.detail,
                "op": x.op,
                "key": x.key,
                "source_position": x.source_position,
                "source_ts": _moment(x.source_ts_ms),
                "payload": x.payload,
                "window": window,
                "dead_at": now,
                "closes": x.closes,
            }
            for x in letters
        ]
        schema = table.schema()
        data = write_rows(table, schema, pa.Table.from_pylist(rows, schema=schema_to_pyarrow(schema)))
        position = {LOG_ID: complete[0], LOG_POSITION: str(complete[1])} if complete else {}

        def at_expected() -> None:
            if complete is not None and _complete(self.name, table) != expected:
                raise ConflictError("another sink added letters", where=self.name, action="It is tried again by itself")

        transaction = cached_transaction(table)
        with translated(self.name):
            row_delta()(
                transaction, data=data, deletes=[], summary=position, replace_all=False, check=at_expected
            ).commit()
            if position:
                transaction.set_properties({COMPLETE: json.dumps(position)})
            transaction.commit_transaction()


def stored(rows: "pd.DataFrame") -> list[StoredLetter]:
    """Rows of `DeadLetters.read`; those that were read without their payloads have none."""
    import pandas as pd

    texts = [name for name in ("log_id", "reason", "detail", "op", "key", "payload") if name in rows]
    return [
        StoredLetter(
            **{"payload": ""} | {name: str(row[name]) for name in texts},
            log_offset=int(row["log_offset"]),
            closes=None if pd.isna(row["closes"]) else int(row["closes"]),
        )
        for row in rows.to_dict("records")
    ]


_COLUMNS = (
    ("log_id", "string"),
    ("log_offset", "long"),
    ("reason", "string"),
    ("detail", "string"),
    ("op", "string"),
    ("key", "string"),
    ("source_position", "string"),
    ("source_ts", "timestamptz"),
    ("payload", "string"),
    ("window", "long"),
    ("dead_at", "timestamptz"),
    ("closes", "long"),
)


def _moment(ms: int) -> datetime | None:
    """Milliseconds since 1970 as a moment; None for 0, and for what no calendar holds: a letter may say anything."""
    return datetime.fromtimestamp(ms / 1000, UTC) if 0 < ms < _LAST_MS else None


def _complete(name: str, table: "Table") -> tuple[str, int] | None:
    """Through which position of which log the letters are complete, None before the first."""
    history = history_of(name, table)
    newest = history.newest(lambda s: LOG_POSITION in s.summary)
    found = newest.summary if newest else json.loads(history.properties.get(COMPLETE, "{}"))
    return (found[LOG_ID], int(found[LOG_POSITION])) if found else None
