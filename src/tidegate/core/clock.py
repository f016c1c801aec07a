"""Time as a parameter: code that needs the time takes a `Clock`, so that a test can hold it still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the runtime knows of time."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970-01-01 UTC; may jump."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back; for durations and deadlines."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds of the monotonic clock."""
        return time.monotonic_ns()


class ManualClock:
    """A clock that moves only when told; one thread, deterministic."""

    def __init__(self, start_ms: int = 0) -> None:
        self._ns = start_ms * 1_000_000

    def now_ms(self) -> int:
        """Milliseconds that were advanced so far, from the start value."""
        return self._ns // 1_000_000

    def monotonic_ns(self) -> int:
        """The same time in nanoseconds."""
        return self._ns

    def advance_ns(self, ns: int) -> None:
        """Move forward; never back."""
        if ns < 0:
            raise ValueError(f"a clock cannot go back ({ns} ns)")
        self._ns += ns
