"""Statistics of checkpoints for users: per checkpoint and subtask, for the last `checkpoint.history` of them.

The CheckpointCoordinator writes them on the job's thread; `CheckpointHistory.overview` may be called from any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from tidegate.core.ids import AttemptNumber, SubtaskId, VertexId
from tidegate.snapshot.handles import SubtaskCheckpointMetrics

CheckpointStatus = Literal["pending", "completed", "failed"]


class SubtaskCheckpointStatistics(msgspec.Struct, frozen=True):
    """One subtask's part of a checkpoint."""

    vertex: VertexId
    name: str
    subtask: int
    end_to_end_ms: int
    """From the trigger to the acknowledgement."""
    metrics: SubtaskCheckpointMetrics
    finished: bool = False
    """Whether the subtask had read all of its input."""


class CheckpointStatistics(msgspec.Struct, frozen=True):
    """One checkpoint."""

    checkpoint_id: int
    attempt: AttemptNumber
    status: CheckpointStatus
    triggered_ms: int
    """Wall clock; 0 while the enumerators have not answered."""
    end_to_end_ms: int
    """From the trigger to the end; while it is pending, to the last acknowledgement."""
    subtasks_total: int
    subtasks: tuple[SubtaskCheckpointStatistics, ...]
    """Those that have acknowledged, in the order in which they did."""
    reason: str = ""
    """Why it failed."""
    final: bool = False
    path: str = ""

    @property
    def bytes_full(self) -> int:
        """Bytes of all files that it refers to."""
        return sum(s.metrics.bytes_full for s in self.subtasks)

    @property
    def bytes_new(self) -> int:
        """Bytes that were written for it; the rest is shared with earlier ones."""
        return sum(s.metrics.bytes_new for s in self.subtasks)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of batches that its barriers overtook."""
        return sum(s.metrics.bytes_in_flight for s in self.subtasks)

    @property
    def alignment_ms(self) -> float:
        """The longest alignment of a subtask."""
        return max((s.metrics.alignment_ms for s in self.subtasks), default=0.0)

    @property
    def sync_ms(self) -> float:
        """The longest synchronous part of a subtask."""
        return max((s.metrics.sync_ms for s in self.subtasks), default=0.0)

    @property
    def async_ms(self) -> float:
        """The longest asynchronous part of a subtask."""
        return max((s.metrics.async_ms for s in self.subtasks), default=0.0)


class CheckpointsOverview(msgspec.Struct, frozen=True):
    """All checkpoints of a job, as far as they are remembered."""

    triggered: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0
    """How often an attempt began from a checkpoint."""
    restored_checkpoint: int | None = None
    """The checkpoint that the current attempt began from; None: it began without state."""
    latest_completed: CheckpointStatistics | None = None
    latest_failed: CheckpointStatistics | None = None
    history: tuple[CheckpointStatistics, ...] = ()
    """Oldest first; the pending ones are among them."""


class CheckpointTracker:
    """The statistics of one checkpoint while they grow."""

    def __init__(
        self,
        checkpoint_id: int,
        attempt: AttemptNumber,
        began_ms: int,
        names: Mapping[VertexId, str],
        subtasks_total: int,
        final: bool,
    ) -> None:
        self._id = checkpoint_id
        self._attempt = attempt
        self._began_ms = began_ms
        self._names = names
        self.total = subtasks_total
        self._final = final
        self._triggered_ms = 0
        self._subtasks: list[SubtaskCheckpointStatistics] = []
        self._ended: CheckpointStatistics | None = None

    def triggered(self, timestamp_ms: int) -> None:
        """The slots were notified."""
        self._triggered_ms = timestamp_ms

    def acknowledged(
        self, id: SubtaskId, metrics: SubtaskCheckpointMetrics, finished: bool, now_ms: int
    ) -> None:
        name = self._names.get(id.vertex, "")
        took_ms = now_ms - self._began_ms
        self._subtasks.append(
            SubtaskCheckpointStatistics(id.vertex, name, id.index, took_ms, metrics, finished)
        )

    def ended(self, status: CheckpointStatus, now_ms: int, reason: str = "", path: str = "") -> None:
        """The checkpoint is completed or failed: the statistics are final."""
        self._ended = self._statistics(status, now_ms - self._began_ms, reason, path)

    def statistics(self) -> CheckpointStatistics:
        """The statistics now. Any thread."""
        if self._ended is not None:
            return self._ended
        last_ms = self._subtasks[-1].end_to_end_ms if self._subtasks else 0
        return self._statistics("pending", last_ms)

    def _statistics(
        self, status: CheckpointStatus, took_ms: int, reason: str = "", path: str = ""
    ) -> CheckpointStatistics:
        return CheckpointStatistics(
            self._id,
            self._attempt,
            status,
            self._triggered_ms,
            took_ms,
            self.total,
            tuple(self._subtasks),
            reason,
            self._final,
            path,
        )


class CheckpointHistory:
    """The last checkpoints of a job and the counts of all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Replaced, never changed: readers on other threads hold the old tuple.
        self._trackers: tuple[CheckpointTracker, ...] = ()
        self._counts = CheckpointsOverview()

    def began(self, tracker: CheckpointTracker) -> None:
        """A checkpoint was triggered; the oldest beyond the limit is dropped."""
        self._trackers = (*self._trackers, tracker)[-self._limit :]
        self._counts = msgspec.structs.replace(self._counts, triggered=self._counts.triggered + 1)

    def completed(self, tracker: CheckpointTracker, now_ms: int, path: str) -> None:
        tracker.ended("completed", now_ms, path=path)
        count = self._counts.completed + 1
        self._counts = msgspec.structs.replace(
            self._counts, completed=count, latest_completed=tracker.statistics()
        )

    def failed(self, tracker: CheckpointTracker, now_ms: int, reason: str) -> None:
        tracker.ended("failed", now_ms, reason)
        count = self._counts.failed + 1
        self._counts = msgspec.structs.replace(self._counts, failed=count, latest_failed=tracker.statistics())

    def restored(self, checkpoint_id: int | None) -> None:
        """An attempt begins from this checkpoint; None: without state."""
        count = self._counts.restored + (checkpoint_id is not None)
        self._counts = msgspec.structs.replace(
            self._counts, restored=count, restored_checkpoint=checkpoint_id
        )

    def overview(self) -> CheckpointsOverview:
        """The counts and the last checkpoints now. Any thread."""
        history = tuple(tracker.statistics() for tracker in self._trackers)
        return msgspec.structs.replace(self._counts, history=history)
