"""A task and its source: a wake from another thread is never lost, whenever it comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidegate.api.source import Idle
from tidegate.core.clock import ManualClock
from tidegate.core.ids import SubtaskId, VertexId
from tidegate.metrics.registry import TaskMetrics
from tidegate.taskmanager.barriers.alignment import BarrierAlignment
from tidegate.taskmanager.input_gate import InputGate
from tidegate.taskmanager.task import Task


class NotedPace:
    """Notes what the task reports."""

    def __init__(self) -> None:
        self.ready: list[bool] = []
        self.waited: list[int] = []
        self.processed = 0

    def was_ready(self, ready: bool) -> None:
        self.ready.append(ready)

    def waited_for_credit(self, ns: int) -> None:
        self.waited.append(ns)

    def batch_processed(self) -> None:
        self.processed += 1


class Source:
    """A source that never has anything; counts how often it is asked."""

    def __init__(self) -> None:
        self.polls = 0
        self.answer: Idle | None = Idle()
        self.pace = NotedPace()

    def advance(self) -> Idle | None:
        self.polls += 1
        return self.answer


def no_inputs() -> InputGate:
    return InputGate({}, 1, 0, lambda channel, n: None, BarrierAlignment([]))


def task_of(source: Source) -> Task:
    chain = SimpleNamespace(source=source, is_ready=lambda: True, has_more=False, keeps_time=False)
    metrics = TaskMetrics(0, now_ns=0)
    return Task(SubtaskId(VertexId(0), 0), "source", chain, no_inputs(), [], metrics, ManualClock())  # type: ignore[arg-type]


def test_an_idle_source_is_asked_again_when_it_is_woken_or_its_time_has_come():
    source = Source()
    task = task_of(source)
    task.step(1)
    task.step(2)
    assert (source.polls, task.wake_at_ns) == (1, None)
    task.wake()
    assert task.wake_at_ns == 0
    source.answer = Idle(10)
    task.step(3)
    task.step(9)
    assert (source.polls, task.wake_at_ns) == (2, 10)
    task.step(10)
    assert source.polls == 3


def test_a_wake_that_comes_while_the_answer_is_read_is_not_lost():
    source = Source()
    task = task_of(source)

    class WokenMeanwhile(Idle):
        """Another thread wakes the task just when it looks when to ask again."""

        @property
        def wake_at_ns(self) -> int | None:
            task.wake()
            return None

    source.answer = WokenMeanwhile()
    task.step(1)
    assert task.wake_at_ns == 0
    task.step(2)
    assert source.polls == 2


def test_a_checkpoint_that_hurries_a_blocked_task_tells_waiting_from_work():
    clock, worked = ManualClock(), []

    class Chain:
        source = Source()
        keeps_time = False
        has_more = True

        def is_ready(self) -> bool:
            return True

        def process_more(self) -> None:
            clock.advance_ns(5)
            worked.append(clock.monotonic_ns())
            self.has_more = len(worked) < 2

    chain = Chain()
    waited = chain.source.pace.waited
    channel = SimpleNamespace(is_available=False)
    partition = SimpleNamespace(channels=[channel], now_ns=0)
    metrics = TaskMetrics(0, now_ns=0)
    begun: list[object] = []
    task = Task(
        SubtaskId(VertexId(0), 0),
        "source",
        chain,
        no_inputs(),
        [partition],
        metrics,
        clock,
        SimpleNamespace(is_due=False, step=lambda: False, triggered=begun.append),  # type: ignore[arg-type, list-item]
    )
    start = clock.monotonic_ns()
    assert not task.step(start)
    clock.advance_ns(30)
    task.trigger("barrier")  # type: ignore[arg-type]
    assert task.step(clock.monotonic_ns())
    assert (waited, worked) == ([30], [start + 35])
    clock.advance_ns(7)
    assert task.step(clock.monotonic_ns())
    assert waited == [30, 7]
    assert chain.source.pace.processed == 1, "when its last part is"
    assert task.step(clock.monotonic_ns())
    assert begun == ["barrier"]
    clock.advance_ns(4)
    channel.is_available = True
    task.step(clock.monotonic_ns())
    assert waited == [30, 7, 4], "what was work has not been waiting"


def test_whether_operators_were_ready_is_told_in_each_step_also_where_answers_keep_coming():
    answers = iter([True, True, False, False])
    ready = iter([False, True, False, True])
    source = Source()
    task = task_of(source)
    chain: Any = task.chain
    chain.keeps_time, chain.on_processing_time = True, lambda now_ms: next(answers)
    chain.is_ready = lambda: next(ready)
    for now_ns in range(4):
        task.step(now_ns)
    assert source.pace.ready == [False, True, False, True]
    assert source.polls == 1


def test_the_pace_of_a_source_is_told_when_its_batch_is_processed_at_once():
    source = Source()
    task = task_of(source)
    task.step(1)
    assert source.pace.processed == 0
    source.answer = None
    task.wake()
    task.step(2)
    assert source.pace.processed == 1
