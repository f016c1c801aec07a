"""`JobClient`: what a user holds of a running job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidegate.core.ids import JobId
from tidegate.core.states import JobStatus

if TYPE_CHECKING:
    from tidegate.jobmanager.checkpoint.statistics import CheckpointsOverview
    from tidegate.jobmanager.failover.job import JobOverview
    from tidegate.metrics.snapshot import JobMetrics


class JobClient(Protocol):
    """A running or ended job. Every method may be called from any thread."""

    @property
    def job_id(self) -> JobId: ...

    @property
    def job_name(self) -> str: ...

    def status(self) -> JobStatus:
        """The current status of the job."""
        ...

    def cancel(self, timeout_s: float = 10.0) -> None:
        """Stop the job and wait until all its processes are gone. Does nothing if the job has ended."""
        ...

    def metrics(self) -> JobMetrics:
        """The latest `JobMetrics`, per operator and subtask."""
        ...

    def explain(self, format: str = "text") -> str:
        """The plan, in the formats of `Environment.explain`.

        It shows each operator's watermark, its lag and what holds it back.
        """
        ...

    def overview(self) -> JobOverview:
        """The state of the job: the attempt, the restarts, the last error and advice about it."""
        ...

    def checkpoints(self) -> CheckpointsOverview:
        """The counts and the latest checkpoints, each with its subtasks: durations, bytes, reasons for failures."""
        ...

    def result(self, timeout_s: float | None = None) -> JobMetrics:
        """Wait for the end and return the final `JobMetrics`, or raise `JobFailedError` or `JobCanceledError`."""
        ...
