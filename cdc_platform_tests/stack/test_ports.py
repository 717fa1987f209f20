import os
import socket
from collections.abc import Iterator

import pytest

from cdc_platform.errors import ConfigError
from cdc_platform.stack.ports import choose_ports, is_free

WHERE = "/p/tables.yaml"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_configured_port_is_used_and_the_rest_are_free_ones(free: int) -> None:
    chosen = choose_ports(("a", "b", "c"), {"a": free, "b": None}, {}, where=WHERE)
    assert chosen["a"] == free
    assert len(set(chosen.values())) == 3
    assert all(is_free(port) for port in chosen.values())


def test_a_configured_port_that_is_taken_names_who_holds_it_and_what_to_do(taken: int) -> None:
    with pytest.raises(ConfigError) as raised:
        choose_ports(("spark",), {"spark": taken}, {}, where=WHERE)
    assert raised.value.where == "/p/tables.yaml: stack.ports.spark"
    assert raised.value.what.startswith(f"port {taken} is taken by pid {os.getpid()} (")
    assert raised.value.action == ("Stop that program, choose another port, or leave the port out for a free one")


def test_a_port_given_to_two_services_is_refused(free: int) -> None:
    with pytest.raises(ConfigError, match=f"port {free} is given twice"):
        choose_ports(("a", "b"), {"a": free, "b": free}, {}, where=WHERE)


def test_last_times_port_is_kept_while_it_is_free(free: int) -> None:
    assert choose_ports(("a",), {}, {"a": free}, where=WHERE) == {"a": free}


def test_last_times_port_is_left_when_another_program_has_it(taken: int) -> None:
    assert choose_ports(("a",), {}, {"a": taken}, where=WHERE)["a"] != taken


def test_last_times_port_yields_to_a_configured_one(free: int) -> None:
    chosen = choose_ports(("a", "b"), {"b": free}, {"a": free}, where=WHERE)
    assert chosen["b"] == free != chosen["a"]
