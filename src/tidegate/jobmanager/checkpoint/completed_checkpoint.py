"""CompletedCheckpoint: everything that a completed checkpoint is, as one value; the manifest is made from it."""

from __future__ import annotations

import msgspec

from tidegate.core.ids import AttemptNumber, OperatorId
from tidegate.snapshot.handles import SubtaskCheckpointMetrics, SubtaskSnapshot


class CompletedCheckpoint(msgspec.Struct, frozen=True):
    """One consistent cut: the state of every subtask and of every enumerator."""

    checkpoint_id: int
    attempt: AttemptNumber
    triggered_ms: int
    """Wall clock of the JobManager."""
    duration_ms: int
    """From the trigger to the last acknowledgement."""
    subtasks: tuple[SubtaskSnapshot, ...]
    """One for each subtask of the job, by vertex and index."""
    metrics: tuple[SubtaskCheckpointMetrics, ...] = ()
    """In the order of `subtasks`."""
    enumerators: dict[OperatorId, bytes] = {}
    """The state of each source's enumerator, as JSON."""
    final: bool = False
    """Whether it was triggered after all tasks had drained."""
    path: str = ""
    """Of its manifest; empty until that is written."""
    external: bool = False
    """Whether it is somebody else's (the job was started from its path): never deleted by this job."""

    def paths(self) -> frozenset[str]:
        """Every file that it needs, the manifest included."""
        files = {file.path for subtask in self.subtasks for file in subtask.files()}
        return frozenset(files | {self.path} if self.path else files)
