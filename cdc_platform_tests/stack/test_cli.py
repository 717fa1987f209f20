import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cdc_platform.cli import main

HEAVY = {"dagster", "pyspark", "pyiceberg", "pyarrow", "pandas", "numpy", "jpype"}


def test_every_command_is_found_and_has_a_help() -> None:
    runner = CliRunner()
    listing = runner.invoke(main, ["--help"]).output
    for name in ("up", "down", "status", "logs"):
        assert f"  {name} " in listing
        assert runner.invoke(main, [name, "--help"]).exit_code == 0
    assert "  service" not in listing


def test_the_root_and_its_status_load_without_the_heavy_libraries() -> None:
    program = f"import sys, cdc_platform.cli, cdc_platform.stack.commands\nprint(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", [["status"], ["down"], ["up", "--detach"]])
def test_a_folder_without_tables_yaml_is_a_usage_error(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(main, ["--project", str(tmp_path), *command])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path}/tables.yaml: can't be read")
    assert result.stdout == ""


def _project(folder: Path) -> Path:
    (folder / "tables.yaml").write_text(
        "deployment: shop\nsources: {shop: {postgres: {embedded: shop}}}\n"
        'tables: {orders: {source: shop.public.orders, key: [id], owners: ["team:orders"]}}\n'
    )
    return folder


def test_the_end_of_a_log_is_printed(tmp_path: Path) -> None:
    logs = _project(tmp_path) / ".cdc-platform" / "logs"
    logs.mkdir(parents=True)
    (logs / "sink.log").write_text("one\ntwo\nthree\n")
    result = CliRunner().invoke(main, ["--project", str(tmp_path), "logs", "sink", "--lines", "2"])
    assert (result.exit_code, result.stdout) == (0, "two\nthree\n")
    unknown = CliRunner().invoke(main, ["--project", str(tmp_path), "logs", "sinc"])
    assert unknown.exit_code == 2
    assert unknown.stderr == f"{logs}: no log of `sinc`. Use one of: sink.\n"


def test_a_stack_that_does_not_run_is_told_so(tmp_path: Path) -> None:
    project = str(_project(tmp_path))
    status = CliRunner().invoke(main, ["--project", project, "status", "--json"])
    assert status.exit_code == 4
    assert json.loads(status.stdout)["services"][0] == {
        "service": "postgres",
        "state": "stopped",
        "pid": None,
        "uptime_s": 0,
        "restarts": 0,
        "memory_mb": 0,
        "detail": "",
        "facts": {},
    }
    down = CliRunner().invoke(main, ["--project", project, "down"])
    assert (down.exit_code, down.stdout) == (0, "Nothing was running.\n")
