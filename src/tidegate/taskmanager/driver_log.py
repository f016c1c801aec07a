"""DriverLog: sends a slot's warnings to the log of the driver, where a user looks.

Only a slot with a process of its own has one: otherwise a warning is in the driver's process already. A text is sent
the first time and whenever its count has doubled, so a warning for each record costs the driver nothing; the number of
new texts is limited too. What is not sent goes to the log of the executor, as it would without this.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tidegate.core.clock import Clock
from tidegate.core.ids import SubtaskId
from tidegate.protocol.messages import SlotWarned

_MOST_NEW: Final = 50
_ANOTHER_AFTER_MS: Final = 60_000
_MOST_TEXTS: Final = 500
_LONGEST: Final = 4_000


class DriverLog(logging.Handler):
    """Sends the warnings of the `tidegate` loggers to the JobManager, from any thread. Entered by the mailbox thread.

    `current` is the subtask whose code the mailbox thread runs; warnings of other threads belong to no subtask.
    """

    def __init__(
        self, send: Callable[[SlotWarned], None], current: Callable[[], SubtaskId | None], clock: Clock
    ) -> None:
        super().__init__(logging.WARNING)
        self._send = send
        self._current = current
        self._clock = clock
        self._mailbox_thread = threading.get_ident()
        self._is_open = False
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._new_left = float(_MOST_NEW)
        self._last_ms = clock.monotonic_ns() // 1_000_000

    def __enter__(self) -> None:
        self._is_open = True
        logging.getLogger("tidegate").addHandler(self)

    def __exit__(self, *error: object) -> None:
        logging.getLogger("tidegate").removeHandler(self)
        self.acquire()  # no other thread is sending when this returns
        self._is_open = False
        self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a warning to the driver, or leave it to the executor's log; the caller holds the handler's lock."""
        try:
            self._forward(record)
        except Exception:  # noqa: BLE001 -- a warning must not fail the code that warns
            self.handleError(record)

    def _forward(self, record: logging.LogRecord) -> None:
        words = self.format(record).encode("utf-8", "backslashreplace").decode()
        if len(words) > _LONGEST:
            half = _LONGEST // 2
            words = f"{words[:half]} ... {words[-half:]}"
        count = self._count(words)
        # When the control thread warns, it is about to end the process or the connection.
        if count and self._is_open and record.threadName != "tidegate-control":
            task = self._current() if record.thread == self._mailbox_thread else None
            where = (None, 0) if task is None else (task.vertex, task.index)
            self._send(SlotWarned(words, count, *where))
        elif logging.lastResort is not None and not logging.getLogger().handlers:
            logging.lastResort.handle(record)

    def _count(self, words: str) -> int:
        """How often this text has come, if that is to be sent now; else 0."""
        known = self._counts.get(words, 0)
        now_ms = self._clock.monotonic_ns() // 1_000_000
        earned = (now_ms - self._last_ms) / _ANOTHER_AFTER_MS
        self._new_left, self._last_ms = min(_MOST_NEW, self._new_left + earned), now_ms
        if not known:
            if self._new_left < 1:
                return 0
            self._new_left -= 1
        self._counts[words] = count = known + 1
        self._counts.move_to_end(words)
        if len(self._counts) > _MOST_TEXTS:
            self._counts.popitem(last=False)
        return 0 if count & (count - 1) else count
