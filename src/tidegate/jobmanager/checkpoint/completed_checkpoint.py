"""Acknowledged and completed checkpoints, as values, and the manifest of one."""

from __future__ import annotations

import msgspec

from tidegate.core.ids import AttemptNumber, JobId, OperatorId
from tidegate.graph.job_graph import JobGraph
from tidegate.snapshot.handles import SubtaskCheckpointMetrics, SubtaskSnapshot
from tidegate.snapshot.manifest import Manifest, make_manifest


class CompletedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint whose manifest is durable: what the JobManager must remember of it. The rest is in the manifest."""

    checkpoint_id: int
    attempt: AttemptNumber
    path: str
    """Path of its manifest, as shown in messages."""
    files: frozenset[str]
    """The paths of all state files that it needs."""
    final: bool = False
    """Whether it was triggered after all tasks had drained."""
    external: bool = False
    """Whether it belongs to another job (this one was started from its path) and is never deleted by this job."""


class AcknowledgedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that all subtasks have acknowledged: the state of every subtask and of every enumerator."""

    checkpoint_id: int
    attempt: AttemptNumber
    triggered_ms: int
    """Wall clock of the JobManager."""
    duration_ms: int
    """From the trigger to the last acknowledgement."""
    subtasks: tuple[SubtaskSnapshot, ...]
    """One for each subtask of the job, by vertex and index."""
    metrics: tuple[SubtaskCheckpointMetrics, ...]
    """In the order of `subtasks`."""
    enumerators: dict[OperatorId, bytes]
    """The state of each source's enumerator, as JSON."""
    final: bool = False

    def completed(self, path: str) -> CompletedCheckpoint:
        """This checkpoint after its manifest has become durable."""
        files = frozenset(file.path for subtask in self.subtasks for file in subtask.files())
        return CompletedCheckpoint(self.checkpoint_id, self.attempt, path, files, self.final)

    def manifest(self, job_id: JobId, job_graph: JobGraph) -> Manifest:
        """The manifest to write; for the driver."""
        metrics = zip(self.subtasks, self.metrics, strict=True)
        return make_manifest(
            job_id=job_id,
            job_name=job_graph.name,
            attempt=self.attempt,
            checkpoint_id=self.checkpoint_id,
            triggered_ms=self.triggered_ms,
            completed_ms=self.triggered_ms + self.duration_ms,
            vertices=job_graph.vertices,
            snapshots=self.subtasks,
            enumerators=self.enumerators,
            metrics={(subtask.vertex, subtask.subtask): m for subtask, m in metrics},
            edges=job_graph.edges,
        )


def checkpoint_of(manifest: Manifest, path: str, *, external: bool = False) -> CompletedCheckpoint:
    """The checkpoint of an earlier run that a manifest describes; for the driver, when a job is resumed."""
    return CompletedCheckpoint(
        manifest.checkpoint_id, AttemptNumber(manifest.attempt), path, manifest.paths, external=external
    )
