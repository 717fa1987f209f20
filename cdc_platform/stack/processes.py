"""The processes of one deployment, found by the mark that each inherits.

Belongs here: a pid file that may lie, what is left of a stack, how much memory a tree holds.
Does not: starting services or asking how they are (`supervisor.py`).
"""

import contextlib
import os
from pathlib import Path

import psutil

MARK = "CDC_PLATFORM_STATE"  # Environment variable: every process of the stack carries its state folder.
_TERM_WITHIN_S = 5


def pid_in(file: Path) -> int | None:
    """Return the pid that `file` holds, None when there is no such file or no number in it."""
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def runs(pid: int, argument: str) -> bool:
    """Whether `pid` is alive and was started with `argument`: a pid alone may be another program's by now."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and argument in process.cmdline()
    except psutil.Error:
        return False


def marked(state: Path) -> list[psutil.Process]:
    """Return every process of the stack of `state`, with children that hide their environment.

    PostgreSQL overwrites its environment with its title, so children count too. The caller and its
    ancestors are left out: a service may well ask.
    """
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.pid in spared or process.environ().get(MARK) != str(state):
                continue
            for one in (process, *process.children(recursive=True)):
                if one.pid not in spared and one.status() != psutil.STATUS_ZOMBIE:
                    found[one.pid] = one
        except psutil.Error:
            continue  # Gone, or another user's.
    return list(found.values())


def end_marked(state: Path) -> int:
    """End what is left of the stack of `state`; return how many processes there were."""
    left = marked(state)
    for process in left:
        _signal(process, kill=False)
    _, stubborn = psutil.wait_procs(left, timeout=_TERM_WITHIN_S)
    for process in stubborn:
        _signal(process, kill=True)
    psutil.wait_procs(stubborn, timeout=_TERM_WITHIN_S)
    return len(left)


def _signal(process: psutil.Process, *, kill: bool) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill() if kill else process.terminate()


def memory_mb(pid: int) -> int:
    """Resident memory of `pid` and everything under it."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        return 0
    return total // (1024 * 1024)
