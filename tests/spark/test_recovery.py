"""Recovery on a real Spark: what a failure may do to the result, when a job restarts, what stays and what goes."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fault.kit import (
    HoldingSink,
    kill,
    pids,
    running,
    until,
    until_completed,
    until_restarted,
)
from tests.fault.stored import completed
from tests.spark.checkpoints import QUICK
from tests.spark.kit import wait_until
from tidegate import FileSink, JobFailedError, MapFunction
from tidegate.testing.scripted_source import Crash, Pause, ScriptedSource, _ScriptReader

pytestmark = pytest.mark.timeout(600)


class Click(NamedTuple):
    app: str
    n: int


def clicks(count: int, first: int = 0) -> list[Click]:
    return [Click(f"app{n % 3}", n) for n in range(first, first + count)]


def visible(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for f in sorted(directory.glob("part-*")) for line in f.read_text().splitlines()]


def highest(rows: list[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for app, count in rows:
        found[app] = max(count, found.get(app, 0))
    return found


# ---- what a failure may do to the result ----


@pytest.mark.spec("S0-2", "S0-3", "S0-4")
@pytest.mark.parametrize("mode", ["at_most_once", "at_least_once", "exactly_once"])
def test_the_same_crash_gives_at_most_at_least_or_exactly_the_truth(make_env, tmp_path, mode):
    script = [clicks(300), clicks(300, 300)]
    source = ScriptedSource(
        [[*half[:200], Pause(f"counted {i}"), *half[200:]] for i, half in enumerate(script)],
        tmp_path / "script",
    )
    sink = HoldingSink(tmp_path / "out")
    options = {"checkpoint_mode": mode, "checkpoint_dir": str(tmp_path / "chk"), **QUICK}
    if mode == "at_most_once":
        del options["checkpoint_interval"]
    env = make_env(**options)
    env.from_source(source, uid="source").key_by("app").count(uid="count").sink_to(sink)
    with running(env, mode) as client:
        until(client, lambda: len(sink.noted()) == 400, "400 counted records")
        if mode != "at_most_once":
            until_completed(client)
        for pid in pids(client):
            kill(pid)
        until_restarted(client)
        for i in range(2):
            source.release(f"counted {i}")
        client.result(180)
    truth = dict.fromkeys(("app0", "app1", "app2"), 200)
    found = highest(sink.noted(attempt=1))
    if mode == "at_most_once":
        # What the readers held when they died is gone with them, and so are the counts.
        assert all(found.get(app, 0) <= truth[app] for app in truth)
        assert sum(found.values()) <= 200, "nothing of the first 400 records is replayed"
        assert client.checkpoints().triggered == 0
    elif mode == "at_least_once":
        assert all(found[app] >= truth[app] for app in truth)
    else:
        assert found == truth


@pytest.mark.spec("S3-34", "S0-9")
def test_a_plain_sink_shows_the_replay_twice_and_a_transactional_one_does_not(make_env, tmp_path):
    source = ScriptedSource(
        [[*clicks(100), Pause("checkpoint"), *clicks(50, 100), Pause("crash"), *clicks(50, 150)]],
        tmp_path / "script",
    )
    plain = HoldingSink(tmp_path / "plain")
    env = make_env(parallelism=1, checkpoint_dir=str(tmp_path / "chk"), **QUICK)
    read = env.from_source(source, uid="source")
    read.sink_to(plain, uid="plain")
    read.sink_to(FileSink(tmp_path / "files"), uid="files")
    with running(env, "two sinks") as client:
        until(client, lambda: len(visible(tmp_path / "files")) == 100, "the first checkpoint's output")
        plain.hold()
        source.release("checkpoint")
        until(client, lambda: len(plain.noted()) == 150, "records behind the checkpoint")
        assert len(visible(tmp_path / "files")) == 100, "nothing of an uncompleted checkpoint is visible"
        kill(pids(client)[0])
        until_restarted(client)
        source.release("crash")
        client.result(180)
    noted = [n for _, n in plain.noted()]
    assert sorted(n for n in set(noted) if noted.count(n) == 2) == list(range(100, 150))
    assert sorted(row["n"] for row in visible(tmp_path / "files")) == list(range(200))


@pytest.mark.spec("S4-14")
@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_with_one_channel_nothing_is_aligned_and_both_modes_are_exact(make_env, tmp_path, mode):
    source = ScriptedSource([[*clicks(90), Pause("crash"), *clicks(90, 90)]], tmp_path / "script")
    sink = HoldingSink(tmp_path / "out")
    env = make_env(parallelism=1, checkpoint_dir=str(tmp_path / "chk"), checkpoint_mode=mode, **QUICK)
    env.from_source(source, uid="source").key_by("app").count(uid="count").sink_to(sink)
    with running(env, mode) as client:
        until(client, lambda: len(sink.noted()) == 90, "90 records")
        until_completed(client, client.checkpoints().completed + 3)
        history = [c for c in client.checkpoints().history if c.status == "completed"]
        assert {s.metrics.aligned_records for c in history for s in c.subtasks} == {0}
        assert max(c.alignment_ms for c in history) < 1
        kill(pids(client)[0])
        until_restarted(client)
        source.release("crash")
        client.result(180)
    assert highest(sink.noted(attempt=1)) == {"app0": 60, "app1": 60, "app2": 60}
    assert len(sink.noted(attempt=1)) == 90, "none of the first 90 again"


@pytest.mark.spec("S0-15", "S3-26", "S2-5", "S0-28")
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("storage", ["the JobManager's memory", "a directory"])
def test_every_backend_and_storage_gives_the_same_counts_after_a_crash(make_env, tmp_path, backend, storage):
    source = ScriptedSource(
        [[*clicks(300), Pause("stored"), Crash("kill"), *clicks(300, 300)]], tmp_path / "script"
    )
    sink = HoldingSink(tmp_path / "out")
    where = {"checkpoint_dir": str(tmp_path / "chk")} if storage == "a directory" else {}
    env = make_env(state_backend=backend, **where, **QUICK)
    read = env.from_source(source, uid="source").set_parallelism(1)
    read.key_by("app").count(uid="count").sink_to(sink)
    with running(env, backend) as client:
        until(client, lambda: len(sink.noted()) == 300, "300 records")
        until_completed(client, client.checkpoints().completed + 2)
        assert (len(completed(tmp_path / "chk")) > 0) == (storage == "a directory")
        source.release("stored")
        client.result(180)
        assert client.overview().restarts == 1
    assert highest(sink.noted()) == {"app0": 200, "app1": 200, "app2": 200}
    assert len(sink.noted(attempt=1)) == 300


# ---- zombies ----


def test_a_zombie_that_wakes_up_changes_nothing(make_env, tmp_path):
    source = ScriptedSource(
        [
            [*clicks(100), Pause("zombie 0"), *clicks(100, 100), Pause("end 0")],
            [*clicks(100, 200), Pause("zombie 1"), *clicks(100, 300), Pause("end 1")],
        ],
        tmp_path / "script",
    )
    env = make_env(
        checkpoint_dir=str(tmp_path / "chk"),
        heartbeat_interval="100 ms",
        heartbeat_timeout="1500 ms",
        **QUICK | {"checkpoint_interval": "200 ms"},
    )
    env.from_source(source, uid="source").sink_to(FileSink(tmp_path / "files"), uid="files")
    with running(env, "zombie") as client:
        until(client, lambda: len(visible(tmp_path / "files")) == 200, "200 visible records")
        zombie = pids(client)[1]
        os.kill(zombie, signal.SIGSTOP)
        try:
            source.release("zombie 0")
            source.release("zombie 1")
            until(client, lambda: client.overview().attempt == 1, "an attempt without it")
            until_restarted(client)
            until(client, lambda: len(visible(tmp_path / "files")) == 400, "400 visible records")
            before = listing(tmp_path)
            last = completed(tmp_path / "chk")[-1].id
        finally:
            awake = kill(zombie, signal.SIGCONT)
        if awake:
            wait_until(lambda: not alive(zombie), "the zombie to notice that its attempt is over")
        until(client, lambda: completed(tmp_path / "chk")[-1].id > last + 2, "more checkpoints")
        after = listing(tmp_path)
        assert {path: size for path, size in after.items() if "files" in path} == {
            path: size for path, size in before.items() if "files" in path
        }
        assert not [path for path in after if "chk" in path and "/a0-" in path and path not in before]
        assert {c.attempt for c in client.checkpoints().history if c.checkpoint_id > last} == {1}
        for i in range(2):
            source.release(f"end {i}")
        client.result(180)
        assert client.overview().restarts == 1
    assert sorted(row["n"] for row in visible(tmp_path / "files")) == list(range(400))


def listing(directory: Path) -> dict[str, int]:
    found = {}
    for sub in ("files", "chk"):
        for path in (directory / sub).rglob("*"):
            try:
                if path.is_file():
                    found[str(path.relative_to(directory))] = path.stat().st_size
            except FileNotFoundError:
                continue
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- restart strategies ----


class Failing(MapFunction):
    """Notes when it is called, then fails."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = str(directory)

    def map(self, value: int) -> int:
        with open(os.path.join(self.directory, "calls"), "a", encoding="ascii") as file:
            file.write(f"{time.time()}\n")
        raise ValueError("it always fails")

    def calls(self) -> list[float]:
        path = Path(self.directory) / "calls"
        return [float(line) for line in path.read_text().split()] if path.exists() else []


def failing_job(env: Any, tmp_path: Path) -> Failing:
    failing = Failing(tmp_path / "calls")
    env.from_collection([1]).map(failing, returns=int).sink_to(lambda n: None)
    return failing


@pytest.mark.spec("S0-20")
def test_with_checkpoints_and_nothing_else_a_job_restarts_for_ever_and_shows_the_last_error(
    make_env, tmp_path
):
    env = make_env(parallelism=1, checkpoint_interval="1 s", checkpoint_dir=str(tmp_path / "chk"))
    failing = failing_job(env, tmp_path)
    with running(env, "for ever") as client:
        until(client, lambda: len(failing.calls()) == 4, "four attempts", 90)
        overview = client.overview()
        assert "ValueError: it always fails" in overview.last_error
        assert "unlimited" in overview.restart_strategy or "for ever" in overview.restart_strategy
        assert "it will not go away by restarting" in overview.last_error
        assert not client.status().is_terminal


@pytest.mark.spec("S0-21")
def test_without_restarts_the_first_failure_ends_the_job(make_env, tmp_path):
    env = make_env(
        parallelism=1,
        args=["--restart-strategy", "none"],
        checkpoint_interval="1 s",
        checkpoint_dir=str(tmp_path / "chk"),
    )
    failing = failing_job(env, tmp_path)
    with pytest.raises(JobFailedError, match="it always fails"):
        env.execute("none")
    assert len(failing.calls()) == 1


# The real numbers, in Flink's spelling.
FIXED_DELAY = """
restart-strategy: fixed-delay
restart-strategy.fixed-delay.attempts: 3
restart-strategy.fixed-delay.delay: 10 s
"""
FAILURE_RATE = """
restart-strategy: failure-rate
restart-strategy.failure-rate.max-failures-per-interval: 3
restart-strategy.failure-rate.failure-rate-interval: 5 min
restart-strategy.failure-rate.delay: 10 s
"""


@pytest.mark.spec("S0-22", "S0-23")
def test_fixed_delay_and_failure_rate_restart_3_times_10_s_apart_and_the_4th_failure_ends_the_job(
    make_env, tmp_path
):
    """Two jobs, which wait side by side: 3 restarts in all, and 3 in 5 minutes."""
    started = {}
    for name, strategy in (("fixed delay", FIXED_DELAY), ("failure rate", FAILURE_RATE)):
        folder = tmp_path / name
        folder.mkdir()
        config = folder / "job.yaml"
        config.write_text(strategy)
        env = make_env(
            parallelism=1, config=config, checkpoint_interval="1 s", checkpoint_dir=str(folder / "chk")
        )
        failing = failing_job(env, folder)
        started[name] = failing, env.execute_async(name)
    for name, (failing, client) in started.items():
        with pytest.raises(JobFailedError, match="it always fails"):
            client.result(300)
        calls = failing.calls()
        assert len(calls) == 4, f"{name}: the first attempt and three restarts"
        gaps = [b - a for a, b in pairwise(calls)]
        assert all(gap >= 10 for gap in gaps), f"{name}: {gaps}"


# ---- checkpoints that fail ----


class _Declining(_ScriptReader):
    """Its position cannot be taken while a file is there."""

    def snapshot(self) -> list[Any]:
        if os.path.exists(os.path.join(self._source.directory, "declining")):
            raise ValueError("no position now")
        return super().snapshot()


class DecliningSource(ScriptedSource):
    def create_reader(self, context: Any) -> Any:
        return _Declining(context, self)

    def decline(self, yes: bool) -> None:
        path = Path(self.directory) / "declining"
        path.touch() if yes else path.unlink()


@pytest.mark.spec("S0-30", "S4-16")
def test_failed_checkpoints_are_dropped_and_one_more_than_tolerable_fails_the_job(make_env, tmp_path):
    source = DecliningSource(
        [[*clicks(30), Pause("failing"), *clicks(30, 30), Pause("end")]], tmp_path / "script"
    )
    sink = HoldingSink(tmp_path / "out")
    options = QUICK | {"checkpoint_interval": "200 ms", "restart_strategy": "none"}
    env = make_env(checkpoint_dir=str(tmp_path / "chk"), checkpoint_tolerable_failures=3, **options)
    read = env.from_source(source, uid="source").set_parallelism(1)
    read.key_by("app").count(uid="count").sink_to(sink)
    with running(env, "tolerable") as client:
        until_completed(client, 2)
        source.decline(True)
        source.release("failing")
        until(client, lambda: client.checkpoints().failed == 2, "two failed checkpoints")
        source.decline(False)
        until(client, lambda: len(sink.noted()) == 60, "the job to go on")
        until_completed(client, client.checkpoints().completed + 1)
        failed = client.checkpoints().latest_failed
        assert "no position now" in failed.reason
        assert not (tmp_path / "chk" / client.job_id / f"chk-{failed.checkpoint_id}" / "_metadata").exists()
        assert client.status().name == "RUNNING"
        assert client.overview().restarts == 0
        before = client.checkpoints().failed
        source.decline(True)
        with pytest.raises(JobFailedError, match="4 checkpoints in a row have failed"):
            client.result(180)
        assert client.checkpoints().failed == before + 4, "three are tolerated, the fourth is not"


@pytest.mark.spec("S4-10", "S4-4", "S4-16")
def test_a_checkpoint_that_takes_too_long_fails_and_leaves_no_file(make_env, tmp_path):
    source = ScriptedSource([[*clicks(300), Pause("end")]], tmp_path / "script")
    sink = HoldingSink(tmp_path / "out")
    env = make_env(
        checkpoint_dir=str(tmp_path / "chk"),
        checkpoint_timeout="1500 ms",
        **QUICK | {"checkpoint_interval": "100 ms"},
    )
    read = env.from_source(source, uid="source").set_parallelism(1)
    read.key_by("app").count(uid="count").sink_to(sink)
    with running(env, "timeout") as client:
        until_completed(client, 2)
        sink.hold()
        late = until(
            client,
            lambda: next(
                (c for c in client.checkpoints().history if "not complete within 1500 ms" in c.reason), None
            ),
            "a checkpoint that takes too long",
        )
        assert late.status == "failed"
        assert 0 < len(late.subtasks) < late.subtasks_total, "some had written their part in time"
        assert "'count -> sink HoldingSink' (subtask " in late.reason
        usable = client.checkpoints().latest_completed.checkpoint_id
        assert usable < late.checkpoint_id
        kill(pids(client)[0])
        until_restarted(client)
        assert client.overview().restored_checkpoint == usable, "the failed one is of no use"
        sink.let_pass(1 << 30)
        until_completed(client, client.checkpoints().completed + 3)
        job = tmp_path / "chk" / client.job_id

        def litter() -> list[str]:
            own = [*job.glob(f"chk-{late.checkpoint_id}/*"), *job.glob(f"shared/c{late.checkpoint_id}-*")]
            return [path.name for path in own]

        until(client, lambda: not litter(), "its files to be deleted")
        source.release("end")
        client.result(180)
        assert client.overview().restarts == 1, "the kill; a failed checkpoint is no failure of the job"
    assert highest(sink.noted()) == {"app0": 100, "app1": 100, "app2": 100}


@pytest.mark.spec("S4-15", "S4-9", "S0-29")
def test_a_downstream_task_may_finish_its_snapshot_before_the_one_in_front_of_it(make_env, tmp_path):
    source = ScriptedSource([[*clicks(300), Pause("end")]], tmp_path / "script")
    held = HoldingSink(tmp_path / "held")
    counts = HoldingSink(tmp_path / "counts")
    env = make_env(checkpoint_dir=str(tmp_path / "chk"), **QUICK | {"checkpoint_interval": "100 ms"})
    read = env.from_source(source, uid="source").set_parallelism(1)
    read.sink_to(held, uid="held").set_parallelism(1)  # in the source's task, whose snapshot it holds back
    read.key_by("app").count(uid="count").sink_to(counts, uid="counts")
    with running(env, "downstream first") as client:
        until_completed(client, 1)
        held.hold()

        def in_front_is_missing() -> Any:
            newest = client.checkpoints().history[-1]
            done = {(s.vertex, s.subtask) for s in newest.subtasks}
            return newest if newest.status == "pending" and (1, 1) in done and (0, 0) not in done else None

        pending = until(client, in_front_is_missing, "a snapshot of the downstream task alone")
        assert not (tmp_path / "chk" / client.job_id / f"chk-{pending.checkpoint_id}" / "_metadata").exists()
        held.let_pass(1 << 30)
        until(
            client,
            lambda: client.checkpoints().latest_completed.checkpoint_id >= pending.checkpoint_id,
            "its completion",
        )
        kill(pids(client)[1])
        until_restarted(client)
        source.release("end")
        client.result(180)
    assert highest(counts.noted()) == {"app0": 100, "app1": 100, "app2": 100}
    assert counts.noted(attempt=1) == [], "the cut was consistent: nothing to do again"


@pytest.mark.spec("S4-3", "S0-34")
def test_two_jobs_have_two_coordinators_with_ids_of_their_own(make_env, tmp_path):
    clients, sources = [], []
    for i, interval in enumerate(("30 ms", "400 ms")):
        source = ScriptedSource([[*clicks(30), Pause("end")]], tmp_path / f"script {i}")
        env = make_env(
            parallelism=2, checkpoint_dir=str(tmp_path / "chk"), **QUICK | {"checkpoint_interval": interval}
        )
        env.from_source(source, uid="source").key_by("app").count(uid="count").sink_to(
            HoldingSink(tmp_path / f"out {i}")
        )
        sources.append(source)
        clients.append(env.execute_async(f"job {i}"))
    try:
        until_completed(clients[1], 3)
        until(clients[0], lambda: clients[0].checkpoints().completed > 6, "more of the quick one's")
        for client in clients:
            seen = client.checkpoints()
            ids = [c.checkpoint_id for c in seen.history]
            # On a busy machine the quick one may have made more than the history keeps.
            assert ids == list(range(seen.triggered - len(ids) + 1, seen.triggered + 1))
        triggered = [c.triggered_ms for c in clients[1].checkpoints().history if c.triggered_ms]
        assert all(b - a >= 200 for a, b in pairwise(triggered)), "the interval of its own"
        for source in sources:
            source.release("end")
        for client in clients:
            client.result(180)
    finally:
        for client in clients:
            if not client.status().is_terminal:
                client.cancel(30)


@pytest.mark.spec("S2-13", "S1-7", "S0-34")
def test_subsumed_checkpoints_are_deleted_and_a_manifest_alone_says_how_to_go_on(make_env, tmp_path):
    def job(name: str, **options: Any) -> tuple[Any, ScriptedSource, HoldingSink]:
        source = ScriptedSource([[*clicks(300), Pause(name), *clicks(300, 300)]], tmp_path / name)
        sink = HoldingSink(tmp_path / f"out {name}")
        env = make_env(checkpoint_dir=str(tmp_path / "chk"), checkpoint_retained=2, **{**QUICK, **options})
        read = env.from_source(source, uid="source").set_parallelism(1)
        read.key_by("app").count(uid="count").sink_to(sink, uid="out")
        return env, source, sink

    env, _, sink = job("first")
    with running(env, "retained") as client:
        until(client, lambda: len(sink.noted()) == 300, "300 records")
        until_completed(client, client.checkpoints().completed + 5)
        until(client, lambda: len(completed(tmp_path / "chk")) <= 2, "only two to be left")
        client.cancel(60)
    stored = completed(tmp_path / "chk")
    assert 1 <= len(stored) <= 2
    named = {file.name for one in stored for file in one.files()}
    shared = {path.name for path in stored[-1].directory.parent.glob("shared/*")}
    assert shared <= named, "no file that no retained checkpoint refers to"
    env, source, sink = job("second", resume=str(stored[-1].directory / "_metadata"))
    with running(env, "another name") as client:
        source.release("second")
        client.result(180)
        assert client.overview().restored_checkpoint == stored[-1].id
    assert len(sink.lines()) == 300
    assert highest(sink.noted()) == {"app0": 200, "app1": 200, "app2": 200}
