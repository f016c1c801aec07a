"""A whole job over real sockets, with threads for slots: the driver performs what the master decides, and tidies up."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import psutil
import pytest

from tests.unit.job_master_kit import SlotClient, address
from tidegate import Environment
from tidegate.core.errors import JobCanceledError, JobFailedError
from tidegate.core.options import Options
from tidegate.core.states import ExecutionState as E
from tidegate.core.states import JobStatus as J
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.execution_graph import ExecutionGraph
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.slots import SlotState
from tidegate.metrics.snapshot import SubtaskMetrics
from tidegate.protocol import messages as m
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.runtime.job_client import LocalJobClient, run_job
from tidegate.runtime.job_runner import JobRunner

WAIT_S = 20


class FakeSlot(SlotClient):
    """A slot without operators: each test says what it does once it is deployed."""

    def __init__(self, connection: socket.socket, bootstrap: SlotBootstrap, slot: int) -> None:
        super().__init__(connection, bootstrap.secret, slot, job=bootstrap.job_id, attempt=bootstrap.attempt)
        self.slot = slot
        self.send(m.RegisterSlot(address(slot), f"executor {slot}"))
        self.deploy = self.wait_for(m.Deploy)
        self.graph = JobGraph.decode(self.deploy.job_graph)
        self.states(E.INITIALIZING, E.RUNNING)

    def wait_for(self, kind: type) -> m.MasterMessage:
        while not isinstance(message := self.next_message(), kind):
            if isinstance(message, m.Cancel):
                raise Cancelled
        return message

    def states(self, *states: E) -> None:
        for d in self.deploy.subtasks:
            self.send(*(m.TaskStateChanged(d.vertex, d.subtask, state) for state in states))

    def goodbye(self, state: E) -> None:
        """The last words; the JobManager answers them by closing the connection."""
        self.states(state)
        self.send(m.SlotFinished())
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self.next_message()


class Cancelled(Exception):
    """The JobManager wants the slot to stop."""


class FakeGang:
    """A GangHost whose slots are threads; `work` is what each does when it is deployed."""

    def __init__(
        self, work: Callable[[FakeSlot], None] = lambda slot: None, counts: tuple[object, ...] = ()
    ) -> None:
        self._work = work
        self._counts = list(counts)
        self.bootstrap: SlotBootstrap | None = None
        self.threads: list[threading.Thread] = []
        self.calls: list[str] = []
        self.waiter: threading.Thread | None = None

    def control_host(self) -> tuple[str, str]:
        return "127.0.0.1", "127.0.0.1"

    def count_slots(self) -> int | None:
        count = self._counts.pop(0) if self._counts else None
        if isinstance(count, Exception):
            raise count
        return count  # type: ignore[return-value]

    def count_busy_slots(self) -> tuple[int, int]:
        return 0, 0

    def start(self, slots: int, bootstrap: SlotBootstrap, on_end: Callable[[ev.GangEnded], None]) -> None:
        self.bootstrap = bootstrap
        self.threads = [threading.Thread(target=self._run, args=(bootstrap, i)) for i in range(slots)]
        for thread in self.threads:
            thread.start()
        self.waiter = threading.Thread(target=self._wait, args=(on_end,))
        self.waiter.start()

    def _run(self, bootstrap: SlotBootstrap, index: int) -> None:
        port = bootstrap.control_host, bootstrap.control_port
        with (
            contextlib.suppress(Cancelled, EOFError, ConnectionError),
            socket.create_connection(port, timeout=WAIT_S) as connection,
        ):
            slot = FakeSlot(connection, bootstrap, index)
            try:
                self._work(slot)
                slot.goodbye(E.FINISHED)
            except Cancelled:
                slot.goodbye(E.CANCELED)

    def _wait(self, on_end: Callable[[ev.GangEnded], None]) -> None:
        for thread in self.threads:
            thread.join()
        on_end(ev.GangEnded(None))

    def cancel(self) -> None:
        self.calls.append("cancel")

    def close(self) -> None:
        self.calls.append("close")
        for thread in [*self.threads, *filter(None, [self.waiter])]:
            thread.join(WAIT_S)


def graph_of(parallelism: int = 2) -> JobGraph:
    env = Environment(parallelism=parallelism)
    env.from_sequence(1, 100).key_by("value").count().print()
    program = env._take_program("pv")
    return build_job_graph(build_stream_graph("pv", program.sinks, program.transformations, program.options))


def launch(gang: FakeGang, graph: JobGraph | None = None, **options: object) -> LocalJobClient:
    return run_job(JobRunner(graph or graph_of(), Options().with_keywords(**options), gang))


def until_cancelled(slot: FakeSlot) -> None:
    slot.wait_for(m.Cancel)
    raise Cancelled


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    threads, files = set(threading.enumerate()), psutil.Process().num_fds()
    yield
    gc.collect()
    assert set(threading.enumerate()) <= threads
    assert psutil.Process().num_fds() <= files


def test_a_bounded_job_reads_its_splits_and_finishes():
    splits: list[bytes] = []

    def work(slot: FakeSlot) -> None:
        source = slot.graph.vertices[0].operators[0].id
        while True:
            slot.send(m.RequestSplit(source, slot.slot))
            answer = slot.next_message()
            while isinstance(answer, m.MasterHeartbeat):
                answer = slot.next_message()
            if isinstance(answer, m.NoMoreSplits):
                break
            assert isinstance(answer, m.AssignSplits)
            splits.extend(answer.splits)
        metrics = SubtaskMetrics(subtask=slot.slot, records_out=50)
        slot.send(m.SlotHeartbeat(1, ((slot.graph.vertices[0].id, msgspec.msgpack.encode(metrics)),)))

    gang = FakeGang(work, counts=(2,))
    client = launch(gang)
    result = client.result(WAIT_S)

    assert sorted(msgspec.json.decode(s)["position"] for s in splits) == [0, 50]
    assert client.status() is J.FINISHED
    assert result.status == "FINISHED"
    assert result.progress == 1.0
    assert result.vertices[0].total("records_out") == 100
    assert [s.state for s in client.slots()] == [SlotState.FINISHED] * 2
    assert {s.state for s in client.execution_graph().subtasks()} == {E.FINISHED}
    assert client.status_history() == (J.CREATED, J.WAITING_FOR_SLOTS, J.RUNNING, J.FINISHED)
    assert gang.calls == ["close"]
    client.cancel()
    assert client.status() is J.FINISHED


def test_a_failed_job_raises_its_message_from_every_call_of_result():
    def work(slot: FakeSlot) -> None:
        if slot.slot == 1:
            slot.send(
                m.TaskFailed(slot.deploy.subtasks[0].vertex, 1, "parse", "ValueError: bad", "", "value 7")
            )
        until_cancelled(slot)

    client = launch(FakeGang(work))
    for _ in range(2):
        with pytest.raises(JobFailedError) as raised:
            client.result(WAIT_S)
        assert str(raised.value) == (
            "job 'pv' failed: operator 'parse' (subtask 1 of 2) raised ValueError: bad\n  at value 7"
        )
    assert client.status() is J.FAILED
    assert client.metrics().status == "FAILED"


def test_a_process_that_dies_fails_the_job_by_name():
    def work(slot: FakeSlot) -> None:
        if slot.slot == 1:
            slot.socket.close()
            raise ConnectionError
        until_cancelled(slot)

    with pytest.raises(
        JobFailedError, match=r"the process of slot 1 \(pid 101 on host host1\) ended without a word"
    ):
        launch(FakeGang(work)).result(WAIT_S)


def test_cancel_returns_when_everything_is_gone():
    client = launch(gang := FakeGang(until_cancelled))
    client.cancel()
    assert client.status() is J.CANCELED
    assert gang.calls[-1] == "close"
    client.cancel()
    with pytest.raises(JobCanceledError, match="job 'pv' was cancelled: cancelled by its client"):
        client.result(WAIT_S)


def test_waiting_with_a_timeout_leaves_the_job_alone():
    client = launch(FakeGang(until_cancelled))
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.01 s"):
        client.result(0.01)
    client.cancel()


def test_missing_slots_are_logged_with_both_numbers_until_they_come(caplog):
    with caplog.at_level(logging.WARNING, "tidegate"):
        launch(FakeGang(counts=(1, 1, 2))).result(WAIT_S)
    said = [r.getMessage() for r in caplog.records if "slots" in r.getMessage()]
    assert said == [
        "job 'pv' needs 2 slots but Spark offers 1; waiting up to 5 min. Add executors, or lower the parallelism"
    ]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("count_slots", "Spark cannot be asked for its slots: RuntimeError: no Spark"),
        ("start", "Spark ended the job's tasks: RuntimeError: no Spark"),
    ],
)
def test_a_host_that_raises_fails_the_job(monkeypatch, method, words):
    def fail(*_: object) -> None:
        raise RuntimeError("no Spark")

    gang = FakeGang()
    monkeypatch.setattr(gang, method, fail)
    with pytest.raises(JobFailedError, match=words):
        launch(gang).result(WAIT_S)


def test_strangers_at_the_port_do_not_disturb_the_job(caplog):
    started, go_on = threading.Barrier(3), threading.Event()

    def work(slot: FakeSlot) -> None:
        started.wait(WAIT_S)
        assert go_on.wait(WAIT_S)

    gang = FakeGang(work)
    with caplog.at_level(logging.WARNING, "tidegate"):
        client = launch(gang)
        started.wait(WAIT_S)
        for data in (b"GET / HTTP/1.0\r\n\r\n", b"\0" * 1000):
            with socket.create_connection(
                ("127.0.0.1", gang.bootstrap.control_port), timeout=WAIT_S
            ) as stranger:
                stranger.sendall(data)
                while stranger.recv(4096):
                    pass
        assert client.status() is J.RUNNING
        go_on.set()
        client.result(WAIT_S)
    assert sum("refused a connection from 127.0.0.1" in r.getMessage() for r in caplog.records) == 2
    assert gang.bootstrap.secret.hex() not in caplog.text


def test_a_bug_in_the_job_manager_ends_the_job_and_its_processes(monkeypatch):
    gang = FakeGang(until_cancelled)
    runner = JobRunner(graph_of(), Options(), gang)
    monkeypatch.setattr(ExecutionGraph, "report", lambda *_: 1 // 0)
    client = run_job(runner)
    with pytest.raises(JobFailedError, match="internal error: ZeroDivisionError"):
        client.result(WAIT_S)
    assert gang.calls == ["cancel", "close"]


def test_a_bug_at_the_very_first_event_ends_the_job_too(monkeypatch):
    runner = JobRunner(graph_of(), Options(), FakeGang())
    monkeypatch.setattr(JobMaster, "_submit", lambda *_: 1 // 0)
    client = run_job(runner)
    with pytest.raises(JobFailedError, match="internal error: ZeroDivisionError"):
        client.result(WAIT_S)
    assert client.status() is J.FAILED


# ---- collected records ----


def sender(batches: int, then: Callable[[FakeSlot], None] = lambda slot: None) -> Callable[[FakeSlot], None]:
    """Sends so many batches, each only when the program has taken the one before."""

    def work(slot: FakeSlot) -> None:
        sink = slot.graph.vertices[-1].operators[-1].id
        for i in range(1, batches + 1):
            slot.send(m.CollectedBatch(sink, slot.slot, i, b"%d/%d" % (slot.slot, i)))
            taken = slot.wait_for(m.CollectedTaken)
            assert taken == m.CollectedTaken(sink, slot.slot, i)
        then(slot)

    return work


def test_collected_batches_come_as_they_are_sent_and_end_with_the_job():
    graph = graph_of(1)
    client = launch(FakeGang(sender(20)), graph)
    assert list(client.collected(graph.vertices[-1].operators[-1].id)) == [b"0/%d" % i for i in range(1, 21)]
    client.result(WAIT_S)


def test_batches_of_all_subtasks_are_told_apart():
    graph = graph_of(2)
    client = launch(FakeGang(sender(3)), graph)
    batches = list(client.collected_batches(graph.vertices[-1].operators[-1].id))
    assert sorted((b.subtask, b.sequence) for b in batches) == [(s, i) for s in (0, 1) for i in (1, 2, 3)]


def test_a_failing_job_ends_the_collected_batches_with_its_error():
    def fail(slot: FakeSlot) -> None:
        slot.send(m.TaskFailed(slot.deploy.subtasks[0].vertex, 0, "parse", "ValueError: bad", ""))
        until_cancelled(slot)

    graph = graph_of(1)
    results = launch(FakeGang(sender(2, fail)), graph).collected(graph.vertices[-1].operators[-1].id)
    assert [next(results), next(results)] == [b"0/1", b"0/2"]
    with pytest.raises(JobFailedError, match="ValueError: bad"):
        next(results)
    assert list(results) == []


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_leaving_collected_batches_early_cancels_the_job(how):
    graph = graph_of(1)
    client = launch(FakeGang(sender(1_000_000)), graph)
    results = client.collected(graph.vertices[-1].operators[-1].id)
    assert next(results) == b"0/1"
    if how == "close":
        results.close()
    elif how == "with":
        with results:
            pass
    else:
        del results
        gc.collect()
    with pytest.raises(JobCanceledError, match="the program stopped taking its results"):
        client.result(WAIT_S)


def test_closing_collected_batches_after_their_end_changes_nothing():
    graph = graph_of(1)
    client = launch(FakeGang(sender(1)), graph)
    results = client.collected(graph.vertices[-1].operators[-1].id)
    assert list(results) == [b"0/1"]
    results.close()
    client.result(WAIT_S)
