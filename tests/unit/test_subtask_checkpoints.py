"""A task's part in a checkpoint when its function is slow: what may overtake does so, and what it overtook is kept."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.clock import ManualClock
from tidegate.core.ids import ChannelId, EdgeId, SubtaskId, VertexId
from tidegate.core.options import Options
from tidegate.metrics.registry import TaskMetrics
from tidegate.protocol import messages as m
from tidegate.records.batch import Batch
from tidegate.records.elements import END_OF_INPUT, MIN_TIMESTAMP, CheckpointBarrier
from tidegate.records.types import record_type_of
from tidegate.records.wire import decode_batch
from tidegate.state.operator_states import OperatorAsyncPart
from tidegate.storage.memory import MemoryStorage
from tidegate.taskmanager.barriers.alignment import BarrierAlignment
from tidegate.taskmanager.barriers.in_flight import decode_in_flight
from tidegate.taskmanager.barriers.subtask_checkpoints import CheckpointHost, SubtaskCheckpoints
from tidegate.taskmanager.credits import SenderCredits
from tidegate.taskmanager.input_gate import InputGate
from tidegate.taskmanager.output_channel import OutputChannel
from tidegate.taskmanager.task import ResultPartition, Task

INT = record_type_of(int)
A, B, OUT = (ChannelId(EdgeId(e), s, 0) for e, s in ((0, 0), (0, 1), (1, 0)))


class AtOnce:
    """Uploads that are done when they are submitted."""

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None]) -> None:
        work()
        while self.posted:
            self.posted.popleft()()

    def post(self, then: Callable[[], None]) -> None:
        self.posted.append(then)


class Chain:
    """A function that is so slow that it never gets to the next batch unless the test lets it."""

    source = None
    keeps_time = False
    clock_ms = MIN_TIMESTAMP

    def __init__(self) -> None:
        self.processed: list[int] = []
        self.ready = False
        """Whether it takes another batch, or the rest of the one that it is at work on."""
        self.rest: Batch | None = None
        self.ended: list[int] = []
        self.completed: list[int] = []
        self.aborted: list[int] = []
        self.fails = False
        """Whether its state cannot be frozen."""

    @property
    def has_more(self) -> bool:
        return self.rest is not None

    def is_ready(self) -> bool:
        return self.ready

    def process(self, batch: Batch, input_index: int) -> None:
        self.processed.extend(batch.rows)

    def process_watermark(self, watermark_ms: int) -> None:
        self.clock_ms = watermark_ms

    def end_input(self, input_index: int) -> None:
        self.ended.append(input_index)

    def finish(self) -> bool:
        return True

    def snapshot(self, checkpoint_id: int) -> list[tuple[str, OperatorAsyncPart]]:
        if self.fails:
            raise ValueError("no state")
        return []

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        self.completed.append(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.aborted.append(checkpoint_id)


class Kit:
    """A task with two inputs and one output, time, and what it sent."""

    def __init__(self, **options: object) -> None:
        self.clock = ManualClock()
        self.sent: list[m.SlotMessage] = []
        self.out: list[object] = []
        self.chain = Chain()
        self.options = Options().with_keywords(checkpoint_interval="1 s", **options).checked()
        timeout_ms = self.options.checkpoint_alignment_timeout or None
        inputs = {A: 0, B: 0}
        alignment = BarrierAlignment(inputs, timeout_ms=timeout_ms)
        self.gate = gate = InputGate(inputs, 8, 2, lambda channel, n: None, alignment)
        output = OutputChannel(OUT, SenderCredits(10), 1 << 20, self._deliver)
        partition = ResultPartition(lambda batch: [(0, batch)], [output], False)
        metrics = TaskMetrics(0, now_ns=0)
        id = SubtaskId(VertexId(1), 0)
        self.storage = MemoryStorage()
        host = CheckpointHost(0, self.clock, self.storage, AtOnce(), self.sent.append)
        checkpoints = SubtaskCheckpoints(id, self.chain, gate, [output], host)  # type: ignore[arg-type]
        self.task = Task(
            id,
            "slow",
            self.chain,  # type: ignore[arg-type]
            gate,
            [partition],
            metrics,
            self.clock,
            checkpoints,
        )

    def _deliver(self, channel: ChannelId, element: object, backlog: int) -> int:
        self.out.append(element)
        return 0

    def receive(self, channel: ChannelId, *elements: object) -> None:
        for element in elements:
            made = Batch(INT, rows=[element]) if isinstance(element, int) else element
            self.gate.receive(channel, made, 0)

    def trigger(self, id: int) -> CheckpointBarrier:
        """The JobManager triggers; returns the barrier that sources would send now."""
        barrier = CheckpointBarrier(id, self.clock.now_ms(), self.options.checkpoint_unaligned)
        self.task.trigger(barrier)
        return barrier

    @property
    def deadline_ns(self) -> int | None:
        assert self.task.checkpoints is not None
        return self.task.checkpoints.deadline_ns

    def step(self, times: int = 3) -> None:
        for _ in range(times):
            self.task.step(self.clock.monotonic_ns())

    def in_flight(self) -> dict[ChannelId, list[int]] | None:
        """What the acknowledged checkpoint says was on its way to the task; None: it was not acknowledged."""
        acknowledged = [x for x in self.sent if isinstance(x, m.AcknowledgeCheckpoint)]
        if not acknowledged:
            return None
        (message,) = acknowledged
        self.storage.accept(message.attachments)
        handle = m.decode_snapshot(message.snapshot).in_flight
        found: dict[ChannelId, list[int]] = {}
        if handle is not None:
            for direction, channel, data in decode_in_flight(self.storage.read(handle.file), "in flight"):
                assert direction == "in"
                found.setdefault(channel, []).append(len(data))
        return found

    def covered(self, message: m.AcknowledgeCheckpoint) -> dict[ChannelId, list[int]]:
        """The numbers that were on their way to the task in a checkpoint."""
        self.storage.accept(message.attachments)
        handle = m.decode_snapshot(message.snapshot).in_flight
        found: dict[ChannelId, list[int]] = {A: [], B: []}
        if handle is not None:
            for _, channel, data in decode_in_flight(self.storage.read(handle.file), "in flight"):
                found[channel] += decode_batch(data, INT).rows
        return found


def test_a_barrier_that_waits_in_a_long_queue_overtakes_when_the_alignment_timeout_has_passed():
    kit = Kit(checkpoint_alignment_timeout="100 ms")
    barrier = kit.trigger(1)
    kit.receive(A, 1, 2, 3, barrier, 4)
    kit.step()
    kit.clock.advance_ns(99 * 1_000_000)
    kit.step()
    assert kit.in_flight() is None, "it is aligned for as long as it may be"
    assert kit.deadline_ns == kit.clock.monotonic_ns() + 1_000_000
    kit.clock.advance_ns(1 * 1_000_000)
    kit.step()
    assert kit.out == [CheckpointBarrier(1, barrier.timestamp_ms, unaligned=True)]
    kit.receive(B, 5, barrier, 6)
    kit.step()
    assert {c: len(b) for c, b in (kit.in_flight() or {}).items()} == {A: 3, B: 1}
    kit.chain.ready = True
    kit.step(9)
    assert sorted(kit.chain.processed) == [1, 2, 3, 4, 5, 6], "what was overtaken is processed all the same"


@pytest.mark.parametrize("after_ms", [0, 100])
def test_a_task_whose_inputs_have_ended_behind_batches_takes_an_unaligned_checkpoint_at_once(after_ms):
    options = (
        {"checkpoint_alignment_timeout": f"{after_ms} ms"} if after_ms else {"checkpoint_unaligned": True}
    )
    kit = Kit(**options)
    kit.receive(A, 1, 2, END_OF_INPUT)
    kit.receive(B, END_OF_INPUT)
    kit.step()
    kit.trigger(1)
    if after_ms:
        kit.step()
        assert kit.in_flight() is None
        assert kit.deadline_ns == kit.clock.monotonic_ns() + after_ms * 1_000_000
        kit.clock.advance_ns(after_ms * 1_000_000)
    kit.step()
    assert {c: len(b) for c, b in (kit.in_flight() or {}).items()} == {A: 2}
    assert [b.checkpoint_id for b in kit.out] == [1]  # type: ignore[attr-defined]
    kit.chain.ready = True
    kit.step(9)
    assert kit.chain.processed == [1, 2]
    assert kit.out[-1] is END_OF_INPUT


@pytest.mark.parametrize("end_first", [True, False])
def test_the_end_of_one_input_behind_batches_does_not_hold_up_an_unaligned_checkpoint(end_first):
    kit = Kit(checkpoint_unaligned=True)
    if end_first:
        kit.receive(B, 7, END_OF_INPUT)
    barrier = kit.trigger(1)
    kit.receive(A, 1, barrier, 2)
    kit.step()
    if not end_first:
        assert kit.in_flight() is None, "what comes on the other channel belongs to it"
        kit.receive(B, 7, END_OF_INPUT)
        kit.step()
    assert {c: len(b) for c, b in (kit.in_flight() or {}).items()} == {A: 1, B: 1}


def test_an_aligned_checkpoint_waits_for_the_batches_in_front_of_the_end():
    kit = Kit()
    kit.receive(A, 1, END_OF_INPUT)
    kit.receive(B, END_OF_INPUT)
    kit.trigger(1)
    kit.step()
    assert kit.in_flight() is None
    kit.chain.ready = True
    kit.step(5)
    assert kit.in_flight() == {}
    assert kit.chain.processed == [1]


def test_what_is_left_of_the_batch_at_work_is_in_flight_too_when_the_inputs_have_ended():
    kit = Kit(checkpoint_unaligned=True)
    kit.chain.ready = True
    kit.receive(A, 1, 2, END_OF_INPUT)
    kit.receive(B, END_OF_INPUT)
    kit.step(1)
    kit.chain.ready = False
    kit.chain.rest = Batch(INT, rows=[1])  # it has not got to the end of its first batch
    kit.trigger(1)
    kit.step()
    assert {c: len(b) for c, b in (kit.in_flight() or {}).items()} == {A: 2}


def test_a_checkpoint_whose_state_cannot_be_frozen_is_declined_and_leaves_nothing_recorded():
    kit = Kit(checkpoint_unaligned=True)
    kit.chain.fails = True
    barrier = kit.trigger(1)
    kit.receive(A, 1, barrier)
    kit.step()
    kit.receive(B, 2, barrier)
    kit.step()
    (declined,) = [x for x in kit.sent if isinstance(x, m.DeclineCheckpoint)]
    assert (declined.checkpoint_id, declined.subsumed) == (1, False)
    assert "no state" in declined.reason
    kit.chain.fails = False
    following = kit.trigger(2)
    kit.receive(A, following)
    kit.receive(B, following)
    kit.step()
    assert {c: len(b) for c, b in (kit.in_flight() or {}).items()} == {A: 1, B: 1}, "of the second alone"


MODES: dict[str, dict[str, object]] = {
    "aligned": {},
    "unaligned": {"checkpoint_unaligned": True},
    "timeout": {"checkpoint_alignment_timeout": "30 ms"},
}


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(MODES)),
    st.lists(st.tuples(st.sampled_from(["A", "B", "both", "step", "stall", "abort"]), st.integers(1, 9))),
)
def test_what_is_processed_and_what_is_in_flight_is_what_came_before_the_barriers(mode, events):
    """Holds for every acknowledged checkpoint. The function is sometimes slow, and checkpoints are aborted."""
    kit = Kit(**MODES[mode])
    sent: dict[ChannelId, list[object]] = {A: [], B: []}
    at_snapshot: dict[int, list[int]] = {}
    behind: dict[ChannelId, int] = {A: 0, B: 0}
    """The last checkpoint whose barrier was sent on a channel."""
    newest = 0
    numbers = itertools.count()
    kit.chain.snapshot = lambda id: at_snapshot.setdefault(id, list(kit.chain.processed)) and []  # type: ignore[method-assign, assignment]

    def send(channel: ChannelId, element: object) -> None:
        sent[channel].append(element)
        kit.receive(channel, element)

    barriers: dict[int, CheckpointBarrier] = {}
    for event, number in events:
        kit.clock.advance_ns(number * 1_000_000)
        if event in ("A", "B"):
            channel = A if event == "A" else B
            if number > 3 or behind[channel] == newest:
                if kit.gate.backlog < 8:
                    send(channel, next(numbers))
            else:
                behind[channel] += 1
                send(channel, barriers[behind[channel]])
        elif event == "both":
            newest += 1
            barriers[newest] = kit.trigger(newest)
        elif event == "abort" and newest:
            kit.task.checkpoint_aborted(newest)
        else:
            kit.chain.ready = event == "step"
            kit.step(number)
    for channel in (A, B):
        for id in range(behind[channel] + 1, newest + 1):
            send(channel, barriers[id])
        send(channel, END_OF_INPUT)
    kit.chain.ready = True
    kit.step(100)
    for message in [x for x in kit.sent if isinstance(x, m.AcknowledgeCheckpoint)]:
        barrier = barriers[message.checkpoint_id]
        in_flight = kit.covered(message)
        for channel, elements in sent.items():
            before = [e for e in elements[: elements.index(barrier)] if isinstance(e, int)]
            own = [n for n in at_snapshot[message.checkpoint_id] if n in elements]
            assert own + in_flight[channel] == before
    assert sorted(kit.chain.processed) == sorted(
        e for elements in sent.values() for e in elements if isinstance(e, int)
    )
    assert kit.out[-1] is END_OF_INPUT
