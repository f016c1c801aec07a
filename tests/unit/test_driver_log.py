"""What the engine warns of in a slot is said in the driver's log: by whom, how often, and never without end."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.unit.job_master_kit import MasterKit
from tidegate.core.clock import ManualClock
from tidegate.core.ids import SubtaskId, VertexId
from tidegate.jobmanager import events as ev
from tidegate.protocol import messages as m
from tidegate.taskmanager.driver_log import DriverLog

LOG = logging.getLogger("tidegate.state.somewhere")


def on_a_thread(log: Callable[[str], None], words: str, name: str = "tidegate-uploads") -> None:
    thread = threading.Thread(target=log, args=(words,), name=name)
    thread.start()
    thread.join()


class Slot:
    """A slot's process: what it sends, and what its executor's log has."""

    def __init__(self) -> None:
        self.sent: list[m.SlotWarned] = []
        self.kept: list[str] = []
        self.clock = ManualClock()
        self.current: SubtaskId | None = None
        self.log = DriverLog(self.sent.append, lambda: self.current, self.clock)


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> Slot:
    made = Slot()
    kept = logging.Handler()
    monkeypatch.setattr(kept, "emit", lambda record: made.kept.append(record.getMessage()))
    monkeypatch.setattr(logging, "lastResort", kept)
    return made


@contextlib.contextmanager
def entered(slot: Slot) -> Iterator[None]:
    """As in a process where nobody has configured logging (pytest has)."""
    root = logging.getLogger()
    others, root.handlers = root.handlers, []
    try:
        with slot.log:
            yield
    finally:
        root.handlers = others


def test_a_warning_is_told_with_the_subtask_whose_code_said_it(slot: Slot):
    slot.current = SubtaskId(VertexId(2), 1)
    with entered(slot):
        LOG.warning("state %r is left behind", "total")
        logging.getLogger("somebody.else").warning("not ours")
        LOG.info("nothing to worry about")
        on_a_thread(LOG.error, "an upload raised")
    assert slot.sent == [
        m.SlotWarned("state 'total' is left behind", 1, VertexId(2), 1),
        m.SlotWarned("an upload raised"),
    ]
    assert slot.kept == ["not ours"]


def test_a_warning_for_each_record_is_told_whenever_there_are_twice_as_many(slot: Slot):
    with entered(slot):
        for _ in range(1_000):
            LOG.warning("again")
    assert [w.count for w in slot.sent] == [2**n for n in range(10)]
    assert len(slot.kept) == 990, "the executor's log has the rest"


def test_texts_that_are_always_new_are_limited_and_come_again_after_a_while(slot: Slot):
    with entered(slot):
        for n in range(1_000):
            LOG.warning("record %d", n)
        assert len(slot.sent) == 50
        assert slot.kept[-1] == "record 999"
        slot.clock.advance_ns(120 * 10**9)
        for n in range(10):
            LOG.warning("another record %d", n)
    assert len(slot.sent) == 52


def test_a_long_text_is_cut_and_a_traceback_keeps_its_end(slot: Slot):
    with entered(slot):
        try:
            raise ValueError("the reason" + "." * 100)
        except ValueError:
            LOG.exception("x" * 100_000)
    (warned,) = slot.sent
    assert len(warned.words) < 4_100
    assert warned.words.startswith("xxx")
    assert "ValueError: the reason..." in warned.words


def test_when_the_slot_has_ended_and_from_the_control_thread_it_goes_to_the_executors_log(slot: Slot):
    with entered(slot):
        on_a_thread(LOG.error, "ending the process", name="tidegate-control")
        assert slot.kept == ["ending the process"]
        slot.log.__exit__()
        LOG.warning("too late")
        slot.log.handle(logging.makeLogRecord({"msg": "in the middle of it", "levelno": logging.WARNING}))
    assert slot.kept[1:] == ["too late", "in the middle of it"]
    assert slot.sent == []


def test_the_job_manager_names_slot_and_subtask_and_adds_the_slots_up():
    kit = MasterKit().to_running()
    words = "state 'total' is left behind"
    (said,) = kit.say(0, m.SlotWarned(words, 1, VertexId(1), 0))
    assert isinstance(said, ev.ReportTrouble)
    name = kit.master.job_graph.vertices[1].name
    assert said.text.startswith("job 'pv': slot 0 (pid ")
    assert said.text.endswith(f"), {name!r} (subtask 0 of 2): {words}")
    assert kit.say(1, m.SlotWarned(words, 8)) == []
    (said,) = kit.say(0, m.SlotWarned(words, 2))
    assert said.text.endswith(f"): {words} (10 times in all slots; said again at 100)")
    (said,) = kit.say(0, m.SlotWarned("another", 1, VertexId(99), 0))
    assert said.text.endswith("): another"), "nonsense is not followed"
    assert kit.master.failure is None


def test_a_warning_that_cannot_be_sent_as_it_is_fails_nobody(slot: Slot, monkeypatch: pytest.MonkeyPatch):
    with entered(slot):
        LOG.warning("file %s", "a\udc80")
    assert [w.words for w in slot.sent] == ["file a\\udc80"]
    monkeypatch.setattr(slot.log, "format", lambda record: 1 // 0)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with entered(slot):
        LOG.warning("another")
    assert len(slot.sent) == 1
