"""One commit window as one Iceberg snapshot: data files, equality-delete files, and the position, atomically.

Belongs here: creating the landing table, writing its Parquet files, committing them on PyIceberg 0.12.
Does not: which rows and deletes (`landing/window.py`), or when (`landing/sink.py`).
Rules (Iceberg spec): an equality delete applies to data files of a lower sequence number, so the rows of its own
commit live; `equality_ids` is a list of int. The table is unpartitioned.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdc_platform.errors import CommitUnknownError, ConfigError, ConflictError, UnavailableError
from cdc_platform.faults import reach
from cdc_platform.lake.catalog import Lake, history_of
from cdc_platform.lake.snapshot import Column, TableHistory
from cdc_platform.landing.position import EVENTS, PROPERTY, LandingPosition, landing_position, sink_id
from cdc_platform.landing.transaction import cached_transaction, row_delta

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_CLOCK_BACK_MS_MAX = 30_000  # Java's TableMetadata allows one minute.
_PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class LandingTable:
    """A landing table as its sink sees it. Not shared between threads."""

    def __init__(self, lake: Lake, name: str, key: Sequence[str]) -> None:
        self.name = name
        self._lake = lake
        self._key = tuple(key)
        self._table: Table | None = lake.load(name)
        if self._table is not None:
            schema = self._table.schema()
            found = {schema.find_field(i).name for i in schema.identifier_field_ids}
            if found != set(key):
                raise ConfigError(
                    f"its key is ({', '.join(sorted(found))}), tables.yaml says ({', '.join(key)})",
                    where=name,
                    action=f"Put the old key back, or drop {name} and its curated table; a load is in the change log",
                )

    @property
    def history(self) -> TableHistory | None:
        """The table's history as of the last load or commit, None before the table exists."""
        return None if self._table is None else history_of(self.name, self._table)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table's columns, none before it exists."""
        history = self.history
        return history.columns if history else ()

    def position(self) -> LandingPosition:
        """How far the table has come; the beginning before it exists."""
        history = self.history
        return landing_position(history) if history else LandingPosition()

    def require(self, columns: Sequence[Column]) -> None:
        """Create the table with these columns, or make sure that it has just them."""
        if self._table is None:
            self._create(columns)
            return
        found = [(c.name, c.type) for c in self.columns]
        if found != [(c.name, c.type) for c in columns]:
            raise ConfigError(
                f"the initial load brings columns ({', '.join(f'{c.name} {c.type}' for c in columns)}), the table "
                f"has ({', '.join(f'{name} {kind}' for name, kind in found)})",
                where=self.name,
                action=f"Drop {self.name} and its curated table; the load goes on from the change log",
            )

    def _create(self, columns: Sequence[Column]) -> None:
        from pyiceberg.schema import Schema
        from pyiceberg.types import NestedField

        fields = [
            NestedField(i, c.name, _iceberg_type(c.type), required=c.name in self._key, doc=c.doc or None)
            for i, c in enumerate(columns, 1)
        ]
        key_ids = [f.field_id for f in fields if f.name in self._key]
        self._lake.catalog.create_namespace_if_not_exists(self.name.split(".")[0])
        self._table = self._lake.catalog.create_table_if_not_exists(
            self.name, Schema(*fields, identifier_field_ids=key_ids), properties=_PROPERTIES
        )

    def write_rows(self, rows: "pa.Table") -> "DataFile":
        """Write one data file; it belongs to the table only once committed."""
        from pyiceberg.manifest import DataFileContent

        return self._write(rows, self._loaded.schema(), DataFileContent.DATA)

    def write_deletes(self, keys: "pa.Table") -> "DataFile":
        """Write one equality-delete file for `keys`' key columns."""
        from pyiceberg.manifest import DataFileContent
        from pyiceberg.schema import Schema

        schema = self._loaded.schema()
        by_key = Schema(*[schema.find_field(i) for i in sorted(schema.identifier_field_ids)])
        return self._write(keys, by_key, DataFileContent.EQUALITY_DELETES)

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
    ) -> int:
        """Commit one window and return its snapshot id. `replace_all`: these files are the whole table.

        Delivery: exactly once. The commit is refused unless the table stands at `before`, whoever wrote
        meanwhile. Raises ConflictError then, CommitUnknownError when the catalog gave no answer.
        """
        from pyiceberg.exceptions import CommitFailedException
        from sqlalchemy.exc import SQLAlchemyError

        reach("parquet written")
        self._require_clock()

        sink = sink_id(self.name)
        summary = after.summary(sink)
        counts = {EVENTS + kind: str(n) for kind, n in events.items()}

        def stands_at_before(base: TableHistory) -> None:
            found = landing_position(base)
            if found != before:
                raise ConflictError(
                    f"the table is at window {found.window}, this sink was at {before.window}",
                    where=self.name,
                    action="Another sink writes this table: stop one (`cdc-platform status` on each host)",
                )

        transaction = cached_transaction(self._loaded)
        try:
            delta = row_delta()(
                transaction,
                data=data,
                deletes=deletes,
                summary=summary | counts,
                replace_all=replace_all,
                check=lambda: stands_at_before(self._base()),
            )
            delta.commit()
            transaction.set_properties({PROPERTY + sink: json.dumps(summary)})
            reach("commit sent")
            transaction.commit_transaction()
            reach("commit answered")
        except ConflictError:
            self.discard([*data, *deletes])
            raise
        except CommitFailedException as error:
            self.discard([*data, *deletes])
            raise ConflictError(
                "other writers won every attempt",
                where=self.name,
                action="This window is tried again by itself",
            ) from error
        except (SQLAlchemyError, OSError) as error:
            raise CommitUnknownError(
                "the catalog gave no answer to a commit",
                where=self.name,
                action="The sink reads the table's position before it goes on; check the catalog",
            ) from error
        return delta.snapshot_id

    def _require_clock(self) -> None:
        """A snapshot far older than its parent makes a table that Java refuses to read."""
        ahead_ms = self._loaded.metadata.last_updated_ms - time.time_ns() // 1_000_000
        if ahead_ms > _CLOCK_BACK_MS_MAX:
            raise UnavailableError(
                f"this machine's clock stands {ahead_ms / 1000:.0f} s before the table's last commit",
                where=self.name,
                action="Set the clock; the sink goes on by itself",
            )

    def _base(self) -> TableHistory:
        """History of the metadata that the running commit attempt is based on."""
        return history_of(self.name, self._loaded)

    @property
    def _loaded(self) -> "Table":
        assert self._table is not None, "require() comes first"
        return self._table

    def _write(self, rows: "pa.Table", schema: "Schema", content: Any) -> "DataFile":
        import pyarrow.parquet as pq
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
            schema_to_pyarrow,
        )
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        table = self._loaded
        arrow = schema_to_pyarrow(schema, include_field_ids=True)
        is_delete = content == DataFileContent.EQUALITY_DELETES
        path = table.location_provider().new_data_location(
            f"{'deletes' if is_delete else 'data'}-{uuid.uuid4()}.parquet"
        )
        output = table.io.new_output(path)
        with (
            output.create() as stream,
            pq.ParquetWriter(
                stream, arrow, compression="zstd", compression_level=1, store_decimal_as_integer=True
            ) as writer,
        ):
            writer.write_table(rows.select(arrow.names).cast(arrow))
        statistics = data_file_statistics_from_parquet_metadata(
            writer.writer.metadata,
            compute_statistics_plan(schema, table.metadata.properties),
            parquet_path_to_id_mapping(schema),
        )
        file = DataFile.from_args(
            content=content,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=len(output),
            sort_order_id=None,
            key_metadata=None,
            equality_ids=sorted(schema.identifier_field_ids or [f.field_id for f in schema.fields])
            if is_delete
            else None,
            **statistics.to_serialized_dict(),
        )
        file.spec_id = table.spec().spec_id  # PyIceberg 0.12 ignores the argument of that name.
        return file


def _iceberg_type(text: str) -> Any:
    from pydantic import TypeAdapter
    from pyiceberg.types import IcebergType

    return TypeAdapter(IcebergType).validate_python(text)
