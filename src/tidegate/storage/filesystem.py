"""Checkpoint storage on any pyarrow filesystem: a local path, file://, s3://, gs://, hdfs://.

A local file is written under a temporary name, synced and renamed; writing the manifest also syncs the directories, so
a completed checkpoint survives a power failure. On an object store a file appears when its upload is complete. On other
filesystems the storage writes and then moves. The clients of object stores retry their requests, so this module does
not.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pa_fs

from tidegate.core.failpoints import failpoint
from tidegate.snapshot.checksums import checksum, finish
from tidegate.snapshot.handles import StateFile
from tidegate.storage import layout, local_files
from tidegate.storage.inheritance import Inheritance, decode_inheritance
from tidegate.storage.locations import Place, absolute, path_name, resolve, split_query
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

_CHUNK_BYTES: Final = 4 << 20
_TRIES: Final = 10
_FAILED = (OSError, pa.ArrowException)


class FilesystemStorage(CheckpointStorage):
    """The checkpoints of one job below `<root>/<job id>`. It opens nothing before the first use; any thread.

    `sync`: wait until local files are on the disk. Without it a power failure may lose completed checkpoints.
    `prepared`: the job's directory exists. If it is missing later, the disk is not mounted, and the storage must not
    write to the empty mount point.
    """

    def __init__(self, root: str, job_id: str, *, sync: bool = True, prepared: bool = False) -> None:
        if not layout.is_job_id(job_id):
            raise StorageError(f"{job_id!r} cannot be the name of a job's checkpoint directory")
        self.root = absolute(root)
        self.job_id = job_id
        self.sync = sync
        self.prepared = prepared

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name != "place"
        }  # opened on first use

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
        """Make the job's directory, in the driver before the job starts. Raises what would fail every checkpoint."""
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
        return self.place.show(path)

    # ---- state files ----

    def writer(self, checkpoint_id: int, attempt: int, operator: str, subtask: int) -> SnapshotWriter:
        return _Writer(self, checkpoint_id, attempt, operator, subtask)

    def read(self, file: StateFile) -> bytes:
        return b"".join(self._checked_chunks(file, whole=True))

    def download(self, file: StateFile, local_path: str) -> None:
        """Copy a file to a local one, which is removed again if the file is damaged."""
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
        if contents:
            for _ in self._checked_chunks(file):
                pass
            return
        self._refuse_foreign(file.path)
        info = self._info(file.path)
        if info.type != pa_fs.FileType.File:
            raise missing_file(self.show(file.path), file)
        if info.size != file.size:
            raise wrong_size(self.show(file.path), file, info.size)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._refuse_foreign(path)
        for path in paths:
            self._delete(path)

    def _checked_chunks(self, file: StateFile, *, whole: bool = False) -> Iterator[bytes]:
        """The file in pieces; raises `CorruptFileError` at the latest after the last one."""
        self._refuse_foreign(file.path)
        failpoint("storage.read")
        running, size = hashlib.sha256(), 0
        # Ask for one byte too many: that detects a longer file without reading all of it.
        chunk_bytes = file.size + 1 if whole else _CHUNK_BYTES
        try:
            with self._open(file.path) as stream:
                while size <= file.size and (chunk := stream.read(chunk_bytes)):
                    running.update(chunk)
                    size += len(chunk)
                    yield chunk
        except FileNotFoundError:
            raise missing_file(self.show(file.path), file) from None
        except _FAILED as e:
            raise StorageError(
                f"cannot read checkpoint file {self.show(file.path)} ({file.size} bytes): {_reason(e)}"
            ) from e
        if size != file.size:
            info = self._info(file.path)
            raise wrong_size(self.show(file.path), file, size if info.size is None else info.size)
        found = finish(running)
        if found != file.checksum:
            raise wrong_checksum(self.show(file.path), file, found)

    def _open(self, path: str) -> Any:
        if self.place.is_local:
            return open(self.place.join(path), "rb", buffering=0)
        return self.place.filesystem.open_input_stream(self.place.join(path))

    def _refuse_foreign(self, path: str) -> None:
        if not layout.is_state_file(path):
            raise CorruptFileError(f"{path!r} is not the path of a state file below {self.show('')}")

    # ---- manifests ----

    def write_manifest(self, checkpoint_id: int, attempt: int, data: bytes) -> str:
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
        path = layout.manifest_path(checkpoint_id)
        try:
            return self._read_whole(path)
        except FileNotFoundError:
            raise CorruptFileError(
                f"checkpoint {checkpoint_id} has no manifest {self.show(path)}: it was not completed, or was deleted."
            ) from None

    def completed(self) -> list[int]:
        ids = self.with_manifest()
        inheritance = self.inheritance() if ids else None
        return [id for id in ids if inheritance is None or inheritance.covers(id)]

    def why_void(self, checkpoint_id: int) -> str:
        """Why a manifest does not count: its driver wrote it after another driver had taken the job over."""
        inheritance = self.inheritance()
        if inheritance is None or inheritance.covers(checkpoint_id):
            return ""
        return (
            f"{self.show(layout.manifest_path(checkpoint_id))} does not count: its driver wrote it after another one "
            f"had taken the job over from checkpoint {max(inheritance.checkpoints, default='none')}."
        )

    def with_manifest(self) -> list[int]:
        """Ids of all checkpoints with a manifest, also of one that does not count; ascending."""
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
        self._delete(layout.manifest_path(checkpoint_id))
        self._delete_directory(layout.checkpoint_directory(checkpoint_id), keep)
        for path in self._files(layout.SHARED_DIRECTORY):
            stored = layout.parse_path(path)
            if stored is not None and stored.checkpoint_id == checkpoint_id and path not in keep:
                self._delete(path)

    def sweep(self, keep: frozenset[str], before_checkpoint: int) -> list[str]:
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
        """Remove the job's directories, with its `claims` if asked to; called after the job's end.

        Returns False and removes nothing if there is a manifest.
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
        paths = self._files("")
        stored = [s for s in map(layout.parse_path, paths) if s is not None]
        attempts = [s.attempt for s in stored if s.attempt is not None]
        attempts += [c.attempt for c in map(layout.parse_claim, paths) if c is not None]
        return max((s.checkpoint_id for s in stored), default=-1), max(attempts, default=-1)

    # ---- claims: see `jobmanager/job_claim.py` ----

    def add_claim(self, claim: layout.Claim) -> None:
        self._put_new(layout.claim_path(claim), b"")

    def claims(self) -> list[layout.Claim]:
        """All claims on the job, the newest last."""
        found = map(layout.parse_claim, self._files(layout.CLAIMS_DIRECTORY))
        return sorted(claim for claim in found if claim is not None)

    def remove_claim(self, claim: layout.Claim) -> None:
        """Remove a claim and its inheritance; a missing claim is no error."""
        self._delete(layout.inheritance_path(claim))
        self._delete(layout.claim_path(claim))  # last: a driver that finds the claim removes both

    def write_inheritance(self, claim: layout.Claim, inheritance: Inheritance) -> None:
        """Make durable which checkpoints the driver with this claim takes over: no others of earlier drivers count."""
        self._put_new(layout.inheritance_path(claim), inheritance.encode())

    def inheritance(self) -> Inheritance | None:
        """The newest inheritance that a driver has written; None: no driver has, so every checkpoint counts."""
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
        """Remove a directory unless another process has put a file into it meanwhile."""
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
        """Write a durable file from these buffers; no other process uses the name. A failure leaves nothing behind."""
        with self._writing(path, size):
            if self.place.is_local:
                local_files.write(self.place.path, path, chunks, sync=self.sync, has_root=self.prepared)
            else:
                self._stream(path, chunks)

    def _put_new(self, path: str, data: bytes) -> bool:
        """Write a durable file and return True, or return False if the name exists."""
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
            # Object stores offer pyarrow no "create if absent". It is not needed: no two drivers share a name.
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
            # Leaving the `with` block has completed the upload of a partial file.
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
            source = open(local_path, "rb", buffering=0)  # noqa: SIM115 - only errors of opening are caught here
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


def _reason(error: BaseException) -> str:
    """The error in words, without the path, which the message has already."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
