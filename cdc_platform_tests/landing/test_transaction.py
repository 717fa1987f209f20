"""Commits that reuse what the last one knew: nothing of it may be stale, and the file is the one PyIceberg writes."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, Transaction
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.transaction import SharedList, cached_transaction, row_delta
from cdc_platform_tests.builders import live_rows

NAME = "landing.orders"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "status", StringType()), identifier_field_ids=[1]
)
ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("status", pa.string())])
Begin = Callable[[Table], Any]


def file_of(table: Table, rows: pa.Table, *, of: str | None = None) -> DataFile:
    """A data file with these rows; with `of`, an equality-delete file of that column."""
    content = DataFileContent.EQUALITY_DELETES if of else DataFileContent.DATA
    schema = schema_to_pyarrow(table.schema().select(*([of] if of else rows.column_names)), include_field_ids=True)
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    local = Path(path.removeprefix("file://"))
    local.parent.mkdir(exist_ok=True)
    pq.write_table(rows.select(schema.names).cast(schema), local)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=local.stat().st_size,
        equality_ids=[table.schema().find_field(of).field_id] if of else None,
    )
    file.spec_id = 0
    return file


class Bench:
    """A catalog with one table, which `commit` writes through a table object that it keeps."""

    def __init__(self, folder: Path, *, begin: Begin = cached_transaction) -> None:
        self.folder = folder
        self.begin = begin
        self.other = self.lake()  # Another writer: plain PyIceberg, which keeps nothing.
        self.create()
        table = self.lake().load(NAME)
        assert table is not None
        self.table = table

    def lake(self) -> Lake:
        catalog = {"type": "sql", "uri": f"sqlite:///{self.folder}/lake/catalog.db"}
        return Lake("lake", catalog | {"warehouse": (self.folder / "warehouse").as_uri()})

    def create(self) -> None:
        self.other.catalog.create_namespace_if_not_exists("landing")
        properties = {"write.metadata.previous-versions-max": "3", "write.metadata.delete-after-commit.enabled": "true"}
        self.other.catalog.create_table(
            NAME, SCHEMA, properties=properties | {"commit.retry.min-wait-ms": "1", "commit.retry.num-retries": "2"}
        )

    def theirs(self) -> Table:
        return self.other.catalog.load_table(NAME)

    def commit(self, number: int, *, ids: tuple[int, ...] = (), replace_all: bool = False) -> None:
        """An upsert of `ids`, stamped with `number`; a snapshot without files when there are none."""
        data, deletes = [], []
        if ids:
            rows = pa.table({"id": ids, "status": [f"{number}"] * len(ids)}, schema=ROWS)
            data, deletes = [file_of(self.table, rows)], [] if replace_all else [file_of(self.table, rows, of="id")]
        transaction = self.begin(self.table)
        row_delta()(
            transaction,
            data=data,
            deletes=deletes,
            summary={"cdc.log-position": str(number), "cdc.note": 'é "quoted", "snapshots":[] \\ and [x]'},
            replace_all=replace_all,
            check=lambda: None,
        ).commit()
        transaction.set_properties({"cdc.position.x": f'"snapshots":[],"snapshot-log":[] {number}'})
        transaction.commit_transaction()

    def written(self) -> str:
        return Path(self.table.metadata_location.removeprefix("file://")).read_text()

    def log_positions(self) -> list[str | None]:
        return [s.summary["cdc.log-position"] if s.summary else None for s in self.theirs().snapshots()]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def assert_as_pyiceberg_has_it(bench: Bench) -> None:
    """What the table object holds is what the catalog says, and the file has what PyIceberg would write, to a byte."""
    fresh = bench.theirs()
    assert (bench.table.metadata, bench.table.metadata_location) == (fresh.metadata, fresh.metadata_location)
    assert bench.written() == fresh.metadata.model_dump_json()
    assert bench.written() == bench.table.metadata.model_dump_json()


def test_each_file_is_what_pyiceberg_would_have_written(bench: Bench) -> None:
    for number in range(1, 8):
        bench.commit(number, ids=(number, 100))
        assert_as_pyiceberg_has_it(bench)
    assert isinstance(bench.table.metadata.snapshots, SharedList), "it grows without being copied deep"
    assert bench.log_positions() == [str(n) for n in range(1, 8)]
    assert len(bench.table.metadata.metadata_log) == 3
    assert len([*bench.folder.rglob("*.metadata.json")]) == 4, "older ones are deleted as before"


def test_a_commit_of_our_own_is_not_read_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.commit(1)
    monkeypatch.setattr(FromInputFile, "table_metadata", lambda *_: pytest.fail("it was read"))
    bench.commit(2)
    bench.table.refresh()
    monkeypatch.undo()
    assert_as_pyiceberg_has_it(bench)


def test_a_table_that_was_loaded_from_another_ones_catalog_keeps_its_own(bench: Bench) -> None:
    bench.commit(1)
    first, bench.table = bench.table, bench.table.catalog.load_table(NAME)
    bench.commit(2)
    assert bench.table.catalog is not first.catalog
    assert_as_pyiceberg_has_it(bench)
    bench.table = first
    bench.commit(3)
    assert_as_pyiceberg_has_it(bench)


def set_property(bench: Bench) -> None:
    bench.theirs().transaction().set_properties({"owner": "somebody"}).commit_transaction()


def add_tag(bench: Bench) -> None:
    table = bench.theirs()
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id or 0, "reader_x").commit()


def add_column(bench: Bench) -> None:
    with bench.theirs().update_schema() as update:
        update.add_column("note", StringType(), doc="new")


def append(bench: Bench) -> None:
    bench.theirs().append(pa.table({"id": [7], "status": ["theirs"]}, schema=ROWS))


def expire(bench: Bench) -> None:
    table = bench.theirs()
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()


FOREIGN = {
    set_property: lambda m: m.properties["owner"] == "somebody",
    add_tag: lambda m: "reader_x" in m.refs,
    add_column: lambda m: [f.name for f in m.schema().fields] == ["id", "status", "note"],
    append: lambda m: any("cdc.log-position" not in s.summary.additional_properties for s in m.snapshots),
    expire: lambda m: len(m.snapshots) == 3 and m.snapshots[0].parent_snapshot_id is None,
}


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda f: f.__name__)
def test_what_another_writer_committed_between_is_kept(bench: Bench, foreign: Callable[[Bench], None]) -> None:
    bench.commit(1, ids=(1,))
    bench.commit(2, ids=(2,))
    foreign(bench)
    their_head = bench.theirs().metadata.current_snapshot_id
    bench.commit(3)
    bench.commit(4)
    assert_as_pyiceberg_has_it(bench)
    metadata = bench.theirs().metadata
    assert FOREIGN[foreign](metadata)
    assert metadata.snapshots[-2].parent_snapshot_id == their_head, "ours stands on theirs"
    assert metadata.properties["cdc.position.x"].endswith(" 4")


def test_a_foreign_snapshot_runs_the_check_again_on_the_metadata_it_made(bench: Bench) -> None:
    bench.commit(1)
    transaction = cached_transaction(bench.table)
    seen: list[int | None] = []
    producer = row_delta()(
        transaction,
        data=[],
        deletes=[],
        summary={},
        replace_all=False,
        check=lambda: seen.append(bench.table.metadata.current_snapshot_id),
    )
    producer.commit()
    ours = bench.theirs().metadata.current_snapshot_id
    append(bench)
    theirs = bench.theirs().metadata.current_snapshot_id
    transaction.commit_transaction()
    assert seen == [ours, theirs]


@pytest.mark.parametrize("foreign", [set_property, append], ids=lambda f: f.__name__)
def test_who_commits_while_ours_is_written_is_found_by_the_catalogs_comparison(
    bench: Bench, foreign: Callable[[Bench], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.commit(1)
    bench.commit(2)
    steady: Any = bench.table.catalog
    write, calls = steady._write_metadata, list[str]()

    def written_late(metadata: Any, io: Any, metadata_path: str) -> None:
        if not calls:
            foreign(bench)
        calls.append(metadata_path)
        write(metadata, io, metadata_path)

    monkeypatch.setattr(steady, "_write_metadata", written_late)
    bench.commit(3)
    assert len(calls) == 2, "one attempt failed"
    assert_as_pyiceberg_has_it(bench)
    assert FOREIGN[foreign](bench.theirs().metadata)


@pytest.mark.parametrize("begin", [cached_transaction, Transaction], ids=["ours", "pyiceberg"])
@pytest.mark.parametrize("recreated", [False, True])
def test_a_table_that_was_dropped_is_refused_as_pyiceberg_refuses_it(
    tmp_path: Path, begin: Begin, recreated: bool
) -> None:
    bench = Bench(tmp_path, begin=begin)
    bench.commit(1)
    bench.other.catalog.drop_table(NAME)
    if recreated:
        bench.create()
    refused, says = (ValueError, "UUID does not match") if recreated else (NoSuchTableError, "does not exist")
    with pytest.raises(refused, match=says):
        bench.commit(2)
    if recreated:
        assert bench.log_positions() == [], "nothing was written to the new one"


def test_another_catalog_takes_pyicebergs_own_way(bench: Bench) -> None:
    class OtherCatalog(type(bench.table.catalog)):  # type: ignore[misc]
        pass

    bench.table.catalog.__class__ = OtherCatalog
    bench.commit(1)
    bench.commit(2)
    assert type(bench.table.catalog) is OtherCatalog
    assert_as_pyiceberg_has_it(bench)


def test_pyicebergs_setting_that_changes_the_file_is_left_to_pyiceberg(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.commit(1)
    monkeypatch.setenv("PYICEBERG_LEGACY_CURRENT_SNAPSHOT_ID", "true")
    bench.commit(2)
    assert ":null" in bench.written(), "that setting writes None values"
    monkeypatch.undo()
    bench.commit(3)
    assert_as_pyiceberg_has_it(bench)


def test_manifests_are_folded_and_every_entry_keeps_its_snapshot_and_its_sequence_number(bench: Bench) -> None:
    commits, model = 70, dict[int, str]()
    for number in range(1, commits + 1):
        ids = (number % 7, number)
        bench.commit(number, ids=ids)
        model |= dict.fromkeys(ids, str(number))
    table = bench.theirs()
    head = table.current_snapshot()
    assert head is not None
    manifests = head.manifests(table.io)
    by_snapshot = {s.snapshot_id: s.sequence_number for s in table.snapshots()}
    for content in ManifestContent:
        of_it = [m for m in manifests if m.content == content]
        assert len(of_it) == 8, "two of 32 each and six of one"
        entries = [e for m in of_it for e in m.fetch_manifest_entry(table.io)]
        assert sorted(e.sequence_number for e in entries) == [*range(1, commits + 1)]
        assert all(by_snapshot[e.snapshot_id] == e.sequence_number for e in entries)
        assert {tuple(e.data_file.equality_ids or ()) for e in entries} == {(1,) if content else ()}
    assert min(m.min_sequence_number for m in manifests) == 1
    assert {r["id"]: r["status"] for r in live_rows(table, ("id",))} == model
    bench.commit(commits + 1, ids=(1,), replace_all=True)
    assert [*live_rows(bench.theirs(), ("id",))] == [{"id": 1, "status": str(commits + 1)}]
