"""How the change log spells a column's values, and what they become in landing.

Belongs here: for each spelling in `source/types.py`, the JSON type to read, the conversion of a whole column, and what
happens to a value that has no home (the declared policy). Does not: records and their kinds (`landing/events.py`).
Two ways lead to the same values. `convert` takes a column at once and raises if any value needs a closer look;
`admit` then takes each value on its own, applies the policy, and returns one that `convert` takes. What is no value of
the type at all passes `admit`, and `convert` refuses it.
Rules: an update that left a large value alone (unchanged TOAST) carries a placeholder instead of it unless REPLICA
IDENTITY is FULL. It says nothing of the value, so under no policy does anything land for it. A date or time has a home
from year 1 to 9999: what Spark, DuckDB and Python all read.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import base64
import binascii
import hashlib
import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from cdc_platform.registry.model import Policy
from cdc_platform.source.types import Home, SourceColumn, Spelling, home, parameter

if TYPE_CHECKING:
    import pyarrow as pa

_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")
_LIST = re.compile(r"list<(.+)>")

# Debezium's stand-in for an unchanged TOAST value (`unavailable.value.placeholder`), as each type's values carry it.
UNAVAILABLE = "__debezium_unavailable_value"
_UNAVAILABLE_BYTES = base64.b64encode(UNAVAILABLE.encode()).decode()
_UNAVAILABLE_CODES = list(UNAVAILABLE.encode())
# java.util.UUID.nameUUIDFromBytes of it.
_UNAVAILABLE_UUID = str(uuid.UUID(bytes=hashlib.md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3))
_UNAVAILABLE_ELEMENTS = (UNAVAILABLE, _UNAVAILABLE_BYTES, _UNAVAILABLE_UUID)
_IS_UNAVAILABLE = (
    "unavailable: the update left a large value alone and does not carry it (REPLICA IDENTITY is not FULL)"
)

_WORDS = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31.
_DAY_US = 86_400_000_000
_FIRST_US, _LAST_US = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
_FIRST_INSTANT, _LAST_INSTANT = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"
# PostgreSQL's first date is 4714-11-24 BC, day -2,440,588: what lies before it is Debezium's infinity. An initial load
# and a stream differ (seen, 3.6.3, in UTC and in New York).
_EARLIEST_DAY = -2_440_588
_INFINITE_DAYS = {
    -622_191_234: "infinity",
    -2_147_472_692: "infinity",
    -625_821_272: "-infinity",
    -2_147_472_691: "-infinity",
}
_INFINITE_US = {9_223_372_036_825_200_000: "infinity", -9_223_372_036_832_400_000: "-infinity"}
_EARLIEST_US = _EARLIEST_DAY * _DAY_US
_BEYOND = "a date or time beyond the years 1 to 9999"

_JAVA_ARRAY = r"^\[(L[\w.$]+;|\[*[A-Z])@[0-9a-f]+$"  # What Java prints for an array inside an array.


class NoHomeError(Exception):
    """A value that its column can't hold, under the policy `error`. The message names no value."""


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reads one column's values."""

    iceberg: str  # The landing column's type.
    json_type: "pa.DataType"  # What pyarrow.json reads it as.
    convert: "Callable[[pa.Array], pa.Array]"  # From `json_type` to `arrow_type(iceberg)`; raises ArrowInvalid.
    admit: Callable[[object], object]  # One JSON value to one that `convert` takes; raises NoHomeError.


def value_reader(column: SourceColumn, policy: Policy | None = None) -> ValueReader:
    """The reader of a column; one whose type has no home (which the doctor refuses) reads as text.

    `policy` is what `source/types.py`'s `policy_of` says; without one, a value without a home is an error.
    """
    found = home(column.type) or Home((), "string", "text")
    return _READERS[found.spelling](found, column.type, policy or "error")


def arrow_type(iceberg: str) -> "pa.DataType":
    """The Arrow type of an Iceberg type."""
    import pyarrow as pa

    if match := _DECIMAL.fullmatch(iceberg):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := _LIST.fullmatch(iceberg):
        return pa.list_(arrow_type(match[1]))
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


def _ruled(policy: Policy, reason: str, *, clamped: object = None) -> object:
    """What a value without a home becomes."""
    if policy == "null":
        return None
    if policy == "clamp" and clamped is not None:
        return clamped
    raise NoHomeError(reason)


def _refuse(found: "pa.Scalar | bool", what: str) -> None:
    """Send the column the slow way: `what` is for the log of a mistake, it names no value."""
    if found if isinstance(found, bool) else found.as_py():
        raise ValueError(f"a value needs a closer look: {what}")


# ---- Numbers and text -----------------------------------------------------------------------------------


def _json(found: Home, _type: str, _policy: Policy) -> ValueReader:
    target = arrow_type(found.landing)
    return ValueReader(found.landing, target, lambda values: values, lambda value: value)


def _float(found: Home, _type: str, _policy: Policy) -> ValueReader:
    def admit(value: object) -> object:
        return _FLOATS.get(value, value) if isinstance(value, str) else value

    return ValueReader(found.landing, arrow_type(found.landing), lambda values: values, admit)


def _text(found: Home, _type: str, _policy: Policy) -> ValueReader:
    import pyarrow as pa

    return ValueReader(found.landing, pa.string(), _available, _admit_text)


def _available(values: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    _refuse(pc.any(pc.equal(values, UNAVAILABLE)), "unavailable")
    return values


def _admit_text(value: object) -> object:
    if value == UNAVAILABLE:
        raise NoHomeError(_IS_UNAVAILABLE)
    return value


def _decimal(found: Home, postgres: str, policy: Policy) -> ValueReader:
    """A number as text: a decimal, or its text where the type or the policy says so."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # A negative scale comes with thousands of zeros behind a point (seen, 3.6.3).
    has_zeros = "(" in postgres and ",-" in postgres.replace(" ", "")

    def plain(values: "pa.Array") -> "pa.Array":
        return pc.replace_substring_regex(values, r"\.0+$", "") if has_zeros else values

    if found.landing == "string" or policy == "string":

        def as_text(values: "pa.Array") -> "pa.Array":
            words = pc.index_in(values, value_set=pa.array([UNAVAILABLE, *_WORDS]))
            if words.null_count == len(words):
                return plain(values)
            _refuse(pc.any(pc.equal(words, 0)), "unavailable")
            spelled = pc.take(pa.array(["", *_WORDS.values()]), words)
            return pc.coalesce(spelled, plain(values))

        return ValueReader("string", pa.string(), as_text, _admit_text)

    target = arrow_type(found.landing)

    def admit(value: object) -> object:
        _admit_text(value)
        if value in _WORDS:
            return _ruled(policy, f"{_WORDS[cast('str', value)]} is no value of a decimal")
        return value

    return ValueReader(found.landing, pa.string(), lambda values: pc.cast(plain(values), target), admit)


def _point(found: Home, _type: str, _policy: Policy) -> ValueReader:
    import pyarrow as pa

    def convert(values: "pa.Array") -> "pa.Array":
        return pa.array(
            [None if v is None else f"({_float8(v['x'])},{_float8(v['y'])})" for v in values.to_pylist()], pa.string()
        )

    def admit(value: object) -> object:
        if not isinstance(value, dict):
            return value
        point = cast("dict[str, object]", value)
        return {axis: _FLOATS.get(str(point.get(axis)), point.get(axis)) for axis in ("x", "y")}

    return ValueReader(found.landing, pa.struct([("x", pa.float64()), ("y", pa.float64())]), convert, admit)


def _float8(value: float) -> str:
    """As PostgreSQL writes it: the shortest digits, an exponent from 1e15 on."""
    if not math.isfinite(value):
        return next(
            text for text, number in _FLOATS.items() if number == value or (text == "NaN" and math.isnan(value))
        )
    text = repr(value)
    if "e" not in text and abs(value) >= 1e15:
        digits = text.removesuffix(".0").lstrip("-")
        significant = digits.rstrip("0")
        fraction = f".{significant[1:]}" if len(significant) > 1 else ""
        return f"{'-' if value < 0 else ''}{significant[0]}{fraction}e+{len(digits) - 1}"
    return text.removesuffix(".0")


# ---- Bytes ----------------------------------------------------------------------------------------------


def _base64(found: Home, _type: str, _policy: Policy) -> ValueReader:
    import pyarrow as pa

    return ValueReader(found.landing, pa.string(), _decoded, _admit_base64)


def _opaque(found: Home, _type: str, _policy: Policy) -> ValueReader:
    import pyarrow as pa
    import pyarrow.compute as pc

    return ValueReader(found.landing, pa.string(), lambda values: pc.cast(_decoded(values), pa.string()), _admit_base64)


def _admit_base64(value: object) -> object:
    if value == _UNAVAILABLE_BYTES:
        raise NoHomeError(_IS_UNAVAILABLE)
    return value


def _decoded(values: "pa.Array") -> "pa.Array":
    """All values at once: each is whole groups of four, so that they decode as one text without its padding."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    _refuse(pc.any(pc.equal(values, _UNAVAILABLE_BYTES)), "unavailable")
    valid = None
    if values.null_count:
        valid = values.is_valid()
        values = pc.fill_null(values, "")
    count = len(values)
    _, offset_buffer, data_buffer = values.buffers()
    if not count or data_buffer is None:
        return pa.array([None] * count, pa.binary()) if valid is not None else pa.array([b""] * count, pa.binary())
    offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    text = data_buffer[int(offsets[0]) : int(offsets[-1])].to_pybytes()
    lengths = ends - starts
    _refuse(bool((lengths % 4).any()), "no base64")
    letters = np.frombuffer(text, np.uint8)
    filled = lengths > 0
    last = ends[filled] - 1
    padding = np.zeros(count, np.int64)
    is_padding = letters == ord("=")
    padding[filled] = is_padding[last].astype(np.int64) + (is_padding[last] & is_padding[last - 1])
    _refuse(int(is_padding.sum()) != int(padding.sum()), "no base64")
    decoded = binascii.a2b_base64(text.replace(b"=", b"A"), strict_mode=True)
    sizes = lengths // 4 * 3 - padding
    if padding.any():
        keep = np.ones(len(decoded), bool)
        group_ends = ends // 4 * 3
        keep[group_ends[padding >= 1] - 1] = False
        keep[group_ends[padding == 2] - 2] = False
        decoded = np.frombuffer(decoded, np.uint8)[keep].tobytes()
    ends_decoded = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    validity = None
    if valid is not None:
        validity = pa.py_buffer(np.packbits(valid.to_numpy(zero_copy_only=False), bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(ends_decoded.tobytes()), pa.py_buffer(decoded)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _bits(found: Home, postgres: str, _policy: Policy) -> ValueReader:
    import pyarrow as pa
    import pyarrow.compute as pc

    width = parameter(postgres) or 1
    if width == 1:
        return ValueReader(
            found.landing, pa.bool_(), lambda values: pc.if_else(values, pa.scalar("1"), "0"), lambda value: value
        )

    def bits(value: bytes) -> str:
        number = int.from_bytes(value, "little")
        _refuse(number.bit_length() > width, "more bits than declared")
        return f"{number:0{width}b}"

    def convert(values: "pa.Array") -> "pa.Array":
        return pa.array([None if v is None else bits(v) for v in _decoded(values).to_pylist()], pa.string())

    return ValueReader(found.landing, pa.string(), convert, _admit_base64)


# ---- Dates and times ------------------------------------------------------------------------------------


def _days(found: Home, _type: str, policy: Policy) -> ValueReader:
    import pyarrow as pa

    def admit(value: object) -> object:
        if not isinstance(value, int) or _FIRST_DAY <= value <= _LAST_DAY:
            return value
        if value < _EARLIEST_DAY and value not in _INFINITE_DAYS:
            raise NoHomeError("no date that PostgreSQL knows")
        if policy == "string":
            return value
        is_after = value > 0 or _INFINITE_DAYS.get(value) == "infinity"
        return _ruled(policy, _BEYOND, clamped=_LAST_DAY if is_after else _FIRST_DAY)

    if policy == "string":

        def as_text(values: "pa.Array") -> "pa.Array":
            return _with_text_beyond(values, _FIRST_DAY, _LAST_DAY, pa.date32(), _day_text)

        return ValueReader("string", pa.int32(), as_text, admit)
    return ValueReader(found.landing, pa.int32(), lambda v: _within(v, _FIRST_DAY, _LAST_DAY, pa.date32()), admit)


def _micros(found: Home, _type: str, policy: Policy) -> ValueReader:
    import pyarrow as pa

    def admit(value: object) -> object:
        if not isinstance(value, int) or _FIRST_US <= value <= _LAST_US:
            return value
        has_overflown = value < _EARLIEST_US and value not in _INFINITE_US  # Beyond 294247-01-10.
        if policy == "string":
            if has_overflown:
                raise NoHomeError("a time after 294247-01-10: Debezium's microseconds end there")
            return value
        return _ruled(policy, _BEYOND, clamped=_LAST_US if value > 0 or has_overflown else _FIRST_US)

    if policy == "string":

        def as_text(values: "pa.Array") -> "pa.Array":
            return _with_text_beyond(values, _FIRST_US, _LAST_US, pa.timestamp("us"), _micros_text)

        return ValueReader("string", pa.int64(), as_text, admit)
    return ValueReader(found.landing, pa.int64(), lambda v: _within(v, _FIRST_US, _LAST_US, pa.timestamp("us")), admit)


def _within(values: "pa.Array", first: int, last: int, target: "pa.DataType") -> "pa.Array":
    import pyarrow.compute as pc

    ends = pc.min_max(values)
    _refuse(
        values.null_count < len(values) and not first <= ends["min"].as_py() <= ends["max"].as_py() <= last, "range"
    )
    return pc.cast(values, target)


def _with_text_beyond(
    values: "pa.Array", first: int, last: int, target: "pa.DataType", beyond: Callable[[int], str]
) -> "pa.Array":
    """As text: the many values in range at once, the others one by one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    out = pc.fill_null(pc.or_(pc.less(values, first), pc.greater(values, last)), False)
    text = pc.cast(pc.cast(pc.if_else(out, pa.scalar(0, values.type), values), target), pa.string())
    if pa.types.is_timestamp(target):
        text = _without_zeros(text)
    if not pc.any(out).as_py():
        return text
    return pc.replace_with_mask(text, out, pa.array([beyond(v) for v in values.filter(out).to_pylist()], pa.string()))


def _without_zeros(text: "pa.Array") -> "pa.Array":
    """A second's six digits without the zeros at their end, as PostgreSQL writes them."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(text, r"\.?0+$", "")


def _day_text(days: int) -> str:
    if days < _EARLIEST_DAY:
        _refuse(days not in _INFINITE_DAYS, "no date of PostgreSQL's")
        return _INFINITE_DAYS[days]
    year, month, day = _civil(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}{'' if year > 0 else ' BC'}"


def _micros_text(micros: int) -> str:
    if micros in _INFINITE_US:
        return _INFINITE_US[micros]
    _refuse(micros < _EARLIEST_US, "an overflow of Debezium's")
    days, rest = divmod(micros, _DAY_US)
    date, _, bc = _day_text(days).partition(" ")
    return f"{date} {_clock(rest)}{' ' if bc else ''}{bc}"


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}" + (f".{fraction:06d}".rstrip("0") if fraction else "")


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day since 1970-01-01 in the proleptic Gregorian calendar; year 0 is 1 BC.

    Python's own dates end at the year 9999. Counted in eras of 400 years from 0000-03-01 (H. Hinnant,
    "chrono-Compatible Low-Level Date Algorithms").
    """
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153  # Months since March.
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + 400 * era + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def _instant(found: Home, _type: str, policy: Policy) -> ValueReader:
    import pyarrow as pa
    import pyarrow.compute as pc

    target = pa.timestamp("us", "UTC")

    def convert(values: "pa.Array") -> "pa.Array":
        read = pc.cast(values, target)  # Refuses infinity, and years that are not of four digits.
        first = pc.min(pc.cast(read, pa.int64())).as_py()
        _refuse(first is not None and first < _FIRST_US, "range")  # Year 0, which is 1 BC.
        return read

    def admit(value: object) -> object:
        _admit_text(value)
        if policy == "string" or not isinstance(value, str) or not _is_beyond(value):
            return value
        return _ruled(policy, _BEYOND, clamped=_FIRST_INSTANT if value[0] in "-0" else _LAST_INSTANT)

    def as_text(values: "pa.Array") -> "pa.Array":
        try:
            text = pc.cast(pc.cast(convert(values), pa.timestamp("us")), pa.string())
        except (pa.ArrowInvalid, ValueError):
            return pa.array([None if v is None else _instant_text(v) for v in values.to_pylist()], pa.string())
        return pc.binary_join_element_wise(_without_zeros(text), "+00", "")

    if policy == "string":
        return ValueReader("string", pa.string(), as_text, admit)
    return ValueReader(found.landing, pa.string(), convert, admit)


_INSTANT = re.compile(r"([+-]?\d{4,})(-\d\d-\d\d)T(\d\d:\d\d:\d\d(?:\.\d+)?)Z")


def _is_beyond(value: str) -> bool:
    return value in {"infinity", "-infinity"} or (value[:1] in {"+", "-"} or value.startswith("0000-"))


def _instant_text(value: str) -> str:
    """As PostgreSQL writes it under TimeZone UTC."""
    if value in {"infinity", "-infinity"}:
        return value
    match = _INSTANT.fullmatch(value)
    if match is None:
        raise ValueError("a value needs a closer look: no timestamptz of Debezium's")
    year = int(match[1])
    clock = match[3].rstrip("0").rstrip(".") if "." in match[3] else match[3]
    return f"{year if year > 0 else 1 - year:04d}{match[2]} {clock}+00{'' if year > 0 else ' BC'}"


def _time(found: Home, _type: str, _policy: Policy) -> ValueReader:
    import pyarrow as pa
    import pyarrow.compute as pc

    def convert(values: "pa.Array") -> "pa.Array":
        _refuse(pc.any(pc.or_(pc.less(values, 0), pc.greater(values, _DAY_US))), "range")
        is_end = pc.equal(values, _DAY_US)  # 24:00:00.
        inside = pc.if_else(is_end, pa.scalar(0, pa.int64()), values)
        text = _without_zeros(pc.cast(pc.cast(inside, pa.time64("us")), pa.string()))
        return pc.if_else(is_end, "24:00:00", text) if pc.any(is_end).as_py() else text

    return ValueReader(found.landing, pa.int64(), convert, lambda value: value)


def _timetz(found: Home, _type: str, _policy: Policy) -> ValueReader:
    import pyarrow as pa
    import pyarrow.compute as pc

    def convert(values: "pa.Array") -> "pa.Array":
        _refuse(pc.invert(pc.all(pc.ends_with(values, "Z"))), "no time in UTC")
        return pc.replace_substring(values, "Z", "+00")

    return ValueReader(found.landing, pa.string(), convert, _admit_text)


# ---- Arrays ---------------------------------------------------------------------------------------------


def _list(found: Home, postgres: str, policy: Policy) -> ValueReader:
    """An array, whole or not at all: an element without a home is the array's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    assert found.element is not None, "a list has elements"
    of = postgres.removesuffix("[]")
    element = _READERS[found.element.spelling](found.element, of, "error")
    # Debezium prints what Java prints for the inner array of these; of all others it makes a NULL.
    prints = element.json_type == pa.string() and found.element.spelling in {"text", "opaque"}

    def convert(values: "pa.Array") -> "pa.Array":
        inner = values.flatten()
        if prints:
            _refuse(pc.any(pc.match_substring_regex(inner, _JAVA_ARRAY)), "more than one dimension")
            _refuse(pc.any(pc.is_in(inner, value_set=pa.array(_UNAVAILABLE_ELEMENTS))), "unavailable")
        elif inner.null_count:
            said = pc.list_parent_indices(values).filter(inner.is_valid())
            filled = pc.sum(pc.greater(pc.list_value_length(values), 0)).as_py()
            _refuse(pc.count_distinct(said).as_py() < filled, "more than one dimension")
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        if pa.types.is_integer(element.json_type):
            _refuse(pc.any(pc.equal(lengths, len(_UNAVAILABLE_CODES))) and _holds_codes(values), "unavailable")
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(pc.cumulative_sum(lengths), pa.int32())])
        mask = values.is_null() if values.null_count else None
        return pa.ListArray.from_arrays(offsets, element.convert(inner), mask=mask)

    def admit(value: object) -> object:
        if not isinstance(value, list):
            return value
        elements = cast("list[object]", value)
        if elements == _UNAVAILABLE_CODES or (len(elements) == 1 and elements[0] in _UNAVAILABLE_ELEMENTS):
            raise NoHomeError(_IS_UNAVAILABLE)
        if elements and all(_is_inner_array(e, prints=prints) for e in elements):
            return _ruled(policy, "an array of more than one dimension (or of nothing but NULLs, which looks the same)")
        try:
            return [element.admit(e) if e is not None else None for e in elements]
        except NoHomeError as error:
            if str(error) == _IS_UNAVAILABLE:
                raise
            return _ruled(policy, f"an element of an array: {error}")

    return ValueReader(found.landing, pa.list_(element.json_type), convert, admit)


def _holds_codes(values: "pa.Array") -> bool:
    return any(v == _UNAVAILABLE_CODES for v in values.to_pylist())


def _is_inner_array(element: object, *, prints: bool) -> bool:
    if prints:
        return isinstance(element, str) and re.match(_JAVA_ARRAY, element) is not None
    return element is None


_READERS: Mapping[Spelling, Callable[[Home, str, Policy], ValueReader]] = {
    "json": _json,
    "float": _float,
    "text": _text,
    "decimal": _decimal,
    "base64": _base64,
    "opaque": _opaque,
    "days": _days,
    "micros": _micros,
    "instant": _instant,
    "time": _time,
    "timetz": _timetz,
    "bits": _bits,
    "point": _point,
    "list": _list,
}
