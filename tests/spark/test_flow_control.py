"""Chains, exchanges, credits and back pressure on Spark, observed from outside: sockets, metrics, memory, identity."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pytest

from tests.fault.kit import WaitingFor
from tests.spark.driver import nothing, unbounded
from tests.spark.kit import connected, listening, wait_until
from tidegate import Environment, JobStatus, MapFunction
from tidegate.core.states import ExecutionState
from tidegate.metrics.snapshot import SubtaskMetrics, VertexMetrics
from tidegate.taskmanager.output_channel import MAX_BACKLOG

MB = 1 << 20


@pytest.fixture
def start() -> Iterator[Callable[[Environment], Any]]:
    """Start a program and wait until its tasks run; what still runs at the end of the test is cancelled."""
    clients: list[Any] = []

    def start(env: Environment) -> Any:
        client = env.execute_async()
        clients.append(client)
        wait_until(
            lambda: (
                client.status().is_terminal
                or all(s.state is ExecutionState.RUNNING for s in client.execution_graph().subtasks())
            ),
            "it runs",
        )
        return client

    yield start
    for client in clients:
        if not client.status().is_terminal:
            client.cancel()


def vertex(client: Any, name: str) -> VertexMetrics:
    (found,) = [v for v in client.metrics().vertices if name in v.name]
    return found


def subtask(client: Any, name: str, index: int) -> SubtaskMetrics | None:
    return next((s for s in vertex(client, name).subtasks if s.subtask == index), None)


class Total(NamedTuple):
    subtask_pid: int
    rows: int
    total: int


def total_of(columns: pa.RecordBatch) -> pa.RecordBatch:
    numbers = columns.column(0)
    total = pa.compute.sum(numbers).as_py()
    return pa.RecordBatch.from_pylist([{"subtask_pid": os.getpid(), "rows": len(numbers), "total": total}])


def expected_total(n: int) -> int:
    return n * (n + 1) // 2


# ---- S3-14: the network ----


@pytest.mark.spec("S3-14")
def test_an_exchange_inside_one_slot_opens_no_socket_and_one_between_slots_opens_one(make_env, start):
    def data_connections(parallelism: int) -> int:
        env = make_env(parallelism=parallelism)
        unbounded(env, rate=1000).map(lambda row: row.n, returns=int).disable_chaining().sink_to(
            nothing, name="out"
        )
        client = start(env)
        wait_until(
            lambda: vertex(client, "out").total("records_in") > 200, "records flow through the exchanges"
        )
        ports = {slot.port for slot in client.slots()}
        found = {
            link
            for slot in client.slots()
            for link in connected(slot.pid)
            if link[0] in ports or link[1] in ports
        }
        for slot in client.slots():
            assert slot.port in listening(slot.pid)
        assert vertex(client, "out").total("bytes_in") > 0
        client.cancel()
        return len({frozenset(link) for link in found})

    assert data_connections(1) == 0
    assert data_connections(2) == 1


@pytest.mark.spec("S3-14")
@pytest.mark.parametrize(("size", "most_rows"), [("32KB", 8192), ("256KB", 65536)])
def test_batches_between_tasks_have_the_configured_buffer_size(make_env, size, most_rows):
    env = make_env(parallelism=1, buffer_size=size)
    totals = env.from_sequence(1, 400_000).rebalance().map_batches(total_of, returns=Total)
    rows = [t.rows for t in totals.execute_and_collect()]
    assert sum(rows) == 400_000
    assert max(rows) <= most_rows
    assert max(rows) >= most_rows // 4


@pytest.mark.spec("S3-14")
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_all_to_all_has_as_many_channels_as_the_square_of_the_parallelism(make_env, start, parallelism):
    """An idle channel holds its exclusive credit, so the credits of the producers count the channels."""
    env = make_env(
        parallelism=parallelism, buffers_per_channel=1, floating_buffers=0, metrics_interval="50ms"
    )
    numbers = unbounded(env, rate=0.5)
    numbers.map(lambda row: row.n, returns=int, name="all").disable_chaining().rebalance().sink_to(
        nothing, name="o"
    )
    client = start(env)
    wait_until(
        lambda: vertex(client, "all").total("credits") == parallelism**2, "every channel shows its credit"
    )
    client.cancel()


# ---- S3-15: credits ----


def to_own_receiver(n: int, receivers: int) -> int:
    return n % receivers


@pytest.mark.spec("S3-15")
def test_a_slow_receiver_stalls_only_its_sender_and_shows_its_backlog(make_env, start, tmp_path):
    """Sender i has records for receiver i only. Receiver 0 does not take them; sender 1 must not notice."""
    gate = WaitingFor(tmp_path / "gate")

    def slow_for_even(columns: pa.RecordBatch) -> pa.RecordBatch:
        if columns.column(0)[0].as_py() % 2 == 0:
            gate.wait()
        return total_of(columns)

    n = 2_000_000
    env = make_env(parallelism=2, buffer_size="32KB", metrics_interval="100ms")
    halves = [
        env.from_sequence(0, n - 1, name=f"sender{i}")
        .set_parallelism(1)
        .slot_sharing_group(f"s{i}")
        .filter(is_of(i), name=f"half{i}")
        .set_parallelism(1)
        for i in range(2)
    ]
    spread = halves[0].union(halves[1]).partition_custom(to_own_receiver, lambda v: v)
    received = spread.map_batches(slow_for_even, returns=Total, name="receiver").slot_sharing_group(
        "receivers"
    )
    received.sink_to(Sums(tmp_path), name="sums").slot_sharing_group("receivers")
    client = start(env)

    def fast() -> SubtaskMetrics | None:
        return subtask(client, "receiver", 1)

    wait_until(
        lambda: (seen := fast()) is not None and seen.records_in == n // 2,
        "the fast receiver has everything",
        60,
    )
    sender = wait_until(lambda: subtask(client, "sender0", 0), "the slow one's sender reports")
    assert sender.records_out < n // 2, "its sender is held back"
    wait_until(lambda: subtask(client, "sender0", 0).backlog > 0, "the backlog shows at the sender")
    wait_until(
        lambda: subtask(client, "sender0", 0).credits == 2,
        "only the channel that it does not use has credits",
    )
    samples = []
    for _ in range(10):
        samples += [s.credits for v in client.metrics().vertices for s in v.subtasks]
        time.sleep(0.05)
    assert min(samples) >= 0
    gate.open()
    client.result(timeout_s=60)
    assert Sums(tmp_path).read() == (n, n * (n - 1) // 2)


def is_of(remainder: int) -> Callable[[int], bool]:
    return lambda n: n % 2 == remainder


class Sums:
    """A sink function that adds up totals in a file per process."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def __call__(self, total: Any) -> None:
        with open(f"{self._directory}/{os.getpid()}.sums", "a") as file:
            file.write(f"{total.rows} {total.total}\n")

    def read(self) -> tuple[int, int]:
        lines = [
            line.split() for p in Path(self._directory).glob("*.sums") for line in p.read_text().splitlines()
        ]
        return sum(int(a) for a, _ in lines), sum(int(b) for _, b in lines)


# ---- S3-16: chains ----


class Thing:
    """An object without a schema, which remembers where it was made."""

    def __init__(self, n: int) -> None:
        self.n = n


def make_thing(n: int) -> Any:
    thing = Thing(n)
    alive: dict[int, Any] = sys.__dict__.setdefault("_things_alive", {})
    alive[id(thing)] = thing
    return thing


def pass_on(thing: Any) -> Any:
    return thing


def is_the_same_object(thing: Any) -> bool:
    alive: dict[int, Any] = sys.__dict__.get("_things_alive", {})
    return alive.get(id(thing)) is thing


@pytest.mark.spec("S3-16")
def test_the_same_python_object_reaches_the_next_function_of_a_chain(make_env):
    def found(prepare: Callable[[Any], Any]) -> set[bool]:
        env = make_env(parallelism=2)
        things = env.from_sequence(1, 1000).map(make_thing).map(pass_on).filter(is_the_same_object_or_not)
        return set(prepare(things).map(is_the_same_object, returns=bool).execute_and_collect())

    assert found(lambda stream: stream) == {True}
    assert False in found(lambda stream: stream.rebalance()), "what crosses to another slot is another object"


def is_the_same_object_or_not(thing: Any) -> bool:
    return True


class CountEncodings(MapFunction):
    """Counts how often its slot encodes a batch for the wire, from before the first record to behind the last."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def open(self, context: Any) -> None:
        from tidegate.taskmanager import slot

        self._calls = 0
        self._original = original = slot.encode_frame

        def counting(batch: Any) -> Any:
            self._calls += 1
            return original(batch)

        slot.encode_frame = counting

    def map(self, value: int) -> int:
        return value

    def close(self) -> None:
        from tidegate.taskmanager import slot

        slot.encode_frame = self._original
        Path(f"{self._directory}/{os.getpid()}.calls").write_text(str(self._calls))


@pytest.mark.spec("S3-16")
def test_inside_a_chain_nothing_is_serialised(make_env, tmp_path):
    def calls(exchange: bool) -> int:
        directory = tmp_path / str(exchange)
        directory.mkdir()
        env = make_env(parallelism=2)
        numbers = env.from_sequence(1, 100_000).map(plus_one).filter(is_odd)
        numbers = numbers.rebalance() if exchange else numbers
        numbers.map(CountEncodings(directory), returns=int).map(plus_one).sink_to(nothing)
        env.execute()
        files = list(directory.glob("*.calls"))
        assert len(files) == 2
        return sum(int(p.read_text()) for p in files)

    assert calls(exchange=False) == 0
    assert calls(exchange=True) > 0, "the count does count"


def plus_one(n: int) -> int:
    return n + 1


def is_odd(n: int) -> bool:
    return n % 2 == 1


@pytest.mark.spec("S3-16")
def test_the_plan_shows_the_chains_and_the_settings_that_break_them(make_env):
    def chains(change: Callable[[Any], Any]) -> list[str]:
        env = make_env(parallelism=2)
        numbers = env.from_sequence(1, 10, name="read").map(plus_one, name="first")
        change(numbers.map(plus_one, name="second")).map(plus_one, name="third").sink_to(nothing, name="out")
        plan = env.explain()
        client = env.execute_async()
        client.result()
        names = [v.name for v in client.execution_graph().vertices]
        assert all(name in plan for chain in names for name in chain.split(" -> "))
        return names

    assert chains(lambda stream: stream) == ["read -> first -> second -> third -> out"]
    assert chains(lambda stream: stream.start_new_chain()) == ["read -> first", "second -> third -> out"]
    assert chains(lambda stream: stream.disable_chaining()) == ["read -> first", "second", "third -> out"]
    env = make_env(parallelism=2)
    env.from_sequence(1, 10, name="read").map(plus_one, name="costly").disable_chaining().sink_to(nothing)
    assert "chaining is disabled for 'costly'" in env.explain()


# ---- S2-11: back pressure ----


@pytest.mark.spec("S2-11")
def test_a_stalled_sink_stalls_its_sources_in_bounded_memory_and_nothing_is_lost(make_env, start, tmp_path):
    gate = WaitingFor(tmp_path / "gate")

    def held_up(columns: pa.RecordBatch) -> pa.RecordBatch:
        gate.wait()
        return total_of(columns)

    n = 60_000_000  # 480 MB of numbers: far more than may pile up
    env = make_env(parallelism=2, metrics_interval="100ms")
    numbers = env.from_sequence(1, n, name="numbers").slot_sharing_group("sources")
    held = numbers.rebalance().map_batches(held_up, returns=Total, name="held").slot_sharing_group("sinks")
    held.sink_to(Sums(tmp_path), name="sums").slot_sharing_group("sinks")
    client = start(env)

    def stalled() -> bool:
        states = vertex(client, "numbers").subtasks
        return len(states) == 2 and all(s.backpressured_ms > 300 for s in states)

    wait_until(stalled, "the sources are back-pressured")
    processes = [psutil.Process(slot.pid) for slot in client.slots()]
    memory = [p.memory_info().rss for p in processes]
    cpu = [sum(p.cpu_times()[:2]) for p in processes]
    given = vertex(client, "numbers").total("records_out")
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun > 3, "three seconds pass", 10)
    assert vertex(client, "numbers").total("records_out") == given, "the sources stand still"
    assert given * 8 < 32 * MB, "what the sources gave fits in the channels"
    for process, before in zip(processes, memory, strict=True):
        assert process.memory_info().rss - before < 20 * MB
    for i, slot in enumerate(client.slots()):
        if any("numbers" in name for name in slot.subtasks):
            used = sum(processes[i].cpu_times()[:2]) - cpu[i]
            assert used < 1.0, f"a source without credit sleeps, but used {used:.1f} s of CPU in 3 s"
    sizes = env.options
    for sampled in vertex(client, "numbers").subtasks:
        # A batch is cut into buffers when it is sent; the source stops behind the one that finds no credit.
        buffers_of_a_batch = 2 + sizes.batch_rows * 8 // sizes.buffer_size
        assert 0 < sampled.backlog <= 2 * (MAX_BACKLOG + buffers_of_a_batch)
    for sampled in vertex(client, "held").subtasks:
        assert sampled.backlog <= 2 * sizes.buffers_per_channel + sizes.floating_buffers
    gate.open()
    client.result(timeout_s=90)
    assert Sums(tmp_path).read() == (n, expected_total(n))


def test_a_program_that_takes_its_results_slowly_holds_the_job_back(make_env):
    env = make_env(parallelism=1, batch_rows=100, buffer_size=1)
    results = env.from_sequence(1, 100_000).execute_and_collect()
    assert [next(results) for _ in range(100)] == list(range(1, 101))
    time.sleep(0.5)
    assert sum(1 for _ in results) == 100_000 - 100


# ---- metrics ----


def test_metrics_count_records_and_bytes_and_the_times_add_up(make_env, start):
    env = make_env(parallelism=2, metrics_interval="50ms")
    unbounded(env, rate=2000).map(lambda row: row.n, returns=int, name="map").sink_to(nothing, name="out")
    client = start(env)
    wait_until(lambda: vertex(client, "map").total("records_in") > 2000, "records flow")
    first = {(v.vertex, s.subtask): s for v in client.metrics().vertices for s in v.subtasks}
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun > 1.5, "time passes")
    second = {(v.vertex, s.subtask): s for v in client.metrics().vertices for s in v.subtasks}
    assert len(second) == 4
    for key, now in second.items():
        passed = now.running_ms - first[key].running_ms
        assert passed == pytest.approx(1500, abs=400), (
            "busy, idle and back-pressured time are all of the time"
        )
        assert now.busy_ms + now.idle_ms + now.backpressured_ms == now.running_ms
        assert now.idle_ms > first[key].idle_ms, "a slow stream leaves its tasks idle"
    client.cancel()
    source = client.metrics().vertices[0]
    assert source.total("records_out") > 2000
    assert source.total("bytes_out") > 8 * 2000


def test_the_final_metrics_balance_over_every_exchange(make_env):
    env = make_env(parallelism=2)
    numbers = env.from_sequence(1, 10_000, name="read").rebalance().map(plus_one, name="add").rebalance()
    numbers.filter(is_odd, name="odd").sink_to(nothing, name="out")
    metrics = env.execute_async().result()
    assert metrics.status == JobStatus.FINISHED.name
    read, add, odd = metrics.vertices
    assert read.total("records_out") == add.total("records_in") == add.total("records_out") == 10_000
    assert odd.total("records_in") == 10_000
    assert [(o.name, o.records_in, o.records_out) for o in odd.operators()] == [
        ("odd", 10_000, 5_000),
        ("out", 5_000, 0),
    ]
    assert read.total("bytes_out") > 0
    assert metrics.progress == 1.0
