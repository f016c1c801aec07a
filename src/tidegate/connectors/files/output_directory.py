"""The directory that a `FileSink` writes to: listing, moving, small durable files. It knows nothing of jobs.

Moving never replaces a file. On a local disk a move is one atomic step. An object store copies and deletes, so a crash
in between leaves both names, and the caller that repeats the move must distinguish its finished copy from a foreign
file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pa_fs

from tidegate.connectors.files.output_names import bid_for, is_bid
from tidegate.connectors.files.paths import Location
from tidegate.core.errors import TidegateError

logger = logging.getLogger(__name__)

FAILED: Final = (pa.ArrowException, OSError)
"""What filesystem operations raise."""


class OutputDirectoryError(TidegateError):
    """The output directory cannot be used: it is not empty, belongs to another job, or cannot be created."""


class OutputDirectory:
    """One directory on any filesystem. Names are relative to it; methods raise what the filesystem raises."""

    def __init__(self, location: Location) -> None:
        self.path = location.patterns[0].rstrip("/") or "/"
        self._location = location
        self._filesystem = location.filesystem
        self.is_local = location.is_local

    def show(self, name: str = "") -> str:
        """The path of the directory, or of a file in it, as the user would write it."""
        return self._location.show(self.join(name) if name else self.path)

    # ---- looking ----

    def kind(self) -> Any:
        """The `FileType` at the path: Directory, File or NotFound."""
        return self._filesystem.get_file_info(self.path).type

    def create(self) -> None:
        self._filesystem.create_dir(self.path, recursive=True)

    def names(self) -> list[str]:
        """All names in the directory, sorted; the name of a directory ends in `/`."""
        found = self._filesystem.get_file_info(pa_fs.FileSelector(self.path))
        return sorted(info.base_name if info.is_file else f"{info.base_name}/" for info in found)

    def sizes(self, names: Iterable[str]) -> list[int | None]:
        """The sizes of files; None for a missing one."""
        found = self._filesystem.get_file_info([self.join(name) for name in names])
        return [info.size if info.is_file else None for info in found]

    def exists(self, name: str) -> bool:
        return self.sizes([name]) != [None]

    def read(self, name: str) -> bytes | None:
        """The contents of a small file, or None if it is missing."""
        try:
            with self._filesystem.open_input_stream(self.join(name), compression=None) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    # ---- changing ----

    def open_new(self, name: str) -> Any:
        """A stream into a new file, which appears when the stream is closed or earlier."""
        return self._filesystem.open_output_stream(self.join(name), compression=None)

    def put(self, name: str, data: bytes) -> None:
        """Write or replace a small file; it is durable when this returns."""
        if not self.is_local:
            with self.open_new(name) as stream:
                stream.write(data)
            return
        unfinished = self.join(f"{name}.tmp")
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, self.join(name))
        self.sync()

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a small local file, durably; a crash may leave a part of the line."""
        descriptor = os.open(self.join(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def put_new(self, name: str, data: bytes) -> None:
        """Write a small file; raise `FileExistsError` with the name in the way if another writer has it or wants it.

        A local disk decides this in one step. On an object store pyarrow has no call that does, so each writer

        1. writes a bid of its own beside the name,
        2. looks for other bids, then for the file, and withdraws its bid if it finds one,
        3. writes the file, and only then deletes its bid.

        Of two writers, the one that looks last finds the bid or the file of the other. Both may withdraw.
        """
        if self.is_local:
            with open(self.join(name), "xb") as file:
                file.write(data)
            return
        bid = bid_for(name)
        self.put(bid, b"")
        try:
            others = [n for n in self.names() if n.startswith(f"{name}.") and is_bid(n) and n != bid]
            if others or self.exists(name):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), [*others, name][0])
            self.put(name, data)
        finally:
            try:
                self.delete(bid)
            except FAILED as e:  # what was decided stands; the bid only keeps others from a mark of this name
                logger.warning("%s cannot be deleted: %s. Delete it", self.show(bid), e)

    def move_new(self, source: str, target: str) -> None:
        """Rename a file; `FileExistsError` if the target exists, `FileNotFoundError` if the source does not."""
        if self.is_local:
            rename_new(self.join(source), self.join(target))
            return
        if self.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._filesystem.move(self.join(source), self.join(target))

    def delete(self, name: str) -> None:
        """Delete a file; a missing file is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(self.join(name))

    def sync(self, name: str = "") -> None:
        """Make a local file's contents, or the directory's names, durable."""
        if not self.is_local:
            return
        descriptor = os.open(self.join(name) if name else self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def join(self, name: str) -> str:
        return f"{self.path}/{name}"


@contextlib.contextmanager
def named_errors(words: Callable[[], str]) -> Iterator[None]:
    """Turn a filesystem's error into an `OutputDirectoryError` that says what failed."""
    try:
        yield
    except FAILED as e:
        raise OutputDirectoryError(f"{words()}: {e}") from e


def rename_new(source: str, target: str) -> None:
    """Rename a local file in one step, unless the new name exists (`FileExistsError`).

    A hard link and an unlink would not do: between the two a consumer may remove the new name, and after a crash the
    file would look unpublished. Where the system has no such step (NFS) we check first and then rename: only the sink
    uses these names, so the gap between the two is harmless in practice.
    """
    if _renameat2 is not None:
        if _renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise OSError(code, os.strerror(code), source, None, target)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    os.rename(source, target)


_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1


def _find_renameat2() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # not Linux, or a C library from before 2018
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function


_renameat2: Final = _find_renameat2()
