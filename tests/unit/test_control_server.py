"""The control port against real sockets: slots get in, nobody else does, and the job does not notice the others."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.unit.control_server_kit import SECRET, WAIT_S, Rig, Slot
from tidegate.core.ids import SlotId
from tidegate.jobmanager import events as ev
from tidegate.protocol import messages as m
from tidegate.protocol.frames import CONTROL_HEADER, control_frame
from tidegate.protocol.handshake import MAGIC, ClientHandshake, Hello, new_secret
from tidegate.runtime import control_server
from tidegate.runtime.control_server import ControlServer


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server ends the connection, after its greeting at most."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def test_messages_go_both_ways(rig):
    slot = rig.slot(1)
    slot.send(m.RegisterSlot(m.SlotAddress(SlotId(1), "h", 1, 2), "e"))
    assert rig.next_event() == ev.MessageReceived(
        SlotId(1), m.RegisterSlot(m.SlotAddress(SlotId(1), "h", 1, 2), "e")
    )
    slot.send(m.SlotHeartbeat(1), m.SlotHeartbeat(2))
    assert [slot.next_message(), slot.next_message()] == [m.MasterHeartbeat(1), m.MasterHeartbeat(2)]


def test_a_message_may_come_in_the_same_packet_as_the_handshake(rig):
    connection = rig.connect()
    handshake = ClientHandshake(SECRET, Hello("control", "job", 3, 0))
    greeting = b""
    while len(greeting) < len(MAGIC) + 16:
        greeting += connection.recv(4096)
    connection.sendall(handshake.feed(greeting) + control_frame(m.encode_message(m.SlotHeartbeat(5))))
    assert rig.next_event() == ev.MessageReceived(SlotId(0), m.SlotHeartbeat(5))


def test_everything_may_come_one_byte_at_a_time(rig):
    connection = rig.connect()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    handshake = ClientHandshake(SECRET, Hello("control", "job", 3, 0))
    while not handshake.done:
        for byte in handshake.feed(connection.recv(1)):
            connection.sendall(bytes([byte]))
    for byte in control_frame(m.encode_message(m.SlotHeartbeat(5))):
        connection.sendall(bytes([byte]))
    assert rig.next_event() == ev.MessageReceived(SlotId(0), m.SlotHeartbeat(5))


def test_a_large_message_reaches_a_slot_that_reads_slowly(rig):
    slot = rig.slot(0)
    rig.deploy = m.Deploy(bytes(range(256)) * (1 << 17), (), (), ())  # more than the kernel buffers
    rig.server.post(ev.GangStarted())
    assert rig.next_event() == ev.GangStarted()
    other = rig.slot(1)
    assert other.is_alive(rig), "a slow slot must not hold up the others"
    assert slot.next_message() == rig.deploy


def test_close_slot_sends_what_is_queued_first_and_makes_no_event(rig):
    slot = rig.slot(0)
    slot.send(m.SlotFinished())
    assert slot.next_message() == m.Cancel("last word")
    with pytest.raises(EOFError):
        slot.next_message()
    assert rig.next_event() == ev.MessageReceived(SlotId(0), m.SlotFinished())
    assert rig.slot(0).is_alive(rig), "no event came in between, and the slot's place is free again"


def test_what_follows_the_last_word_of_a_slot_is_not_handled(rig):
    slot = rig.slot(0)
    slot.send(m.SlotFinished(), m.SlotHeartbeat(1))
    assert rig.next_event() == ev.MessageReceived(SlotId(0), m.SlotFinished())
    assert rig.slot(1).is_alive(rig)
    assert rig.events.empty()


@pytest.mark.parametrize("abruptly", [False, True])
def test_a_slot_whose_connection_ends_is_reported(rig, abruptly):
    slot = rig.slot(1)
    if abruptly:
        slot.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    slot.socket.close()
    event = rig.next_event()
    assert isinstance(event, ev.SlotDisconnected)
    assert event.slot == 1
    assert event.reason
    assert rig.slot(1).is_alive(rig)


def test_posted_events_are_handled_in_order_on_the_servers_thread(rig):
    threads = []
    rig.server._handle = lambda event: (threads.append(threading.current_thread().name), rig.handle(event))
    for i in range(1_000):
        rig.server.post(ev.SlotsCounted(i))
    assert [rig.next_event() for _ in range(1_000)] == [ev.SlotsCounted(i) for i in range(1_000)]
    assert set(threads) == {"tidegate-control"}


# ---- strangers ----


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ({"secret": new_secret()}, "does not hold the job's secret"),
        ({"attempt": 2}, "belongs to job job attempt 2, this is job job attempt 3"),
        ({"job": "other"}, "belongs to job other"),
        ({"role": "data"}, "not one for data connections"),
        ({"slot": 2}, "there is no slot 2, the job has 2"),
        ({"slot": -1}, "there is no slot -1"),
        ({"slot": 0}, "slot 0 is connected already"),
    ],
)
def test_whoever_is_no_slot_of_this_attempt_is_refused_and_logged(rig, hello, reason):
    slot = rig.slot(0)
    hello = dict(hello)
    stranger = rig.connect()
    with pytest.raises(ConnectionError):
        Slot(stranger, hello.pop("secret", SECRET), hello.pop("slot", 1), **hello)
    log = rig.next_log()
    assert log.startswith("WARNING refused a connection from 127.0.0.1:")
    assert f":{stranger.getsockname()[1]} " in log
    assert reason in log
    assert slot.is_alive(rig)
    assert rig.events.empty()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 100_000,
        MAGIC + b"\xff\xff" + b"x" * 100,
        MAGIC + struct.pack("<H", 4) + b"\x81\xa4ro" + b"n" * 16 + b"m" * 32,
    ],
    ids=["http", "tls", "zeros", "long hello", "wrong proof"],
)
def test_bytes_of_another_protocol_are_refused_and_logged(rig, data):
    slot = rig.slot(0)
    stranger = rig.connect()
    with contextlib.suppress(ConnectionError):
        stranger.sendall(data)
    assert is_closed(stranger)
    assert rig.next_log().startswith("WARNING refused a connection from 127.0.0.1:")
    assert slot.is_alive(rig)
    assert rig.events.empty()


def test_a_stranger_that_goes_away_is_logged(rig):
    rig.connect().close()
    assert "it went away before it had proved itself" in rig.next_log()
    assert rig.slot(0).is_alive(rig)


@pytest.mark.parametrize("start", [b"", MAGIC[:4], MAGIC])
def test_half_a_handshake_is_refused_when_its_time_is_over(start):
    rig = Rig(handshake_timeout_ms=150)
    try:
        slot = rig.slot(0)
        stranger = rig.connect()
        stranger.sendall(start)
        assert is_closed(stranger)
        assert "it did not prove itself within 150 ms" in rig.next_log()
        assert slot.is_alive(rig), "the deadline is for strangers only"
    finally:
        rig.close()


def test_a_flood_of_connections_keeps_no_slot_out_and_does_not_fill_the_log(rig):
    slot = rig.slot(0)
    flood = [rig.connect() for _ in range(200)]
    late = rig.slot(1)
    assert late.is_alive(rig)
    assert slot.is_alive(rig)
    for stranger in flood[: 200 - control_server.MAX_UNPROVEN]:
        assert is_closed(stranger)
    assert "wait to prove themselves" in rig.next_log()
    assert rig.log.records.empty()
    assert rig.events.empty()


# ---- slots that misbehave ----


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (control_frame(b"\xc1 not a message"), "not a message from a slot"),
        (control_frame(m.encode_message(m.MasterHeartbeat(1))), "not a message from a slot"),
        (control_frame(b""), "not a message from a slot"),
        (CONTROL_HEADER.pack(0xFFFFFFFF) + b"x", "is announced"),
    ],
    ids=["garbage", "wrong direction", "empty", "too long"],
)
def test_a_malformed_message_closes_that_connection_and_is_reported(rig, data, reason):
    slot, other = rig.slot(0), rig.slot(1)
    slot.send(m.SlotHeartbeat(1))
    assert rig.next_event() == ev.MessageReceived(SlotId(0), m.SlotHeartbeat(1))
    slot.socket.sendall(data)
    event = rig.next_event()
    assert isinstance(event, ev.MessageMalformed)
    assert event.slot == 0
    assert reason in event.reason
    assert is_closed(slot.socket)
    assert "the control connection of slot 0" in rig.next_log()
    assert other.is_alive(rig)


# ---- the end ----


def test_stop_closes_every_socket_and_ends_the_thread():
    before = psutil.Process().num_fds()
    rig = Rig()
    slot, stranger = rig.slot(0), rig.connect()
    assert slot.is_alive(rig)
    port = rig.server.port
    rig.server.stop()
    assert rig.server.join(WAIT_S)
    assert is_closed(slot.socket)
    assert is_closed(stranger)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    rig.server.post(ev.Tick())  # nobody is there: dropped
    rig.close()
    assert psutil.Process().num_fds() == before
    assert not [t for t in threading.enumerate() if t.name == "tidegate-control"]


def test_an_error_in_the_handler_closes_the_port_and_is_handed_over(rig):
    slot = rig.slot(0)
    rig.server.post(ev.CountingFailed("a bug"))
    error = rig.crashes.get(timeout=WAIT_S)
    assert isinstance(error, RuntimeError)
    assert is_closed(slot.socket)
    with pytest.raises(ConnectionRefusedError):
        rig.connect()
    rig.server.post(ev.SlotsCounted(1))
    assert rig.next_event() == ev.SlotsCounted(1), "so that what the job has ordered can still be answered"


def test_a_closed_port_hears_what_other_threads_say_until_it_is_stopped(rig):
    slot, stranger = rig.slot(0), rig.connect()
    assert slot.is_alive(rig)
    rig.server.post(ev.CancelRequested("the job has ended"))
    assert rig.next_event() == ev.CancelRequested("the job has ended")
    assert is_closed(slot.socket)
    assert is_closed(stranger)
    with pytest.raises(ConnectionRefusedError):
        rig.connect()
    rig.server.post(ev.SlotsCounted(1))
    assert rig.next_event() == ev.SlotsCounted(1)


def test_a_port_that_was_never_served_can_be_closed():
    before = psutil.Process().num_fds()
    server = ControlServer("127.0.0.1", SECRET, "job", 3, 1, 1_000)
    server.close_unstarted()
    assert psutil.Process().num_fds() == before


def test_an_address_that_is_not_ours_cannot_be_bound():
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match="assign requested address"):
        ControlServer("192.0.2.1", SECRET, "job", 3, 1, 1_000)
    assert psutil.Process().num_fds() == before


def interrupt_when_it_waits() -> None:
    """Ctrl-C for the main thread as soon as that waits for a thread."""
    main = threading.main_thread().ident
    assert main is not None
    while True:
        frame, names = sys._current_frames()[main], set()
        while frame is not None:
            names.add(frame.f_code.co_qualname)
            frame = frame.f_back
        if "ControlServer.join" in names and names & {"Event.wait", "Thread._wait_for_tstate_lock"}:
            break
    signal.pthread_kill(main, signal.SIGINT)


def test_a_wait_that_ctrl_c_has_ended_can_be_made_again(rig):
    interrupt = threading.Thread(target=interrupt_when_it_waits)
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        rig.server.join(WAIT_S)
    interrupt.join()
    assert not rig.server.join(0.01), "it still runs"
    rig.server.stop()
    assert rig.server.join(WAIT_S)
