"""The part of a deployment that restores the tasks of one slot from a checkpoint."""

from __future__ import annotations

from tidegate.core.ids import OperatorId, SubtaskId
from tidegate.protocol import messages as m
from tidegate.snapshot.assignment import SubtaskRestore, decode_restore
from tidegate.state.operator_states import Restored
from tidegate.storage.job_storage import decode_storage
from tidegate.storage.storage import CheckpointStorage
from tidegate.taskmanager.barriers.in_flight import OvertakenBatch, decode_in_flight


class SlotRestore:
    """The checkpoint storage, and what each subtask of the slot restores; may be empty."""

    def __init__(self, deploy: m.Deploy) -> None:
        self.storage: CheckpointStorage | None = decode_storage(deploy.storage) if deploy.storage else None
        """Where checkpoints go; None: they are off."""
        self._subtasks: dict[SubtaskId, SubtaskRestore] = {}
        for data in deploy.restore:
            restore = decode_restore(data)
            self._subtasks[SubtaskId(restore.vertex, restore.subtask)] = restore

    def is_finished(self, subtask: SubtaskId) -> bool:
        """Whether the subtask had finished its work before the checkpoint."""
        return subtask in self._subtasks and self._subtasks[subtask].finished

    def operator(self, subtask: SubtaskId, operator: OperatorId) -> Restored | None:
        """What an operator of the subtask restores; None: it begins empty."""
        if self.storage is None or subtask not in self._subtasks:
            return None
        for found in self._subtasks[subtask].operators:
            if found.operator == operator:
                return Restored(found.keyed, found.states, self.storage)
        return None

    def in_flight(self, subtask: SubtaskId) -> list[OvertakenBatch]:
        """The batches that were in flight, in order."""
        restore = self._subtasks.get(subtask)
        if self.storage is None or restore is None or restore.in_flight is None:
            return []
        file = restore.in_flight.file
        return decode_in_flight(self.storage.read(file), self.storage.show(file.path))
