"""Whatever happens in whatever order: the master never raises, always ends once time goes on, and ends once."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.job_master_kit import MasterKit, address, registration
from tidegate.core.ids import OperatorId, SlotId, VertexId
from tidegate.core.states import JOB_TRANSITIONS, ExecutionState, JobStatus
from tidegate.jobmanager import events as ev
from tidegate.protocol import messages as m

slots = st.integers(-1, 3).map(SlotId)
few = st.integers(-1, 2)
operators = st.sampled_from(["id-numbers", "id-sink", "nothing"]).map(OperatorId)
vertices = st.integers(-1, 2).map(VertexId)

messages = st.one_of(
    st.builds(lambda slot: m.RegisterSlot(address(slot), "e"), few),
    st.just(m.SlotHeartbeat(1, ((VertexId(0), b"x"),), 5, "parse")),
    st.builds(m.TaskStateChanged, vertices, few, st.sampled_from(ExecutionState)),
    st.builds(lambda v, s: m.TaskFailed(v, s, "parse", "ValueError: bad", ""), vertices, few),
    st.builds(m.PeerLost, slots, st.just("reset")),
    st.builds(m.RequestSplit, operators, few),
    st.builds(m.CollectedBatch, operators, few, st.integers(0, 3), st.just(b"")),
    st.just(m.SlotFinished()),
)
events = st.one_of(
    st.just(ev.SubmissionRequested()),
    st.builds(ev.SlotsCounted, st.one_of(st.none(), st.integers(0, 4)), st.integers(0, 4)),
    st.just(ev.CountingFailed("no")),
    st.just(ev.GangStarted()),
    st.builds(ev.GangEnded, st.one_of(st.none(), st.just("stage failed"))),
    st.builds(registration, few),
    st.builds(ev.MessageReceived, slots, messages),
    st.builds(ev.MessageMalformed, slots, st.just("bytes")),
    st.builds(ev.SlotDisconnected, slots, st.just("eof")),
    st.just(ev.CancelRequested("enough")),
    st.builds(ev.SplitsAssigned, operators, few, st.just((b"{}",))),
    st.builds(ev.SplitsExhausted, operators, few),
    st.builds(ev.EnumeratorFailed, operators, st.just("no file"), st.just("")),
    st.builds(ev.CollectedConsumed, operators, few, st.integers(0, 3)),
    st.just(ev.Tick()),
)
steps = st.lists(st.tuples(events, st.sampled_from([0, 1, 50, 299, 300, 1_000, 5_000, 20_000])), max_size=60)

# Random events alone hardly ever get a job to run, so the sequences begin anywhere on the good path.
beginnings = st.sampled_from(["nothing", "to_waiting", "to_starting", "to_running"])


def begun(beginning: str) -> MasterKit:
    kit = MasterKit(slots_wait_timeout="20 s", heartbeat_timeout="2 s", cancel_grace="1 s")
    if beginning != "nothing":
        getattr(kit, beginning)()
    return kit


@given(beginnings, steps)
@settings(max_examples=400, deadline=None)
def test_any_order_of_events_ends_the_job_exactly_once_when_time_goes_on(beginning, sequence):
    kit = begun(beginning)
    for event, wait_ms in sequence:
        kit.now_ms += wait_ms
        kit.do(event)
    kit.do(ev.SubmissionRequested())
    kit.pass_ms(45_000, beating=False)

    assert kit.master.status.is_terminal
    [end] = kit.ends()
    assert end.status is kit.master.status
    assert bool(end.message) == (end.status is not JobStatus.FINISHED)
    assert kit.actions.index(end) == max(
        i for i, action in enumerate(kit.actions) if not isinstance(action, ev.CloseSlot)
    ), "after the end nothing is done but to close connections that come late"
    history = kit.master.status_history
    assert (JobStatus.CREATED, *kit.moves, end.status) == history, "each move is told, once and in order"
    assert all(b in JOB_TRANSITIONS[a] for a, b in itertools.pairwise(history))
    assert all(e.state.is_terminal for e in kit.master.graph)
    assert sum(isinstance(a, ev.StartGang) for a in kit.actions) <= 1
    assert sum(isinstance(a, ev.CancelGang) for a in kit.actions) <= 1


@given(beginnings, steps)
@settings(max_examples=200, deadline=None)
def test_a_slot_gets_its_deployment_once_and_before_anything_about_its_work(beginning, sequence):
    kit = begun(beginning)
    for event, wait_ms in sequence:
        kit.now_ms += wait_ms
        kit.do(event)
    for slot in kit.slots:
        sent = [type(a.message) for a in kit.actions if isinstance(a, ev.SendToSlot) and a.slot == slot]
        assert sent.count(m.Deploy) <= 1
        work = [
            i for i, kind in enumerate(sent) if kind in (m.AssignSplits, m.NoMoreSplits, m.CollectedTaken)
        ]
        if work:
            assert sent.index(m.Deploy) < work[0]
        if m.Cancel in sent:
            assert not set(sent[sent.index(m.Cancel) + 1 :]) - {m.MasterHeartbeat}, "Cancel is the last word"


@given(steps)
@settings(max_examples=200, deadline=None)
def test_a_job_is_finished_only_if_every_subtask_and_every_slot_said_so(sequence):
    kit = begun("to_running")
    finished: set[int] = set()
    for event, wait_ms in sequence:
        kit.now_ms += wait_ms
        kit.do(event)
        if isinstance(event, ev.MessageReceived) and isinstance(event.message, m.SlotFinished):
            finished.add(event.slot)
    if kit.master.status is JobStatus.FINISHED:
        assert finished >= set(kit.slots)
        assert {e.state for e in kit.master.graph} == {ExecutionState.FINISHED}


def last_words(kit: MasterKit, slot: int) -> list[ev.Event]:
    """All that a slot has to say at the end of its work, in its order."""
    states = [
        m.TaskStateChanged(d.vertex, d.subtask, ExecutionState.FINISHED)
        for d in kit.master.graph.deployments(SlotId(slot))
    ]
    said = [*states, m.SlotHeartbeat(9), m.SlotFinished()]
    return [*(ev.MessageReceived(SlotId(slot), s) for s in said), ev.SlotDisconnected(SlotId(slot), "closed")]


@given(st.lists(st.integers(0, 2), max_size=20), st.sampled_from([None, "executor lost"]), st.booleans())
@settings(deadline=None)
def test_a_bounded_job_finishes_however_the_last_words_of_slots_and_spark_mix(order, error, repeated):
    kit = begun("to_running")
    queues = [last_words(kit, 0), last_words(kit, 1), [ev.GangEnded(error)]]
    for choice in [*order, *(q for q, words in enumerate(queues) for _ in words)]:
        if queues[choice]:
            event = queues[choice].pop(0)
            kit.now_ms += 10
            kit.do(*([event, event] if repeated else [event]))
    assert kit.ends() == [ev.AttemptEnded(JobStatus.FINISHED, "")]
