"""Whatever is lost, late, repeated or forged, in whatever order: what a completed checkpoint means does not change."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.checkpoint_kit import CELLS, CoordinatorKit, shared
from tidegate.core.ids import SubtaskId
from tidegate.core.states import JobStatus
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.events import SendToSlot
from tidegate.protocol import messages as m

cells = st.sampled_from(sorted(CELLS))
back = st.integers(0, 3)
"""How far back from the newest checkpoint a message refers."""

steps = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1, 100, 900, 1_000, 2_500])),
    st.tuples(st.just("enumerators"), back),
    st.tuples(st.just("enumerators failed"), back),
    st.tuples(st.just("ack"), back, cells, st.booleans(), st.integers(0, 4)),
    st.tuples(st.just("ack rest"), back),
    st.tuples(st.just("foreign ack"), back, cells),
    st.tuples(st.just("decline"), back, cells, st.booleans()),
    st.tuples(st.just("manifest"), back),
    st.tuples(st.just("manifest failed"), back),
    st.tuples(st.just("complete"), back),
    st.tuples(st.just("drain"), cells),
    st.tuples(st.just("end attempt")),
    st.tuples(st.just("begin attempt")),
)


@dataclass
class Oracle:
    """What was really said, kept apart from the coordinator: decides what may be complete."""

    attempt: int = 0
    running: bool = True
    triggered: dict[int, int] = field(default_factory=dict)
    """Checkpoints that the slots have heard of, and in which attempt."""
    acked: dict[int, set[SubtaskId]] = field(default_factory=dict)
    writing: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    completed: list[int] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)
    ids: list[int] = field(default_factory=list)


class Run:
    """One random history."""

    def __init__(self, retained: int, concurrent: int, tolerable: int) -> None:
        self.kit = CoordinatorKit(
            checkpoint_retained=retained,
            checkpoint_max_concurrent=concurrent,
            checkpoint_tolerable_failures=tolerable,
            checkpoint_timeout="5 s",
        )
        self.oracle = Oracle()
        self.retained, self.concurrent = retained, concurrent
        self.kit.on_action = self.check
        self.kit.begin()

    def check(self, action: ce.CheckpointAction) -> None:
        """Every action as it comes, then performed."""
        oracle = self.oracle
        self.kit.storage.perform(action)
        match action:
            case ce.SnapshotEnumerators(id):
                assert oracle.running
                assert id > max(oracle.ids, default=0), "ids increase, across attempts too"
                oracle.ids.append(id)
            case SendToSlot(_, m.TriggerCheckpoint(id)):
                oracle.triggered[id] = oracle.attempt
            case ce.WriteManifest(checkpoint):
                id = checkpoint.checkpoint_id
                assert oracle.acked.get(id) == set(CELLS), "every cell, from its own slot, in this attempt"
                assert {SubtaskId(s.vertex, s.subtask) for s in checkpoint.subtasks} == set(CELLS)
                assert id not in oracle.aborted
                oracle.writing.add(id)
            case SendToSlot(_, m.NotifyCheckpointComplete(id)):
                assert id in oracle.written
                assert id not in oracle.aborted
                if id not in oracle.completed:
                    assert id > max(oracle.completed, default=0)
                    oracle.completed.append(id)
            case SendToSlot(_, m.NotifyCheckpointAborted(id)):
                assert id not in oracle.completed
                oracle.aborted.add(id)

    def id(self, back: int) -> int:
        return max(1, (self.oracle.ids[-1] if self.oracle.ids else 1) - back)

    def ack(self, id: int, cell: SubtaskId, repeat: bool = False, base: int = 0) -> None:
        """A subtask acknowledges, perhaps twice, perhaps building on a checkpoint of long ago."""
        oracle = self.oracle
        if oracle.running and oracle.triggered.get(id) == oracle.attempt:
            oracle.acked.setdefault(id, set()).add(cell)
        older = [c for c in oracle.completed if c < id][-base:] if base else []
        more = [shared(older[0], cell, attempt) for attempt in (0, 1, 2)] if older else []
        more = [path for path in more if path in self.kit.storage.files | self.kit.storage.deleted]
        for _ in range(2 if repeat else 1):
            self.kit.ack(id, cell, *more)

    def manifest(self, id: int) -> None:
        if id in self.oracle.writing and id not in self.oracle.aborted:
            self.oracle.written.add(id)
        self.kit.manifest(id)

    def take(self, step: tuple) -> None:
        kit, oracle = self.kit, self.oracle
        match step:
            case ("pass", ms):
                kit.pass_ms(ms)
            case ("enumerators", back):
                kit.enumerators_answer(self.id(back))
            case ("enumerators failed", back):
                kit.do(ce.EnumeratorSnapshotFailed(self.id(back), "no broker"))
            case ("ack", back, cell, repeat, base):
                self.ack(self.id(back), cell, repeat, base)
            case ("ack rest", back):
                for cell in CELLS:
                    self.ack(self.id(back), cell)
            case ("foreign ack", back, cell):
                kit.ack(self.id(back), cell, slot=1 - CELLS[cell])
            case ("decline", back, cell, own):
                slot = CELLS[cell] if own else 1 - CELLS[cell]
                kit.say(slot, m.DeclineCheckpoint(self.id(back), cell.vertex, cell.index, "disk full"))
            case ("manifest", back):
                self.manifest(self.id(back))
            case ("manifest failed", back):
                kit.do(ce.ManifestFailed(self.id(back), "503"))
            case ("complete", back):
                kit.enumerators_answer(self.id(back))
                for cell in CELLS:
                    self.ack(self.id(back), cell)
                self.manifest(self.id(back))
            case ("drain", cell):
                kit.drain(cell)
            case ("end attempt",):
                oracle.running = False
                kit.do(ce.AttemptEnded("a slot was lost"))
            case ("begin attempt",):
                if not oracle.running:
                    oracle.running = True
                    oracle.attempt += 1
                    kit.begin()
        self.look()

    def look(self) -> None:
        """What holds after every step."""
        kit, oracle = self.kit, self.oracle
        assert kit.retained_ids() == oracle.completed[-self.retained :]
        for checkpoint in kit.completed.retained:
            assert checkpoint.paths() <= kit.storage.files, "a retained checkpoint has all its files"
        pending = set(kit.coordinator.pending_ids)
        assert len(pending) <= self.concurrent + 1, "one more for the final checkpoint"
        assert not pending or oracle.running
        ended = set(oracle.ids) - pending - set(oracle.completed)
        assert ended <= set(kit.storage.discarded), "every aborted checkpoint is discarded"


runs = st.builds(Run, st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 2, 100]))


@given(runs, st.lists(steps, max_size=80))
@settings(max_examples=500, deadline=None)
def test_no_order_of_messages_completes_an_incomplete_checkpoint_or_deletes_a_needed_file(run, sequence):
    run.take(("pass", 1_000))
    for step in sequence:
        run.take(step)


@given(runs, st.lists(steps, max_size=60), st.sampled_from([JobStatus.CANCELED, JobStatus.FINISHED]))
@settings(max_examples=200, deadline=None)
def test_after_the_end_of_the_job_there_is_exactly_what_is_retained_and_nothing_else(run, sequence, status):
    run.take(("pass", 1_000))
    for step in sequence:
        run.take(step)
    kept = set().union(*(c.paths() for c in run.kit.completed.retained))
    run.kit.do(ce.AttemptEnded("over"), ce.JobEnded(status))
    assert run.kit.storage.files == (kept if status is JobStatus.CANCELED else set())
    assert run.kit.coordinator.pending_ids == ()
    assert run.kit.pass_ms(10_000) == []


@given(runs, st.lists(steps, max_size=60))
@settings(max_examples=200, deadline=None)
def test_whatever_happened_before_a_quiet_attempt_completes_its_next_checkpoint(run, sequence):
    run.take(("pass", 1_000))
    for step in sequence:
        run.take(step)
    run.take(("end attempt",))
    run.take(("begin attempt",))
    before = len(run.oracle.completed)
    run.kit.trigger()
    run.take(("complete", 0))
    assert len(run.oracle.completed) == before + 1
