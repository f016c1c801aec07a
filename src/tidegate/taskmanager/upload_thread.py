"""The upload thread of a slot: runs the asynchronous parts of checkpoints, one after the other."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)


class Uploads(Protocol):
    """Runs the asynchronous parts: one after the other, on another thread (or when a simulation chooses)."""

    posted: deque[Callable[[], None]]
    """Calls for the mailbox thread to run."""

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` soon; it does not raise."""
        ...

    def post(self, then: Callable[[], None]) -> None:
        """Called from inside `work`: put `then` into `posted` and wake the mailbox thread."""
        ...


class UploadThread:
    """Started with the first upload. `submit` is called on the mailbox thread, `post` on the upload thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self._wake = wake
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` after everything that was submitted before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidegate-uploads", daemon=True)
            self._thread.start()
        self._work.put(work)

    def post(self, then: Callable[[], None]) -> None:
        self.posted.append(then)
        self._wake()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread. An upload that hangs in its storage is abandoned: the process ends soon."""
        if self._thread is None:
            return
        self._work.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("an upload does not end; its thread is abandoned")

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException:
                log.exception("an upload raised; the checkpoint will expire")
