"""The sink commits while maintenance runs beside it again and again: no commit is lost, no row is wrong."""

import random
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.errors import ConflictError, UnavailableError
from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.spark import Spark
from cdc_platform.landing.position import POSITION_TAG, landed
from cdc_platform.landing.sink import TableSink
from cdc_platform.maintenance.maintain import Effect, maintain
from cdc_platform.registry.maintenance import Maintenance
from cdc_platform_tests.builders import SOURCE_COLUMNS, MemoryLog, event, fold, lines

pytestmark = [pytest.mark.e2e]
TABLE = "landing.live"
LASTS_S = 40
KEYS, A_WINDOW = 2_000, 200
PAUSE_S = 0.5  # Twice as often as the sink's default.
POLICY = Maintenance(keep_snapshots_for=timedelta(seconds=2), keep_snapshots_min=3)


class Writer(threading.Thread):
    """The real sink on a log that grows: a commit for each batch of changes, as fast as it can."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(daemon=True)
        self.events: list[dict[str, Any]] = [event("r", n, lsn=1) for n in range(KEYS)]
        load = (
            marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in SOURCE_COLUMNS]),
            *lines(self.events).splitlines(),
            marker(LOAD_END, 2),
        )
        self.log = MemoryLog(b"".join(line.rstrip(b"\n") + b"\n" for line in load))
        self.sink = TableSink(lake, TABLE, key=("id",), log=self.log, window_s=0.0)
        self.sink.catch_up()
        self.commits = 0
        self.failed: BaseException | None = None
        self.ending = threading.Event()

    def run(self) -> None:
        dice, live, lsn = random.Random(5), dict.fromkeys(range(KEYS), "new"), 10
        try:
            while not self.ending.is_set():
                batch = list[dict[str, Any]]()
                for _ in range(A_WINDOW):
                    lsn += 1
                    row_id = dice.randrange(KEYS)
                    kind = "c" if row_id not in live else dice.choice("uuud")
                    if kind == "d":
                        del live[row_id]
                    else:
                        live[row_id] = f"s{lsn}"
                    batch.append(event(kind, row_id, f"s{lsn}", commit=lsn, lsn=lsn, order=1, tx=lsn))
                self.events += batch
                self.log.append(lines(batch))
                self.commit()
                time.sleep(PAUSE_S)
        except BaseException as error:
            self.failed = error

    def commit(self) -> None:
        """As the sink's service does: what another writer's commit, or a busy catalog, refused is tried again."""
        for _ in range(20):
            try:
                self.sink.catch_up()
            except (ConflictError, UnavailableError):
                time.sleep(0.2)
            else:
                self.commits += 1
                return
        raise AssertionError("the sink could not commit in 20 attempts")


def test_no_commit_of_the_sink_is_lost_to_maintenance_beside_it(spark_lake: tuple[Spark, Lake, str]) -> None:
    spark, lake, _ = spark_lake
    writer = Writer(Lake(lake.name, lake._properties))  # One catalog object for each thread.
    writer.start()
    effects, gave_up = list[Effect](), 0
    ends = time.monotonic() + LASTS_S
    while time.monotonic() < ends:
        for operation in ("rewrite_data_files", "expire_snapshots"):
            try:
                effect = maintain(spark, lake, TABLE, operation, POLICY, dry_run=False)
            except ConflictError:  # A busy machine: no attempt of Java fitted between two of the sink's commits.
                gave_up += 1
                continue
            assert isinstance(effect, Effect)
            effects.append(effect)
            assert writer.failed is None
    writer.ending.set()
    writer.join(60)
    assert writer.failed is None
    found = {
        row["id"]: (row["status"], str(row["total"]))
        for row in spark.rows(f"SELECT id, status, total FROM lake.{TABLE}")
    }
    must = fold(writer.events)
    lost, doubled_or_old = must.keys() - found.keys(), found.keys() - must.keys()
    assert (lost, doubled_or_old) == (set(), set())
    assert found == must
    assert spark.rows(f"SELECT count(*) AS n FROM lake.{TABLE}") == [{"n": len(must)}]
    rewrites = [e for e in effects if e.operation == "rewrite_data_files" and e.changed]
    assert rewrites, f"{gave_up} runs gave up"
    assert writer.commits > len(effects)
    assert sum(e.changed for e in effects if e.operation == "expire_snapshots") >= 1
    history = lake.history(TABLE)
    assert history is not None
    position = history.newest(landed)
    assert position is not None and history.refs[POSITION_TAG] == position.snapshot_id
