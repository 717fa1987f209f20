"""How capture and the sink tell the stack that they are ready, how far they are, and why they ended.

Belongs here: the small file <state>/run/<service>.json that a service writes and `status` reads, and the
clean stop at SIGTERM. Does not: what a service does, or restarting it (`supervisor.py`).
The file: {"pid", "ready_at", ...facts} of a service that is ready; {"pid", "at", "exit_code",
"error": {"where", "what", "action"}} of one that ended with an error. Times are UTC, ISO 8601.
"""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdc_platform.errors import CdcError


class Report:
    """What one running service tells about itself."""

    def __init__(self, run_dir: Path, service: str) -> None:
        self.service = service
        self.stopping = threading.Event()  # Set once at SIGTERM or SIGINT: end in order, losing nothing.
        self._file = report_file(run_dir, service)
        self._facts: dict[str, Any] = {}
        self._writing = threading.Lock()

    def ready(self, **facts: Any) -> None:
        """Say that the service works now; replaces the error of an earlier process."""
        self._facts = {"pid": os.getpid(), "ready_at": _now(), **facts}
        self._write(self._facts)

    def progress(self, **facts: Any) -> None:
        """Update facts of a service that is ready."""
        with self._writing:
            self._facts |= facts
            self._write(self._facts)

    def failed(self, error: CdcError) -> None:
        """Leave the error for `status`."""
        told = {"where": error.where, "what": error.what, "action": error.action}
        self._write({"pid": os.getpid(), "at": _now(), "exit_code": error.exit_code, "error": told})

    def _write(self, content: dict[str, Any]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".json.new")
        fresh.write_text(json.dumps(content))
        fresh.replace(self._file)


def report_file(run_dir: Path, service: str) -> Path:
    """Where `service` reports."""
    return run_dir / f"{service}.json"


def read_report(run_dir: Path, service: str) -> dict[str, Any]:
    """Return what `service` last wrote, empty when it never did."""
    try:
        return json.loads(report_file(run_dir, service).read_text())
    except FileNotFoundError:
        return {}


def is_ready(run_dir: Path, service: str, pid: int) -> bool:
    """Whether this very process of `service` has said that it is ready."""
    report = read_report(run_dir, service)
    return "ready_at" in report and report["pid"] == pid


def is_at_work(run_dir: Path, service: str) -> bool:
    """Whether the process that last reported for `service` said that it is ready, and lives."""
    report = read_report(run_dir, service)
    if "ready_at" not in report:
        return False
    try:
        os.kill(report["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # Another user's, but there.
        return True
    return True


def run_reported(report: Report, run: Callable[[Report], None]) -> int:
    """Run a service to its end and return its exit code; call it from the main thread, before others start.

    A thread waits for the signals instead of a handler: Python's handlers wait for the main thread,
    which may be inside Java for long. A JVM in the process needs `-Xrs`, or it takes SIGTERM itself.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    threading.Thread(target=_await_stop, args=(report.stopping,), daemon=True).start()
    try:
        run(report)
    except CdcError as error:
        report.failed(error)
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except Exception as error:  # A service's last line of defence: it says why, then ends.
        traceback.print_exc()
        known = CdcError(
            f"{type(error).__name__}: {error}".rstrip("."),
            where=report.service,
            action=f"Read the traceback with `cdc-platform logs {report.service}`",
        )
        report.failed(known)
        return known.exit_code
    return 0


def _await_stop(stopping: threading.Event) -> None:
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    stopping.set()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
