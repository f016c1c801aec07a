"""The data plane over real sockets: frames in order, strangers and nonsense refused, ends and losses told apart."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tidegate.core.clock import ManualClock, SystemClock
from tidegate.core.ids import ChannelId, EdgeId, SlotId
from tidegate.protocol.frames import BATCH, CREDIT, DATA_HEADER, EVENT, DataHeader, data_header
from tidegate.protocol.handshake import GREETING_BYTES, MAC_BYTES, ClientHandshake, Hello
from tidegate.protocol.messages import SlotAddress
from tidegate.protocol.tls import TlsIdentity, new_identity
from tidegate.taskmanager.network.data_plane import MAX_STRANGERS, DataPlane, PeerUnreachable

SECRET = b"s" * 32
CHANNEL = ChannelId(EdgeId(0), 0, 1)
IDENTITY = new_identity("job")


class Plane(DataPlane):
    """A data plane that keeps what it hears."""

    def __init__(self, slot: int, secret: bytes = SECRET, job: str = "job", clock=None, tls=None) -> None:
        super().__init__("127.0.0.1", secret, job, 0, SlotId(slot), clock or SystemClock(), 1_000, tls=tls)
        self.frames: list[tuple[int, DataHeader, bytes]] = []
        self.lost: list[tuple[int, str]] = []
        self.on_frame = lambda peer, header, body: self.frames.append((peer, header, bytes(body)))
        self.on_lost = lambda peer, reason, is_cut: self.lost.append((peer, reason))
        self._closed = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            super().close()

    @property
    def address(self) -> SlotAddress:
        return SlotAddress(SlotId(0), "127.0.0.1", self.port, os.getpid())

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.frames]


@pytest.fixture
def planes() -> Iterator[Callable[..., Plane]]:
    made: list[Plane] = []

    def make(*args, **settings) -> Plane:
        made.append(Plane(*args, **settings))
        return made[-1]

    yield make
    for plane in made:
        plane.close()


@pytest.fixture(params=[None, IDENTITY], ids=["plain", "tls"])
def tls(request) -> TlsIdentity | None:
    return request.param


@pytest.fixture
def pair(planes, tls) -> tuple[Plane, Plane]:
    low, high = planes(0, tls=tls), planes(1, tls=tls)
    connect(low, high)
    return low, high


def connect(low: Plane, high: Plane) -> None:
    """As after a deployment: both know of each other, the lower one calls."""
    high.connect({SlotId(0): low.address})
    low.connect({SlotId(1): high.address})


def until(condition: Callable[[], bool], *polled: DataPlane) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 10 s"
        for plane in polled:
            plane.poll(0.001)


def send(plane: DataPlane, peer: int, body: bytes, kind: int = BATCH) -> None:
    plane.send(SlotId(peer), data_header(kind, CHANNEL, len(body), 0), body)


def stranger(plane: Plane) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", plane.port), timeout=5)
    made.settimeout(0.001)
    return made


def secured(sock: socket.socket, plane: Plane, tls: TlsIdentity | None) -> socket.socket:
    """The same connection after the handshake of TLS, if there is any."""
    if tls is None:
        return sock
    made = tls.client_context().wrap_socket(sock, do_handshake_on_connect=False)
    deadline = time.monotonic() + 5
    done = False
    while not done:
        assert time.monotonic() < deadline
        plane.poll(0.001)
        with contextlib.suppress(TimeoutError):
            done = made.shake()
    return made


def receive(sock: socket.socket, plane: Plane, n: int) -> bytes:
    """Read n bytes from a plane that has to be polled to send them."""
    data = b""
    deadline = time.monotonic() + 5
    while len(data) < n:
        assert time.monotonic() < deadline
        plane.poll(0.001)
        with contextlib.suppress(TimeoutError):
            data += sock.recv(n - len(data))
    return data


def is_closed(sock: socket.socket, *polled: Plane) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for plane in polled:
            plane.poll(0.001)
        try:
            if sock.recv(4096) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def authenticated(plane: Plane, slot: int) -> socket.socket:
    """A connection that has proved itself as a slot of the job."""
    sock = stranger(plane)
    handshake = ClientHandshake(SECRET, Hello("data", "job", 0, slot))
    sock.sendall(handshake.feed(receive(sock, plane, GREETING_BYTES)))
    handshake.feed(receive(sock, plane, MAC_BYTES))
    assert handshake.done
    return sock


def test_frames_of_any_size_arrive_whole_and_in_order_both_ways(pair):
    low, high = pair
    bodies = [bytes([i % 251]) * size for i, size in enumerate([1, 0, 5, 70_000, 3_000_000, 2, 100_000] * 2)]
    for body in bodies:
        send(low, 1, body)
        send(high, 0, body[::-1])
    until(lambda: len(low.frames) == len(high.frames) == len(bodies), low, high)
    assert high.bodies == bodies
    assert low.bodies == [body[::-1] for body in bodies]
    assert {peer for peer, _, _ in high.frames} == {0}


def test_frames_that_are_sent_before_the_connection_exists_wait_for_it(planes):
    low, high = planes(0), planes(1)
    send(high, 0, b"early")
    send(high, 0, b"early too")
    connect(low, high)
    send(high, 0, b"later")
    until(lambda: len(low.frames) == 3, low, high)
    assert low.bodies == [b"early", b"early too", b"later"]


def test_between_two_slots_there_is_one_connection_opened_by_the_lower_id(pair):
    low, high = pair
    send(low, 1, b"x")
    send(high, 0, b"y")
    until(lambda: bool(low.frames and high.frames), low, high)
    assert len(low._by_fd) == len(high._by_fd) == 1


def test_an_orderly_end_is_quiet_on_both_sides_only_when_both_have_shut(pair):
    low, high = pair
    send(low, 1, b"last")
    low.shut()
    assert not low.is_quiet
    until(lambda: bool(high.frames), low, high)
    assert not high.lost or high.bodies == [b"last"], "the end comes behind the data"
    high.shut()
    until(lambda: low.is_quiet and high.is_quiet, low, high)
    assert high.bodies == [b"last"]


def test_a_slot_that_has_finished_waits_for_the_peer_that_has_not_connected_yet(planes):
    """A short source is done before a slow consumer has opened: its records must not end with its process."""
    low, high = planes(0), planes(1)
    high.connect({SlotId(0): low.address})
    send(high, 0, b"all there is")
    high.shut()
    for _ in range(20):
        high.poll(0)
    assert not high.is_quiet
    low.connect({SlotId(1): high.address})
    until(lambda: bool(low.frames), low, high)
    low.shut()
    until(lambda: high.is_quiet and low.is_quiet, low, high)
    assert low.bodies == [b"all there is"]


def test_a_data_port_may_have_an_address_of_the_other_family():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    plane = DataPlane("::1", SECRET, "job", 0, SlotId(0), SystemClock(), 1_000)
    try:
        socket.create_connection(("::1", plane.port), timeout=5).close()
    finally:
        plane.close()


def test_a_slot_without_peers_is_quiet_at_once(planes):
    alone = planes(0)
    alone.connect({})
    alone.shut()
    assert alone.is_quiet


def test_a_peer_that_dies_is_reported_once_with_a_reason(pair):
    low, high = pair
    send(low, 1, b"x")
    until(lambda: bool(high.frames), low, high)
    low.close()
    until(lambda: bool(high.lost), high)
    for _ in range(5):
        high.poll(0)
    assert [peer for peer, _ in high.lost] == [0]
    assert "the peer closed the connection" in high.lost[0][1]
    send(high, 0, b"to nobody")
    high.poll(0)


def test_a_peer_that_is_reset_is_reported(planes):
    plane = planes(1)
    plane.connect({SlotId(0): plane.address})
    sock = authenticated(plane, 0)
    until(lambda: not plane._strangers, plane)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    until(lambda: bool(plane.lost), plane)
    assert plane.lost[0][0] == 0


def test_a_peer_that_leaves_together_with_its_handshake_is_reported_all_the_same(planes):
    plane = planes(1)
    plane.connect({SlotId(0): plane.address})
    sock = stranger(plane)
    handshake = ClientHandshake(SECRET, Hello("data", "job", 0, 0))
    sock.sendall(
        handshake.feed(receive(sock, plane, GREETING_BYTES)) + data_header(EVENT, CHANNEL, 2, 0) + b"hi"
    )
    sock.shutdown(socket.SHUT_WR)
    until(lambda: bool(plane.lost), plane)
    assert plane.bodies == [b"hi"]
    assert [peer for peer, _ in plane.lost] == [0]
    plane.shut()
    assert plane.is_quiet
    sock.close()


@pytest.mark.parametrize(
    ("nonsense", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "does not speak tidegate"),
        (b"\x00" * 4096, "does not speak tidegate"),
        (b"TIDEGATE\x01\xff\xff", "hello is 65535 bytes long"),
        (b"TIDEGATE\x01\x02\x00ab" + b"n" * 16 + b"m" * 32, "does not hold the job's secret"),
    ],
)
def test_a_stranger_is_refused_and_the_job_does_not_notice(pair, tls, nonsense, said, caplog):
    low, high = pair
    with caplog.at_level(logging.WARNING):
        sock = stranger(high)
        sock.sendall(nonsense)
        assert is_closed(sock, low, high)
    sock.close()
    assert (said if tls is None else "does not speak TLS with this job's certificate") in caplog.text
    send(low, 1, b"still here")
    until(lambda: high.bodies == [b"still here"], low, high)
    assert not low.lost
    assert not high.lost


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"job": "another"}, "belongs to job another"),
        ({"attempt": 7}, "attempt 7"),
        ({"role": "control"}, "came with role 'control' to a data port"),
        ({"slot": 5}, "slot 5 has no channel to slot 1"),
        ({"slot": 0}, "slot 0 connected twice"),
    ],
)
def test_a_slot_with_the_secret_that_has_no_business_here_is_refused(pair, tls, changes, said, caplog):
    low, high = pair
    until(lambda: high._peers and not high._strangers, low, high)
    with caplog.at_level(logging.WARNING):
        sock = secured(stranger(high), high, tls)
        hello = Hello(**{"role": "data", "job": "job", "attempt": 0, "slot": 0, **changes})
        sock.sendall(ClientHandshake(SECRET, hello).feed(receive(sock, high, GREETING_BYTES)))
        assert is_closed(sock, low, high)
    sock.close()
    assert said in caplog.text
    assert not high.lost


def test_a_client_with_another_secret_reaches_nobody(planes, caplog):
    low, high = planes(0, secret=b"x" * 32), planes(1)
    with caplog.at_level(logging.WARNING):
        connect(low, high)
        send(low, 1, b"forged")
        until(lambda: bool(low.lost), low, high)
    assert "does not hold the job's secret" in caplog.text
    assert not high.frames


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (struct.pack("<BxHHHII", 9, 0, 0, 0, 0, 0), "unknown kind of data frame: 9"),
        (struct.pack("<BxHHHII", BATCH, 0, 0, 0, 0xFFFFFFFF, 0), "announces 4294967295 bytes"),
        (struct.pack("<BxHHHII", CREDIT, 0, 0, 0, 5, 0), "announces 5 bytes"),
    ],
)
def test_a_malformed_frame_ends_the_connection_and_names_the_reason(planes, frame, said, caplog):
    plane = planes(1)
    plane.connect({SlotId(0): plane.address})
    sock = authenticated(plane, 0)
    with caplog.at_level(logging.WARNING):
        sock.sendall(frame)
        assert is_closed(sock, plane)
    sock.close()
    assert said in caplog.text
    assert [(peer, said in reason) for peer, reason in plane.lost] == [(0, True)]


def test_a_frame_may_come_byte_by_byte(planes):
    plane = planes(1)
    plane.connect({SlotId(0): plane.address})
    sock = authenticated(plane, 0)
    for byte in data_header(BATCH, CHANNEL, 3, 4) + b"abc" + data_header(CREDIT, CHANNEL, 0, 2):
        sock.sendall(bytes([byte]))
        plane.poll(0.001)
    until(lambda: len(plane.frames) == 2, plane)
    sock.close()
    (_, first, body), (_, second, _) = plane.frames
    assert (first.kind, first.channel, first.extra, body) == (BATCH, CHANNEL, 4, b"abc")
    assert (second.kind, second.extra) == (CREDIT, 2)
    assert DATA_HEADER.size == 16


def test_a_stranger_that_says_nothing_is_closed_when_its_time_is_up(planes, caplog):
    clock = ManualClock(1)
    plane = planes(1, clock=clock)
    sock = stranger(plane)
    until(lambda: bool(plane._strangers), plane)
    clock.advance_ns(1_001_000_000)
    with caplog.at_level(logging.WARNING):
        assert is_closed(sock, plane)
    sock.close()
    assert "to the data port of slot 1: it did not prove itself within 1000 ms" in caplog.text


def test_strangers_cannot_pile_up_the_oldest_goes_first(planes, caplog):
    plane = planes(1)
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING):
        socks = [stack.enter_context(stranger(plane)) for _ in range(MAX_STRANGERS + 5)]
        until(lambda: len(plane._strangers) == MAX_STRANGERS, plane)
        assert sum(is_closed(sock, plane) for sock in socks[:5]) == 5
        plane.close()
    assert caplog.text.count("wait to prove themselves") == 1
    assert "refused 4 more connections to the data port of slot 1" in caplog.text


def test_more_peers_than_strangers_may_be_all_come_in(planes):
    peers = [planes(i) for i in range(MAX_STRANGERS + 10)]
    last = planes(len(peers))
    last.connect({SlotId(i): peer.address for i, peer in enumerate(peers)})
    for peer in peers:
        peer.connect({SlotId(len(peers)): last.address})
    assert not last.is_connected
    until(lambda: last.is_connected and all(p.is_connected for p in peers), last, *peers)
    assert not last.lost


def test_a_peer_that_cannot_be_reached_is_named(planes):
    plane, gone = planes(0), planes(2)
    address = gone.address
    gone.close()
    with pytest.raises(PeerUnreachable, match=f"127.0.0.1:{address.port}: .*refused") as caught:
        plane.connect({SlotId(1): planes(1).address, SlotId(2): address})
    assert caught.value.peer == 2


def test_a_wait_ends_when_another_thread_wakes_it(planes):
    plane = planes(0)
    for wait in (lambda: plane.poll(30), lambda: plane.wait_for_wake(30)):
        timer = threading.Timer(0.05, plane.wake)
        timer.start()
        begun = time.monotonic()
        wait()
        timer.join()
        assert time.monotonic() - begun < 5
    plane.wake()
    plane.wake()
    begun = time.monotonic()
    plane.poll(30)
    assert time.monotonic() - begun < 5, "a wake before the wait counts too"


def test_a_short_wait_is_not_rounded_up_to_whole_milliseconds(planes):
    plane = planes(0)
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        plane.poll(0.0002)
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.001


def test_closing_leaves_no_descriptor(planes):
    before = set(os.listdir("/proc/self/fd"))
    low, high = Plane(0), Plane(1)
    connect(low, high)
    send(low, 1, b"x")
    until(lambda: bool(high.frames), low, high)
    with stranger(high):
        until(lambda: bool(high._strangers), low, high)
        low.close()
        high.close()
    assert set(os.listdir("/proc/self/fd")) == before
    high.wake()  # a late wake of another thread does no harm


def test_a_peer_that_does_not_read_blocks_nobody_else(planes):
    """A full socket keeps its frames in this process; other peers get theirs."""
    sender, slow, fast = planes(0), planes(1), planes(2)
    slow.connect({SlotId(0): sender.address})
    fast.connect({SlotId(0): sender.address})
    sender.connect({SlotId(1): slow.address, SlotId(2): fast.address})
    until(lambda: bool(slow._peers and fast._peers), sender, slow, fast)
    for _ in range(40):
        send(sender, 1, b"s" * 1_000_000)
    send(sender, 2, b"f")
    until(lambda: fast.bodies == [b"f"], sender, fast)
    assert len(slow.frames) < 40
    until(lambda: len(slow.frames) == 40, sender, slow)
    assert select.select([sender._wake_fd], [], [], 0)[0] == []
