"""Time as a parameter: code that needs the time takes a `Clock`, so that a test can control it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The source of time for the runtime."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970-01-01 UTC; may jump."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back; for durations and deadlines."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class ManualClock:
    """A clock that moves only when `advance_ns` is called; for one thread, deterministic."""

    def __init__(self, start_ms: int = 0) -> None:
        self._ns = start_ms * 1_000_000

    def now_ms(self) -> int:
        """The start value and all advances, in milliseconds; `monotonic_ns` is the same time."""
        return self._ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self._ns

    def advance_ns(self, ns: int) -> None:
        if ns < 0:
            raise ValueError(f"a clock cannot go back ({ns} ns)")
        self._ns += ns
