"""PostgreSQL types, as SourceColumn has them: what they become, and what is decided about values without a home."""

import pytest

from cdc_platform.errors import ConfigError
from cdc_platform.lake.snapshot import Column
from cdc_platform.registry.model import POLICIES, Policy
from cdc_platform.source.types import HOMES, REFUSED, SourceColumn, home, iceberg_type, policy_of, refusal


@pytest.mark.parametrize(
    ("postgres", "iceberg"),
    [
        ("bigint", "long"),
        ("smallint", "int"),
        ("oid", "long"),
        ("numeric(12,2)", "decimal(12, 2)"),
        ("numeric(5)", "decimal(5, 0)"),
        ("numeric(38,38)", "decimal(38, 38)"),
        ("numeric(39,2)", "string"),  # Iceberg's decimal ends at 38 digits.
        ("numeric", "string"),  # No scale: any number of digits.
        ("numeric(3,-2)", "decimal(5, 0)"),  # 99900 has five digits.
        ("numeric(37,-2)", "string"),
        ("numeric(2,5)", "decimal(5, 5)"),  # 0.00099: scale over precision is PostgreSQL's alone.
        ("timestamp with time zone", "timestamptz"),
        ("timestamp(3) with time zone", "timestamptz"),
        ("timestamp without time zone", "timestamp"),
        ("timestamp(0) without time zone", "timestamp"),
        ("time(3) without time zone", "string"),
        ("time with time zone", "string"),
        ("interval", "string"),
        ("interval day to second(3)", "string"),
        ("character varying(20)", "string"),
        ("character(3)", "string"),
        ("uuid", "string"),
        ("double precision", "double"),
        ("bit(8)", "string"),
        ("bit varying(8)", None),
        ("enum", "string"),
        ("mood", None),  # The doctor says `enum`.
        ("composite", "string"),
        ("int4range", "string"),
        ("range", "string"),
        ("multirange", "string"),
        ("pg_lsn", "string"),
        ("vector(3)", "list<float>"),
        ("sparsevec(3)", None),
        ("hstore", None),
        ("geometry", None),
        ("integer[]", "list<int>"),
        ("numeric(4,1)[]", "list<decimal(4, 1)>"),
        ("numeric[]", "list<string>"),
        ("timestamp(3) without time zone[]", "list<timestamp>"),
        ("character varying(3)[]", "list<string>"),
        ("enum[]", "list<string>"),
        ("time without time zone[]", None),
        ("time(3) with time zone[]", None),
        ("interval[]", None),
        ("interval(3)[]", None),
        ("bit(3)[]", None),
        ("bit varying(3)[]", None),
        ("money[]", None),
        ("domain[]", None),
        ("composite[]", None),
        ("multirange[]", None),
        ("vector(3)[]", None),
    ],
)
def test_a_type_has_one_home_or_is_refused(postgres: str, iceberg: str | None) -> None:
    assert iceberg_type(postgres) == iceberg


def test_the_policy_string_makes_text_of_any_type_that_has_a_home_and_of_no_other() -> None:
    assert iceberg_type("date", "string") == "string"
    assert iceberg_type("numeric(12,2)", "string") == "string"
    assert iceberg_type("date", "clamp") == "date"
    assert iceberg_type("interval[]", "string") is None


def test_no_type_stands_twice_in_the_table_or_in_both() -> None:
    names = [name for found in HOMES for name in found.names]
    assert len(set(names)) == len(names)
    assert [name for name in REFUSED if home(name) is not None] == []


def test_a_type_without_a_home_says_why() -> None:
    assert refusal("bit varying(8)") == "Debezium does not send how long a value is"
    assert refusal("geometry") == "how it arrives is not known"


@pytest.mark.parametrize(
    ("postgres", "declared", "policy"),
    [
        ("numeric(12,2)", {}, "error"),
        ("numeric(12,2)", {"numeric": "null"}, "null"),
        ("numeric(12,2)", {"numeric": "null", "column.v": "string"}, "string"),
        ("numeric(12,2)", {"column.w": "string"}, "error"),
        ("numeric", {"numeric": "null"}, None),  # Text holds NaN.
        ("date", {"timestamp": "clamp"}, "error"),
        ("date", {"date": "clamp"}, "clamp"),
        ("integer[]", {"array": "null"}, "null"),
        ("date[]", {"date": "clamp"}, "error"),  # The array decides.
        ("text", {"date": "clamp"}, None),
        ("geometry", {}, None),
    ],
)
def test_a_column_has_its_own_policy_or_its_familys_or_the_default(
    postgres: str, declared: dict[str, Policy], policy: Policy | None
) -> None:
    assert policy_of(SourceColumn("v", postgres, False), declared) == policy


@pytest.mark.parametrize(
    ("postgres", "policy", "action"),
    [
        ("numeric(12,2)", "clamp", "Correct `column.v`: allowed are: error, null, string"),
        ("integer[]", "string", "Correct `column.v`: allowed are: error, null"),
        ("text", "null", "Correct `column.v`: it has no values to decide on"),
    ],
)
def test_a_policy_that_a_columns_type_does_not_have_is_refused(postgres: str, policy: Policy, action: str) -> None:
    with pytest.raises(ConfigError) as raised:
        policy_of(SourceColumn("v", postgres, False), {"column.v": policy})
    assert raised.value.action == action


def test_every_default_is_an_error_and_each_family_has_a_type() -> None:
    assert {policies[0] for policies in POLICIES.values()} == {"error"}
    assert {found.family for found in (*HOMES, home("integer[]")) if found is not None} == {*POLICIES, None}


@pytest.mark.parametrize(
    ("iceberg", "postgres"),
    [
        ("long", "bigint"),
        ("decimal(12, 2)", "numeric(12, 2)"),
        ("list<int>", "integer[]"),
        ("string", "text"),
    ],
)
def test_a_landing_column_alone_reads_as_a_type_that_lands_as_itself(iceberg: str, postgres: str) -> None:
    found = SourceColumn.of_landing(Column("v", iceberg, False, "a note"))
    assert found == SourceColumn("v", postgres, False, "a note")
    assert iceberg_type(found.type) == iceberg
