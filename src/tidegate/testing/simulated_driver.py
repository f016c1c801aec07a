"""The JobManager of a simulated job: the real `Job`, enumerators and storage orders, done when the scheduler chooses.

Mirrors `JobRunner`. A driver that dies is dropped as a whole; what it had posted, ordered or been told is gone with it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import assert_never

from tidegate.core.errors import JobFailedError
from tidegate.core.ids import AttemptNumber, OperatorId
from tidegate.core.states import JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.storage_thread import StorageOrder, StorageOrders
from tidegate.jobmanager.failover import events as fe
from tidegate.jobmanager.failover.events import JobAction, JobEvent, OfAttempt
from tidegate.jobmanager.failover.job import Job
from tidegate.jobmanager.resuming import Beginning
from tidegate.jobmanager.source_coordinator import SourceCoordinator, coordinators_of_attempt, snapshot_all
from tidegate.snapshot.assignment import Restore
from tidegate.snapshot.handles import StateFile
from tidegate.storage.memory import MemoryStorage
from tidegate.storage.opening import encode_storage
from tidegate.testing.simulated_gang import Choice
from tidegate.testing.simulated_slot import ProcessKilled, World

logger = logging.getLogger(__name__)

Observer = Callable[[JobEvent, Sequence[JobAction]], None]
HostAction = ev.CountSlots | ev.StartGang | ev.CancelGang | ev.SendToSlot | ev.CloseSlot | fe.EndAttempt


class SimulatedDriver:
    """One driver process. `host` performs what concerns slots; `observe` sees every event with its actions."""

    def __init__(
        self,
        job_graph: JobGraph,
        begin: Beginning,
        world: World,
        seed: int,
        host: Callable[[HostAction], None],
        observe: Observer,
    ) -> None:
        self.killed = False
        self.message = ""
        self.error: type[JobFailedError] = JobFailedError
        self.reports: list[str] = []
        """What it told the user: what it waits for, and trouble."""
        self.collected: dict[OperatorId, deque[ev.DeliverCollected]] = {}
        self.consumers: dict[OperatorId, Callable[[ev.DeliverCollected], None]] = {}
        self.storage = begin.storage
        self.job = Job(
            begin.job_id,
            job_graph,
            world.options,
            found=begin.found,
            first_checkpoint_id=begin.first_checkpoint_id,
            first_attempt=begin.first_attempt,
            describe_storage=None if begin.storage is None else self._describe_storage,
            claimed=begin.claim is not None,
            seed=seed,
        )
        self._graph = job_graph
        self._world = world
        self._host = host
        self._observe = observe
        self._events: deque[JobEvent] = deque()
        self._orders: deque[StorageOrder] = deque()
        self._requests: deque[Callable[[], None]] = deque()
        """What the enumerators are asked, in order."""
        self._coordinators: dict[OperatorId, SourceCoordinator] = {}
        self._storing: StorageOrders | None = None
        if begin.storage is not None:
            self._storing = StorageOrders(
                begin.storage,
                begin.job_id,
                job_graph,
                allow_non_restored_state=world.options.allow_non_restored_state,
                claim=begin.claim,
            )
        self._has_ended = False
        self._shown = JobStatus.CREATED
        self.post(ev.SubmissionRequested())

    @property
    def is_over(self) -> bool:
        """Whether the job has ended and everything that it had ordered is done."""
        return self._has_ended and not self._orders

    @property
    def may_be_resumed(self) -> bool:
        """Whether another driver may go on from what is stored."""
        return self._storing is not None and self._storing.may_be_resumed

    @property
    def status(self) -> JobStatus:
        """Where the job stands; terminal only when it is over."""
        return self.job.status if self.is_over else self._shown

    def choices(self) -> Iterator[Choice]:
        """What could happen to it now."""
        if self._events:
            yield Choice("event", self._take_event)
        if self._orders:
            yield Choice("storage", self._take_order)
        if self._requests:
            yield Choice("enumerator", self._take_request)

    def post(self, event: JobEvent) -> None:
        """Let it handle an event, behind those that wait."""
        self._events.append(event)

    def post_of(self, attempt: AttemptNumber, event: ev.Event) -> None:
        """The same for an event of an attempt."""
        self.post(OfAttempt(attempt, event))

    def hear(self, attempt: AttemptNumber, event: ev.Event) -> None:
        """Something came over a connection of an attempt; connections of others are closed."""
        if attempt == self.job.attempt:
            self._handle(OfAttempt(attempt, event))

    def tick(self) -> None:
        """Time has passed."""
        for coordinator in self._coordinators.values():
            self._post_all(self.job.attempt, coordinator.poll_if_due())
        self._handle(ev.Tick())

    def take_collected(self, operator: OperatorId) -> ev.DeliverCollected | None:
        """The next batch that a sink sent to the driver, acknowledged; None if there is none now."""
        queue = self.collected.get(operator)
        if not queue:
            return None
        batch = queue.popleft()
        consumed = ev.CollectedConsumed(batch.operator, batch.subtask, batch.sequence)
        self.post_of(self.job.attempt, consumed)
        return batch

    def close(self) -> None:
        """Close the enumerators."""
        for coordinator in self._coordinators.values():
            coordinator.close()

    # ---- what happens ----

    def _take_event(self) -> str:
        event = self._events.popleft()
        self._handle(event)
        return type(event.event if isinstance(event, OfAttempt) else event).__name__

    def _take_order(self) -> str:
        assert self._storing is not None
        order = self._orders.popleft()
        before, self._world.actor = self._world.actor, self
        try:
            answer = self._storing.perform(order)
        except ProcessKilled:
            return f"{type(order).__name__}: the driver is killed"
        finally:
            self._world.actor = before
        if answer is not None:
            self.post(answer)
        return f"{type(order).__name__}: {'done' if answer is None else type(answer).__name__}"

    def _take_request(self) -> None:
        self._requests.popleft()()

    def _handle(self, event: JobEvent) -> None:
        now_ms = self._world.clock.monotonic_ns() // 1_000_000
        actions = self.job.handle(event, now_ms)
        for action in actions:
            self._perform(action)
        self._observe(event, actions)

    def _perform(self, action: JobAction) -> None:
        match action:
            case ev.SendToSlot() | ev.CloseSlot() | ev.CountSlots() | ev.StartGang() | ev.CancelGang():
                self._host(action)
            case fe.BeginAttempt(attempt, restore, continue_sources):
                self._begin_attempt(attempt, restore, continue_sources)
            case fe.EndAttempt():
                self._host(action)
                self._requests.clear()
            case ev.StartEnumerators():
                for coordinator in self._coordinators.values():
                    self._ask(coordinator.start)
            case ev.AskEnumerator(operator, subtask):
                self._ask(partial(self._coordinators[operator].request_split, subtask))
            case ce.SnapshotEnumerators(checkpoint_id):
                coordinators = list(self._coordinators.values())
                self._requests.append(
                    lambda: self.post(snapshot_all(coordinators, checkpoint_id, self._world.clock))
                )
            case ev.DeliverCollected():
                self._deliver(action)
            case ev.ReportWaiting(text) | ev.ReportTrouble(text):
                self.reports.append(text)
                logger.warning("%s", text)
            case fe.ShowStatus(status):
                self._shown = status
            case fe.EndJob(_, message, error):
                self.message, self.error, self._has_ended = message, error, True
            case (
                ce.StoreAttachments()
                | ce.WriteManifest()
                | ce.DiscardCheckpoint()
                | ce.Sweep()
                | ce.ReleaseStorage()
                | fe.VerifyCheckpoint()
                | fe.CheckClaim()
            ):
                self._orders.append(action)
            case _:
                assert_never(action)

    def _begin_attempt(self, attempt: AttemptNumber, restore: Restore | None, continue_sources: bool) -> None:
        before = list(self._coordinators.values())
        ended_with = None
        if restore is None and continue_sources:
            answer = snapshot_all(before, 0, self._world.clock)
            ended_with = answer.states if isinstance(answer, ce.EnumeratorsSnapshotted) else {}
        for coordinator in before:
            coordinator.close()
        restored = {} if restore is None else restore.enumerator_states
        made, failed = coordinators_of_attempt(self._graph, self._world.clock, restored, ended_with)
        self._coordinators = {c.operator: c for c in made}
        self._post_all(attempt, failed)

    def _ask(self, call: Callable[[], list[ev.EnumeratorEvent]]) -> None:
        attempt = self.job.attempt
        self._requests.append(lambda: self._post_all(attempt, call()))

    def _post_all(self, attempt: AttemptNumber, events: Sequence[ev.EnumeratorEvent]) -> None:
        for event in events:
            self.post_of(attempt, event)

    def _deliver(self, batch: ev.DeliverCollected) -> None:
        self.collected.setdefault(batch.operator, deque()).append(batch)
        consume = self.consumers.get(batch.operator)
        if consume is not None and (taken := self.take_collected(batch.operator)) is not None:
            consume(taken)

    def _describe_storage(self, files: Sequence[StateFile]) -> bytes:
        storage = self.storage
        assert storage is not None
        return encode_storage(storage.excerpt(files) if isinstance(storage, MemoryStorage) else storage)
