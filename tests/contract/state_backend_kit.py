"""What the contract suite of state backends stands on: a storage in memory, and a subtask that owns a backend."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidegate.api.state import KeyedState
from tidegate.core.clock import ManualClock
from tidegate.core.key_groups import KeyGroupRange
from tidegate.core.options import Options
from tidegate.records.types import record_type_of
from tidegate.snapshot.handles import KeyedStateHandle, StateFile
from tidegate.state.backend import NO_KEY, BackendContext, KeyedStateBackend
from tidegate.storage.storage import CheckpointStorage, CorruptFileError, Scope, SnapshotWriter, StorageError

MAX_PARALLELISM = 128
ALL = KeyGroupRange(0, MAX_PARALLELISM - 1)


def backend_kinds() -> list[str]:
    """The backends that exist."""
    known = ("heap", "rocksdb")
    return [k for k in known if importlib.util.find_spec(f"tidegate.state.{k}.backend") is not None]


def backend_class(kind: str) -> type[KeyedStateBackend]:
    if kind == "heap":
        from tidegate.state.heap.backend import HeapBackend

        return HeapBackend
    from tidegate.state.rocksdb.backend import RocksDBBackend

    return RocksDBBackend


class MemoryWriter(SnapshotWriter):
    """Puts files into the dict of a `MemoryStorage`; a name is never written twice."""

    def __init__(self, storage: MemoryStorage, prefix: str) -> None:
        self._storage = storage
        self._prefix = prefix

    def write(self, name: str, data: Any, scope: Scope = "shared") -> StateFile:
        if self._storage.refuse:
            raise StorageError(f"cannot write {name}: the disk is full")
        content = bytes(data)
        path = f"{scope}/{self._prefix}-{name}"
        assert path not in self._storage.files, f"{path} was written twice"
        self._storage.files[path] = content
        return StateFile(path, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")

    def upload(self, name: str, local_path: str, scope: Scope = "shared") -> StateFile:
        return self.write(name, Path(local_path).read_bytes(), scope)


class MemoryStorage(CheckpointStorage):
    """Checkpoint files in a dict."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.refuse = False

    def writer(self, checkpoint_id: int, attempt: int, operator: str, subtask: int) -> SnapshotWriter:
        return MemoryWriter(self, f"c{checkpoint_id}-a{attempt}-{operator}-{subtask}")

    def read(self, file: StateFile) -> bytes:
        content = self.files.get(file.path)
        if content is None:
            raise CorruptFileError(f"{file.path} is missing")
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != file.checksum:
            raise CorruptFileError(f"{file.path} has another checksum")
        return content

    def download(self, file: StateFile, local_path: str) -> None:
        Path(local_path).write_bytes(self.read(file))

    def verify(self, files: Sequence[StateFile]) -> None:
        for file in files:
            self.read(file)

    def write_manifest(self, checkpoint_id: int, attempt: int, data: bytes) -> str:
        raise NotImplementedError

    def read_manifest(self, checkpoint_id: int) -> bytes:
        raise NotImplementedError

    def completed(self) -> list[int]:
        raise NotImplementedError

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.files.pop(path, None)

    def discard(self, checkpoint_id: int, keep: frozenset[str]) -> None:
        raise NotImplementedError

    def check(self, file: StateFile, *, contents: bool = True) -> None:
        self.read(file)

    def show(self, path: str) -> str:
        return f"memory:{path}"

    def last_used(self) -> tuple[int, int]:
        raise NotImplementedError

    def sweep(self, keep: frozenset[str], before_checkpoint: int) -> list[str]:
        raise NotImplementedError


class Subtask:
    """One backend with its states, as an operator would hold them; checkpoints are written at once."""

    def __init__(self, backend: KeyedStateBackend, storage: MemoryStorage) -> None:
        self.backend = backend
        self.storage = storage

    def state(self, declaration: KeyedState) -> Any:
        declaration.name = declaration.name or "s"
        return self.backend.state(declaration)

    def at(self, key: Any, action: Callable[[], Any]) -> Any:
        """Run something with this key as the current one."""
        self.backend.current_key = key
        try:
            return action()
        finally:
            self.backend.current_key = NO_KEY

    def begin_checkpoint(self, checkpoint_id: int) -> Callable[[], KeyedStateHandle]:
        """The synchronous part; what is returned is the asynchronous one."""
        part = self.backend.snapshot(checkpoint_id)
        context = self.backend.context
        writer = self.storage.writer(
            checkpoint_id, context.attempt, context.operator_name, context.subtask_index
        )
        return lambda: part(writer)

    def checkpoint(self, checkpoint_id: int, complete: bool = True) -> KeyedStateHandle:
        """Take a checkpoint to its end; one that is not complete is aborted, its new files deleted."""
        before = set(self.storage.files)
        handle = self.begin_checkpoint(checkpoint_id)()
        if complete:
            self.backend.checkpoint_completed(checkpoint_id)
        else:
            self.storage.delete([p for p in self.storage.files if p not in before])
            self.backend.checkpoint_aborted(checkpoint_id)
        return handle


class JumpingClock(ManualClock):
    """A clock that somebody may set back, as a machine's is."""

    def set_back(self, ms: int) -> None:
        self._ns -= ms * 1_000_000


class Cluster:
    """Makes subtasks of one operator and closes them."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.storage = MemoryStorage()
        self.clock = JumpingClock(1_000_000)
        self._directory = directory
        self._made: list[KeyedStateBackend] = []

    def subtask(
        self,
        key_type: Any = str,
        key_groups: KeyGroupRange = ALL,
        restore: Sequence[KeyedStateHandle] | None = None,
        max_parallelism: int = MAX_PARALLELISM,
    ) -> Subtask:
        """A new subtask, in a new attempt, empty or restored."""
        attempt = len(self._made)
        directory = self._directory / f"attempt-{attempt}"

        def local_directory() -> str:
            directory.mkdir(exist_ok=True)
            return str(directory)

        context = BackendContext(
            operator_name="counter",
            subtask_index=0,
            attempt=attempt,
            key_type=record_type_of(key_type),
            key_groups=key_groups,
            max_parallelism=max_parallelism,
            clock=self.clock,
            options=Options(),
            local_directory=local_directory,
        )
        backend = backend_class(self.kind)(context)
        self._made.append(backend)
        if restore is not None:
            backend.restore(restore, self.storage)
        return Subtask(backend, self.storage)

    def advance(self, ms: int) -> None:
        """Let processing time pass."""
        self.clock.advance_ns(ms * 1_000_000)

    def close(self) -> None:
        for backend in self._made:
            backend.close()
