"""InProcessClient: the user's handle on a job of the in-process runtime. It moves only while a call waits for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

import msgspec

from tidegate.core.errors import JobCanceledError, JobFailedError
from tidegate.core.ids import JobId, OperatorId
from tidegate.core.states import JobStatus
from tidegate.graph.explain import explain_running
from tidegate.graph.explain_plan import Plan
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint.statistics import CheckpointsOverview
from tidegate.jobmanager.failover.job import JobOverview
from tidegate.metrics.snapshot import JobMetrics, SubtaskMetrics, VertexMetrics
from tidegate.testing.simulation import Simulation

_MOST_RESTARTS_ALIKE: Final = 100


class InProcessClient:
    """The `JobClient` of a simulated job."""

    def __init__(
        self,
        simulation: Simulation,
        plan: Plan,
        *,
        on_end: Callable[[bool], None] = lambda resumable: None,
        keeps: object = None,
    ) -> None:
        """`on_end` is called once when the job has ended, with whether another driver may go on from what is stored.

        `keeps` lives as long as the client: what the program holds may be removed when nobody has it any more.
        """
        self._keeps = keeps
        self.simulation = simulation
        self._plan = plan
        self._on_end: Callable[[bool], None] | None = on_end
        self._restarts = 0
        self._restarts_alike = 0

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self.simulation.job.job_id

    @property
    def job_name(self) -> str:
        """The job's name."""
        return self.simulation.job_graph.name

    def status(self) -> JobStatus:
        """Where the job stands now."""
        return self.simulation.status

    def status_history(self) -> tuple[JobStatus, ...]:
        """All states that the job went through."""
        return self.simulation.job.status_history

    def overview(self) -> JobOverview:
        """How the job fares: the attempt, the restarts, the last error and what can be said about it."""
        return self.simulation.job.overview()

    def checkpoints(self) -> CheckpointsOverview:
        """The counts and the last checkpoints, each with its subtasks."""
        return self.simulation.job.checkpoints()

    def cancel(self, timeout_s: float = 10.0) -> None:
        """Stop the job."""
        if not self.status().is_terminal:
            self.simulation.cancel()
            self.simulation.run()
        self._close()

    def result(self, timeout_s: float | None = None) -> JobMetrics:
        """Run to the end; return the final metrics, or raise the job's error.

        A restart strategy may be without end, and on a virtual clock no delay is long: what fails again and again for
        the same reason is raised after some restarts, where Spark would go on and show the error.
        """
        with _CtrlC() as ctrl_c:
            while not self.status().is_terminal:
                self._advance()
                ctrl_c.check()
        return self._final()

    def _advance(self) -> None:
        self.simulation.run_one_event()
        job = self.simulation.job
        if job.restarts == self._restarts:
            return
        self._restarts = job.restarts
        overview = job.overview()
        # Not in a row: of two subtasks that both fail, chance says which one is the first.
        self._restarts_alike += overview.will_come_again
        if self._restarts_alike >= _MOST_RESTARTS_ALIKE:
            self.cancel()
            raise JobFailedError(
                f"{overview.last_error}\n{self._restarts_alike} restarts ended like the attempt before, and the "
                f"in-process runtime gives up; on Spark the restart strategy ({overview.restart_strategy}) goes on"
            )

    def _next_collected(self, operator: OperatorId) -> ev.DeliverCollected | None:
        with _CtrlC() as ctrl_c:
            while (
                batch := self.simulation.take_collected(operator)
            ) is None and not self.status().is_terminal:
                self._advance()
                ctrl_c.check()
        return batch

    def _close(self) -> None:
        self.simulation.close()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self.simulation.driver.may_be_resumed)

    def _final(self) -> JobMetrics:
        self._close()
        if self.status() is JobStatus.FAILED:
            raise self.simulation.error(self.simulation.message)
        if self.status() is JobStatus.CANCELED:
            raise JobCanceledError(self.simulation.message)
        return self.metrics()

    def metrics(self) -> JobMetrics:
        """The latest metrics that the slots reported."""
        simulation = self.simulation
        found: dict[int, list[SubtaskMetrics]] = {}
        for vertex, data in simulation.master.subtask_metrics():
            found.setdefault(vertex, []).append(msgspec.msgpack.decode(data, type=SubtaskMetrics))
        vertices = tuple(
            VertexMetrics(
                vertex=v.id,
                name=v.name,
                parallelism=v.parallelism,
                subtasks=tuple(sorted(found.get(v.id, ()), key=lambda s: s.subtask)),
                records_expected=simulation.records_expected.get(v.operators[0].id),
            )
            for v in simulation.job_graph.vertices
        )
        return JobMetrics(
            name=self.job_name,
            status=self.status().name,
            elapsed_ms=simulation.clock.now_ms(),
            vertices=vertices,
            job_id=self.job_id,
            attempt=simulation.job.attempt,
        )

    def explain(self, format: str = "text") -> str:
        """The plan with each operator's watermark, its lag and what holds it back; formats as `Environment.explain`."""
        return explain_running(self._plan, self.metrics(), format)

    def collected_batches(self, operator: OperatorId) -> Iterator[ev.DeliverCollected]:
        """The batches that a sink sends to the driver, while the job runs on behind them."""
        simulation = self.simulation
        try:
            while (batch := self._next_collected(operator)) is not None:
                yield batch
            self._final()
        finally:
            if not simulation.status.is_terminal:
                self.cancel()


class _CtrlC:
    """Puts Ctrl-C off, from an event to the next `check`: within one it looks like a failure of the user's function.

    A second one is not put off: the function may never end. Only where Ctrl-C has Python's own meaning.
    """

    def __enter__(self) -> _CtrlC:
        self._came = False
        is_main = threading.current_thread() is threading.main_thread()
        self._is_ours = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_ours:
            signal.signal(signal.SIGINT, self._put_off)
        return self

    def check(self) -> None:
        """Raise what was put off."""
        if self._came:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _put_off(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True
