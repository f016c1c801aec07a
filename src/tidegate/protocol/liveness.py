"""Detects a dead network path to a peer by asking the kernel. A slow reader is not a dead path.

A process may be too busy to read for minutes (user code holds its mailbox thread), but its kernel still acknowledges
data and answers the probes of an idle connection and of a full receiver. So we ask our kernel: does anything wait for
an answer, and has any acknowledgement arrived since? `TCP_USER_TIMEOUT` is not enough: it also ends connections whose
full receiver answers every probe. Keepalive alone is not enough either: it pauses while data waits, and TCP retransmits
that data for a quarter of an hour (`net.ipv4.tcp_retries2`).

If packets are lost in one direction only, the end that receives nothing notices, and the JobManager notifies the other.
"""

from __future__ import annotations

import socket
import struct

_INFO = struct.Struct("=3xB20xI28xI")
"""From `struct tcp_info`: unanswered probes, unanswered segments, ms since the last acknowledgement."""
_PROBES_PER_TIMEOUT = 5
_MOST_PROBES = 100


def probe_when_idle(sock: socket.socket, timeout_ms: int, most: int = _MOST_PROBES) -> None:
    """Let our kernel probe the peer's kernel while the connection is idle (TCP keepalive).

    The kernel ends the connection after `most` unanswered probes.
    """
    every_s = max(1, timeout_ms // 1000 // _PROBES_PER_TIMEOUT)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, most)


class PathWatch:
    """Watches the path of one connection. Call `is_dead` from time to time; long pauses between calls do no harm."""

    def __init__(self, sock: socket.socket, timeout_ms: int) -> None:
        self._socket = sock
        self._timeout_ms = timeout_ms
        self._unanswered_since_ms: int | None = None
        probe_when_idle(sock, timeout_ms)

    def is_dead(self, now_ms: int) -> bool:
        """Whether data has waited for an answer for the whole timeout without any acknowledgement."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:
            return False  # closed or broken: reading will show that
        probes, segments, silent_ms = _INFO.unpack(info)
        if not probes and not segments:
            self._unanswered_since_ms = None
            return False
        since_ms = self._unanswered_since_ms
        if since_ms is None or silent_ms < now_ms - since_ms:
            self._unanswered_since_ms = now_ms
            return False
        return now_ms - since_ms >= self._timeout_ms
