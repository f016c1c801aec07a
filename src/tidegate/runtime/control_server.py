"""ControlServer: the `Slots` of a real driver, and the driver's thread; one TCP port, non-blocking sockets.

A connection must first prove that it holds the job's secret. Until then it can do nothing and costs little: a few
hundred bytes, a deadline, at most `MAX_UNPROVEN` at once, of which the oldest is closed first. If the proof fails, the
connection is closed and logged with the peer's address and the reason (by a `RefusalLog`); the job does not notice.
After the proof each connection belongs to one slot, and what it sends becomes events for the handler.

The server's thread calls `handle` for events of connections, for ticks and for what other threads `post`. The methods
of `Slots` are called only from inside `handle`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.core.clock import Clock, SystemClock
from tidegate.core.errors import AuthenticationError, ProtocolError
from tidegate.core.ids import AttemptNumber, SlotId
from tidegate.jobmanager.events import MessageMalformed, MessageReceived, SlotDisconnected, Tick
from tidegate.jobmanager.failover.events import OfAttempt
from tidegate.jobmanager.ports import DriverEvent
from tidegate.protocol.frames import ControlDecoder, control_frame
from tidegate.protocol.handshake import ServerHandshake
from tidegate.protocol.messages import MasterMessage, decode_slot_message, encode_message
from tidegate.protocol.ports import listen
from tidegate.protocol.refusals import RefusalLog
from tidegate.protocol.tls import TlsIdentity, TlsSocket

logger = logging.getLogger(__name__)

NO_ATTEMPT = AttemptNumber(-1)
"""No slot belongs to this attempt: while it is the current one, every slot is refused."""
MAX_UNPROVEN = 64
TICK_MS = 50
_READ_BYTES = 1 << 18
_EVENTS_PER_ROUND = 256


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    peer: str
    handshake: ServerHandshake
    deadline_ms: int
    decoder: ControlDecoder = field(default_factory=ControlDecoder)
    outgoing: collections.deque[memoryview] = field(default_factory=collections.deque)
    slot: SlotId | None = None
    is_open: bool = True
    """Whether it can carry bytes: with TLS, only after the TLS handshake."""
    close_when_sent: bool = False
    closed: bool = False


class ControlServer:
    """The control port of a job, for one attempt after the other. It is served on a thread of its own."""

    def __init__(
        self,
        bind_host: str,
        secret: bytes,
        job_id: str,
        attempt: AttemptNumber,
        num_slots: int,
        handshake_timeout_ms: int,
        *,
        clock: Clock | None = None,
        ports: str = "",
        tls: TlsIdentity | None = None,
    ) -> None:
        self._secret = secret
        self._tls = None if tls is None else tls.server_context()
        self._job_id = job_id
        self._attempt = attempt
        self._num_slots = num_slots
        self._handshake_timeout_ms = handshake_timeout_ms
        self._clock = clock or SystemClock()
        self._refusals = RefusalLog("the control port")
        self._handle: Callable[[DriverEvent], None] = lambda event: None
        self._on_crash: Callable[[BaseException], None] = lambda error: None
        self._posted: collections.deque[DriverEvent] = collections.deque()
        self._unproven: dict[_Connection, None] = {}
        self._slots: dict[SlotId, _Connection] = {}
        self._stopping = self._closed = False
        self._accept_again_ms = 0
        self._accepting = True
        self._thread: threading.Thread | None = None
        self._has_ended = threading.Event()
        self._listener = listen(bind_host, ports, "network.control_port")
        self._selector = selectors.DefaultSelector()
        self._wake_receive, self._wake_send = socket.socketpair()
        for s in (self._wake_receive, self._wake_send, self._listener):
            s.setblocking(False)
        self._selector.register(self._wake_receive, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.port: int = self._listener.getsockname()[1]

    # ---- from any thread ----

    def start(self, handle: Callable[[DriverEvent], None], on_crash: Callable[[BaseException], None]) -> None:
        """Serve until `stop`.

        `on_crash` is called on the server's thread with an exception of `handle` or of the server itself. By then all
        connections are closed; ticks and posted events are still handled.
        """
        self._handle, self._on_crash = handle, on_crash
        self._thread = threading.Thread(target=self._run, name="tidegate-control", daemon=True)
        self._thread.start()

    def post(self, event: DriverEvent) -> None:
        """Queue an event for the server's thread; after the end it is dropped."""
        self._posted.append(event)
        self._wake()

    def stop(self) -> None:
        """Ask the server to close everything and end; returns at once."""
        self._stopping = True
        self._wake()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False after the timeout.

        After a Ctrl-C in here it must be possible to wait again. With `Thread.join` alone it is not: before 3.13,
        Python then treats the thread as ended.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            if not self._has_ended.wait(timeout_s):
                return False
            self._thread.join()
        return True

    def close_unstarted(self) -> None:
        """Close the port of a server that was never started."""
        if self._thread is None:
            self._close_all()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: the server has ended
            self._wake_send.send(b"\0")

    # ---- from `handle`, on the server's thread ----

    def send(self, slot: SlotId, message: MasterMessage) -> None:
        """Send a message to a slot; dropped when the slot has no connection."""
        connection = self._slots.get(slot)
        if connection is not None and not connection.close_when_sent:
            self._queue(connection, control_frame(encode_message(message)))

    def close_slot(self, slot: SlotId) -> None:
        """Close a slot's connection after everything for it is sent, without an event."""
        connection = self._slots.pop(slot, None)
        if connection is not None:
            connection.close_when_sent = True
            self._flush(connection)

    def begin_attempt(self, attempt: AttemptNumber) -> None:
        """From now on accept slots of this attempt only; close all connections without an event."""
        self._attempt = attempt
        for connection in [*self._slots.values(), *self._unproven]:
            self._forget(connection)

    def end_attempt(self) -> None:
        """Close all connections without an event; until the next attempt every slot is refused."""
        self.begin_attempt(NO_ATTEMPT)

    def close(self) -> None:
        """Close the port and all connections; posted events and ticks are handled until `stop`."""
        if not self._closed:
            self._closed = True
            self.end_attempt()
            if self._accepting:
                self._selector.unregister(self._listener)
            self._listener.close()

    # ---- the loop ----

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._serve()
                except BaseException as e:  # noqa: BLE001 -- on_crash gets it
                    self.close()
                    self._on_crash(e)
        finally:
            try:
                self._close_all()
            finally:
                self._has_ended.set()

    def _serve(self) -> None:
        next_tick_ms = self._now_ms()
        while not self._stopping:
            wait_ms = 0 if self._posted else max(0, next_tick_ms - self._now_ms())
            for key, mask in self._selector.select(wait_ms / 1000):
                if key.fileobj is self._listener:
                    if not self._closed:
                        self._accept()
                elif key.fileobj is self._wake_receive:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_receive.recv(4096)
                else:
                    self._serve_connection(key.data, mask)
                if self._stopping:
                    return
            for _ in range(min(len(self._posted), _EVENTS_PER_ROUND)):
                self._handle(self._posted.popleft())
            # After the reads: messages that arrived while this process was held up must count before a silence does.
            now_ms = self._now_ms()
            if now_ms >= next_tick_ms:
                next_tick_ms = now_ms + TICK_MS
                self._expire(now_ms)
                self._handle(Tick())

    def _serve_connection(self, connection: _Connection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE and not connection.closed:
            self._flush(connection)
        if mask & selectors.EVENT_READ and not connection.closed:
            self._read(connection)

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as e:
            if isinstance(e, ConnectionError):
                return
            # Out of file descriptors, most likely: try again in a second instead of spinning.
            logger.warning("the control port cannot accept a connection now: %s", e)
            self._selector.unregister(self._listener)
            self._accepting = False
            self._accept_again_ms = self._now_ms() + 1_000
            return
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            try:
                accepted = self._tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
            except OSError:
                accepted.close()  # it went away at once
                return
        handshake = ServerHandshake(self._secret, self._job_id, self._attempt)
        deadline_ms = self._now_ms() + self._handshake_timeout_ms
        connection = _Connection(accepted, f"{address[0]}:{address[1]}", handshake, deadline_ms)
        connection.is_open = self._tls is None
        if len(self._unproven) >= MAX_UNPROVEN:
            oldest = next(iter(self._unproven))
            self._refuse(oldest, f"more than {MAX_UNPROVEN} connections wait to prove themselves")
        self._unproven[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        self._queue(connection, handshake.greeting)

    def _read(self, connection: _Connection) -> None:
        try:
            if not connection.is_open:
                self._shake(connection)
                return
            data = connection.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as e:
            self._lost(connection, str(e))
            return
        if not data:
            self._lost(connection, "the connection was closed by the other side")
        elif connection.slot is None:
            self._prove(connection, data)
        else:
            self._take(connection, connection.slot, data)

    def _shake(self, connection: _Connection) -> None:
        assert isinstance(connection.socket, TlsSocket)
        try:
            connection.is_open = connection.socket.shake()
        except AuthenticationError as e:
            self._refuse(connection, str(e))
            return
        self._flush(connection)

    def _prove(self, connection: _Connection, data: bytes) -> None:
        handshake = connection.handshake
        try:
            answer = handshake.feed(data)
            hello = handshake.hello
            if hello is None:
                return
            if hello.role != "control":
                raise AuthenticationError(f"this is the control port, not one for {hello.role} connections")
            if not 0 <= hello.slot < self._num_slots:
                raise AuthenticationError(f"there is no slot {hello.slot}, the job has {self._num_slots}")
            slot = SlotId(hello.slot)
            if slot in self._slots:
                raise AuthenticationError(f"slot {slot} is connected already")
        except AuthenticationError as e:
            self._refuse(connection, str(e))
            return
        del self._unproven[connection]
        connection.slot = slot
        self._slots[slot] = connection
        self._queue(connection, answer)
        if handshake.rest and not connection.closed:
            self._take(connection, slot, handshake.rest)

    def _take(self, connection: _Connection, slot: SlotId, data: bytes) -> None:
        try:
            for body in connection.decoder.feed(data):
                message = decode_slot_message(body)
                if self._slots.get(slot) is not connection or self._stopping:
                    return  # closed by the message before
                self._handle(OfAttempt(self._attempt, MessageReceived(slot, message)))
        except ProtocolError as e:
            if self._slots.get(slot) is connection:
                self._forget(connection)
                logger.warning(
                    "the control connection of slot %d from %s is closed: %s", slot, connection.peer, e
                )
                self._handle(OfAttempt(self._attempt, MessageMalformed(slot, str(e))))

    # ---- bytes out ----

    def _queue(self, connection: _Connection, data: bytes) -> None:
        connection.outgoing.append(memoryview(data))
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        """Send what the socket takes; ask to be called again for the rest."""
        if connection.closed or not connection.is_open:
            return
        outgoing = connection.outgoing
        try:
            while outgoing:
                sent = connection.socket.send(outgoing[0])
                if sent < len(outgoing[0]):
                    outgoing[0] = outgoing[0][sent:]
                else:
                    outgoing.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            outgoing.clear()  # the next read finds that the connection is gone, and why
        if not outgoing and connection.close_when_sent:
            self._forget(connection)
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if outgoing else 0)
        if self._selector.get_key(connection.socket).events != mask:
            self._selector.modify(connection.socket, mask, connection)

    # ---- ends ----

    def _expire(self, now_ms: int) -> None:
        for connection in [c for c in self._unproven if now_ms >= c.deadline_ms]:
            self._refuse(connection, f"it did not prove itself within {self._handshake_timeout_ms} ms")
        self._refusals.tick(now_ms)
        if not self._accepting and not self._closed and now_ms >= self._accept_again_ms:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._accepting = True

    def _refuse(self, connection: _Connection, reason: str) -> None:
        self._forget(connection)
        self._refusals.add(connection.peer, reason, self._now_ms())

    def _lost(self, connection: _Connection, reason: str) -> None:
        slot = connection.slot
        if slot is None:
            self._refuse(connection, f"it went away before it had proved itself ({reason})")
            return
        known = self._slots.get(slot) is connection
        self._forget(connection)
        if known:
            self._handle(OfAttempt(self._attempt, SlotDisconnected(slot, reason)))

    def _forget(self, connection: _Connection) -> None:
        """Close a connection without an event; every other way out goes through here."""
        if connection.closed:
            return
        connection.closed = True
        self._unproven.pop(connection, None)
        if connection.slot is not None and self._slots.get(connection.slot) is connection:
            del self._slots[connection.slot]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _close_all(self) -> None:
        self._refusals.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Connection):
                self._forget(key.data)
        self._selector.close()
        for s in (self._listener, self._wake_receive, self._wake_send):
            s.close()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
