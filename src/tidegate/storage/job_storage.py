"""The storage of a job: the driver makes it from the options, and sends slots a description in bytes."""

from __future__ import annotations

import msgspec

from tidegate.core.errors import ProtocolError
from tidegate.core.ids import JobId
from tidegate.core.options import Options
from tidegate.core.words import kind_of
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.memory import MemoryStorage
from tidegate.storage.storage import CheckpointStorage


class _Filesystem(msgspec.Struct, frozen=True, tag="filesystem"):
    root: str
    job_id: str
    sync: bool
    prepared: bool = False


class _Memory(msgspec.Struct, frozen=True, tag="memory"):
    limit_bytes: int
    files: dict[str, bytes]


_decoder = msgspec.msgpack.Decoder(_Filesystem | _Memory)


def make_storage(options: Options, job_id: JobId) -> CheckpointStorage:
    """The storage of a job: below `checkpoint.dir`, or the JobManager's memory if that is empty."""
    if options.checkpoint_dir:
        return FilesystemStorage(options.checkpoint_dir, job_id, sync=options.checkpoint_fsync)
    return MemoryStorage(options.checkpoint_memory_limit)


def encode_storage(storage: CheckpointStorage) -> bytes:
    """The description of a storage for a deployment. Memory storage includes its files, so pass an `excerpt`."""
    if isinstance(storage, FilesystemStorage):
        return msgspec.msgpack.encode(
            _Filesystem(storage.root, storage.job_id, storage.sync, storage.prepared)
        )
    if isinstance(storage, MemoryStorage):
        return msgspec.msgpack.encode(_Memory(storage.limit_bytes, storage.files))
    raise TypeError(f"{kind_of(storage)} cannot be sent to slots")


def decode_storage(data: bytes) -> CheckpointStorage:
    """Make the storage in a slot from its description; raises `ProtocolError`."""
    try:
        description = _decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a description of checkpoint storage: {e}") from e
    if isinstance(description, _Filesystem):
        d = description
        return FilesystemStorage(d.root, d.job_id, sync=d.sync, prepared=d.prepared)
    return MemoryStorage(description.limit_bytes, description.files)
