"""Values as Debezium spells them (each was seen), and what they become: at once, one by one, or not at all."""

import base64
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import json as pa_json

from cdc_platform.landing.values import UNAVAILABLE, NoHomeError, ValueReader, arrow_type, value_reader
from cdc_platform.registry.model import POLICIES, Policy
from cdc_platform.source.types import SourceColumn, home

TIMESTAMP, TIMESTAMPTZ = "timestamp without time zone", "timestamp with time zone"
TIME, TIMETZ = "time without time zone", "time with time zone"
LAST_US = 253_402_300_799_999_999
AN_HOUR_US = 3_600_000_000


def reader(postgres: str, policy: Policy | None = None) -> ValueReader:
    return value_reader(SourceColumn("v", postgres, False), policy)


def read(found: ValueReader, values: list[Any]) -> list[Any]:
    """The fast way: JSON lines, pyarrow's reader, `convert`."""
    lines = b"".join(json.dumps({"v": v}).encode() + b"\n" for v in values)
    parse = pa_json.ParseOptions(
        explicit_schema=pa.schema([("v", found.json_type)]), unexpected_field_behavior="ignore"
    )
    column = pa_json.read_json(pa.BufferReader(lines), parse_options=parse)["v"].combine_chunks()
    landed = found.convert(pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column)
    assert landed.type == arrow_type(found.iceberg)
    return landed.to_pylist()


def admitted(postgres: str, policy: Policy | None, value: Any) -> Any:
    """The slow way: `admit`, then the fast one."""
    found = reader(postgres, policy)
    return read(found, [found.admit(value)])[0]


def micros(text: str) -> int:
    return (datetime.fromisoformat(text + "+00:00") - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("postgres", "spelled", "landed"),
    [
        ("boolean", True, True),
        ("smallint", -32768, -32768),
        ("bigint", -(2**63), -(2**63)),
        ("oid", 4_294_967_295, 4_294_967_295),
        ("real", 1.4e-45, 1.401298464324817e-45),
        ("double precision", 5e-324, 5e-324),
        ("double precision", 123456789012345678.0, 123456789012345678.0),
        ("numeric(12,2)", "-9999999999.99", Decimal("-9999999999.99")),
        ("numeric(38,38)", "0." + "0" * 37 + "1", Decimal(1).scaleb(-38)),
        ("numeric(3,-2)", "99900." + "0" * 2046, Decimal(99900)),
        ("numeric(2,5)", "0.00099", Decimal("0.00099")),
        ("money", "-92233720368547758.08", Decimal("-92233720368547758.08")),
        ("numeric", "1.10", "1.10"),
        ("numeric", "NAN", "NaN"),
        ("numeric", "POSITIVE_INFINITY", "Infinity"),
        ("numeric", "NEGATIVE_INFINITY", "-Infinity"),
        ("numeric(37,-2)", "1200.00", "1200"),
        ("text", "NAN", "NAN"),
        ("text", '"\\\né😀', '"\\\né😀'),
        ("character(5)", "ab   ", "ab   "),
        ("jsonb", f'"{UNAVAILABLE}"', f'"{UNAVAILABLE}"'),  # JSON text of it is a value.
        ("bytea", "", b""),
        ("bytea", "3q2+7wD/", b"\xde\xad\xbe\xef\x00\xff"),
        ("date", 19782, date(2024, 2, 29)),
        ("date", -719_162, date(1, 1, 1)),
        ("date", 2_932_896, date(9999, 12, 31)),
        (TIMESTAMP, micros("2024-02-29T12:34:56.789012"), datetime(2024, 2, 29, 12, 34, 56, 789012)),
        (TIMESTAMP, -1, datetime(1969, 12, 31, 23, 59, 59, 999999)),
        (TIMESTAMP, micros("0001-01-01T00:00:00"), datetime(1, 1, 1)),
        (TIMESTAMP, LAST_US, datetime(9999, 12, 31, 23, 59, 59, 999999)),
        (TIMESTAMPTZ, "2024-02-29T12:34:56.789Z", datetime(2024, 2, 29, 12, 34, 56, 789000, UTC)),
        (TIMESTAMPTZ, "0001-01-01T00:00:00.000000Z", datetime(1, 1, 1, tzinfo=UTC)),
        (TIMESTAMPTZ, "9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
        (TIME, 0, "00:00:00"),
        (TIME, 45_296_789_010, "12:34:56.78901"),
        (TIME, 45_296_000_000, "12:34:56"),
        (TIME, 86_399_999_999, "23:59:59.999999"),
        (TIME, 86_400_000_000, "24:00:00"),
        (TIMETZ, "07:04:56.789012Z", "07:04:56.789012+00"),
        ("interval", "P0Y1M-1DT0H0M0S", "P0Y1M-1DT0H0M0S"),
        ("bit(1)", True, "1"),
        ("bit(1)", False, "0"),
        ("bit(3)", "BQ==", "101"),
        ("bit(8)", "AQ==", "00000001"),
        ("bit(70)", "AQAAAAAAAAAg", "1" + "0" * 68 + "1"),
        ("point", {"x": 1.0, "y": 2.5, "wkb": "AQE=", "srid": None}, "(1,2.5)"),
        ("point", {"x": 1e15, "y": -123456789012345680.0}, "(1e+15,-1.2345678901234568e+17)"),
        ("point", {"x": 999999999999999.0, "y": 1e-05}, "(999999999999999,1e-05)"),
        ("composite", "KDEseCk=", "(1,x)"),
        ("pg_lsn", "MTYvQjM3NEQ4NDg=", "16/B374D848"),
        ("integer[]", [1, None, 3], [1, None, 3]),
        ("integer[]", [], []),
        ("double precision[]", [0.1, None], [0.1, None]),
        ("numeric(4,1)[]", ["1.1", None], [Decimal("1.1"), None]),
        ("numeric[]", ["1.10"], ["1.10"]),
        ("text[]", ["a", "b,c", None, "NULL", ""], ["a", "b,c", None, "NULL", ""]),
        ("text[]", [None, None], [None, None]),
        ("date[]", [19723, None], [date(2024, 1, 1), None]),
        (f"{TIMESTAMPTZ}[]", ["2024-01-01T00:00:00.000000Z"], [datetime(2024, 1, 1, tzinfo=UTC)]),
        ("bytea[]", ["Af8=", None], [b"\x01\xff", None]),
        ("vector(3)", [1.0, 2.5, 3.0], [1.0, 2.5, 3.0]),
    ],
)
def test_a_value_with_a_home_lands_as_it_is_whatever_stands_beside_it(postgres: str, spelled: Any, landed: Any) -> None:
    assert read(reader(postgres), [spelled, None, spelled]) == [landed, None, landed]
    for policy in ("error", "null", "clamp"):
        assert admitted(postgres, policy, spelled) == landed


@pytest.mark.parametrize(
    ("postgres", "spelled"),
    [
        ("integer", 2**31),
        ("integer", 1.5),
        ("integer", "1"),
        ("boolean", 1),
        ("double precision", "NaN"),
        ("numeric(12,2)", "NAN"),
        ("numeric(12,2)", "1.105"),
        ("numeric(12,2)", "10000000000.00"),
        ("text", UNAVAILABLE),
        ("numeric", UNAVAILABLE),
        ("bytea", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        ("bytea", "3q2"),
        ("bytea", "3=q="),
        ("bytea", "===="),
        ("bytea", "3q2é"),
        ("date", -719_163),
        ("date", 2_932_897),
        ("date", -622_191_234),
        (TIMESTAMP, micros("0001-01-01T00:00:00") - 1),
        (TIMESTAMP, LAST_US + 1),
        (TIMESTAMP, 9_223_372_036_825_200_000),
        (TIMESTAMPTZ, "infinity"),
        (TIMESTAMPTZ, "0000-12-31T23:59:59.000000Z"),
        (TIMESTAMPTZ, "-0043-03-15T10:00:00.000000Z"),
        (TIMESTAMPTZ, "+10000-01-01T00:00:00.000000Z"),
        (TIME, -1),
        (TIME, 86_400_000_001),
        (TIMETZ, "07:04:56+02"),
        ("bit(3)", "CA=="),
        ("point", {"x": "NaN", "y": 1.0}),
        ("composite", "//8="),
        ("integer[]", [None]),
        ("integer[]", list(UNAVAILABLE.encode())),
        ("integer[]", [1, "2"]),
        ("text[]", ["a", "[Ljava.lang.String;@2e5cc73f"]),
        ("text[]", [UNAVAILABLE]),
        ("date[]", [19723, 2_932_897]),
        ("uuid[]", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    ],
)
def test_a_value_that_needs_a_closer_look_stops_its_whole_column(postgres: str, spelled: Any) -> None:
    with pytest.raises((pa.ArrowInvalid, ValueError)):
        read(reader(postgres), [spelled])


BEYOND = "a date or time beyond the years 1 to 9999"
DIMENSIONS = "an array of more than one dimension (or of nothing but NULLs, which looks the same)"


@pytest.mark.parametrize(
    ("postgres", "spelled", "reason", "clamped", "text"),
    [
        ("numeric(12,2)", "NAN", "NaN is no value of a decimal", None, "NaN"),
        ("date", 2_932_897, BEYOND, date(9999, 12, 31), "10000-01-01"),
        ("date", 2_145_042_905, BEYOND, date(9999, 12, 31), "5874897-12-31"),
        ("date", -719_163, BEYOND, date(1, 1, 1), "0001-12-31 BC"),
        ("date", -2_440_222, BEYOND, date(1, 1, 1), "4713-11-24 BC"),
        # As an initial load has it, then as the stream does.
        ("date", -622_191_234, BEYOND, date(9999, 12, 31), "infinity"),
        ("date", -2_147_472_692, BEYOND, date(9999, 12, 31), "infinity"),
        ("date", -625_821_272, BEYOND, date(1, 1, 1), "-infinity"),
        ("date", -2_147_472_691, BEYOND, date(1, 1, 1), "-infinity"),
        (TIMESTAMP, LAST_US + 1, BEYOND, datetime.max, "10000-01-01 00:00:00"),
        (TIMESTAMP, LAST_US + AN_HOUR_US, BEYOND, datetime.max, "10000-01-01 00:59:59.999999"),
        (TIMESTAMP, 9_223_339_708_800_000_000, BEYOND, datetime.max, "294246-01-01 00:00:00"),
        (TIMESTAMP, -62_135_596_801_000_000, BEYOND, datetime.min, "0001-12-31 23:59:59 BC"),
        (TIMESTAMP, -63_517_788_000_000_000, BEYOND, datetime.min, "0044-03-15 10:00:00 BC"),
        (TIMESTAMP, 9_223_372_036_825_200_000, BEYOND, datetime.max, "infinity"),
        (TIMESTAMP, -9_223_372_036_832_400_000, BEYOND, datetime.min, "-infinity"),
        (TIMESTAMPTZ, "infinity", BEYOND, datetime.max.replace(tzinfo=UTC), "infinity"),
        (TIMESTAMPTZ, "-infinity", BEYOND, datetime.min.replace(tzinfo=UTC), "-infinity"),
        (
            TIMESTAMPTZ,
            "+10000-01-01T00:00:00.500000Z",
            BEYOND,
            datetime.max.replace(tzinfo=UTC),
            "10000-01-01 00:00:00.5+00",
        ),
        (
            TIMESTAMPTZ,
            "0000-12-31T23:59:59.000000Z",
            BEYOND,
            datetime.min.replace(tzinfo=UTC),
            "0001-12-31 23:59:59+00 BC",
        ),
        (
            TIMESTAMPTZ,
            "-0043-03-15T10:00:00.000000Z",
            BEYOND,
            datetime.min.replace(tzinfo=UTC),
            "0044-03-15 10:00:00+00 BC",
        ),
        ("integer[]", [None, None], DIMENSIONS, None, None),
        ("text[]", ["[Ljava.lang.String;@2e5cc73f", "[Ljava.lang.String;@87f782b"], DIMENSIONS, None, None),
        ("uuid[]", ["[Ljava.util.UUID;@699e363f"], DIMENSIONS, None, None),
        ("inet[]", ["[Ljava.lang.Object;@647b111e"], DIMENSIONS, None, None),
        ("date[]", [19723, 2_932_897], f"an element of an array: {BEYOND}", None, None),
    ],
)
def test_a_value_without_a_home_is_what_the_policy_says(
    postgres: str, spelled: Any, reason: str, clamped: Any, text: str | None
) -> None:
    for policy in (None, "error"):
        with pytest.raises(NoHomeError) as raised:
            admitted(postgres, policy, spelled)
        assert str(raised.value) == reason
    assert admitted(postgres, "null", spelled) is None
    found = home(postgres)
    assert found is not None
    assert found.family is not None
    if "clamp" in POLICIES[found.family]:
        assert admitted(postgres, "clamp", spelled) == clamped
    if "string" in POLICIES[found.family]:
        assert read(reader(postgres, "string"), [None, spelled, spelled]) == [None, text, text]


@pytest.mark.parametrize(
    ("postgres", "spelled", "text"),
    [
        ("numeric(12,2)", "1.10", "1.10"),
        ("numeric(3,-2)", "99900." + "0" * 2046, "99900"),
        ("date", 19782, "2024-02-29"),
        ("date", -141_422, "1582-10-20"),
        (TIMESTAMP, micros("2024-02-29T12:34:56.5"), "2024-02-29 12:34:56.5"),
        (TIMESTAMP, micros("2024-10-10T10:10:10"), "2024-10-10 10:10:10"),
        (TIMESTAMP, micros("0001-01-01T00:00:00"), "0001-01-01 00:00:00"),
        (TIMESTAMPTZ, "2024-02-29T12:34:50.000000Z", "2024-02-29 12:34:50+00"),
        (TIMESTAMPTZ, "2024-02-29T12:34:56.120Z", "2024-02-29 12:34:56.12+00"),
    ],
)
def test_the_policy_string_spells_every_value_as_postgresql_does(postgres: str, spelled: Any, text: str) -> None:
    found = reader(postgres, "string")
    assert found.iceberg == "string"
    assert read(found, [spelled, None]) == [text, None]
    assert found.admit(spelled) == spelled


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_float_holds_what_is_no_number(value: str) -> None:
    for postgres in ("real", "double precision"):
        assert repr(admitted(postgres, None, value)) == repr(float(value))
    assert repr(admitted("double precision[]", None, [0.5, value])) == repr([0.5, float(value)])
    assert admitted("point", None, {"x": value, "y": 1.0}) == f"({value},1)"


@pytest.mark.parametrize(
    ("postgres", "spelled"),
    [
        ("text", UNAVAILABLE),
        ("jsonb", UNAVAILABLE),
        ("numeric", UNAVAILABLE),
        ("numeric(12,2)", UNAVAILABLE),
        ("int4range", UNAVAILABLE),
        ("bytea", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        ("multirange", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        ("integer[]", list(UNAVAILABLE.encode())),
        ("date[]", list(UNAVAILABLE.encode())),
        ("text[]", [UNAVAILABLE]),
        ("uuid[]", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
        ("bytea[]", ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
    ],
)
@pytest.mark.parametrize("policy", ["error", "null", "clamp", "string"])
def test_nothing_lands_for_an_unchanged_toast_value_under_any_policy(
    postgres: str, spelled: Any, policy: Policy
) -> None:
    with pytest.raises((pa.ArrowInvalid, ValueError)):
        read(reader(postgres, policy), [spelled])
    with pytest.raises(NoHomeError, match=r"^unavailable: "):
        reader(postgres, policy).admit(spelled)


@pytest.mark.parametrize("policy", ["error", "null", "clamp", "string"])
def test_what_is_no_value_of_the_type_is_admitted_and_then_refused(policy: Policy) -> None:
    for postgres, spelled in (("date", "soon"), ("numeric(12,2)", "much"), (TIMESTAMPTZ, "soon"), ("integer", "one")):
        found = reader(postgres, policy)
        assert found.admit(spelled) == spelled
        if (postgres, policy) != ("numeric(12,2)", "string"):  # Text holds any text.
            with pytest.raises((pa.ArrowInvalid, ValueError)):
                read(found, [spelled])


def test_a_time_whose_microseconds_overflowed_is_late_and_has_no_text() -> None:
    overflown = -9_223_372_036_853_775_810  # 294276-12-31 23:59:59.999999.
    assert admitted(TIMESTAMP, "clamp", overflown) == datetime.max
    with pytest.raises(NoHomeError, match="microseconds end there"):
        admitted(TIMESTAMP, "string", overflown)
    with pytest.raises(ValueError, match="overflow"):
        read(reader(TIMESTAMP, "string"), [overflown])


@given(st.lists(st.none() | st.binary(max_size=9)), st.integers(0, 3))
def test_bytes_are_decoded_together_as_they_would_be_one_by_one(values: list[bytes | None], skipped: int) -> None:
    spelled = pa.array([None if v is None else base64.b64encode(v).decode() for v in values], pa.string())
    assert reader("bytea").convert(spelled.slice(skipped)).to_pylist() == values[skipped:]


@given(st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3)), st.integers(0, 3))
def test_an_array_lands_whole_unless_it_is_all_nulls(values: list[list[int | None] | None], skipped: int) -> None:
    found, kept = reader("integer[]"), values[skipped:]
    column = pa.array(values, found.json_type).slice(skipped)
    if any(v and not any(e is not None for e in v) for v in kept):
        with pytest.raises(ValueError, match="more than one dimension"):
            found.convert(column)
    else:
        assert found.convert(column).to_pylist() == kept


@given(st.dates())
def test_a_date_beyond_pythons_years_is_counted_as_python_counts_within_them(day: date) -> None:
    days = (day - date(1970, 1, 1)).days
    [later] = read(reader("date", "string"), [days + 25 * 146_097])  # 25 times 400 years.
    assert later == f"{day.year + 10_000}{day.isoformat()[4:]}"
