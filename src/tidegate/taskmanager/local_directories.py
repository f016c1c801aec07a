"""Local directories of a slot: made when somebody needs one, gone when the slot ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

_PREFIX = "tidegate-state-"


class LocalDirectories:
    """Where state backends keep their working files. Mailbox thread only.

    The parent directory is removed when the slot closes, and at the latest when its process ends by itself. It carries
    the process id: what a killed process left in the temporary directory is removed by the next that makes one.
    """

    def __init__(self) -> None:
        self._parent: str | None = None
        self._made = 0

    def make(self) -> str:
        """A new, empty directory."""
        if self._parent is None:
            _remove_orphans()
            self._parent = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
            atexit.register(self.remove)
        self._made += 1
        return tempfile.mkdtemp(prefix=f"{self._made}-", dir=self._parent)

    def remove(self) -> None:
        """Delete them all."""
        parent, self._parent = self._parent, None
        if parent is not None:
            atexit.unregister(self.remove)
            shutil.rmtree(parent, ignore_errors=True)


def _remove_orphans() -> None:
    """Remove the directories of this user's processes that are gone."""
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        pid = name.removeprefix(_PREFIX).partition("-")[0]
        if not name.startswith(_PREFIX) or not pid.isdigit():
            continue
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
        except OSError:
            continue  # somebody else's process lives
