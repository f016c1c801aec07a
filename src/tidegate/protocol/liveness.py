"""Whether the path to a peer is dead, as the kernels of both hosts see it. A slow reader is no dead path.

A process may be too busy to read for minutes (user code holds its mailbox thread), but its kernel answers all the same:
it acknowledges data, and it answers the probes of an idle connection and of a full receiver. So the question is put
to the kernel: does something wait for an answer, and did any acknowledgement come since? `TCP_USER_TIMEOUT` does not
do: it also ends connections whose full receiver answers every probe. Keepalive alone does not either: it rests
while data waits, and what waits is sent again for a quarter of an hour (`net.ipv4.tcp_retries2`).

If packets are lost one way only, the end that hears nothing notices; the other one hears of it from the JobManager.
"""

from __future__ import annotations

import socket
import struct

_INFO = struct.Struct("=3xB20xI28xI")
"""From `struct tcp_info`: probes without an answer, segments without an answer, ms since the last acknowledgement."""
_PROBES_PER_TIMEOUT = 5
_MOST_PROBES = 100


def probe_when_idle(sock: socket.socket, timeout_ms: int, most: int = _MOST_PROBES) -> None:
    """Have the kernel ask the peer's kernel for a sign of life while nothing else is said.

    It ends the connection by itself after `most` probes without an answer.
    """
    every_s = max(1, timeout_ms // 1000 // _PROBES_PER_TIMEOUT)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, most)


class PathWatch:
    """Watches the path of one connection. Ask `is_dead` every now and then; a long pause between is no harm."""

    def __init__(self, sock: socket.socket, timeout_ms: int) -> None:
        self._socket = sock
        self._timeout_ms = timeout_ms
        self._unanswered_since_ms: int | None = None
        probe_when_idle(sock, timeout_ms)

    def is_dead(self, now_ms: int) -> bool:
        """Whether something has waited for an answer for the whole timeout and nothing at all was acknowledged."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:
            return False  # closed or broken: reading it will say so
        probes, segments, silent_ms = _INFO.unpack(info)
        if not probes and not segments:
            self._unanswered_since_ms = None
            return False
        since_ms = self._unanswered_since_ms
        if since_ms is None or silent_ms < now_ms - since_ms:
            self._unanswered_since_ms = now_ms
            return False
        return now_ms - since_ms >= self._timeout_ms
