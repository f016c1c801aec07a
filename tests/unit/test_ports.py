"""Fixed ports and ranges of them, for hosts behind firewalls."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tidegate.core.clock import SystemClock
from tidegate.core.errors import ConfigurationError
from tidegate.core.ids import SlotId
from tidegate.core.options import Options
from tidegate.protocol.ports import listen
from tidegate.runtime.control_server import ControlServer
from tidegate.taskmanager.network.data_plane import DataPlane

HOST = "127.0.0.1"


@pytest.fixture
def free() -> Iterator[int]:
    """The first of three ports in a row that nobody has."""
    chance = random.SystemRandom()
    while True:
        first = chance.randrange(20_000, 32_000)
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + 3):
                    held.enter_context(socket.create_server((HOST, port)))
            except OSError:
                continue
        yield first
        return


def test_the_first_free_port_of_a_range_is_taken(free):
    ports = f"{free}-{free + 2}"
    with socket.create_server((HOST, free)), listen(HOST, ports, "x") as found:
        assert found.getsockname()[1] == free + 1


def test_when_all_are_taken_the_error_names_the_option_the_range_and_the_host(free):
    with (
        socket.create_server((HOST, free)),
        pytest.raises(
            ConfigurationError,
            match=rf"no port of network\.control_port \({free}\) is available at 127\.0\.0\.1: Address already in use",
        ),
    ):
        listen(HOST, str(free), "network.control_port")


def test_a_port_that_comes_free_in_time_is_taken(free):
    """Processes of an earlier attempt hold theirs for a moment."""
    holder = socket.create_server((HOST, free))
    closing = threading.Timer(0.3, holder.close)
    closing.start()
    started = time.monotonic()
    with listen(HOST, str(free), "x", patience_s=10) as found:
        assert found.getsockname()[1] == free
    assert time.monotonic() - started < 5
    closing.join()


def test_control_and_data_ports_are_where_they_are_told_to_be(free):
    server = ControlServer(HOST, b"s", "job", 0, 1, 1_000, ports=str(free))
    planes = [
        DataPlane(HOST, b"s", "job", 0, SlotId(i), SystemClock(), 100, ports=f"{free + 1}-{free + 2}")
        for i in range(2)
    ]
    try:
        assert server.port == free
        assert {plane.port for plane in planes} == {free + 1, free + 2}
        with pytest.raises(ConfigurationError, match=r"network\.data_ports"):
            DataPlane(HOST, b"s", "job", 0, SlotId(3), SystemClock(), 100, ports=f"{free + 1}-{free + 2}")
    finally:
        server.close_unstarted()
        for plane in planes:
            plane.close()


@pytest.mark.parametrize("given", ["40000", "40000-40010", " 40000 - 40010 ", 40000, ""])
def test_ports_are_written_as_one_or_as_a_range(given):
    options = Options().with_keywords(data_ports=given)
    assert options.data_ports == str(given).replace(" ", "")


@pytest.mark.parametrize("given", ["0", "70000", "40010-40000", "a", "1-2-3", "-5", True, "40000-"])
def test_what_is_no_port_is_refused_with_the_form(given):
    with pytest.raises(ConfigurationError, match=r"a port \(40000\) or a range of ports"):
        Options().with_keywords(control_port=given)
