"""Data connections between hosts of their own: a dead path is noticed and named, and a slow reader is no dead path."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.hosts import Hosts, separate_hosts
from tidegate.core.clock import SystemClock
from tidegate.core.ids import ChannelId, EdgeId, SlotId
from tidegate.protocol.frames import BATCH, data_header
from tidegate.protocol.liveness import PathWatch
from tidegate.protocol.messages import SlotAddress
from tidegate.taskmanager.network.data_plane import DataPlane, PeerUnreachable

LINK_MS = 1_000
SLACK_S = 10.0
CHANNEL = ChannelId(EdgeId(0), 0, 1)


class Plane(DataPlane):
    """The data plane of a slot on a host of its own."""

    def __init__(self, hosts: Hosts, slot: int) -> None:
        host = hosts.address(slot + 1)
        with hosts.inside(slot + 1):
            super().__init__(host, b"s" * 32, "job", 0, SlotId(slot), SystemClock(), 5_000, link_ms=LINK_MS)
        self._hosts = hosts
        self.received = 0
        self.lost: list[tuple[int, str, bool]] = []
        self.on_frame = self._count
        self.on_lost = lambda *loss: self.lost.append(loss)
        self.address = SlotAddress(SlotId(slot), host, self.port, os.getpid())

    def _count(self, peer: SlotId, header: object, body: memoryview) -> None:
        self.received += len(body)

    def connect(self, peers: dict[SlotId, SlotAddress]) -> None:
        with self._hosts.inside(self.address.slot + 1):
            super().connect(peers)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with separate_hosts(2) as made:
        yield made


@pytest.fixture
def pair(hosts: Hosts) -> Iterator[tuple[Plane, Plane]]:
    low, high = Plane(hosts, 0), Plane(hosts, 1)
    try:
        high.connect({SlotId(0): low.address})
        low.connect({SlotId(1): high.address})
        poll_until(lambda: low.is_connected and high.is_connected, low, high)
        yield low, high
    finally:
        low.close()
        high.close()


def poll_until(condition: Callable[[], object], *planes: Plane) -> None:
    deadline = time.monotonic() + SLACK_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {SLACK_S} s"
        for plane in planes:
            plane.poll(0.02)


def poll_for(seconds: float, *planes: Plane) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for plane in planes:
            plane.poll(0.02)


def send(plane: Plane, peer: int, size: int) -> None:
    plane.send(SlotId(peer), data_header(BATCH, CHANNEL, size, 0), bytes(size))


@pytest.mark.parametrize("traffic", ["idle", "sending"])
@pytest.mark.parametrize("lost", [((1, 2), (2, 1)), ((1, 2),), ((2, 1),)], ids=["both", "there", "back"])
def test_a_dead_path_is_noticed_in_time_and_names_both_hosts(hosts, pair, lost, traffic):
    low, high = pair
    for sender, receiver in lost:
        hosts.drop(sender, receiver)
    if traffic == "sending":
        send(low, 1, 1 << 20)
    poll_until(lambda: low.lost or high.lost, low, high)
    [(_, reason, is_cut)] = low.lost or high.lost
    assert is_cut
    assert hosts.address(1) in reason
    assert hosts.address(2) in reason
    assert "for 1 s (network.link_timeout)" in reason


def test_a_path_that_comes_back_in_time_is_not_given_up(hosts, pair):
    low, high = pair
    hosts.drop(1, 2)
    send(low, 1, 1 << 20)
    poll_for(LINK_MS / 1000 / 2, low, high)
    hosts.deliver(1, 2)
    poll_until(lambda: high.received == 1 << 20, low, high)
    poll_for(2.5 * LINK_MS / 1000, low, high)
    assert not low.lost
    assert not high.lost


def test_a_peer_that_does_not_read_for_many_timeouts_is_not_taken_for_dead(pair):
    """User code may hold a slot's only thread: its buffers are full, its window is closed, its kernel answers."""
    low, high = pair
    size = 32 << 20
    send(low, 1, size)
    poll_for(6 * LINK_MS / 1000, low)
    assert not low.lost
    poll_until(lambda: high.received == size, low, high)
    assert not high.lost


def test_a_path_that_dies_while_the_receiver_does_not_read_is_noticed_when_it_reads_again(hosts, pair):
    low, high = pair
    send(low, 1, 32 << 20)
    poll_for(0.5, low)
    hosts.drop(1, 2)
    hosts.drop(2, 1)
    poll_for(LINK_MS / 1000, low)
    poll_until(lambda: high.lost, low, high)
    assert high.lost[0][2]


def test_a_slot_that_was_itself_held_up_does_not_blame_the_path(pair):
    low, high = pair
    send(low, 1, 1 << 20)
    low.poll(0)
    time.sleep(2.5 * LINK_MS / 1000)  # what is tested: nobody polls for longer than a link may be silent
    poll_until(lambda: high.received == 1 << 20, low, high)
    assert not low.lost
    assert not high.lost


def test_a_peer_that_cannot_be_reached_is_given_up_in_time_with_its_address(hosts):
    low, high = Plane(hosts, 0), Plane(hosts, 1)
    try:
        hosts.drop(1, 2)
        with pytest.raises(PeerUnreachable, match=rf"{hosts.address(2)}:{high.port}: .*network\.data_ports"):
            low.connect({SlotId(1): high.address})
    finally:
        low.close()
        high.close()


def test_a_closed_socket_is_not_called_a_dead_path():
    one, other = socket.create_server(("127.0.0.1", 0)), socket.socket()
    other.connect(one.getsockname())
    watch = PathWatch(other, LINK_MS)
    other.close()
    one.close()
    assert not watch.is_dead(0)
