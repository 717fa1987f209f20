"""Loopback ports of the embedded services: the configured one, else last time's, else a free one.

Belongs here: choosing, and explaining a port that is taken. Does not: who listens there.
"""

import secrets
import socket
from collections.abc import Mapping

import psutil

from cdc_platform.errors import ConfigError

# Below Linux's ephemeral range: while a service restarts, an outgoing connection must not take its port.
_FREE_PORTS = range(15_000, 32_000)


def choose_ports(
    names: tuple[str, ...], configured: Mapping[str, int | None], previous: Mapping[str, int], *, where: str
) -> dict[str, int]:
    """Return a port for each of `names`; raise ConfigError when a configured one is taken or given twice."""
    chosen: dict[str, int] = {}
    for name in names:  # Configured ones first: a free one must not be one of them.
        port = configured.get(name)
        if port is None:
            continue
        if port in chosen.values():
            raise ConfigError(
                f"port {port} is given twice",
                where=f"{where}: stack.ports.{name}",
                action="Give each service its own port, or leave it out for a free one",
            )
        if not is_free(port):
            raise ConfigError(
                f"port {port} is taken by {holder(port)}",
                where=f"{where}: stack.ports.{name}",
                action="Stop that program, choose another port, or leave the port out for a free one",
            )
        chosen[name] = port
    for name in names:
        if name not in chosen:
            last = previous.get(name)
            keep = last is not None and last not in chosen.values() and is_free(last)
            chosen[name] = last if keep and last is not None else _free_port(set(chosen.values()))
    return chosen


def is_free(port: int) -> bool:
    """Whether a service could listen on `port` of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do: TIME_WAIT is free.
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """Who listens on `port`, as far as this user may see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            at_port = connection.laddr and connection.laddr.port == port
            if at_port and connection.status == psutil.CONN_LISTEN and connection.pid:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return "another user's program"


def _free_port(taken: set[int]) -> int:
    while True:  # Ends: few of the range's ports are ever in use.
        port = secrets.choice(_FREE_PORTS)
        if port not in taken and is_free(port):
            return port
