"""Finding completed checkpoints: all below a directory, the newest of a job, or the one at a path.

An unusable checkpoint is skipped and reported, never raised: the caller decides whether to continue without it. Storage
that cannot be reached at all raises `StorageError`. The driver and `tidegate checkpoints` call this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.fs as pa_fs

from tidegate.core.errors import CheckpointError
from tidegate.core.failpoints import failpoint
from tidegate.snapshot.manifest import Manifest, ManifestError, decode_manifest
from tidegate.storage import layout
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.locations import absolute, path_name, resolve, split_query
from tidegate.storage.storage import (
    CheckpointStorage,
    CorruptFileError,
    MissingDirectoryError,
    StorageError,
)

_TRIES: Final = 10


@dataclass(frozen=True)
class StoredCheckpoint:
    """A readable manifest and the storage of its files. Paths are as messages write them."""

    storage: CheckpointStorage
    manifest: Manifest

    @property
    def path(self) -> str:
        return self.storage.show(layout.checkpoint_directory(self.manifest.checkpoint_id))

    @property
    def manifest_path(self) -> str:
        return self.storage.show(layout.manifest_path(self.manifest.checkpoint_id))

    def damage(self, *, contents: bool = True) -> list[str]:
        """A message for each damaged file; without `contents` check only existence and size."""
        return self.storage.damage(self.manifest.files, contents=contents)


@dataclass(frozen=True)
class UnusableCheckpoint:
    """A checkpoint that was skipped, with the reasons."""

    storage: CheckpointStorage
    checkpoint_id: int
    reasons: tuple[str, ...]

    @property
    def path(self) -> str:
        return self.storage.show(layout.checkpoint_directory(self.checkpoint_id))


@dataclass(frozen=True)
class Found:
    """The result of a search: the newest usable checkpoint, or None, and the damaged ones."""

    checkpoint: StoredCheckpoint | None
    unusable: tuple[UnusableCheckpoint, ...] = ()

    @property
    def passed_over(self) -> tuple[UnusableCheckpoint, ...]:
        """The damaged checkpoints that are newer than the one found, or may be: those of another job."""
        one = self.checkpoint
        if one is None:
            return self.unusable
        return tuple(
            u
            for u in self.unusable
            if u.storage.show("") != one.storage.show("") or u.checkpoint_id > one.manifest.checkpoint_id
        )

    def verified(self) -> Found:
        """Read all files, and fall back to the newest earlier checkpoint of the job that is intact."""
        one = self.checkpoint
        if one is None:
            return self
        ids = [id for id in one.storage.completed() if id <= one.manifest.checkpoint_id]
        whole = _first_usable([_read(one.storage, id) for id in ids], contents=True)
        return Found(whole.checkpoint, self.passed_over + whole.unusable)

    def report(self) -> str:
        """The skipped checkpoints and the reasons, for a log; empty if none was skipped."""
        return "\n".join(f"{u.path} cannot be used: {' '.join(u.reasons)}" for u in self.unusable)


def newest_usable(storage: CheckpointStorage, *, contents: bool = True) -> Found:
    """The newest checkpoint of one job's storage whose files all verify."""
    return _settled(lambda: _read_all(storage), contents)


def find_latest(root: str, job_name: str, *, contents: bool = True) -> Found:
    """The newest usable checkpoint below a checkpoint directory of any job with this name (for resume="latest").

    The job with the latest completion comes first, and within a job the highest id. An unreadable manifest may belong
    to the job, so it is reported, unless another file in its directory shows another job name.
    """
    return _settled(lambda: _all_of_name(root, job_name), contents)


def _all_of_name(root: str, job_name: str) -> list[StoredCheckpoint | UnusableCheckpoint]:
    found: list[StoredCheckpoint | UnusableCheckpoint] = []
    for job_id in job_ids(root):
        storage = FilesystemStorage(root, job_id)
        try:
            of_job = _read_all(storage)
        except CorruptFileError:  # the inheritance is damaged: it is unknown which checkpoints count
            read, _ = read_all(storage, storage.with_manifest())
            if read and all(one.manifest.job_name != job_name for one in read):
                continue  # another job
            raise
        names = {one.manifest.job_name for one in of_job if isinstance(one, StoredCheckpoint)}
        if of_job and not names and (inheritance := storage.inheritance()) is not None:
            names = {inheritance.job_name}
        if not names or job_name in names:
            found += [
                one
                for one in of_job
                if isinstance(one, UnusableCheckpoint) or one.manifest.job_name == job_name
            ]
    return found


def find_at(location: str, *, contents: bool = True) -> Found:
    """The checkpoint at a path: `.../<job id>/chk-42`, its `_metadata`, or `.../<job id>` for the job's newest."""
    plain, query = split_query(location)
    split = layout.split_location(absolute(plain))
    if split is None:
        raise CheckpointError(
            f"{path_name(location)} is not the path of a checkpoint. "
            f"Give one that ends in <job id>/chk-<number>, or in <job id> for its newest."
        )
    root, job_id, checkpoint_id = split
    storage = FilesystemStorage(root + query, job_id)
    if checkpoint_id is None:
        return newest_usable(storage, contents=contents)
    return _first_usable([_read_one(storage, checkpoint_id)], contents)


def list_checkpoints(root: str) -> list[StoredCheckpoint | UnusableCheckpoint]:
    """All completed checkpoints of all jobs below a checkpoint directory; job by job, ascending."""
    found: list[StoredCheckpoint | UnusableCheckpoint] = []
    for job_id in job_ids(root):
        found += _list_job(FilesystemStorage(root, job_id))
    return found


def list_at(location: str) -> list[StoredCheckpoint | UnusableCheckpoint]:
    """All completed checkpoints of a checkpoint directory, of one job's directory, or the one at a path."""
    plain, query = split_query(location)
    split = layout.split_location(absolute(plain))
    if split is not None:
        root, job_id, checkpoint_id = split
        storage = FilesystemStorage(root + query, job_id)
        if checkpoint_id is not None:
            return [_read_one(storage, checkpoint_id)]
        own = _list_job(storage)
        if own:
            return own
    return list_checkpoints(location)


def job_ids(root: str) -> list[str]:
    """The jobs with a directory below a checkpoint directory; `MissingDirectoryError` if `root` does not exist."""
    try:
        place = resolve(root)
        failpoint("storage.list")
        info = place.filesystem.get_file_info(place.path)
        if info.type == pa_fs.FileType.NotFound:
            raise MissingDirectoryError(
                f"there is no checkpoint directory {path_name(root)}. Check the path."
            )
        if info.type != pa_fs.FileType.Directory:
            raise StorageError(f"{path_name(root)} is not a directory. Check the path.")
        entries = place.filesystem.get_file_info(pa_fs.FileSelector(place.path))
    except (pa.ArrowException, OSError, ValueError) as e:
        raise StorageError(f"cannot list {path_name(root)}: {e}") from e
    names = (entry.base_name for entry in entries if entry.type == pa_fs.FileType.Directory)
    return sorted(name for name in names if layout.is_job_id(name))


def read_all(
    storage: CheckpointStorage, checkpoint_ids: Sequence[int]
) -> tuple[list[StoredCheckpoint], list[UnusableCheckpoint]]:
    """The manifests of one job's completed checkpoints: the readable ones and the others."""
    read = [_read(storage, id) for id in checkpoint_ids]
    return (
        [one for one in read if isinstance(one, StoredCheckpoint)],
        [one for one in read if isinstance(one, UnusableCheckpoint)],
    )


def _read_all(storage: CheckpointStorage) -> list[StoredCheckpoint | UnusableCheckpoint]:
    return [_read(storage, id) for id in storage.completed()]


def _list_job(storage: FilesystemStorage) -> list[StoredCheckpoint | UnusableCheckpoint]:
    """The checkpoints of one job; all unusable if the inheritance, which says which ones count, is damaged."""
    try:
        return _read_all(storage)
    except CorruptFileError as e:
        return [UnusableCheckpoint(storage, id, (str(e),)) for id in storage.with_manifest()]


def _read_one(storage: CheckpointStorage, checkpoint_id: int) -> StoredCheckpoint | UnusableCheckpoint:
    """Read a checkpoint that the user named by path; `completed` may not list it."""
    one = _read(storage, checkpoint_id)
    void = storage.why_void(checkpoint_id) if isinstance(one, StoredCheckpoint) else ""
    return UnusableCheckpoint(storage, checkpoint_id, (void,)) if void else one


def _read(storage: CheckpointStorage, checkpoint_id: int) -> StoredCheckpoint | UnusableCheckpoint:
    name = storage.show(layout.manifest_path(checkpoint_id))
    try:
        manifest = decode_manifest(storage.read_manifest(checkpoint_id), name)
    except (ManifestError, CorruptFileError) as e:
        return UnusableCheckpoint(storage, checkpoint_id, (str(e),))
    return StoredCheckpoint(storage, manifest)


def _settled(read: Callable[[], list[StoredCheckpoint | UnusableCheckpoint]], contents: bool) -> Found:
    """The newest usable checkpoint. One that vanished meanwhile is not damaged: a running driver replaced it."""
    found = _first_usable(read(), contents)
    for _ in range(_TRIES):
        if all(u.checkpoint_id in u.storage.completed() for u in found.unusable):
            break
        found = _first_usable(read(), contents)
    return found


def _first_usable(found: list[StoredCheckpoint | UnusableCheckpoint], contents: bool) -> Found:
    unusable = [one for one in found if isinstance(one, UnusableCheckpoint)]
    for one in _newest_first(found):
        reasons = one.damage(contents=contents)
        if not reasons:
            return Found(one, tuple(unusable))
        unusable.append(UnusableCheckpoint(one.storage, one.manifest.checkpoint_id, tuple(reasons)))
    return Found(None, tuple(unusable))


def _newest_first(found: list[StoredCheckpoint | UnusableCheckpoint]) -> Iterator[StoredCheckpoint]:
    """Jobs by their latest completion; within a job by id, because ids, unlike clocks, never go back."""
    readable = [one for one in found if isinstance(one, StoredCheckpoint)]
    last_ms: dict[str, tuple[int, int]] = {}
    for one in readable:
        manifest = one.manifest
        newest = (manifest.checkpoint_id, manifest.completed_ms)
        last_ms[manifest.job_id] = max(last_ms.get(manifest.job_id, newest), newest)
    readable.sort(
        key=lambda one: (last_ms[one.manifest.job_id][1], one.manifest.job_id, one.manifest.checkpoint_id),
        reverse=True,
    )
    return iter(readable)
