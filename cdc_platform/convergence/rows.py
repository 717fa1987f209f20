"""Whether two tables hold the same rows, down to the row.

Belongs here: EXCEPT both ways. Does not: figures over a table (`convergence/state.py`).
"""

from dataclasses import dataclass

from cdc_platform.lake.spark import Spark


@dataclass(frozen=True, slots=True)
class RowsApart:
    """Rows that one side has and the other has not; a row that differs counts on both sides."""

    only_left: int
    only_right: int


def rows_apart(spark: Spark, left: str, right: str) -> RowsApart:
    """Compare two relations of equal columns, as multisets. Both are SQL text, such as a quoted identifier."""

    def only(a: str, b: str) -> int:
        [row] = spark.rows(f"SELECT count(*) AS n FROM (SELECT * FROM {a} EXCEPT ALL SELECT * FROM {b})")
        return int(row["n"])

    return RowsApart(only(left, right), only(right, left))
