import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdc_platform.errors import ConfigError
from cdc_platform.stack.report import Report, is_at_work, is_ready, read_report

# In a process of its own: it blocks signals for good.
_SERVICE = """
import sys, threading
from pathlib import Path
from cdc_platform.errors import ConfigError
from cdc_platform.stack.report import Report, run_reported

def run(report):
    {body}

sys.exit(run_reported(Report(Path(sys.argv[1]), "sink"), run))
"""


def _start(run_dir: Path, body: str) -> "subprocess.Popen[str]":
    program = _SERVICE.format(body=body)
    return subprocess.Popen([sys.executable, "-c", program, str(run_dir)], stderr=subprocess.PIPE, text=True)


def test_a_service_is_ready_once_it_says_so_and_only_that_process_is(tmp_path: Path) -> None:
    report = Report(tmp_path, "sink")
    assert not is_ready(tmp_path, "sink", os.getpid())
    report.ready(window=1)
    report.progress(window=2)
    assert is_ready(tmp_path, "sink", os.getpid())
    assert not is_ready(tmp_path, "sink", os.getpid() + 1)
    assert read_report(tmp_path, "sink").keys() == {"pid", "ready_at", "window"}
    assert read_report(tmp_path, "sink")["window"] == 2
    assert [file.name for file in tmp_path.iterdir()] == ["sink.json"]


def test_a_service_that_is_ready_again_takes_its_error_back(tmp_path: Path) -> None:
    report = Report(tmp_path, "sink")
    report.failed(ConfigError("no key", where="tables.yaml", action="Add one"))
    assert not is_ready(tmp_path, "sink", os.getpid())
    report.ready()
    assert "error" not in read_report(tmp_path, "sink")


def test_an_error_is_left_for_status_told_in_one_line_and_becomes_the_exit_code(tmp_path: Path) -> None:
    service = _start(tmp_path, 'raise ConfigError("slot is lost", where="bookshop", action="Rebuild")')
    _, stderr = service.communicate(timeout=20)
    assert service.returncode == 2
    assert stderr == "bookshop: slot is lost. Rebuild.\n"
    told = json.loads((tmp_path / "sink.json").read_text())
    assert told.pop("at")
    assert told == {
        "pid": service.pid,
        "exit_code": 2,
        "error": {"where": "bookshop", "what": "slot is lost", "action": "Rebuild"},
    }


def test_a_crash_is_left_for_status_with_the_way_to_its_traceback(tmp_path: Path) -> None:
    service = _start(tmp_path, "return 1 / 0")
    _, stderr = service.communicate(timeout=20)
    assert service.returncode == 1
    assert "Traceback" in stderr
    assert read_report(tmp_path, "sink")["error"] == {
        "where": "sink",
        "what": "ZeroDivisionError: division by zero",
        "action": "Read the traceback with `cdc-platform logs sink`",
    }


@pytest.mark.parametrize("waits", ["report.stopping.wait()", "threading.Thread(target=report.stopping.wait)"])
def test_sigterm_asks_the_service_to_stop_and_it_ends_well(tmp_path: Path, waits: str) -> None:
    body = f"report.ready(); {waits}" if "Thread" not in waits else f"t = {waits}; t.start(); report.ready(); t.join()"
    service = _start(tmp_path, body)
    while not is_ready(tmp_path, "sink", service.pid):
        assert service.poll() is None
        time.sleep(0.02)
    service.terminate()
    assert service.wait(timeout=20) == 0


def test_a_service_is_at_work_while_the_process_that_said_it_was_ready_lives(tmp_path: Path) -> None:
    assert not is_at_work(tmp_path, "capture-shop")
    report = Report(tmp_path, "capture-shop")
    report.failed(ConfigError("x", where="y", action="z"))
    assert not is_at_work(tmp_path, "capture-shop")
    report.ready()
    assert is_at_work(tmp_path, "capture-shop")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    content = read_report(tmp_path, "capture-shop") | {"pid": ended.pid}
    (tmp_path / "capture-shop.json").write_text(json.dumps(content))
    assert not is_at_work(tmp_path, "capture-shop")
