"""The data plane of a slot: its listening socket, its connections, and the wait of the mailbox loop.

Mailbox thread only, except for `wake`. Two slots share one connection, which the one with the lower id opens. A peer is
lost when its connection ends or breaks, and when the path to its host is dead (`PathWatch`).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable

from tidegate.core.clock import Clock
from tidegate.core.durations import format_duration_ms
from tidegate.core.errors import ProtocolError
from tidegate.core.ids import SlotId
from tidegate.protocol.frames import DataHeader
from tidegate.protocol.handshake import Hello
from tidegate.protocol.liveness import PathWatch
from tidegate.protocol.messages import SlotAddress
from tidegate.protocol.ports import listen
from tidegate.protocol.refusals import RefusalLog
from tidegate.protocol.tls import TlsIdentity
from tidegate.taskmanager.network.connection import (
    Connection,
    ConnectionClosed,
    client_connection,
    server_connection,
)

MAX_STRANGERS = 64
"""How many connections, besides the expected peers, may wait for their handshake; beyond, the oldest is closed."""

_SELECT_LIMIT = 1024
_BREATH_S = 0.01
_LOOK_EVERY_MS = 1_000
"""How often the paths are checked; the mailbox loop polls at least as often."""


class PeerUnreachable(Exception):
    """A connection to a peer could not be opened; its arguments are the peer and the reason."""

    def __init__(self, peer: SlotId, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer = peer
        self.reason = reason


class DataPlane:
    """Sockets to the other slots. Set `on_frame` and `on_lost` before polling."""

    def __init__(
        self,
        host: str,
        secret: bytes,
        job: str,
        attempt: int,
        slot: SlotId,
        clock: Clock,
        handshake_ms: int,
        *,
        link_ms: int = 15_000,
        ports: str = "",
        tls: TlsIdentity | None = None,
    ) -> None:
        self._secret = secret
        self._job = job
        self._attempt = attempt
        self._slot = slot
        self._clock = clock
        self._handshake_ns = handshake_ms * 1_000_000
        self._link_ms = link_ms
        self.on_frame: Callable[[SlotId, DataHeader, memoryview], None] = _unset
        self.on_lost: Callable[[SlotId, str, bool], None] = _unset
        """Called with the peer, the reason, and whether the path between the hosts is dead."""
        self._server_tls = None if tls is None else tls.server_context()
        self._client_tls = None if tls is None else tls.client_context()
        self._listener = listen(host, ports, "network.data_ports", patience_s=handshake_ms / 1000)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._by_fd: dict[int, Connection] = {}
        self._strangers: dict[int, int] = {}
        self._paths: dict[Connection, PathWatch] = {}
        self._look_again_ms = 0
        self._peers: dict[SlotId, Connection] = {}
        self._waiting: dict[SlotId, list[tuple[bytes, object]]] = {}
        self._dirty: set[int] = set()
        self.expected: set[SlotId] = set()
        self._gone: set[SlotId] = set()
        self._shut = False
        self._refusals = RefusalLog(f"the data port of slot {slot}")

    # ---- sending ----

    def connect(self, peers: dict[SlotId, SlotAddress]) -> None:
        """Open those connections to these peers that this slot must open (the lower id does).

        Raises `PeerUnreachable`. Then `poll` until `is_connected`: a peer soon closes a connection without a handshake.
        """
        self.expected = set(peers)
        for peer, address in peers.items():
            if peer < self._slot:
                continue
            hello = Hello("data", self._job, self._attempt, self._slot)
            try:
                sock = socket.create_connection((address.host, address.port), timeout=self._link_ms / 1000)
                connection = client_connection(sock, self._secret, hello, peer, self._client_tls)
            except OSError as e:
                raise PeerUnreachable(
                    peer,
                    f"cannot connect to it at {address.host}:{address.port}: {e}. Check that the hosts reach each "
                    f"other at their data ports (network.data_ports)",
                ) from e
            self._peers[peer] = connection
            self._add(connection)

    @property
    def is_connected(self) -> bool:
        """Whether every expected peer has finished its handshake, or is lost already."""
        return all(
            peer in self._gone or ((found := self._peers.get(peer)) is not None and found.established)
            for peer in self.expected
        )

    def send(self, peer: SlotId, header: bytes, body: object) -> None:
        """Queue a frame for a peer, also before its connection exists."""
        connection = self._peers.get(peer)
        if peer in self._gone:
            return
        if connection is None:
            self._waiting.setdefault(peer, []).append((header, body))
        else:
            connection.send(header, body)
            self._dirty.add(connection.fileno())

    def shut(self) -> None:
        """Send nothing more; what waits for a peer that has not connected yet is still sent to it."""
        self._shut = True
        for connection in self._peers.values():
            connection.shut()
            self._dirty.add(connection.fileno())

    @property
    def is_quiet(self) -> bool:
        """Whether, after `shut`, every peer has connected and closed its side too."""
        return not self._peers and self.expected <= self._gone

    # ---- waiting ----

    def poll(self, timeout_s: float | None) -> bool:
        """Send and receive what is possible, waiting at most `timeout_s`; returns whether anything happened."""
        self._write_dirty()
        if timeout_s is None or timeout_s > 0:
            self._wait(timeout_s)
        events = self._epoll.poll(0)
        for fd, mask in events:
            self._handle(fd, mask)
        if self._strangers:
            self._close_late_strangers()
        if self._paths:
            self._look_at_paths()
        if self._refusals.unsaid:
            self._refusals.tick(self._now_ms())
        self._write_dirty()
        return bool(events)

    def wait_for_wake(self, timeout_s: float) -> None:
        """Wait for `wake` only; nothing is received (peers may connect before this slot is deployed)."""
        if select.select([self._wake_fd], [], [], timeout_s)[0]:
            os.eventfd_read(self._wake_fd)

    def wake(self) -> None:
        """End the current or the next wait; may be called from any thread."""
        try:
            os.eventfd_write(self._wake_fd, 1)
        except OSError as e:
            if e.errno not in (errno.EBADF, errno.EAGAIN):
                raise

    def close(self) -> None:
        for connection in list(self._by_fd.values()):
            connection.close()
        self._by_fd.clear()
        self._paths.clear()
        self._peers.clear()
        self._refusals.close()
        self._listener.close()
        self._epoll.close()
        os.close(self._wake_fd)

    # ---- inside ----

    def _wait(self, timeout_s: float | None) -> None:
        # epoll rounds up to whole milliseconds; select on the epoll descriptor waits to the microsecond.
        fd = self._epoll.fileno()
        if fd < _SELECT_LIMIT:
            select.select([fd], [], [], timeout_s)
        else:
            self._epoll.poll(-1 if timeout_s is None else timeout_s)

    def _handle(self, fd: int, mask: int) -> None:
        if fd == self._wake_fd:
            os.eventfd_read(fd)
            return
        if fd == self._listener.fileno():
            self._accept()
            return
        connection = self._by_fd.get(fd)
        if connection is None:
            return
        try:
            if mask & select.EPOLLOUT:
                self._write(connection)
            if mask & ~select.EPOLLOUT:
                self._read(connection)
        except ConnectionClosed as e:
            self._lost(connection, str(e))
        except ProtocolError as e:
            self._refuse(connection, str(e))

    def _read(self, connection: Connection) -> None:
        connection.read(lambda header, body: self._frame(connection, header, body))

    def _frame(self, connection: Connection, header: DataHeader, body: memoryview) -> None:
        if connection.peer is not None:
            self.on_frame(connection.peer, header, body)

    def _established(self, connection: Connection) -> None:
        fd = connection.fileno()
        self._strangers.pop(fd, None)
        peer = connection.peer
        assert peer is not None
        known = self._peers.get(peer)
        if known is not None and known is not connection:
            raise ProtocolError(f"slot {peer} connected twice")
        if peer not in self.expected and self.expected:
            raise ProtocolError(f"slot {peer} has no channel to slot {self._slot}")
        self._peers[peer] = connection
        for header, body in self._waiting.pop(peer, []):
            connection.send(header, body)
        if self._shut:
            connection.shut()
        self._dirty.add(fd)

    def _write(self, connection: Connection) -> None:
        connection.write()
        mask = select.EPOLLIN | (select.EPOLLOUT if connection.wants_write else 0)
        self._epoll.modify(connection.fileno(), mask)

    def _write_dirty(self) -> None:
        while self._dirty:
            connection = self._by_fd.get(self._dirty.pop())
            if connection is not None:
                try:
                    connection.write()
                    if connection.wants_write:
                        self._epoll.modify(connection.fileno(), select.EPOLLIN | select.EPOLLOUT)
                except ConnectionClosed as e:
                    self._lost(connection, str(e))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as e:
                self._refusals.add("a stranger", f"it could not be accepted: {e}", self._now_ms())
                time.sleep(_BREATH_S)  # out of descriptors the listener stays ready: do not spin
                return
            if len(self._strangers) >= MAX_STRANGERS + len(self.expected):
                # Close the oldest, not the newest: that one may be a peer, which proves itself at once.
                oldest = self._by_fd[next(iter(self._strangers))]
                self._refuse(oldest, f"more than {len(self._strangers)} wait to prove themselves")
            try:
                connection = server_connection(sock, self._secret, self._job, self._attempt, self._server_tls)
            except OSError:
                sock.close()  # it went away at once
                continue
            self._add(connection)
            self._strangers[connection.fileno()] = self._clock.monotonic_ns() + self._handshake_ns

    def _add(self, connection: Connection) -> None:
        fd = connection.fileno()
        connection.on_established = lambda: self._established(connection)
        self._by_fd[fd] = connection
        self._paths[connection] = PathWatch(connection.sock, self._link_ms)
        self._epoll.register(fd, select.EPOLLIN)
        self._dirty.add(fd)

    def _remove(self, connection: Connection) -> None:
        fd = connection.fileno()
        self._by_fd.pop(fd, None)
        self._strangers.pop(fd, None)
        self._paths.pop(connection, None)
        self._dirty.discard(fd)
        connection.close()

    def _lost(self, connection: Connection, reason: str, *, is_cut: bool = False) -> None:
        peer = connection.peer
        if peer is None:
            self._refuse(connection, f"it went away before it had proved itself ({reason})")
            return
        self._remove(connection)
        if self._peers.get(peer) is connection:
            del self._peers[peer]
            self._gone.add(peer)
            self.on_lost(peer, reason, is_cut)

    def _refuse(self, connection: Connection, reason: str) -> None:
        """Log why a connection is closed; if it was that of a peer, the peer is lost."""
        try:
            host, port = connection.sock.getpeername()[:2]
            name = f"{host}:{port}"
        except OSError:
            name = "a peer that is gone"
        self._refusals.add(name, reason, self._now_ms())
        if connection.peer is None:
            self._remove(connection)
        else:
            self._lost(connection, reason)

    def _close_late_strangers(self) -> None:
        now = self._clock.monotonic_ns()
        for fd in [fd for fd, deadline in self._strangers.items() if deadline <= now]:
            self._refuse(
                self._by_fd[fd], f"it did not prove itself within {self._handshake_ns // 1_000_000} ms"
            )

    def _look_at_paths(self) -> None:
        now_ms = self._now_ms()
        if now_ms < self._look_again_ms:
            return
        self._look_again_ms = now_ms + min(_LOOK_EVERY_MS, self._link_ms // 4)
        for connection in [c for c, path in self._paths.items() if path.is_dead(now_ms)]:
            here, there = connection.sock.getsockname()[0], connection.sock.getpeername()[0]
            reason = (
                f"nothing has come from {there} to {here} for {format_duration_ms(self._link_ms)} "
                f"(network.link_timeout), not even an answer of its kernel: the network between the two hosts is cut, "
                f"or {there} is down"
            )
            self._lost(connection, reason, is_cut=True)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def _unset(*args: object) -> None:
    raise AssertionError("the data plane is not connected to a slot")
