"""Checkpoint storage on any pyarrow filesystem: a local path, file://, s3://, gs://, hdfs://.

A local file is written under a temporary name, synced and renamed; the manifest also syncs the directories, so that a
completed checkpoint survives a power failure. On an object store a file appears when its upload is complete; other
filesystems write and move. Requests to object stores are repeated by their own clients, so nothing is repeated here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.fs as pa_fs

from tidegate.core.failpoints import failpoint
from tidegate.snapshot.checksums import checksum, finish
from tidegate.snapshot.handles import StateFile
from tidegate.storage import layout, local_files
from tidegate.storage.inheritance import Inheritance, decode_inheritance
from tidegate.storage.locations import Place, absolute, path_name, resolve, split_query
from tidegate.storage.storage import CheckpointStorage, CorruptFileError, Scope, SnapshotWriter, StorageError

_CHUNK_BYTES: Final = 4 << 20
_TRIES: Final = 10
_FAILED = (OSError, pa.ArrowException)


class FilesystemStorage(CheckpointStorage):
    """The checkpoints of one job below `<root>/<job id>`. Nothing is opened before the first use; any thread.

    `sync`: wait until local files are on the disk. Without it a power failure may take completed checkpoints away.
    """

    def __init__(self, root: str, job_id: str, *, sync: bool = True) -> None:
        if not layout.is_job_id(job_id):
            raise StorageError(f"{job_id!r} cannot be the name of a job's checkpoint directory")
        self.root = absolute(root)
        self.job_id = job_id
        self.sync = sync
        self.prepared = False
        """Whether the job's directory was there: if it is gone later, the disk is away, and nothing is written where
        the disk should be."""

    def __reduce__(self) -> tuple[Callable[..., FilesystemStorage], tuple[str, str, bool, bool]]:
        return _make, (self.root, self.job_id, self.sync, self.prepared)

    def __repr__(self) -> str:
        return f"FilesystemStorage({path_name(self.root)!r}, {self.job_id!r})"

    @cached_property
    def place(self) -> Place:
        """The job's directory."""
        plain, query = split_query(self.root)
        try:
            return resolve(f"{plain.rstrip('/')}/{self.job_id}{query}")
        except ValueError as e:
            raise StorageError(
                f"checkpoint.dir {path_name(self.root)} cannot be used: {e}. Check the address and the credentials."
            ) from None

    def prepare(self) -> None:
        """Make the job's directory; in the driver, before the job starts. Raises what would fail every checkpoint."""
        place = self.place
        if not place.is_local:
            return
        try:
            local_files.make_directories(place.path)
            if not os.access(place.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as e:
            raise StorageError(
                f"checkpoint.dir {path_name(self.root)} cannot be used: cannot write to {self.show('')}: {_reason(e)}. "
                f"Check the path and its permissions."
            ) from e
        self.prepared = True

    def show(self, path: str) -> str:
        """Where a path is, as messages write it."""
        return self.place.show(path)

    # ---- state files ----

    def writer(self, checkpoint_id: int, attempt: int, operator: str, subtask: int) -> SnapshotWriter:
        """Where an operator subtask puts its files of a checkpoint."""
        return _Writer(self, checkpoint_id, attempt, operator, subtask)

    def read(self, file: StateFile) -> bytes:
        """The bytes of a file, checked."""
        data = b"".join(self._checked_chunks(file, whole=True))
        return data

    def download(self, file: StateFile, local_path: str) -> None:
        """A file into a local one, which is removed again if the file is damaged."""
        try:
            with open(local_path, "wb") as out:
                for chunk in self._checked_chunks(file):
                    out.write(chunk)
        except BaseException as e:
            local_files.remove(local_path)
            if isinstance(e, OSError):
                raise StorageError(
                    f"cannot copy {self.show(file.path)} ({file.size} bytes) to {local_path}: {_reason(e)}"
                ) from e
            raise

    def check(self, file: StateFile, *, contents: bool = True) -> None:
        """Read and check one; without `contents` only its existence and size are looked at."""
        if contents:
            for _ in self._checked_chunks(file):
                pass
            return
        self._refuse_foreign(file.path)
        info = self._info(file.path)
        if info.type != pa_fs.FileType.File:
            self._missing(file)
        if info.size != file.size:
            self._wrong_size(file, info.size)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete state files; one that is gone already is no error."""
        for path in paths:
            self._refuse_foreign(path)
        for path in paths:
            self._delete(path)

    def _checked_chunks(self, file: StateFile, *, whole: bool = False) -> Iterator[bytes]:
        """The file in pieces; raises `CorruptFileError` at the latest behind the last one."""
        self._refuse_foreign(file.path)
        failpoint("storage.read")
        running, size = hashlib.sha256(), 0
        # One byte more than there should be: a longer file is found without reading all of it.
        chunk_bytes = file.size + 1 if whole else _CHUNK_BYTES
        try:
            with self._open(file.path) as stream:
                while size <= file.size and (chunk := stream.read(chunk_bytes)):
                    running.update(chunk)
                    size += len(chunk)
                    yield chunk
        except FileNotFoundError:
            self._missing(file)
        except _FAILED as e:
            raise StorageError(
                f"cannot read checkpoint file {self.show(file.path)} ({file.size} bytes): {_reason(e)}"
            ) from e
        if size != file.size:
            info = self._info(file.path)
            self._wrong_size(file, size if info.size is None else info.size)
        found = finish(running)
        if found != file.checksum:
            raise CorruptFileError(
                f"checkpoint file {self.show(file.path)} is damaged: its checksum is {found} but was {file.checksum} "
                f"when it was written ({file.size} bytes). Restore another checkpoint."
            )

    def _open(self, path: str) -> Any:
        if self.place.is_local:
            return open(self.place.join(path), "rb", buffering=0)
        return self.place.filesystem.open_input_stream(self.place.join(path))

    def _refuse_foreign(self, path: str) -> None:
        if not layout.is_state_file(path):
            raise CorruptFileError(f"{path!r} is not the path of a state file below {self.show('')}")

    def _missing(self, file: StateFile) -> NoReturn:
        raise CorruptFileError(
            f"checkpoint file {self.show(file.path)} is missing; it had {file.size} bytes. Restore another checkpoint."
        ) from None

    def _wrong_size(self, file: StateFile, size: int) -> NoReturn:
        how = "truncated" if size < file.size else "damaged"
        raise CorruptFileError(
            f"checkpoint file {self.show(file.path)} is {how}: it has {size} bytes but had {file.size} when it was "
            f"written. Restore another checkpoint."
        )

    # ---- manifests ----

    def write_manifest(self, checkpoint_id: int, attempt: int, data: bytes) -> str:
        """Make a checkpoint complete; a manifest that is there already is never replaced."""
        path = layout.manifest_path(checkpoint_id)
        if not self._put_new(path, data):
            found = self._read_whole(path)
            if found != data:
                raise StorageError(
                    f"attempt {attempt} cannot complete checkpoint {checkpoint_id}: {self.show(path)} exists already, "
                    f"with {len(found)} other bytes ({len(data)} were to be written). Another attempt or driver "
                    f"of this job completed it; stop one of them."
                )
        return self.show(path)

    def read_manifest(self, checkpoint_id: int) -> bytes:
        """The manifest of a completed checkpoint."""
        path = layout.manifest_path(checkpoint_id)
        try:
            return self._read_whole(path)
        except FileNotFoundError:
            raise CorruptFileError(
                f"checkpoint {checkpoint_id} has no manifest {self.show(path)}: it was not completed, or was deleted."
            ) from None

    def completed(self) -> list[int]:
        """Ids of the checkpoints that have a manifest which counts, ascending."""
        ids = self.with_manifest()
        inheritance = self.inheritance() if ids else None
        return [id for id in ids if inheritance is None or inheritance.covers(id)]

    def why_void(self, checkpoint_id: int) -> str:
        """Why a manifest does not count: a driver wrote it when another had taken the job over."""
        inheritance = self.inheritance()
        if inheritance is None or inheritance.covers(checkpoint_id):
            return ""
        return (
            f"{self.show(layout.manifest_path(checkpoint_id))} does not count: its driver wrote it after another one "
            f"had taken the job over from checkpoint {max(inheritance.checkpoints, default='none')}."
        )

    def with_manifest(self) -> list[int]:
        """Ids of all checkpoints that have a manifest, also those that do not count; ascending."""
        with self._listing():
            entries = self._list("", recursive=False)
            ids = sorted(
                id
                for name, is_directory in entries
                if is_directory and (id := layout.parse_checkpoint_directory(name)) is not None
            )
            paths = [self.place.join(layout.manifest_path(id)) for id in ids]
            infos = self.place.filesystem.get_file_info(paths) if paths else []
        return [id for id, info in zip(ids, infos, strict=True) if info.type == pa_fs.FileType.File]

    def _read_whole(self, path: str) -> bytes:
        failpoint("storage.read")
        try:
            with self._open(path) as stream:
                return b"".join(iter(lambda: stream.read(_CHUNK_BYTES), b""))
        except FileNotFoundError:
            raise
        except _FAILED as e:
            raise StorageError(f"cannot read {self.show(path)}: {_reason(e)}") from e

    # ---- deletion ----

    def discard(self, checkpoint_id: int, keep: frozenset[str]) -> None:
        """Delete a checkpoint: first its manifest, then everything that was written for it and is not in `keep`."""
        self._delete(layout.manifest_path(checkpoint_id))
        self._delete_directory(layout.checkpoint_directory(checkpoint_id), keep)
        for path in self._files(layout.SHARED_DIRECTORY):
            stored = layout.parse_path(path)
            if stored is not None and stored.checkpoint_id == checkpoint_id and path not in keep:
                self._delete(path)

    def sweep(self, keep: frozenset[str], before_checkpoint: int) -> list[str]:
        """Delete what earlier checkpoints and attempts left behind and nobody refers to; returns what it was."""
        completed = set(self.completed())
        swept = []
        for path in self._files(""):
            stored = layout.parse_path(path)
            if stored is None or stored.checkpoint_id >= before_checkpoint or path in keep:
                continue
            belongs = stored.kind != "shared" and stored.checkpoint_id in completed
            if stored.temporary or not belongs:
                self._delete(path)
                swept.append(path)
        with self._listing():
            for name, is_directory in self._list("", recursive=False):
                id = layout.parse_checkpoint_directory(name)
                if is_directory and id is not None and id < before_checkpoint and id not in completed:
                    self._delete_empty(name)
        return swept

    def remove_if_unused(self, *, claims: bool) -> bool:
        """Remove the job's directories, and its `claims` too, unless there is a manifest: then False.

        After the job's end.
        """
        if self.with_manifest():
            return False
        if claims:
            for claim in self.claims():
                self.remove_claim(claim)
        for directory in (layout.SHARED_DIRECTORY, layout.CLAIMS_DIRECTORY, ""):
            self._delete_empty(directory)
        return True

    def last_used(self) -> tuple[int, int]:
        """The highest checkpoint id and the highest attempt of any name there is; -1 where there is none."""
        paths = self._files("")
        stored = [s for s in map(layout.parse_path, paths) if s is not None]
        attempts = [s.attempt for s in stored if s.attempt is not None]
        attempts += [c.attempt for c in map(layout.parse_claim, paths) if c is not None]
        return max((s.checkpoint_id for s in stored), default=-1), max(attempts, default=-1)

    # ---- claims: see `jobmanager/job_claim.py` ----

    def add_claim(self, claim: layout.Claim) -> None:
        """Make a claim durable."""
        self._put_new(layout.claim_path(claim), b"")

    def claims(self) -> list[layout.Claim]:
        """All claims on the job, the newest last."""
        found = map(layout.parse_claim, self._files(layout.CLAIMS_DIRECTORY))
        return sorted(claim for claim in found if claim is not None)

    def remove_claim(self, claim: layout.Claim) -> None:
        """Remove a claim and what belongs to it; one that is gone already is no error."""
        self._delete(layout.inheritance_path(claim))
        self._delete(layout.claim_path(claim))  # last: who finds the claim removes both

    def write_inheritance(self, claim: layout.Claim, inheritance: Inheritance) -> None:
        """Make durable what the driver with this claim takes over: from now on nothing else of others counts."""
        self._put_new(layout.inheritance_path(claim), inheritance.encode())

    def inheritance(self) -> Inheritance | None:
        """What the newest driver took over that has written it down; None: no driver has, so everything counts."""
        for _ in range(_TRIES):
            found = map(layout.parse_inheritance, self._files(layout.CLAIMS_DIRECTORY))
            newest = max((claim for claim in found if claim is not None), default=None)
            if newest is None:
                return None
            path = layout.inheritance_path(newest)
            try:
                return decode_inheritance(self._read_whole(path))
            except FileNotFoundError:
                continue  # a newer driver has written its own and removed this one
            except ValueError as e:
                raise CorruptFileError(
                    f"{self.show(path)} is damaged: {e}. It says which checkpoints of the job count. Restore the file; "
                    f"or delete it and the checkpoints that are not to be used, and resume"
                ) from e
        raise StorageError(
            f"drivers take the job below {self.show('')} over faster than it can be read. Start it once"
        )

    def _delete(self, path: str) -> None:
        failpoint("storage.delete")
        target = self.place.join(path)
        try:
            if self.place.is_local:
                os.unlink(target)
            else:
                self.place.filesystem.delete_file(target)
        except FileNotFoundError:
            pass
        except _FAILED as e:
            raise StorageError(f"cannot delete {self.show(path)}: {_reason(e)}") from e

    def _delete_directory(self, directory: str, keep: frozenset[str]) -> None:
        if not self.place.is_local and not any(path.startswith(f"{directory}/") for path in keep):
            # An object store deletes many with one request.
            failpoint("storage.delete")
            try:
                self.place.filesystem.delete_dir(self.place.join(directory))
            except FileNotFoundError:
                pass
            except _FAILED as e:
                raise StorageError(f"cannot delete {self.show(directory)}: {_reason(e)}") from e
            return
        for path in self._files(directory):
            if path not in keep:
                self._delete(path)
        self._delete_empty(directory)

    def _delete_empty(self, directory: str) -> None:
        """Remove a checkpoint's directory unless somebody has put something into it meanwhile."""
        target = self.place.join(directory)
        with contextlib.suppress(*_FAILED):
            if self.place.is_local:
                os.rmdir(target)
            elif not self._files(directory):
                self.place.filesystem.delete_dir(target)

    def _files(self, directory: str) -> list[str]:
        """Paths of all files below a directory."""
        with self._listing():
            return [path for path, is_directory in self._list(directory, recursive=True) if not is_directory]

    def _list(self, directory: str, *, recursive: bool) -> list[tuple[str, bool]]:
        base = self.place.join(directory)
        selector = pa_fs.FileSelector(base, recursive=recursive, allow_not_found=True)
        start = len(self.place.path.rstrip("/")) + 1
        return [
            (info.path[start:], info.type == pa_fs.FileType.Directory)
            for info in self.place.filesystem.get_file_info(selector)
        ]

    @contextlib.contextmanager
    def _listing(self) -> Iterator[None]:
        failpoint("storage.list")
        try:
            yield
        except _FAILED as e:
            raise StorageError(f"cannot list {self.show('')}: {_reason(e)}") from e

    def _info(self, path: str) -> Any:
        try:
            return self.place.filesystem.get_file_info(self.place.join(path))
        except _FAILED as e:
            raise StorageError(f"cannot look at {self.show(path)}: {_reason(e)}") from e

    # ---- writing ----

    def put(self, path: str, chunks: Iterator[Any], size: int) -> None:
        """Make a file of these buffers durable under a name that nobody else writes; nothing stays if it fails."""
        with self._writing(path, size):
            if self.place.is_local:
                local_files.write(self.place.path, path, chunks, sync=self.sync, has_root=self.prepared)
            else:
                self._stream(path, chunks)

    def _put_new(self, path: str, data: bytes) -> bool:
        """The same, unless there is a file of that name already: then False."""
        with self._writing(path, len(data)):
            if self.place.is_local:
                directories = (layout.SHARED_DIRECTORY, path.rpartition("/")[0])
                return local_files.write_new(
                    self.place.path,
                    path,
                    data,
                    sync=self.sync,
                    directories=directories,
                    has_root=self.prepared,
                )
            # Object stores give pyarrow no "create if absent". None is needed: no two drivers have a name in common.
            if self.place.filesystem.get_file_info(self.place.join(path)).type != pa_fs.FileType.NotFound:
                return False
            self._stream(path, iter([data]))
            return True

    def _stream(self, path: str, chunks: Iterator[Any]) -> None:
        filesystem, final = self.place.filesystem, self.place.join(path)
        target = final
        if not self.place.is_object_store:
            target = self.place.join(layout.temporary_path(path, os.urandom(4).hex()))
            filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        try:
            with filesystem.open_output_stream(target) as out:
                for chunk in chunks:
                    out.write(chunk)
            if target != final:
                filesystem.move(target, final)
        except BaseException:
            # Leaving the block has completed the upload of what there was.
            with contextlib.suppress(*_FAILED):
                filesystem.delete_file(target)
            raise

    @contextlib.contextmanager
    def _writing(self, path: str, size: int) -> Iterator[None]:
        failpoint("storage.write")
        try:
            yield
        except _FAILED as e:
            raise StorageError(
                f"cannot write {size} bytes to {self.show(path)}: {_reason(e)}. The checkpoint fails; check the space "
                f"and the permissions of checkpoint.dir."
            ) from e


class _Writer(SnapshotWriter):
    """Writes the files of one operator subtask for one checkpoint."""

    def __init__(
        self, storage: FilesystemStorage, checkpoint_id: int, attempt: int, operator: str, subtask: int
    ) -> None:
        self._storage = storage
        self._id = (checkpoint_id, attempt, operator, subtask)
        self._written: set[str] = set()

    def write(self, name: str, data: Any, scope: Scope = "shared") -> StateFile:
        path = self._new_path(name, scope)
        view = memoryview(data).cast("B")
        self._storage.put(path, iter([view]), len(view))
        return StateFile(path, len(view), checksum(view))

    def upload(self, name: str, local_path: str, scope: Scope = "shared") -> StateFile:
        path = self._new_path(name, scope)
        running, size = hashlib.sha256(), 0

        def chunks() -> Iterator[bytes]:
            nonlocal size
            while chunk := source.read(_CHUNK_BYTES):
                running.update(chunk)
                size += len(chunk)
                yield chunk

        try:
            source = open(local_path, "rb", buffering=0)  # noqa: SIM115 - a with around it would hide whose error it is
        except OSError as e:
            raise StorageError(f"cannot read {local_path} to upload it: {_reason(e)}") from e
        with source:
            self._storage.put(path, chunks(), os.fstat(source.fileno()).st_size)
        return StateFile(path, size, finish(running))

    def _new_path(self, name: str, scope: Scope) -> str:
        path = layout.file_path(*self._id, name, scope)
        if path in self._written:
            raise StorageError(
                f"{self._storage.show(path)} was written already: a name is never written twice"
            )
        self._written.add(path)
        return path


def _make(root: str, job_id: str, sync: bool, prepared: bool) -> FilesystemStorage:
    storage = FilesystemStorage(root, job_id, sync=sync)
    storage.prepared = prepared
    return storage


def _reason(error: BaseException) -> str:
    """The error in words, without the path that the message has anyway."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
