"""PostgreSQL's types: where in landing each lives, how the change log spells it, and what has no home.

Belongs here: the table of types (`HOMES`, `REFUSED`; docs/reference/types.md is generated from it) and the look-up.
Does not: reading a value (`landing/values.py`), looking up a column's type (`source/doctor.py`).
Rules: a value is never changed to fit unless its policy says so. Every line was measured on PostgreSQL 18 and Debezium
3.6.3 with our settings, by initial load and by stream; cdc_platform_tests/e2e/test_types.py measures it again. Only
citext and xml were not (no server at hand has them). A type that is in neither table is refused, too: what nobody has
seen may arrive as anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from cdc_platform.errors import ConfigError
from cdc_platform.lake.snapshot import Column
from cdc_platform.registry.model import OF_COLUMN, POLICIES, Policy, TypeFamily

Spelling = Literal[
    "json",  # As JSON's own boolean or number.
    "float",  # A JSON number, or the texts NaN, Infinity, -Infinity.
    "text",
    "decimal",  # Text of a number; NAN, POSITIVE_INFINITY and NEGATIVE_INFINITY are words.
    "base64",
    "opaque",  # Base64 of the text.
    "days",  # Since 1970-01-01.
    "micros",  # Since 1970-01-01 00:00.
    "instant",  # ISO 8601 in UTC, with years beyond four digits signed.
    "time",  # Microseconds since midnight.
    "timetz",  # ISO 8601, moved to UTC.
    "bits",  # bit(1) a boolean, else base64, the last bit first.
    "point",  # An object with x and y.
    "list",
]
_DECIMAL_DIGITS_MAX = 38  # Of Iceberg's decimal.
_FLOAT_KEY = "equal floats may be spelled in two ways (0 and -0), and Iceberg allows none as a key"
_TWO_SPELLINGS = "two spellings of it are equal in PostgreSQL, and different keys in landing"
_NO_EQUALITY = "it has no one spelling for one value"
_IN_A_BLOB = "landing compares keys as they are spelled, and this is a structure"
_YEARS = "before 0001-01-01, after 9999-12-31, ±infinity"


@dataclass(frozen=True, slots=True)
class Home:
    """A line of the table: PostgreSQL types that are read alike."""

    names: tuple[str, ...]
    landing: str  # Iceberg's type.
    spelling: Spelling
    family: TypeFamily | None = None  # Whose policy decides on a value without a home; None: an error always.
    no_key: str = ""  # Why it can't be a key; empty: it can.
    note: str = ""
    homeless: str = ""  # Values that the landing type can't hold.
    element: "Home | None" = None  # Of an array.


HOMES = (
    Home(("boolean",), "boolean", "json"),
    Home(("smallint", "integer"), "int", "json"),
    Home(("bigint", "oid"), "long", "json"),
    Home(("real",), "float", "float", no_key=_FLOAT_KEY, note="NaN and ±Infinity too."),
    Home(("double precision",), "double", "float", no_key=_FLOAT_KEY, note="NaN and ±Infinity too."),
    Home(
        ("numeric(p,s)",),
        "decimal(p, s)",
        "decimal",
        family="numeric",
        note="A negative scale is `decimal(p-s, 0)`, a scale beyond the precision `decimal(s, s)`.",
        homeless="NaN",
    ),
    Home(
        ("numeric",),
        "string",
        "decimal",
        no_key=_TWO_SPELLINGS + " (1.0 and 1.00)",
        note="PostgreSQL's text: 1.10 keeps its zero; NaN, Infinity, -Infinity. Also numeric(p,s) beyond 38 digits.",
    ),
    Home(
        ("money",),
        "decimal(19, 2)",
        "decimal",
        note="The number alone. Measured under lc_monetary C; a value that the driver can't read stops capture.",
        homeless="more than two fractional digits",
    ),
    Home(
        ("text", "character varying", '"char"', "name", "uuid", "enum"),
        "string",
        "text",
        note="As PostgreSQL writes it.",
    ),
    Home(("character",), "string", "text", note="With its padding: `ab   `."),
    Home(("bpchar",), "string", "text", no_key=_TWO_SPELLINGS + " (trailing spaces)"),
    Home(("citext",), "string", "text", no_key=_TWO_SPELLINGS + " (A and a)", note="Not measured."),
    Home(
        ("json", "jsonb"),
        "string",
        "text",
        no_key=_NO_EQUALITY,
        note="json as it was written, jsonb as PostgreSQL writes it; JSON's null is the text `null`.",
    ),
    Home(("xml",), "string", "text", no_key=_NO_EQUALITY, note="Not measured."),
    Home(("inet", "cidr"), "string", "text", note="PostgreSQL's output: a host without /32, as `SELECT` shows it."),
    Home(("macaddr", "macaddr8"), "string", "text"),
    Home(("bytea",), "binary", "base64"),
    Home(
        ("date",),
        "date",
        "days",
        family="date",
        note="An initial load (not the stream) brings a date BC without its BC, and 1582-10-05 to 14 ten days late: "
        "Debezium reads it as java.sql.Date. Nothing in the event shows it.",
        homeless=_YEARS,
    ),
    Home(("timestamp without time zone",), "timestamp", "micros", family="timestamp", homeless=_YEARS),
    Home(("timestamp with time zone",), "timestamptz", "instant", family="timestamptz", homeless=_YEARS),
    Home(
        ("time without time zone",),
        "string",
        "time",
        note="PostgreSQL's text, 24:00:00 too. Text because Spark 4.1 does not read Iceberg's time.",
    ),
    Home(
        ("time with time zone",),
        "string",
        "timetz",
        no_key=_TWO_SPELLINGS,
        note="Moved to UTC by Debezium (`07:04:56.5+00`): its zone is lost, and 24:00:00 becomes 00:00:00. A zone with "
        "seconds stops capture.",
    ),
    Home(
        ("interval",),
        "string",
        "text",
        no_key=_TWO_SPELLINGS + " (1 day and 24 hours)",
        note="ISO 8601 with every field: `P1Y2M3DT4H5M6.789S`. ±infinity (PostgreSQL 17) arrives as a zero interval: "
        "the driver does not know it, and nothing in the event shows it.",
    ),
    Home(
        ("bit",),
        "string",
        "bits",
        note="Zeros and ones, as many as declared.",
    ),
    Home(
        ("int4range", "int8range", "daterange", "tsrange"),
        "string",
        "text",
        note="As PostgreSQL writes it.",
    ),
    Home(("tstzrange",), "string", "text", note="As PostgreSQL writes it under TimeZone UTC."),
    Home(("numrange",), "string", "text", no_key=_TWO_SPELLINGS),
    Home(("tsvector",), "string", "text", no_key=_NO_EQUALITY),
    Home(
        ("point",),
        "string",
        "point",
        no_key=_NO_EQUALITY,
        note="PostgreSQL's text: `(1,2.5)`.",
    ),
    Home(
        ("box", "circle", "line", "lseg", "path", "polygon"),
        "string",
        "opaque",
        no_key=_NO_EQUALITY,
        note="As PostgreSQL's JDBC driver writes it: `(3.0,4.0),(1.0,2.0)`.",
    ),
    Home(
        ("pg_lsn", "xid", "xid8", "cid", "tid", "regclass", "regtype", "txid_snapshot", "pg_snapshot"),
        "string",
        "opaque",
        note="As PostgreSQL writes it.",
    ),
    Home(
        ("tsquery", "jsonpath", "composite", "range", "multirange"),
        "string",
        "opaque",
        no_key=_NO_EQUALITY,
        note="As PostgreSQL writes it. `composite` is a type made by CREATE TYPE ... AS (...), `range` one made by "
        "CREATE TYPE ... AS RANGE, `multirange` any.",
    ),
    Home(("vector", "halfvec"), "list<float>", "list", no_key=_IN_A_BLOB, element=Home(("real",), "float", "float")),
)
# Elements of which an array arrives whole.
_ELEMENTS = {
    *("boolean", "smallint", "integer", "bigint", "oid", "real", "double precision", "numeric"),
    *("text", "character varying", "character", '"char"', "uuid", "enum", "json", "jsonb", "bytea"),
    *("inet", "cidr", "macaddr", "macaddr8", "date", "timestamp without time zone", "timestamp with time zone"),
    *("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
}
REFUSED: Mapping[str, str] = {
    "bit varying": "Debezium does not send how long a value is",
    "bit[]": "Debezium can't convert it",
    "bit varying[]": "Debezium leaves it out of its events",
    "time without time zone[]": "Debezium cuts its microseconds off and makes 24:00:00 0",
    "time with time zone[]": "Debezium moves it to UTC without saying so",
    "interval[]": "Debezium leaves it out of its events",
    "money[]": "Debezium leaves it out of its events",
    "point[]": "Debezium leaves it out of its events",
    "name[]": "Debezium leaves it out of its events",
    "domain[]": "Debezium does not know the domain's elements",
    "composite[]": "Debezium does not know the type's elements",
    "tsvector[]": "Debezium can't convert a NULL in it",
    "sparsevec": "it arrives as a structure",
    "hstore": "it was never measured",
}
_BY_NAME = {name: home for home in HOMES for name in home.names}
ARRAY = Home(
    (),
    "list",
    "list",
    family="array",
    no_key=_IN_A_BLOB,
    note="Its lower bounds are not kept. A date or timestamptz BC in it arrives without its BC.",
    homeless="more than one dimension; nothing but NULLs (but for arrays of text), which looks the same; an element "
    "without a home. A NaN in numeric[] and a NULL in an array of enum stop capture: Debezium can't convert them",
)
_PARAMETERS = re.compile(r"^(.*?)\s*\((\d+)(?:,\s*(-?\d+))?\)(.*)$")
_OF_LANDING = {
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


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the source declares it.

    `type` is what format_type writes (`numeric(12,2)`, `integer[]`); of a domain, that of its base type; `enum` of an
    enumeration, `enum[]` of an array of them, and so `composite`, `range`, `multirange`, `domain[]`; empty when it is
    not known any more.
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
        return cls(column.name, _of_landing(column.type), column.required, column.doc)


def _of_landing(iceberg: str) -> str:
    if iceberg.startswith("list<"):
        return _of_landing(iceberg[5:-1]) + "[]"
    return iceberg.replace("decimal", "numeric") if iceberg.startswith("decimal") else _OF_LANDING.get(iceberg, "text")


def home(postgres: str) -> Home | None:
    """The home of a type as `SourceColumn.type` has it, or None when there is none."""
    if postgres.endswith("[]"):
        element = home(postgres.removesuffix("[]"))
        if element is None or base(postgres.removesuffix("[]")) not in _ELEMENTS:
            return None
        return replace(ARRAY, names=(postgres,), landing=f"list<{element.landing}>", element=element)
    name = base(postgres)
    if name == "numeric" and (match := _PARAMETERS.match(postgres)):
        digits, scale = int(match[2]), int(match[3] or 0)
        digits, scale = max(digits, scale) - min(scale, 0), max(scale, 0)
        if digits <= _DECIMAL_DIGITS_MAX:
            return replace(_BY_NAME["numeric(p,s)"], landing=f"decimal({digits}, {scale})")
    return _BY_NAME.get(name)


def base(postgres: str) -> str:
    """A type without its parameters: `timestamp with time zone` of `timestamp(3) with time zone`."""
    if postgres.startswith("interval"):
        return "interval[]" if postgres.endswith("[]") else "interval"
    match = _PARAMETERS.match(postgres)
    return match[1] + match[4] if match else postgres


def parameter(postgres: str) -> int | None:
    """The first parameter of a type: 8 of `bit(8)`."""
    match = _PARAMETERS.match(postgres)
    return int(match[2]) if match else None


def iceberg_type(postgres: str, policy: Policy | None = None) -> str | None:
    """The landing column's type, or None when the type has no home. Policy `string` holds every value as text."""
    found = home(postgres)
    if found is None:
        return None
    return "string" if policy == "string" else found.landing


def refusal(postgres: str) -> str:
    """Why a type without a home has none."""
    return REFUSED.get(base(postgres), "how it arrives is not known")


def policy_of(column: SourceColumn, declared: Mapping[str, Policy]) -> Policy | None:
    """What becomes of the column's values without a home; None when its type has none to decide on.

    Raises ConfigError when the policy declared for the column is not one of its type's.
    """
    found = home(column.type)
    own = declared.get(OF_COLUMN + column.name)
    family = found.family if found is not None else None
    allowed: tuple[Policy, ...] = POLICIES[family] if family is not None else ()
    if own is not None and own not in allowed:
        choices = f"allowed are: {', '.join(allowed)}" if allowed else "it has no values to decide on"
        raise ConfigError(
            f"column `{column.name}` has type {column.type}, and policy `{own}` is declared for it",
            where="tables.yaml: landing.types",
            action=f"Correct `{OF_COLUMN}{column.name}`: {choices}",
        )
    if family is None:
        return None
    return own or declared.get(family) or POLICIES[family][0]
