"""The upload thread of a slot: runs the asynchronous parts of checkpoints, one after the other."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)


class UploadThread:
    """Started with the first upload. `submit` is called on the mailbox thread, `post` on the upload thread.

    What is posted waits in `posted` until the mailbox thread takes it; `wake` makes it look.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self._wake = wake
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` soon, behind what was submitted before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidegate-uploads", daemon=True)
            self._thread.start()
        self._work.put(work)

    def post(self, then: Callable[[], None]) -> None:
        """Let the mailbox thread run `then`."""
        self.posted.append(then)
        self._wake()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread; an upload that hangs in its storage is left behind (the process ends soon)."""
        if self._thread is None:
            return
        self._work.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("an upload does not end; its thread is left behind")

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException:
                log.exception("an upload raised; the checkpoint will expire")
