"""JobRunner: performs what the Job decides, with the control server, the enumerators, the storage and the host.

Threads of a running job, all gone when it has ended: `tidegate-control` (the server's loop; the only one that touches
the Job), `tidegate-enumerators` (the sources' I/O, one per attempt), `tidegate-storage` (the I/O of checkpoints),
`tidegate-host` (calls to the host, which may be slow).
"""

from __future__ import annotations

import logging
import queue
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, assert_never, cast

from tidegate.core.clock import Clock, SystemClock
from tidegate.core.errors import JobCanceledError, JobError, JobFailedError
from tidegate.core.ids import AttemptNumber, OperatorId
from tidegate.core.options import Options
from tidegate.core.states import JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.storage_thread import StorageOrders, StorageThread
from tidegate.jobmanager.collected import CollectedBuffer
from tidegate.jobmanager.control_server import NO_ATTEMPT, ControlServer
from tidegate.jobmanager.events import EnumeratorEvent, Event
from tidegate.jobmanager.failover import events as fe
from tidegate.jobmanager.failover.events import JobAction, JobEvent, OfAttempt
from tidegate.jobmanager.failover.job import Job
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.resuming import Beginning, beginning
from tidegate.jobmanager.source_coordinator import (
    EnumeratorThread,
    coordinators_of_attempt,
    make_coordinators,
)
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.protocol.handshake import new_secret
from tidegate.protocol.messages import NotifyCheckpointAborted, NotifyCheckpointComplete, TriggerCheckpoint
from tidegate.protocol.tls import identity_for
from tidegate.snapshot.assignment import Restore
from tidegate.snapshot.handles import StateFile
from tidegate.storage.memory import MemoryStorage
from tidegate.storage.opening import encode_storage

logger = logging.getLogger(__name__)
_TRACED = (TriggerCheckpoint, NotifyCheckpointComplete, NotifyCheckpointAborted)
"""The messages of checkpoints, which are logged at DEBUG."""


class GangHost(Protocol):
    """Who starts the processes of a job: Spark. All calls but `control_host` come from one thread."""

    def control_host(self) -> tuple[str, str]:
        """The address to bind the control port to, and the one under which slots reach it. Called once, first."""
        ...

    def count_slots(self) -> int | None:
        """How many slots there are now, or None where that cannot be known. May be slow, may raise."""
        ...

    def count_busy_slots(self) -> tuple[int, int]:
        """How many of them others than the gang hold, and how many of those this job's earlier gangs hold.

        Called after a `count_slots` that knew. May be slow, may raise.
        """
        ...

    def start(self, slots: int, bootstrap: SlotBootstrap, on_end: Callable[[ev.GangEnded], None]) -> None:
        """Start the gang and return at once.

        `on_end` is called once, from any thread, when all its tasks are gone. Raising is the same.
        """
        ...

    def cancel(self) -> None:
        """End the gang's processes; `on_end` follows. Called at most once, after `start`."""
        ...

    def close(self) -> None:
        """Release everything; called once, last, also when nothing was started."""
        ...


class JobRunner:
    """Runs a job, attempt after attempt. Made and started by one thread; everything else is safe from any."""

    def __init__(
        self,
        job_graph: JobGraph,
        options: Options,
        host: GangHost,
        *,
        begin: Beginning | None = None,
        clock: Clock | None = None,
        keeps: object = None,
        on_end: Callable[[bool], None] = lambda resumable: None,
    ) -> None:
        """`on_end` is called once, on the job's thread, before anybody hears that the job has ended.

        It is told whether another driver may go on from what is stored.
        """
        begin = begin or beginning(options, job_graph.name, job_graph)
        self.job_id = begin.job_id
        self._keeps = keeps  # what must live as long as the job: files that are deleted with it
        self._on_end = on_end
        self.job_graph = job_graph
        self.options = options
        self._storage = begin.storage
        self.job = Job(
            self.job_id,
            job_graph,
            options,
            found=begin.found,
            first_checkpoint_id=begin.first_checkpoint_id,
            first_attempt=begin.first_attempt,
            describe_storage=None if begin.storage is None else self._describe_storage,
            claimed=begin.claim is not None,
            seed=random.SystemRandom().randrange(1 << 32),
        )
        self._clock = clock or SystemClock()
        self._host = host
        self._secret = new_secret()
        self._ended = threading.Event()
        self._error: JobError | None = None
        self._final_status: JobStatus | None = None
        self._shown = JobStatus.CREATED
        self._started_ms = self._ended_ms = 0
        self._collected = {
            operator.id: CollectedBuffer(operator.id, self._post_of_attempt)
            for vertex in job_graph.vertices
            for operator in vertex.operators
        }
        self.records_expected = {
            c.operator: c.records_expected for c in make_coordinators(job_graph, self._clock)
        }
        """How many records each source will give, where it knows."""
        self._enumerators: EnumeratorThread | None = None
        bind_host, self._advertised_host = host.control_host()
        self._tls = identity_for(options, self.job_id, bind_host)
        self._server = ControlServer(
            bind_host,
            self._secret,
            self.job_id,
            self.job.attempt,
            self.master.graph.slots_needed,
            options.handshake_timeout,
            clock=self._clock,
            ports=options.control_port,
            tls=self._tls,
        )
        self._gang = _HostThread(host, self.post)
        self._storing: StorageThread | None = None
        if begin.storage is not None:
            orders = StorageOrders(
                begin.storage,
                self.job_id,
                job_graph,
                allow_non_restored_state=options.allow_non_restored_state,
                claim=begin.claim,
            )
            self._storing = StorageThread(orders, self.post)

    @property
    def master(self) -> JobMaster:
        """Who decides about the current attempt."""
        return self.job.master

    @property
    def attempt(self) -> AttemptNumber:
        """The current attempt."""
        return self.job.attempt

    def start(self) -> None:
        """Submit the job and return at once."""
        self._started_ms = self._now_ms()
        self._gang.start()
        if self._storing is not None:
            self._storing.start()
        self._server.start(self._handle, self._on_server_exit)
        self.post(ev.SubmissionRequested())

    def close_unstarted(self) -> None:
        """Release what a runner that was never started holds: its control port."""
        self._server.close_unstarted()

    def post(self, event: JobEvent) -> None:
        """Let the job's thread handle an event."""
        self._server.post(event)

    def status(self) -> JobStatus:
        """Where the job stands; terminal only once everything of it is gone."""
        return self._final_status if self._final_status is not None and self._ended.is_set() else self._shown

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

    def _handle(self, event: JobEvent | Event) -> None:
        """What a connection says is of the current attempt: the server keeps no others."""
        if isinstance(event, (ev.MessageReceived, ev.MessageMalformed, ev.SlotDisconnected)):
            event = OfAttempt(self.job.attempt, event)
        for action in self.job.handle(cast(JobEvent, event), self._now_ms()):
            self._perform(action)

    def _perform(self, action: JobAction) -> None:
        match action:
            case ev.SendToSlot(slot, message):
                if isinstance(message, _TRACED):
                    logger.debug("to slot %d: %s", slot, message)
                self._server.send(slot, message)
            case ev.CloseSlot(slot):
                self._server.close_slot(slot)
            case fe.BeginAttempt(attempt, restore, continue_sources):
                self._begin_attempt(attempt, restore, continue_sources)
            case fe.EndAttempt():
                self._server.begin_attempt(NO_ATTEMPT)
                if self._enumerators is not None:
                    self._enumerators.request_stop()
            case ev.StartEnumerators():
                if self._enumerators is not None:
                    self._enumerators.start()
            case ev.AskEnumerator(operator, subtask):
                if self._enumerators is not None:
                    self._enumerators.request_split(operator, subtask)
            case ce.SnapshotEnumerators(checkpoint_id):
                if self._enumerators is not None:
                    self._enumerators.snapshot(checkpoint_id)
            case ev.CountSlots() | ev.StartGang() | ev.CancelGang():
                self._gang.do(action, self._bootstrap())
            case ev.DeliverCollected():
                self._collected[action.operator].deliver(self.attempt, action)
            case ev.ReportWaiting(text) | ev.ReportTrouble(text):
                logger.warning("%s", text)
            case fe.ShowStatus(status):
                self._shown = status
            case fe.EndJob(status, message, error):
                self._end(status, message, error)
            case (
                ce.StoreAttachments()
                | ce.WriteManifest()
                | ce.DiscardCheckpoint()
                | ce.Sweep()
                | ce.ReleaseStorage()
                | fe.VerifyCheckpoint()
                | fe.CheckClaim()
            ):
                assert self._storing is not None, f"{type(action).__name__} without storage"
                self._storing.do(action)
            case _:
                assert_never(action)

    def _begin_attempt(self, attempt: AttemptNumber, restore: Restore | None, continue_sources: bool) -> None:
        ended_with = None
        if restore is None and continue_sources and self._enumerators is not None:
            ended_with = self._enumerators.final_states()
        restored = {} if restore is None else restore.enumerator_states
        coordinators, failed = coordinators_of_attempt(self.job_graph, self._clock, restored, ended_with)
        for failure in failed:
            self.post(OfAttempt(attempt, failure))
        self._enumerators = EnumeratorThread(
            coordinators, partial(self._post_enumerator, attempt), self._clock
        )
        self._server.begin_attempt(attempt)

    def _post_enumerator(self, attempt: AttemptNumber, event: EnumeratorEvent | ce.EnumeratorAnswer) -> None:
        if isinstance(event, (ce.EnumeratorsSnapshotted, ce.EnumeratorSnapshotFailed)):
            self.post(event)
        else:
            self.post(OfAttempt(attempt, event))

    def _post_of_attempt(self, attempt: AttemptNumber, event: Event) -> None:
        self.post(OfAttempt(attempt, event))

    def _describe_storage(self, files: Sequence[StateFile]) -> bytes:
        storage = self._storage
        assert storage is not None
        return encode_storage(storage.excerpt(files) if isinstance(storage, MemoryStorage) else storage)

    def _end(self, status: JobStatus, message: str, error: type[JobFailedError] = JobFailedError) -> None:
        if status is JobStatus.FAILED:
            self._error = error(message)
        elif status is JobStatus.CANCELED:
            self._error = JobCanceledError(message)
        self._final_status = status
        self._ended_ms = self._now_ms()
        self._server.stop()

    def _on_server_exit(self, crash: BaseException | None) -> None:
        """Last on the server's thread: its sockets are closed, and so slots that still live will go."""
        try:
            if crash is not None and self._final_status is None:
                logger.error("the JobManager of job %r crashed", self.job_graph.name, exc_info=crash)
                self._end(JobStatus.FAILED, f"job {self.job_graph.name!r} failed: internal error: {crash!r}")
                self._gang.do(ev.CancelGang(), self._bootstrap())
            if self._enumerators is not None:
                self._enumerators.stop()
            self._gang.stop()
            if self._storing is not None:
                self._storing.stop()
            self._on_end(self._storing is not None and self._storing.may_be_resumed)
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
            self._tls,
        )


_Order = ev.CountSlots | ev.StartGang | ev.CancelGang


class _HostThread:
    """Calls the host, one call after the other, away from the server's loop."""

    def __init__(self, host: GangHost, post: Callable[[JobEvent], None]) -> None:
        self._host = host
        self._post_job = post
        self._orders: queue.SimpleQueue[tuple[_Order, SlotBootstrap] | None] = queue.SimpleQueue()
        self._started = False
        self._thread = threading.Thread(target=self._run, name="tidegate-host", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, action: _Order, bootstrap: SlotBootstrap) -> None:
        """Perform this for the attempt that the bootstrap is of."""
        self._orders.put((action, bootstrap))

    def stop(self, timeout_s: float = 15.0) -> None:
        """Close the host and end the thread."""
        self._orders.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("Spark does not answer; the thread that waits for it is left behind")

    def _run(self) -> None:
        while (found := self._orders.get()) is not None:
            order, bootstrap = found
            post = partial(self._post, bootstrap.attempt)
            match order:
                case ev.CountSlots():
                    self._count(post)
                case ev.StartGang(slots):
                    self._start_gang(slots, bootstrap, post)
                case ev.CancelGang():
                    self._cancel()
        try:
            self._host.close()
        except Exception:
            logger.warning("the host of the slots could not be closed", exc_info=True)

    def _post(self, attempt: AttemptNumber, event: Event) -> None:
        self._post_job(OfAttempt(attempt, event))

    def _count(self, post: Callable[[Event], None]) -> None:
        try:
            available = self._host.count_slots()
            busy, own = (0, 0) if available is None else self._host.count_busy_slots()
            event: Event = ev.SlotsCounted(available, busy, own)
        except Exception as e:  # noqa: BLE001 -- fails the job
            event = ev.CountingFailed(f"{type(e).__name__}: {e}")
        post(event)

    def _start_gang(self, slots: int, bootstrap: SlotBootstrap, post: Callable[[Event], None]) -> None:
        try:
            self._started = True
            self._host.start(slots, bootstrap, post)
            post(ev.GangStarted())
        except Exception as e:  # noqa: BLE001 -- fails the job
            post(ev.GangEnded(f"{type(e).__name__}: {e}"))

    def _cancel(self) -> None:
        if not self._started:
            return
        try:
            self._host.cancel()
        except Exception:
            logger.warning("Spark refused to cancel the job's tasks", exc_info=True)
