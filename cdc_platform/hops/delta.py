"""What changed in a curated table since a reader's watermark.

Belongs here: the query by row lineage. Does not: moving a reader's tag, or the deletes, which no watermark shows.
Rule: with aggregate push-down on, `max(_last_updated_sequence_number)` fails with "Cannot find field" in
Iceberg 1.12.0 (checked), so it is off for these statements.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

from typing import TYPE_CHECKING

from cdc_platform.lake.spark import Spark

if TYPE_CHECKING:
    import pandas as pd

_NO_PUSH_DOWN = {"spark.sql.iceberg.aggregate-push-down.enabled": "false"}


def changed_rows(spark: Spark, table: str, watermark: int) -> "pd.DataFrame":
    """Rows inserted or updated after `watermark`, with `_row_id` and `_last_updated_sequence_number`.

    `table` is a quoted identifier; `watermark` is a data sequence number, 0 for all rows.
    """
    with spark.settings(_NO_PUSH_DOWN):
        return spark.frame(
            f"SELECT *, _row_id, _last_updated_sequence_number FROM {table} "
            f"WHERE _last_updated_sequence_number > {int(watermark)}"
        )
