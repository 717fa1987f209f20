"""PostgreSQL types, as format_type writes them, and what they become."""

import pytest

from cdc_platform.source.types import iceberg_type


@pytest.mark.parametrize(
    ("postgres", "iceberg"),
    [
        ("bigint", "long"),
        ("smallint", "int"),
        ("numeric(12,2)", "decimal(12, 2)"),
        ("numeric(5)", "decimal(5, 0)"),
        ("numeric(38,38)", "decimal(38, 38)"),
        ("numeric", "string"),  # No scale: any number of digits.
        ("numeric(39,2)", "string"),  # Iceberg's decimal ends at 38 digits.
        ("numeric(3,-2)", "string"),
        ("numeric(2,5)", "string"),  # Scale over precision is PostgreSQL's alone.
        ("timestamp with time zone", "timestamptz"),
        ("timestamp(3) with time zone", "timestamptz"),
        ("timestamp without time zone", "timestamp"),
        ("timestamp(0) without time zone", "timestamp"),
        ("character varying(20)", "string"),
        ("character(3)", "string"),
        ("uuid", "string"),
        ("double precision", "double"),
        ("time without time zone", None),
        ("integer[]", None),
        ("numeric(4,1)[]", None),
        ("int4range", None),
    ],
)
def test_a_type_has_one_home_or_is_refused(postgres: str, iceberg: str | None) -> None:
    assert iceberg_type(postgres) == iceberg


def test_an_enum_is_text_whatever_its_name() -> None:
    assert iceberg_type("mood", is_enum=True) == "string"
    assert iceberg_type("mood") is None
