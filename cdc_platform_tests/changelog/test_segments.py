"""The segment log: what is written is read, whatever a kill leaves behind."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, SCHEMA, is_marker, marker
from cdc_platform.changelog.segments import SegmentLog, SegmentWriter, newest_columns, newest_marker
from cdc_platform.errors import ConfigError, InvariantError


def read_all(log: SegmentLog, start: int = 0, *, bytes_max: int = 7) -> list[bytes]:
    found: list[bytes] = []
    while (batch := log.read(start, bytes_max=bytes_max)).lines:
        assert batch.start == start
        found += batch.lines.splitlines()
        assert batch.end == start + batch.lines.count(b"\n")
        start = batch.end
    return found


@given(
    batches=st.lists(st.lists(st.binary(max_size=12).map(lambda b: b.hex().encode()), max_size=4), max_size=8),
    segment_bytes_max=st.integers(1, 40),
    bytes_max=st.integers(1, 30),
    data=st.data(),
)
def test_every_record_is_read_at_its_offset(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[bytes]],
    segment_bytes_max: int,
    bytes_max: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    writer = SegmentWriter(folder, segment_bytes_max=segment_bytes_max)
    for batch in batches:
        writer.append(batch)
    writer.close()
    records = [record for batch in batches for record in batch]
    start = data.draw(st.integers(0, len(records)))
    assert read_all(SegmentLog(folder), start, bytes_max=bytes_max) == records[start:]
    assert SegmentLog(folder).end() == len(records)


def test_a_reader_follows_a_writer_across_segments(tmp_path: Path) -> None:
    writer, log, seen = SegmentWriter(tmp_path, segment_bytes_max=10), SegmentLog(tmp_path), []
    for n in range(20):
        writer.append([b"record %d" % n])
        writer.sync()
        seen += read_all(log, len(seen))
    assert seen == [b"record %d" % n for n in range(20)]


def test_a_torn_line_is_not_read_and_is_cut_when_the_writer_opens(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    writer.append([b"whole"])
    writer.close()
    [segment] = tmp_path.glob("*.jsonl")
    segment.write_bytes(b"whole\nhalf of a rec")
    assert read_all(SegmentLog(tmp_path)) == [b"whole"]
    again = SegmentWriter(tmp_path)
    assert again.end == 1
    again.append([b"redelivered"])
    again.close()
    assert read_all(SegmentLog(tmp_path)) == [b"whole", b"redelivered"]


def test_a_segment_that_is_one_torn_line_is_emptied(tmp_path: Path) -> None:
    (tmp_path / f"{7:020d}.jsonl").write_bytes(b"never acknowledged")
    writer = SegmentWriter(tmp_path)
    assert writer.end == 7
    writer.append([b"a"])
    writer.close()
    assert read_all(SegmentLog(tmp_path), 7) == [b"a"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    first = SegmentWriter(tmp_path)
    with pytest.raises(ConfigError, match="another process writes this change log"):
        SegmentWriter(tmp_path)
    first.close()
    SegmentWriter(tmp_path).close()


def test_a_position_that_the_log_does_not_hold_is_an_error_and_not_an_empty_read(tmp_path: Path) -> None:
    (tmp_path / f"{5:020d}.jsonl").write_bytes(b"a\nb\n")
    with pytest.raises(InvariantError, match=r"record 4 is gone; the log begins at 5.*recapture"):
        SegmentLog(tmp_path).read(4, bytes_max=10)
    with pytest.raises(InvariantError, match="the log ends at 7, before record 8"):
        SegmentLog(tmp_path).read(8, bytes_max=10)
    assert SegmentLog(tmp_path).read(7, bytes_max=10).lines == b""


@pytest.mark.parametrize(
    ("kinds", "newest", "load"),
    [
        ([], None, 0),
        ([LOAD_BEGIN], LOAD_BEGIN, 1),
        ([LOAD_BEGIN, LOAD_END], LOAD_END, 1),
        ([LOAD_BEGIN, LOAD_BEGIN, LOAD_END], LOAD_END, 3),
        ([LOAD_BEGIN, LOAD_END, LOAD_BEGIN], LOAD_BEGIN, 1),
        ([LOAD_BEGIN, LOAD_END, LOAD_BEGIN, LOAD_END], LOAD_END, 5),
    ],
)
def test_loads_are_found_by_their_markers(tmp_path: Path, kinds: list[str], newest: str | None, load: int) -> None:
    """A record stands before each marker, so the markers have the offsets 1, 3, 5 and 7."""
    writer = SegmentWriter(tmp_path)
    for kind in kinds:
        writer.append([b"{}"])
        writer.append_marker(marker(kind, 9))
    writer.close()
    assert newest_marker(tmp_path) == newest
    assert SegmentLog(tmp_path).newest_load() == load
    assert [json.loads(r).get("op") for r in read_all(SegmentLog(tmp_path))][1::2] == kinds


def test_a_schema_marker_is_no_load_marker_and_the_newest_columns_are_found(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    assert newest_columns(tmp_path) is None
    for kind, facts in ((LOAD_BEGIN, {"columns": ["a"]}), (LOAD_END, {}), (SCHEMA, {"columns": ["a", "b"]})):
        writer.append_marker(marker(kind, 9, **facts))
        writer.append([b'{"op":"c"}', b'{"op":"schema_of_mine","columns":["no marker"]}'])
        writer.sync()
        assert (newest_columns(tmp_path) or {})["columns"] == (["a", "b"] if kind == SCHEMA else ["a"])
    writer.close()
    assert newest_marker(tmp_path) == LOAD_END
    assert SegmentLog(tmp_path).newest_load() == 0
    assert [is_marker(line) for line in read_all(SegmentLog(tmp_path))] == [True, False, False] * 3
