"""Answers of async functions that come when a test says so."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from tidegate.testing.harness import OperatorHarness


class Gate:
    """Answers come when the test says so; created on the loop's thread, opened from the test's."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._events: dict[int, threading.Event] = {}

    async def __call__(self, n: int) -> int:
        event = self._events.setdefault(n, threading.Event())
        self.asked.append(n)
        while not event.is_set():
            await asyncio.sleep(0.001)
        return n * 10

    def open(self, *numbers: int) -> None:
        for n in numbers:
            self._events.setdefault(n, threading.Event()).set()


def until(condition: Any, harness: OperatorHarness | None = None, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        if harness is not None:
            harness.advance_clock(0)
        time.sleep(0.001)
