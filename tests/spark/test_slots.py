"""Slots and processes: who runs where, what a fault touches, and that nothing stays when a job has ended."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.driver import five_operators, nothing, to_pair, unbounded
from tests.spark.kit import connected, listening, wait_until
from tests.spark.standalone import timed
from tidegate import Environment, FileSink, JobFailedError, JobStatus, MapFunction, SchemaError
from tidegate.core.errors import ConfigurationError, SlotsUnavailableError
from tidegate.core.states import ExecutionState
from tidegate.jobmanager.slots import SlotState
from tidegate.spark.gang import SparkGang


@pytest.fixture
def submit() -> Iterator[Callable[..., Any]]:
    """Start a program; what still runs at the end of the test is cancelled."""
    clients: list[Any] = []

    def submit(env: Environment, name: str | None = None) -> Any:
        clients.append(env.execute_async(name))
        return clients[-1]

    yield submit
    for client in clients:
        if not client.status().is_terminal:
            client.cancel()


@pytest.fixture
def start(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Start a program and wait until its tasks run."""

    def start(env: Environment, name: str | None = None) -> Any:
        client = submit(env, name)
        wait_until(
            lambda: all(s.state is ExecutionState.RUNNING for s in client.execution_graph().subtasks()),
            "it runs",
        )
        return client

    return start


def pids(client: Any) -> list[int]:
    return [slot.pid for slot in client.slots()]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that Spark has not reaped yet has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# ---- what the JobManager shows ----


@pytest.mark.spec("S3-2")
def test_the_job_client_shows_the_execution_graph_from_the_job_graph_with_every_state(make_env, submit):
    env = make_env(parallelism=2)
    five_operators(env, parallelism=2).sink_to(nothing, name="E").set_parallelism(1)
    client = submit(env, "shown")
    client.result()
    graph = client.execution_graph()
    assert graph.job_name == "shown"
    assert graph.slots_needed == 2
    assert {v.name: len(v.subtasks) for v in graph.vertices} == {"A": 2, "B": 2, "C -> C2": 2, "D": 2, "E": 1}
    assert [v.operators for v in graph.vertices if v.name == "C -> C2"] == [("C", "C2")]
    names = {v.vertex: v.name for v in graph.vertices}
    edges = {(names[e.source], names[e.target]): e.partitioning for e in graph.edges}
    assert edges == {
        ("A", "B"): "rebalance",
        ("B", "D"): "hash(key)",
        ("C -> C2", "D"): "hash(key)",
        ("D", "E"): "rebalance",
    }
    for subtask in graph.subtasks():
        assert [state.name for state in subtask.history] == [
            "CREATED",
            "SCHEDULED",
            "DEPLOYING",
            "INITIALIZING",
            "RUNNING",
            "FINISHED",
        ]
    assert [s.name for s in client.status_history()] == [
        "CREATED",
        "WAITING_FOR_SLOTS",
        "RUNNING",
        "FINISHED",
    ]


@pytest.mark.spec("S3-3", "S3-4")
def test_slots_are_asked_for_offered_registered_and_listed_with_their_processes(make_env, caplog, submit):
    env = make_env(parallelism=2)
    unbounded(env).map(to_pair_of_row).sink_to(nothing, name="out")
    with caplog.at_level(logging.INFO, logger="tidegate"):
        client = submit(env, "listed")
        seen = [{s.slot: s.state for s in client.slots()}]
        assert set(seen[0].values()) <= {SlotState.AWAITED, SlotState.REGISTERED, SlotState.RUNNING}
        wait_until(lambda: all(s.state is SlotState.RUNNING for s in client.slots()), "all slots run", 60)
    assert "asking Spark for 2 slots for job 'listed'" in caplog.text
    table = client.slots()
    assert [s.slot for s in table] == [0, 1]
    for slot in table:
        assert psutil.pid_exists(slot.pid)
        assert slot.port in listening(slot.pid), "the data port that it registered is its own"
        assert slot.executor
        assert len(slot.subtasks) == 2
        assert all(f"({slot.slot}/2)" in name for name in slot.subtasks)
    client.cancel()
    assert {s.state for s in client.slots()} == {SlotState.FINISHED}


def to_pair_of_row(row: Any) -> tuple[int, int]:
    return row.n, 1


@pytest.mark.spec("S3-4")
def test_peers_are_connected_once_by_the_lower_slot_and_to_the_job_manager(make_env, start):
    env = make_env(parallelism=3)
    unbounded(env).sink_to(nothing)
    client = start(env)
    ports = {s.slot: s.port for s in client.slots()}
    control = set(listening(os.getpid()))

    def links() -> set[tuple[int, int]]:
        return {
            (slot.slot, peer)
            for slot in client.slots()
            for _, there in connected(slot.pid)
            for peer, port in ports.items()
            if there == port
        }

    wait_until(lambda: len(links()) == 3, "three slots have three connections")
    assert links() == {(0, 1), (0, 2), (1, 2)}
    for slot in client.slots():
        assert any(there in control for _, there in connected(slot.pid)), "it holds its control connection"
    client.cancel()


@pytest.mark.parametrize(
    ("told", "control", "data"),
    [("", "127.0.0.1", "127.0.0.1"), ("0.0.0.0",) * 3, ("127.0.0.2", "127.0.0.2", "127.0.0.1")],
)
def test_ports_bind_where_told_and_peers_find_each_other(make_env, start, told, control, data):
    """A given address is one of the JobManager's machine; a slot takes the one of its own that leads there."""
    env = make_env(parallelism=2, bind_host=told)
    unbounded(env, rate=1000).map(to_pair_of_row).rebalance().sink_to(nothing, name="out")
    before = addresses(os.getpid())
    client = start(env)
    assert addresses(os.getpid()) - before <= {control} | before
    assert control in addresses(os.getpid())
    for slot in client.slots():
        assert slot.host == "127.0.0.1"
        assert data in addresses(slot.pid)
    wait_until(
        lambda: client.metrics().vertices[-1].total("records_in") > 100, "records cross between the slots"
    )
    client.cancel()


def addresses(pid: int) -> set[str]:
    """Where a process listens."""
    return {c.laddr.ip for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}


# ---- how many slots ----


@pytest.mark.spec("S3-8")
def test_five_operators_of_parallelism_four_share_four_slots(make_env, submit):
    env = make_env(parallelism=4)
    five_operators(env).sink_to(nothing, name="E").set_parallelism(1)
    plan = env.explain()
    assert "4 slots" in plan
    client = submit(env)
    metrics = client.result()
    assert client.execution_graph().slots_needed == 4
    slots = client.slots()
    assert len(slots) == 4
    assert len({s.pid for s in slots}) == 4
    held = [{name.split(" (")[0] for name in s.subtasks} for s in slots]
    assert held[0] == {"A", "B", "C -> C2", "D", "E"}, "a slot holds a whole slice of the program"
    assert all({"A", "B", "D"} <= names for names in held)
    assert metrics.vertices[-1].total("records_in") == 200


@pytest.mark.spec("S3-8")
def test_slot_sharing_groups_change_the_number_of_slots(make_env, submit):
    env = make_env(parallelism=2)
    numbers = env.from_sequence(1, 100).slot_sharing_group("readers")
    numbers.rebalance().map(to_pair).slot_sharing_group("workers").sink_to(nothing).slot_sharing_group(
        "workers"
    )
    client = submit(env)
    metrics = client.result()
    assert client.execution_graph().slots_needed == 4
    placed = Counter(name.split(" (")[0] for s in client.slots() for name in s.subtasks)
    assert all(len(s.subtasks) == 1 for s in client.slots())
    assert sum(placed.values()) == 4
    assert metrics.vertices[-1].total("records_in") == 100


@pytest.mark.spec("S3-8")
def test_a_job_that_needs_more_than_there_is_says_so_at_once_and_can_be_cancelled_while_it_waits(
    make_env, caplog, submit
):
    env = make_env(parallelism=5)
    env.from_sequence(1, 10).sink_to(nothing)
    with timed() as elapsed:
        client = submit(env, "wide")
        wait_until(client.waiting_for, "it says what it waits for", 5)
        assert elapsed() < 5
    assert "job 'wide' needs 5 slots but Spark offers 4" in client.waiting_for()
    assert client.status() is JobStatus.WAITING_FOR_SLOTS
    with timed() as elapsed:
        client.cancel()
        assert elapsed() < 5
    assert client.status() is JobStatus.CANCELED


@pytest.mark.spec("S3-8")
def test_slots_that_another_job_holds_are_told_within_five_seconds_and_taken_when_it_ends(
    make_env, start, submit
):
    holder_env = make_env(parallelism=3)
    unbounded(holder_env).sink_to(nothing)
    holder = start(holder_env)
    env = make_env(parallelism=2)
    env.from_sequence(1, 10).rebalance().sink_to(nothing)
    with timed() as elapsed:
        client = submit(env, "second")
        wait_until(client.waiting_for, "it says what it waits for", 5)
        assert elapsed() < 5
    assert (
        "job 'second' needs 2 slots but Spark offers 1 (other jobs hold 3 of its 4)" in client.waiting_for()
    )
    assert client.status() is JobStatus.WAITING_FOR_SLOTS
    impatient = make_env(parallelism=2, slots_wait_timeout="2s")
    impatient.from_sequence(1, 10).sink_to(nothing)
    with timed() as elapsed, pytest.raises(SlotsUnavailableError, match="needs 2 slots but Spark offers 1"):
        submit(impatient).result()
    assert 2 <= elapsed() < 5, "the configured time, though Spark has slots enough"
    holder.cancel()
    assert client.result(timeout_s=30).vertices[-1].total("records_in") == 10


@pytest.mark.spec("S3-8")
def test_of_two_jobs_that_start_together_the_one_without_slots_says_so_within_five_seconds(make_env, submit):
    clients = []
    with timed() as elapsed:
        for name in ("one", "two"):
            env = make_env(parallelism=3)
            unbounded(env).sink_to(nothing)
            clients.append(submit(env, name))
        waiting = wait_until(lambda: [c for c in clients if c.waiting_for()], "one waits", 7)
        assert elapsed() < 6, "five seconds, and what the first submission took"
    words = waiting[0].waiting_for()
    assert "needs 3 slots but Spark offers 1 (other jobs" in words
    assert "hold 3 of its 4)" in words
    for client in clients:
        client.cancel()


def test_a_job_follows_another_at_once_without_a_word_about_slots(make_env, caplog):
    """What the first job held is free when its result is there. (What jobs of other tests held may not be yet.)"""
    for name in ("first", "next"):
        env = make_env(parallelism=4)
        env.from_sequence(1, 10).sink_to(nothing)
        env.execute(name)
    assert "job 'next' needs 4 slots but Spark offers" not in caplog.text


def test_a_job_that_is_cancelled_before_spark_has_taken_it_leaves_nothing_in_its_queue(
    make_env, spark, start, submit, monkeypatch
):
    """All slots are taken and not counted: Spark queues the second job; its cancellation must reach it there."""
    monkeypatch.setattr(SparkGang, "count_slots", lambda gang: None)
    holder_env = make_env(parallelism=4)
    unbounded(holder_env).sink_to(nothing)
    holder = start(holder_env)
    for delay_s in (0.0, 0.3):
        env = make_env(parallelism=4, cancel_grace="200ms")
        env.from_sequence(1, 10).sink_to(nothing)
        client = submit(env, "queued")
        time.sleep(delay_s)
        client.cancel()
        assert client.status() is JobStatus.CANCELED
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: len(tracker.getActiveJobsIds()) == 1, "only the first job is left in Spark", 10)
    holder.cancel()
    wait_until(lambda: not tracker.getActiveJobsIds(), "and then none", 10)


# ---- who shares what ----


@pytest.mark.spec("S3-7")
def test_one_executor_runs_tasks_of_one_operator_of_several_operators_and_of_several_jobs(make_env, start):
    clients = []
    for name in ("one", "two"):
        env = make_env(parallelism=2)
        unbounded(env).map(to_pair_of_row, name="B").rebalance().sink_to(nothing, name="C")
        clients.append(start(env, name))
    slots = [slot for client in clients for slot in client.slots()]
    assert len({s.executor for s in slots}) == 1, "job parallelism: one executor, two jobs"
    assert len({psutil.Process(s.pid).ppid() for s in slots}) == 1
    for client in clients:
        executor_of = {name: s.executor for s in client.slots() for name in s.subtasks}
        assert executor_of["C (0/2)"] == executor_of["C (1/2)"], "data parallelism: one operator twice"
        for slot in client.slots():
            assert len(slot.subtasks) == 3, "task parallelism: three chains in one process"
    assert len({s.pid for s in slots}) == 4, "each slot is a process of its own"
    for client in clients:
        assert client.status() is JobStatus.RUNNING
        client.cancel()


def die(record: Any) -> None:
    os._exit(3)


def crash(record: Any) -> None:
    ctypes.string_at(0)


@pytest.mark.spec("S3-9")
@pytest.mark.parametrize("fault", [die, crash])
def test_a_fault_that_kills_a_slot_does_not_touch_another_job_on_the_same_executor(
    make_env, fault, start, submit
):
    env = make_env(parallelism=2)
    unbounded(env, rate=1000).sink_to(nothing)
    healthy = start(env, "healthy")
    before = pids(healthy)
    env = make_env(parallelism=2)
    unbounded(env).sink_to(fault, name="bad")
    victim = submit(env, "victim")
    with pytest.raises(
        JobFailedError, match=r"the process of slot \d \(pid \d+ on host .*\) ended without a word"
    ):
        victim.result(timeout_s=60)
    seen = healthy.metrics().vertices[-1].total("records_in")
    wait_until(
        lambda: healthy.metrics().vertices[-1].total("records_in") > seen + 500, "the other job goes on"
    )
    assert healthy.status() is JobStatus.RUNNING
    assert pids(healthy) == before
    healthy.cancel()


# ---- losses ----


def test_a_stopped_process_is_noticed_by_its_silence_and_named(make_env, start):
    env = make_env(parallelism=2, heartbeat_timeout="2s", heartbeat_interval="200ms")
    unbounded(env).sink_to(nothing, name="out")
    client = start(env)
    victim = client.slots()[1]
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        with timed() as elapsed:
            wait_until(lambda: client.status() is not JobStatus.RUNNING, "the silence is noticed", 10)
            assert 1.5 < elapsed() < 4
        with pytest.raises(JobFailedError) as caught:
            client.result(timeout_s=20)
    finally:
        with_suppressed_kill(victim.pid, signal.SIGCONT)
    assert f"slot 1 (pid {victim.pid} on host 127.0.0.1) has been silent for 2" in str(caught.value)
    assert "'out'" in str(caught.value)
    assert "stopped or cut off" in str(caught.value)
    wait_until(lambda: is_gone(victim.pid), "Spark has ended the stopped process", 10)


def with_suppressed_kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def test_a_killed_process_is_noticed_at_once_and_named(make_env, start):
    env = make_env(parallelism=3)
    unbounded(env).sink_to(nothing, name="out")
    client = start(env)
    victim = client.slots()[2]
    with timed() as elapsed:
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: client.status() is not JobStatus.RUNNING, "the loss is noticed", 10)
        assert elapsed() < 2
    with pytest.raises(
        JobFailedError, match=rf"the process of slot 2 \(pid {victim.pid} on host 127.0.0.1\) ended"
    ):
        client.result(timeout_s=20)


# ---- the end ----


class SlowOpen(MapFunction):
    """Opens long after the other slots have finished."""

    def open(self, context: Any) -> None:
        time.sleep(1.5)

    def map(self, value: int) -> int:
        return value


def test_a_slot_that_is_done_before_its_peer_has_opened_loses_nothing(make_env):
    env = make_env(parallelism=2)
    numbers = env.from_sequence(1, 2).global_().map(SlowOpen()).set_parallelism(1)
    assert sorted(numbers.execute_and_collect()) == [1, 2]


def test_bounded_jobs_leave_no_thread_no_port_no_connection_and_no_descriptor(make_env, submit):
    def run() -> list[int]:
        env = make_env(parallelism=2)
        env.from_sequence(1, 1000).rebalance().map(to_pair).key_by("key").sum("value").sink_to(nothing)
        client = submit(env)
        client.result()
        return pids(client)

    workers = run()
    run()
    gc.collect()
    ports, threads = listening(os.getpid()), threading.active_count()
    files = psutil.Process().num_fds()
    in_worker = {pid: worker_resources(pid) for pid in workers if not is_gone(pid)}
    for _ in range(4):
        run()
    gc.collect()
    wait_until(lambda: listening(os.getpid()) <= ports, "no port is left in the driver")
    wait_until(lambda: threading.active_count() <= threads, "no thread is left in the driver")
    wait_until(lambda: psutil.Process().num_fds() <= files + 2, "no descriptor is left in the driver")
    for pid, before in in_worker.items():
        assert not listening(pid), "a pooled worker of Spark's holds no port of ours"
        assert worker_resources(pid) <= before


def test_a_refused_dataframe_leaves_no_file(make_env, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SchemaError):
        make_env().from_sequence(1, 5).map(lambda n: object()).to_dataframe()
    with pytest.raises(JobFailedError):
        make_env().from_sequence(1, 5).map(lambda n: 1 // 0, returns=int).to_dataframe()
    assert list(tmp_path.iterdir()) == []


def worker_resources(pid: int) -> tuple[int, int]:
    process = psutil.Process(pid)
    return process.num_threads(), len(process.net_connections("tcp"))


def hold_the_interpreter(record: Any) -> None:
    """A C call that never gives the interpreter's lock back: no thread of the process can do anything."""
    ctypes.PyDLL(None).sleep(3600)


def sleep_in_python(record: Any) -> None:
    time.sleep(3600)


def swallow_everything(record: Any) -> None:
    while True:
        try:
            time.sleep(0.01)
        except BaseException:  # noqa: BLE001 -- the worst that user code can do
            continue


@pytest.mark.parametrize("stuck", [nothing, sleep_in_python, hold_the_interpreter, swallow_everything])
def test_cancel_ends_everything_within_five_seconds_whatever_user_code_does(make_env, stuck, tmp_path, start):
    env = make_env(parallelism=2)
    unbounded(env, rate=1000).map(touch(tmp_path)).sink_to(stuck)
    client = start(env)
    workers = pids(client)
    wait_until(lambda: any(tmp_path.iterdir()), "records reach the user's function")
    ports = listening(os.getpid())
    with timed() as elapsed:
        client.cancel()
        assert elapsed() < 5
        wait_until(
            lambda: all(is_gone(pid) or not listening(pid) for pid in workers), "the slots are gone", 5
        )
        if stuck is not nothing:
            wait_until(lambda: any(is_gone(pid) for pid in workers), "a stuck process is ended", 5)
        assert elapsed() < 5
    assert client.status() is JobStatus.CANCELED
    wait_until(lambda: len(listening(os.getpid())) < len(ports), "the control port is closed")


class touch:
    """Notes that a record came by."""

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "seen")

    def __call__(self, record: Any) -> int:
        with open(self._path, "a"):
            pass
        return int(record.n)


def test_a_job_that_spark_itself_stops_fails_with_a_reason(make_env, spark, start):
    env = make_env(parallelism=2)
    unbounded(env).sink_to(nothing)
    client = start(env)
    spark.sparkContext.cancelAllJobs()
    with pytest.raises(JobFailedError, match=r"Spark|ended"):
        client.result(timeout_s=30)


def test_an_address_or_a_port_that_cannot_be_had_is_refused_before_output_is_deleted(make_env, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "part-0-0.json").write_text("{}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env = make_env(control_port=taken.getsockname()[1])
        env.from_sequence(1, 10).sink_to(FileSink(out, overwrite=True))
        with pytest.raises(ConfigurationError, match=r"no port of network\.control_port"):
            env.execute("refused")
    assert (out / "part-0-0.json").exists()
