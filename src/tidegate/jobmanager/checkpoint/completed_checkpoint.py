"""Checkpoints that all subtasks have acknowledged, and those that are complete: values, and their manifests."""

from __future__ import annotations

import msgspec

from tidegate.core.ids import AttemptNumber, JobId, OperatorId
from tidegate.graph.job_graph import JobGraph
from tidegate.snapshot.handles import SubtaskCheckpointMetrics, SubtaskSnapshot
from tidegate.snapshot.manifest import Manifest, make_manifest


class CompletedCheckpoint(msgspec.Struct, frozen=True):
    """One whose manifest is durable. What is in it is in the manifest; here is what the JobManager must remember."""

    checkpoint_id: int
    attempt: AttemptNumber
    path: str
    """Of its manifest, as messages write it."""
    files: frozenset[str]
    """The paths of all state files that it needs."""
    final: bool = False
    """Whether it was triggered after all tasks had drained."""
    external: bool = False
    """Whether it is somebody else's (the job was started from its path): never deleted by this job."""


class AcknowledgedCheckpoint(msgspec.Struct, frozen=True):
    """One consistent cut: the state of every subtask and of every enumerator."""

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
        """The same once its manifest is durable."""
        files = frozenset(file.path for subtask in self.subtasks for file in subtask.files())
        return CompletedCheckpoint(self.checkpoint_id, self.attempt, path, files, self.final)

    def manifest(self, job_id: JobId, job_graph: JobGraph) -> Manifest:
        """What is to be made durable; for the driver."""
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
    """A checkpoint of an earlier run, by its manifest; for the driver, when a job is resumed."""
    return CompletedCheckpoint(
        manifest.checkpoint_id, AttemptNumber(manifest.attempt), path, manifest.paths, external=external
    )
