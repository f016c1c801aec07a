"""Local directories of a slot: made on demand, removed when the slot ends."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import tempfile
from typing import Final

_PREFIX: Final = "tidegate-state-"
_OURS: Final = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")


class LocalDirectories:
    """Where state backends keep their working files. Mailbox thread only.

    The parent directory is removed when the slot closes, at the latest when its process exits. The process holds a lock
    (flock) on it while it lives, which the kernel releases however the process dies. So what a killed process left in
    the temporary directory is not locked, and the next process that makes a directory there removes it. A process id
    would not do: containers that share a temporary directory do not see each other's.
    """

    def __init__(self) -> None:
        self._parent: str | None = None
        self._lock = -1
        self._made = 0

    def make(self) -> str:
        """Make an empty directory and return its path."""
        if self._parent is None:
            _remove_orphans()
            self._parent, self._lock = _make_locked()
            atexit.register(self.remove)
        self._made += 1
        return tempfile.mkdtemp(prefix=f"{self._made}-", dir=self._parent)

    def remove(self) -> None:
        parent, self._parent = self._parent, None
        if parent is not None:
            atexit.unregister(self.remove)
            shutil.rmtree(parent, ignore_errors=True)
            os.close(self._lock)


def _make_locked() -> tuple[str, int]:
    """A new directory and the file descriptor that holds its lock.

    Where the file system cannot lock directories there is no lock, and no later process removes it.
    """
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
        lock = _locked(path, if_impossible=True)
        if lock is not None:
            return path, lock  # else another process found it unlocked and removes it


def _remove_orphans() -> None:
    """Remove the directories of this user's processes that have died."""
    parent = tempfile.gettempdir()
    for name in filter(_OURS.fullmatch, os.listdir(parent)):
        path = os.path.join(parent, name)
        lock = _locked(path, if_impossible=False)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: str, *, if_impossible: bool) -> int | None:
    """A file descriptor that holds the lock of a directory; None if it is gone or another process holds the lock.

    `if_impossible`: where the file system has no locks, return one without a lock.
    """
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError:
        if if_impossible:
            raise
        return None
    is_ours = False
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(directory), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        pass  # a live process holds it, or has just removed it
    except OSError:
        is_ours = if_impossible
    if is_ours:
        return directory
    os.close(directory)
    return None
