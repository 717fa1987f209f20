"""One commit window as one Iceberg snapshot: files, position, schema and owner, atomically.

Belongs here: creating the landing table, who may write it, committing. Does not: writing files (`landing/files.py`),
which rows and deletes (`landing/window.py`), when (`landing/sink.py`), PyIceberg's private parts
(`landing/transaction.py`).
Rules: the position and the owner are compared with those of the metadata which a commit is based on, at each attempt.
An owner is a number and a word that no other has: a sink takes the next number before its first commit, and who finds
a number that is not its own stops for good. A schema change is committed together with the first window that needs
it: its files are written for the field ids that it will give, and the commit is refused if it gives others.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import json
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cdc_platform.errors import ConfigError, ConflictError, FencedError, UnavailableError
from cdc_platform.faults import reach
from cdc_platform.lake.catalog import Lake, history_of
from cdc_platform.lake.snapshot import Column, TableHistory
from cdc_platform.lake.types import promotes, pyiceberg_type
from cdc_platform.landing.evolution import AddColumn, DropColumn, Evolution, RenameColumn, Step, WidenColumn
from cdc_platform.landing.files import (
    all_data_under,
    key_tells_partition,
    spec_fields,
    write_deletes,
    write_rows,
)
from cdc_platform.landing.position import EVENTS, POSITION_TAG, PROPERTY, LandingPosition, landing_position, sink_id
from cdc_platform.landing.transaction import cached_transaction, row_delta, translated
from cdc_platform.registry.model import PartitionField
from cdc_platform.source.types import SourceColumn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.update.schema import UpdateSchema

OWNER = "cdc.owner."  # Property, followed by the sink's id: <epoch>:<word>.
SOURCE_COLUMNS = "cdc.source-columns"  # Property: the columns as the source has them, JSON.
_CLOCK_BACK_MS_MAX = 30_000  # Java's TableMetadata allows one minute.
_PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # As the sink itself writes. Without it Iceberg's Java takes gzip for what it rewrites in a table that another made,
    # and DuckDB reads the rewritten file in twice the time (1 M rows).
    "write.parquet.compression-codec": "zstd",
}
SchemaStep = Callable[["UpdateSchema"], None]


@dataclass
class Owner:
    """Who writes a table: made once for a process and a table, kept over every error."""

    word: str = field(default_factory=lambda: uuid.uuid4().hex)
    epoch: int = 0  # 0 until it has taken the table over.

    def __str__(self) -> str:
        return f"{self.epoch}:{self.word}"


@dataclass(frozen=True, slots=True)
class _Staged:
    """A schema that the next commit brings."""

    steps: tuple[SchemaStep, ...]
    columns: tuple[SourceColumn, ...]
    schema: "Schema"


class LandingTable:
    """A landing table as its sink sees it. Not shared between threads."""

    def __init__(
        self,
        lake: Lake,
        name: str,
        key: Sequence[str],
        *,
        owner: Owner | None = None,
        partition_by: Sequence[PartitionField] = (),
    ) -> None:
        self.name = name
        self._lake = lake
        self._key = tuple(key)
        self._owner = owner or Owner()
        self._partition_by = tuple(partition_by)
        self._staged: _Staged | None = None
        self._table: Table | None = lake.load(name)
        if self._table is not None:
            self._require_key()
            self._look_at_partitions()

    @property
    def history(self) -> TableHistory | None:
        """The table's history as of the last load or commit, None before the table exists."""
        return None if self._table is None else history_of(self.name, self._table)

    @property
    def columns(self) -> tuple[SourceColumn, ...]:
        """The columns as the source had them when the table took them; none before it exists."""
        if self._staged is not None:
            return self._staged.columns
        if self._table is None:
            return ()
        stored = self._table.properties.get(SOURCE_COLUMNS)
        if stored is not None:
            return tuple(SourceColumn(**c) for c in json.loads(stored))
        history = history_of(self.name, self._table)
        return tuple(map(SourceColumn.of_landing, history.columns))

    @property
    def landing_columns(self) -> tuple[Column, ...]:
        """The table's own columns as the next window will find them."""
        fields = self._schema.fields if self._table is not None else ()
        return tuple(Column(f.name, str(f.field_type), f.required, f.doc or "") for f in fields)

    @property
    def routed_by(self) -> tuple[str, ...]:
        """Columns whose value in the row before tells which partition a delete belongs to; none when the key does."""
        if self._table is None or set(sources := [f.column for f in spec_fields(self._table)]) <= set(self._key):
            return ()
        return tuple(sources)

    def position(self) -> LandingPosition:
        """How far the table has come; the beginning before it exists."""
        history = self.history
        return landing_position(history) if history else LandingPosition()

    def create(self, columns: Sequence[Column], source: Sequence[SourceColumn]) -> bool:
        """Create the table with these columns; return False when there is one already."""
        from pyiceberg.schema import Schema
        from pyiceberg.types import NestedField

        if self._table is not None:
            return False
        fields = [
            NestedField(
                i, c.name, pyiceberg_type(c.type, len(columns) + i), required=c.name in self._key, doc=c.doc or None
            )
            for i, c in enumerate(columns, 1)
        ]
        key_ids = [f.field_id for f in fields if f.name in self._key]
        self._require_partition_columns(columns)
        self._lake.catalog.create_namespace_if_not_exists(self.name.split(".")[0])
        self._table = self._lake.catalog.create_table_if_not_exists(
            self.name,
            Schema(*fields, identifier_field_ids=key_ids),
            properties=_PROPERTIES | {SOURCE_COLUMNS: _stored(source)},
        )
        self._look_at_partitions()
        return True

    def stage(self, steps: Sequence[SchemaStep], columns: Sequence[SourceColumn]) -> None:
        """Have the next commit change the schema by `steps`, each an update of its own; files are written for it."""
        from pyiceberg.table import Transaction

        transaction = Transaction(self._loaded)
        for step in steps:
            _update_schema(transaction, step)
        self._staged = _Staged(tuple(steps), tuple(columns), transaction.table_metadata.schema())

    def replace_columns(self, columns: Sequence[Column], source: Sequence[SourceColumn]) -> None:
        """Have the next commit, which replaces all rows, bring just these columns.

        A column whose type can't be promoted is another one of the same name. Raises ConfigError for a key column.
        """
        found = {c.name: c.type for c in self.landing_columns}
        wanted = {c.name: c.type for c in columns}
        retyped = {n for n, kind in wanted.items() if n in found and found[n] != kind}
        promoted = {n for n in retyped if promotes(found[n], wanted[n])}
        anew = retyped - promoted
        leaving = anew | (found.keys() - wanted.keys())
        if touched := sorted(set(self._key) & leaving):
            raise ConfigError(
                f"key column `{touched[0]}` became {wanted.get(touched[0], 'none')}, it was {found[touched[0]]}",
                where=self.name,
                action=f"Drop {self.name} and its curated table; the load goes on from the change log",
            )
        sources = {field.column for field in spec_fields(self._loaded)}
        if touched := sorted(sources & leaving):
            raise ConfigError(
                f"partition column `{touched[0]}` became {wanted.get(touched[0], 'none')}, it was {found[touched[0]]}",
                where=self.name,
                action=f"Correct `landing.partition_by` in tables.yaml if it names it, then drop {self.name} and its "
                "curated table; the load goes on from the change log",
            )
        if found == wanted and self.columns == tuple(source):
            return

        def away(update: "UpdateSchema") -> None:
            for name in sorted(leaving):
                update.delete_column((name,))

        def in_place(update: "UpdateSchema") -> None:
            for column in columns:
                if column.name in anew or column.name not in found:
                    update.add_column((column.name,), pyiceberg_type(column.type), doc=column.doc or None)
                elif column.name in promoted:
                    update.update_column((column.name,), pyiceberg_type(column.type))

        self.stage([away, in_place], source)

    def evolve(self, evolution: Evolution) -> None:
        """Have the next commit bring a change of the source's columns that rows written before it survive."""

        def change(step: Step, update: "UpdateSchema") -> None:
            match step:
                case DropColumn(name):
                    update.delete_column((name,))
                case RenameColumn(name, to):
                    update.rename_column((name,), to)
                case WidenColumn(name, kind):
                    update.update_column((name,), pyiceberg_type(kind))
                case AddColumn(name, kind, doc):
                    update.add_column((name,), pyiceberg_type(kind), doc=doc or None)

        self.stage([partial(change, step) for step in evolution.steps], evolution.columns)

    def unstage(self) -> None:
        """Forget the schema change that the next commit would have brought."""
        self._staged = None

    def write_rows(self, rows: "pa.Table") -> "list[DataFile]":
        """Write data files; they belong to the table only once committed."""
        return write_rows(self._loaded, self._schema, rows)

    def write_deletes(self, keys: "pa.Table", *, partition_prefix: str | None = None) -> "list[DataFile]":
        """Write equality-delete files for `keys`' key columns.

        They apply to every partition unless the key tells which, or `partition_prefix` names the columns that do.
        """
        # Asked anew each time: another program may have changed the partition fields since the last commit.
        told = key_tells_partition(self._loaded, self._key)
        routed = partition_prefix is not None and all_data_under(self._loaded, self._loaded.spec().spec_id)
        by_partition = told or routed
        return write_deletes(
            self._loaded, self._schema, keys, by_partition=by_partition, partition_prefix=partition_prefix or ""
        )

    def discard(self, files: "Sequence[DataFile]") -> None:
        """Delete files that were written and will not be committed."""
        for file in files:
            self._loaded.io.delete(file.file_path)

    def commit(
        self,
        before: LandingPosition,
        after: LandingPosition,
        *,
        data: "Sequence[DataFile]",
        deletes: "Sequence[DataFile]",
        events: Mapping[str, int],
        replace_all: bool = False,
        notes: Mapping[str, str] | None = None,
    ) -> LandingPosition:
        """Commit one window and return its position. `replace_all`: these files are the whole table.

        Delivery: exactly once. The commit is refused unless the table stands at `before`, whoever wrote
        meanwhile. Raises ConflictError then, FencedError when a newer sink owns the table, CommitUnknownError when
        the catalog gave no answer.
        """
        files = [*data, *deletes]
        with self._translated(files):
            self._require_clock()
            self._claim()
            after = replace(after, epoch=self._owner.epoch)
            sink = sink_id(self.name)
            summary = after.summary(sink)
            counts = {EVENTS + kind: str(n) for kind, n in events.items()}
            properties = {PROPERTY + sink: json.dumps(summary)}
            transaction = cached_transaction(self._loaded)
            if self._staged is not None:
                properties[SOURCE_COLUMNS] = _stored(self._staged.columns)
                self._apply(self._staged, transaction)
            delta = row_delta()(
                transaction,
                data=data,
                deletes=deletes,
                summary=summary | counts | dict(notes or {}),
                replace_all=replace_all,
                tag=POSITION_TAG,
                check=lambda: self._require_place(before, data, deletes),
            )
            delta.commit()
            transaction.set_properties(properties)
            reach("commit sent")
            transaction.commit_transaction()
            reach("commit answered")
        self._staged = None
        return after

    @contextmanager
    def _translated(self, files: "Sequence[DataFile]") -> Generator[None]:
        try:
            with translated(self.name):
                yield
        except (ConflictError, FencedError):
            self.discard(files)
            raise

    def _apply(self, staged: _Staged, transaction: Any) -> None:
        for step in staged.steps:
            _update_schema(transaction, step)
        found = transaction.table_metadata.schema()
        if found.fields != staged.schema.fields:
            raise ConflictError(
                "another program changed the schema while a window was written for it",
                where=self.name,
                action="This window is tried again by itself",
            )

    def _claim(self) -> None:
        """Become the table's owner, once; later only see that it is so still. A table made anew has none."""
        found, epoch = self._owner_found()
        if found == str(self._owner):
            return
        if self._owner.epoch and epoch >= self._owner.epoch:
            raise self._fenced(epoch)
        taken = Owner(self._owner.word, max(epoch, self._owner.epoch) + 1)
        with self._loaded.transaction() as transaction:
            transaction.set_properties({OWNER + sink_id(self.name): str(taken)})
        self._owner.epoch = taken.epoch  # Not before: a claim that failed, or whose answer was lost, is made again.

    def _owner_found(self) -> tuple[str, int]:
        """The owner that the table names, and its epoch: 0 for none."""
        found = self._loaded.properties.get(OWNER + sink_id(self.name), "0:")
        return found, int(found.partition(":")[0])

    def _require_place(
        self, before: LandingPosition, data: "Sequence[DataFile]", deletes: "Sequence[DataFile]"
    ) -> None:
        """Whether the running attempt's base is owned by us, stands where we were, and takes our files."""
        owner, epoch = self._owner_found()
        if owner != str(self._owner) and epoch >= self._owner.epoch:
            raise self._fenced(epoch)
        found = landing_position(history_of(self.name, self._loaded))
        if found != before or owner != str(self._owner):
            raise ConflictError(
                f"the table is at window {found.window}, this sink was at {before.window}",
                where=self.name,
                action="Another program wrote or replaced it; the sink reads its position and goes on by itself",
            )
        present = self._loaded.spec().spec_id
        unpartitioned = {n for n, spec in self._loaded.specs().items() if spec.is_unpartitioned()}
        routed = {file.spec_id for file in deletes} - unpartitioned
        # PyIceberg lists all data files under the present spec; a delete in a partition reaches none of another spec.
        moved = {file.spec_id for file in data} - {present} or routed - {present}
        if moved or (routed and not all_data_under(self._loaded, present)):
            raise ConflictError(
                "another program changed the partition fields while a window was written for the old ones",
                where=self.name,
                action="This window is tried again by itself",
            )

    def _fenced(self, epoch: int) -> FencedError:
        return FencedError(
            f"a sink of epoch {epoch} owns the table, this one has epoch {self._owner.epoch}",
            where=self.name,
            action="Two sinks serve this table: stop one (`cdc-platform status` on each host), then restart the other "
            "(`cdc-platform restart sink`)",
        )

    def _require_clock(self) -> None:
        """A snapshot far older than its parent makes a table that Java refuses to read."""
        ahead_ms = self._loaded.metadata.last_updated_ms - time.time_ns() // 1_000_000
        if ahead_ms > _CLOCK_BACK_MS_MAX:
            raise UnavailableError(
                f"this machine's clock stands {ahead_ms / 1000:.0f} s before the table's last commit",
                where=self.name,
                action="Set the clock; the sink goes on by itself",
            )

    def _require_key(self) -> None:
        schema = self._loaded.schema()
        found = {schema.find_field(i).name for i in schema.identifier_field_ids}
        if found != set(self._key):
            raise ConfigError(
                f"its key is ({', '.join(sorted(found))}), tables.yaml says ({', '.join(self._key)})",
                where=self.name,
                action=f"Put the old key back, or drop {self.name} and its curated table; a load is in the change log",
            )

    def _look_at_partitions(self) -> None:
        """Give a table without a snapshot its partition fields; of any other, see that they are those declared."""
        if self._partition_by and self._loaded.current_snapshot() is None and not spec_fields(self._loaded):
            with self._loaded.update_spec() as update:
                for one in self._partition_by:
                    update.add_field(one.column, _transform(one.transform), one.name)
            self._table = self._lake.catalog.load_table(self.name)
        key_tells_partition(self._loaded, self._key)
        found = spec_fields(self._loaded)
        if self._partition_by and list(self._partition_by) != found:
            declared = ", ".join(f"{f.transform}({f.column})" for f in self._partition_by)
            raise ConfigError(
                f"tables.yaml partitions it by {declared}, the table by "
                f"{', '.join(f'{f.transform}({f.column})' for f in found) or 'nothing'}",
                where=self.name,
                action="Write in tables.yaml what the table has, or change the table's partition fields in Spark "
                "(`ALTER TABLE ... ADD PARTITION FIELD`): the sink follows",
            )

    def _require_partition_columns(self, columns: Sequence[Column]) -> None:
        names = [c.name for c in columns]
        for one in self._partition_by:
            if one.column not in names:
                raise ConfigError(
                    f"`landing.partition_by` names column `{one.column}`, which does not exist",
                    where=self.name,
                    action=f"Use some of: {', '.join(names)}",
                )
            kind = next(c.type for c in columns if c.name == one.column)
            if not _transform(one.transform).can_transform(pyiceberg_type(kind)):
                raise ConfigError(
                    f"`landing.partition_by` has {one.transform}({one.column}), which a {kind} can't have",
                    where=self.name,
                    action="Use another transform or column",
                )

    @property
    def _schema(self) -> "Schema":
        """What files are written for: with the change that the next commit brings."""
        return self._staged.schema if self._staged is not None else self._loaded.schema()

    @property
    def _loaded(self) -> "Table":
        assert self._table is not None, "create() comes first"
        return self._table


def _update_schema(transaction: Any, step: SchemaStep) -> None:
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        step(update)


def _stored(columns: Sequence[SourceColumn]) -> str:
    return json.dumps([asdict(c) for c in columns], separators=(",", ":"))


def _transform(text: str) -> Any:
    from pyiceberg.transforms import parse_transform

    return parse_transform(text)
