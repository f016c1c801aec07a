"""The log of refused connections: shows the peer and the reason, and never floods."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class RefusalLog:
    """Logs each reason immediately, once per address and window; at the window's end, how many more there were.

    The thread that owns the port uses it and calls `tick` at any interval. `close` ends the window.
    """

    WINDOW_MS = 10_000
    MOST = 20
    """The most lines in a window: a flood may come from many addresses, each time with another reason."""

    def __init__(self, port: str) -> None:
        self._port = port
        self._window_end_ms = 0
        self._said: set[tuple[str, str]] = set()
        self.unsaid = 0
        """Refusals of this window that were counted but not logged."""

    def add(self, peer: str, reason: str, now_ms: int) -> None:
        """A connection from `peer` (host:port) was refused."""
        self.tick(now_ms)
        if not self._said:
            self._window_end_ms = now_ms + self.WINDOW_MS
        kind = peer.rpartition(":")[0], reason
        if kind in self._said or len(self._said) >= self.MOST:
            self.unsaid += 1
            return
        self._said.add(kind)
        logger.warning("refused a connection from %s to %s: %s", peer, self._port, reason)

    def tick(self, now_ms: int) -> None:
        if self._said and now_ms >= self._window_end_ms:
            self.close()

    def close(self) -> None:
        if self.unsaid:
            logger.warning("refused %d more connections to %s", self.unsaid, self._port)
        self._said.clear()
        self.unsaid = 0
