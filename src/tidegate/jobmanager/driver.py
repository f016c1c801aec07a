"""JobDriver: performs, through ports, every action of a job's state machines. One thread calls it; it never blocks.

1. Every event goes to the `Job`; the driver performs the returned actions in order.
2. After `EndJob` the Job gets no more events. The driver closes every port and is over when all have answered, or have
   taken longer than `PATIENCE_MS`: then a warning says what is left running.
3. Only then it shows the terminal status, so that nothing of the job is left when a user sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from tidegate.core.clock import Clock
from tidegate.core.errors import JobCanceledError, JobError
from tidegate.core.ids import AttemptNumber
from tidegate.core.options import Options
from tidegate.core.states import JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.failover import events as fe
from tidegate.jobmanager.failover.events import JobAction, JobEvent
from tidegate.jobmanager.failover.job import Job
from tidegate.jobmanager.ports import DriverEvent, PortClosed, PortName, Ports
from tidegate.jobmanager.resume_point import Beginning
from tidegate.jobmanager.source_coordinator import make_coordinators, sources_of
from tidegate.protocol.messages import NotifyCheckpointAborted, NotifyCheckpointComplete, TriggerCheckpoint
from tidegate.snapshot.handles import StateFile
from tidegate.storage.job_storage import encode_storage
from tidegate.storage.memory import MemoryStorage

logger = logging.getLogger(__name__)
_TRACED = (TriggerCheckpoint, NotifyCheckpointComplete, NotifyCheckpointAborted)
"""The messages of checkpoints, which are logged at DEBUG."""

Observer = Callable[[JobEvent, Sequence[JobAction]], None]

PATIENCE_MS: Final[dict[PortName, int]] = {"enumerators": 2_000, "gang": 15_000, "storage": 30_000}
"""How long each port may take to close."""


class JobDriver:
    """Runs a job, attempt after attempt. `handle` and `crash` come from one thread; the rest may be read from any."""

    def __init__(
        self,
        job_graph: JobGraph,
        options: Options,
        begin: Beginning,
        ports: Ports,
        clock: Clock,
        *,
        seed: int,
        on_end: Callable[[bool], None] = lambda resumable: None,
        observe: Observer = lambda event, actions: None,
    ) -> None:
        """`on_end` is called once, before the terminal status is shown; its argument is `may_be_resumed`.

        `observe` sees every event with its actions.
        """
        self.job_graph = job_graph
        self.job = Job(
            begin.job_id,
            job_graph,
            options,
            found=begin.found,
            first_checkpoint_id=begin.first_checkpoint_id,
            first_attempt=begin.first_attempt,
            describe_storage=None if begin.storage is None else self._describe_storage,
            claimed=begin.claim is not None,
            seed=seed,
        )
        self.records_expected = {c.operator: c.records_expected for c in make_coordinators(job_graph, clock)}
        """How many records each source will emit, where it knows."""
        self.error: JobError | None = None
        """Why the job ended, if it did so without finishing."""
        self._ports = ports
        self._clock = clock
        self._storage = begin.storage
        self._on_end = on_end
        self._observe = observe
        self._shown = JobStatus.CREATED
        self._end: fe.EndJob | None = None
        self._closing: dict[PortName, int] = {}
        """The ports that have not closed yet, each with its deadline."""
        self._is_over = False
        self._started_ms = self._now_ms()
        self._ended_ms: int | None = None

    @property
    def attempt(self) -> AttemptNumber:
        """The current attempt, or the one that ended last."""
        return self.job.attempt

    @property
    def status(self) -> JobStatus:
        """The status that is shown: terminal only when nothing of the job is left."""
        return self._shown

    @property
    def message(self) -> str:
        """Why the job ended, for the user; empty while it runs and when it finished."""
        return "" if self._end is None else self._end.message

    @property
    def is_over(self) -> bool:
        """Whether the job has ended and nothing of it is left."""
        return self._is_over

    @property
    def may_be_resumed(self) -> bool:
        """Whether another driver may go on from what is stored."""
        return self._ports.storage is not None and self._ports.storage.may_be_resumed

    @property
    def elapsed_ms(self) -> int:
        """Time since the submission, up to the end."""
        return (self._now_ms() if self._ended_ms is None else self._ended_ms) - self._started_ms

    def handle(self, event: DriverEvent) -> None:
        """Take an event and perform the actions that it calls for."""
        if isinstance(event, PortClosed):
            self._closing.pop(event.port, None)
        elif self._end is None:
            if isinstance(event, ev.SubmissionRequested):
                self._started_ms = self._now_ms()
            actions = self.job.handle(event, self._now_ms())
            for action in actions:
                self._perform(action)
            self._observe(event, actions)
        if self._end is not None and not self._is_over:
            self._wait_for_ports()

    def crash(self, error: BaseException) -> None:
        """End the job and its processes after an exception that is a bug.

        The caller keeps passing events to `handle`, so that the ports can answer that they have closed.
        """
        name = self.job_graph.name
        logger.error("the JobManager of job %r crashed", name, exc_info=error)
        if self._end is None:
            self._ports.gang.cancel(self.attempt)
            self._end_job(fe.EndJob(JobStatus.FAILED, f"job {name!r} failed: internal error: {error!r}"))
        elif not self._is_over:
            self._finish()

    # ---- actions ----

    def _perform(self, action: JobAction) -> None:
        ports = self._ports
        match action:
            case ev.SendToSlot(slot, message):
                if isinstance(message, _TRACED):
                    logger.debug("to slot %d: %s", slot, message)
                ports.slots.send(slot, message)
            case ev.CloseSlot(slot):
                ports.slots.close_slot(slot)
            case ev.CountSlots():
                ports.gang.count_slots(self.attempt)
            case ev.StartGang(slots):
                ports.gang.start(self.attempt, slots)
            case ev.CancelGang():
                ports.gang.cancel(self.attempt)
            case fe.BeginAttempt(attempt, restore, continue_sources):
                restored = {} if restore is None else restore.enumerator_states
                goes_on = continue_sources and restore is None
                ports.enumerators.begin(attempt, None if goes_on else restored)
                ports.slots.begin_attempt(attempt)
            case fe.EndAttempt():
                ports.slots.end_attempt()
                ports.enumerators.stop()
            case ev.StartEnumerators():
                ports.enumerators.start()
            case ev.AskEnumerator(operator, subtask):
                ports.enumerators.request_split(operator, subtask)
            case ce.SnapshotEnumerators(checkpoint_id):
                ports.enumerators.snapshot(checkpoint_id)
            case (
                ce.StoreAttachments()
                | ce.WriteManifest()
                | ce.DiscardCheckpoint()
                | ce.Sweep()
                | ce.ReleaseStorage()
                | fe.VerifyCheckpoint()
                | fe.CheckClaim()
            ):
                assert ports.storage is not None, f"{type(action).__name__} without storage"
                ports.storage.perform(action)
            case ev.DeliverCollected():
                ports.collected.deliver(self.attempt, action)
            case ev.ReportWaiting(text) | ev.ReportTrouble(text):
                logger.warning("%s", text)
            case fe.ShowStatus(status):
                self._shown = status
            case fe.EndJob():
                self._end_job(action)
            case _:
                assert_never(action)

    def _describe_storage(self, files: Sequence[StateFile]) -> bytes:
        storage = self._storage
        assert storage is not None
        return encode_storage(storage.excerpt(files) if isinstance(storage, MemoryStorage) else storage)

    # ---- the end ----

    def _end_job(self, end: fe.EndJob) -> None:
        if end.status is JobStatus.FAILED:
            self.error = end.error(end.message)
        elif end.status is JobStatus.CANCELED:
            self.error = JobCanceledError(end.message)
        self._end = end
        self._ended_ms = now_ms = self._now_ms()
        ports = self._ports
        ports.slots.close()
        self._closing = {port: now_ms + patience_ms for port, patience_ms in PATIENCE_MS.items()}
        ports.enumerators.close()
        ports.gang.close()
        if ports.storage is None:
            del self._closing["storage"]
        else:
            ports.storage.close()

    def _wait_for_ports(self) -> None:
        now_ms = self._now_ms()
        for port, until_ms in list(self._closing.items()):
            if now_ms >= until_ms:
                logger.warning("%s", self._left_behind(port))
                del self._closing[port]
        if not self._closing:
            self._finish()

    def _left_behind(self, port: PortName) -> str:
        match port:
            case "enumerators":
                names = ", ".join(repr(source.name) for _, source in sources_of(self.job_graph))
                return f"an enumerator of {names} does not return; its thread is left behind"
            case "gang":
                return "Spark does not answer; the thread that waits for it is left behind"
            case "storage":
                return "the checkpoint storage does not answer; what is to be deleted there may stay"
            case _:
                assert_never(port)

    def _finish(self) -> None:
        assert self._end is not None
        try:
            self._on_end(self.may_be_resumed)
        finally:
            self._shown = self._end.status
            self._is_over = True
            self._ports.collected.end(self.error)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
