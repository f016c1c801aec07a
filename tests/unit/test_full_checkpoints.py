"""`checkpoint.full_every`: one checkpoint in n shares no file with those before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tidegate import (
    DataGeneratorSource,
    Environment,
    FileSink,
    ProcessContext,
    ProcessFunction,
    TumblingEventTimeWindows,
    ValueState,
    WatermarkStrategy,
)
from tidegate.cli.main import app
from tidegate.storage.checkpoint_search import StoredCheckpoint, list_checkpoints
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.layout import parse_path


class Count(ProcessFunction):
    seen = ValueState(int, default=0)

    def process(self, value: object, context: ProcessContext) -> Iterator[int]:
        self.seen.update(self.seen.value() + 1)
        yield self.seen.value()


def many_then_few(indices: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Many keys first, which then stay as they are: their file is shared for as long as it may be."""
    return {"key": np.where(indices < 100, indices, 0)}


def run(tmp_path: Path, backend: str, **options: object) -> list[StoredCheckpoint]:
    env = Environment(
        runtime="in-process",
        checkpoint_interval="10 ms",
        checkpoint_dir=str(tmp_path / "chk"),
        checkpoint_keep_on_finish=True,
        checkpoint_fsync=False,
        checkpoint_retained=100,
        state_backend=backend,
        **options,
    )
    numbers = env.from_source(DataGeneratorSource(many_then_few, count=1_600, rate=4_000), uid="numbers")
    counts = numbers.key_by("key").process(Count(), returns=int, uid="count")
    counts.sink_to(FileSink(tmp_path / "out"), uid="out")
    env.execute("job")
    stored = list_checkpoints(str(tmp_path / "chk"))
    assert all(isinstance(one, StoredCheckpoint) for one in stored)
    return [one for one in stored if isinstance(one, StoredCheckpoint)]


def writers(one: StoredCheckpoint) -> set[int]:
    """The checkpoints that the files of one were written for."""
    return {stored.checkpoint_id for f in one.manifest.files if (stored := parse_path(f.path)) is not None}


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_one_checkpoint_in_n_shares_no_file_with_earlier_ones_and_the_others_build_on_it(tmp_path, backend):
    shared = {
        one.manifest.checkpoint_id: writers(one) for one in run(tmp_path, backend, checkpoint_full_every=3)
    }
    assert max(shared) > 6
    for id, ids in shared.items():
        full = id - id % 3
        assert min(ids) >= full
        if id == full:
            assert ids == {id}
    assert any(len(ids) > 1 for ids in shared.values()), "between them files are shared"


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_without_it_a_damaged_file_harms_all_and_with_it_only_those_up_to_the_next_full_one(
    tmp_path, backend
):
    sound = {}
    for every in (0, 3):
        place = tmp_path / str(every)
        place.mkdir()
        checkpoints = run(place, backend, checkpoint_full_every=every)
        storage = checkpoints[0].storage
        assert isinstance(storage, FilesystemStorage)
        [first] = {f.path for f in checkpoints[0].manifest.files if f.path.endswith((".parquet", ".sst"))} & {
            f.path for f in checkpoints[1].manifest.files
        }
        (Path(storage.place.path) / first).write_bytes(b"damaged")
        sound[every] = [c.manifest.checkpoint_id for c in checkpoints if not c.damage()]
    assert 3 not in sound[0]
    assert sound[3][0] == 3
    told = CliRunner().invoke(
        app, ["checkpoints", "verify", str(tmp_path / "3" / "chk")], env={"COLUMNS": "300"}
    )
    assert told.exit_code == 1
    words = " ".join(told.output.split())
    assert words.count(first) == 1, "a file is told once"
    assert "It is needed by checkpoints 1, 2." in words
    assert "2 cannot be restored" in words
    assert f"that can be restored: {checkpoints[-1].path}" in words


def timed(indices: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"key": indices % 7, "ts": indices}


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_windows_and_their_timers_are_written_whole_too(tmp_path, backend):
    """They write their changes before the backend freezes them, and have not to know which checkpoint is full."""
    env = Environment(
        runtime="in-process",
        checkpoint_interval="10 ms",
        checkpoint_dir=str(tmp_path / "chk"),
        checkpoint_keep_on_finish=True,
        checkpoint_fsync=False,
        checkpoint_retained=100,
        checkpoint_full_every=2,
        state_backend=backend,
    )
    numbers = env.from_source(DataGeneratorSource(timed, count=1_200, rate=4_000), uid="numbers")
    keyed = numbers.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts")).key_by("key")
    keyed.window(TumblingEventTimeWindows("500 ms")).count(uid="window").sink_to(FileSink(tmp_path / "out"))
    client = env.execute_async("job")
    client.result()
    assert client.checkpoints().failed == 0
    stored = [one for one in list_checkpoints(str(tmp_path / "chk")) if isinstance(one, StoredCheckpoint)]
    full = [one for one in stored if one.manifest.checkpoint_id % 2 == 0]
    assert len(full) > 1
    for one in full:
        assert writers(one) == {one.manifest.checkpoint_id}
