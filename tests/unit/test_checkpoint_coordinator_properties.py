"""Whatever is lost, late, repeated or forged, in whatever order: what a completed checkpoint means does not change."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.checkpoint_kit import CELLS, CoordinatorKit, shared
from tidegate.core.ids import SubtaskId
from tidegate.core.states import JobStatus
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.events import SendToSlot
from tidegate.protocol import messages as m

WEIGHTS = {
    "round": 8,
    "open": 5,
    "pass": 5,
    "enumerators": 2,
    "enumerators failed": 1,
    "ack": 6,
    "ack rest": 2,
    "foreign ack": 3,
    "decline": 1,
    "manifest": 3,
    "manifest failed": 1,
    "drain": 1,
    "end attempt": 1,
    "begin attempt": 2,
}
"""Trouble alone hardly ever completes a checkpoint."""


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
    """One random history, made from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.retained, self.concurrent = self.random.randint(1, 3), self.random.randint(1, 3)
        self.kit = CoordinatorKit(
            checkpoint_retained=self.retained,
            checkpoint_max_concurrent=self.concurrent,
            checkpoint_tolerable_failures=self.random.choice([0, 2, 100, 100]),
            checkpoint_timeout="5 s",
        )
        self.oracle = Oracle()
        self.kit.on_action = self.check
        self.kit.begin()
        self.kit.trigger()
        for kind in self.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=self.random.randint(1, 120)):
            self.take(kind)
            self.look()

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

    def id(self) -> int:
        """The newest checkpoint, or one a little older."""
        back = self.random.choice([0, 0, 0, 1, 1, 2, 3])
        return max(1, self.oracle.ids[-1] - back)

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

    def take(self, kind: str) -> None:
        kit, oracle, chance = self.kit, self.oracle, self.random
        id, cell = self.id(), chance.choice(list(CELLS))
        other_slot = 1 - CELLS[cell]
        match kind:
            case "pass":
                kit.pass_ms(chance.choice([1, 100, 900, 1_000, 1_000, 2_500]))
            case "round":
                if chance.random() < 0.7:
                    kit.pass_ms(1_000)
                self.complete(chance.choice([0, 0, 1, 2, 3]))
            case "open":
                kit.pass_ms(1_000)
                kit.enumerators_answer(id)
            case "enumerators":
                kit.enumerators_answer(id)
            case "enumerators failed":
                kit.do(ce.EnumeratorSnapshotFailed(id, "no broker"))
            case "ack":
                self.ack(id, cell, chance.random() < 0.3, chance.randint(0, 4))
            case "ack rest":
                for cell in CELLS:
                    self.ack(id, cell)
            case "foreign ack":
                kit.ack(id, cell, slot=other_slot)
            case "decline":
                slot = chance.choice([CELLS[cell], other_slot])
                kit.say(slot, m.DeclineCheckpoint(id, cell.vertex, cell.index, "disk full"))
            case "manifest":
                self.manifest(id)
            case "manifest failed":
                kit.do(ce.ManifestFailed(id, "503"))
            case "drain":
                kit.drain(cell)
            case "end attempt":
                oracle.running = False
                kit.do(ce.TasksStopped("a slot was lost"))
            case "begin attempt":
                if not oracle.running:
                    oracle.running = True
                    oracle.attempt += 1
                    kit.begin()

    def complete(self, base: int = 0) -> None:
        """All that makes the newest checkpoint complete."""
        id = self.oracle.ids[-1]
        self.kit.enumerators_answer(id)
        for cell in CELLS:
            self.ack(id, cell, base=base)
        self.manifest(id)

    def look(self) -> None:
        """What holds after every step."""
        kit, oracle = self.kit, self.oracle
        assert kit.retained_ids() == oracle.completed[-self.retained :]
        for checkpoint in kit.completed.retained:
            assert checkpoint.files <= kit.storage.files, "a retained checkpoint has all its files"
            assert checkpoint.checkpoint_id in kit.storage.manifests
        pending = set(kit.coordinator.pending_ids)
        assert len(pending) <= self.concurrent + 1, "one more for the final checkpoint"
        assert not pending or oracle.running
        ended = set(oracle.ids) - pending - set(oracle.completed)
        assert ended <= set(kit.storage.discarded), "every aborted checkpoint is discarded"


seeds = st.integers(0, 2**32)


@given(seeds)
@settings(max_examples=250, deadline=None)
def test_no_order_of_messages_completes_an_incomplete_checkpoint_or_deletes_a_needed_file(seed):
    Run(seed)  # looks after every step


@given(seeds, st.sampled_from([JobStatus.CANCELED, JobStatus.FINISHED]))
@settings(max_examples=100, deadline=None)
def test_after_the_end_of_the_job_there_is_exactly_what_is_retained_and_nothing_else(seed, status):
    run = Run(seed)
    kept = set().union(*(c.files for c in run.kit.completed.retained))
    ids = set(run.kit.retained_ids())
    run.kit.do(ce.TasksStopped("over"), ce.JobEnded(status))
    cancelled = status is JobStatus.CANCELED
    assert run.kit.storage.files == (kept if cancelled else set())
    assert run.kit.storage.manifests == (ids if cancelled else set())
    assert run.kit.coordinator.pending_ids == ()
    assert run.kit.pass_ms(10_000) == []


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_whatever_happened_before_a_quiet_attempt_completes_its_next_checkpoint(seed):
    run = Run(seed)
    run.take("end attempt")
    run.take("begin attempt")
    before = len(run.oracle.completed)
    run.kit.trigger()
    run.complete()
    assert len(run.oracle.completed) == before + 1


def test_the_random_histories_are_worth_their_time():
    runs = [Run(seed) for seed in range(40)]
    assert sum(len(run.oracle.completed) for run in runs) > 200
    assert sum(len(run.oracle.aborted) for run in runs) > 60
    assert sum(run.oracle.attempt for run in runs) > 20
    assert sum(bool(run.kit.found(ce.FailAttempt)) for run in runs) > 3
