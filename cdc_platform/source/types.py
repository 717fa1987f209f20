"""PostgreSQL column types as Iceberg types, and what has no home yet.

Belongs here: the map. Does not: how Debezium spells a value (`landing/events.py`).
Rule: a value is never changed to fit. numeric keeps precision and scale where Iceberg's decimal can hold them;
without them it is text, as Debezium sends it. A type that is not in the map is refused at start, by name.
"""

import re
from dataclasses import dataclass
from typing import Self

from cdc_platform.lake.snapshot import Column

_EXACT = {
    "boolean": "boolean",
    "smallint": "int",
    "integer": "int",
    "bigint": "long",
    "real": "float",
    "double precision": "double",
    "bytea": "binary",
    "date": "date",
}
_AS_TEXT = {
    "text",
    "character varying",
    "character",
    "name",
    "citext",
    "uuid",
    "json",
    "jsonb",
    "xml",
    "inet",
    "cidr",
    "macaddr",
    "macaddr8",
    "interval",
}
_ICEBERG = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}
_PARAMETERS = re.compile(r"^([a-z ]+?)\s*\((\d+)(?:,\s*(-?\d+))?\)(.*)$")
_DECIMAL_DIGITS_MAX = 38


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the source declares it.

    `type` is what format_type writes (`numeric(12,2)`, `integer[]`); of a domain, that of its base type; `enum` of an
    enumeration, `enum[]` of an array of them; empty when it is not known any more.
    """

    name: str
    type: str
    required: bool
    doc: str = ""
    number: int = 0  # Its own for good, whatever it is called (PostgreSQL's attnum); 0: not known.
    filled: bool = False  # Rows that were there before the column may hold a value in it that no event told.

    @classmethod
    def of_landing(cls, column: Column) -> Self:
        """What a landing column reads as when nothing says which type the source has."""
        if column.type.startswith("decimal"):
            return cls(column.name, column.type.replace("decimal", "numeric"), column.required, column.doc)
        return cls(column.name, _ICEBERG.get(column.type, "text"), column.required, column.doc)


def iceberg_type(postgres: str, *, is_enum: bool = False) -> str | None:
    """The Iceberg type for a type as `format_type` writes it, or None when it has no home."""
    match = _PARAMETERS.match(postgres)
    base = (match[1] + match[4]).strip() if match else postgres
    if base == "numeric":
        if match is None:
            return "string"
        digits, scale = int(match[2]), int(match[3] or 0)
        fits = digits <= _DECIMAL_DIGITS_MAX and 0 <= scale <= digits
        return f"decimal({digits}, {scale})" if fits else "string"
    if base in {"timestamp with time zone", "timestamp without time zone"}:
        return "timestamptz" if base.endswith("with time zone") and "without" not in base else "timestamp"
    if base in _AS_TEXT or is_enum:
        return "string"
    return _EXACT.get(base)
