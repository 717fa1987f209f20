"""What PyIceberg 0.12 lacks for an upsert: a snapshot of data and equality deletes, and a commit at a steady cost.

Belongs here: everything that leans on private parts of PyIceberg, which pyproject.toml therefore pins:
- for the snapshot: `_FastAppendFiles`, its `_commit`, `_existing_manifests`, `_summary`, `_added_data_files`,
  `_transaction`, `_compression` and its way of making manifests, `ManifestWriterV2._meta` and `_with_partition`;
- for the steady cost: `Transaction._table` and `_updates`; that updates add to `TableMetadata.snapshots` and
  `snapshot_log` with `+` and copy metadata with pydantic's `model_copy(deep=True)`; that `SqlCatalog.load_table` makes
  its table in `_convert_orm_to_iceberg` and that `commit_table` gets the table it replaces from `load_table` and writes
  through `_write_metadata`.
It also says what a commit that fails means (`translated`). Does not: what is committed and when (`landing/commit.py`).
Rules: `equality_ids` is a list of int (Iceberg spec). `_commit` runs at each attempt, so the caller's check sees the
metadata which the commit is based on. A metadata file never changes once written, and no two have one name (spec,
"Optimistic concurrency"): so what stands in the file that the catalog points to need not be read again by who wrote it.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false
# pyright: reportUntypedBaseClass=false

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from cdc_platform.errors import CommitUnknownError, ConflictError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_LONG_LISTS = ("snapshots", "snapshot_log")
_FOLD_BITS = 5  # 32 manifests become one: 45 ms in every 32nd commit (2026-11).


class SharedList(list[Any]):
    """A list of values that nobody changes: a deep copy of it has the same ones.

    Else PyIceberg copies each snapshot and its summary three times in a commit: 0.1 ms a snapshot (2026-11).
    """

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return type(self)(self)

    def __add__(self, other: Iterable[Any]) -> Self:  # type: ignore[override]
        return type(self)([*self, *other])


@contextmanager
def translated(where: str) -> Generator[None]:
    """What a commit raises, by what is to be done next. `where` is the table."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except CommitFailedException as error:
        raise ConflictError(
            "other writers won every attempt", where=where, action="It is tried again by itself"
        ) from error
    except (SQLAlchemyError, OSError, CommitStateUnknownException) as error:
        raise CommitUnknownError(
            "the catalog gave no answer to a commit",
            where=where,
            action="The table's position is read before it is tried again; check the catalog",
        ) from error


def cached_transaction(table: "Table") -> Any:
    """A transaction whose cost does not grow with the number of snapshots, for it handles only new ones.

    On an `SqlCatalog`, `table` keeps from one commit to the next what it wrote; on any other catalog, and after
    another writer's commit, PyIceberg's own way is taken. `table` must not be shared between threads.
    """
    from pyiceberg.catalog.sql import SqlCatalog

    steady, catalog = _steady_catalog(), table.catalog
    if type(catalog) is SqlCatalog or (type(catalog) is steady and catalog._held is not table):
        table.catalog = steady(table)
    _share_long_lists(table)
    return _cached_transaction()(table)


def _share_long_lists(table: "Table") -> None:
    if not isinstance(table.metadata.snapshots, SharedList):
        shared = {name: SharedList(getattr(table.metadata, name)) for name in _LONG_LISTS}
        table.metadata = table.metadata.model_copy(update=shared)


@cache
def _cached_transaction() -> Any:
    from pyiceberg.table import Transaction

    class CachedTransaction(Transaction):
        """Computes its metadata once for each change of it; PyIceberg does some 16 times in a commit."""

        _of: tuple[Any, Any] = (None, None)  # Held, not just their ids: an id may be used again.
        _value: Any = None

        @property
        def table_metadata(self) -> Any:
            base, updates = self._table.metadata, self._updates
            if self._of[0] is not base or self._of[1] is not updates:
                self._value = super().table_metadata
                self._of = (base, updates)
            return self._value

    return CachedTransaction


@cache
def _steady_catalog() -> Any:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.serializers import NOOP_COMPRESSOR, Compressor
    from pyiceberg.utils.config import Config

    class SteadyCatalog(SqlCatalog):
        """One table's view of its catalog, which knows what the file that the table came from holds."""

        def __init__(self, table: "Table") -> None:  # Not SqlCatalog's: the engine is the catalog's own.
            self.__dict__.update(table.catalog.__dict__)
            self._held = table
            self._json = {name: _JsonOfItems() for name in _LONG_LISTS}

        def _convert_orm_to_iceberg(self, orm_table: Any) -> "Table":
            """The table that the catalog's row points to: the one held if its file is still that one."""
            held = self._held
            asked = (*self.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
            if asked == held.name() and orm_table.metadata_location == held.metadata_location:
                return type(held)(held.name(), held.metadata, held.metadata_location, held.io, self, held.config)
            loaded = super()._convert_orm_to_iceberg(orm_table)
            _share_long_lists(loaded)
            return loaded

        def _write_metadata(self, metadata: Any, io: Any, metadata_path: str) -> None:  # type: ignore[override]
            """Write the JSON that PyIceberg would, with that of each snapshot made once."""
            plain = Compressor.get_compressor(metadata_path) is NOOP_COMPRESSOR
            text = self._text(metadata) if plain and not Config().get_bool("legacy-current-snapshot-id") else None
            if text is None:
                super()._write_metadata(metadata, io, metadata_path)
                return
            with io.new_output(metadata_path).create() as stream:
                stream.write(text.encode())

        def _text(self, metadata: Any) -> str | None:
            """None when the places of the long lists are not where they should be."""
            if metadata.format_version != 2:
                return None
            text = metadata.model_copy(update={name: [] for name in _LONG_LISTS}).model_dump_json()
            for name, cached in self._json.items():
                key = f'"{name.replace("_", "-")}":['
                # Inside a string its quotes would be escaped, and no other part of metadata has a list of this name.
                if text.count(f"{key}]") != 1:
                    return None
                text = text.replace(f"{key}]", f"{key}{cached.joined(getattr(metadata, name))}]")
            return text

    return SteadyCatalog


class _JsonOfItems:
    """JSON of a list's items, made once for each as long as it stays in the list. Items are told by identity."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, str]] = {}  # The item is held, so that its id is not used again.

    def joined(self, items: Sequence[Any]) -> str:
        known = self._of
        self._of = {id(i): known.get(id(i)) or (i, i.model_dump_json()) for i in items}
        return ",".join(text for _, text in self._of.values())


@cache
def row_delta() -> Any:
    """The producer of one upsert snapshot, made once PyIceberg has been imported."""
    from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestWriterV2
    from pyiceberg.schema import Schema
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update import SetSnapshotRefUpdate
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.types import IntegerType, ListType, NestedField, StructType

    def int_ids(field: NestedField) -> NestedField:
        """PyIceberg declares `equality_ids` (135) as list<long>; Java reads list<int> and fails on the other."""
        if field.field_id == 135:
            ids = ListType(136, IntegerType(), element_required=True)
            return field.model_copy(update={"field_type": ids})
        if isinstance(field.field_type, StructType):
            inner = StructType(*[int_ids(f) for f in field.field_type.fields])
            return field.model_copy(update={"field_type": inner})
        return field

    class DeleteManifestWriter(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

        def _with_partition(self, format_version: Any) -> Schema:
            return Schema(*[int_ids(f) for f in super()._with_partition(format_version).fields])

    class RowDelta(_FastAppendFiles):
        def __init__(
            self,
            transaction: Any,
            *,
            data: "Sequence[DataFile]",
            deletes: "Sequence[DataFile]",
            summary: dict[str, str],
            replace_all: bool,
            tag: str | None = None,
            check: Callable[[], None],
        ) -> None:
            operation = Operation.OVERWRITE if deletes or replace_all else Operation.APPEND
            super().__init__(
                operation=operation,
                transaction=transaction,
                io=transaction._table.io,
                snapshot_properties=summary,
            )
            for file in data:
                self.append_data_file(file)
            self._deletes = list(deletes)
            self._replace_all = replace_all
            self._check = check
            self._tag = tag

        def _commit(self) -> Any:
            self._check()
            updates, requirements = super()._commit()
            if self._tag is not None:
                tag = {"snapshot-id": self._snapshot_id, "ref-name": self._tag, "type": "tag"}
                tagged = SetSnapshotRefUpdate.model_validate(tag)
                updates = (*updates, tagged)
            return updates, requirements

        def _existing_manifests(self) -> Any:
            kept = [] if self._replace_all else self._folded(super()._existing_manifests())
            return [*self._delete_manifests(), *kept]

        def _folded(self, manifests: list[Any]) -> list[Any]:
            """Put manifests of few files together, so that their number grows with the logarithm of commits.

            A commit writes a list of all of them, and each reader reads them all. Manifests of a like number of files
            are put together: no entry is copied again before there are 32 times as many.
            """
            alike: dict[tuple[Any, ...], list[Any]] = {}
            for manifest in manifests:
                files = manifest.added_files_count + manifest.existing_files_count  # Both are required in v2.
                magnitude = (files.bit_length() - 1) // _FOLD_BITS
                alike.setdefault((manifest.content, manifest.partition_spec_id, magnitude), []).append(manifest)
            folded: list[Any] = []
            for (content, spec_id, _), group in alike.items():
                folded += [self._fold(content, spec_id, group)] if len(group) >= 1 << _FOLD_BITS else group
            return folded

        def _fold(self, content: Any, spec_id: int, manifests: list[Any]) -> Any:
            with self._manifest_writer(content, self.spec(spec_id)) as writer:
                for manifest in manifests:
                    for entry in self.fetch_manifest_entry(manifest):
                        writer.existing(entry)
            return writer.to_manifest_file()

        def _manifest_writer(self, content: Any, spec: Any) -> Any:
            if content == ManifestContent.DATA:
                return self.new_manifest_writer(spec)
            return DeleteManifestWriter(
                spec, self.schema(), self.new_manifest_output(), self.snapshot_id, self._compression
            )

        def _delete_manifests(self) -> list[Any]:
            manifests: list[Any] = []
            for spec_id in sorted({file.spec_id for file in self._deletes}):
                with self._manifest_writer(ManifestContent.DELETES, self.spec(spec_id)) as writer:
                    for file in self._deletes:
                        if file.spec_id == spec_id:
                            writer.add_entry(
                                ManifestEntry.from_args(
                                    status=ManifestEntryStatus.ADDED,
                                    snapshot_id=self.snapshot_id,
                                    sequence_number=None,
                                    file_sequence_number=None,
                                    data_file=file,
                                )
                            )
                manifests.append(writer.to_manifest_file())
            return manifests

        def _summary(self, snapshot_properties: Any = None) -> Any:
            rows = self._added_data_files
            self._added_data_files = [*rows, *self._deletes]
            try:
                summary = super()._summary(snapshot_properties or {})
            finally:
                self._added_data_files = rows
            if self._replace_all:
                for total in [k for k in summary.additional_properties if k.startswith("total-")]:
                    # Summary.get has no default: a missing entry is None, which Java would refuse to read.
                    summary[total] = summary.get(total.replace("total-", "added-")) or "0"
            return summary

    return RowDelta
