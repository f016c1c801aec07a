"""What the tests of checkpoints share: a coordinator with a clock and slots, and a fake storage that keeps files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegate.core.ids import AttemptNumber, OperatorId, SlotId, SubtaskId, VertexId
from tidegate.core.options import Options
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.completed_checkpoint import CompletedCheckpoint
from tidegate.jobmanager.checkpoint.coordinator import CheckpointCoordinator
from tidegate.jobmanager.checkpoint.retention import CompletedCheckpoints, writer_of
from tidegate.jobmanager.events import SendToSlot, Tick
from tidegate.protocol import messages as m
from tidegate.snapshot.handles import (
    KeyedStateHandle,
    OperatorSnapshot,
    StateFile,
    SubtaskCheckpointMetrics,
    SubtaskSnapshot,
)

CELLS = {SubtaskId(VertexId(vertex), index): SlotId(index) for vertex in range(2) for index in range(2)}
"""Four stateful subtasks in two slots: TaskA0, TaskA1, TaskB0, TaskB1."""
NAMES = {VertexId(0): "source", VertexId(1): "count"}


def shared(checkpoint_id: int, id: SubtaskId, attempt: int = 0) -> str:
    return f"shared/c{checkpoint_id}-a{attempt}-op{id.vertex}-{id.index}-state"


def snapshot_of(
    id: SubtaskId, *paths: str, finished: bool = False, operator: OperatorId | None = None
) -> SubtaskSnapshot:
    files = tuple(StateFile(path, 10, "xxh:0") for path in paths)
    keyed = KeyedStateHandle("heap", (0, 127), (), files, 10)
    owner = operator or OperatorId(f"op{id.vertex}")
    operators = (OperatorSnapshot(owner, keyed),) if paths else ()
    return SubtaskSnapshot(id.vertex, id.index, operators, finished=finished)


def completed_checkpoint(checkpoint_id: int, *paths: str, external: bool = False) -> CompletedCheckpoint:
    manifest = f"chk-{checkpoint_id}/_metadata"
    return CompletedCheckpoint(checkpoint_id, AttemptNumber(0), manifest, frozenset(paths), external=external)


class FakeStorage:
    """Performs the storage actions on a set of names."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        """State files."""
        self.manifests: set[int] = set()
        self.discarded: list[int] = []
        self.deleted: set[str] = set()
        """Everything that was ever deleted."""

    def perform(self, action: ce.CheckpointAction) -> None:
        match action:
            case ce.StoreAttachments(_, attachments):
                self.files |= set(attachments)
            case ce.WriteManifest(checkpoint):
                self.manifests.add(checkpoint.checkpoint_id)
            case ce.DiscardCheckpoint(id, keep, delete):
                self.discarded.append(id)
                self.manifests.discard(id)
                self._delete({f for f in self.files if writer_of(f) == id and f not in keep} | set(delete))
            case ce.Sweep(keep, before):
                self._delete({f for f in self.files if (writer_of(f) or 0) < before and f not in keep})

    def _delete(self, paths: set[str]) -> None:
        self.files -= paths
        self.deleted |= paths


class CoordinatorKit:
    """A coordinator, its clock and its storage; `do` hands it events and keeps every action."""

    def __init__(
        self, *, found: tuple[CompletedCheckpoint, ...] = (), first_id: int = 1, **options: object
    ) -> None:
        given = {"checkpoint_interval": "1 s", "checkpoint_retained": 1, **options}
        self.options = Options().with_keywords(**given).checked()
        self.completed = CompletedCheckpoints(self.options.checkpoint_retained, found)
        self.coordinator = CheckpointCoordinator(self.options, self.completed, first_id)
        self.storage = FakeStorage()
        self.now_ms = 1_000
        self.actions: list[ce.CheckpointAction] = []
        self.attempt = -1
        self.on_action: Callable[[ce.CheckpointAction], None] = self.storage.perform

    def do(self, *events: ce.CheckpointEvent) -> list[ce.CheckpointAction]:
        new: list[ce.CheckpointAction] = []
        for event in events:
            actions = self.coordinator.handle(event, self.now_ms)
            for action in actions:
                self.on_action(action)
            new += actions
        self.actions += new
        return new

    def begin(self, *, start: bool = True, cells: Mapping[SubtaskId, SlotId] = CELLS) -> CoordinatorKit:
        self.attempt += 1
        self.do(ce.AttemptBegan(AttemptNumber(self.attempt), cells, NAMES))
        if start:
            self.do(ce.TasksStarted())
        return self

    def pass_ms(self, duration_ms: int) -> list[ce.CheckpointAction]:
        """Let time pass in ticks of 100 ms at most."""
        new: list[ce.CheckpointAction] = []
        left_ms = duration_ms
        while left_ms > 0:
            step_ms = min(100, left_ms)
            self.now_ms += step_ms
            left_ms -= step_ms
            new += self.do(Tick())
        return new

    def say(self, slot: int, *messages: m.CheckpointMessage) -> list[ce.CheckpointAction]:
        return self.do(*(ce.CheckpointMessageReceived(SlotId(slot), message) for message in messages))

    def enumerators_answer(self, checkpoint_id: int) -> list[ce.CheckpointAction]:
        states = {OperatorId("op0"): b'{"next":3}'}
        return self.do(ce.EnumeratorsSnapshotted(checkpoint_id, states, 1_700_000_000_000 + self.now_ms))

    def ack(
        self,
        checkpoint_id: int,
        id: SubtaskId,
        *more_files: str,
        slot: int | None = None,
        finished: bool = False,
    ) -> list[ce.CheckpointAction]:
        """A subtask acknowledges: a file of its own for this checkpoint, and those that it builds on."""
        own = shared(checkpoint_id, id, max(self.attempt, 0))
        self.storage.files.add(own)
        snapshot = snapshot_of(id, *more_files, own, finished=finished)
        metrics = SubtaskCheckpointMetrics(1.5, 2.0, 3.0, 0.5, 10, 10 * (1 + len(more_files)), 4)
        message = m.AcknowledgeCheckpoint(
            checkpoint_id, id.vertex, id.index, m.encode_snapshot(snapshot), metrics
        )
        return self.say(CELLS[id] if slot is None else slot, message)

    def ack_all(self, checkpoint_id: int, *more_files: str) -> list[ce.CheckpointAction]:
        return [action for id in CELLS for action in self.ack(checkpoint_id, id, *more_files)]

    def manifest(self, checkpoint_id: int) -> list[ce.CheckpointAction]:
        return self.do(ce.ManifestWritten(checkpoint_id, f"chk-{checkpoint_id}/_metadata"))

    def complete(self, checkpoint_id: int, *more_files: str) -> list[ce.CheckpointAction]:
        """All that makes a triggered checkpoint complete."""
        self.enumerators_answer(checkpoint_id)
        self.ack_all(checkpoint_id, *more_files)
        return self.manifest(checkpoint_id)

    def trigger(self) -> int:
        """Let time pass until a checkpoint is triggered, and return its id."""
        for _ in range(200):
            for action in self.pass_ms(100):
                if isinstance(action, ce.SnapshotEnumerators):
                    return action.checkpoint_id
        raise AssertionError("no checkpoint was triggered within 20 s")

    def drain(self, *ids: SubtaskId) -> list[ce.CheckpointAction]:
        return [a for id in ids or CELLS for a in self.say(CELLS[id], m.TaskDrained(id.vertex, id.index))]

    def found(self, kind: type, actions: list[ce.CheckpointAction] | None = None) -> list:
        return [a for a in (self.actions if actions is None else actions) if isinstance(a, kind)]

    def sent(self, kind: type, actions: list[ce.CheckpointAction] | None = None) -> list[tuple[int, int]]:
        """(slot, checkpoint id) of every message of a kind."""
        sends = self.found(SendToSlot, actions)
        return [(s.slot, s.message.checkpoint_id) for s in sends if isinstance(s.message, kind)]

    def triggered(self, actions: list[ce.CheckpointAction] | None = None) -> list[int]:
        return [a.checkpoint_id for a in self.found(ce.SnapshotEnumerators, actions)]

    def retained_ids(self) -> list[int]:
        return [c.checkpoint_id for c in self.completed.retained]

    def status(self, checkpoint_id: int) -> str:
        [found] = [s for s in self.coordinator.overview().history if s.checkpoint_id == checkpoint_id]
        return found.status
