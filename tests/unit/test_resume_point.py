"""What a driver says before it starts anything: state without a uid, and a checkpoint that does not fit the program."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tidegate import (
    DataGeneratorSource,
    Environment,
    FileSink,
    KeyedProcessFunction,
    ProcessContext,
    ProcessFunction,
    StateCompatibilityError,
    TumblingEventTimeWindows,
    ValueState,
    WatermarkStrategy,
)
from tidegate.connectors.files import OutputDirectoryError
from tidegate.core.errors import CheckpointError, JobFailedError
from tidegate.core.options import Options
from tidegate.jobmanager.resume_point import Beginning, beginning, prospect
from tidegate.storage.storage import StorageError


class Count(ProcessFunction):
    seen = ValueState(int, default=0)

    def process(self, value: int, context: ProcessContext) -> Iterator[int]:
        self.seen.update(self.seen.value() + 1)
        yield self.seen.value()


def parity(n: int) -> str:
    return "odd" if n % 2 else "even"


def program(tmp_path: Path, uid: str | None = "count", **options: object) -> Environment:
    env = Environment(
        runtime="in-process",
        parallelism=1,
        checkpoint_interval="10 ms",
        checkpoint_dir=str(tmp_path / "chk"),
        **{"checkpoint_keep_on_finish": True, **options},
    )
    numbers = env.from_sequence(1, 20, uid="numbers").map(str, returns=str).map(int, returns=int)
    counted = numbers.key_by(parity, returns=str).process(Count(), returns=int, name="count")
    if uid is not None:
        counted.uid(uid)
    counted.sink_to(FileSink(tmp_path / "out", append=True), uid="files")
    return env


def test_state_without_a_uid_is_warned_of_when_checkpoints_outlive_the_driver(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    program(tmp_path).execute("job")
    assert "no uid" not in caplog.text, "functions without state need none"
    program(tmp_path, uid=None).execute("job")
    assert "job 'job' takes checkpoints, but these operators have state and no uid: 'count'." in caplog.text


class Echo(KeyedProcessFunction):
    def process(self, value: int, context: ProcessContext) -> None:
        context.timer_service.register_event_time_timer(value)

    def on_timer(self, timestamp: int, context: ProcessContext) -> Iterator[int]:
        yield timestamp


async def ask(n: int) -> int:
    return n


def test_timers_and_requests_are_state_and_a_part_of_a_window_is_not_the_users_to_name(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    env = Environment(runtime="in-process", checkpoint_interval="10 ms", checkpoint_dir=str(tmp_path / "chk"))
    numbers = env.from_sequence(1, 20, uid="numbers").assign_timestamps_and_watermarks(
        WatermarkStrategy.monotonous("value")
    )
    numbers.key_by("value").window(TumblingEventTimeWindows("1 s")).count(uid="window").print()
    numbers.map_async(ask, name="asked").print()
    numbers.key_by("value").process(Echo(), returns=int, name="timed").print()
    env.execute("job")
    assert "these operators have state and no uid: 'asked', 'timed'." in caplog.text


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_claimed_or_started(tmp_path):
    program(tmp_path).execute("job")
    claims = sorted((tmp_path / "chk").glob("*/claims/*"))
    assert len(claims) == 2, "a claim and its inheritance"
    with pytest.raises(
        StateCompatibilityError,
        match=r"job 'job' cannot resume from .*chk-\d+: operator 'count' has state .* uid back",
    ):
        program(tmp_path, uid="other", resume="latest").execute("job")
    assert sorted((tmp_path / "chk").glob("*/claims/*")) == claims
    program(tmp_path, resume="latest").execute("job")
    assert sorted((tmp_path / "chk").glob("*/claims/*")) != claims


def test_an_output_that_is_refused_is_refused_before_another_driver_of_the_job_is_fenced(tmp_path):
    """Else a program that cannot start ends the one that runs."""
    program(tmp_path).execute("job")
    claims = sorted((tmp_path / "chk").glob("*/claims/*"))
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputDirectoryError, match=r"out is a file"):
        program(tmp_path, resume="latest").execute("job")
    (tmp_path / "out").unlink()
    (tmp_path / "out").mkdir()
    later = next(p.name for p in (tmp_path / "elsewhere").glob("part-*")).replace(
        "-000000000-", "-002000000-"
    )
    (tmp_path / "out" / later).write_text("")
    with pytest.raises(OutputDirectoryError, match="names would be used twice"):
        program(tmp_path, resume="latest").execute("job")
    assert sorted((tmp_path / "chk").glob("*/claims/*")) == claims
    assert [p.name for p in (tmp_path / "out").iterdir()] == [later]


def test_a_checkpoint_that_the_running_driver_replaces_before_it_is_fenced_is_no_reason_to_refuse(tmp_path):
    """Starting Spark takes longer than a few checkpoints: refusing then would end the one and not begin the other."""
    program(tmp_path, checkpoint_retained=1).execute("job")
    options = program(tmp_path, resume="latest").options
    ahead = prospect(options, "job")
    [found] = (tmp_path / "chk").glob("*/chk-*")
    program(tmp_path, checkpoint_retained=1, resume="latest").execute("job")
    [newer] = (tmp_path / "chk").glob("*/chk-*")
    assert found.name != newer.name
    assert [Path(c.path).parent for c in ahead.take().found] == [newer]

    ahead = prospect(options, "job")
    shutil.rmtree(newer)
    with pytest.raises(CheckpointError, match="was there a moment ago and is gone"):
        ahead.take()


# ---- there is nothing, or nobody can know ----


class Refusing(BaseHTTPRequestHandler):
    """An object store that lists nothing. (503 would do too, but clients try that again for seconds.)"""

    def do_GET(self) -> None:
        self.send_error(403, "AccessDenied")

    do_HEAD = do_PUT = do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def refusing_store() -> Iterator[str]:
    """The URI of a checkpoint directory behind such a store."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            endpoint = f"127.0.0.1:{server.server_address[1]}"
            yield f"s3://key:secret@lake/checkpoints?endpoint_override={endpoint}&scheme=http&region=us-east-1"
        finally:
            server.shutdown()


def begun(directory: str, resume: str, job_name: str = "job") -> Beginning:
    options = Options().with_keywords(checkpoint_dir=directory, resume=resume, checkpoint_interval="1 s")
    return beginning(options.checked(), job_name)


@pytest.mark.parametrize("resume", ["latest", "latest-or-new"])
def test_storage_that_cannot_be_looked_at_is_not_taken_for_a_job_that_never_ran(refusing_store, resume):
    with pytest.raises(StorageError, match="cannot list s3://lake/checkpoints") as caught:
        begun(refusing_store, resume)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("resume", ["latest", "latest-or-new"])
def test_a_file_in_the_place_of_the_directory_is_not_taken_for_a_job_that_never_ran(tmp_path, resume):
    (tmp_path / "chk").write_text("")
    with pytest.raises(StorageError, match=r"chk is not a directory"):
        begun(str(tmp_path / "chk"), resume)


@pytest.mark.parametrize("resume", ["latest", "latest-or-new"])
def test_a_directory_that_is_not_there_may_not_be_mounted_and_is_refused(tmp_path, resume):
    with pytest.raises(
        StorageError, match=r"there is no checkpoint directory .*/mnt/chk, so nobody .* Mount it"
    ):
        begun(str(tmp_path / "mnt" / "chk"), resume)
    assert not (tmp_path / "mnt").exists()


def test_latest_refuses_a_job_without_a_checkpoint_and_says_what_a_first_run_needs(tmp_path):
    program(tmp_path).execute("job")
    with pytest.raises(
        CheckpointError,
        match=r"no checkpoint of a job of this name below .*chk\. If this is its first run, set "
        r"resume=latest-or-new",
    ):
        begun(str(tmp_path / "chk"), "latest", "another")


def test_latest_or_new_begins_the_first_time_and_goes_on_after_that(tmp_path, caplog):
    (tmp_path / "chk").mkdir()
    program(tmp_path, resume="latest-or-new").execute("job")
    assert "no checkpoint of job 'job' below" in caplog.text
    assert "it starts from the beginning" in caplog.text
    caplog.clear()
    program(tmp_path, resume="latest-or-new").execute("job")
    assert "job 'job' goes on from" in caplog.text


def test_latest_or_new_says_that_a_job_without_a_checkpoint_was_started_before(tmp_path, caplog):
    """After a job has finished, a supervisor's next start would write everything again where the sink allows it."""
    (tmp_path / "chk").mkdir()
    words = "It was started here before, and has finished or has ended before its first checkpoint"
    for run in range(2):
        caplog.clear()
        program(tmp_path, resume="latest-or-new", checkpoint_keep_on_finish=False).execute("job")
        assert "it starts from the beginning" in caplog.text
        assert (words in caplog.text) == (run > 0)


@pytest.mark.parametrize("word", ["lastest", "latest-ornew"])
def test_a_mistyped_latest_is_named(tmp_path, word):
    program(tmp_path).execute("job")
    meant = "latest-or-new" if "new" in word else "latest"
    with pytest.raises(CheckpointError, match=f'Did you mean "{meant}"'):
        begun(str(tmp_path / "chk"), word)


# ---- a damaged checkpoint that a sink may have committed ----


def few(indices: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"key": indices % 3}


def keeping(tmp_path: Path, sink: str = "files", **options: object) -> Environment:
    """A job that keeps its last two checkpoints; its sink has transactions or not."""
    env = Environment(
        runtime="in-process",
        checkpoint_interval="10 ms",
        checkpoint_dir=str(tmp_path / "chk"),
        checkpoint_keep_on_finish=True,
        checkpoint_fsync=False,
        batch_rows=5,
        **options,
    )
    numbers = env.from_source(DataGeneratorSource(few, count=200, rate=4_000), uid="numbers")
    counted = numbers.key_by("key").process(Count(), returns=int, uid="count")
    if sink == "files":
        counted.sink_to(FileSink(tmp_path / "out", append=True), uid="out", name="out")
    else:
        counted.map(str, returns=str).print()
    return env


def damage_newest(tmp_path: Path, what: str) -> tuple[int, int]:
    """Damage the newest checkpoint of two; returns the ids of both."""
    older, newest = sorted((tmp_path / "chk").glob("*/chk-*"), key=lambda p: int(p.name[4:]))
    manifest = newest / "_metadata"
    names = [f["path"] for f in json.loads(manifest.read_bytes())["files"]]
    own = [newest.parent / n for n in names if n not in older.joinpath("_metadata").read_text()]
    if what == "no manifest":
        manifest.write_bytes(b"")
    elif what == "a file is missing":
        own[0].unlink()
    else:
        data = bytearray(own[0].read_bytes())
        data[len(data) // 2] ^= 1
        own[0].write_bytes(data)
    return int(older.name[4:]), int(newest.name[4:])


DAMAGES = ["no manifest", "a file is missing", "a byte is another"]


@pytest.mark.parametrize("what", DAMAGES)
def test_a_job_whose_sink_may_have_committed_the_damaged_checkpoint_is_not_resumed_from_the_one_before(
    tmp_path, what
):
    keeping(tmp_path).execute("job")
    before = sorted(p.read_text() for p in (tmp_path / "out").iterdir())
    older, newest = damage_newest(tmp_path, what)
    with pytest.raises((CheckpointError, JobFailedError)) as caught:
        keeping(tmp_path, resume="latest").execute("job")
    assert f"chk-{newest}" in str(caught.value) or f"checkpoint {newest}" in str(caught.value)
    for words in (
        "sink 'out' commits with checkpoints",
        "would be written a second time",
        "checkpoint.fallback=repeat-output",
    ):
        assert words in str(caught.value)
    assert sorted(p.read_text() for p in (tmp_path / "out").iterdir()) == before

    env = keeping(tmp_path, resume="latest", checkpoint_fallback="repeat-output")
    client = env.execute_async("job")
    client.result()
    assert client.overview().restored_checkpoint == older


@pytest.mark.parametrize("manifest_too", [False, True])
def test_output_twice_is_not_advised_where_the_checkpoint_before_needs_the_damaged_file_too(
    tmp_path, manifest_too
):
    keeping(tmp_path).execute("job")
    older, newest = sorted((tmp_path / "chk").glob("*/chk-*"), key=lambda p: int(p.name[4:]))
    files = [
        {f["path"] for f in json.loads((c / "_metadata").read_bytes())["files"]} for c in (older, newest)
    ]
    shared = newest.parent / min(files[0] & files[1])
    data = bytearray(shared.read_bytes())
    data[len(data) // 2] ^= 1
    shared.write_bytes(data)
    if manifest_too:
        (newest / "_metadata").write_bytes(b"")
    with pytest.raises((CheckpointError, JobFailedError)) as caught:
        keeping(tmp_path, resume="latest").execute("job")
    assert shared.name in str(caught.value)
    assert "repeat-output" not in str(caught.value)


@pytest.mark.parametrize("what", DAMAGES)
def test_without_a_sink_that_commits_the_checkpoint_before_the_damaged_one_is_taken(tmp_path, what):
    keeping(tmp_path, "print").execute("job")
    older, _ = damage_newest(tmp_path, what)
    client = keeping(tmp_path, "print", resume="latest").execute_async("job")
    client.result()
    assert client.overview().restored_checkpoint == older


def test_a_damaged_manifest_of_another_job_refuses_nobody(tmp_path):
    keeping(tmp_path).execute("job")
    keeping(tmp_path).execute("other")
    for manifest in (tmp_path / "chk").glob("*/chk-*/_metadata"):
        if json.loads(manifest.read_bytes())["job_name"] == "other":
            manifest.write_bytes(b"")
    keeping(tmp_path, resume="latest").execute("job")
