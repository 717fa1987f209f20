"""Capture holds a batch while the disk is nearly full, and goes on by itself."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_platform.capture.room import Room, StoppedError, free_bytes


def room(free_mb: Iterator[int], told: list[str | None], stopping: threading.Event) -> Room:
    return Room(Path("/srv/state"), 100, stopping, told.append, free=lambda _: next(free_mb) << 20, again_s=0)


def test_with_room_nothing_is_told() -> None:
    told: list[str | None] = []
    room(iter([100]), told, threading.Event()).wait()
    assert told == []


def test_without_room_it_waits_says_what_to_do_and_that_it_is_over() -> None:
    told: list[str | None] = []
    room(iter([99, 99, 50, 100]), told, threading.Event()).wait()
    assert told[-1] is None
    assert [t and t.split(" MB")[0] for t in told] == ["/srv/state: 99", "/srv/state: 50", None]
    assert told[0] is not None
    assert "`stack.disk_free_min_mb`" in told[0]
    assert "goes on by itself" in told[0]


def test_a_service_that_ends_gives_its_batch_up_unacknowledged() -> None:
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(StoppedError):
        room(iter([1] * 9), [], stopping).wait()


def test_free_space_is_the_disks(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
