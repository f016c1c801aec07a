"""The contract of checkpoint storage: durable, checked files below one job's checkpoint directory.

Writers are in the slots (on the thread of the asynchronous part), readers in the slots (restore) and in the driver
(manifest, deletion). A name is never written twice, and every name carries the attempt that wrote it, so that a zombie
of an older attempt cannot write over anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tidegate.core.errors import TidegateError
from tidegate.snapshot.handles import StateFile
from tidegate.storage.layout import Scope as Scope


class StorageError(TidegateError):
    """Checkpoint storage cannot be read or written; names the path, the bytes and the reason."""


class MissingDirectoryError(StorageError):
    """There is no checkpoint directory at all: nothing was ever written there, or it is not mounted."""


class FencedError(StorageError):
    """Another driver has taken the job over: this one may not write, delete or commit anything any more."""


class CorruptFileError(StorageError):
    """A file is missing, has another size or another checksum than its handle says."""


class SnapshotWriter(ABC):
    """Writes the files of one operator subtask for one checkpoint. One thread at a time; never the mailbox thread."""

    @abstractmethod
    def write(self, name: str, data: Any, scope: Scope = "shared") -> StateFile:
        """Make a buffer durable under a new name and return its handle. Raises `StorageError`.

        `exclusive`: of this checkpoint alone, deleted with it. `shared`: later checkpoints may refer to it.
        """

    @abstractmethod
    def upload(self, name: str, local_path: str, scope: Scope = "shared") -> StateFile:
        """The same for a local file, which stays where it is."""

    @property
    def attachments(self) -> dict[str, bytes]:
        """Bytes by path that the acknowledgement must carry, because they are nowhere else: of memory storage only."""
        return {}


class CheckpointStorage(ABC):
    """All files of one job's checkpoints. Picklable description with methods that do the I/O; any thread."""

    outlives_driver = True
    """Whether another driver can go on from what is stored here."""

    @abstractmethod
    def writer(self, checkpoint_id: int, attempt: int, operator: str, subtask: int) -> SnapshotWriter:
        """Where an operator subtask puts its files of a checkpoint."""

    @abstractmethod
    def read(self, file: StateFile) -> bytes:
        """The bytes of a file, size and checksum checked: `CorruptFileError` names it otherwise."""

    @abstractmethod
    def download(self, file: StateFile, local_path: str) -> None:
        """The same into a local file."""

    def verify(self, files: Sequence[StateFile]) -> None:
        """Read and check all of them; raises for the first that is damaged."""
        for file in files:
            self.check(file)

    @abstractmethod
    def check(self, file: StateFile, *, contents: bool = True) -> None:
        """Read and check one; without `contents` only its existence and size are looked at."""

    def damage(self, files: Sequence[StateFile], *, contents: bool = True) -> list[str]:
        """What is wrong with each of the damaged ones, in words. Storage that can't be reached raises."""
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

        One that exists is never replaced: `StorageError`, unless it has the same bytes.
        """

    @abstractmethod
    def read_manifest(self, checkpoint_id: int) -> bytes:
        """The manifest of a completed checkpoint; `CorruptFileError` if there is none."""

    @abstractmethod
    def show(self, path: str) -> str:
        """Where a path is, as messages write it."""

    @abstractmethod
    def completed(self) -> list[int]:
        """Ids of the checkpoints that have a manifest which counts, ascending."""

    def why_void(self, checkpoint_id: int) -> str:
        """Why a manifest that is there does not count; empty if it does."""
        return ""

    @abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Delete state files; one that is gone already is no error."""

    @abstractmethod
    def discard(self, checkpoint_id: int, keep: frozenset[str]) -> None:
        """Delete a checkpoint: first its manifest, then everything that was written for it and is not in `keep`."""

    @abstractmethod
    def sweep(self, keep: frozenset[str], before_checkpoint: int) -> list[str]:
        """Delete what earlier checkpoints and attempts left behind and nobody refers to; returns what it was.

        `keep` has the files of every checkpoint that is to stay. A directory with a manifest is not touched.
        """

    @abstractmethod
    def last_used(self) -> tuple[int, int]:
        """The highest checkpoint id and the highest attempt of any name there is; -1 where there is none."""
