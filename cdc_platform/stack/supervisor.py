"""supervisord for one deployment: its configuration, its process, and the questions put to it.

Belongs here: everything that knows supervisord's file format, states and XML-RPC. Does not: the order in
which services start, or whether they are ready (`control.py`).
Rules: a service that fails to start is tried again for ever, each time a second later than the last;
one that ran and died is started at once. Every process dies with its parent (`setpriv --pdeathsig`),
so that even a SIGKILL of supervisord leaves nothing behind.
"""

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

import psutil

from cdc_platform.errors import ConfigError, UnavailableError
from cdc_platform.stack import processes
from cdc_platform.stack.service import Service

# supervisord never gives up within this many failed starts, a delay of hours: giving up would end
# capture in a long outage of the source.
_START_RETRIES = 10_000
# The kernel takes 107 bytes; supervisord binds to the path with ".<pid>" added and then renames it.
_SOCKET_PATH_MAX_BYTES = 95
_ANSWERS_WITHIN_S = 10
_STOPS_WITHIN_S = 120
_LOG_MAX_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Supervised:
    """What supervisord says of one service."""

    name: str
    state: str  # supervisord's word: RUNNING, BACKOFF, …
    pid: int | None
    uptime_s: int


class Supervisor:
    """The supervisord of one state folder, whether it runs or not."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._conf_file = state / "run" / "supervisord.conf"
        self._pid_file = state / "run" / "supervisord.pid"
        self.log_file = state / "logs" / "supervisord.log"

    def pid(self) -> int | None:
        """Return supervisord's pid, None when it does not run."""
        pid = processes.pid_in(self._pid_file)
        return pid if pid is not None and processes.runs(pid, str(self._conf_file)) else None

    def clean_stale(self) -> str | None:
        """Remove a pid file that names no supervisord of ours; return why it was stale."""
        pid = processes.pid_in(self._pid_file)
        if self.pid() is not None or not self._pid_file.exists():
            return None
        self._pid_file.unlink()
        now = f"now belongs to another program ({_name(pid)})" if _name(pid) else "no longer runs"
        return f"{self._pid_file}: a stack was not stopped in order: pid {pid} {now}. Cleaned up."

    def launch(
        self, services: Iterable[Service], *, folder: Path, environment: Mapping[str, str], bound: bool
    ) -> subprocess.Popen[bytes]:
        """Start supervisord in `folder`, no service yet; `bound`: it ends when the calling process does."""
        socket = _private_socket(self._state)
        self._conf_file.write_text(configuration(services, state=self._state, socket=socket, as_root=os.geteuid() == 0))
        command = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(self._conf_file)]
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command] if bound else command,
                cwd=folder,
                env={**os.environ, **environment, processes.MARK: str(self._state)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # The terminal's Ctrl-C is for us, and we stop it in order.
            )
        give_up = time.monotonic() + _ANSWERS_WITHIN_S
        while not self._answers():
            if process.poll() is not None or time.monotonic() > give_up:
                process.kill()
                raise UnavailableError(
                    "supervisord did not start", where=str(self.log_file), action="Read that file's end"
                )
            time.sleep(0.05)
        return process

    def start(self, name: str) -> None:
        """Start one service; do not wait for it."""
        self._order("start", lambda: self._rpc().startProcess(name, False), name)

    def stop_service(self, name: str) -> None:
        """Stop one service and wait for its end; it stays stopped until `start`."""
        self._order("stop", lambda: self._rpc().stopProcess(name, True), name)

    def _order(self, verb: str, call: Callable[[], Any], name: str) -> None:
        try:
            call()
        except (OSError, HTTPException, Fault) as error:
            raise UnavailableError(
                f"supervisord did not take the order to {verb} {name}",
                where=str(self.log_file),
                action="If nobody has just stopped the stack, read that file's end",
            ) from error

    def supervised(self) -> dict[str, Supervised]:
        """Return what supervisord knows, by service; empty when it does not run."""
        if self.pid() is None:
            return {}
        try:
            answers: Any = self._rpc().getAllProcessInfo()
        except (OSError, HTTPException):
            return {}  # It is ending.
        return {
            answer["name"]: Supervised(
                answer["name"],
                answer["statename"],
                answer["pid"] or None,
                answer["now"] - answer["start"] if answer["pid"] else 0,
            )
            for answer in answers
        }

    def restarts(self) -> dict[str, int]:
        """Return how often each service was started again since this supervisord runs."""
        starts: dict[str, int] = {}
        try:
            with self.log_file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if "supervisord started with pid" in line:
                        starts.clear()
                    elif " spawned: '" in line:
                        name = line.split("'")[1]
                        starts[name] = starts.get(name, 0) + 1
        except FileNotFoundError:
            return {}
        return {name: count - 1 for name, count in starts.items()}

    def stop(self) -> bool:
        """Stop supervisord and its services in order, then end whatever is left; tell if anything ran."""
        pid = self.pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)  # The same as its shutdown call, and works without its socket.
            _await_end(pid)
        left = processes.end_marked(self._state)
        self._pid_file.unlink(missing_ok=True)
        return pid is not None or left > 0

    def _answers(self) -> bool:
        try:
            self._rpc().getState()
        except (OSError, HTTPException):
            return False
        return True

    def _rpc(self) -> Any:
        from supervisor.xmlrpc import SupervisorTransport

        transport: Any = SupervisorTransport(None, None, f"unix://{_private_socket(self._state)}")
        return ServerProxy("http://127.0.0.1", transport=transport).supervisor


def configuration(services: Iterable[Service], *, state: Path, socket: Path, as_root: bool) -> str:
    """Return supervisord.conf for `services`, in the order in which they start."""
    lines = [
        "[supervisord]",
        f"logfile={_value(state / 'logs' / 'supervisord.log')}",
        f"pidfile={_value(state / 'run' / 'supervisord.pid')}",
        f"childlogdir={_value(state / 'logs')}",
        "silent=true",
        *(["user=root"] if as_root else []),
        "[unix_http_server]",
        f"file={_value(socket)}",
        "chmod=0700",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    for priority, service in enumerate(services, 1):
        dies_with_parent = ("setpriv", "--pdeathsig", service.stop_signal, *service.privileges)
        lines += [
            f"[program:{service.name}]",
            f"command={_value(shlex.join((*dies_with_parent, *service.command)))}",
            f"priority={priority}",  # Stopped in reverse.
            "autostart=false",  # `up` starts it when what it needs is ready.
            "autorestart=true",
            "umask=077",  # The change log and the tables hold rows: other users of the machine don't read them.
            f"startsecs={service.startsecs}",
            f"startretries={_START_RETRIES}",
            f"stopsignal={service.stop_signal}",
            f"stopwaitsecs={service.stop_within_s}",
            "stopasgroup=true",
            "killasgroup=true",
            "redirect_stderr=true",
            f"stdout_logfile={_value(state / 'logs' / f'{service.name}.log')}",
            f"stdout_logfile_maxbytes={_LOG_MAX_BYTES}",
            "stdout_logfile_backups=3",
        ]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    text = str(value)
    for mark in (" ;", " #", "\n"):
        if mark in text:
            raise ConfigError(
                f"a path holds {mark!r}, which supervisord would read as the end of the value",
                where=text,
                action="Move the project to a folder without it in its name",
            )
    return text.replace("%", "%%")


def socket_path(state: Path, temporary: Path) -> Path:
    """Return where supervisord's socket goes: in `state`, or under `temporary` when that is too long."""
    beside = state / "run" / "supervisord.sock"
    if len(os.fsencode(beside)) <= _SOCKET_PATH_MAX_BYTES:
        return beside
    digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    return temporary / f"cdc-platform-{os.geteuid()}-{digest}" / "supervisord.sock"


def _private_socket(state: Path) -> Path:
    socket = socket_path(state, Path("/tmp"))  # noqa: S108  Not $TMPDIR: every shell must find it.
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if socket.parent.stat().st_uid != os.geteuid():
        raise ConfigError(
            "this folder belongs to another user",
            where=str(socket.parent),
            action="Remove it, or run as the user that started the stack",
        )
    return socket


def _await_end(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        give_up = time.monotonic() + _STOPS_WITHIN_S
        while process.status() != psutil.STATUS_ZOMBIE:  # Its parent may be us, or another `up`.
            if time.monotonic() > give_up:
                process.kill()
                return
            time.sleep(0.1)
    except psutil.NoSuchProcess:
        return


def _name(pid: int | None) -> str | None:
    try:
        return psutil.Process(pid).name() if pid is not None else None
    except psutil.NoSuchProcess:
        return None
