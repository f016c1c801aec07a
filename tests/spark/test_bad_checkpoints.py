"""Checkpoints that cannot be used, storage that fails, state that does not fit: each says so, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests import disks
from tests.spark.kit import wait_until
from tidegate import (
    ConfigurationError,
    DataGeneratorSource,
    Environment,
    FileSink,
    JobFailedError,
    JobStatus,
    OperatorListState,
    ProcessContext,
    ProcessFunction,
    RestartStrategies,
    ValueState,
)
from tidegate.core.errors import CheckpointError, StateCompatibilityError
from tidegate.snapshot.checksums import checksum
from tidegate.storage.storage import StorageError

pytest_plugins = ["tests.plugins.s3_endpoint"]
pytestmark = pytest.mark.timeout(240)

KEYS, RECORDS, RATE = 10, 6_000, 1_000
NAME = "tally"


def numbers(indices: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The records: a key and a number."""
    return {"key": indices % KEYS, "n": indices}


class Tally(ProcessFunction):
    """Counts per key, and keeps every hundredth number of the subtask in a list."""

    count = ValueState(int, default=0)
    seen = OperatorListState(int)

    def process(self, value: Any, context: ProcessContext) -> Iterator[tuple[int, int]]:
        if value.n % 100 == 0:
            self.seen.add(value.n)
        self.count.update(self.count.value() + 1)
        yield value.key, self.count.value()


def start(env: Environment, out: Path, *, records: int = RECORDS, rate: float | None = RATE) -> Any:
    """Start the job: numbers, counted per key, to files."""
    source = env.from_source(
        DataGeneratorSource(numbers, count=records, rate=rate), uid="numbers", name="numbers"
    )
    counts = source.key_by("key").process(Tally(), uid="tally", name="tally")
    counts.sink_to(FileSink(out, "json"), uid="out", name="out")
    return env.execute_async(NAME)


@contextlib.contextmanager
def running(client: Any) -> Iterator[Any]:
    """A job that is not left behind when the test fails."""
    try:
        yield client
    finally:
        if not client.status().is_terminal:
            client.cancel(30)


def completed(client: Any, at_least: int) -> bool:
    """Whether the job, which must not have ended, has completed so many checkpoints."""
    assert not client.status().is_terminal, client.overview().last_error or client.status()
    return client.checkpoints().completed >= at_least


def kill_one(client: Any) -> None:
    """Kill a worker process of the running attempt."""
    slot = next(s for s in client.slots() if s.pid)
    os.kill(slot.pid, signal.SIGKILL)


def last_counts(out: Path) -> dict[int, int]:
    """The highest running count of every key in what is visible."""
    found = pl.read_ndjson(list(out.glob("part-*.json"))).group_by("f0").agg(pl.col("f1").max())
    return dict(found.iter_rows())


def truth(records: int = RECORDS) -> dict[int, int]:
    return dict(Counter(n % KEYS for n in range(records)))


# ---- a job that was cancelled in the middle, with two checkpoints left ----


@dataclass(frozen=True)
class Stored:
    """A checkpoint directory, and what is in it."""

    root: Path

    @property
    def job(self) -> Path:
        (directory,) = (d for d in self.root.iterdir() if d.is_dir())
        return directory

    @property
    def ids(self) -> list[int]:
        return sorted(int(d.name[4:]) for d in self.job.glob("chk-*") if (d / "_metadata").exists())

    def path(self, id: int) -> Path:
        return self.job / f"chk-{id}"

    def manifest(self, id: int) -> dict[str, Any]:
        return dict(json.loads((self.path(id) / "_metadata").read_bytes()))

    def own_files(self, kind: str) -> list[Path]:
        """The files of one kind that the newest checkpoint has and the one before it does not."""
        before, newest = self.ids[-2:]
        old = {f["path"] for f in self.manifest(before)["files"]}
        manifest = self.manifest(newest)
        subtasks = [s for o in manifest["operators"] for s in o["subtasks"]]
        paths = {
            "keyed": [f["path"] for s in subtasks for f in (s["keyed"] or {"files": []})["files"]],
            "list": [h["file"]["path"] for s in subtasks for h in s["states"] if h["file"]],
            "in-flight": [h["file"]["path"] for v in manifest["vertices"] for _, h in v["in_flight"]],
            "manifest": [f"chk-{newest}/_metadata"],
        }[kind]
        return [self.job / path for path in paths if path not in old]


def store(make_env: Callable[..., Environment], folder: Path, **options: Any) -> Stored:
    """Run the job until it has three checkpoints, then cancel it: the last two stay."""
    rate = None if options.get("checkpoint_unaligned") else RATE
    records = 50_000_000 if rate is None else RECORDS
    env = make_env(
        checkpoint_dir=str(folder / "chk"), checkpoint_interval="300 ms", checkpoint_fsync=False, **options
    )
    client = start(env, folder / "out", records=records, rate=rate)
    with running(client):
        wait_until(lambda: completed(client, 3), "three checkpoints", 120)
    return Stored(folder / "chk")


@pytest.fixture(scope="module")
def kept(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stored]:
    """Stored checkpoints of each backend, made once; tests copy them."""
    made: dict[str, Stored] = {}

    def make(kind: str) -> Stored:
        if kind not in made:
            options: dict[str, Any] = {"state_backend": "rocksdb" if kind == "rocksdb" else "heap"}
            if kind == "unaligned":
                options |= {"checkpoint_unaligned": True, "batch_rows": 500}
            env = lambda **more: Environment(spark=spark, progress="off", parallelism=2, **more)  # noqa: E731
            made[kind] = store(env, tmp_path_factory.mktemp(kind), **options)
        return made[kind]

    return make


@pytest.fixture
def copy(kept: Callable[[str], Stored], tmp_path: Path) -> Callable[[str], Stored]:
    """A copy of stored checkpoints, with the output that belongs to them, to be damaged."""

    def make(kind: str = "heap") -> Stored:
        original = kept(kind)
        shutil.copytree(original.root.parent, tmp_path, dirs_exist_ok=True)
        return Stored(tmp_path / "chk")

    return make


def resume(
    make_env: Callable[..., Environment],
    stored: Stored,
    where: str = "latest",
    kind: str = "heap",
    **options: Any,
) -> Any:
    settings: dict[str, Any] = {
        "checkpoint_dir": str(stored.root),
        "checkpoint_interval": "300 ms",
        "checkpoint_fsync": False,
        "checkpoint_fallback": "repeat-output",
        "state_backend": "rocksdb" if kind == "rocksdb" else "heap",
    }
    if kind == "unaligned":
        settings |= {"checkpoint_unaligned": True, "batch_rows": 500}
    rate = None if kind == "unaligned" else RATE
    records = 50_000_000 if rate is None else RECORDS
    out = stored.root.parent / "out"
    return start(make_env(resume=where, **(settings | options)), out, records=records, rate=rate)


def flip(path: Path, where: float = 0.5) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 0x20
    path.write_bytes(data)


# ---- a flipped byte ----


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("heap", "manifest"),
        ("heap", "keyed"),
        ("heap", "list"),
        ("unaligned", "in-flight"),
        ("rocksdb", "keyed"),
    ],
)
def test_flipped_byte_in_any_file_is_named_and_the_checkpoint_before_it_is_taken(
    make_env: Any, copy: Any, caplog: pytest.LogCaptureFixture, kind: str, files: str
):
    stored = copy(kind)
    damaged = stored.own_files(files)
    assert damaged, "there is a file of this kind"
    for path in damaged:
        flip(path)
    before, newest = stored.ids[-2:]
    with caplog.at_level(logging.WARNING), running(resume(make_env, stored, kind=kind)) as client:
        wait_until(
            lambda: completed(client, 1) or client.overview().restored_checkpoint, "a restored attempt"
        )
        assert client.overview().restored_checkpoint == before
        # It was found before the first attempt: nothing was processed, nothing had to be restarted.
        assert client.overview().restarts == 0
    for path in damaged:
        assert str(path) in caplog.text
    assert "damaged" in caplog.text
    if files != "manifest":
        assert f"checkpoint {newest} of job '{NAME}' is damaged" in caplog.text
        assert f"Falling back to checkpoint {before}" in caplog.text


def test_every_file_of_a_rocksdb_checkpoint_is_covered_by_that_test(kept: Any):
    names = {path.name.rpartition(".")[2] for path in kept("rocksdb").own_files("keyed")}
    assert {"sst", "json"} <= names, names


def test_job_that_fell_back_ends_with_the_exact_counts(make_env: Any, copy: Any):
    stored = copy()
    for path in stored.own_files("keyed"):
        flip(path)
    with running(resume(make_env, stored)) as client:
        client.result(60)
    assert last_counts(stored.root.parent / "out") == truth()


@pytest.mark.spec("S0-1")
def test_killed_job_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(
    make_env: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    env = make_env(
        checkpoint_dir=str(tmp_path / "chk"),
        checkpoint_interval="1500 ms",
        checkpoint_fallback="repeat-output",
    )
    with caplog.at_level(logging.WARNING), running(start(env, tmp_path / "out", records=9_000)) as client:
        wait_until(lambda: completed(client, 2), "two checkpoints", 60)
        stored = Stored(tmp_path / "chk")
        before, newest = stored.ids
        damaged = stored.own_files("keyed")
        for path in damaged:
            flip(path)
        kill_one(client)
        wait_until(lambda: client.overview().restarts == 1 and client.checkpoints().restored, "a restart", 60)
        assert client.overview().restored_checkpoint == before
        client.result(60)
    assert f"checkpoint {newest} of job '{NAME}' is damaged" in caplog.text
    assert str(damaged[0]) in caplog.text
    assert last_counts(tmp_path / "out") == truth(9_000)


# ---- resuming from what is none ----


def test_resume_of_a_path_without_a_checkpoint_is_refused(make_env: Any, copy: Any):
    stored = copy()
    with pytest.raises(
        CheckpointError, match=rf"cannot resume from .*chk-99: there is no checkpoint .*{stored.job}"
    ):
        resume(make_env, stored, str(stored.path(99)))
    with pytest.raises(CheckpointError, match="is not the path of a checkpoint"):
        resume(make_env, stored, str(stored.root / "nothing here"))


def test_resume_of_a_truncated_checkpoint_is_refused_with_its_size(make_env: Any, copy: Any):
    stored = copy()
    manifest = stored.path(stored.ids[-1]) / "_metadata"
    manifest.write_bytes(manifest.read_bytes()[:400])
    with pytest.raises(CheckpointError, match=rf"{manifest} is truncated: it ends after 400 bytes"):
        resume(make_env, stored, str(manifest.parent))


def test_resume_of_a_foreign_file_is_refused(make_env: Any, copy: Any):
    stored = copy()
    manifest = stored.path(stored.ids[-1]) / "_metadata"
    manifest.write_bytes(b"\x02 a checkpoint of something else")
    with pytest.raises(CheckpointError, match=rf"{manifest} is not a checkpoint of tidegate"):
        resume(make_env, stored, str(manifest.parent))


def test_resume_of_a_checkpoint_of_a_newer_version_names_both_versions(make_env: Any, copy: Any):
    stored = copy()
    manifest = stored.path(stored.ids[-1]) / "_metadata"
    data = manifest.read_bytes().replace(b'"version": 1,', b'"version": 7,', 1)
    found = re.search(rb'"checksum": "([^"]*)"', data)
    assert found is not None
    bare = data[: found.start(1)] + data[found.end(1) :]
    manifest.write_bytes(data[: found.start(1)] + checksum(bare).encode() + data[found.end(1) :])
    with pytest.raises(
        CheckpointError, match="has format version 7, but this tidegate reads up to version 1"
    ):
        resume(make_env, stored, str(manifest.parent))


def test_resume_of_a_checkpoint_with_a_missing_file_is_refused_by_its_name(make_env: Any, copy: Any):
    stored = copy()
    gone = stored.own_files("keyed")[0]
    gone.unlink()
    with pytest.raises(CheckpointError, match=f"{gone} is missing"):
        resume(make_env, stored, str(stored.path(stored.ids[-1])))


def test_resume_of_an_unreadable_directory_is_refused(make_env: Any, copy: Any):
    stored = copy()
    manifest = stored.path(stored.ids[-1]) / "_metadata"
    manifest.unlink()
    manifest.mkdir()
    with pytest.raises((CheckpointError, StorageError), match="chk-"):
        resume(make_env, stored, str(manifest.parent))


# ---- a program that does not fit its checkpoint ----


def failed(client: Any) -> str:
    with running(client), pytest.raises(JobFailedError) as caught:
        client.result(60)
    assert client.metrics().vertices[0].total("records_out") == 0, "nothing was processed"
    return str(caught.value)


def test_other_max_parallelism_is_refused_with_both_numbers(make_env: Any, copy: Any):
    stored = copy()
    with pytest.raises(
        StateCompatibilityError,
        match=r"operator 'tally'.* cannot restore: max parallelism is 128 in checkpoint \d+ but 64",
    ):
        resume(make_env, stored, max_parallelism=64)


class TallyOfFloats(ProcessFunction):
    """The same states, another type."""

    count = ValueState(float, default=0.0)
    seen = OperatorListState(int)

    def process(self, value: Any, context: ProcessContext) -> Iterator[tuple[int, int]]:
        self.count.update(self.count.value() + 1.0)
        yield value.key, int(self.count.value())


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_other_type_of_a_state_is_refused_with_both_types(make_env: Any, copy: Any, kind: str):
    stored = copy(kind)
    env = make_env(
        checkpoint_dir=str(stored.root), checkpoint_interval="300 ms", resume="latest", state_backend=kind
    )
    source = env.from_source(
        DataGeneratorSource(numbers, count=RECORDS, rate=RATE), uid="numbers", name="numbers"
    )
    counts = source.key_by("key").process(TallyOfFloats(), uid="tally", name="tally")
    counts.sink_to(FileSink(stored.root.parent / "out", "json"), uid="out", name="out")
    text = failed(env.execute_async(NAME))
    assert (
        "operator 'tally' cannot restore state 'count': its values are int in the checkpoint but float in the program"
    ) in text


# ---- values and settings ----


class Unfit(ProcessFunction):
    """Stores a text where a number was declared."""

    count = ValueState(int, default=0)

    def process(self, value: Any, context: ProcessContext) -> Iterator[int]:
        self.count.update("seven" if value.n == 17 else value.n)
        yield value.n


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_value_that_does_not_fit_its_state_names_operator_state_key_and_type(make_env: Any, backend: str):
    env = make_env(state_backend=backend)
    source = env.from_source(DataGeneratorSource(numbers, count=100), name="numbers")
    source.key_by("key").process(Unfit(), name="unfit").print()
    with pytest.raises(JobFailedError) as caught:
        env.execute()
    for word in ("operator 'unfit'", "state 'count'", "str", "key 7", "int64"):
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoint_interval": "-1 s"}, "checkpoint_interval"),
        ({"checkpoint_interval": "1 ms"}, "at least 10 ms"),
        ({"checkpoint_interval": "soon"}, "checkpoint_interval"),
        ({"checkpoint_interval": float("nan")}, "checkpoint_interval"),
        ({"checkpoint_interval": "1e400 d"}, "checkpoint_interval"),
        ({"checkpoint_interval": "1 s", "checkpoint_timeout": 0}, "checkpoint_timeout"),
        ({"checkpoint_interval": "1 s", "checkpoint_retained": 0}, "checkpoint_retained"),
        ({"checkpoint_interval": "1 s", "checkpoint_mode": "twice"}, "checkpoint_mode"),
        ({"checkpoint_interval": "1 s", "checkpoint_max_concurrent": -3}, "checkpoint_max_concurrent"),
        ({"resume": "latest"}, "checkpoint_dir"),
    ],
)
def test_absurd_settings_are_refused_by_name(options: dict[str, Any], words: str):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        Environment(**options)


def test_directory_that_cannot_be_written_is_refused_before_the_job_starts(make_env: Any, tmp_path: Path):
    (tmp_path / "file").write_text("not a directory")
    directory = tmp_path / "file" / "chk"
    with pytest.raises(StorageError, match=f"checkpoint.dir {directory} cannot be used: .*Not a directory"):
        start(make_env(checkpoint_dir=str(directory), checkpoint_interval="1 s"), tmp_path / "out")


# ---- storage in trouble ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    with disks.small_disk(tmp_path / "disk", "1m") as disk:
        yield disk


def wide(indices: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Records that all have a key of their own, with some entropy."""
    return {"key": rng.integers(0, 1 << 62, len(indices)), "n": indices}


def test_full_disk_fails_checkpoints_but_not_the_job_and_names_path_and_bytes(
    make_env: Any, tmp_path: Path, small_disk: Path, caplog: pytest.LogCaptureFixture
):
    env = make_env(
        checkpoint_dir=str(small_disk), checkpoint_interval="200 ms", checkpoint_tolerable_failures=1000
    )
    records = 200_000
    source = env.from_source(DataGeneratorSource(wide, count=records, rate=100_000), name="wide")
    source.key_by("key").count().sink_to(FileSink(tmp_path / "out", "json"), name="out")
    with caplog.at_level(logging.WARNING), running(env.execute_async("wide")) as client:
        failure = wait_until(lambda: client.checkpoints().latest_failed, "a failed checkpoint", 60)
        assert re.search(
            rf"cannot write \d+ bytes to {small_disk}/\S+: No space left on device", failure.reason
        )
        assert client.status() is JobStatus.RUNNING
        wait_until(lambda: "the job goes on" in caplog.text, "the warning")  # logged behind the decision
        # All records come through while the disk is full, and are not lost: they wait for a checkpoint.
        wait_until(lambda: client.metrics().vertices[0].total("records_out") == records, "all records", 60)
        left = [f for f in small_disk.rglob("*") if f.is_file() and ".tmp" in f.name]
        subprocess.run(["mount", "-o", "remount,size=256m", str(small_disk)], check=True)
        client.result(60)
        assert client.overview().restarts == 0
    assert left == [], "half-written files take no place on a full disk"
    assert pl.read_ndjson(list((tmp_path / "out").glob("part-*.json"))).height == records


@contextlib.contextmanager
def away(directory: Path) -> Iterator[None]:
    """The directory cannot be found for a while."""
    directory.rename(directory.with_name("elsewhere"))
    try:
        yield
    finally:
        if directory.exists():
            shutil.rmtree(directory)
            directory.with_name("elsewhere").rename(directory)
            raise AssertionError(f"somebody wrote to {directory} where the disk was not")
        directory.with_name("elsewhere").rename(directory)


def test_storage_that_is_away_for_a_while_fails_checkpoints_and_a_restart_waits_for_it(
    make_env: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    env = make_env(
        checkpoint_dir=str(tmp_path / "chk"),
        checkpoint_interval="200 ms",
        checkpoint_tolerable_failures=1000,
        restart_strategy=RestartStrategies.fixed_delay(100, "300 ms"),
    )
    with caplog.at_level(logging.WARNING), running(start(env, tmp_path / "out")) as client:
        wait_until(lambda: completed(client, 2), "two checkpoints", 60)
        with away(tmp_path / "chk"):
            failures = client.checkpoints().failed
            wait_until(lambda: client.checkpoints().failed >= failures + 2, "failed checkpoints")
            failure = client.checkpoints().latest_failed
            assert client.status() is JobStatus.RUNNING
            assert "No such file or directory" in failure.reason
            kill_one(client)
            wait_until(lambda: "is the storage mounted?" in caplog.text, "a restart that cannot read", 60)
            assert client.status() is JobStatus.RESTARTING
        client.result(90)
        assert client.overview().restarts == 1
        assert client.checkpoints().restored == 1
    assert last_counts(tmp_path / "out") == truth()
    assert count_rows(tmp_path / "out") == RECORDS


def count_rows(out: Path) -> int:
    return pl.read_ndjson(list(out.glob("part-*.json"))).height


# ---- other storages ----


@pytest.mark.spec("S0-28", "S2-5")
@pytest.mark.parametrize("storage", ["memory", "s3", "disk"])
def test_kill_is_survived_from_each_storage_with_the_exact_result(
    make_env: Any, tmp_path: Path, s3_bucket: str, storage: str
):
    where = {"memory": "", "s3": s3_bucket, "disk": str(tmp_path / "chk")}[storage]
    env = make_env(checkpoint_dir=where, checkpoint_interval="300 ms")
    with running(start(env, tmp_path / "out")) as client:
        wait_until(lambda: completed(client, 2), "two checkpoints", 60)
        assert client.checkpoints().latest_completed.path.startswith(
            {"memory": "memory:", "s3": "s3://", "disk": str(tmp_path)}[storage]
        )
        kill_one(client)
        client.result(90)
        assert client.overview().restarts == 1
        assert client.checkpoints().restored == 1
    assert last_counts(tmp_path / "out") == truth()
    assert count_rows(tmp_path / "out") == RECORDS


# ---- what a restart means for the driver's sinks ----


def test_collected_records_repeat_after_a_restart_but_none_is_missing_and_nothing_hangs(
    make_env: Any, tmp_path: Path
):
    env = make_env(checkpoint_interval="300 ms", batch_rows=50)
    source = env.from_source(DataGeneratorSource(numbers, count=RECORDS, rate=RATE), name="numbers")
    marker = tmp_path / "crashed"

    def crash_once(value: Any) -> int:
        if value.n == RECORDS // 2 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return int(value.n)

    found = Counter(source.map(crash_once).execute_and_collect())
    assert marker.exists()
    assert set(found) == set(range(RECORDS))
    assert max(found.values()) <= 2
