"""How the change log spells a column's values, and what they become in landing.

Belongs here: for each type in `source/types.py`, the JSON type to read, the conversion of a whole column, and what
happens to a value that has no home (the declared policy). Does not: records and their kinds (`landing/events.py`).
Two ways lead to the same values. `convert` takes a column at once and raises if any value needs a closer look;
`admit` then takes each value on its own, applies the policy, and returns one that `convert` takes.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_platform.source.types import SourceColumn, iceberg_type

if TYPE_CHECKING:
    import pyarrow as pa

_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")


class NoHomeError(Exception):
    """A value that its column can't hold, under the policy `error`. The message names no value."""


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reads one column's values."""

    iceberg: str  # The landing column's type.
    json_type: "pa.DataType"  # What pyarrow.json reads it as.
    convert: "Callable[[pa.Array], pa.Array]"  # From `json_type` to `arrow_type(iceberg)`; raises ArrowInvalid.
    admit: Callable[[object], object]  # One JSON value to one that `convert` takes; raises NoHomeError.


def value_reader(column: SourceColumn) -> ValueReader:
    """The reader of a column. Its type must be one that `iceberg_type` knows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    iceberg = iceberg_type(column.type) or "string"
    target = arrow_type(iceberg)
    spelled = {"binary": pa.string(), "date": pa.int32(), "timestamp": pa.int64(), "timestamptz": pa.string()}
    json_type = pa.string() if _DECIMAL.fullmatch(iceberg) else spelled.get(iceberg) or target

    def cast(values: "pa.Array") -> "pa.Array":
        return pc.cast(values, target)

    return ValueReader(iceberg, json_type, _decoded if iceberg == "binary" else cast, lambda value: value)


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


def _decoded(values: "pa.Array") -> "pa.Array":
    import pyarrow as pa

    decoded = [None if v is None else base64.b64decode(v, validate=True) for v in values.to_pylist()]
    return pa.array(decoded, pa.binary())
