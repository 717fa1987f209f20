import pytest

from benchmarks.soak_watch import Windows, growth, runs_recorded
from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.landing.position import LOG_POSITION, WINDOW


def chain(*snapshots: tuple[int, int | None], head_id: int, properties: dict[str, str] | None = None) -> TableHistory:
    """Snapshots by id and parent: the sink's 10n + k is the k-th with window n; those above 1000 rewrite."""
    made = {
        i: Snapshot(
            i,
            parent,
            i,
            "replace" if i > 1000 else "overwrite",
            i,
            {} if i > 1000 else {LOG_POSITION: "0", WINDOW: str(i // 10)},
        )
        for i, parent in snapshots
    }
    return TableHistory("landing.orders", (), head_id, made, properties or {})


def test_windows_seen_between_two_expiries_and_a_rewrite_are_all_there() -> None:
    windows = Windows(1)
    windows.see(chain((10, None), (20, 10), (30, 20), head_id=30))
    windows.see(chain((30, 20), (1001, 30), (40, 1001), (50, 40), head_id=50))
    assert (windows.committed, windows.missing, windows.repeated, len(windows.rewrites)) == (4, [], [], 1)


def test_a_window_that_a_rewrite_took_out_of_the_ancestry_before_it_was_seen_is_missing() -> None:
    windows = Windows(1)
    windows.see(chain((10, None), (20, 10), head_id=20))
    windows.see(chain((10, None), (20, 10), (30, 20), (1001, 20), (40, 1001), head_id=40))
    assert (windows.committed, windows.missing) == (3, [3])


def test_a_window_that_was_undone_and_committed_again_is_repeated() -> None:
    windows = Windows(1)
    windows.see(chain((10, None), (20, 10), (30, 20), head_id=30))
    windows.see(chain((10, None), (20, 10), (30, 20), (31, 20), (40, 31), head_id=40))
    assert (windows.missing, windows.repeated) == ([], [3])


def test_a_window_that_expired_unseen_is_missing() -> None:
    windows = Windows(1)
    windows.see(chain((10, None), (20, 10), head_id=20))
    windows.see(chain((40, 30), (50, 40), head_id=50))
    assert windows.missing == [3]


@pytest.mark.parametrize(
    ("values", "expected"), [((1, 9, 2, 9, 1), 1.0), (range(1, 101), 2.0), ((0, 0, 3), 1.0), ((), 1.0)]
)
def test_growth_compares_the_peaks_of_both_halves(values: tuple[float, ...], expected: float) -> None:
    assert growth(values) == expected


def test_recorded_runs_are_told_apart_by_operation_and_time() -> None:
    text = '[{"at_ms": 2, "snapshot_id": 1, "took_s": 1, "changed": true}, {"at_ms": 1, "snapshot_id": 1}]'
    properties = {"cdc.maintenance.expire_snapshots": text, "cdc.maintenance.rewrite_manifests": text, "other": "1"}
    assert len(runs_recorded(chain((10, None), head_id=10, properties=properties))) == 4
