"""Whole slots as threads of this process, over real sockets: what the mailbox loop and the control thread do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from tidegate import Environment, MapFunction, RuntimeContext
from tidegate.api.streams import DataStream
from tidegate.core.clock import SystemClock
from tidegate.core.errors import JobFailedError
from tidegate.core.ids import SlotId
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.jobmanager import events as ev
from tidegate.metrics.snapshot import JobMetrics
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.protocol.tls import new_identity
from tidegate.runtime.job_client import LocalJobClient, run_job
from tidegate.runtime.job_runner import JobRunner
from tidegate.taskmanager.control_connection import ControlLost
from tidegate.taskmanager.mailbox import run_slot
from tidegate.taskmanager.network.data_plane import DataPlane
from tidegate.taskmanager.slot import Slot

WAIT_S = 20


class ThreadGang:
    """A GangHost whose slots are real ones, on threads."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def control_host(self) -> tuple[str, str]:
        return "127.0.0.1", "127.0.0.1"

    def count_slots(self) -> int | None:
        return None

    def count_busy_slots(self) -> tuple[int, int]:
        return 0, 0

    def start(self, slots: int, bootstrap: SlotBootstrap, on_end: Callable[[ev.GangEnded], None]) -> None:
        self._threads = [
            threading.Thread(target=self._run, args=(bootstrap, SlotId(i)), daemon=True) for i in range(slots)
        ]
        for thread in self._threads:
            thread.start()
        waiter = threading.Thread(target=self._wait, args=(tuple(self._threads), on_end), daemon=True)
        waiter.start()
        self._threads.append(waiter)

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)

    def _run(self, bootstrap: SlotBootstrap, slot: SlotId) -> None:
        with contextlib.suppress(Exception):  # the JobManager has heard of it
            run_slot(bootstrap, slot, "this process")

    def _wait(self, slots: tuple[threading.Thread, ...], on_end: Callable[[ev.GangEnded], None]) -> None:
        for slot in slots:
            slot.join()
        on_end(ev.GangEnded(None))


@pytest.fixture(autouse=True)
def arrow_threads() -> Iterator[None]:
    before = pa.cpu_count()
    yield
    pa.set_cpu_count(before)


def start(env: Environment, stream: DataStream) -> LocalJobClient:
    """Run a stream into a sink that drops it."""
    stream.sink_to(lambda record: None)
    program = env._take_program("job")
    graph = build_job_graph(
        build_stream_graph(program.name, program.sinks, program.transformations, env.options)
    )
    return run_job(JobRunner(graph, env.options, ThreadGang()))


def records_in(metrics: JobMetrics) -> int:
    return metrics.vertices[-1].total("records_in")


class SlowStart(MapFunction):
    """Subtask 1 opens late, so that the first split is subtask 0's, which takes its time over the first record."""

    def open(self, context: RuntimeContext) -> None:
        self._delay_s = 3.0 if context.subtask_index == 0 else 0.0
        time.sleep(context.subtask_index)

    def map(self, value: int) -> int:
        time.sleep(self._delay_s)
        self._delay_s = 0.0
        return value


def test_a_first_record_may_take_longer_than_a_peer_waits_for_a_handshake():
    env = Environment(parallelism=2, handshake_timeout="300 ms")
    numbers = env.from_sequence(1, 100).map(SlowStart()).rebalance().map(lambda n: n, returns=int)
    assert records_in(start(env, numbers).result(WAIT_S)) == 100


def test_a_job_runs_over_encrypted_connections_and_ports_that_were_told():
    env = Environment(parallelism=2, tls="on", control_port="20000-25000", data_ports="25001-32000")
    numbers = env.from_sequence(1, 200_000).rebalance().map(lambda n: n, returns=int)
    assert records_in(start(env, numbers).result(WAIT_S)) == 200_000


def test_slots_that_find_no_data_port_say_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = Environment(parallelism=2, data_ports=port, handshake_timeout="100 ms")
        with pytest.raises(
            JobFailedError, match=rf"slot \d cannot come up: no port of network\.data_ports \({port}\)"
        ):
            start(env, env.from_sequence(1, 100)).result(WAIT_S)


def test_a_control_port_that_cannot_be_reached_is_named_with_both_hosts_and_what_to_set():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    bootstrap = SlotBootstrap("job", "name", 0, b"s" * 32, "127.0.0.1", port, 1, {})
    with pytest.raises(ControlLost) as raised:
        run_slot(bootstrap, SlotId(0), "executor")
    said = str(raised.value)
    assert f"control port 127.0.0.1:{port} cannot be reached from host {socket.gethostname()}: " in said
    assert "Connection refused" in said
    assert "network.bind_host" in said
    assert "network.control_port" in said


@pytest.mark.parametrize("tls", [None, new_identity("job")], ids=["plain", "tls"])
def test_a_control_port_that_says_nothing_is_named(tls):
    """The driver is stopped, or it is another program's port."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        options = {"network.handshake_timeout": 200}
        bootstrap = SlotBootstrap("job", "name", 0, b"s" * 32, "127.0.0.1", port, 1, options, tls)
        with pytest.raises(
            ControlLost, match=rf"the control port 127\.0\.0\.1:{port} does not answer .*timed out"
        ):
            run_slot(bootstrap, SlotId(0), "executor")


class Counting(MapFunction):
    """Counts its records with numbers of a given kind."""

    def __init__(self, one: object) -> None:
        self._one = one

    def open(self, context: RuntimeContext) -> None:
        self._records = context.counter("records")

    def map(self, value: int) -> int:
        self._records.inc(self._one)
        return value


def test_a_counter_takes_the_whole_numbers_of_numpy():
    env = Environment()
    metrics = start(env, env.from_sequence(1, 10).map(Counting(np.int64(1)))).result(WAIT_S)
    assert metrics.vertices[0].subtasks[0].counters == {"records": 10}


def test_a_counter_refuses_fractions_where_they_are_counted():
    env = Environment()
    client = start(env, env.from_sequence(1, 10).map(Counting(0.5), name="halves"))
    with pytest.raises(JobFailedError, match=r"operator 'halves' .* raised TypeError: 'float' object"):
        client.result(WAIT_S)


def test_a_control_thread_that_fails_ends_its_slot_at_once(monkeypatch, caplog):
    monkeypatch.setattr(Slot, "metrics", lambda slot: 1 / 0)
    env = Environment(heartbeat_timeout="60 s", metrics_interval="10 ms")
    slow = env.from_sequence(1, 10).map(lambda n: time.sleep(0.05), returns=object)
    with pytest.raises(JobFailedError, match="ended without a word"):
        start(env, slow).result(WAIT_S)
    assert "the control thread failed" in caplog.text


@pytest.mark.parametrize("bind_host", ["", "127.0.0.1", "0.0.0.0"])
def test_a_slot_is_known_by_an_address_that_its_peers_can_call(bind_host):
    env = Environment(parallelism=2, bind_host=bind_host)
    client = start(env, env.from_sequence(1, 100).rebalance().map(lambda n: n, returns=int))
    assert records_in(client.result(WAIT_S)) == 100
    assert {slot.host for slot in client.slots()} == {"127.0.0.1"}


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_data_port_may_be_on_an_ipv6_address():
    plane = DataPlane("::1", b"s" * 32, "job", 0, SlotId(0), SystemClock(), 1_000)
    try:
        socket.create_connection(("::1", plane.port), timeout=WAIT_S).close()
    finally:
        plane.close()
