"""Listing a table's files, on tables that the sink's own code wrote."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, MANIFEST_LIST_FILE_SCHEMAS
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import StructType

from cdc_platform.errors import ConfigError, UnavailableError
from cdc_platform.lake import files
from cdc_platform.lake.files import FileListing, Reach, live_files, normal_path, reachable, same_path
from cdc_platform_tests.landing.test_transaction import NAME, SCHEMA, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    files.CACHE.clear()
    return Bench(tmp_path)


def listed(bench: Bench) -> FileListing:
    listing = live_files(bench.other, NAME)
    assert listing is not None
    return listing


def reached(bench: Bench, *snapshot_ids: int) -> Reach:
    reach = reachable(bench.other, NAME, snapshot_ids or None)
    assert reach is not None
    return reach


def snapshot_ids(bench: Bench) -> list[int]:
    return [s.snapshot_id for s in bench.theirs().snapshots()]


def manifests(table: Table) -> list[Path]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return [Path(m.manifest_path.removeprefix("file://")) for m in snapshot.manifests(table.io)]


def as_pyiceberg_reads_it(table: Table) -> set[tuple[Any, ...]]:
    """Live files by PyIceberg's own reader, which serves v2."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    entries = [e for m in snapshot.manifests(table.io) for e in m.fetch_manifest_entry(table.io)]
    of = [(e.sequence_number, e.data_file) for e in entries]
    return {(n, int(f.content), f.file_path, f.record_count, f.file_size_in_bytes) for n, f in of}


def test_the_listing_has_each_live_file_as_pyiceberg_reads_it(bench: Bench) -> None:
    for number in range(1, 40):  # More than 32: manifests are folded on the way, their entries become `existing`.
        bench.commit(number, ids=(number, 100))
    listing = listed(bench)
    contents = {"data": 0, "position_deletes": 1, "equality_deletes": 2}
    ours = {(f.sequence_number, contents[f.content], f.path, f.records, f.bytes) for f in listing.files}
    assert ours == as_pyiceberg_reads_it(bench.theirs())
    assert len(listing.files) == 2 * 39
    assert {f.equality_ids for f in listing.files} == {(), (1,)}
    assert (listing.snapshot_id, listing.format_version) == (snapshot_ids(bench)[-1], 2)
    on_disk = manifests(bench.theirs())
    assert (listing.manifests, listing.manifest_bytes) == (len(on_disk), sum(m.stat().st_size for m in on_disk))
    assert listing.metadata_bytes == len(bench.written().encode())


def test_a_second_call_reads_new_manifests_alone_and_says_what_planning_costs_without_a_cache(bench: Bench) -> None:
    bench.commit(1, ids=(1,))
    bench.commit(2, ids=(2,))
    first, again = listed(bench), listed(bench)
    assert (first.manifests_read, again.manifests_read) == (4, 0)
    assert again.planning_s == first.planning_s > 0
    assert again.files == first.files
    bench.commit(3, ids=(3,))
    assert (listed(bench).manifests, listed(bench).manifests_read) == (6, 0)


def test_a_cache_that_is_too_small_costs_time_and_changes_no_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        bench.commit(number, ids=(number,))
    whole = listed(bench)
    small = files._Kept(3)
    monkeypatch.setattr(files, "CACHE", small)
    for _ in range(2):
        assert (listed(bench).files, listed(bench).manifests_read) == (whole.files, 10)
        assert small.items <= 3


def test_what_is_kept_is_counted_right_under_many_threads() -> None:
    kept = files._Kept(50)

    def read(number: int) -> int:
        key = number % 20
        found, _ = kept.get(key, lambda: files._Read((key,) * (key % 7), 1, 0.0))
        return len(found.items)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, range(2000))) == [n % 20 % 7 for n in range(2000)]
    assert kept.items == sum(max(1, len(one.items)) for one in kept._held.values()) <= 50
    kept.clear()
    assert (kept.items, len(kept._held)) == (0, 0)


def test_no_table_and_no_snapshot_have_no_listing(bench: Bench) -> None:
    assert live_files(bench.other, "landing.none") is None
    assert live_files(bench.other, NAME) is None
    assert reachable(bench.other, "landing.none") is None
    assert reached(bench).files([]) == {}


def test_a_manifest_that_is_gone_or_broken_is_unavailable_and_never_a_smaller_number(bench: Bench) -> None:
    bench.commit(1, ids=(1,))
    [path, *_] = manifests(bench.theirs())
    text = path.read_bytes()
    without_records = text[: text.index(text[-16:]) + 16]  # The file's sync marker ends its header and each block.
    for broken, says in (
        (without_records, "0 live files where its manifest list says 1"),
        (text[:-20], "not as Iceberg's specification has it"),
        (b"", "not as Iceberg's specification has it"),
        (None, "can't be read"),
    ):
        path.unlink() if broken is None else path.write_bytes(broken)
        with pytest.raises(UnavailableError, match=says):
            listed(bench)
    path.write_bytes(text)
    assert len(listed(bench).files) == 2


def test_metadata_that_pyiceberg_does_not_understand_is_a_matter_of_configuration(bench: Bench) -> None:
    path = Path(bench.table.metadata_location.removeprefix("file://"))
    path.write_text(path.read_text().replace('"type":"string"', '"type":"variant"'))
    with pytest.raises(ConfigError, match="variant"):
        listed(bench)


def test_a_spec_whose_fields_are_all_gone_is_unpartitioned(bench: Bench) -> None:
    void = PartitionSpec(PartitionField(2, 1000, VoidTransform(), "gone"))
    bench.other.catalog.create_table("landing.void", SCHEMA, partition_spec=void)
    assert files._unpartitioned(bench.other.catalog.load_table("landing.void")) == {0}


def test_what_the_head_took_away_is_held_by_older_snapshots_alone(bench: Bench) -> None:
    bench.commit(1, ids=(1, 2))
    bench.commit(2, ids=(2,))
    before = listed(bench)
    bench.commit(3, ids=(1,), replace_all=True)
    first, second, head = snapshot_ids(bench)
    reach = reached(bench)
    old = {normal_path(f.path): f.bytes for f in before.files}
    assert reach.history_bytes == sum(old.values())
    assert reach.files([head]) == {normal_path(f.path): f.bytes for f in listed(bench).files}
    assert reach.files([first]).keys() < reach.files([second]).keys()
    gone, metadata = reach.only([first])
    assert gone == {}  # The second snapshot has them all.
    assert len(metadata) == 1  # The first one's own manifest list.
    gone, metadata = reach.only([first, second])
    assert gone == old
    assert len(metadata) == 2 + 4
    assert all(Path(p.removeprefix("file:")).stat().st_size == size for p, size in (gone | metadata).items())


def test_a_snapshot_that_went_meanwhile_is_named(bench: Bench) -> None:
    bench.commit(1, ids=(1,))
    assert set(reached(bench, *snapshot_ids(bench)).manifests_of) == set(snapshot_ids(bench))
    with pytest.raises(UnavailableError, match="snapshot 7 is no longer there"):
        reached(bench, 7)


def test_places_of_fields_are_pyicebergs() -> None:
    entry, listed_as = MANIFEST_ENTRY_SCHEMAS[3].fields, MANIFEST_LIST_FILE_SCHEMAS[3].fields
    [data_file] = [f.field_type for f in entry if f.name == "data_file"]
    assert isinstance(data_file, StructType)
    for ours, theirs in ((files._ENTRY, entry), (files._LIST, listed_as), (files._FILE, data_file.fields)):
        assert ours == {f.name: i for i, f in enumerate(theirs) if f.name in ours}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("file:/a/b", "file:///a/b", True),
        ("file:/a/b", "/a/b", True),
        ("file://localhost/a/b", "file:/a/b", True),
        ("file:////a/b", "file:/a/b", True),
        ("file://host/a/b", "file:/a/b", False),
        ("s3a://lake/a", "s3://lake/a", True),
        ("s3n://lake/a", "s3://lake/a", True),
        ("s3://lake/a", "s3://other/a", False),
        ("s3://lake/a//b", "s3://lake/a/b", False),
        ("s3://lake/a", "gs://lake/a", False),
        ("file:/a/b c#d?e", "file:///a/b c#d?e", True),
        ("file:/a:b", "/a:b", True),
        ("FILE:///a//b", "file:/a/b", True),
        ("file:/a/b#c", "file:/a/b#d", False),
    ],
)
def test_a_path_is_the_same_whoever_wrote_it(one: str, other: str, same: bool) -> None:
    assert same_path(one, other) is same
    assert normal_path(normal_path(one)) == normal_path(one)


def test_what_is_needed_is_named_once_and_the_first_snapshots_own_comes_first() -> None:
    of = Reach(
        "t",
        head_id=2,
        manifests_of={1: frozenset({"m1", "m2"}), 2: frozenset({"m2", "m3"})},
        files_in={"m1": {"a": 1}, "m2": {"b": 1}, "m3": {"c": 1}},
        manifest_bytes={"m1": 1, "m2": 1, "m3": 1},
        own_metadata={1: {"l1": 1}, 2: {"l2": 1}},
    )
    needed = of.needed(2)
    assert set(needed[:5]) == {"m2", "m3", "l2", "b", "c"}
    assert sorted(needed[5:]) == ["a", "l1", "m1"]
