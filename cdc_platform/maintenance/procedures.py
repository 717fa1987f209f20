"""Iceberg's maintenance procedures through Spark, each with what bounds it.

Belongs here: the statements and their options, what they answer, asking an engine's versions. Does not: planning,
retries and proof (`maintenance/maintain.py`); what an error means in general (`lake/spark.py`).

Measured with Spark 4.1.4 and Iceberg 1.12.0, 2026-11:
- `rewrite_data_files`: `delete-file-threshold` is the trigger for deletes (`delete-ratio-threshold` sees only deletes
  that name one file). No option bounds a run's bytes; `max-files-to-rewrite` bounds its files, so a run is a series of
  calls, each of at most a group. The procedure's own partial progress is not used: which error a failed commit had is
  only in the server's log ("1 rewrite commits failed"), groups that `max-files-to-rewrite` left out count as failed,
  and one that is interrupted leaves a thread of the server behind for good.
- The starting sequence number is kept (the default): 100 keys that a sink deleted and wrote anew while 1.2 M rows were
  rewritten are right after it; with `use-starting-sequence-number=false` the rewrite fails ("found new delete for
  replaced data file"). A consequence: position deletes of the newest commit that name more than one file outlive the
  rewrite of their data, for they have its sequence number.
- `remove-dangling-deletes` works, on a table without partitions too: in a snapshot of its own after the rewrite's. It
  fails when another writer committed in between ("Cannot remove dangling deletes: current snapshot changed"), so beside
  a sink often; the rewrite is committed then, though the call raises.
- A commit of a rewrite must fit between two of other writers: on two quiet cores it took some 0.1 s and met a sink of
  two commits a second with no loss; with eight times as many processes as cores it took 1.4 to 2.5 s, and 20 attempts
  in a row lost to a sink of ten a second.
- No snapshot property of the session reaches the snapshots of procedures, so they bear no `cdc.run-id`: a run knows its
  own by their place in the ancestry.
- A new position delete for a file that is being rewritten, a file that is gone ("Missing required files to delete"),
  and another rewrite that was first: a ConflictError each, and a new plan is right. An expiry meanwhile hurts none.
- Interrupted, the server stops within its running jobs, commits nothing more and removes what it wrote. A client
  that is killed (SIGKILL, SIGTERM without a handler) does not interrupt: the server goes on and commits.
- `expire_snapshots` with `snapshot_ids` and `older_than` at the epoch takes exactly those, though `retain_last` says
  otherwise; an id that was gone before is no error; two expiries at once are ("arraySize cannot be negative"), and so
  is an id that a ref points to ("Still referenced by refs"). It also drops refs past their own declared age. A file
  that could not be removed is in the server's log alone.
- `rewrite_manifests` keeps row lineage on v3. `rewrite_position_delete_files` does nothing on deletion vectors.
- `remove_orphan_files`: paths are compared without scheme `file:` against `file:///`, so files of Java and Python are
  both known; names that begin with `_` or `.` are not looked at; below 24 h it refuses. `file_list_view` is compared by
  text with the table's location first: its paths have to begin as that does.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cdc_platform.lake.files import normal_path
from cdc_platform.lake.snapshot import Ref
from cdc_platform.lake.spark import Spark, quoted, text
from cdc_platform.maintenance.gates import Engine
from cdc_platform.registry.maintenance import MB

_ORPHANS_A_CALL = 500
# Iceberg's own default is 4 attempts, up to a minute apart: beside a sink that commits 14 times a second a finished
# rewrite lost them all, and its work (2026-11). They are made on metadata alone, so they cost little.
PATIENCE = {"commit.retry.num-retries": "20", "commit.retry.max-wait-ms": "1000"}
# A table that says nothing is rewritten as gzip, which DuckDB reads at half the speed of zstd (2026-12).
CODEC = {"write.parquet.compression-codec": "zstd"}
_ORPHANS_VIEW = "cdc_orphans"


class Procedures:
    """The procedures of one catalog, called for one table."""

    def __init__(self, spark: Spark, catalog: str, table: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._table = table

    def engine(self) -> Engine:
        """What the server says of its versions."""
        [said] = self._spark.rows(f"SELECT {quoted(self._catalog)}.system.iceberg_version() AS i, version() AS s")
        return Engine(str(said["i"]), str(said["s"]).partition(" ")[0])

    def rewrite_data_files(self, *, files_max: int, group_mb_max: int, target_mb: int) -> int:
        """Rewrite at most so many files, in one commit, and another for dangling deletes; return how many were."""
        answer = self._call(
            "rewrite_data_files",
            options={
                "delete-file-threshold": "1",
                "min-input-files": "2",
                "max-files-to-rewrite": str(files_max),
                "max-file-group-size-bytes": str(group_mb_max * MB),
                "target-file-size-bytes": str(target_mb * MB),
                "use-starting-sequence-number": "true",
                "remove-dangling-deletes": "true",
            },
        )
        return int(answer[0]["rewritten_data_files_count"])

    def rewrite_position_delete_files(self) -> int:
        """Rewrite all position-delete files; those that name no live file vanish."""
        answer = self._call("rewrite_position_delete_files", options={"rewrite-all": "true"})
        return int(answer[0]["rewritten_delete_files_count"])

    def rewrite_manifests(self) -> int:
        """Rewrite manifests by partition; return how many were replaced."""
        return int(self._call("rewrite_manifests")[0]["rewritten_manifests_count"])

    def expire_snapshots(self, snapshot_ids: Sequence[int]) -> int:
        """Expire exactly these; return how many data and delete files were removed."""
        ids = ", ".join(f"{int(i)}L" for i in snapshot_ids)
        # At the epoch: no snapshot is older, so age takes none.
        [answer] = self._call("expire_snapshots", f"older_than => {_timestamp(0)}, snapshot_ids => array({ids})")
        return sum(int(answer[f"deleted_{kind}_count"] or 0) for kind in _EXPIRED_KINDS)

    def renew(self, ref: Ref) -> None:
        """Lift a ref's own declared age, so that an expiry does not take it."""
        kind = "BRANCH" if ref.branch else "TAG"
        self._spark.rows(
            f"ALTER TABLE {self._name} REPLACE {kind} {quoted(ref.name)} AS OF VERSION {ref.snapshot_id} "
            "RETAIN 36500 DAYS"
        )

    def tag(self, name: str, snapshot_id: int) -> None:
        """Tag a snapshot, for longer than the table's own default for refs may say."""
        self._spark.rows(
            f"ALTER TABLE {self._name} CREATE OR REPLACE TAG {quoted(name)} AS OF VERSION {int(snapshot_id)} "
            "RETAIN 36500 DAYS"
        )

    def orphans(self, older_than_ms: int) -> tuple[str, ...]:
        """What `remove_orphan_files` would remove; nothing is."""
        found = self._call(
            "remove_orphan_files",
            f"older_than => {_timestamp(older_than_ms)}, dry_run => true, prefix_mismatch_mode => 'ERROR'",
        )
        return tuple(str(row["orphan_file_location"]) for row in found)

    def remove_orphans(self, paths: Sequence[str], *, location: str, older_than_ms: int) -> int:
        """Remove just these, if they are still orphans; return how many were."""
        removed = 0
        for batch in _batches([under(location, path) for path in paths], _ORPHANS_A_CALL):
            # They were older than the bound when they were listed: the view says so, or it would be asked again.
            values = ", ".join(f"({text(path)}, {_timestamp(0)})" for path in batch)
            self._spark.rows(
                f"CREATE OR REPLACE TEMPORARY VIEW {_ORPHANS_VIEW} AS "
                f"SELECT * FROM VALUES {values} AS listed(file_path, last_modified)"
            )
            removed += len(
                self._call(
                    "remove_orphan_files",
                    f"older_than => {_timestamp(older_than_ms)}, file_list_view => {text(_ORPHANS_VIEW)}, "
                    "prefix_mismatch_mode => 'ERROR'",
                )
            )
        return removed

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set table properties. Through Spark: PyIceberg 0.12 writes no v3 table."""
        pairs = ", ".join(f"{text(key)} = {text(value)}" for key, value in properties.items())
        self._spark.rows(f"ALTER TABLE {self._name} SET TBLPROPERTIES ({pairs})")

    @property
    def _name(self) -> str:
        return quoted(self._catalog, *self._table.split("."))

    def _call(
        self, procedure: str, arguments: str = "", *, options: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        given = [f"table => {text(self._table)}"]
        if arguments:
            given.append(arguments)
        if options:
            pairs = ", ".join(f"{text(k)}, {text(v)}" for k, v in options.items())
            given.append(f"options => map({pairs})")
        return self._spark.rows(f"CALL {quoted(self._catalog)}.system.{procedure}({', '.join(given)})")


_EXPIRED_KINDS = ("data_files", "position_delete_files", "equality_delete_files")


def under(location: str, path: str) -> str:
    """The same file, its address beginning as `location` does."""
    within = normal_path(path).removeprefix(normal_path(location).rstrip("/") + "/")
    return f"{location.rstrip('/')}/{within}"


def _timestamp(ms: int) -> str:
    """A moment as Spark SQL, whatever the session's time zone."""
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d} UTC'"


def _batches(values: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (values[n : n + size] for n in range(0, len(values), size))
