import configparser
import os
import shlex
from pathlib import Path

import psutil
import pytest
from supervisor.options import UnhosedConfigParser

from cdc_platform.errors import ConfigError
from cdc_platform.stack.service import Service
from cdc_platform.stack.supervisor import Supervisor, configuration, socket_path

STATE = Path("/srv/shop/.cdc-platform")
SOCKET = STATE / "run" / "supervisord.sock"


def _parsed(text: str) -> configparser.RawConfigParser:
    parser = UnhosedConfigParser()  # supervisord's own reading of the file.
    parser.expansions = {}
    parser.read_string(text)
    return parser


def _service(name: str, *command: str, privileges: tuple[str, ...] = ()) -> Service:
    return Service(name, command, ready=lambda _pid: True, privileges=privileges)


def test_a_service_dies_with_supervisord_and_is_tried_again_for_ever() -> None:
    text = configuration([_service("sink", "run", "it")], state=STATE, socket=SOCKET, as_root=False)
    program = dict(_parsed(text)["program:sink"])
    assert program == {
        "command": "setpriv --pdeathsig TERM run it",
        "priority": "1",
        "autostart": "false",
        "autorestart": "true",
        "umask": "077",
        "startsecs": "1",
        "startretries": "10000",
        "stopsignal": "TERM",
        "stopwaitsecs": "20",
        "stopasgroup": "true",
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": "/srv/shop/.cdc-platform/logs/sink.log",
        "stdout_logfile_maxbytes": "20971520",
        "stdout_logfile_backups": "3",
    }


def test_privileges_are_part_of_the_same_setpriv_so_that_the_pid_stays() -> None:
    service = _service("postgres", "postgres", privileges=("--reuid=101", "--clear-groups"))
    text = configuration([service], state=STATE, socket=SOCKET, as_root=True)
    parsed = _parsed(text)
    assert parsed["program:postgres"]["command"] == "setpriv --pdeathsig TERM --reuid=101 --clear-groups postgres"
    assert parsed["supervisord"]["user"] == "root"


def test_a_command_arrives_as_it_was_written() -> None:
    command = ("run", "a b", "it's", '"q"', "100%", "$HOME", "a;b", "%(here)s")
    text = configuration([_service("x", *command)], state=STATE, socket=SOCKET, as_root=False)
    read = _parsed(text).get("program:x", "command") % {}
    assert shlex.split(read)[3:] == list(command)


@pytest.mark.parametrize("folder", ["/srv/a ;b", "/srv/a #b", "/srv/a\nb"])
def test_a_path_that_supervisord_would_cut_is_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="Move the project"):
        configuration([], state=Path(folder), socket=SOCKET, as_root=False)


def test_the_socket_lies_in_the_state_folder_while_its_path_is_short_enough() -> None:
    assert socket_path(STATE, Path("/tmp")) == SOCKET


def test_a_long_state_path_gets_a_short_socket_of_its_own() -> None:
    long, other = Path("/srv/" + "a" * 100), Path("/srv/" + "b" * 100)
    socket = socket_path(long, Path("/tmp"))
    assert socket.is_relative_to("/tmp")
    assert len(os.fsencode(f"{socket}.4194304")) <= 107
    assert socket != socket_path(other, Path("/tmp"))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_a_pid_file_of_a_dead_process_is_explained_and_removed(state: Path) -> None:
    pid_file = state / "run" / "supervisord.pid"
    pid_file.write_text("4194999\n")  # Above pid_max.
    supervisor = Supervisor(state)
    assert supervisor.pid() is None
    assert supervisor.clean_stale() == (
        f"{pid_file}: a stack was not stopped in order: pid 4194999 no longer runs. Cleaned up."
    )
    assert not pid_file.exists()
    assert supervisor.clean_stale() is None


def test_a_pid_that_another_program_has_by_now_is_explained_and_that_program_left_alone(state: Path) -> None:
    (state / "run" / "supervisord.pid").write_text(str(os.getpid()))
    name = psutil.Process().name()
    supervisor = Supervisor(state)
    assert supervisor.pid() is None
    assert f"pid {os.getpid()} now belongs to another program ({name})" in (supervisor.clean_stale() or "")
    assert supervisor.stop() is False


def test_restarts_are_counted_since_the_last_start_of_supervisord(state: Path) -> None:
    lines = [
        "INFO supervisord started with pid 1",
        "INFO spawned: 'sink' with pid 2",
        "INFO spawned: 'sink' with pid 3",
        "INFO supervisord started with pid 4",
        "INFO spawned: 'sink' with pid 5",
        "INFO spawned: 'spark' with pid 6",
        "INFO spawned: 'sink' with pid 7",
    ]
    supervisor = Supervisor(state)
    assert supervisor.restarts() == {}
    supervisor.log_file.write_text("\n".join(lines))
    assert supervisor.restarts() == {"sink": 1, "spark": 0}
