"""The contract as SQL text. What the text does is tested on Spark in e2e/."""

import pytest

from cdc_platform.errors import ConfigError
from cdc_platform.hops.contract import Contract, align_sql, create_sql, merge_sql
from cdc_platform.lake.snapshot import Column

COLUMNS = ("id", "line", "status", "note")


def contract(*declared: str, key: tuple[str, ...] = ("id", "line")) -> Contract:
    return Contract.of("t", COLUMNS, key=key, declared=declared)


def test_without_a_declaration_every_column_that_is_not_the_key_counts() -> None:
    assert contract().compared == ("status", "note")


def test_the_merge_compares_the_contract_null_safe_and_takes_over_the_whole_row() -> None:
    assert merge_sql(contract("status"), source="s", target="c") == (
        "MERGE INTO c t USING s s ON t.`id` = s.`id` AND t.`line` = s.`line`\n"
        "WHEN MATCHED AND NOT (t.`status` <=> s.`status`) THEN UPDATE SET "
        "t.`status` = s.`status`, t.`note` = s.`note`\n"
        "WHEN NOT MATCHED THEN INSERT (`id`, `line`, `status`, `note`) "
        "VALUES (`s`.`id`, `s`.`line`, `s`.`status`, `s`.`note`)\n"
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )


def test_a_table_that_is_all_key_has_no_update() -> None:
    sql = merge_sql(contract(key=COLUMNS), source="s", target="c")
    assert "UPDATE" not in sql
    assert "WHEN NOT MATCHED BY SOURCE THEN DELETE" in sql


@pytest.mark.parametrize(("key", "declared", "missing"), [(("nr",), (), "nr"), (("id",), ("gone",), "gone")])
def test_a_column_that_upstream_lacks_is_named(key: tuple[str, ...], declared: tuple[str, ...], missing: str) -> None:
    with pytest.raises(ConfigError, match=rf"column `{missing}`.*Use some of: id, line, status, note"):
        Contract.of("t", COLUMNS, key=key, declared=declared)


def test_the_hash_names_the_contract_and_not_the_columns_beside_it() -> None:
    assert (
        contract("status").hash == Contract.of("t", (*COLUMNS, "more"), key=("id", "line"), declared=("status",)).hash
    )
    assert contract("status").hash != contract("note").hash


def test_ddl_keeps_types_required_keys_and_comments() -> None:
    columns = [
        Column("id", "long", True),
        Column("at", "timestamptz", True, "It's when"),
        Column("n", "decimal(5, 2)", False),
        Column("tags", "list<string>", False),
        Column("sums", "list<decimal(5, 2)>", False),
    ]
    sql = create_sql("c", columns, key=["id"])
    assert (
        "(`id` BIGINT NOT NULL, `at` TIMESTAMP COMMENT 'It\\'s when', `n` DECIMAL(5, 2), "
        "`tags` ARRAY<STRING>, `sums` ARRAY<DECIMAL(5, 2)>)"
    ) in sql
    assert "'format-version'='3'" in sql
    with pytest.raises(ConfigError, match="column `x` has type uuid"):
        create_sql("c", [Column("x", "uuid", False)], key=["id"])
    with pytest.raises(ConfigError, match="column `x` has type list<uuid>"):
        create_sql("c", [Column("x", "list<uuid>", False)], key=["id"])


def test_a_curated_table_follows_the_columns_of_its_upstream() -> None:
    found = [
        Column("id", "long", True),
        Column("gone", "string", False),
        Column("n", "int", False),
        Column("d", "decimal(9, 2)", False),
        Column("other", "int", False),
        Column("kept", "string", False),
    ]
    wanted = [
        Column("id", "long", True),
        Column("n", "long", False),
        Column("d", "decimal(12, 2)", False),
        Column("other", "string", False, "what it's for"),
        Column("kept", "string", False),
        Column("new", "list<int>", False),
    ]
    assert align_sql("t", wanted, found=found) == [
        "ALTER TABLE t DROP COLUMN `gone`",
        "ALTER TABLE t DROP COLUMN `other`",
        "ALTER TABLE t ALTER COLUMN `d` TYPE DECIMAL(12, 2)",
        "ALTER TABLE t ALTER COLUMN `n` TYPE BIGINT",
        "ALTER TABLE t ADD COLUMN `other` STRING COMMENT 'what it\\'s for'",
        "ALTER TABLE t ADD COLUMN `new` ARRAY<INT>",
    ]
    assert align_sql("t", wanted, found=wanted) == []
    assert align_sql("t", found, found=wanted)[0] == "ALTER TABLE t DROP COLUMN `n`"  # No way back from a promotion.
