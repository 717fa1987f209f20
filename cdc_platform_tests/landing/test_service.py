"""The sink service over two tables: each fails alone, and is tried again."""

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.changelog.segments import SegmentWriter
from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.service import run
from cdc_platform_tests.builders import SOURCE_COLUMNS, event, live_rows


class FakeReport:
    """Ends the service once `enough` says so of what was reported."""

    def __init__(self, enough: Any) -> None:
        self.stopping = threading.Event()
        self.facts: dict[str, Any] = {}
        self._enough = enough

    def ready(self, **facts: Any) -> None:
        self.facts |= facts

    def progress(self, **facts: Any) -> None:
        self.facts |= facts
        if self._enough(self.facts):
            self.stopping.set()


@pytest.mark.parametrize("value", ["12", 2**63, "\ud800"])
def test_a_table_that_can_not_go_on_says_so_and_the_other_goes_on(tmp_path: Path, value: object) -> None:
    (tmp_path / "tables.yaml").write_text(
        "deployment: t\nsources: {t: {postgres: {embedded: t}}}\ntables:\n"
        "  bad: {source: t.public.bad, key: [id], owners: ['team:t'], landing: {dead_letters_max_share: 0}}\n"
        "  good: {source: t.public.good, key: [id], owners: ['team:t']}\n"
    )
    deployment = Deployment.load(tmp_path)
    for name, key in (("bad", value), ("good", 7)):
        writer = SegmentWriter(deployment.changelog_dir(name))
        writer.append_marker(marker(LOAD_BEGIN, 1, columns=[asdict(c) for c in SOURCE_COLUMNS]))
        row = event("r", 1)
        row["after"]["id"] = key
        writer.append([json.dumps(row).encode()])
        writer.append_marker(marker(LOAD_END, 2))
        writer.close()
    report = FakeReport(lambda f: f["problems"] and f["tables"]["good"].get("window"))
    threading.Timer(60, report.stopping.set).start()
    run(deployment, report)
    [problem] = report.facts["problems"]
    assert "landing.bad" in problem
    assert "1 of the newest 1 events can't be applied" in problem
    table = Lake(CATALOG, deployment.catalog_properties).load("landing.good")
    assert [r["id"] for r in live_rows(table, ("id",))] == [7]
