"""JobRunner: performs what the JobMaster decides, with the control server, the enumerators and the host.

Threads of a running job, all gone when it has ended: `tidegate-control` (the server's loop; the only one that touches
the JobMaster), `tidegate-enumerators` (the sources' I/O), `tidegate-host` (calls to the host, which may be slow).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from tidegate.core.clock import Clock, SystemClock
from tidegate.core.errors import JobCanceledError, JobError, JobFailedError
from tidegate.core.ids import AttemptNumber, JobId, OperatorId, new_job_id
from tidegate.core.options import Options
from tidegate.core.states import JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.collected import CollectedBuffer
from tidegate.jobmanager.control_server import ControlServer
from tidegate.jobmanager.events import Action, Event
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.source_coordinator import EnumeratorThread, make_coordinators
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.protocol.handshake import new_secret

logger = logging.getLogger(__name__)

_FIRST_ATTEMPT = AttemptNumber(0)


class GangHost(Protocol):
    """Who starts the processes of a job: Spark. All calls but `control_host` come from one thread."""

    def control_host(self) -> tuple[str, str]:
        """The address to bind the control port to, and the one under which slots reach it. Called once, first."""
        ...

    def count_slots(self) -> int | None:
        """How many slots there are now, or None where that cannot be known. May be slow, may raise."""
        ...

    def count_busy_slots(self) -> int:
        """How many of them others hold. Called after a `count_slots` that knew. May be slow, may raise."""
        ...

    def start(self, slots: int, bootstrap: SlotBootstrap, on_end: Callable[[str | None], None]) -> None:
        """Start the gang and return at once.

        `on_end` is called once, from any thread, when all its tasks are gone: with None when they returned by
        themselves, else with the reason. Raising is the same as `on_end(reason)`.
        """
        ...

    def cancel(self) -> None:
        """End the gang's processes; `on_end` follows. Called at most once, after `start`."""
        ...

    def close(self) -> None:
        """Release everything; called once, last, also when nothing was started."""
        ...


class JobRunner:
    """Runs one attempt of a job. Made and started by one thread; everything else is safe from any."""

    def __init__(
        self,
        job_graph: JobGraph,
        options: Options,
        host: GangHost,
        *,
        job_id: JobId | None = None,
        attempt: AttemptNumber = _FIRST_ATTEMPT,
        clock: Clock | None = None,
        keeps: object = None,
    ) -> None:
        self.job_id = job_id or new_job_id()
        self._keeps = keeps  # what must live as long as the job: files that are deleted with it
        self.attempt = attempt
        self.job_graph = job_graph
        self.options = options
        self.master = JobMaster(self.job_id, attempt, job_graph, options)
        self._clock = clock or SystemClock()
        self._host = host
        self._secret = new_secret()
        self._ended = threading.Event()
        self._error: JobError | None = None
        self._final_status: JobStatus | None = None
        self._before_the_end = JobStatus.CREATED
        self._started_ms = self._ended_ms = 0
        self._collected = {
            operator.id: CollectedBuffer(operator.id, self.post)
            for vertex in job_graph.vertices
            for operator in vertex.operators
        }
        coordinators = make_coordinators(job_graph, self._clock)
        self.records_expected = {c.operator: c.records_expected for c in coordinators}
        """How many records each source will give, where it knows."""
        self._enumerators = EnumeratorThread(coordinators, self.post)
        bind_host, self._advertised_host = host.control_host()
        self._server = ControlServer(
            bind_host,
            self._secret,
            self.job_id,
            attempt,
            self.master.graph.slots_needed,
            options.handshake_timeout,
            clock=self._clock,
        )
        self._gang = _HostThread(host, self._bootstrap(), self.post)

    def start(self) -> None:
        """Submit the job and return at once."""
        self._started_ms = self._now_ms()
        self._gang.start()
        self._server.start(self._handle, self._on_server_exit)
        self.post(ev.SubmissionRequested())

    def post(self, event: Event) -> None:
        """Let the job's thread handle an event."""
        self._server.post(event)

    def status(self) -> JobStatus:
        """Where the job stands; terminal only once everything of it is gone."""
        if self._final_status is not None:
            return self._final_status if self._ended.is_set() else self._before_the_end
        return self.master.status

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended and everything of it is gone; False when that did not come in time."""
        return self._ended.wait(timeout_s) and self._server.join(timeout_s)

    @property
    def elapsed_ms(self) -> int:
        """Time since the submission, up to the end."""
        return (self._ended_ms or self._now_ms()) - self._started_ms

    @property
    def error(self) -> JobError | None:
        """Why the job ended, if it did so without finishing."""
        return self._error

    def collected(self, operator: OperatorId) -> CollectedBuffer:
        """What a sink operator sends to the driver."""
        return self._collected[operator]

    # ---- on the server's thread ----

    def _handle(self, event: Event) -> None:
        for action in self.master.handle(event, self._now_ms()):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case ev.SendToSlot(slot, message):
                self._server.send(slot, message)
            case ev.CloseSlot(slot):
                self._server.close_slot(slot)
            case ev.StartEnumerators():
                self._enumerators.start()
            case ev.AskEnumerator(operator, subtask):
                self._enumerators.request_split(operator, subtask)
            case ev.CountSlots() | ev.StartGang() | ev.CancelGang():
                self._gang.do(action)
            case ev.DeliverCollected():
                self._collected[action.operator].deliver(action)
            case ev.ReportWaiting(text):
                logger.warning("%s", text)
            case ev.EndJob(status, message, error):
                self._end(status, message, error)

    def _end(self, status: JobStatus, message: str, error: type[JobFailedError] = JobFailedError) -> None:
        if status is JobStatus.FAILED:
            self._error = error(message)
        elif status is JobStatus.CANCELED:
            self._error = JobCanceledError(message)
        *_, self._before_the_end = (s for s in self.master.status_history if not s.is_terminal)
        self._final_status = status
        self._ended_ms = self._now_ms()
        self._server.stop()

    def _on_server_exit(self, crash: BaseException | None) -> None:
        """Last on the server's thread: its sockets are closed, and so slots that still live will go."""
        try:
            if crash is not None and self._final_status is None:
                logger.error("the JobManager of job %r crashed", self.job_graph.name, exc_info=crash)
                self._end(JobStatus.FAILED, f"job {self.job_graph.name!r} failed: internal error: {crash!r}")
                self._gang.do(ev.CancelGang())
            self._enumerators.stop()
            self._gang.stop()
        finally:
            self._ended.set()
            for buffer in self._collected.values():
                buffer.end(self._error)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _bootstrap(self) -> SlotBootstrap:
        return SlotBootstrap(
            self.job_id,
            self.job_graph.name,
            self.attempt,
            self._secret,
            self._advertised_host,
            self._server.port,
            self.master.graph.slots_needed,
            self.options.as_dict(),
        )


class _HostThread:
    """Calls the host, one call after the other, away from the server's loop."""

    def __init__(self, host: GangHost, bootstrap: SlotBootstrap, post: Callable[[Event], None]) -> None:
        self._host = host
        self._bootstrap = bootstrap
        self._post = post
        self._orders: queue.SimpleQueue[ev.CountSlots | ev.StartGang | ev.CancelGang | None]
        self._orders = queue.SimpleQueue()
        self._started = False
        self._thread = threading.Thread(target=self._run, name="tidegate-host", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, action: ev.CountSlots | ev.StartGang | ev.CancelGang) -> None:
        self._orders.put(action)

    def stop(self, timeout_s: float = 15.0) -> None:
        """Close the host and end the thread."""
        self._orders.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("Spark does not answer; the thread that waits for it is left behind")

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            match order:
                case ev.CountSlots():
                    self._count()
                case ev.StartGang(slots):
                    self._start_gang(slots)
                case ev.CancelGang():
                    self._cancel()
        try:
            self._host.close()
        except Exception:
            logger.warning("the host of the slots could not be closed", exc_info=True)

    def _count(self) -> None:
        try:
            available = self._host.count_slots()
            busy = 0 if available is None else self._host.count_busy_slots()
            event: Event = ev.SlotsCounted(available, busy)
        except Exception as e:  # noqa: BLE001 -- fails the job
            event = ev.CountingFailed(f"{type(e).__name__}: {e}")
        self._post(event)

    def _start_gang(self, slots: int) -> None:
        try:
            self._started = True
            self._host.start(slots, self._bootstrap, lambda error: self._post(ev.GangEnded(error)))
            self._post(ev.GangStarted())
        except Exception as e:  # noqa: BLE001 -- fails the job
            self._post(ev.GangEnded(f"{type(e).__name__}: {e}"))

    def _cancel(self) -> None:
        if not self._started:
            return
        try:
            self._host.cancel()
        except Exception:
            logger.warning("Spark refused to cancel the job's tasks", exc_info=True)
