"""Durable files on a local disk: a temporary name, fsync, the final name, fsync of the directory.

Syncing costs well below a millisecond for a small file and about as much as writing it for a large one, on the thread
of the asynchronous part; so it is not an option.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any, Final

from tidegate.storage.layout import temporary_path

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def write(root: str, path: str, chunks: Iterator[Any]) -> None:
    """Write `root/path`, whole or not at all. Its directories are made."""
    temporary = _write_temporary(root, path, chunks)
    try:
        os.rename(temporary, os.path.join(root, path))
    except BaseException:
        remove(temporary)
        raise
    _sync_directory(os.path.dirname(temporary))


def write_new(root: str, path: str, data: bytes) -> bool:
    """The same, but False if there is such a file: of several writers exactly one wins."""
    final = os.path.join(root, path)
    if os.path.lexists(final):
        return False
    temporary = _write_temporary(root, path, iter([data]))
    try:
        os.link(temporary, final)
    except FileExistsError:
        return False
    except OSError as e:
        if e.errno not in _NO_LINKS:
            raise
        # No hard links on this filesystem; what is left is a gap of microseconds.
        if os.path.lexists(final):
            return False
        os.rename(temporary, final)
    finally:
        remove(temporary)
    _sync_directory(os.path.dirname(final))
    return True


def remove(path: str) -> None:
    """Remove a file if it is there; never raises."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _write_temporary(root: str, path: str, chunks: Iterator[Any]) -> str:
    temporary = os.path.join(root, temporary_path(path, os.urandom(4).hex()))
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        _make_directories(os.path.dirname(temporary))
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        remove(temporary)
        raise
    return temporary


def _make_directories(directory: str) -> None:
    """Make a directory and its parents so that they survive a power failure too."""
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for made in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(made)
        _sync_directory(os.path.dirname(made))


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
