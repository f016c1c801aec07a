"""InProcessClient: the user's handle on a job of the in-process runtime. The job runs only inside calls of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

from tidegate.core.errors import JobFailedError
from tidegate.core.ids import OperatorId
from tidegate.graph.explain_plan import Plan
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.driver import JobDriver
from tidegate.metrics.snapshot import JobMetrics
from tidegate.runtime.job_client import DriverClient
from tidegate.runtime.simulation import Simulation

_MOST_RESTARTS_ALIKE: Final = 100


class InProcessClient(DriverClient):
    """The `JobClient` of a simulated job."""

    def __init__(self, simulation: Simulation, plan: Plan, *, keeps: object = None) -> None:
        """`keeps` lives as long as the client, because the program may use files that go away with it."""
        super().__init__(plan)
        self._keeps = keeps
        self.simulation = simulation
        self._restarts = 0
        self._restarts_alike = 0

    @property
    def _driver(self) -> JobDriver:
        return self.simulation.driver.job_driver

    def cancel(self, timeout_s: float = 10.0) -> None:
        """Stop the job and release what it holds; a job that has ended stays as it is."""
        if not self.status().is_terminal:
            self.simulation.cancel()
            self.simulation.run()
        self.simulation.close()

    def result(self, timeout_s: float | None = None) -> JobMetrics:
        """Run to the end; return the final metrics, or raise the job's error.

        A restart strategy may restart for ever, and on simulated time no delay is long. So this raises the error after
        `_MOST_RESTARTS_ALIKE` restarts for the same reason, where Spark would go on and show the error.
        """
        with _CtrlC() as ctrl_c:
            while not self.status().is_terminal:
                self._advance()
                ctrl_c.check()
        return self._closed()

    def _advance(self) -> None:
        self.simulation.run_one_event()
        job = self.simulation.job
        if job.restarts == self._restarts:
            return
        self._restarts = job.restarts
        overview = job.overview()
        # They need not be in a row: if two subtasks fail, either may be the first.
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

    def _closed(self) -> JobMetrics:
        self.simulation.close()
        return self._final()

    def collected_batches(self, operator: OperatorId) -> Iterator[ev.DeliverCollected]:
        """The batches that a sink sends to the driver; the job runs on between them."""
        simulation = self.simulation
        try:
            while (batch := self._next_collected(operator)) is not None:
                yield batch
            self._closed()
        finally:
            if not simulation.status.is_terminal:
                self.cancel()


class _CtrlC:
    """Delays a Ctrl-C until the next `check`: inside an event it would look like a failure of the user's function.

    A second one is raised at once: the function may never end. Does nothing unless Ctrl-C has Python's own handler.
    """

    def __enter__(self) -> _CtrlC:
        self._came = False
        is_main = threading.current_thread() is threading.main_thread()
        self._is_ours = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_ours:
            signal.signal(signal.SIGINT, self._delay)
        return self

    def check(self) -> None:
        """Raise the delayed Ctrl-C."""
        if self._came:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _delay(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True
