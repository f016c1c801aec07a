"""`JobClient`: what a user holds while a job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidegate.core.ids import JobId
from tidegate.core.states import JobStatus

if TYPE_CHECKING:
    from tidegate.jobmanager.checkpoint.statistics import CheckpointsOverview
    from tidegate.jobmanager.failover.job import JobOverview
    from tidegate.metrics.snapshot import JobMetrics


class JobClient(Protocol):
    """A running or ended job. Every call may come from any thread."""

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        ...

    @property
    def job_name(self) -> str:
        """The job's name."""
        ...

    def status(self) -> JobStatus:
        """Where the job stands now."""
        ...

    def cancel(self, timeout_s: float = 10.0) -> None:
        """Stop the job and wait until everything of it is gone; a job that has ended already is left alone."""
        ...

    def metrics(self) -> JobMetrics:
        """The latest `JobMetrics`: per operator and subtask."""
        ...

    def explain(self, format: str = "text") -> str:
        """The plan, in the formats of `Environment.explain`, with each operator's watermark, its lag, what holds it."""
        ...

    def overview(self) -> JobOverview:
        """How the job fares: the attempt, the restarts, the last error and what can be said about it."""
        ...

    def checkpoints(self) -> CheckpointsOverview:
        """The counts and the last checkpoints, each with its subtasks: durations, bytes, reasons of failures."""
        ...

    def result(self, timeout_s: float | None = None) -> JobMetrics:
        """Wait for the end; return the final `JobMetrics`, or raise `JobFailedError` / `JobCanceledError`."""
        ...
