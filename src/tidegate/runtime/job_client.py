"""The user's handle on a job whose JobManager is in this process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tidegate.core.errors import ProgramError
from tidegate.core.ids import JobId, OperatorId
from tidegate.core.states import JobStatus
from tidegate.graph.explain import explain_running
from tidegate.graph.explain_plan import Plan
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint.statistics import CheckpointsOverview
from tidegate.jobmanager.driver import JobDriver
from tidegate.jobmanager.events import DeliverCollected
from tidegate.jobmanager.execution_graph import ExecutionGraphDescription
from tidegate.jobmanager.failover.job import JobOverview
from tidegate.jobmanager.slots import SlotDescription
from tidegate.metrics.snapshot import RECORDS_BEFORE, JobMetrics, SubtaskMetrics, VertexMetrics
from tidegate.runtime.collected_results import CollectedResults
from tidegate.runtime.job_runner import JobRunner

T = TypeVar("T")


class DriverClient(ABC):
    """Reads the driver of a job, from any thread. Subclasses differ in what drives the job."""

    def __init__(self, plan: Plan | None = None) -> None:
        self._plan = plan

    def __repr__(self) -> str:
        return f"<JobClient of job {self.job_name!r} ({self.job_id}): {self.status().name}>"

    @property
    @abstractmethod
    def _driver(self) -> JobDriver: ...

    @property
    def job_id(self) -> JobId:
        return self._driver.job.job_id

    @property
    def job_name(self) -> str:
        return self._driver.job_graph.name

    def status(self) -> JobStatus:
        """The job's status now; terminal only when nothing of the job is left."""
        return self._driver.status

    def waiting_for(self) -> str:
        """What the job waits for (missing slots, with both numbers); empty when it does not wait."""
        return self._driver.job.waiting_for

    def metrics(self) -> JobMetrics:
        """The latest metrics, per vertex and subtask, as far as the slots have reported them."""
        driver = self._driver
        reported: dict[int, dict[int, SubtaskMetrics]] = {}
        for vertex, raw in driver.job.master.subtask_metrics():
            try:
                metrics = msgspec.msgpack.decode(raw, type=SubtaskMetrics)
            except msgspec.MsgspecError:
                continue  # a display must not fail the job
            reported.setdefault(vertex, {})[metrics.subtask] = metrics
        # Subtasks count from the start of their attempt; how many records came before, only some sources know.
        has_no_past = driver.job.overview().restored_checkpoint is None
        known = {
            v for v, found in reported.items() if any(RECORDS_BEFORE in s.gauges for s in found.values())
        }
        return JobMetrics(
            name=self.job_name,
            status=self.status().name,
            elapsed_ms=driver.elapsed_ms,
            vertices=tuple(
                VertexMetrics(
                    vertex=v.id,
                    name=v.name,
                    parallelism=v.parallelism,
                    subtasks=tuple(m for _, m in sorted(reported.get(v.id, {}).items())),
                    records_expected=(
                        driver.records_expected.get(v.operators[0].id)
                        if has_no_past or v.id in known
                        else None
                    ),
                )
                for v in driver.job_graph.vertices
            ),
            job_id=self.job_id,
            attempt=driver.attempt,
            catch_up=driver.job.catch_up,
        )

    def explain(self, format: str = "text") -> str:
        """The plan with each operator's watermark, its lag and what holds it back; formats as `Environment.explain`."""
        if self._plan is None:
            raise ProgramError(
                f"job {self.job_name!r} was started from a JobGraph alone, so there is no plan to show"
            )
        return explain_running(self._plan, self.metrics(), format)

    def execution_graph(self) -> ExecutionGraphDescription:
        """Every subtask with its slot and its state, now."""
        return self._driver.job.master.graph.describe()

    def slots(self) -> list[SlotDescription]:
        """The slot table: which process, on which host and executor, runs which subtasks."""
        return self._driver.job.master.slot_table()

    def status_history(self) -> tuple[JobStatus, ...]:
        """All states that the job went through."""
        return self._driver.job.status_history

    def overview(self) -> JobOverview:
        """The attempt, the restarts, the last error and its diagnosis."""
        return self._driver.job.overview()

    def checkpoints(self) -> CheckpointsOverview:
        """The counts and the last checkpoints, each with its subtasks: durations, bytes, states, reasons."""
        return self._driver.job.checkpoints()

    def _final(self) -> JobMetrics:
        """The metrics of a job that has ended, or its error, raised."""
        error = self._driver.error
        if error is not None:
            # A new exception each time: several threads may wait, and each adds its own traceback.
            raise type(error)(*error.args)
        return self.metrics()


class LocalJobClient(DriverClient):
    """The `JobClient` of a `JobRunner`. Any thread may call."""

    def __init__(self, runner: JobRunner, plan: Plan | None = None) -> None:
        super().__init__(plan)
        self._runner = runner
        self._companions: list[threading.Thread] = []

    @property
    def _driver(self) -> JobDriver:
        return self._runner.driver

    def accompany(self, thread: threading.Thread) -> None:
        """Let `result` also wait for a thread that ends with the job (one that prints what the job sends)."""
        self._companions.append(thread)

    def cancel(self, timeout_s: float = 10.0, reason: str = "cancelled by its client") -> None:
        """Stop the job and wait until nothing of it is left; does nothing if the job has ended."""
        self._runner.post(ev.CancelRequested(reason))
        if not self._runner.wait(timeout_s):
            raise TimeoutError(
                f"job {self.job_name!r} has not ended within {timeout_s:g} s of its cancellation"
            )

    def result(self, timeout_s: float | None = None) -> JobMetrics:
        """Wait for the end; return the final `JobMetrics`, or raise `JobFailedError` / `JobCanceledError`."""
        if not self._runner.wait(timeout_s):
            raise TimeoutError(f"job {self.job_name!r} has not ended within {timeout_s:g} s")
        for thread in self._companions:
            thread.join(timeout_s)
        return self._final()

    def collected(self, operator_id: OperatorId) -> CollectedResults[bytes]:
        """The batches (Arrow streams) of a collect sink as they arrive; a failed job raises its error at the end.

        Taking a batch lets the sink send another. Leaving early (`close()`, or dropping the iterator) cancels the job.
        """
        return self._collected(operator_id, lambda batch: batch.data)

    def collected_batches(self, operator_id: OperatorId) -> CollectedResults[DeliverCollected]:
        """As `collected`, with the subtask and the sequence number of each batch: for print sinks."""
        return self._collected(operator_id, lambda batch: batch)

    def _collected(
        self, operator_id: OperatorId, convert: Callable[[DeliverCollected], T]
    ) -> CollectedResults[T]:
        def cancel(wait: bool) -> None:
            reason = "the program stopped taking its results"
            if wait:
                self.cancel(reason=reason)
            else:
                self._runner.post(ev.CancelRequested(reason))

        return CollectedResults(self._runner.collected(operator_id), convert, cancel, self._runner.wait)


def run_job(runner: JobRunner, plan: Plan | None = None) -> LocalJobClient:
    """Start a job and return its client, which can show the plan."""
    client = LocalJobClient(runner, plan)
    runner.start()
    return client
