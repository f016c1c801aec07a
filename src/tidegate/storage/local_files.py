"""Whole files on a local disk: written under a temporary name, synced, renamed.

Writing the manifest (`write_new`) syncs the directories once for all files that it names: without a manifest there is
no checkpoint to lose. Syncing a file takes some milliseconds on a busy disk and hardly any CPU time.

State is as secret as the records it was made from, and a restore trusts it. So only the owner may access files (0600)
and the directories made here (0700).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidegate.storage.layout import temporary_path

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def make_directories(path: str) -> None:
    """Make a job's directory and the checkpoint directory above it for their owner alone; higher ones by the umask."""
    checkpoint_dir = os.path.dirname(path)
    if not os.path.lexists(above := os.path.dirname(checkpoint_dir)):
        os.makedirs(above, exist_ok=True)
    for directory in (checkpoint_dir, path):
        _make_directory(directory)


def write(root: str, path: str, chunks: Iterator[Any], *, sync: bool, has_root: bool = False) -> None:
    """Write `root/path`, whole or not at all. Makes missing directories, but not `root` if `has_root`."""
    temporary = _write_temporary(root, path, chunks, sync, has_root)
    try:
        os.rename(temporary, os.path.join(root, path))
    except BaseException:
        remove(temporary)
        raise


def write_new(
    root: str, path: str, data: bytes, *, sync: bool, directories: Sequence[str], has_root: bool = False
) -> bool:
    """Write `root/path`, or return False if it exists: of several writers exactly one wins.

    The contents of `directories` (below `root`, if they exist) are durable before the new file appears.
    """
    final = os.path.join(root, path)
    if os.path.lexists(final):
        return False
    temporary = _write_temporary(root, path, iter([data]), sync, has_root)
    try:
        if sync:
            for directory in directories:
                _sync_directory(os.path.join(root, directory))
            _sync_directory(root)
            _sync_directory(os.path.dirname(root))
        os.link(temporary, final)
    except FileExistsError:
        return False
    except OSError as e:
        if e.errno not in _NO_LINKS:
            raise
        # This filesystem has no hard links: check and rename, with a race of microseconds.
        if os.path.lexists(final):
            return False
        os.rename(temporary, final)
    finally:
        remove(temporary)
    if sync:
        _sync_directory(os.path.dirname(final))
    return True


def remove(path: str) -> None:
    """Remove a file if it is there; never raises."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _write_temporary(root: str, path: str, chunks: Iterator[Any], sync: bool, has_root: bool) -> str:
    temporary = os.path.join(root, temporary_path(path, os.urandom(4).hex()))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o600)
    except FileNotFoundError:
        if not has_root:
            make_directories(root)
        _make_directory(os.path.dirname(temporary))
        descriptor = os.open(temporary, flags, 0o600)
    try:
        try:
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        remove(temporary)
        raise
    return temporary


def _make_directory(directory: str) -> None:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        if not os.path.isdir(directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None


def _sync_directory(directory: str) -> None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno != errno.EINVAL:  # a filesystem whose directories cannot be synced
            raise
    finally:
        os.close(descriptor)
