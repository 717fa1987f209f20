"""Partitioned tables, composite and odd keys, and the two modes: a row that moves leaves no copy behind."""

import json
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.errors import ConfigError
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.sink import TableSink
from cdc_platform.registry.model import Landing
from cdc_platform.source.types import SourceColumn
from cdc_platform_tests.builders import SOURCE_COLUMNS, MemoryLog, event, fold, live_rows
from cdc_platform_tests.landing.test_window import histories

TABLE = "landing.orders"


class Bench:
    """One partitioned table on a log in memory."""

    def __init__(
        self,
        folder: Path,
        *,
        columns: tuple[SourceColumn, ...] = SOURCE_COLUMNS,
        key: tuple[str, ...] = ("id",),
        **policy: Any,
    ) -> None:
        self.lake = Lake(
            "lake",
            {"type": "sql", "uri": f"sqlite:///{folder}/lake/catalog.db", "warehouse": (folder / "warehouse").as_uri()},
        )
        self.log = MemoryLog()
        self.key = key
        self.policy = Landing(**policy)
        self.log.append(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in columns]) + b"\n")

    def write(self, *events: dict[str, Any]) -> None:
        self.log.append(b"".join(json.dumps(e).encode() + b"\n" for e in events))

    def land(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        """Commit these as one window and return the table's rows."""
        self.write(*events)
        TableSink(self.lake, TABLE, key=self.key, log=self.log, policy=self.policy).catch_up()
        table = self.lake.load(TABLE)
        assert table is not None
        rows = live_rows(table, self.key)
        assert len({tuple(r[k] for k in self.key) for r in rows}) == len(rows), "a key stands twice"
        return sorted(rows, key=lambda r: [str(r[k]) for k in self.key])

    def end_load(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        self.write(*events)
        self.log.append(marker(LOAD_END, 2) + b"\n")
        return self.land()


@pytest.mark.parametrize(
    "partition_by",
    [(), ("bucket(4, id)",), ("status",), ("truncate(1, status)", "bucket(2, id)"), ("id",), ("truncate(100, total)",)],
)
@pytest.mark.parametrize("mode", ["upsert", "before_image"])
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(events=histories(), data=st.data())
def test_any_history_ends_in_the_rows_of_a_fold(
    tmp_path_factory: pytest.TempPathFactory,
    partition_by: tuple[str, ...],
    mode: str,
    events: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    """Windows of any size, each sent by a sink of its own, the newest events again before each."""
    bench = Bench(tmp_path_factory.mktemp("bench"), partition_by=partition_by, mode=mode)
    rows = bench.end_load()
    sent = 0
    while sent < len(events):
        size = data.draw(st.integers(1, len(events) - sent))
        again = data.draw(st.integers(0, sent))
        rows = bench.land(*events[again : sent + size])
        sent += size
    assert {r["id"]: (r["status"], str(r["total"])) for r in rows} == fold(events)


def paths(bench: Bench, content: int) -> list[str]:
    """Partition paths of the newest snapshot's own files."""
    table = bench.lake.load(TABLE)
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return sorted(
        table.specs()[m.partition_spec_id].partition_to_path(e.data_file.partition, table.schema())
        for m in snapshot.manifests(table.io)
        for e in m.fetch_manifest_entry(table.io)
        if e.data_file.content.value == content and e.snapshot_id == snapshot.snapshot_id
    )


def test_a_delete_lies_where_the_old_row_lies(tmp_path: Path) -> None:
    """By key where the key tells, by the row before in before-image mode, else in all partitions."""
    by_key = Bench(tmp_path / "a", partition_by=("id",))
    by_key.end_load(event("r", 1), event("r", 2))
    by_key.land(event("u", 1, "x", lsn=10))
    assert (paths(by_key, 0), paths(by_key, 2)) == (["id=1"], ["id=1"])

    anywhere = Bench(tmp_path / "b", partition_by=("status",))
    anywhere.end_load(event("r", 1, "old"), event("r", 2, "old"))
    moved = event("u", 1, "new", before={"id": 1, "status": "old", "total": "1.00"}, lsn=10)
    assert [r["status"] for r in anywhere.land(moved)] == ["new", "old"]
    assert (paths(anywhere, 0), paths(anywhere, 2)) == (["status=new"], [""])

    routed = Bench(tmp_path / "c", partition_by=("status",), mode="before_image")
    routed.end_load(event("r", 1, "old"), event("r", 2, "old"))
    assert [r["status"] for r in routed.land(moved)] == ["new", "old"]
    assert (paths(routed, 0), paths(routed, 2)) == (["status=new"], ["status=old"])


def test_a_table_that_is_only_added_to_has_no_deletes_in_before_image_mode(tmp_path: Path) -> None:
    bench = Bench(tmp_path, mode="before_image")
    bench.end_load(event("r", 1))
    bench.land(event("c", 2, lsn=10))
    assert paths(bench, 2) == []
    assert len(bench.land(event("c", 2, lsn=10), event("c", 3, lsn=11))) == 3  # Sent again: it is not added twice.
    assert paths(bench, 2) == []


def test_what_a_load_brought_is_not_added_again_by_the_stream_behind_it(tmp_path: Path) -> None:
    """Debezium may stream what it had not confirmed before a reload; the load has those rows already."""
    bench = Bench(tmp_path, mode="before_image")
    bench.end_load(event("r", 1, lsn=50), event("r", 2, lsn=50))
    assert len(bench.land(event("c", 1, commit=30, lsn=40), event("c", 3, commit=50, lsn=60))) == 3


@pytest.mark.parametrize("evolve", [lambda u: u.add_field("status", "identity", "s"), lambda u: u.remove_field("id")])
def test_a_partition_spec_that_evolved_leaves_no_copy_behind(tmp_path: Path, evolve: Any) -> None:
    bench = Bench(tmp_path, partition_by=("id",))
    bench.end_load(event("r", 1), event("r", 2))
    table = bench.lake.load(TABLE)
    assert table is not None
    with table.update_spec() as update:
        evolve(update)
    bench.policy = Landing()  # It follows what the table has.
    bench.land(event("u", 1, "a", lsn=10))
    rows = bench.land(event("u", 1, "b", lsn=11), event("d", 2, lsn=12))
    assert [(r["id"], r["status"]) for r in rows] == [(1, "b")]


def test_partition_fields_that_change_under_a_living_sink_leave_no_copy_behind(tmp_path: Path) -> None:
    """The sink has written for the old fields, deletes by key there; the next windows must reach every old row."""
    bench = Bench(tmp_path, partition_by=("id",))
    bench.end_load(event("r", 1), event("r", 2))
    bench.policy = Landing()
    sink = TableSink(bench.lake, TABLE, key=("id",), log=bench.log, policy=bench.policy)
    bench.write(event("u", 1, "a", lsn=10))
    sink.catch_up()
    other = bench.lake.catalog.load_table(TABLE)
    with other.update_spec() as update:
        update.add_field("status", "identity", "s")
    for n in range(3):
        bench.write(event("u", 1, f"b{n}", lsn=20 + n), event("u", 2, f"c{n}", lsn=20 + n))
        sink.catch_up()
    table = bench.lake.load(TABLE)
    assert table is not None
    assert sorted((r["id"], r["status"]) for r in live_rows(table, ("id",))) == [(1, "b2"), (2, "c2")]
    assert set(paths(bench, 0)) == {"id=1/s=b2", "id=2/s=c2"}


def test_partition_fields_that_a_table_with_rows_is_given_leave_no_copy_behind(tmp_path: Path) -> None:
    """The key tells a row's partition only if it was written under these fields."""
    for mode in ("upsert", "before_image"):
        bench = Bench(tmp_path / mode, mode=mode)
        bench.end_load(event("r", 1, "a"), event("r", 2, "a"))
        table = bench.lake.load(TABLE)
        assert table is not None
        with table.update_spec() as update:
            update.add_field("id", "bucket[4]", "b")
        assert [(r["id"], r["status"]) for r in bench.land(event("u", 1, "b", lsn=10))] == [(1, "b"), (2, "a")]
        assert [r["id"] for r in bench.land(event("d", 2, lsn=11))] == [1]


def test_a_delete_is_not_routed_by_the_row_before_while_rows_lie_under_other_fields(tmp_path: Path) -> None:
    bench = Bench(tmp_path, mode="before_image", partition_by=("status",))
    bench.end_load(event("r", 1, "a"), event("r", 2, "a"))
    table = bench.lake.load(TABLE)
    assert table is not None
    with table.update_spec() as update:
        update.add_field("total", "identity", "t")
    bench.policy = Landing(mode="before_image")
    moved = event("u", 1, "b", before={"id": 1, "status": "a", "total": "1.00"}, lsn=10)
    assert [(r["id"], r["status"]) for r in bench.land(moved)] == [(1, "b"), (2, "a")]


def test_rows_that_a_reload_brought_are_not_looked_for_where_older_events_say(tmp_path: Path) -> None:
    bench = Bench(tmp_path, mode="before_image", partition_by=("status",))
    bench.end_load(event("r", 1, "c", lsn=50))
    bench.land(event("u", 1, "b", before={"id": 1, "status": "a", "total": "1.00"}, lsn=20))
    rows = bench.land(event("u", 1, "c", before={"id": 1, "status": "b", "total": "1.00"}, lsn=30))
    assert [(r["id"], r["status"]) for r in rows] == [(1, "c")]


def test_one_sink_serves_the_load_and_the_stream_behind_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, mode="before_image", partition_by=("status",))
    bench.write(event("r", 1, "c", lsn=5))
    bench.log.append(marker(LOAD_END, 2) + b"\n")
    rows = bench.land(event("u", 1, "b", before={"id": 1, "status": "c", "total": "1.00"}, lsn=20))
    assert [(r["id"], r["status"]) for r in rows] == [(1, "b")]


def test_a_create_after_a_delete_that_was_left_out_does_not_double_the_key(tmp_path: Path) -> None:
    bench = Bench(tmp_path, mode="before_image")
    bench.end_load(event("r", 1))
    left_out = event("d", 1, lsn=10)
    left_out["source"]["sequence"] = None
    bench.land(left_out)
    assert [r["status"] for r in bench.land(event("c", 1, "again", lsn=11))] == ["again"]


def test_a_table_whose_sink_died_before_it_was_partitioned_is_partitioned_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table import Table

    def dies(*_args: object) -> None:
        raise KeyboardInterrupt

    bench = Bench(tmp_path, partition_by=("status",))
    monkeypatch.setattr(Table, "update_spec", dies)
    with pytest.raises(KeyboardInterrupt):
        bench.end_load(event("r", 1, "a"))
    monkeypatch.undo()
    bench.land()
    assert paths(bench, 0) == ["status=a"]


@pytest.mark.parametrize("partition_by", [("status",), ("truncate(2, status)", "bucket(16, id)"), ("total", "status")])
def test_each_row_lies_in_the_partition_of_its_values_however_many_there_are(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    """pyarrow's group order is not that of the rows, from some fifty values on."""
    bench = Bench(tmp_path, partition_by=partition_by)
    rows = [event("r", i, f"s{i % 60}" if i % 61 else None, total=f"{i % 7}.00") for i in range(300)]
    bench.end_load(*rows)
    table = bench.lake.load(TABLE)
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    spec, schema, seen = table.spec(), table.schema(), 0
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            stored = pq.read_table(entry.data_file.file_path.removeprefix("file://")).to_pylist()
            for row in stored:
                seen += 1
                expected = tuple(
                    f.transform.transform(schema.find_field(f.source_id).field_type)(
                        row[schema.find_field(f.source_id).name]
                    )
                    for f in spec.fields
                )
                assert tuple(entry.data_file.partition) == expected
    assert seen == 300


def test_a_reload_without_a_partition_column_says_what_to_do(tmp_path: Path) -> None:
    bench = Bench(tmp_path, partition_by=("status",))
    bench.end_load(event("r", 1))
    bench.policy = Landing()
    fewer = [asdict(c) for c in SOURCE_COLUMNS if c.name != "status"]
    bench.log.append(marker(LOAD_BEGIN, 1, columns=fewer) + b"\n")
    with pytest.raises(ConfigError, match=r"partition column `status` became none, it was string.*then drop"):
        bench.end_load({**event("r", 1), "after": {"id": 1, "total": "1.00"}})


def test_a_declared_partition_that_the_table_has_not_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.end_load(event("r", 1))
    bench.policy = Landing(partition_by=("status",))
    with pytest.raises(ConfigError, match=r"tables.yaml partitions it by identity\(status\), the table by nothing"):
        bench.land()


@pytest.mark.parametrize(
    ("partition_by", "said"), [("day(id)", r"day\(id\), which a long can't have"), ("nope", "does not exist")]
)
def test_a_partition_that_can_not_be_is_refused_before_the_table_is_made(
    tmp_path: Path, partition_by: str, said: str
) -> None:
    bench = Bench(tmp_path, partition_by=(partition_by,))
    with pytest.raises(ConfigError, match=said):
        bench.end_load(event("r", 1))
    assert bench.lake.load(TABLE) is None


def test_a_foreign_table_whose_old_rows_no_delete_could_reach_is_refused(tmp_path: Path) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import LongType, NestedField, StringType

    bench = Bench(tmp_path)
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "status", StringType(), required=False),
        identifier_field_ids=[1],
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "status"))
    bench.lake.catalog.create_namespace("landing")
    bench.lake.catalog.create_table(TABLE, schema, partition_spec=spec, properties={"format-version": "2"})
    with pytest.raises(ConfigError, match=r"a delete could miss its old row: partition columns \(status\).*Drop the"):
        bench.land()


def test_composite_uuid_text_and_numeric_keys(tmp_path: Path) -> None:
    columns = (
        SourceColumn("region", "text", True),
        SourceColumn("ref", "uuid", True),
        SourceColumn("no", "numeric(20,2)", True),
        SourceColumn("day", "date", True),
        SourceColumn("v", "integer", False),
    )
    key = ("region", "ref", "no", "day")
    bench = Bench(tmp_path, columns=columns, key=key, partition_by=("day(day)", "bucket(3, ref)"), shards=3)
    ids = [str(uuid.UUID(int=n)) for n in range(4)]
    rows = [
        {"region": r, "ref": ref, "no": no, "day": 19_000 + n, "v": n}
        for n, (r, ref, no) in enumerate([("a", ids[0], "1.00"), ("a", ids[0], "2.00"), ("ä", ids[1], "1.00")])
    ]
    bench.end_load(*[{**event("r", 1, lsn=1), "before": None, "after": row} for row in rows])
    changed = {**event("u", 1, lsn=9), "before": rows[0], "after": rows[0] | {"v": 70}}
    moved = {**event("u", 1, lsn=10), "before": rows[2], "after": rows[2] | {"ref": ids[3], "v": 71}}
    gone = {**event("d", 1, lsn=11), "before": rows[1], "after": None}
    found = bench.land(changed, moved, gone)
    assert [(r["region"], r["ref"], str(r["no"]), r["v"]) for r in found] == [
        ("a", ids[0], "1.00", 70),
        ("ä", ids[3], "1.00", 71),
    ]
    assert len(paths(bench, 2)) == 4
