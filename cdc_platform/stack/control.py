"""The stack as a whole: up, down, and how it is.

Belongs here: the order of starting, waiting until services are ready, what `status` tells. Does not: words
and colours on a terminal (`commands.py`), or what supervisord is asked (`supervisor.py`).
Units: `*_s` are seconds.
"""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdc_platform.deployment import Deployment
from cdc_platform.errors import CdcError, ConfigError, UnavailableError
from cdc_platform.stack import dagster_services, processes
from cdc_platform.stack import services as declared
from cdc_platform.stack.jdk import REMEDY, JdkError, java_home
from cdc_platform.stack.report import read_report, report_file
from cdc_platform.stack.service import Service
from cdc_platform.stack.supervisor import Supervised, Supervisor

READY_WITHIN_S = 180
DEMO_MARK = "demo"  # File in a state folder that a demo made and nobody has used since: another may replace it.
_ASKED_EVERY_S = 0.25
_STATES = {"STARTING": "starting", "RUNNING": "starting", "BACKOFF": "backing off", "FATAL": "failed"}


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One line of `status`; the field names are its JSON keys."""

    service: str
    state: str  # ready, impaired (works, but not for all it serves), starting, backing off, failed or stopped.
    pid: int | None
    uptime_s: int
    restarts: int
    memory_mb: int
    detail: str  # The last error and its remedy, until the service is ready again; what an impaired one fails at.
    facts: dict[str, Any] = field(default_factory=dict[str, Any])  # What it tells of its work; empty unless ready.


class Stack:
    """The embedded services of one deployment."""

    def __init__(
        self,
        deployment: Deployment,
        services: Callable[[Deployment, Mapping[str, int]], tuple[Service, ...]] = declared.services,
    ) -> None:
        self._deployment = deployment
        self._services = services
        self._run_dir = deployment.state / "run"
        self._supervisor = Supervisor(deployment.state)

    @property
    def logs_dir(self) -> Path:
        """Folder of the log files, one for each service."""
        return self._deployment.state / "logs"

    def launch(self, *, bound: bool, warn: Callable[[str], None]) -> subprocess.Popen[bytes]:
        """Prepare everything and start supervisord, no service yet; `bound`: it ends with this process."""
        self._refuse_other_user()
        for folder in (self._run_dir, self.logs_dir):
            folder.mkdir(parents=True, exist_ok=True)
        with (self._run_dir / "lock").open("w") as lock:
            self._refuse_second(lock.fileno())
            if (stale := self._supervisor.clean_stale()) is not None:
                warn(stale)
            if left := processes.end_marked(self._deployment.state):
                warn(f"Ended {left} processes that an earlier stack had left.")
            environment = self._environment()
            ports = declared.choose_endpoint_ports(self._deployment)
            services = self._services(self._deployment, ports)
            for service in services:
                service.prepare()
                report_file(self._run_dir, service.name).unlink(missing_ok=True)
            declared.write_endpoints(self._deployment, ports)
            return self._supervisor.launch(
                services, folder=self._deployment.project, environment=environment, bound=bound
            )

    def start(self, *names: str, tell: Callable[[str, float], None]) -> None:
        """Start the named services (none: all), each when those before it are ready; wait for them.

        `tell` hears of each that is ready, with the seconds from its start. What is not ready in time,
        or refuses its configuration, is raised; it goes on trying, and so do the others.
        """
        supervised = self._supervisor.supervised()
        waiting = {s.name: s for s in self._running_services(supervised) if not names or s.name in names}
        started_at = {n: time.monotonic() for n in waiting if supervised[n].state != "STOPPED"}
        give_up = time.monotonic() + READY_WITHIN_S
        failed: CdcError | None = None
        while waiting and failed is None:
            supervised = self._supervisor.supervised()
            for name, service in list(waiting.items()):
                if name not in started_at:
                    if not waiting.keys() & service.starts_after:
                        started_at[name] = time.monotonic()
                        self._supervisor.start(name)
                elif _is_ready(service, supervised.get(name)):
                    service.once_ready()
                    del waiting[name]
                    tell(name, time.monotonic() - started_at[name])
                elif (refusal := self._refusal(name)) is not None:
                    failed = refusal
            if self._supervisor.pid() is None:
                raise UnavailableError(
                    "supervisord ended",
                    where=str(self._supervisor.log_file),
                    action="If nobody has just stopped the stack, read that file's end",
                )
            if failed is None and waiting and time.monotonic() > give_up:
                failed = self._not_ready(next(iter(waiting)))
            time.sleep(_ASKED_EVERY_S if waiting else 0)
        for name in waiting.keys() - started_at.keys():
            self._supervisor.start(name)  # Nobody would start it later; it retries by itself.
        if failed is not None:
            raise failed

    @property
    def is_running(self) -> bool:
        """Whether supervisord runs for this state."""
        return self._supervisor.pid() is not None

    def stop(self) -> bool:
        """Stop everything and leave no process; tell if anything ran."""
        return self._supervisor.stop()

    def restart(self, name: str) -> None:
        """Stop a service and start it again at once, whatever its back-off says."""
        if name not in (known := self._supervisor.supervised()):
            raise ConfigError(
                f"the stack runs no service `{name}`" if known else "the stack does not run",
                where=str(self._deployment.state),
                action=f"Use one of: {', '.join(sorted(known))}" if known else "Start it: `cdc-platform up`",
            )
        with self.paused(name):
            report_file(self._run_dir, name).unlink(missing_ok=True)
        if known[name].state == "STOPPED":
            self._supervisor.start(name)

    @contextmanager
    def paused(self, name: str) -> Generator[None]:
        """Stop one service for a block, and start it again after; nothing when it does not run."""
        known = self._supervisor.supervised().get(name)
        if known is None or known.state == "STOPPED":
            yield
            return
        self._supervisor.stop_service(name)
        try:
            yield
        finally:
            self._supervisor.start(name)

    def status(self) -> tuple[ServiceStatus, ...]:
        """Return how each service is now."""
        supervised, restarts = self._supervisor.supervised(), self._supervisor.restarts()
        return tuple(
            self._status(service, supervised.get(service.name), restarts.get(service.name, 0))
            for service in self._running_services(supervised)
        )

    def _status(self, service: Service, known: Supervised | None, restarts: int) -> ServiceStatus:
        if known is None:
            return ServiceStatus(service.name, "stopped", None, 0, 0, 0, "")
        ready = _is_ready(service, known)
        state = "ready" if ready else _STATES.get(known.state, "stopped")
        memory_mb = processes.memory_mb(known.pid) if known.pid is not None else 0
        error = None if ready else self._error(service.name)
        detail = "" if error is None else str(_cdc_error(error))
        facts = read_report(self._run_dir, service.name) if ready else {}
        if problems := facts.get("problems"):
            state, detail = "impaired", " ".join(f"{problem.rstrip('.')}." for problem in problems)
        told = {k: v for k, v in facts.items() if k not in {"pid", "ready_at", "problems"}}
        return ServiceStatus(service.name, state, known.pid, known.uptime_s, restarts, memory_mb, detail, told)

    def _running_services(self, supervised: Mapping[str, Supervised]) -> tuple[Service, ...]:
        """The services that supervisord was started with, all when it does not run."""
        ports = dict.fromkeys(declared.PORTS, 0) | declared.previous_ports(self._deployment)
        services = self._services(self._deployment, ports)
        return tuple(service for service in services if not supervised or service.name in supervised)

    def _refuse_other_user(self) -> None:
        if self._run_dir.exists() and (owner := self._run_dir.stat().st_uid) != os.geteuid():
            raise ConfigError(
                f"user {owner} has started this stack, and its files are that user's",
                where=str(self._deployment.state),
                action="Run as that user, or declare another folder under `stack.state`",
            )

    def _refuse_second(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                "another `up` is starting this stack now",
                where=str(self._deployment.state),
                action="Wait for it",
            ) from error
        if (pid := self._supervisor.pid()) is not None:
            address = self._deployment.endpoint("webserver")
            raise ConfigError(
                f"the stack already runs (pid {pid}), with its UI at {address}",
                where=str(self._deployment.state),
                action="Use it, or stop it first with `cdc-platform down`",
            )

    def _environment(self) -> dict[str, str]:
        try:
            java = java_home()
        except JdkError as error:
            raise ConfigError(str(error), where="Java", action=REMEDY) from error
        return {
            "CDC_PLATFORM_PROJECT": str(self._deployment.project),
            "DAGSTER_HOME": str(dagster_services.prepare_home(self._deployment)),
            "JAVA_HOME": java,
            "PYTHONUNBUFFERED": "1",  # A line is in the log when it is written.
        }

    def _error(self, name: str) -> dict[str, Any] | None:
        report = read_report(self._run_dir, name)
        return report if "error" in report else None

    def _refusal(self, name: str) -> CdcError | None:
        """The service's ConfigError: trying again does not help, so there is nothing to wait for."""
        error = self._error(name)
        refuses = error is not None and error["exit_code"] == ConfigError.exit_code
        return ConfigError(**error["error"]) if error is not None and refuses else None

    def _not_ready(self, name: str) -> CdcError:
        error = self._error(name)
        if error is not None:
            return _cdc_error(error)
        return UnavailableError(
            f"not ready after {READY_WITHIN_S} s",
            where=name,
            action=f"Read {self.logs_dir / f'{name}.log'}",
        )


def _is_ready(service: Service, known: Supervised | None) -> bool:
    return known is not None and known.pid is not None and service.ready(known.pid)


def _cdc_error(report: Mapping[str, Any]) -> CdcError:
    """The error that a service reported; the kind is lost, which the exit code stands for."""
    error = CdcError(**report["error"])
    error.exit_code = report["exit_code"]
    return error
