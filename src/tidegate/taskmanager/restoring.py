"""What a deployment brings back from a checkpoint, for the tasks of one slot."""

from __future__ import annotations

from tidegate.core.ids import OperatorId, SubtaskId
from tidegate.protocol import messages as m
from tidegate.state.operator_states import Restored
from tidegate.storage.storage import CheckpointStorage
from tidegate.taskmanager.in_flight import OvertakenBatch


class SlotRestore:
    """Where checkpoints are stored, and what each subtask of the slot restores. Empty where there is nothing."""

    def __init__(self, deploy: m.Deploy) -> None:
        self.storage: CheckpointStorage | None = None
        """Where checkpoints go; None: they are off."""

    def is_finished(self, subtask: SubtaskId) -> bool:
        """Whether the subtask had done all its work."""
        return False

    def operator(self, subtask: SubtaskId, operator: OperatorId) -> Restored | None:
        """What an operator of the subtask restores."""
        return None

    def in_flight(self, subtask: SubtaskId) -> list[OvertakenBatch]:
        """The batches that were on their way, in order."""
        return []
