"""Data and equality-delete files of a landing table, each in the partition where it counts.

Belongs here: which spec a delete needs, splitting rows by partition, writing Parquet with Iceberg's statistics.
Does not: which rows and deletes (`landing/window.py`), committing them (`landing/commit.py`).
Rules (Iceberg spec, "Scan planning"): an equality delete written under a partition applies to data files of that
partition alone; one written under an unpartitioned spec applies to all. So where a row's old partition isn't known
from its key, or data may lie under another spec, deletes are written under the unpartitioned spec. A table that we
create has one: it is created unpartitioned, and then given its partition fields.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cdc_platform.errors import ConfigError
from cdc_platform.registry.model import PartitionField

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


def spec_fields(table: "Table") -> list[PartitionField]:
    """The partition fields that the table has now."""
    schema = table.schema()
    return [PartitionField(schema.find_field(f.source_id).name, str(f.transform)) for f in table.spec().fields]


def key_tells_partition(table: "Table", key: Sequence[str]) -> bool:
    """Whether a delete may be written under the partition that its key tells: all data lies under the present spec.

    Raises ConfigError when neither that nor an unpartitioned spec holds: no delete could then reach every old row.
    """
    spec = table.spec()
    if all(one.is_unpartitioned() for one in table.specs().values()):
        return True
    sources = {table.schema().find_field(f.source_id).name for f in spec.fields}
    if sources <= set(key) and all_data_under(table, spec.spec_id):
        return True
    if unpartitioned_spec(table) is None:
        raise ConfigError(
            f"a delete could miss its old row: partition columns ({', '.join(sorted(sources)) or 'of an older spec'}) "
            f"don't follow from the key ({', '.join(key)}), or changed, and the table has no unpartitioned spec",
            where=".".join(table.name()[-2:]),
            action="Drop the table so that the sink makes it anew, or partition it by key columns only",
        )
    return False


def all_data_under(table: "Table", spec_id: int) -> bool:
    """Whether every live data file lies under this spec, as the newest snapshot's list of manifests says."""
    from pyiceberg.manifest import ManifestContent

    snapshot = table.current_snapshot()
    return snapshot is None or all(
        manifest.partition_spec_id == spec_id
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DATA
    )


def unpartitioned_spec(table: "Table") -> "PartitionSpec | None":
    """The spec under which a delete applies to every partition."""
    return next((spec for spec in table.specs().values() if spec.is_unpartitioned()), None)


def write_rows(table: "Table", schema: "Schema", rows: "pa.Table") -> "list[DataFile]":
    """Write data files, one for each partition that the rows fall in. They count only once committed."""
    from pyiceberg.manifest import DataFileContent

    spec = table.spec()
    return [
        _write(table, part, schema, content=DataFileContent.DATA, spec=spec, partition=key)
        for key, part in _split(rows, spec, schema, prefix="")
    ]


def write_deletes(
    table: "Table", schema: "Schema", keys: "pa.Table", *, by_partition: bool, partition_prefix: str = ""
) -> "list[DataFile]":
    """Write equality-delete files for `keys`' key columns.

    `by_partition`: each under the partition that its columns, prefixed by `partition_prefix`, tell; else one that
    applies to all.
    """
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.schema import Schema

    by_key = Schema(*[schema.find_field(i) for i in sorted(schema.identifier_field_ids)])
    spec = table.spec() if by_partition else unpartitioned_spec(table)
    assert spec is not None, "key_tells_partition() comes first"
    return [
        _write(table, part, by_key, content=DataFileContent.EQUALITY_DELETES, spec=spec, partition=key)
        for key, part in _split(keys, spec, schema, prefix=partition_prefix)
    ]


def _split(
    rows: "pa.Table", spec: "PartitionSpec", schema: "Schema", *, prefix: str
) -> "Iterator[tuple[Any, pa.Table]]":
    """Rows by partition, in their order; the partition is None when there is but one."""
    import numpy as np
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

    if spec.is_unpartitioned():
        yield None, rows
        return
    values = {}
    for number, field in enumerate(spec.fields):
        source = schema.find_field(field.source_id)
        name = prefix + source.name
        column = rows[name if name in rows.column_names else source.name]
        values[f"p{number}"] = field.transform.pyarrow_transform(source.field_type)(column)
    of_row = pa.table({**values, "row": np.arange(rows.num_rows)})
    names = list(values)
    for group in of_row.group_by(names).aggregate([("row", "list")]).to_pylist():
        fields = [PartitionFieldValue(f, group[n]) for f, n in zip(spec.fields, names, strict=True)]
        yield PartitionKey(fields, spec, schema), rows.take(pa.array(group["row_list"]))


def _write(
    table: "Table", rows: "pa.Table", schema: "Schema", *, content: Any, spec: "PartitionSpec", partition: Any
) -> "DataFile":
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
        schema_to_pyarrow,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    arrow = schema_to_pyarrow(schema, include_field_ids=True)
    is_delete = content == DataFileContent.EQUALITY_DELETES
    path = table.location_provider().new_data_location(
        f"{'deletes' if is_delete else 'data'}-{uuid.uuid4()}.parquet", partition
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
        partition=Record() if partition is None else partition.partition,
        file_size_in_bytes=len(output),
        sort_order_id=None,
        key_metadata=None,
        equality_ids=sorted(f.field_id for f in schema.fields) if is_delete else None,
        **statistics.to_serialized_dict(),
    )
    file.spec_id = spec.spec_id  # PyIceberg 0.12 ignores the argument of that name.
    return file
