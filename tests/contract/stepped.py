"""A thread that a test moves on by lines: what an upload thread and a mailbox thread do to each other, chosen.

`Stepped` runs a function on a thread of its own, which stops before a line of `tidegate.state` until the test lets it
go on. Only one of the two threads runs at any time, so the same choices give the same result every time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import tidegate.state

T = TypeVar("T")

_WATCHED = str(Path(tidegate.state.__file__).parent)
_DEADLINE_S = 60.0
_ALL = 1 << 60


class Stepped(Generic[T]):
    """A function on its way, from its first line to its result."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._left = 0
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._result: T | None = None
        self._failure: BaseException | None = None
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="stepped", daemon=True)
        self._thread.start()

    def step(self, lines: int) -> bool:
        """Let it run so many lines; whether it has come to its end."""
        if not self.is_over:
            self._left = lines
            self._go.release()
            if not self._stopped.acquire(timeout=_DEADLINE_S):
                raise TimeoutError("the stepped thread waits for something that the test holds")
        return self.is_over

    def finish(self) -> T:
        """Let it run to its end; its result, or what it raised."""
        self.step(_ALL)
        self._thread.join(_DEADLINE_S)
        if self._failure is not None:
            raise self._failure
        return self._result  # type: ignore[return-value]

    def _run(self) -> None:
        self._go.acquire()
        sys.settrace(self._entered)
        try:
            self._result = self._work()
        except BaseException as e:  # noqa: BLE001 - it is the test's to raise
            self._failure = e
        finally:
            sys.settrace(None)
            self.is_over = True
            self._stopped.release()

    def _entered(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_WATCHED) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self._stopped.release()
                self._go.acquire()
        return self._line
