"""The sink's commits and Spark's on one table, by turns: each reads what the other wrote."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from cdc_platform.landing.transaction import cached_transaction, row_delta
from cdc_platform_tests.conftest import RunningStack
from cdc_platform_tests.landing.test_transaction import ROWS, SCHEMA, file_of

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("by_hand")]
NAME = "scratch.upserts"


@pytest.fixture
def table(running_stack: RunningStack) -> Iterator[Table]:
    catalog = running_stack.operations.lake.catalog
    catalog.create_namespace_if_not_exists("scratch")
    yield catalog.create_table(NAME, SCHEMA)
    catalog.drop_table(NAME)


def test_spark_reads_folded_manifests_and_its_own_commits_are_built_upon(
    running_stack: RunningStack, table: Table
) -> None:
    def upsert(number: int) -> None:
        rows = pa.table({"id": [number % 7, number], "status": [str(number)] * 2}, schema=ROWS)
        transaction = cached_transaction(table)
        row_delta()(
            transaction,
            data=[file_of(table, rows)],
            deletes=[file_of(table, rows, of="id")],
            summary={"cdc.log-position": str(number)},
            replace_all=False,
            check=lambda: None,
        ).commit()
        transaction.commit_transaction()

    model = dict[int, str]()
    with running_stack.operations.spark() as spark:
        for number in range(1, 81):
            upsert(number)
            model |= dict.fromkeys((number % 7, number), str(number))
            if number == 40:
                spark.rows(f"ALTER TABLE lake.{NAME} SET TBLPROPERTIES ('kept-by' = 'spark')")
                spark.rows(f"ALTER TABLE lake.{NAME} CREATE TAG reader_x")
            if number == 60:
                [rewritten] = spark.rows(
                    f"CALL lake.system.rewrite_data_files(table => '{NAME}', options => "
                    "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
                )
                assert rewritten["rewritten_data_files_count"] == 60
            if number % 20 == 0:
                rows = spark.rows(f"SELECT id, status FROM lake.{NAME}")
                assert (len(rows), {r["id"]: r["status"] for r in rows}) == (len(model), model)
        manifests = spark.rows(f"SELECT content, added_data_files_count FROM lake.{NAME}.manifests")
        assert len(manifests) < 50
        deletes = spark.rows(
            f"SELECT sequence_number AS n FROM lake.{NAME}.entries WHERE status < 2 AND data_file.content = 2"
        )
        after_it = [s.sequence_number for s in table.snapshots()[-20:]]
        assert sorted(row["n"] for row in deletes) == after_it, "what came after the rewrite, each once"
    assert table.metadata.properties["kept-by"] == "spark"
    assert "reader_x" in table.metadata.refs
