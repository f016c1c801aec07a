"""The contract of checkpoint storage: durable, checked files below one job's checkpoint directory.

Slots write on the thread of the asynchronous part, and read in a restore. The driver writes the manifest and deletes.
No name is written twice, and every name carries the attempt that wrote it, so a zombie of an older attempt cannot
overwrite anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tidegate.core.errors import TidegateError
from tidegate.snapshot.handles import StateFile
from tidegate.storage.layout import Scope as Scope


class StorageError(TidegateError):
    """Checkpoint storage cannot be read or written; the message names the path, the bytes and the reason."""


class MissingDirectoryError(StorageError):
    """The checkpoint directory does not exist: it was never written to, or it is not mounted."""


class FencedError(StorageError):
    """Another driver has taken the job over: this one must not write, delete or commit any more."""


class CorruptFileError(StorageError):
    """A file is missing, or its size or checksum differs from its handle."""


def missing_file(shown: str, file: StateFile) -> CorruptFileError:
    return CorruptFileError(
        f"checkpoint file {shown} is missing; it had {file.size} bytes. Restore another checkpoint."
    )


def wrong_size(shown: str, file: StateFile, size: int) -> CorruptFileError:
    how = "truncated" if size < file.size else "damaged"
    return CorruptFileError(
        f"checkpoint file {shown} is {how}: it has {size} bytes but had {file.size} when it was written. "
        f"Restore another checkpoint."
    )


def wrong_checksum(shown: str, file: StateFile, found: str) -> CorruptFileError:
    return CorruptFileError(
        f"checkpoint file {shown} is damaged: its checksum is {found} but was {file.checksum} when it was written "
        f"({file.size} bytes). Restore another checkpoint."
    )


class SnapshotWriter(ABC):
    """Writes the files of one operator subtask for one checkpoint. One thread at a time; never the mailbox thread."""

    @abstractmethod
    def write(self, name: str, data: Any, scope: Scope = "shared") -> StateFile:
        """Make a buffer durable under a new name and return its handle. Raises `StorageError`.

        `exclusive`: the file belongs to this checkpoint alone and is deleted with it. `shared`: later checkpoints may
        refer to it.
        """

    @abstractmethod
    def upload(self, name: str, local_path: str, scope: Scope = "shared") -> StateFile:
        """Make a local file durable under a new name, like `write`; the local file stays."""

    @property
    def attachments(self) -> dict[str, bytes]:
        """Bytes by path that the acknowledgement must carry; only memory storage has them."""
        return {}


class CheckpointStorage(ABC):
    """All files of one job's checkpoints: a picklable description with methods that do the I/O; any thread."""

    outlives_driver = True
    """Whether another driver can resume from this storage."""

    @abstractmethod
    def writer(self, checkpoint_id: int, attempt: int, operator: str, subtask: int) -> SnapshotWriter:
        """The writer of an operator subtask's files of a checkpoint."""

    @abstractmethod
    def read(self, file: StateFile) -> bytes:
        """The bytes of a file. Checks size and checksum; raises `CorruptFileError`."""

    @abstractmethod
    def download(self, file: StateFile, local_path: str) -> None:
        """Copy a file to a local one, checked as in `read`."""

    def verify(self, files: Sequence[StateFile]) -> None:
        """Read and check all files; raises for the first damaged one."""
        for file in files:
            self.check(file)

    @abstractmethod
    def check(self, file: StateFile, *, contents: bool = True) -> None:
        """Read and check a file; without `contents` check only its existence and size."""

    def damage(self, files: Sequence[StateFile], *, contents: bool = True) -> list[str]:
        """A message for each damaged file. Raises if the storage cannot be reached."""
        found = []
        for file in files:
            try:
                self.check(file, contents=contents)
            except CorruptFileError as e:
                found.append(str(e))
        return found

    @abstractmethod
    def write_manifest(self, checkpoint_id: int, attempt: int, data: bytes) -> str:
        """Make a checkpoint complete: the manifest appears whole or not at all. Returns its full path.

        Never replaces a manifest: raises `StorageError` if there is one with other bytes.
        """

    @abstractmethod
    def read_manifest(self, checkpoint_id: int) -> bytes:
        """The manifest of a completed checkpoint; `CorruptFileError` if there is none."""

    @abstractmethod
    def show(self, path: str) -> str:
        """The full path, as messages write it."""

    @abstractmethod
    def completed(self) -> list[int]:
        """Ids of the checkpoints with a manifest that counts, ascending."""

    def why_void(self, checkpoint_id: int) -> str:
        """Why an existing manifest does not count; empty if it does."""
        return ""

    @abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Delete state files; a missing file is no error."""

    @abstractmethod
    def discard(self, checkpoint_id: int, keep: frozenset[str]) -> None:
        """Delete a checkpoint: first its manifest, then all files written for it that are not in `keep`."""

    @abstractmethod
    def sweep(self, keep: frozenset[str], before_checkpoint: int) -> list[str]:
        """Delete unreferenced files that earlier checkpoints and attempts left; returns their paths.

        `keep` has the files of every checkpoint that stays. A directory with a manifest is not touched.
        """

    @abstractmethod
    def last_used(self) -> tuple[int, int]:
        """The highest checkpoint id and the highest attempt in any stored name; -1 if there is none."""
