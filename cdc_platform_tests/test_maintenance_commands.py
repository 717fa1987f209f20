"""`cdc-platform health` and `maintain` on a real catalog, without Spark: figures, findings, exit codes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, marker
from cdc_platform.cli import main
from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.position import landing_table
from cdc_platform.landing.sink import TableSink
from cdc_platform_tests.builders import SOURCE_COLUMNS, MemoryLog, event, lines

COMMITS = 4


class Project:
    """A project whose table `orders` has landed in some commits, one update each after the load."""

    def __init__(self, folder: Path, landing: str = "{}") -> None:
        self.folder = folder
        (folder / "tables.yaml").write_text(
            "deployment: shop\nsources: {shop: {postgres: {embedded: shop}}}\n"
            'tables: {orders: {source: shop.public.orders, key: [id], owners: ["team:orders"], '
            f"landing: {landing}}}}}\n"
        )
        deployment = Deployment.load(folder)
        (deployment.state / "lake").mkdir(parents=True)
        (deployment.state / "run").mkdir()
        deployment.endpoints_file.write_text(json.dumps({"spark": "sc://127.0.0.1:1"}))
        self.lake = Lake(CATALOG, deployment.catalog_properties)
        begin = marker(LOAD_BEGIN, 1, columns=[asdict(column) for column in SOURCE_COLUMNS])
        log = MemoryLog(begin + b"\n" + lines(event("r", row) for row in (1, 2, 3)) + marker(LOAD_END, 2) + b"\n")
        sink = TableSink(self.lake, landing_table("orders"), key=("id",), log=log, window_s=0.0)
        sink.catch_up()
        for n in range(1, COMMITS):
            log.append(lines([event("u", 1, f"s{n}", commit=n, lsn=n)]))
            sink.catch_up()

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["--project", str(self.folder), *arguments])

    def json(self, *arguments: str, code: int = 0) -> Any:
        done = self.run(*arguments, "--json")
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)


def test_health_counts_from_metadata_alone_and_says_null_of_a_table_that_is_not_there(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()  # No data file is opened.
    found = project.json("health", "orders")
    assert found["curated.orders"] is None
    state = found["landing.orders"]
    counted = ("data_files", "data_records", "equality_delete_files", "equality_deletes", "snapshots", "format_version")
    assert [state[key] for key in counted] == [4, 6, 3, 3, 4, 2]
    assert (state["small_files"], state["dangling_delete_files"], state["commits_since_rewrite"]) == (4, 0, 4)
    assert state["history_bytes"] == 0  # Nothing was rewritten: each file is live.
    assert (state["delete_files"], state["deletes"], state["delete_ratio"]) == (3, 3, 0.5)
    assert state["findings"] == []
    assert "landing.orders" in project.run("health").output


def test_health_beyond_a_limit_ends_with_3_and_names_the_command(tmp_path: Path) -> None:
    project = Project(tmp_path, "{maintenance: {class: hot, rewrite_delete_files: 2, alarm_at: 1.25}}")
    [finding] = project.json("health", "orders", code=3)["landing.orders"]["findings"]
    assert finding == {
        "group": "files",
        "figure": "delete_files",
        "measured": 3,
        "limit": 2.5,
        "action": "`cdc-platform maintain orders rewrite_data_files --dry-run` shows what a rewrite would take away",
    }
    at_the_limit = "{maintenance: {class: hot, rewrite_delete_files: 2, alarm_at: 1.5}}"
    (tmp_path / "again").mkdir()
    assert Project(tmp_path / "again", at_the_limit).run("health", "orders").exit_code == 0


def test_metadata_that_cannot_be_read_is_unavailable_not_unhealthy(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for manifest in tmp_path.rglob("*.avro"):
        manifest.write_bytes(b"torn")
    found = project.json("health", "orders", code=4)
    assert found["landing.orders"]["error"]["where"].startswith("landing.orders")
    assert found["curated.orders"] is None  # The others are told all the same.


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("maintain", "orders", "rewrite_data_files"), 4, "nothing listens there"),
        (("maintain", "orders", "vacuum"), 2, "rewrite_manifests"),
        (("maintain", "order", "expire_snapshots"), 2, "Use one of: orders"),
        (("health", "order"), 2, "Use one of: orders"),
    ],
)
def test_what_can_not_be_done_is_told_with_what_can(
    tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = Project(tmp_path).run(*arguments)
    assert done.exit_code == code, done.output
    assert says in done.output
