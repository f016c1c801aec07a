"""Checkpoint storage in the JobManager's memory, for tiny state: nothing survives the driver.

Slots cannot reach that memory, so the bytes travel. A slot's writer keeps them (`SnapshotWriter.attachments`), the
acknowledgement carries them beside the handles, and the JobManager stores them with `accept`. For a restore the
JobManager sends each slot an `excerpt`: a storage with the files of that slot's handles.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidegate.core.durations import format_size_bytes
from tidegate.core.failpoints import failpoint
from tidegate.core.options import Options
from tidegate.snapshot.checksums import checksum
from tidegate.snapshot.handles import StateFile
from tidegate.storage import layout
from tidegate.storage.storage import (
    CheckpointStorage,
    CorruptFileError,
    Scope,
    SnapshotWriter,
    StorageError,
    missing_file,
    wrong_checksum,
    wrong_size,
)


class MemoryStorage(CheckpointStorage):
    """Files by path. The JobManager's storage has all accepted files, a slot's has those to restore."""

    outlives_driver = False

    def __init__(
        self,
        limit_bytes: int = Options.checkpoint_memory_limit.default,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        """The most bytes that one operator subtask may write for one checkpoint."""
        self.files = dict(files or {})
        self._manifests: dict[int, bytes] = {}

    # ---- the JobManager's side ----

    def accept(self, attachments: Mapping[str, bytes]) -> None:
        """Store the attachments of an acknowledgement; the caller leaves out those of a discarded checkpoint."""
        for path, data in attachments.items():
            if not layout.is_state_file(path):
                raise StorageError(f"{path!r} is not the path of a state file")
            if self.files.setdefault(path, data) != data:
                raise StorageError(f"{self.show(path)} was written already: a name is never written twice")

    def excerpt(self, files: Iterable[StateFile]) -> MemoryStorage:
        """The storage that a slot needs to restore these files and to write its own; missing files are left out."""
        paths = {f.path for f in files}
        return MemoryStorage(self.limit_bytes, {p: self.files[p] for p in sorted(paths) if p in self.files})

    # ---- CheckpointStorage ----

    def show(self, path: str) -> str:
        return f"memory:{path}"

    def writer(self, checkpoint_id: int, attempt: int, operator: str, subtask: int) -> SnapshotWriter:
        return _Writer(self, checkpoint_id, attempt, operator, subtask)

    def read(self, file: StateFile) -> bytes:
        self.check(file)
        return self.files[file.path]

    def download(self, file: StateFile, local_path: str) -> None:
        data = self.read(file)
        try:
            with open(local_path, "wb") as out:
                out.write(data)
        except OSError as e:
            raise StorageError(
                f"cannot copy {self.show(file.path)} ({file.size} bytes) to {local_path}: {e.strerror}"
            ) from e

    def check(self, file: StateFile, *, contents: bool = True) -> None:
        failpoint("storage.read")
        data = self.files.get(file.path)
        if data is None:
            raise missing_file(self.show(file.path), file)
        if len(data) != file.size:
            raise wrong_size(self.show(file.path), file, len(data))
        if contents and (found := checksum(data)) != file.checksum:
            raise wrong_checksum(self.show(file.path), file, found)

    def write_manifest(self, checkpoint_id: int, attempt: int, data: bytes) -> str:
        failpoint("storage.write")
        path = self.show(layout.manifest_path(checkpoint_id))
        found = self._manifests.setdefault(checkpoint_id, data)
        if found != data:
            raise StorageError(
                f"attempt {attempt} cannot complete checkpoint {checkpoint_id}: {path} exists already, with "
                f"{len(found)} other bytes ({len(data)} were to be written). Another attempt completed it."
            )
        return path

    def read_manifest(self, checkpoint_id: int) -> bytes:
        failpoint("storage.read")
        if checkpoint_id not in self._manifests:
            raise CorruptFileError(
                f"checkpoint {checkpoint_id} has no manifest {self.show(layout.manifest_path(checkpoint_id))}: "
                f"it was not completed, or was deleted."
            )
        return self._manifests[checkpoint_id]

    def completed(self) -> list[int]:
        return sorted(self._manifests)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            if not layout.is_state_file(path):
                raise CorruptFileError(f"{path!r} is not the path of a state file")
        for path in paths:
            self.files.pop(path, None)

    def discard(self, checkpoint_id: int, keep: frozenset[str]) -> None:
        self._manifests.pop(checkpoint_id, None)
        for path, stored in self._stored():
            if stored.checkpoint_id == checkpoint_id and path not in keep:
                self.files.pop(path, None)

    def sweep(self, keep: frozenset[str], before_checkpoint: int) -> list[str]:
        swept = [
            path
            for path, stored in self._stored()
            if stored.checkpoint_id < before_checkpoint
            and path not in keep
            and (stored.kind == "shared" or stored.checkpoint_id not in self._manifests)
        ]
        for path in swept:
            self.files.pop(path, None)
        return swept

    def last_used(self) -> tuple[int, int]:
        stored = [s for _, s in self._stored()]
        ids = [s.checkpoint_id for s in stored] + list(self._manifests)
        return max(ids, default=-1), max((s.attempt for s in stored if s.attempt is not None), default=-1)

    def _stored(self) -> list[tuple[str, layout.StoredPath]]:
        return [(p, s) for p in list(self.files) if (s := layout.parse_path(p)) is not None]


class _Writer(SnapshotWriter):
    """Keeps what an operator subtask writes, up to the limit."""

    def __init__(
        self, storage: MemoryStorage, checkpoint_id: int, attempt: int, operator: str, subtask: int
    ) -> None:
        self._storage = storage
        self._id = (checkpoint_id, attempt, operator, subtask)
        self._attachments: dict[str, bytes] = {}
        self._total = 0

    @property
    def attachments(self) -> dict[str, bytes]:
        return self._attachments

    def write(self, name: str, data: Any, scope: Scope = "shared") -> StateFile:
        view = memoryview(data).cast("B")
        path = self._new_path(name, scope, len(view))
        kept = bytes(view)
        self._attachments[path] = kept
        return StateFile(path, len(kept), checksum(kept))

    def upload(self, name: str, local_path: str, scope: Scope = "shared") -> StateFile:
        try:
            # Check the size first: a file over the limit is not read at all.
            self._check_limit(layout.file_path(*self._id, name, scope), os.path.getsize(local_path))
            with open(local_path, "rb") as source:
                data = source.read()
        except OSError as e:
            raise StorageError(f"cannot read {local_path} to upload it: {e.strerror}") from e
        return self.write(name, data, scope)

    def _new_path(self, name: str, scope: Scope, size: int) -> str:
        failpoint("storage.write")
        path = layout.file_path(*self._id, name, scope)
        if path in self._attachments:
            raise StorageError(
                f"{self._storage.show(path)} was written already: a name is never written twice"
            )
        self._check_limit(path, size)
        self._total += size
        return path

    def _check_limit(self, path: str, size: int) -> None:
        limit = self._storage.limit_bytes
        if self._total + size > limit:
            raise StorageError(
                f"cannot write {size} bytes to {self._storage.show(path)}: with them subtask {self._id[3]} of operator "
                f"{self._id[2]} would put {self._total + size} bytes into the memory of the JobManager, but "
                f"checkpoint.memory_limit is {limit} ({format_size_bytes(limit)}). Set checkpoint.dir, "
                f"or a larger limit."
            )
