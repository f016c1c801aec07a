"""Local directories of a slot: made when somebody needs one, gone when the slot ends."""

from __future__ import annotations

import atexit
import shutil
import tempfile


class LocalDirectories:
    """Where state backends keep their working files. Mailbox thread only.

    The parent directory is removed when the slot closes, and at the latest when its process ends by itself; what a
    killed process leaves is in the system's temporary directory, under a name that starts with `tidegate-`.
    """

    def __init__(self) -> None:
        self._parent: str | None = None
        self._made = 0

    def make(self) -> str:
        """A new, empty directory."""
        if self._parent is None:
            self._parent = tempfile.mkdtemp(prefix="tidegate-state-")
            atexit.register(self.remove)
        self._made += 1
        return tempfile.mkdtemp(prefix=f"{self._made}-", dir=self._parent)

    def remove(self) -> None:
        """Delete them all."""
        parent, self._parent = self._parent, None
        if parent is not None:
            atexit.unregister(self.remove)
            shutil.rmtree(parent, ignore_errors=True)
