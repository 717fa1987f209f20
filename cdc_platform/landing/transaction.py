"""What PyIceberg 0.12 lacks for an upsert: a snapshot of data and equality deletes, and a commit at a steady cost.

Belongs here: everything that leans on private parts of PyIceberg, which pyproject.toml therefore pins:
`_FastAppendFiles`, its `_commit`, `_existing_manifests`, `_summary`, `_added_data_files`, `_transaction` and
`_compression`, `ManifestWriterV2._meta` and `_with_partition`, `Transaction.table_metadata`.
Does not: what is committed and when (`landing/commit.py`).
Rules: `equality_ids` is a list of int (Iceberg spec). `_commit` runs at each attempt, so the caller's check sees the
metadata which the commit is based on.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


def cached_transaction(table: "Table") -> Any:
    """A transaction that computes its metadata once for each change of it.

    PyIceberg copies the list of snapshots some 16 times in a commit: 650-740 ms at 500 snapshots, 130-180 ms so.
    """
    from pyiceberg.table import Transaction

    class CachedTransaction(Transaction):
        _of: tuple[Any, Any] = (None, None)  # Held, not just their ids: an id may be used again.
        _value: Any = None

        @property
        def table_metadata(self) -> Any:
            base, updates = self._table.metadata, self._updates
            if self._of[0] is not base or self._of[1] is not updates:
                self._value = super().table_metadata
                self._of = (base, updates)
            return self._value

    return CachedTransaction(table)


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
                tagged = SetSnapshotRefUpdate(snapshot_id=self._snapshot_id, ref_name=self._tag, type="tag")
                updates = (*updates, tagged)
            return updates, requirements

        def _existing_manifests(self) -> Any:
            kept = [] if self._replace_all else super()._existing_manifests()
            return [*self._delete_manifests(), *kept]

        def _delete_manifests(self) -> list[Any]:
            manifests: list[Any] = []
            for spec_id in sorted({file.spec_id for file in self._deletes}):
                with DeleteManifestWriter(
                    self.spec(spec_id), self.schema(), self.new_manifest_output(), self.snapshot_id, self._compression
                ) as writer:
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
