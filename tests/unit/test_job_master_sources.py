"""The coordinator of a source: what its enumerator decides becomes events, what it raises fails the job by name."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

import msgspec
import pytest

from tidegate import Environment
from tidegate.api.sequences import NumberSequenceSource
from tidegate.api.source import EnumeratorContext, SourceSplit, SplitEnumerator
from tidegate.core.clock import ManualClock, SystemClock
from tidegate.core.errors import BadRecordError
from tidegate.core.ids import OperatorId
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.source_coordinator import EnumeratorThread, SourceCoordinator, make_coordinators

OPERATOR = OperatorId("source")


class Scripted(SplitEnumerator):
    """An enumerator whose steps a test can make fail, and which remembers its calls."""

    def __init__(self, context: EnumeratorContext, fail: dict[str, Exception], poll_ms: int | None) -> None:
        self.context = context
        self.fail = fail
        self.poll_interval_ms = poll_ms
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            raise self.fail[name]

    def start(self) -> None:
        self._call("start")

    def handle_split_request(self, subtask: int) -> None:
        self._call("request")
        self.context.assign([SourceSplit(id="a"), SourceSplit(id="b")], subtask)

    def poll(self) -> None:
        self._call("poll")
        self.context.no_more_splits(0)

    def snapshot(self) -> Any:
        return [SourceSplit(id="left")]

    def close(self) -> None:
        self._call("close")


class ScriptedSource(NumberSequenceSource):
    def __init__(self, fail: dict[str, Exception] | None = None, poll_ms: int | None = None) -> None:
        super().__init__(1, 10)
        self.fail = fail or {}
        self.poll_ms = poll_ms
        self.made: Scripted | None = None
        self.restored: Any = None

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        self.made = Scripted(context, self.fail, self.poll_ms)
        return self.made

    def restore_enumerator(self, context: EnumeratorContext, state: Any) -> SplitEnumerator:
        self.restored = state
        return self.create_enumerator(context)


def coordinator(source: ScriptedSource, clock: Any = None, restored: Any = None) -> SourceCoordinator:
    return SourceCoordinator(OPERATOR, "clicks", source, 2, clock or ManualClock(), restored)


def test_every_source_of_a_job_gets_a_coordinator():
    env = Environment(parallelism=3)
    first, second = env.from_sequence(1, 10), env.from_collection([1], parallelism=1)
    first.union(second).print()
    program = env._take_program("job")
    graph = build_job_graph(
        build_stream_graph("job", program.sinks, program.transformations, program.options)
    )
    made = make_coordinators(graph, ManualClock())
    assert [(c.name, c.parallelism, c.records_expected) for c in made] == [
        ("sequence 1..10", 3, 10),
        ("collection", 1, 1),
    ]


def test_splits_become_json_for_the_reader_that_asked():
    one = coordinator(ScriptedSource())
    assert one.request_split(1) == [], "not before it is started"
    assert one.start() == []
    assert one.start() == []
    assert one.request_split(1) == [ev.SplitsAssigned(OPERATOR, 1, (b'{"id":"a"}', b'{"id":"b"}'))]


def test_an_enumerator_is_polled_at_its_interval():
    clock = ManualClock()
    source = ScriptedSource(poll_ms=100)
    one = coordinator(source, clock)
    assert one.poll_if_due() == []
    one.start()
    assert one.next_poll_in_ms() == 100
    clock.advance_ns(99_000_000)
    assert one.poll_if_due() == []
    clock.advance_ns(1_000_000)
    assert one.poll_if_due() == [ev.SplitsExhausted(OPERATOR, 0)]
    assert one.poll_if_due() == []
    assert one.next_poll_in_ms() == 100


def test_an_enumerator_without_an_interval_is_never_polled():
    one = coordinator(ScriptedSource())
    one.start()
    assert one.next_poll_in_ms() is None
    assert one.poll_if_due() == []


@pytest.mark.parametrize("step", ["start", "request", "poll"])
def test_what_an_enumerator_raises_fails_the_job_once_and_it_is_still_closed(step):
    clock = ManualClock()
    source = ScriptedSource({step: FileNotFoundError("no clicks.jsonl")}, poll_ms=10)
    one = coordinator(source, clock)
    events = one.start() + one.request_split(0)
    clock.advance_ns(10_000_000)
    events += one.poll_if_due() + one.request_split(0) + one.poll_if_due()
    [failure] = [e for e in events if isinstance(e, ev.EnumeratorFailed)]
    assert failure == events[-1], "nothing follows a failure"
    assert failure.operator == OPERATOR
    assert failure.reason == "FileNotFoundError: no clicks.jsonl"
    assert failure.traceback.endswith("FileNotFoundError: no clicks.jsonl")
    one.close()
    assert source.made is not None
    assert source.made.calls[-1] == "close"


def test_an_error_of_ours_is_a_message_already():
    one = coordinator(ScriptedSource({"start": BadRecordError("clicks.jsonl: line 3 is cut off")}))
    assert one.start() == [ev.EnumeratorFailed(OPERATOR, "clicks.jsonl: line 3 is cut off", "")]


def test_a_reader_that_does_not_exist_is_an_error_of_the_enumerator():
    one = coordinator(ScriptedSource())
    one.start()
    [failure] = one.request_split(2)
    assert isinstance(failure, ev.EnumeratorFailed)
    assert "there is no reader 2: the source has parallelism 2" in failure.reason


def test_an_enumerator_that_cannot_be_closed_is_only_logged(caplog):
    one = coordinator(ScriptedSource({"close": RuntimeError("stuck")}))
    one.start()
    with caplog.at_level(logging.WARNING):
        one.close()
        one.close()
    assert [r.getMessage() for r in caplog.records] == [
        "the enumerator of source 'clicks' could not be closed"
    ]


def test_the_state_of_an_enumerator_can_be_stored_as_json_and_given_back():
    one = coordinator(ScriptedSource())
    assert one.snapshot() is None
    one.start()
    stored = msgspec.json.encode(one.snapshot())
    source = ScriptedSource()
    coordinator(source, restored=msgspec.json.decode(stored)).start()
    assert source.restored == [{"id": "left"}]


# ---- the thread ----


def test_the_thread_starts_asks_polls_and_closes():
    events: queue.Queue[ev.Event] = queue.Queue()
    source = ScriptedSource(poll_ms=1)
    thread = EnumeratorThread([coordinator(source, SystemClock())], events.put, SystemClock())
    thread.start()
    assert events.get(timeout=10) == ev.SplitsExhausted(OPERATOR, 0)
    thread.request_split(OPERATOR, 1)
    while (event := events.get(timeout=10)) == ev.SplitsExhausted(OPERATOR, 0):
        pass
    assert isinstance(event, ev.SplitsAssigned)
    thread.stop(10)
    assert source.made is not None
    assert source.made.calls[-1] == "close"
    assert not [t for t in threading.enumerate() if t.name == "tidegate-enumerators"]


def test_a_thread_that_was_never_started_can_be_stopped():
    EnumeratorThread([coordinator(ScriptedSource())], lambda event: None, SystemClock()).stop()


def test_an_enumerator_that_hangs_is_left_behind_with_a_warning(caplog):
    entered, released = threading.Event(), threading.Event()

    class Hanging(ScriptedSource):
        def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
            entered.set()
            released.wait(30)
            return super().create_enumerator(context)

    thread = EnumeratorThread([coordinator(Hanging())], lambda event: None, SystemClock())
    thread.start()
    assert entered.wait(10)
    with caplog.at_level(logging.WARNING):
        thread.stop(0.01)
    assert "an enumerator of 'clicks' does not return" in caplog.text
    released.set()
    thread._thread.join(10)
    assert not thread._thread.is_alive()
