"""The in-process runtime: one thread, a clock that it moves itself, and the same life of a job as on Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.simulation.programs import double, make_simulation, negative, numbers
from tidegate import (
    Environment,
    FileSink,
    JobCanceledError,
    JobFailedError,
    JobStatus,
    ProcessContext,
    ProcessFunction,
    ValueState,
)
from tidegate.api.restart_strategies import RestartStrategies
from tidegate.api.sink import Sink, SinkWriter
from tidegate.connectors.datagen import DataGeneratorSource, sequence
from tidegate.core.states import ExecutionState
from tidegate.program.sequences import CollectionSource


def in_process(**options) -> Environment:
    return Environment(runtime="in-process", **{"parallelism": 2, **options})


class ClosedSink(Sink):
    """A sink that is never ready."""

    def create_writer(self, context) -> SinkWriter:
        return ClosedWriter()


class ClosedWriter(SinkWriter):
    def write(self, batch) -> None:
        raise AssertionError("written to though not ready")

    def is_ready(self) -> bool:
        return False


def test_the_states_of_a_job_are_those_of_the_real_one():
    simulation, rows = make_simulation(numbers(in_process()).rebalance().map(double), seed=3)
    assert simulation.run() is JobStatus.FINISHED
    assert sorted(rows) == [2 * n for n in range(1, 41)]
    assert [s.name for s in simulation.master.status_history] == [
        "CREATED",
        "WAITING_FOR_SLOTS",
        "RUNNING",
        "FINISHED",
    ]
    assert {e.state for e in simulation.master.graph} == {ExecutionState.FINISHED}


def test_too_few_slots_are_named_with_both_numbers_and_the_wait_ends_in_an_error():
    env = in_process(slots_wait_timeout="30s")
    simulation, _ = make_simulation(numbers(env).rebalance().map(double), seed=0, available_slots=1)
    begun = time.monotonic()
    assert simulation.run() is JobStatus.FAILED
    assert "needs 2 slots but Spark offers 1" in simulation.reports[0]
    assert "needs 2 slots but Spark offers 1 after 30 s" in simulation.message
    assert simulation.clock.now_ms() >= 30_000
    assert time.monotonic() - begun < 10, "the thirty seconds are the simulation's own"
    simulation.close()


def test_a_rate_limited_source_takes_simulated_time_not_ours():
    env = in_process()
    stream = env.from_source(DataGeneratorSource(fields={"n": sequence()}, count=100, rate=10))
    simulation, rows = make_simulation(stream, seed=1)
    begun = time.monotonic()
    simulation.run()
    simulation.close()
    assert sorted(row.n for row in rows) == list(range(100))
    assert 9_000 <= simulation.clock.now_ms() <= 12_000
    assert time.monotonic() - begun < 10


def test_cancelling_ends_every_subtask():
    env = in_process()
    stream = env.from_source(DataGeneratorSource(fields={"n": sequence()}, rate=100))
    simulation, rows = make_simulation(stream.rebalance(), seed=1)
    while len(rows) < 50:
        simulation.run_one_event()
    simulation.cancel()
    assert simulation.run() is JobStatus.CANCELED
    assert {e.state for e in simulation.master.graph} == {ExecutionState.CANCELED}
    simulation.close()


@pytest.mark.parametrize("seed", range(5))
def test_a_function_that_raises_fails_the_job_by_name_in_any_order(seed):
    def picky(n: int) -> int:
        if n == 17:
            raise ValueError("seventeen")
        return n

    env = in_process(seed=seed, batch_rows=4)
    with pytest.raises(JobFailedError, match=r"operator 'picky' .*raised ValueError: seventeen"):
        list(numbers(env).rebalance().map(picky, name="picky").execute_and_collect())


def test_leaving_the_results_early_cancels_the_job():
    env = in_process()
    stream = env.from_source(DataGeneratorSource(fields={"n": sequence()}, rate=1000))
    results = stream.execute_and_collect()
    assert next(results).n == 0
    results.close()
    assert list(results) == []


def test_the_final_metrics_count_every_record_and_every_time_adds_up():
    env = in_process(batch_rows=5)
    numbers(env).rebalance().map(double).rebalance().map(negative).sink_to(lambda n: None)
    metrics = env.execute()
    assert metrics.status == "FINISHED"
    source, first, last = metrics.vertices
    assert source.total("records_out") == first.total("records_in") == first.total("records_out") == 40
    assert last.total("records_in") == 40
    assert source.total("bytes_out") == first.total("bytes_in") > 0
    assert source.records_expected == 40
    assert metrics.progress == 1.0
    for vertex in metrics.vertices:
        assert [s.subtask for s in vertex.subtasks] == [0, 1]
        assert all(s.backlog == 0 for s in vertex.subtasks)


def test_a_cancelled_client_says_so():
    env = in_process()
    env.from_source(DataGeneratorSource(fields={"n": sequence()}, rate=10)).sink_to(lambda r: None)
    client = env.execute_async()
    client.cancel()
    with pytest.raises(JobCanceledError, match="cancelled by its client"):
        client.result()


def test_a_slot_whose_sink_is_not_ready_sleeps_instead_of_spinning():
    env = in_process(buffer_size=1, batch_rows=1)
    numbers(env).rebalance().sink_to(ClosedSink())
    simulation = env.execute_async().simulation
    while simulation.clock.now_ms() < 2_000:
        simulation.run_one_event()
    stalled_at = len(simulation.trace)
    while simulation.clock.now_ms() < 3_000:
        simulation.run_one_event()
    steps = [t for t in simulation.trace[stalled_at:] if t.startswith("step")]
    assert len(steps) <= 2 * 120, "about a look every 10 ms in each of the two slots"
    assert simulation.status is JobStatus.RUNNING
    simulation.cancel()
    simulation.run()
    simulation.close()


def test_a_source_without_credit_waits_for_one_and_for_nothing_else():
    env = in_process(parallelism=1, buffer_size=1, batch_rows=1, buffers_per_channel=1, floating_buffers=0)
    stream = (
        numbers(env, parallelism=1).rebalance().map(double).set_parallelism(1).slot_sharing_group("other")
    )
    stream.sink_to(ClosedSink()).slot_sharing_group("other")
    simulation = env.execute_async().simulation
    while simulation.clock.now_ms() < 1_000:
        simulation.run_one_event()
    source_slot = simulation.slots[0]
    (task,) = source_slot.slot.tasks
    assert not task.channels[0].is_available
    assert source_slot.next_wake_ns() is None
    simulation.cancel()
    simulation.run()
    simulation.close()


class FailsOnce(ProcessFunction):
    """Raises at its first record of the first attempt; afterwards counts each key."""

    seen = ValueState(int, default=0)

    def open(self, context) -> None:
        self.attempt = context.attempt

    def process(self, value: int, context: ProcessContext) -> Iterator[tuple[int, int]]:
        if self.attempt == 0 and value == 37:
            raise ValueError("thirty-seven")
        self.seen.update(self.seen.value() + 1)
        yield value % 5, self.seen.value()


def test_a_failed_attempt_is_restarted_from_the_latest_checkpoint_and_the_client_tells_it(tmp_path):
    env = in_process(
        checkpoint_interval="10 ms", batch_rows=1, buffer_size=1, checkpoint_keep_on_finish=True, seed=5
    )
    stream = numbers(env).key_by(lambda n: n % 5, returns=int).process(FailsOnce(), returns=tuple[int, int])
    stream.sink_to(FileSink(tmp_path / "out", "csv"))
    client = env.execute_async()
    assert client.result().attempt == 1
    overview, checkpoints = client.overview(), client.checkpoints()
    assert (overview.attempt, overview.restarts) == (1, 1)
    assert "ValueError: thirty-seven" in overview.last_error
    assert checkpoints.completed >= 1
    assert checkpoints.history[-1].final
    assert "RESTARTING" in [s.name for s in client.status_history()]
    rows = [line for part in (tmp_path / "out").iterdir() for line in part.read_text().splitlines()[1:]]
    assert sorted(rows) == sorted(f"{k},{i}" for k in range(5) for i in range(1, 9))


class ForgetfulSource(CollectionSource):
    """One whose enumerator cannot say where it is."""

    def create_enumerator(self, context):
        enumerator = super().create_enumerator(context)

        def snapshot():
            raise RuntimeError("no position")

        enumerator.snapshot = snapshot
        return enumerator


def fail_at_seven(n: int) -> int:
    if n == 7:
        raise ValueError("seven")
    return n


def test_at_most_once_fails_where_nobody_knows_how_far_the_source_was_and_reads_nothing_twice(tmp_path):
    env = in_process(
        parallelism=1,
        batch_rows=1,
        checkpoint_mode="at_most_once",
        restart_strategy=RestartStrategies.fixed_delay(3, "1 ms"),
    )
    numbers = env.from_source(ForgetfulSource(range(20))).map(fail_at_seven, returns=int)
    numbers.sink_to(FileSink(tmp_path, roll_size=1))
    with pytest.raises(
        JobFailedError, match="did not say how far it was, so the job cannot go on from there"
    ):
        env.execute()
    written = [line for part in tmp_path.glob("part-*") for line in part.read_text().splitlines()]
    assert len(written) == len(set(written)) == 7
