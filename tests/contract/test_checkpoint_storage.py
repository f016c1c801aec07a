"""The contract of checkpoint storage: one suite for local disk, an S3 endpoint and the JobManager's memory.

Durable and checked: what a handle names is there, whole and as it was written, or an error names the file.
Long because it is one list of promises that all storages are held to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest

from tests.disks import small_disk
from tests.unit.manifest_kit import Contents, manifest
from tidegate.core.ids import new_job_id
from tidegate.snapshot.handles import StateFile
from tidegate.storage import layout
from tidegate.storage.checkpoint_search import find_latest
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.job_storage import decode_storage, encode_storage
from tidegate.storage.memory import MemoryStorage
from tidegate.storage.storage import CheckpointStorage, CorruptFileError, Scope, SnapshotWriter, StorageError

pytest_plugins = ["tests.plugins.s3_endpoint"]

NAMES = [
    "base.parquet",
    "seen apps/☃",
    "..",
    ".",
    "",
    "-",
    "a" * 500 + ".sst",
    "a" * 500 + "b.sst",
    "Base.parquet",
    "~7e",
]


@dataclass
class Job:
    """The storage of one job as the JobManager and its slots see it."""

    driver: CheckpointStorage
    tamper: Callable[[str, Callable[[bytes], bytes | None]], None]
    """Change the stored bytes of a path behind the storage's back; None removes the file."""
    writers: list[SnapshotWriter] = field(default_factory=list)

    def write(
        self, data: Any, name: str = "state", *, id: int = 1, attempt: int = 0, scope: Scope = "shared"
    ) -> StateFile:
        """A slot writes a file and acknowledges."""
        writer = decode_storage(encode_storage(self.driver)).writer(id, attempt, "5f1d", 0)
        file = writer.write(name, data, scope)
        self.acknowledge(writer)
        return file

    def acknowledge(self, writer: SnapshotWriter) -> None:
        if isinstance(self.driver, MemoryStorage):
            self.driver.accept(writer.attachments)
        else:
            assert writer.attachments == {}

    def restored(self, *files: StateFile) -> CheckpointStorage:
        """The storage that a slot of the next attempt gets."""
        storage = self.driver.excerpt(files) if isinstance(self.driver, MemoryStorage) else self.driver
        return decode_storage(encode_storage(storage))


def filesystem_job(root: str) -> Job:
    storage = FilesystemStorage(root, new_job_id())

    def tamper(path: str, change: Callable[[bytes], bytes | None]) -> None:
        place = storage.place
        with place.filesystem.open_input_stream(place.join(path)) as stream:
            changed = change(stream.read())
        place.filesystem.delete_file(place.join(path))
        if changed is not None:
            with place.filesystem.open_output_stream(place.join(path)) as out:
                out.write(changed)

    return Job(storage, tamper)


def memory_job() -> Job:
    storage = MemoryStorage()

    def tamper(path: str, change: Callable[[bytes], bytes | None]) -> None:
        changed = change(storage.files.pop(path))
        if changed is not None:
            storage.files[path] = changed

    return Job(storage, tamper)


@pytest.fixture(params=["local", "s3", "memory"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    if request.param == "memory":
        return memory_job()
    if request.param == "s3":
        return filesystem_job(request.getfixturevalue("s3_bucket"))
    return filesystem_job(str(tmp_path / "checkpoints"))


@pytest.fixture
def local(tmp_path: Path) -> Job:
    return filesystem_job(str(tmp_path / "checkpoints"))


# ---- state files ----


@pytest.mark.spec("S2-5")
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_what_a_slot_wrote_is_read_by_a_slot_of_the_next_attempt(job, tmp_path, size):
    data = random.Random(size).randbytes(size)

    file = job.write(data)
    next_attempt = job.restored(file)
    next_attempt.download(file, str(tmp_path / "copy"))

    assert file.size == size
    assert next_attempt.read(file) == data
    assert (tmp_path / "copy").read_bytes() == data
    next_attempt.verify([file])


@pytest.mark.parametrize("buffer", [bytearray(b"abcd"), memoryview(b"abcd"), pa.py_buffer(b"abcd")])
def test_any_buffer_is_written(job, buffer):
    file = job.write(buffer)
    assert job.driver.read(file) == b"abcd"


def test_a_local_file_is_uploaded_and_stays(job, tmp_path):
    data = random.Random(7).randbytes((4 << 20) + 17)
    (tmp_path / "000007.sst").write_bytes(data)
    writer = job.driver.writer(3, 0, "5f1d", 1)

    file = writer.upload("000007.sst", str(tmp_path / "000007.sst"))
    job.acknowledge(writer)

    assert (file.size, job.driver.read(file)) == (len(data), data)
    assert (tmp_path / "000007.sst").read_bytes() == data
    with pytest.raises(StorageError, match=r"cannot read .*no\.sst to upload it: No such file"):
        writer.upload("no.sst", str(tmp_path / "no.sst"))


def test_equal_bytes_have_equal_checksums_and_others_have_not(job):
    assert job.write(b"a", "x").checksum == job.write(b"a", "y").checksum != job.write(b"b", "z").checksum


def test_every_name_has_its_own_file_inside_the_job_directory(job):
    writer = job.driver.writer(1, 0, "op-1", 0)
    scopes: list[Scope] = ["exclusive", "shared"]
    written = {
        (name, scope): writer.write(name, f"{name}{scope}".encode(), scope)
        for name in NAMES
        for scope in scopes
    }
    job.acknowledge(writer)

    assert len({f.path for f in written.values()}) == 2 * len(NAMES)
    for (name, scope), file in written.items():
        assert job.driver.read(file) == f"{name}{scope}".encode()
        stored = layout.parse_path(file.path)
        assert stored == layout.StoredPath(1, 0, scope, temporary=False)


def test_a_name_is_never_written_twice(job):
    writer = job.driver.writer(1, 0, "5f1d", 0)
    writer.write("base", b"one")
    with pytest.raises(StorageError, match="was written already"):
        writer.write("base", b"two")


def test_attempts_and_subtasks_do_not_write_over_each_other(job):
    files = []
    for attempt in (0, 1):
        for subtask in (0, 1):
            writer = job.driver.writer(1, attempt, "5f1d", subtask)
            files.append(writer.write("base", f"{attempt} {subtask}".encode()))
            job.acknowledge(writer)
    assert [job.driver.read(f) for f in files] == [b"0 0", b"0 1", b"1 0", b"1 1"]


# ---- damage ----


def damages(data: bytes) -> dict[str, Callable[[bytes], bytes | None]]:
    return {
        "checksum": lambda d: d[:5] + bytes([d[5] ^ 1]) + d[6:],
        "truncated": lambda d: d[:-1],
        "bytes but had": lambda d: d + b"x",
        "missing": lambda d: None,
    }


@pytest.mark.parametrize("kind", list(damages(b"")))
def test_damage_is_found_by_read_download_and_verify_and_the_file_is_named(job, tmp_path, kind):
    good, bad = job.write(b"good state", "good"), job.write(b"state that suffers", "bad")
    job.tamper(bad.path, damages(b"")[kind])
    storage = job.restored(good, bad)
    expected = rf"{re.escape(bad.path)}.*{kind}"

    for use in (
        lambda: storage.read(bad),
        lambda: storage.download(bad, str(tmp_path / "copy")),
        lambda: storage.verify([good, bad]),
    ):
        with pytest.raises(CorruptFileError, match=expected):
            use()
    assert not (tmp_path / "copy").exists()
    [message] = storage.damage([good, bad])
    assert re.search(expected, message)
    assert len(storage.damage([good, bad], contents=False)) == (kind != "checksum")


@pytest.mark.parametrize(
    "path", ["../other/shared/c1-a0-x-0-y", "/etc/passwd", "chk-1/_metadata", "shared/..", "x", ""]
)
def test_a_handle_cannot_lead_out_of_the_state_files(job, path):
    job.driver.write_manifest(1, 0, b"manifest")
    with pytest.raises(CorruptFileError, match=r"not the path of a state file|missing"):
        job.driver.read(StateFile(path, 1, "sha256-128:00"))
    with pytest.raises(CorruptFileError, match="not the path of a state file"):
        job.driver.delete([path])
    assert job.driver.read_manifest(1) == b"manifest"


# ---- manifests ----


def test_a_checkpoint_is_complete_when_its_manifest_is_written(job):
    job.write(b"state", id=7, scope="exclusive")
    assert job.driver.completed() == []
    with pytest.raises(CorruptFileError, match=r"checkpoint 7 has no manifest .*chk-7/_metadata"):
        job.driver.read_manifest(7)

    path = job.driver.write_manifest(7, 0, b"manifest of 7")
    job.driver.write_manifest(10, 0, b"manifest of 10")

    assert path == job.driver.show("chk-7/_metadata")
    assert job.driver.completed() == [7, 10]
    assert job.driver.read_manifest(7) == b"manifest of 7"


def test_a_stale_writer_does_not_replace_a_completed_checkpoint(job):
    job.driver.write_manifest(7, 1, b"of attempt 1")

    with pytest.raises(
        StorageError, match=r"attempt 0 cannot complete checkpoint 7: .*chk-7/_metadata exists already"
    ):
        job.driver.write_manifest(7, 0, b"of a zombie")

    assert job.driver.read_manifest(7) == b"of attempt 1"
    job.driver.write_manifest(7, 1, b"of attempt 1")  # said twice: nothing changes
    assert job.driver.completed() == [7]


# ---- deletion ----


def test_deleting_what_is_gone_is_no_error(job):
    file = job.write(b"state")
    job.driver.delete([file.path, file.path])
    job.driver.delete([file.path])
    with pytest.raises(CorruptFileError, match="missing"):
        job.driver.read(file)


def test_discarding_a_checkpoint_removes_all_of_it_but_what_others_refer_to(job):
    shared, own = job.write(b"s", "s", id=4), job.write(b"e", "e", id=4, scope="exclusive")
    unused = job.write(b"u", "u", id=4)
    later = job.write(b"l", "l", id=5)
    zombie = job.write(b"z", "z", id=4, attempt=3, scope="exclusive")
    job.driver.write_manifest(4, 0, b"4")
    job.driver.write_manifest(5, 0, b"5")

    job.driver.discard(4, frozenset({shared.path}))
    job.driver.discard(4, frozenset({shared.path}))

    assert job.driver.completed() == [5]
    assert [job.driver.read(shared), job.driver.read(later)] == [b"s", b"l"]
    for gone in (own, unused, zombie):
        with pytest.raises(CorruptFileError, match="missing"):
            job.driver.read(gone)


def test_sweeping_removes_what_nobody_refers_to_and_nothing_of_checkpoints_under_way(job):
    kept = job.write(b"1", "kept", id=1)
    in_completed = job.write(b"2", "own", id=2, scope="exclusive")
    job.driver.write_manifest(2, 0, b"2")
    litter = [
        job.write(b"l", f"l{i}", id=i, attempt=i, scope=s)
        for i, s in [(1, "exclusive"), (1, "shared"), (2, "shared")]
    ]
    under_way = [job.write(b"w", "w", id=3, scope=s) for s in ("exclusive", "shared")]

    swept = job.driver.sweep(frozenset({kept.path}), before_checkpoint=3)

    assert sorted(swept) == sorted(f.path for f in litter)
    for file in (kept, in_completed, *under_way):
        job.driver.verify([file])
    assert job.driver.sweep(frozenset({kept.path}), before_checkpoint=3) == []
    assert job.driver.completed() == [2]


def test_the_highest_numbers_ever_used_are_known(job):
    assert job.driver.last_used() == (-1, -1)
    job.write(b"x", id=9, attempt=2, scope="exclusive")
    job.write(b"x", id=4, attempt=5)
    job.driver.write_manifest(11, 0, b"11")
    assert job.driver.last_used() == (11, 5)


# ---- files of a real filesystem ----


def all_files(job: Job) -> list[str]:
    root = Path(job.driver.place.path)
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_two_drivers_that_complete_the_same_checkpoint_do_not_both_win(local):
    results: list[object] = []
    start = threading.Barrier(8)

    def complete(attempt: int) -> None:
        start.wait()
        try:
            results.append(local.driver.write_manifest(1, attempt, b"%d" % attempt))
        except StorageError as e:
            results.append(e)

    for _ in range(20):
        results.clear()
        threads = [threading.Thread(target=complete, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(isinstance(r, StorageError) for r in results) == [False] + [True] * 7
        assert all_files(local) == ["chk-1/_metadata"]
        local.driver.discard(1, frozenset())


def test_everything_is_on_the_disk_before_the_manifest_appears(local, monkeypatch):
    synced: list[str] = []
    root = local.driver.place.path
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), root))
        assert not os.path.exists(os.path.join(root, "chk-1/_metadata")) or synced[-1] == "chk-1"
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    local.write(b"x", "s")
    local.write(b"x", "e", scope="exclusive")
    local.driver.write_manifest(1, 0, b"manifest")

    names = [re.sub(r"[0-9a-f]{8}", "*", name) for name in synced]
    assert names == [
        "shared/.c1-a0-5f1d-0-s.*.tmp",
        "chk-1/.a0-5f1d-0-e.*.tmp",
        "chk-1/._metadata.*.tmp",
        "shared",
        "chk-1",
        ".",
        "..",
        "chk-1",
    ]


def test_nothing_waits_for_the_disk_without_fsync(tmp_path, monkeypatch):
    def refuse(descriptor: int) -> None:
        raise AssertionError("fsync was called")

    monkeypatch.setattr(os, "fsync", refuse)
    storage = decode_storage(encode_storage(FilesystemStorage(str(tmp_path), "9c02", sync=False)))
    file = storage.writer(1, 0, "5f1d", 0).write("base", b"x")
    storage.write_manifest(1, 0, b"manifest")
    assert (storage.completed(), storage.read(file)) == ([1], b"x")
    assert pickle.loads(pickle.dumps(storage)).sync is False


def test_an_empty_directory_does_not_stay_behind(local):
    local.write(b"x", id=3, scope="exclusive")
    local.driver.write_manifest(3, 0, b"3")
    local.driver.discard(3, frozenset())
    assert not os.path.exists(local.driver.place.join("chk-3"))


def test_what_a_killed_writer_left_under_a_temporary_name_is_no_file_and_is_swept(local):
    local.write(b"x", id=1, scope="exclusive")
    root = Path(local.driver.place.path)
    for path in ("chk-1/_metadata", "chk-1/a0-5f1d-0-base", "shared/c1-a0-5f1d-0-base"):
        temporary = root / layout.temporary_path(path, "0123abcd")
        temporary.parent.mkdir(exist_ok=True)
        temporary.write_bytes(b"half")

    assert local.driver.completed() == []
    assert len(local.driver.sweep(frozenset(), before_checkpoint=2)) == 4
    assert all_files(local) == []


def test_files_of_others_in_the_directory_are_left_alone(local):
    local.write(b"x", id=1)
    (Path(local.driver.place.path) / "README").write_text("mine")
    local.driver.sweep(frozenset(), before_checkpoint=100)
    local.driver.discard(1, frozenset())
    assert all_files(local) == ["README"]


@pytest.mark.parametrize("prepared", [True, False])
def test_local_checkpoints_are_for_their_owner_alone(tmp_path, prepared):
    storage = FilesystemStorage(str(tmp_path / "data" / "checkpoints"), new_job_id())
    if prepared:
        storage.prepare()
    storage.writer(1, 0, "5f1d", 0).write("state", b"secret", "shared")
    storage.write_manifest(1, 0, b"manifest")
    found = sorted((tmp_path / "data" / "checkpoints").rglob("*"))
    assert {p.name for p in found} >= {"chk-1", "_metadata", "shared"}
    modes = {p.relative_to(tmp_path): oct(p.stat().st_mode & 0o777) for p in [*found, found[0].parent]}
    assert modes == {path: "0o700" if (tmp_path / path).is_dir() else "0o600" for path in modes}
    assert (tmp_path / "data").stat().st_mode & 0o055, "what is above is the user's own"


def test_a_failed_rename_leaves_nothing_and_names_path_and_bytes(local):
    local.write(b"x", "other", scope="exclusive")
    os.makedirs(local.driver.place.join(layout.file_path(1, 0, "5f1d", 0, "base", "exclusive")))
    with pytest.raises(StorageError, match=r"cannot write 4 bytes to .*chk-1/a0-5f1d-0-base: Is a directory"):
        local.write(b"data", "base", scope="exclusive")
    assert all_files(local) == ["chk-1/a0-5f1d-0-other"]


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write 1 bytes to .*file/.*Not a directory"):
        filesystem_job(str(tmp_path / "file")).write(b"x")
    for place in ("file", "file/below", "file/far/below"):
        with pytest.raises(
            StorageError, match=rf"checkpoint\.dir .*{place} cannot be used: .*Not a directory"
        ):
            FilesystemStorage(str(tmp_path / place), new_job_id()).prepare()


def test_a_full_disk_is_an_error_with_path_and_bytes_and_leaves_nothing_half_written(tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        job = filesystem_job(str(disk))
        kept = job.write(b"k" * 100_000, "kept")
        (tmp_path / "big.sst").write_bytes(b"b" * (2 << 20))
        writer = job.driver.writer(2, 0, "5f1d", 0)

        for attempt in (
            lambda: writer.write("big", b"b" * (2 << 20)),
            lambda: writer.upload("big.sst", str(tmp_path / "big.sst")),
            lambda: job.driver.write_manifest(2, 0, b"m" * (2 << 20)),
        ):
            with pytest.raises(
                StorageError,
                match=rf"cannot write 2097152 bytes to {re.escape(str(disk))}.*: No space left on device",
            ) as error:
                attempt()
            assert getattr(error.value.__cause__, "errno", None) == errno.ENOSPC

        assert job.driver.completed() == []
        assert all_files(job) == [kept.path]
        job.driver.write_manifest(1, 0, b"manifest")
        job.driver.verify([kept])
        with open(disk / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"f" * 10_000)
        with pytest.raises(StorageError, match=r"cannot copy .* \(100000 bytes\) to .*No space left"):
            job.driver.download(kept, str(disk / "copy"))


def test_a_byte_flip_anywhere_in_any_file_is_detected_and_the_file_named(local):
    rng = random.Random(20261115)
    contents = {
        name: rng.randbytes(rng.randrange(1, 4000)) for name in ("base", "inc", "000009.sst", "in-flight")
    }
    files = [
        local.write(data, name, scope=rng.choice(["exclusive", "shared"])) for name, data in contents.items()
    ]
    for _ in range(1_000):
        file = rng.choice(files)
        position, bit = rng.randrange(file.size), 1 << rng.randrange(8)
        with open(local.driver.place.join(file.path), "r+b", buffering=0) as on_disk:
            [before] = os.pread(on_disk.fileno(), 1, position)
            os.pwrite(on_disk.fileno(), bytes([before ^ bit]), position)
            [message] = local.driver.damage([file])
            assert file.path in message
            os.pwrite(on_disk.fileno(), bytes([before]), position)
    assert local.driver.damage(files) == []


# ---- S3 ----


def test_an_endpoint_that_is_away_is_a_storage_error_that_names_the_path_and_no_secret():
    storage = FilesystemStorage(
        "s3://me:hush@lake/chk?endpoint_override=127.0.0.1:9&scheme=http&region=x", "9c02"
    )
    with pytest.raises(StorageError, match=r"s3://lake/chk/9c02/chk-1/_metadata") as error:
        storage.read_manifest(1)
    assert "hush" not in str(error.value) + repr(storage)


def test_an_address_that_is_none_is_refused_without_its_credentials():
    with pytest.raises(StorageError, match=r"checkpoint.dir nope://lake/dir cannot be used") as error:
        FilesystemStorage("nope://me:hush@lake/dir", "9c02").completed()
    assert "hush" not in str(error.value)


def test_nothing_of_a_discarded_checkpoint_stays_in_the_bucket(s3_bucket):
    job = filesystem_job(s3_bucket)
    job.write(b"x", id=1, scope="exclusive")
    job.write(b"y", id=1)
    job.driver.write_manifest(1, 0, b"1")

    job.driver.discard(1, frozenset())

    place = job.driver.place
    left = place.filesystem.get_file_info(
        pa_fs.FileSelector(place.path, recursive=True, allow_not_found=True)
    )
    assert [info.path for info in left if info.type == pa_fs.FileType.File or "chk-1" in info.path] == []


def test_the_newest_checkpoint_in_a_bucket_is_found_and_damage_falls_back_to_the_one_before(s3_bucket):
    job = filesystem_job(s3_bucket)
    for id in (41, 42):
        contents = Contents()
        made = manifest(contents, job_id=job.driver.job_id, checkpoint_id=id)
        place = job.driver.place
        for path, data in contents.files.items():
            with place.filesystem.open_output_stream(place.join(path)) as out:
                out.write(data)
        job.driver.write_manifest(id, 0, made.encode())
    [found] = [find_latest(s3_bucket, "pv count").checkpoint]
    assert found is not None
    assert found.manifest.checkpoint_id == 42

    job.tamper("chk-42/a0-xrules-1-all.parquet", lambda d: b"U1")
    fallen_back = find_latest(s3_bucket, "pv count")

    assert fallen_back.checkpoint is not None
    assert fallen_back.checkpoint.manifest.checkpoint_id == 41
    assert re.search(
        r"s3://lake-\w+/checkpoints/\w+/chk-42/a0-xrules-1-all.parquet is damaged", fallen_back.report()
    )


# ---- memory ----


def test_more_than_the_memory_limit_is_refused_with_both_numbers():
    writer = MemoryStorage(limit_bytes=1000).writer(1, 0, "5f1d", 2)
    writer.write("a", b"x" * 900)
    with pytest.raises(
        StorageError,
        match=r"subtask 2 of operator 5f1d would put 1001 bytes .*checkpoint.memory_limit is 1000",
    ):
        writer.write("b", b"x" * 101)
    writer.write("c", b"x" * 100)


def test_a_file_over_the_memory_limit_is_not_even_read(tmp_path):
    with open(tmp_path / "huge", "wb") as huge:
        huge.truncate(1 << 40)
    with pytest.raises(
        StorageError, match=r"1099511627776 bytes .* checkpoint.memory_limit is 5242880 \(5 MiB\)"
    ):
        MemoryStorage().writer(1, 0, "5f1d", 0).upload("huge", str(tmp_path / "huge"))


def test_a_slot_gets_the_files_of_its_own_handles_only():
    job = memory_job()
    mine, other = job.write(b"mine", "mine"), job.write(b"other", "other")
    slot = job.restored(mine)
    assert slot.read(mine) == b"mine"
    with pytest.raises(CorruptFileError, match=r"memory:shared/c1-a0-5f1d-0-other is missing"):
        slot.read(other)


def test_the_driver_does_not_accept_a_file_twice_with_other_bytes_or_under_a_strange_name():
    storage = MemoryStorage()
    path = layout.file_path(1, 0, "5f1d", 0, "base", "shared")
    storage.accept({path: b"one"})
    storage.accept({path: b"one"})
    with pytest.raises(StorageError, match="was written already"):
        storage.accept({path: b"two"})
    with pytest.raises(StorageError, match="not the path of a state file"):
        storage.accept({"chk-1/_metadata": b""})


def test_storage_is_picklable_also_after_use(local):
    file = local.write(b"state")
    again = pickle.loads(pickle.dumps(local.driver))
    assert again.read(file) == b"state"
