"""The control connection of a slot, on a thread of its own: heartbeats continue during a long call in user code.

The thread sends heartbeats and what the mailbox thread posts, receives the JobManager's messages into `inbox`, and
watches for three things that the mailbox thread may be too busy to see: the JobManager's silence, the end of the
connection, and a cancellation that the mailbox thread does not answer in time. In the last case it ends the process.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from tidegate.core.errors import ProtocolError, TidegateError
from tidegate.core.ids import VertexId
from tidegate.core.options import Options
from tidegate.protocol import messages as m
from tidegate.protocol.frames import ControlDecoder, control_frame
from tidegate.protocol.handshake import ClientHandshake, Hello
from tidegate.protocol.tls import TlsIdentity

log = logging.getLogger(__name__)

_GOODBYE_S = 2.0


class ControlLost(TidegateError):
    """The JobManager is gone: its connection ended or it fell silent. The slot ends."""


class ControlClient:
    """Talks to the JobManager. The mailbox thread calls `send` and `close`; the control thread fills `inbox`."""

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        hello: Hello,
        options: Options,
        tls: TlsIdentity | None = None,
    ) -> None:
        self._options = options
        self._tls = None if tls is None else tls.client_context()
        self._decoder = ControlDecoder()
        self._early = self._connect(host, port, secret, hello)
        self.local_host: str = self._socket.getsockname()[0]
        self.inbox: deque[m.MasterMessage] = deque()
        self.lost: str | None = None
        """Why the JobManager is gone; None while it is there."""
        self.cancel_requested: str | None = None
        self.on_arrival: Callable[[], None] = _nothing
        self.metrics: Callable[[], tuple[tuple[VertexId, bytes], ...]] = tuple
        self.activity: Callable[[], tuple[int, str]] = _no_activity
        """How long (ms) the mailbox thread has been inside one step, and of which task."""
        self._outbox: deque[bytes] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sequence = 0
        self._grace_ends = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidegate-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: m.SlotMessage) -> None:
        """Post a message; it leaves at once, in order."""
        self._outbox.append(control_frame(m.encode_message(message)))
        os.eventfd_write(self._wake_fd, 1)

    def beat(self) -> None:
        """Post a heartbeat with the current metrics; the last one before the end has the final ones."""
        self._sequence += 1
        stuck_ms, inside = self.activity()
        self.send(m.SlotHeartbeat(self._sequence, self.metrics(), stuck_ms, inside))

    def close(self) -> None:
        """Send what is posted, end the connection and the thread."""
        self._closing.set()
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join(timeout=5)
        self._socket.close()
        os.close(self._wake_fd)

    # ---- the thread ----

    def _run(self) -> None:
        try:
            self._loop()
            self._send_posted()
            if self._closing.is_set():
                self._wait_for_goodbye()
        except (OSError, ProtocolError, ControlLost) as e:
            self.lost = str(e) or type(e).__name__
        except BaseException as e:  # a bug; without this thread the slot would only fall silent
            log.exception("the control thread failed")
            self.lost = f"its control thread failed: {type(e).__name__}: {e}"
        self.on_arrival()
        if self.lost is not None or self.cancel_requested is not None:
            self._end_process_if_stuck()

    def _loop(self) -> None:
        interval = min(self._options.heartbeat_interval, self._options.metrics_interval) / 1000
        timeout = self._options.heartbeat_timeout / 1000
        last_heard = time.monotonic()
        next_beat = 0.0
        control_fd = self._socket.fileno()
        self._socket.settimeout(timeout)
        self._take(self._early)
        while not (self._closing.is_set() and not self._outbox):
            now = time.monotonic()
            if now >= next_beat:
                self.beat()
                next_beat = now + interval
            self._send_posted()
            ready, _, _ = select.select([control_fd, self._wake_fd], [], [], max(0.0, next_beat - now))
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
            if control_fd in ready:
                data = self._socket.recv(1 << 16)
                if not data:
                    raise ControlLost("the JobManager closed the connection")
                last_heard = time.monotonic()
                self._take(data)
            elif time.monotonic() - last_heard > timeout:
                raise ControlLost(f"the JobManager has been silent for {timeout:g} s")
            if self.cancel_requested is not None and not self._closing.is_set():
                self._wait_for_cancel()
                return

    def _send_posted(self) -> None:
        while self._outbox:
            self._socket.sendall(self._outbox.popleft())

    def _take(self, data: bytes) -> None:
        for body in self._decoder.feed(data):
            message = m.decode_master_message(body)
            if isinstance(message, m.MasterHeartbeat):
                continue
            if isinstance(message, m.Cancel):
                self.cancel_requested = message.reason
            self.inbox.append(message)
            self.on_arrival()

    def _wait_for_cancel(self) -> None:
        """After a cancellation, only send what the mailbox thread still posts, until it closes or is too late."""
        self._grace_ends = time.monotonic() + self._options.cancel_grace / 1000
        while time.monotonic() < self._grace_ends:
            self._send_posted()
            if self._closing.is_set():
                return
            if select.select([self._wake_fd], [], [], 0.05)[0]:
                os.eventfd_read(self._wake_fd)

    def _end_process_if_stuck(self) -> None:
        grace_s = self._options.cancel_grace / 1000
        deadline = self._grace_ends or time.monotonic() + grace_s
        if self._closing.wait(max(0.0, deadline - time.monotonic())):
            return
        stuck_ms, inside = self.activity()
        log.error("user code does not return (%d ms inside %s); ending the process", stuck_ms, inside)
        os._exit(70)

    def _wait_for_goodbye(self) -> None:
        """Read to the end of the connection: closing with unread bytes could reset it before our last message."""
        deadline = time.monotonic() + _GOODBYE_S
        while (left_s := deadline - time.monotonic()) > 0:
            if not select.select([self._socket], [], [], left_s)[0] or not self._socket.recv(1 << 16):
                return

    def _connect(self, host: str, port: int, secret: bytes, hello: Hello) -> bytes:
        """Connect and do the handshake; try again if a crowd of strangers at the port pushed this connection out."""
        timeout_s = self._options.handshake_timeout / 1000
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._socket = socket.create_connection((host, port), timeout=timeout_s)
            except OSError as e:
                raise ControlLost(
                    f"the JobManager's control port {host}:{port} cannot be reached from host "
                    f"{socket.gethostname()}: {e}. Set network.bind_host to an address of the driver that the "
                    f"executors reach (or to 0.0.0.0), and let them through to that port (network.control_port)"
                ) from e
            try:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    self._socket = self._tls.wrap_socket(self._socket)
                return self._shake_hands(secret, hello)
            except (ControlLost, OSError) as e:  # refused, cut off, timed out, or no TLS of this job
                self._socket.close()
                if time.monotonic() >= deadline:
                    raise ControlLost(
                        f"the control port {host}:{port} does not answer as this job's JobManager: {e}. It is another "
                        f"program's, or its driver is overrun or stopped"
                    ) from e
                time.sleep(0.1)
            except BaseException:
                self._socket.close()
                raise

    def _shake_hands(self, secret: bytes, hello: Hello) -> bytes:
        handshake = ClientHandshake(secret, hello)
        while not handshake.done:
            data = self._socket.recv(4096)
            if not data:
                raise ControlLost("the JobManager refused the connection")
            reply = handshake.feed(data)
            if reply:
                self._socket.sendall(reply)
        return handshake.rest


def _nothing() -> None:
    pass


def _no_activity() -> tuple[int, str]:
    return 0, ""
