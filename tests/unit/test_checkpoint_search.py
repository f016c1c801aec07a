"""Finding the newest usable checkpoint on real files: what is damaged is passed over and reported, never silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.manifest_kit import Contents, manifest
from tidegate.core.errors import CheckpointError
from tidegate.storage.checkpoint_search import (
    StoredCheckpoint,
    find_at,
    find_latest,
    list_checkpoints,
    newest_usable,
)
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.memory import MemoryStorage
from tidegate.storage.storage import StorageError


def store(
    root: Path, id: int, *, job_id: str = "9c02", job_name: str = "pv count", completed_ms: int = 0
) -> Path:
    """A completed checkpoint on disk; returns the job's directory."""
    contents = Contents()
    made = manifest(
        contents, job_id=job_id, job_name=job_name, checkpoint_id=id, completed_ms=completed_ms or 1000 * id
    )
    directory = root / job_id
    for path, data in contents.files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    FilesystemStorage(str(root), job_id).write_manifest(id, 0, made.encode())
    return directory


def found_id(found) -> int | None:
    return None if found.checkpoint is None else found.checkpoint.manifest.checkpoint_id


def test_the_newest_checkpoint_of_the_job_name_is_found(tmp_path):
    store(tmp_path, 8, job_id="aaaa")
    store(tmp_path, 9, job_id="aaaa")
    store(tmp_path, 99, job_id="bbbb", job_name="other")
    store(tmp_path, 3, job_id="cccc", completed_ms=9_500)

    found = find_latest(str(tmp_path), "pv count")

    assert (found_id(found), found.checkpoint.path) == (3, str(tmp_path / "cccc" / "chk-3"))
    assert found.unusable == ()
    assert found.report() == ""
    assert found_id(find_latest(str(tmp_path), "nobody")) is None


def test_in_a_job_the_id_decides_even_if_the_clock_went_back(tmp_path):
    store(tmp_path, 8, completed_ms=5_000_000)
    store(tmp_path, 9, completed_ms=1_000_000)
    assert found_id(find_latest(str(tmp_path), "pv count")) == 9


def test_damaged_checkpoints_are_passed_over_with_all_that_is_wrong(tmp_path):
    for id in (1, 2, 3, 4):
        directory = store(tmp_path, id)
    (directory / "chk-4" / "_metadata").write_bytes(b"{")
    (directory / "chk-3" / "a0-xrules-0-all.parquet").unlink()
    (directory / "chk-3" / "a0-xrules-1-all.parquet").write_bytes(b"longer than it was")
    flipped = directory / "shared" / "c2-a0-xdedupe-0-inc.parquet"
    flipped.write_bytes(b"INC0")

    found = newest_usable(FilesystemStorage(str(tmp_path), "9c02"))

    assert found_id(found) == 1
    assert [(Path(u.path).name, len(u.reasons)) for u in found.unusable] == [
        ("chk-4", 1),
        ("chk-3", 2),
        ("chk-2", 1),
    ]
    report = found.report()
    for word in (
        "chk-4/_metadata is truncated",
        "a0-xrules-0-all.parquet is missing",
        "18 bytes but had 2",
        str(flipped),
    ):
        assert word in report
    # Without looking at the contents the flipped byte is not seen.
    assert found_id(newest_usable(FilesystemStorage(str(tmp_path), "9c02"), contents=False)) == 2


@pytest.mark.parametrize("end", ["", "/", "/_metadata"])
def test_one_is_found_at_its_path(tmp_path, end):
    store(tmp_path, 41)
    store(tmp_path, 42)
    assert found_id(find_at(f"{tmp_path}/9c02/chk-41{end}")) == 41
    assert found_id(find_at(f"{tmp_path}/9c02")) == 42


def test_the_path_of_a_checkpoint_that_is_not_there_says_so(tmp_path):
    store(tmp_path, 41)
    found = find_at(f"{tmp_path}/9c02/chk-7")
    assert found.checkpoint is None
    assert "checkpoint 7 has no manifest" in found.report()
    with pytest.raises(CheckpointError, match="is not the path of a checkpoint"):
        find_at("_metadata")
    with pytest.raises(StorageError, match=r"there is no checkpoint directory .*/nowhere"):
        find_latest(str(tmp_path / "nowhere"), "pv count")


def test_a_moved_directory_is_still_a_checkpoint(tmp_path):
    store(tmp_path / "here", 42)
    (tmp_path / "here").rename(tmp_path / "there")
    found = find_at(str(tmp_path / "there" / "9c02" / "chk-42"))
    assert (found_id(found), found.unusable) == (42, ())


def test_all_are_listed_job_by_job_and_nothing_else(tmp_path):
    store(tmp_path, 2, job_id="bbbb")
    store(tmp_path, 10, job_id="aaaa")
    store(tmp_path, 9, job_id="aaaa")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "README").write_text("")
    listed = [
        (one.manifest.job_id, one.manifest.checkpoint_id)
        for one in list_checkpoints(str(tmp_path))
        if isinstance(one, StoredCheckpoint)
    ]
    assert listed == [("aaaa", 9), ("aaaa", 10), ("bbbb", 2)]


def test_the_memory_of_the_jobmanager_is_searched_alike():
    storage = MemoryStorage()
    for id in (1, 2):
        contents = Contents()
        made = manifest(contents, checkpoint_id=id)
        storage.accept(contents.files)
        storage.write_manifest(id, 0, made.encode())
    storage.delete(["shared/c2-a0-xdedupe-0-inc.parquet"])
    found = newest_usable(storage)
    assert found_id(found) == 1
    assert "memory:shared/c2-a0-xdedupe-0-inc.parquet is missing" in found.report()
