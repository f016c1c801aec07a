"""The files of a RocksDB checkpoint: which are uploaded, which are stored already, and how they are restored.

SST files never change, so a checkpoint refers to files of a *completed* one instead of writing them again. They are
named by the hash of their content, because RocksDB's numbers repeat from attempt to attempt. The few small files that
list the SST files (MANIFEST, CURRENT, OPTIONS and rocksdict's own) are written every time. The last file of a handle is
its index: JSON with the local name of each of the others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping

import msgspec

from tidegate.core.errors import CheckpointError
from tidegate.snapshot.handles import KeyedStateHandle, StateFile
from tidegate.storage.storage import CheckpointStorage, SnapshotWriter

INDEX_VERSION = 1
_SKIPPED = ("LOG", "LOCK", "IDENTITY")


class Memo(msgspec.Struct, frozen=True):
    """What a backend must remember besides the entries of its database."""

    list_sequence: int = 0
    """The number of the next part of a list; parts are read in the order of their numbers."""
    watermark_ms: int | None = None
    first_watermark_ms: int | None = None


class CheckpointIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The last file of a handle."""

    version: int
    files: dict[str, str]
    """Local name to the path of the stored file."""
    memo: Memo


class CheckpointFiles:
    """Which local files are stored already.

    `upload` runs on the thread of the asynchronous part, the rest on the mailbox thread. Shared data is replaced as a
    whole, never changed.
    """

    def __init__(self) -> None:
        self._completed: Mapping[str, StateFile] = {}
        self._uploaded: dict[int, Mapping[str, StateFile]] = {}

    def restored(self, stored: Mapping[str, StateFile]) -> None:
        """The database was opened with these SST files, by local name; they belong to a completed checkpoint."""
        self._completed = {name: file for name, file in stored.items() if name.endswith(".sst")}

    def completed(self, checkpoint_id: int) -> None:
        """Later checkpoints may refer to the files of this one."""
        uploaded = self._uploaded.get(checkpoint_id)
        if uploaded is not None:
            self._completed = uploaded
        for earlier in [i for i in self._uploaded if i <= checkpoint_id]:
            del self._uploaded[earlier]

    def aborted(self, checkpoint_id: int) -> None:
        """Nothing may refer to the files of this one."""
        self._uploaded.pop(checkpoint_id, None)

    def upload(
        self, checkpoint_id: int, directory: str, memo: Memo, writer: SnapshotWriter, *, full: bool = False
    ) -> tuple[tuple[StateFile, ...], int]:
        """Store a local checkpoint; returns its files, the index last, and the number of new bytes.

        With `full`, also what is stored already, so that it refers to no file of another checkpoint.
        """
        completed = {} if full else self._completed
        tables: dict[str, StateFile] = {}
        files: dict[str, StateFile] = {}
        by_content: dict[str, StateFile] = {}
        bytes_new = 0
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            if name.startswith(_SKIPPED) or (name.endswith(".log") and not os.path.getsize(path)):
                continue
            if not name.endswith(".sst"):
                files[name] = writer.upload(name, path, "exclusive")
                bytes_new += files[name].size
                continue
            stored = completed.get(name)
            if stored is None:
                content = _content_hash(path)
                stored = by_content.get(content)
                if stored is None:
                    stored = by_content[content] = writer.upload(f"{content}.sst", path, "shared")
                    bytes_new += stored.size
            files[name] = tables[name] = stored
        index = CheckpointIndex(INDEX_VERSION, {n: f.path for n, f in files.items()}, memo)
        last = writer.write("index.json", msgspec.json.encode(index), "exclusive")
        self._uploaded[checkpoint_id] = tables
        return (*dict.fromkeys(files.values()), last), bytes_new + last.size


def download(
    handle: KeyedStateHandle, storage: CheckpointStorage, directory: str
) -> tuple[CheckpointIndex, dict[str, StateFile]]:
    """Put the files of a handle into a new local directory; returns the index, and the stored file of each name."""
    index = _read_index(handle, storage)
    by_path = {file.path: file for file in handle.files}
    os.makedirs(directory)
    stored: dict[str, StateFile] = {}
    for name, path in index.files.items():
        if os.path.basename(name) != name or path not in by_path:
            raise CheckpointError(
                f"{handle.files[-1].path}: the index of a RocksDB checkpoint names the file {name!r} at {path!r}, "
                f"which is not among the checkpoint's files. The index is damaged; restore another checkpoint"
            )
        stored[name] = by_path[path]
        storage.download(stored[name], os.path.join(directory, name))
    return index, stored


def _read_index(handle: KeyedStateHandle, storage: CheckpointStorage) -> CheckpointIndex:
    if not handle.files:
        raise CheckpointError("a RocksDB state handle without files: the checkpoint's manifest is damaged")
    last = handle.files[-1]
    try:
        index = msgspec.json.decode(storage.read(last), type=CheckpointIndex)
    except msgspec.DecodeError as e:
        raise CheckpointError(f"{last.path} is not the index of a RocksDB checkpoint: {e}") from e
    if index.version > INDEX_VERSION:
        raise CheckpointError(
            f"{last.path} has version {index.version}, but this tidegate reads up to {INDEX_VERSION}. Update tidegate"
        )
    return index


def _content_hash(path: str, make: Callable[..., hashlib._Hash] = hashlib.sha256) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, make).hexdigest()[:40]
