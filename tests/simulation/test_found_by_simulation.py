"""What the simulation has found, each in its smallest form."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from tests.unit.checkpoint_kit import CELLS, CoordinatorKit
from tidegate import Environment, FileSink
from tidegate.core.clock import ManualClock
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.core.options import Options
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.resume_point import beginning
from tidegate.program.sequences import CollectionSource, SpanSplit
from tidegate.protocol import messages as m
from tidegate.records.batch import Batch
from tidegate.records.elements import CheckpointBarrier
from tidegate.records.types import record_type_of
from tidegate.records.wire import decode_batch
from tidegate.state.operator_states import OperatorStates, StatesContext
from tidegate.storage.memory import MemoryStorage
from tidegate.taskmanager.barriers.alignment import BarrierAlignment, BeginCheckpoint
from tidegate.taskmanager.input_gate import InputGate
from tidegate.testing.subtasks import subtask_info

INT = record_type_of(int)
A, B = ChannelId(EdgeId(0), 0, 0), ChannelId(EdgeId(0), 1, 0)
LATE = CheckpointBarrier(7, 100, unaligned=True)


def batch(*rows: int) -> Batch:
    return Batch(INT, columns=INT.to_columns(list(rows)))


def gate() -> InputGate:
    inputs = {A: 0, B: 0}
    return InputGate(inputs, 2, 2, lambda channel, n: None, BarrierAlignment(inputs))


def begin(gate: InputGate) -> dict[ChannelId, list[list[int]]]:
    """The next barrier that overtakes begins a checkpoint: the rows that it overtakes."""
    found = gate.alignment.next_overtaking()
    assert found is not None
    (begun, *_) = gate.alignment.barrier_received(*found, now_ms=100)
    assert isinstance(begun, BeginCheckpoint)
    return {channel: [b.rows for b in batches] for channel, batches in gate.overtake(begun).items()}


def test_a_batch_behind_a_barrier_is_not_recorded_even_if_the_task_has_not_looked_at_the_barrier():
    g = gate()
    g.receive(A, LATE, 0)
    begin(g)
    g.receive(B, batch(1), 0)
    g.receive(B, LATE, 0)
    g.receive(B, batch(2), 0)
    assert [decode_batch(data, INT).rows for _, _, data in g.take_recorded()] == [[1]]


def test_batches_that_a_restore_put_back_are_in_flight_again():
    g = gate()
    g.put_back(A, batch(1))
    g.put_back(B, batch(2))
    g.receive(A, batch(3), 0)
    g.receive(A, LATE, 0)
    assert begin(g) == {A: [[1], [3]], B: [[2]]}


def test_the_last_barrier_of_an_aligned_checkpoint_may_have_overtaken_batches():
    alignment = BarrierAlignment([A, B], timeout_ms=1_000)
    alignment.barrier_received(A, CheckpointBarrier(7, 100), 100)
    *_, begun, _ = alignment.barrier_received(B, LATE, 100)
    assert begun == BeginCheckpoint(LATE), "so what it overtook is taken from the gate"


def test_a_checkpoint_that_a_newer_one_overtakes_is_no_failure():
    kit = CoordinatorKit(checkpoint_tolerable_failures=0).begin()
    kit.enumerators_answer(kit.trigger())
    subtask = min(CELLS)
    actions = kit.say(
        0, m.DeclineCheckpoint(1, subtask.vertex, subtask.index, "a newer one came", subsumed=True)
    )
    assert kit.status(1) == "failed"
    assert kit.found(ce.FailAttempt, actions) == []
    assert kit.coordinator.failures_in_a_row == 0


def test_what_is_deferred_to_an_upload_that_never_runs_is_done_by_the_next_and_only_once():
    context = StatesContext(
        subtask=subtask_info("op", operator_id="op"),
        clock=ManualClock(),
        options=Options(),
        local_directory=partial(pytest.fail, "no directory"),
    )
    states, done = OperatorStates(context), []
    states.defer(lambda: done.append("first"))
    states.snapshot(1)  # aborted: nobody runs it
    states.defer(lambda: done.append("second"))
    second, third = states.snapshot(2), states.snapshot(3)
    for id, part in ((2, second), (3, third)):
        part(MemoryStorage().writer(id, 0, "op", 0))
    assert done == ["first", "second"]


def settings(tmp_path) -> dict[str, object]:
    return {
        "runtime": "in-process",
        "parallelism": 2,
        "batch_rows": 5,
        "checkpoint_interval": "10 ms",
        "checkpoint_dir": str(tmp_path / "checkpoints"),
        "checkpoint_keep_on_finish": True,
    }


def run(tmp_path, **more: object) -> Environment:
    env = Environment(**settings(tmp_path), **more)
    numbers = env.from_sequence(1, 50).rebalance().map(str, returns=str)
    numbers.sink_to(FileSink(tmp_path / "out", "text", append=True))
    assert env.execute("found").status == "FINISHED"
    return env


def lines(tmp_path) -> list[int]:
    return sorted(
        int(line) for part in (tmp_path / "out").glob("part-*") for line in part.read_text().split()
    )


@pytest.mark.parametrize("more", [{}, {"checkpoint_unaligned": True}])
def test_a_job_restored_from_its_final_checkpoint_ends_again(tmp_path, more):
    run(tmp_path, **more)
    run(tmp_path, resume="latest", **more)
    assert lines(tmp_path) == list(range(1, 51))


def test_no_two_drivers_use_the_same_attempt_even_if_one_dies_before_it_writes_anything(tmp_path):
    run(tmp_path)
    keys = {k: v for k, v in settings(tmp_path).items() if k not in ("runtime", "parallelism", "batch_rows")}
    options = Options().with_keywords(resume="latest", **keys)
    attempts = [beginning(options, "found").first_attempt for _ in range(3)]
    assert len(set(attempts)) == 3
    assert attempts == sorted(attempts)
    assert attempts[0] > 0


def test_a_split_that_belongs_to_a_reader_is_not_given_to_another_after_a_restore():
    source = CollectionSource(range(10))
    first, again = Readers(), Readers()
    enumerator = source.create_enumerator(first)
    enumerator.handle_split_request(0)
    restored = source.restore_enumerator(again, msgspec.to_builtins(enumerator.snapshot()))
    restored.handle_split_request(1)
    assert [subtask for _, subtask in [*first.assigned, *again.assigned]] == [0, 1]
    assert sum(split.end - split.position for split, _ in [*first.assigned, *again.assigned]) == 10


class Readers:
    """Two readers, as an enumerator sees them."""

    parallelism = 2

    def __init__(self) -> None:
        self.assigned: list[tuple[SpanSplit, int]] = []
        self.clock = ManualClock()

    def assign(self, splits, subtask: int) -> None:
        self.assigned += [(split, subtask) for split in splits]

    def no_more_splits(self, subtask: int) -> None:
        pass
