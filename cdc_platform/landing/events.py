"""Change-log records into columns: one Arrow row for each change of one key.

Belongs here: reading records under our converter settings (`capture/settings.py`), what each kind of record means for
a key, and which records can't be applied. Does not: how a value is spelled (`landing/values.py`), which of several
changes counts (`landing/window.py`).
Columns of a decoded table: `__cdc_op` (c, u, d, r, t), `__cdc_commit_lsn`, `__cdc_lsn`, `__cdc_ordinal`, `__cdc_ts_ms`,
`__cdc_offset` (the record's, in the log), `__cdc_replay_of` (offset of the dead letter that it replays), then the
table's; with `routed_by`, also `__cdc_was_<column>` from the row before.
Rules: `pyarrow.json` with an explicit schema is strict (it refuses 1.5 for an int and "12" for one), but passes over
fields that the schema lacks, so a changed column set is looked for separately (`_check_columns`). What the fast way
refuses is halved until the culprits stand in a few lines, and these are read one by one.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cdc_platform.errors import ConfigError
from cdc_platform.landing.position import SourcePosition
from cdc_platform.landing.values import NoHomeError, ValueReader, value_reader
from cdc_platform.registry.model import Policy
from cdc_platform.source.types import SourceColumn, policy_of

if TYPE_CHECKING:
    import pyarrow as pa

# Beside a table's own columns, which the doctor keeps from beginning so.
CONTROL_PREFIX = "__cdc_"
OP, COMMIT_LSN, LSN, ORDINAL, TS_MS, OFFSET, REPLAY_OF = (
    CONTROL_PREFIX + c for c in ("op", "commit_lsn", "lsn", "ordinal", "ts_ms", "offset", "replay_of")
)
WAS_PREFIX = f"{CONTROL_PREFIX}was_"
CONTROL = (OP, COMMIT_LSN, LSN, ORDINAL, TS_MS, OFFSET, REPLAY_OF)
KINDS = {"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate", "m": "message"}
# A row before its change, without the row after it, is a row that went.
_OP_OF_KIND = {kind: op for op, kind in KINDS.items()} | {"before": "d"}
# Fields of Debezium's heartbeats and transaction marks.
_NO_CHANGE = {"ts_ms", "ts_us", "ts_ns", "status", "id", "event_count", "data_collections"}
_BLOCK_BYTES = 4 << 20
_SLOW_LINES_MAX = 64  # So few are read one by one.
# pyarrow 26.0.1 ends the process (SIGSEGV) when a block that it reads begins with a JSON null; any line may begin one.
_NULL, _NULL_BELOW = re.compile(rb"[ \t\r]*null"), re.compile(rb"\n[ \t\r]*null")
_SEQUENCE = r'^\[(?:null|"(?P<commit>\d+)"),"(?P<lsn>\d+)"\]$'

Reason = Literal["unreadable", "unknown_kind", "no_key", "no_home", "unavailable", "stale"]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that can't be applied. `payload` is its line as it stands in the log."""

    offset: int
    reason: Reason
    detail: str
    op: str = ""
    key: str = ""  # As JSON, "" when it can't be read.
    source: SourcePosition | None = None
    ts_ms: int = 0
    payload: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a batch of lines holds: `changes` in log order, what can't be applied, and what is no change."""

    first_offset: int
    changes: "pa.Table"
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    passed: Counter[str] = field(default_factory=Counter[str])  # Tombstones, messages, heartbeats: no change of a row.


class _UnfitError(Exception):
    """A record that can't be applied, and why; the message holds no value."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason


class Decoder:
    """Decodes one table's records. `key` are the identifier columns.

    `types` are the policies of `landing.types`. `kinds` maps the values of the record's field `kind_field` to `KINDS`'
    names. `routed_by` are columns whose value in the row before is wanted beside the row after. Not `whole`: the
    records have more columns than these.
    """

    def __init__(
        self,
        table: str,
        columns: Sequence[SourceColumn],
        key: Sequence[str],
        *,
        types: Mapping[str, Policy] | None = None,
        kind_field: str = "op",
        kinds: Mapping[str, str] = KINDS,
        routed_by: Sequence[str] = (),
        whole: bool = True,
    ) -> None:
        import pyarrow as pa

        self.columns = tuple(columns)
        self._table = table
        self.key = tuple(key)
        self._kind_field = kind_field
        self._kinds = dict(kinds)
        self._whole = whole
        self._ops = {value: _OP_OF_KIND[kind] for value, kind in kinds.items()}
        self._own_ops = all(value == op for value, op in self._ops.items())
        self._routed_by = tuple(routed_by)
        self._types: dict[str, Policy] = dict(types or {})
        self.readers: dict[str, ValueReader] = {c.name: value_reader(c, policy_of(c, self._types)) for c in columns}
        row = [pa.field(name, reader.json_type) for name, reader in self.readers.items()]
        self._before = {*self.key, *self._routed_by}
        self._schema = pa.schema(
            [
                (kind_field, pa.string()),
                ("before", pa.struct([f for f in row if f.name in self._before])),
                ("after", pa.struct(row)),
                ("source", pa.struct([("sequence", pa.string()), ("ts_ms", pa.int64())])),
                ("transaction", pa.struct([("total_order", pa.int64())])),
                ("replay", pa.struct([("offset", pa.int64())])),
            ]
        )

    def decode(self, lines: bytes, *, first_offset: int, count: int | None = None) -> Decoded:
        """Return what is in `lines`, each a record, the first of them at `first_offset`; `count` of them, if known.

        An update that changes a key column becomes a delete of the old key and an upsert of the new one.
        Raises ConfigError when the columns are not those of the records.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._whole:
            self._check_columns(lines, first_offset)
        parts: list[pa.Table] = []
        rejected: list[Rejected] = []
        passed: Counter[str] = Counter()
        pending = [(lines, first_offset, lines.count(b"\n") if count is None else count)]
        while pending:  # Bounded: each turn takes a part that is whole, or halves it, or reads at most a few lines.
            part, offset, count = pending.pop()
            try:
                if not part.isascii():
                    part.decode()  # pyarrow would pass on what is no UTF-8.
                raw = self._read_json(part)
                if raw.num_rows != count:
                    raise ValueError("a line that is no record")  # pyarrow passes over an empty one.
                changes = self._changes(raw, offset, passed)
                if self._whole and pc.any(pc.is_valid(changes[REPLAY_OF])).as_py():
                    raise ValueError("a replay may have the columns of another time")
                parts.append(changes)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError, KeyError):
                if count > _SLOW_LINES_MAX:
                    half = count // 2
                    cut = _end_of_line(part, half)
                    pending += [(part[cut:], offset + half, count - half), (part[:cut], offset, half)]
                else:
                    for number, line in enumerate(part.split(b"\n")[:count]):
                        one = self._one(line, offset + number, passed)
                        if isinstance(one, Rejected):
                            rejected.append(one)
                        elif one is not None:
                            parts.append(one)
        changes = parts[0] if len(parts) == 1 else pa.concat_tables(parts or [self._nothing()])
        return Decoded(first_offset, changes, rejected, passed)

    def rejected(self, line: bytes, offset: int, reason: Reason, detail: str) -> Rejected:
        """A record, which is a JSON object, as one that can't be applied."""
        event: dict[str, Any] = _json(line)
        return Rejected(
            offset,
            reason,
            detail,
            _storable(str(event.get(self._kind_field) or "")),
            _key_text(event, self.key),
            _source_position(event),
            _ts_ms(event),
            payload=line.decode(errors="replace"),
        )

    def of_keys(self) -> "Decoder":
        """A decoder of nothing but the key columns."""
        return Decoder(
            self._table,
            [c for c in self.columns if c.name in self.key],
            self.key,
            types=self._types,
            kind_field=self._kind_field,
            kinds=self._kinds,
            whole=False,
        )

    def _nothing(self) -> "pa.Table":
        return self._changes(self._schema.empty_table(), 0, Counter())

    def _one(self, line: bytes, offset: int, passed: Counter[str]) -> "pa.Table | Rejected | None":
        """One record, each value on its own; None when it changes no row."""
        import pyarrow as pa

        try:
            event = _json(line)
        except ValueError:
            event = line
        if event is None:
            passed["tombstone"] += 1
            return None
        if not isinstance(event, dict):
            what = "it is no JSON object"
            return Rejected(offset, "unreadable", what, payload=line.decode(errors="replace"))
        if event.keys() <= _NO_CHANGE:
            passed["other"] += 1
            return None
        try:
            self._admit(event)
            return self._changes(self._read_json(json.dumps(event).encode() + b"\n"), offset, passed)
        except _UnfitError as error:
            return self.rejected(line, offset, error.reason, str(error))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError, KeyError) as error:
            return self.rejected(line, offset, "unreadable", _without_values(error))

    def _admit(self, event: dict[str, Any]) -> None:
        """Put each value of a record's images under its column's policy, in place."""
        kind = event.get(self._kind_field)
        op = self._ops.get(kind) if isinstance(kind, str) else None
        if op is None:
            raise _UnfitError("unknown_kind", f"field `{self._kind_field}` has no value that tables.yaml maps")
        if op in {"m", "t"}:
            return
        before, after = event.get("before"), event.get("after")
        image = before if op == "d" or (op == "u" and after is None) else after
        if not isinstance(image, dict) or any(image.get(k) is None for k in self.key):
            raise _UnfitError("no_key", "a key column has no value")
        if self._whole and isinstance(after, dict) and after.keys() != self.readers.keys():
            raise _UnfitError("unreadable", "it has other columns than the table has now")
        for side, names in (("before", self._before), ("after", self.readers)):
            values: dict[str, Any] = event[side] if isinstance(event.get(side), dict) else {}
            for name in names:
                if values.get(name) is not None:
                    values[name] = self._admitted(name, values[name])

    def _admitted(self, name: str, value: object) -> object:
        try:
            return self.readers[name].admit(value)
        except NoHomeError as error:
            reason: Reason = "unavailable" if str(error).startswith("unavailable") else "no_home"
            raise _UnfitError(reason, f"column `{name}`: {error}") from error
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _UnfitError("unreadable", f"column `{name}`: it is no value of the column's type") from error

    def _read_json(self, lines: bytes) -> "pa.Table":
        import pyarrow as pa
        from pyarrow import json as pa_json

        if _NULL.match(lines) or _NULL_BELOW.search(lines):
            raise ValueError("a line that is no record")

        def read(block_bytes: int) -> pa.Table:
            return pa_json.read_json(
                pa.BufferReader(lines),
                read_options=pa_json.ReadOptions(block_size=block_bytes),
                parse_options=pa_json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
            )

        try:
            return read(_BLOCK_BYTES).combine_chunks()
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error):
                raise
            return read(len(lines) + 1).combine_chunks()  # A line longer than a block.

    def _changes(self, raw: "pa.Table", first_offset: int, passed: Counter[str]) -> "pa.Table":
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        before, after, source = (_whole(raw[name]) for name in ("before", "after", "source"))
        op = self._op(_whole(raw[self._kind_field]), before, after)
        sequence = pc.extract_regex(pc.struct_field(source, "sequence"), _SEQUENCE)
        if pc.any(pc.and_(pc.is_null(sequence), pc.not_equal(op, "r"))).as_py():
            raise ValueError("it has no source position")
        commit = pc.struct_field(sequence, "commit")
        commit = pc.if_else(pc.equal(commit, ""), "0", commit)
        control = pa.table(
            {
                OP: op,
                COMMIT_LSN: pc.fill_null(pc.cast(commit, pa.int64()), 0),
                LSN: pc.fill_null(pc.cast(pc.struct_field(sequence, "lsn"), pa.int64()), 0),
                ORDINAL: pc.fill_null(pc.struct_field(_whole(raw["transaction"]), "total_order"), 0),
                TS_MS: pc.fill_null(pc.struct_field(source, "ts_ms"), 0),
                OFFSET: np.arange(first_offset, first_offset + raw.num_rows, dtype=np.int64),
                REPLAY_OF: pc.struct_field(_whole(raw["replay"]), "offset"),
            }
        )
        deleted = pc.equal(op, "d")
        row: dict[str, Any] = {}
        for name in self.readers:
            value = self._convert(name, pc.struct_field(after, name))
            if name in self.key and pc.any(deleted).as_py():
                value = pc.if_else(deleted, self._convert(name, pc.struct_field(before, name)), value)
            row[name] = value
        for name in self._routed_by:
            row[WAS_PREFIX + name] = self._convert(name, pc.struct_field(before, name))
        changes = _joined(control, row)
        is_message = pc.equal(op, "m")
        if pc.any(is_message).as_py():
            passed["message"] += pc.sum(is_message).as_py()
            changes, before = changes.filter(pc.invert(is_message)), before.filter(pc.invert(is_message))
        for name in self.key:
            if pc.any(pc.and_(pc.is_null(changes[name]), pc.not_equal(changes[OP], "t"))).as_py():
                raise ValueError("a key column has no value")
        return self._with_moved_keys(changes, before)

    def _convert(self, name: str, values: "pa.Array") -> "pa.Array":
        import pyarrow as pa

        reader = self.readers[name]
        try:
            return reader.convert(values)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError) as error:
            raise ValueError(f"column `{name}`: it does not fit {reader.iceberg}") from error

    def _op(self, kind: "pa.Array", before: "pa.Array", after: "pa.Array") -> "pa.Array":
        """The kind of each record as c, u, d, r, t or m. Raises ValueError for one that is not in the map."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pa.array(list(self._ops), pa.string())
        index = pc.index_in(kind, known)
        if index.null_count:
            raise ValueError("a kind that is not mapped")
        op = kind if self._own_ops else pa.array(list(self._ops.values()), pa.string()).take(index)
        if not after.null_count:
            return op
        gone = pc.and_(pc.equal(op, "u"), pc.and_(pc.is_null(after), pc.is_valid(before)))
        return pc.if_else(gone, "d", op)

    def _with_moved_keys(self, changes: "pa.Table", before: "pa.Array") -> "pa.Table":
        """Put a delete of the old key before each update that changed it."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        updated = pc.equal(changes[OP].combine_chunks(), "u")
        if not pc.any(updated).as_py():
            return changes
        olds = {name: self._convert(name, pc.struct_field(before, name)) for name in self.key}
        moved: Any = None
        for name, old in olds.items():
            differs = pc.fill_null(pc.not_equal(old, changes[name].combine_chunks()), False)
            moved = differs if moved is None else pc.or_(moved, differs)
        moved = pc.and_(moved, updated)
        if not pc.any(moved).as_py():
            return changes
        old_rows = changes.filter(moved)
        for index, name in enumerate(old_rows.column_names):
            if name == OP:
                values = pa.array(["d"] * old_rows.num_rows)
            elif name in olds:
                values = pc.filter(olds[name], moved)
            elif name in self.readers:
                values = pa.nulls(old_rows.num_rows, old_rows.schema.field(name).type)
            else:
                continue
            old_rows = old_rows.set_column(index, name, values)
        both = pa.concat_tables([changes, old_rows])
        order = np.concatenate(
            [np.arange(changes.num_rows) * 2, pc.indices_nonzero(moved).to_numpy().astype(np.int64) * 2 - 1]
        )
        return both.take(np.argsort(order, kind="stable")).combine_chunks()

    def _check_columns(self, lines: bytes, first_offset: int) -> None:
        """Compare the first and the last record's fields with the table's: a change in between shows in the last.

        Capture marks a change of the columns in the log; this is for a log in which a marker is missing.
        """
        expected = {c.name for c in self.columns}
        for line in (lines[: lines.find(b"\n")], lines[lines.rfind(b"\n", 0, len(lines) - 1) + 1 :]):
            try:
                event = _json(line)
                image = event.get("after") or event.get("before")
            except (ValueError, AttributeError):
                continue  # Not a change at all: it is looked at with the others.
            if not isinstance(image, dict) or "replay" in event:
                continue
            found = set(image)
            if found == expected:
                continue
            added, gone = sorted(found - expected), sorted(expected - found)
            raise ConfigError(
                f"records have other columns than the log says (new: {', '.join(added) or 'none'}; gone: "
                f"{', '.join(gone) or 'none'})",
                where=f"{self._table}, change-log records from {first_offset}",
                action="This table stands still and its change log is kept. Take a new initial load: "
                f"`cdc-platform reload {self._table.split('.')[-1]}`",
            )


def _json(line: bytes) -> Any:
    """Raises ValueError for what is no JSON, and for what is nested too deep to be read."""
    try:
        return json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _end_of_line(lines: bytes, number: int) -> int:
    """Where the first `number` lines end."""
    end = 0
    for _ in range(number):
        end = lines.index(b"\n", end) + 1
    return end


def _source_position(event: Mapping[str, Any]) -> SourcePosition | None:
    """A record's position, None when it has none that can be read."""
    try:
        match = re.match(_SEQUENCE, event["source"]["sequence"])
        assert match is not None
        order = (event.get("transaction") or {}).get("total_order") or 0
        position = SourcePosition(int(match["commit"] or 0), int(match["lsn"]), int(order))
        return position if max(position) < 1 << 63 else None
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError):
        return None


def _ts_ms(event: Mapping[str, Any]) -> int:
    try:
        return int(event["source"]["ts_ms"])
    except (KeyError, TypeError, ValueError):
        return 0


def _key_text(event: Mapping[str, Any], key: Sequence[str]) -> str:
    image = event.get("after") or event.get("before")
    return json.dumps({k: image.get(k) for k in key}) if isinstance(image, dict) else ""


def _storable(text: str) -> str:
    """Half of a surrogate pair, which JSON can spell, is no text elsewhere."""
    return text.encode("utf-8", "replace").decode()


def _without_values(error: Exception) -> str:
    """What kind of trouble it was; libraries quote the value, which belongs in the payload alone."""
    text = str(error).splitlines()[0] if str(error) else ""
    return re.sub(r"['\"].*", "...", text)[:200] or type(error).__name__


def _whole(column: "pa.ChunkedArray") -> "pa.Array":
    """One array of a column of one chunk or none."""
    import pyarrow as pa

    combined = column.combine_chunks()
    return combined if not isinstance(combined, pa.ChunkedArray) else pa.concat_arrays(combined.chunks)


def _joined(control: "pa.Table", row: dict[str, Any]) -> "pa.Table":
    for name, values in row.items():
        control = control.append_column(name, values)
    return control
