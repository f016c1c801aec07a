"""The coordinator of a source: what its enumerator decides becomes events, what it raises fails the job by name."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

import msgspec
import pytest

from tidegate import Environment
from tidegate.api.source import EnumeratorContext, SourceSplit, SplitEnumerator
from tidegate.core.clock import ManualClock, SystemClock
from tidegate.core.errors import BadRecordError
from tidegate.core.ids import AttemptNumber, OperatorId
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager import source_coordinator
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.failover.events import OfAttempt
from tidegate.jobmanager.ports import PortClosed
from tidegate.jobmanager.source_coordinator import SourceCoordinator, make_coordinators, sources_of
from tidegate.program.sequences import NumberSequenceSource
from tidegate.runtime import port_threads
from tidegate.runtime.port_threads import EnumeratorThreads
from tidegate.runtime.simulated_driver import SimulatedEnumerators

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


# ---- the threads ----


class Threads:
    """The enumerators of a job with one source, on threads; what they post."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *sources: ScriptedSource) -> None:
        """Each attempt has the next of these sources."""
        env = Environment()
        env.from_source(NumberSequenceSource(1, 10)).print()
        program = env._take_program("job")
        stream = build_stream_graph("job", program.sinks, program.transformations, program.options)
        self.graph = graph = build_job_graph(stream)
        [(_, self.operator)] = [(v, spec.id) for v, spec in sources_of(graph)]
        left = list(sources)

        def make(graph: Any, clock: Any, states: Any) -> list[SourceCoordinator]:
            state = states.get(self.operator)
            restored = None if state is None else msgspec.json.decode(state)
            return [SourceCoordinator(self.operator, "clicks", left.pop(0), 2, clock, restored)]

        monkeypatch.setattr(source_coordinator, "make_coordinators", make)
        self.events: queue.Queue[Any] = queue.Queue()
        self.port = EnumeratorThreads(graph, SystemClock(), self.events.put)

    def begin(self, attempt: int, restored: dict[OperatorId, bytes] | None) -> None:
        self.port.begin(AttemptNumber(attempt), restored)
        self.port.start()

    def next_event(self) -> Any:
        return self.events.get(timeout=10)

    def close(self) -> None:
        self.port.close()
        while self.next_event() != PortClosed("enumerators"):
            pass
        self.port.join()
        for thread in threading.enumerate():
            if thread.name == "tidegate-enumerators":  # of an attempt before, which nobody waits for
                thread.join(10)
                assert not thread.is_alive()


class Hanging(ScriptedSource):
    """One whose enumerator takes its time to start."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        self.entered.set()
        self.released.wait(30)
        return super().create_enumerator(context)


def test_the_thread_starts_asks_polls_and_closes(monkeypatch):
    source = ScriptedSource(poll_ms=1)
    threads = Threads(monkeypatch, source)
    threads.begin(3, {})
    exhausted = OfAttempt(AttemptNumber(3), ev.SplitsExhausted(threads.operator, 0))
    assert threads.next_event() == exhausted
    threads.port.request_split(threads.operator, 1)
    while (event := threads.next_event()) == exhausted:
        pass
    assert isinstance(event.event, ev.SplitsAssigned)
    threads.port.snapshot(7)
    while (event := threads.next_event()) == exhausted:
        pass
    assert isinstance(event, ce.EnumeratorsSnapshotted)
    threads.close()
    assert source.made is not None
    assert source.made.calls[-1] == "close"


def test_threads_that_were_never_started_can_be_closed(monkeypatch):
    Threads(monkeypatch).close()
    threads = Threads(monkeypatch, ScriptedSource())
    threads.port.begin(AttemptNumber(0), {})
    threads.close()


def test_an_enumerator_that_hangs_holds_neither_the_caller_nor_the_next_attempt(monkeypatch):
    hanging, sound = Hanging(), ScriptedSource()
    threads = Threads(monkeypatch, hanging, sound)
    threads.begin(0, {})
    assert hanging.entered.wait(10)
    threads.port.stop()
    threads.begin(1, {})
    threads.port.request_split(threads.operator, 0)
    assert threads.next_event().attempt == 1
    hanging.released.set()
    threads.close()


def test_the_last_word_of_an_enumerator_that_hangs_comes_when_it_returns(monkeypatch):
    hanging = Hanging()
    threads = Threads(monkeypatch, hanging)
    threads.begin(0, {})
    assert hanging.entered.wait(10)
    threads.port.close()
    threads.port.join()
    assert threads.events.empty(), "the driver's patience says how long that is waited for"
    hanging.released.set()
    assert threads.next_event() == PortClosed("enumerators")
    threads.port.join()


def test_an_attempt_goes_on_from_where_the_enumerators_of_the_one_before_were_stopped(monkeypatch):
    first, second = ScriptedSource(), ScriptedSource()
    threads = Threads(monkeypatch, first, second)
    threads.begin(0, {})
    threads.port.request_split(threads.operator, 0)
    threads.next_event()
    threads.port.stop()
    threads.begin(1, None)
    threads.port.request_split(threads.operator, 0)
    threads.next_event()
    assert second.restored == [{"id": "left"}]
    threads.close()


def test_an_attempt_fails_that_is_to_go_on_from_enumerators_that_do_not_say_where_they_are(monkeypatch):
    monkeypatch.setattr(port_threads._AttemptThread, "WAIT_FOR_STATES_S", 0.01)
    hanging = Hanging()
    threads = Threads(monkeypatch, hanging)
    threads.begin(0, {})
    assert hanging.entered.wait(10)
    threads.port.stop()
    threads.begin(1, None)
    failed = threads.next_event()
    assert failed.attempt == 1
    assert "did not say how far it was" in failed.event.reason
    hanging.released.set()
    threads.close()


def test_the_simulated_ones_also_go_on_where_the_scheduler_has_not_made_them_before_they_are_stopped(
    monkeypatch,
):
    threads = Threads(monkeypatch, ScriptedSource(), ScriptedSource())
    port = SimulatedEnumerators(threads.graph, ManualClock(), threads.events.put)
    port.begin(AttemptNumber(0), {})
    port.stop()
    port.begin(AttemptNumber(1), None)
    port.start()
    while port.requests:
        port.take_request()
    failed = [e.event for e in threads.events.queue if isinstance(e.event, ev.EnumeratorFailed)]
    assert failed == []
