"""One data connection: handshake, then frames both ways, over a non-blocking socket. Mailbox thread only."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable

import pyarrow as pa

from tidegate.core.errors import AuthenticationError
from tidegate.core.ids import SlotId
from tidegate.protocol.frames import DATA_HEADER, DataHeader, parse_data_header
from tidegate.protocol.handshake import ClientHandshake, Hello, ServerHandshake
from tidegate.protocol.tls import TlsSocket

OnFrame = Callable[[DataHeader, memoryview], None]

_MAX_VECTORS = 64
_READ_BUDGET = 4 << 20
"""Bytes that one call of `read` takes at most, so that a fast peer does not starve the tasks."""
_LARGE_FRAME = 64 << 10
_HANDSHAKE_READ = 16 << 10


class ConnectionClosed(Exception):
    """The peer closed the connection (in order) or it broke; the argument says which."""


class Connection:
    """A socket with a peer slot. `peer` is known from the start (client) or after the handshake (server)."""

    def __init__(
        self, sock: socket.socket, handshake: ClientHandshake | ServerHandshake, peer: SlotId | None
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.established = False
        self.sent_all = False
        """Whether `shut` was called and everything has left."""
        self.on_established: Callable[[], None] = _nothing
        """Called between the handshake and the first frame; may refuse the peer by raising `ProtocolError`."""
        self._shut = False
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._is_open = self._tls is None
        """Whether it can carry bytes: with TLS, only after the TLS handshake."""
        self._handshake: ClientHandshake | ServerHandshake | None = handshake
        self._out: deque[memoryview] = deque()
        self._frames_before: deque[memoryview] = deque()
        self._header = bytearray(DATA_HEADER.size)
        self._parsed: DataHeader | None = None
        self._view = memoryview(self._header)
        self._have = 0
        self._rest = b""
        if isinstance(handshake, ServerHandshake):
            self._out.append(memoryview(handshake.greeting))
        else:
            self._open()  # with TLS the client begins

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._out) and self._is_open

    def send(self, header: bytes, body: object) -> None:
        """Queue a frame; it leaves after the handshake, when the socket takes it."""
        target = self._out if self.established else self._frames_before
        target.append(memoryview(header))
        view = memoryview(body)  # type: ignore[arg-type]
        if view.nbytes:
            target.append(view.cast("B"))

    def shut(self) -> None:
        """Send nothing more; the peer sees the end of the stream after what is queued."""
        self._shut = True
        self._finish_writing()

    def write(self) -> None:
        """Send what the socket takes now."""
        if not self._is_open:
            return
        out = self._out
        try:
            while out:
                vectors = [out[i] for i in range(min(len(out), _MAX_VECTORS))]
                sent = self.sock.sendmsg(vectors)
                while sent:
                    head = out[0]
                    if sent < head.nbytes:
                        out[0] = head[sent:]
                        break
                    sent -= head.nbytes
                    out.popleft()
        except BlockingIOError:
            return
        except OSError as e:
            raise ConnectionClosed(f"sending failed: {e}") from e
        self._finish_writing()

    def read(self, on_frame: OnFrame) -> None:
        """Read what has arrived and pass complete frames on, up to a budget."""
        try:
            if not self._is_open and not self._open():
                return
            if self._handshake is not None:
                if not self._read_handshake():
                    return
                self.on_established()
                self._take(self._rest, on_frame)
            budget = _READ_BUDGET
            while budget > 0 or (self._tls is not None and self._tls.pending()):
                received = self.sock.recv_into(self._view[self._have :])
                if not received:
                    raise ConnectionClosed("the peer closed the connection")
                budget -= received
                self._advance(received, on_frame)
        except BlockingIOError:
            return
        except OSError as e:
            raise ConnectionClosed(f"receiving failed: {e}") from e

    def close(self) -> None:
        self.sock.close()

    def _open(self) -> bool:
        """Continue the TLS handshake, if there is one; returns whether the connection can carry bytes now."""
        if self._tls is not None and not self._is_open:
            self._is_open = self._tls.shake()
            self.write()
        return self._is_open

    def _finish_writing(self) -> None:
        if self._shut and self.established and not self._out and not self.sent_all:
            self.sent_all = True
            try:  # noqa: SIM105
                self.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the peer is gone already; the next read finds that

    def _advance(self, received: int, on_frame: OnFrame) -> None:
        self._have += received
        if self._have < len(self._view):
            return
        if self._parsed is None:
            header = parse_data_header(self._header)
            if header.length:
                self._parsed = header
                self._view = _room_for(header.length)
                self._have = 0
                return
            body = memoryview(b"")
        else:
            header, body = self._parsed, self._view
        self._parsed = None
        self._view = memoryview(self._header)
        self._have = 0
        on_frame(header, body)

    def _read_handshake(self) -> bool:
        """Take handshake bytes one message at a time; returns whether frames may follow now."""
        handshake = self._handshake
        assert handshake is not None
        data = self.sock.recv(_HANDSHAKE_READ)
        if not data:
            raise ConnectionClosed("the peer closed the connection during the handshake")
        reply = handshake.feed(data)
        if reply:
            self._out.append(memoryview(reply))
            self.write()
        if isinstance(handshake, ServerHandshake):
            if handshake.hello is None:
                return False
            _check_role(handshake.hello)
            self.peer = SlotId(handshake.hello.slot)
        elif not handshake.done:
            return False
        # A server sends frames only after it has seen our last handshake message. A client may send them right after
        # its own; those bytes were read with it.
        self._rest = handshake.rest
        self._handshake = None
        self.established = True
        self._out.extend(self._frames_before)
        self._frames_before.clear()
        return True

    def _take(self, data: bytes, on_frame: OnFrame) -> None:
        """Handle frame bytes that came together with the end of the handshake."""
        rest = memoryview(data)
        while rest:
            n = min(len(rest), len(self._view) - self._have)
            self._view[self._have : self._have + n] = rest[:n]
            rest = rest[n:]
            self._advance(n, on_frame)


def client_connection(
    sock: socket.socket, secret: bytes, hello: Hello, peer: SlotId, tls: ssl.SSLContext | None = None
) -> Connection:
    """The connecting side of a data connection."""
    return Connection(_prepared(sock, tls, is_server=False), ClientHandshake(secret, hello), peer)


def server_connection(
    sock: socket.socket, secret: bytes, job: str, attempt: int, tls: ssl.SSLContext | None = None
) -> Connection:
    """The accepting side of a data connection."""
    return Connection(_prepared(sock, tls, is_server=True), ServerHandshake(secret, job, attempt), None)


def _prepared(sock: socket.socket, tls: ssl.SSLContext | None, *, is_server: bool) -> socket.socket:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return sock
    return tls.wrap_socket(sock, server_side=is_server, do_handshake_on_connect=False)


def _nothing() -> None:
    pass


def _check_role(hello: Hello) -> None:
    if hello.role != "data":
        raise AuthenticationError(f"slot {hello.slot} came with role {hello.role!r} to a data port")


def _room_for(size: int) -> memoryview:
    """Memory for a frame. For a large one it is Arrow's, which is reused and not filled with zeros first."""
    return memoryview(bytearray(size) if size < _LARGE_FRAME else pa.allocate_buffer(size)).cast("B")
