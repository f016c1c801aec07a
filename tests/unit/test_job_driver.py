"""The driver performs what is decided, and ends in states: it tells its ports to close, and hears when they have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.job_master_kit import registration
from tidegate import Environment
from tidegate.core.clock import ManualClock
from tidegate.core.errors import JobCanceledError, JobFailedError
from tidegate.core.ids import AttemptNumber, JobId
from tidegate.core.options import Options
from tidegate.core.states import JobStatus as J
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.driver import PATIENCE_MS, JobDriver
from tidegate.jobmanager.failover.events import OfAttempt
from tidegate.jobmanager.failover.job import Job
from tidegate.jobmanager.ports import Collected, Enumerators, Gang, PortClosed, Ports, Slots, Storage
from tidegate.jobmanager.resume_point import Beginning
from tidegate.protocol import messages as m
from tidegate.storage.memory import MemoryStorage


def graph_of_numbers() -> JobGraph:
    env = Environment(parallelism=2)
    env.from_sequence(1, 100, name="numbers").rebalance().print()
    program = env._take_program("pv")
    return build_job_graph(build_stream_graph("pv", program.sinks, program.transformations, program.options))


class Port:
    """Notes every call that its protocol has, and answers nothing."""

    may_be_resumed = False

    def __init__(self, name: str, protocol: type, calls: list[tuple[Any, ...]]) -> None:
        self._name = name
        self._protocol = protocol
        self._calls = calls

    def __getattr__(self, call: str) -> Callable[..., None]:
        if call not in vars(self._protocol):
            raise AttributeError(f"{self._protocol.__name__} has no {call}")
        return lambda *arguments: self._calls.append((f"{self._name}.{call}", *arguments))


class Rig:
    """A driver with ports that only listen."""

    def __init__(self, *, storage: bool = True, **options: object) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.clock = ManualClock(start_ms=1)
        slots, gang, enumerators, stored, collected = (
            Port(protocol.__name__.lower(), protocol, self.calls)
            for protocol in (Slots, Gang, Enumerators, Storage, Collected)
        )
        self.driver = JobDriver(
            graph_of_numbers(),
            Options().with_keywords(**options).checked(),
            Beginning(JobId("job"), MemoryStorage() if storage else None),
            Ports(slots, gang, enumerators, stored if storage else None, collected),
            self.clock,
            seed=0,
            on_end=self.on_end,
        )

    def on_end(self, resumable: bool) -> None:
        self.calls.append(("on_end", self.driver.status))

    def do(self, *events: Any) -> list[Any]:
        """The calls that these events make."""
        before = len(self.calls)
        for event in events:
            self.driver.handle(event)
        return self.calls[before:]

    def of(self, *events: ev.Event) -> list[OfAttempt]:
        return [OfAttempt(AttemptNumber(0), event) for event in events]

    def run(self) -> Rig:
        counted = self.of(ev.SlotsCounted(2), registration(0), registration(1))
        self.do(ev.SubmissionRequested(), *counted)
        assert self.driver.status is J.RUNNING
        return self

    def end(self) -> list[Any]:
        """Cancel, and let every slot and the gang go."""
        gone = [m.SlotFinished() for _ in range(2)]
        said = [ev.MessageReceived(slot, message) for slot, message in enumerate(gone)]  # type: ignore[arg-type]
        return self.do(ev.CancelRequested("enough"), *self.of(*said, ev.GangEnded(None)))

    def pass_ms(self, duration_ms: int) -> list[Any]:
        self.clock.advance_ns(duration_ms * 1_000_000)
        return self.do(ev.Tick())


CLOSED = (PortClosed("storage"), PortClosed("enumerators"), PortClosed("gang"))


def test_an_attempt_has_connections_and_enumerators_before_it_has_slots():
    rig = Rig()
    assert [call for call, *_ in rig.do(ev.SubmissionRequested())] == [
        "enumerators.begin",
        "slots.begin_attempt",
        "enumerators.start",
        "gang.count_slots",
    ]
    assert rig.do(*rig.of(ev.SlotsCounted(2))) == [("gang.start", 0, 2)]


def test_the_end_is_shown_only_when_every_port_has_said_that_it_is_closed():
    rig = Rig().run()
    calls = [call for call, *_ in rig.end()]
    assert calls[-4:] == ["slots.close", "enumerators.close", "gang.close", "storage.close"]
    for closed in CLOSED:
        assert rig.driver.status is J.CANCELLING
        assert not rig.driver.is_over
        calls = rig.do(closed)
    assert rig.driver.status is J.CANCELED
    assert rig.driver.is_over
    assert [call for call, *_ in calls] == ["on_end", "collected.end"]
    assert calls[0][1] is J.CANCELLING, "whoever is told of the end is told before the user sees it"
    assert isinstance(calls[1][1], JobCanceledError)


def test_a_job_without_checkpoints_waits_for_no_storage():
    rig = Rig(storage=False).run()
    assert "storage.close" not in [call for call, *_ in rig.end()]
    rig.do(PortClosed("gang"), PortClosed("enumerators"))
    assert rig.driver.is_over


def test_nothing_that_comes_after_the_end_does_anything():
    rig = Rig().run()
    rig.end()
    late = [registration(0), ev.GangEnded("late"), ev.CancelRequested("again")]
    assert rig.do(ev.SubmissionRequested(), ev.CancelRequested("again"), *rig.of(*late)) == []
    rig.do(*CLOSED)
    assert rig.do(*CLOSED, ev.Tick()) == [], "the end comes once"


@pytest.mark.parametrize(
    ("port", "words"),
    [
        ("enumerators", "an enumerator of 'numbers' does not return; its thread is left behind"),
        ("gang", "Spark does not answer; the thread that waits for it is left behind"),
        ("storage", "the checkpoint storage does not answer; what is to be deleted there may stay"),
    ],
)
def test_a_port_that_does_not_close_in_time_is_left_behind_with_a_warning(caplog, port, words):
    rig = Rig().run()
    rig.end()
    rig.do(*(PortClosed(other) for other in PATIENCE_MS if other != port))
    with caplog.at_level(logging.WARNING):
        rig.pass_ms(PATIENCE_MS[port] - 1)
        assert not rig.driver.is_over
        assert caplog.text == ""
        rig.pass_ms(1)
    assert [record.getMessage() for record in caplog.records] == [words]
    assert rig.driver.status is J.CANCELED


def test_a_bug_ends_the_job_and_its_processes_and_waits_for_the_ports_too(monkeypatch):
    rig = Rig().run()
    rig.driver.crash(ZeroDivisionError("division by zero"))
    monkeypatch.setattr(Job, "handle", lambda *_: pytest.fail("a job that has crashed is not asked any more"))
    assert [call for call, *_ in rig.calls[-5:]] == [
        "gang.cancel",
        "slots.close",
        "enumerators.close",
        "gang.close",
        "storage.close",
    ]
    assert rig.driver.status is J.RUNNING
    rig.do(ev.Tick(), *CLOSED)
    assert rig.driver.status is J.FAILED
    assert isinstance(rig.driver.error, JobFailedError)
    assert "internal error: ZeroDivisionError" in str(rig.driver.error)


def test_a_second_bug_ends_the_job_at_once():
    rig = Rig().run()
    rig.driver.crash(ZeroDivisionError("first"))
    rig.driver.crash(ZeroDivisionError("second"))
    assert rig.driver.is_over
    assert "first" in str(rig.driver.error)
    rig.driver.crash(ZeroDivisionError("third"))
    assert [call for call, *_ in rig.calls].count("on_end") == 1
