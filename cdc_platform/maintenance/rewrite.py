"""`rewrite_data_files` on a landing table, verified by a read before and after.

Belongs here: the procedure's call, its measured effect. Does not: when it is due (`policy.py`), schedules, retries.
Rules (Iceberg 1.12.0, measured): `delete-file-threshold` is the trigger for equality deletes
(`delete-ratio-threshold` ignores them); the default `use-starting-sequence-number` keeps a writer of equality
deletes valid; the procedure's own delete counts are wrong, so effects come from metadata;
`remove-dangling-deletes` takes what the rewrite leaves behind.
"""

import time
from dataclasses import dataclass
from itertools import takewhile

from cdc_platform.errors import InvariantError, UnavailableError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import Snapshot
from cdc_platform.lake.spark import FilesOpened, Spark, quoted, text


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table's files by its head's summary, and what a full count had to open and how long it took."""

    data_files: int
    delete_files: int
    equality_deletes: int
    bytes: int
    opened: FilesOpened
    rows: int
    read_s: float


@dataclass(frozen=True, slots=True)
class RewriteEffect:
    """What a rewrite bought. `snapshot_id` is None when there was nothing to rewrite."""

    snapshot_id: int | None
    before: TableFiles
    after: TableFiles
    took_s: float


def table_files(spark: Spark, lake: Lake, table: str) -> TableFiles:
    """Measure `table` as a reader meets it."""
    head = _head(lake, table)
    began = time.monotonic()
    rows, opened = spark.rows_and_files(
        f"SELECT count(*) AS n FROM {quoted(lake.name, *table.split('.'))} VERSION AS OF {head.snapshot_id}"
    )
    return TableFiles(
        data_files=head.total("data-files"),
        delete_files=head.total("delete-files"),
        equality_deletes=head.total("equality-deletes"),
        bytes=head.total("files-size"),
        opened=opened,
        rows=int(rows[0]["n"]),
        read_s=time.monotonic() - began,
    )


def rewrite_data_files(spark: Spark, lake: Lake, table: str) -> RewriteEffect:
    """Apply all deletes and merge small files. The sink goes on beside it; no live row changes.

    Raises InvariantError when the rewritten snapshot holds another number of rows than the one it replaces.
    """
    before = table_files(spark, lake, table)
    head_before = _head(lake, table)
    began = time.monotonic()
    spark.rows(
        f"CALL {quoted(lake.name)}.system.rewrite_data_files(table => {text(table)}, options => map("
        "'delete-file-threshold', '1', 'min-input-files', '2', 'remove-dangling-deletes', 'true'))"
    )
    took_s = time.monotonic() - began
    history = lake.history(table)
    since = takewhile(lambda s: s.snapshot_id != head_before.snapshot_id, history.ancestry() if history else ())
    rewritten = [snapshot for snapshot in since if snapshot.operation == "replace"]
    for snapshot in rewritten:  # The rewrite, and the removal of dangling deletes after it.
        require_same_rows(spark, lake, table, snapshot)
    return RewriteEffect(
        rewritten[0].snapshot_id if rewritten else None, before, table_files(spark, lake, table), took_s
    )


def require_same_rows(spark: Spark, lake: Lake, table: str, rewritten: Snapshot) -> None:
    """Raise InvariantError unless a snapshot has as many rows as its parent. Commits of the sink do not matter."""
    name = quoted(lake.name, *table.split("."))
    [counts] = spark.rows(
        f"SELECT (SELECT count(*) FROM {name} VERSION AS OF {rewritten.parent_id}) AS before, "
        f"(SELECT count(*) FROM {name} VERSION AS OF {rewritten.snapshot_id}) AS after"
    )
    if counts["before"] != counts["after"]:
        raise InvariantError(
            f"rewrite_data_files changed the row count from {counts['before']} to {counts['after']}",
            where=f"{table} at snapshot {rewritten.snapshot_id}",
            action=f"Roll back to snapshot {rewritten.parent_id} and stop the rewrite sensor",
        )


def _head(lake: Lake, table: str) -> Snapshot:
    history = lake.history(table)
    if history is None or history.head is None:
        raise UnavailableError("it has no snapshot yet", where=table, action="Wait for the initial load")
    return history.head
