"""Change-log records into columns: one Arrow row for each change of one key.

Belongs here: reading Debezium's JSON under our converter settings (`capture/settings.py`), and what each kind of
event means for a key. Does not: which of several changes counts (`landing/window.py`).
How a value reads depends on the Iceberg type alone: decimal and timestamptz come as text, date as days since
1970, timestamp as microseconds, binary as base64, the rest as JSON's own.
Columns of a decoded table: `__cdc_op` (c, u, d, r, t), `__cdc_commit_lsn`, `__cdc_lsn`, `__cdc_ordinal`,
`__cdc_ts_ms`, then the table's.
Rules: `pyarrow.json` with an explicit schema is strict (it refuses 1.5 for an int and "12" for one), but passes over
fields that the schema lacks, so a changed column set is looked for separately (`check_columns`).
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import base64
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdc_platform.errors import ConfigError, InvariantError
from cdc_platform.lake.snapshot import Column

if TYPE_CHECKING:
    import pyarrow as pa

# Beside a table's own columns, which the doctor keeps from beginning so.
CONTROL_PREFIX = "__cdc_"
OP, COMMIT_LSN, LSN, ORDINAL, TS_MS = (CONTROL_PREFIX + c for c in ("op", "commit_lsn", "lsn", "ordinal", "ts_ms"))
_CONTROL = (OP, COMMIT_LSN, LSN, ORDINAL, TS_MS)
_BLOCK_BYTES = 4 << 20
_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")
_SEQUENCE = r'^\[(?:null|"(?P<commit>\d+)"),"(?P<lsn>\d+)"\]$'


def arrow_type(iceberg: str) -> "pa.DataType":
    """The Arrow type of an Iceberg type."""
    import pyarrow as pa

    if match := _DECIMAL.fullmatch(iceberg):
        return pa.decimal128(int(match[1]), int(match[2]))
    return {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", "UTC"),
    }[iceberg]


def _json_type(iceberg: str) -> "pa.DataType":
    """The Arrow type in which the JSON spells it."""
    import pyarrow as pa

    if _DECIMAL.fullmatch(iceberg):
        return pa.string()
    spelled = {"binary": pa.string(), "date": pa.int32(), "timestamp": pa.int64(), "timestamptz": pa.string()}
    return spelled.get(iceberg) or arrow_type(iceberg)


class Decoder:
    """Decodes one table's records. `key` are the identifier columns."""

    def __init__(self, table: str, columns: Sequence[Column], key: Sequence[str]) -> None:
        import pyarrow as pa

        self._table = table
        self._columns = tuple(columns)
        self._key = tuple(key)
        row = [pa.field(c.name, _json_type(c.type)) for c in columns]
        self._schema = pa.schema(
            [
                ("op", pa.string()),
                ("before", pa.struct([f for f in row if f.name in self._key])),
                ("after", pa.struct(row)),
                (
                    "source",
                    pa.struct([("sequence", pa.string()), ("lsn", pa.int64()), ("ts_ms", pa.int64())]),
                ),
                ("transaction", pa.struct([("total_order", pa.int64())])),
            ]
        )

    def decode(self, lines: bytes, *, first_offset: int) -> "pa.Table":
        """Return the changes in `lines`, in their order; `first_offset` is for messages.

        An update that changes a key column becomes a delete of the old key and an upsert of the new one.
        Raises ConfigError when the source's columns have changed, InvariantError when a record can't be read.
        """
        import pyarrow as pa

        where = f"{self._table}, change-log records from {first_offset}"
        self._check_columns(lines, where)
        try:
            raw = self._read_json(lines)
            return self._changes(raw, where)
        except (pa.ArrowInvalid, ValueError) as error:
            raise InvariantError(
                f"a record does not read as the table's columns ({_first_line(error)})",
                where=where,
                action="Look at the record in the change log; correct the value at the source and take a new "
                "initial load: `cdc-platform recapture SOURCE`",
            ) from error

    def _read_json(self, lines: bytes) -> "pa.Table":
        import pyarrow as pa
        from pyarrow import json as pa_json

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

    def _changes(self, raw: "pa.Table", where: str) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.compute as pc

        before, after, source = (_whole(raw[name]) for name in ("before", "after", "source"))
        op = _whole(raw["op"])
        sequence = pc.extract_regex(pc.struct_field(source, "sequence"), _SEQUENCE)
        commit = pc.struct_field(sequence, "commit")
        commit = pc.if_else(pc.equal(commit, ""), "0", commit)
        columns = {
            OP: op,
            COMMIT_LSN: pc.fill_null(pc.cast(commit, pa.int64()), 0),
            LSN: pc.fill_null(pc.cast(pc.struct_field(sequence, "lsn"), pa.int64()), 0),
            ORDINAL: pc.fill_null(pc.struct_field(_whole(raw["transaction"]), "total_order"), 0),
            TS_MS: pc.struct_field(source, "ts_ms"),
        }
        control = pa.table(columns)
        deleted = pc.equal(op, "d")
        row: dict[str, Any] = {}
        for c in self._columns:
            value = pc.struct_field(after, c.name)
            if c.name in self._key:
                value = pc.if_else(deleted, pc.struct_field(before, c.name), value)
            row[c.name] = _converted(value, c.type)
        changes = _joined(control, row)
        self._check_keys(changes, where)
        return self._with_moved_keys(changes, before)

    def _with_moved_keys(self, changes: "pa.Table", before: "pa.Array") -> "pa.Table":
        """Put a delete of the old key before each update that changed it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        moved: Any = None
        for name in self._key:
            old = _converted(pc.struct_field(before, name), _type_of(self._columns, name))
            differs = pc.fill_null(pc.not_equal(old, changes[name].combine_chunks()), False)
            moved = differs if moved is None else pc.or_(moved, differs)
        moved = pc.and_(moved, pc.equal(changes[OP].combine_chunks(), "u"))
        if not pc.any(moved).as_py():
            return changes
        old_rows = {
            c.name: _converted(pc.filter(pc.struct_field(before, c.name), moved), c.type)
            if c.name in self._key
            else pa.nulls(pc.sum(moved).as_py(), arrow_type(c.type))
            for c in self._columns
        }
        control = changes.select(list(_CONTROL)).filter(moved)
        control = control.set_column(0, OP, pa.array(["d"] * control.num_rows))
        both = pa.concat_tables([changes, _joined(control, old_rows)])
        order = pa.concat_arrays(
            [
                pc.multiply(pa.array(range(changes.num_rows)), 2),
                pc.subtract(pc.multiply(pc.indices_nonzero(moved).cast(pa.int64()), 2), 1),
            ]
        )
        return both.take(pc.sort_indices(order)).combine_chunks()

    def _check_keys(self, changes: "pa.Table", where: str) -> None:
        import pyarrow.compute as pc

        for name in self._key:
            missing = pc.and_(pc.is_null(changes[name]), pc.not_equal(changes[OP], "t"))
            if pc.any(missing).as_py():
                raise InvariantError(
                    f"{pc.sum(missing).as_py()} events have no value in key column `{name}`",
                    where=where,
                    action="Set REPLICA IDENTITY FULL and NOT NULL on the key at the source (`cdc-platform "
                    "doctor`), then take a new initial load: `cdc-platform recapture SOURCE`",
                )

    def _check_columns(self, lines: bytes, where: str) -> None:
        """Compare the first and the last record's fields with the table's: a change in between shows in the last."""
        expected = {c.name for c in self._columns}
        body = lines.rstrip(b"\n")
        for line in (body[: body.find(b"\n") % (len(body) + 1)], body[body.rfind(b"\n") + 1 :]):
            event = json.loads(line)
            found = set(event.get("after") or event.get("before") or expected)
            if found == expected:
                continue
            added, gone = sorted(found - expected), sorted(expected - found)
            raise ConfigError(
                f"the source's columns changed (new: {', '.join(added) or 'none'}; gone: {', '.join(gone) or 'none'})",
                where=where,
                action="This table stands still and its change log is kept. Take a new initial load (`cdc-platform "
                "recapture SOURCE`), then drop its landing and curated tables",
            )


def _whole(column: "pa.ChunkedArray") -> "pa.Array":
    """One array of a column of one chunk or none."""
    import pyarrow as pa

    combined = column.combine_chunks()
    return combined if not isinstance(combined, pa.ChunkedArray) else pa.concat_arrays(combined.chunks)


def _joined(control: "pa.Table", row: dict[str, Any]) -> "pa.Table":
    for name, values in row.items():
        control = control.append_column(name, values)
    return control


def _type_of(columns: Sequence[Column], name: str) -> str:
    return next(c.type for c in columns if c.name == name)


def _converted(values: "pa.Array", iceberg: str) -> "pa.Array":
    """From the JSON's spelling to the table's type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if iceberg == "binary":
        decoded = [None if v is None else base64.b64decode(v, validate=True) for v in values.to_pylist()]
        return pa.array(decoded, pa.binary())
    return pc.cast(values, arrow_type(iceberg))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
