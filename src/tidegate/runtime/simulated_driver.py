"""The driver process of a simulated job: a `JobDriver` whose ports are queues. A scheduler chooses what comes next.

A driver that dies is dropped as a whole, with everything that was posted to it or that it had ordered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from tidegate.core.clock import Clock
from tidegate.core.ids import AttemptNumber, OperatorId, SlotId
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint.storage_orders import StorageOrder, StorageOrders
from tidegate.jobmanager.driver import JobDriver, Observer
from tidegate.jobmanager.failover.events import JobAction, JobEvent, OfAttempt
from tidegate.jobmanager.ports import DriverEvent, PortClosed, Ports
from tidegate.jobmanager.resume_point import Beginning
from tidegate.jobmanager.source_coordinator import AttemptEnumerators, sources_of
from tidegate.protocol import messages as m
from tidegate.runtime.collected_results import CollectedBuffers
from tidegate.runtime.simulated_gang import Choice, SimulatedGang
from tidegate.runtime.simulated_slot import ProcessKilled, World

Post = Callable[[DriverEvent], None]
Consumers = Mapping[OperatorId, Callable[[ev.DeliverCollected], None]]


class SimulatedSpark(Protocol):
    """Owns the processes of a simulation."""

    def available_slots(self) -> int | None:
        """How many slots there are; None: the host cannot know."""
        ...

    def start_gang(self, driver: SimulatedDriver, attempt: AttemptNumber, slots: int) -> SimulatedGang: ...

    def cancel_gang(self, gang: SimulatedGang) -> None:
        """Have its processes end, now or later."""
        ...

    def send(self, gang: SimulatedGang, slot: SlotId, message: m.MasterMessage) -> None:
        """Deliver a message of the driver: never, once, twice or later."""
        ...


class SimulatedDriver:
    """One driver process."""

    def __init__(
        self,
        job_graph: JobGraph,
        begin: Beginning,
        world: World,
        seed: int,
        spark: SimulatedSpark,
        consumers: Consumers,
        observe: Observer,
        on_end: Callable[[bool], None],
    ) -> None:
        self.killed = False
        self.reports: list[str] = []
        """What it reported to the user: what it waits for, and trouble."""
        self.storage = begin.storage
        self._observer = observe
        self._events: deque[DriverEvent] = deque()
        self._gangs = SimulatedGangs(spark, self)
        self._enumerators = SimulatedEnumerators(job_graph, world.clock, self.post)
        orders = begin.storage_orders(job_graph, world.options)
        self._storage = None if orders is None else SimulatedStorage(orders, world, self)
        self._collected = SimulatedCollected(job_graph, self.post, consumers)
        ports = Ports(
            SimulatedSlots(self._gangs), self._gangs, self._enumerators, self._storage, self._collected
        )
        self.job_driver = JobDriver(
            job_graph,
            world.options,
            begin,
            ports,
            world.clock,
            seed=seed,
            on_end=on_end,
            observe=self._observe,
        )
        self.job = self.job_driver.job
        self.post(ev.SubmissionRequested())

    @property
    def may_be_resumed(self) -> bool:
        """Whether another driver may resume the job from what is stored."""
        return self.job_driver.may_be_resumed

    def choices(self) -> Iterator[Choice]:
        if self._events:
            yield Choice("event", self._take_event)
        if self._storage is not None and self._storage.orders:
            yield Choice("storage", self._storage.take_order)
        if self._enumerators.requests:
            yield Choice("enumerator", self._enumerators.take_request)

    def post(self, event: DriverEvent) -> None:
        self._events.append(event)

    def hear(self, attempt: AttemptNumber, event: ev.Event) -> None:
        """Handle what came over a connection of an attempt; connections of other attempts are closed."""
        if attempt == self.job.attempt:
            self.job_driver.handle(OfAttempt(attempt, event))

    def tick(self) -> None:
        self._enumerators.poll_if_due()
        self.job_driver.handle(ev.Tick())

    def take_collected(self, operator: OperatorId) -> ev.DeliverCollected | None:
        """Take the next batch that a sink sent to the driver; None if there is none now."""
        return self._collected[operator].take_now()

    def close(self) -> None:
        """Close the enumerators, however the job ended."""
        self._enumerators.release()

    def _take_event(self) -> str:
        event = self._events.popleft()
        self.job_driver.handle(event)
        return type(event.event if isinstance(event, OfAttempt) else event).__name__

    def _observe(self, event: JobEvent, actions: Sequence[JobAction]) -> None:
        self.reports += [a.text for a in actions if isinstance(a, (ev.ReportWaiting, ev.ReportTrouble))]
        self._observer(event, actions)


class SimulatedGangs:
    """The `Gang` of a simulated driver: its processes are those of a `SimulatedSpark`."""

    def __init__(self, spark: SimulatedSpark, driver: SimulatedDriver) -> None:
        self.spark = spark
        self.current: SimulatedGang | None = None
        """The gang of the current attempt, after it has started."""
        self._driver = driver

    def count_slots(self, attempt: AttemptNumber) -> None:
        self._driver.post(OfAttempt(attempt, ev.SlotsCounted(self.spark.available_slots())))

    def start(self, attempt: AttemptNumber, slots: int) -> None:
        """Start it at once; its slots register when the scheduler chooses them."""
        self.current = self.spark.start_gang(self._driver, attempt, slots)
        self._driver.post(OfAttempt(attempt, ev.GangStarted()))

    def cancel(self, attempt: AttemptNumber) -> None:
        if self.current is not None:
            self.spark.cancel_gang(self.current)

    def close(self) -> None:
        """Answer only: processes that are still alive belong to Spark."""
        self._driver.post(PortClosed("gang"))


class SimulatedSlots:
    """The `Slots` of a simulated driver."""

    def __init__(self, gangs: SimulatedGangs) -> None:
        self._gangs = gangs

    def begin_attempt(self, attempt: AttemptNumber) -> None:
        self._gangs.current = None

    def end_attempt(self) -> None:
        """Close the connections; each slot notices when the scheduler chooses it."""
        if self._gangs.current is not None:
            self._gangs.current.disconnect_all()

    def send(self, slot: SlotId, message: m.MasterMessage) -> None:
        if self._gangs.current is not None:
            self._gangs.spark.send(self._gangs.current, slot, message)

    def close_slot(self, slot: SlotId) -> None:
        """End the slot: its last message is answered."""
        gang = self._gangs.current
        if gang is not None and slot in gang.slots:
            gang.slots[slot].end()

    def close(self) -> None:
        self.end_attempt()


class SimulatedEnumerators:
    """The `Enumerators` of a simulated driver: each request is performed when the scheduler chooses it."""

    def __init__(self, job_graph: JobGraph, clock: Clock, post: Post) -> None:
        self._graph = job_graph
        self._clock = clock
        self._post = post
        self.requests: deque[Callable[[], None]] = deque()
        self._begun_later: Callable[[], None] | None = None
        """Makes those of the current attempt, if the scheduler has not chosen that yet."""
        self._current: AttemptEnumerators | None = None
        self._closed_at: Mapping[OperatorId, bytes] | None = None

    def begin(self, attempt: AttemptNumber, restored: Mapping[OperatorId, bytes] | None) -> None:
        """Make those of an attempt after those of the one before are closed."""
        self._begun_later = partial(self._begin, attempt, restored)
        self.requests.append(self._begun_later)

    def start(self) -> None:
        for _, source in sources_of(self._graph):
            self._ask(partial(AttemptEnumerators.start, source=source.id))

    def request_split(self, operator: OperatorId, subtask: int) -> None:
        self._ask(lambda enumerators: enumerators.request_split(operator, subtask))

    def snapshot(self, checkpoint_id: int) -> None:
        self._ask(lambda enumerators: enumerators.snapshot(checkpoint_id))

    def stop(self) -> None:
        """Close them when the scheduler chooses; earlier requests are dropped.

        If they are not made yet, they are made first, so that the next attempt can go on from their states.
        """
        self.requests.clear()
        if self._begun_later is not None:
            self.requests.append(self._begun_later)
        self.requests.append(self.release)

    def close(self) -> None:
        self.stop()
        self.requests.append(partial(self._post, PortClosed("enumerators")))

    def poll_if_due(self) -> None:
        if self._current is not None:
            self._current.poll_if_due()

    def take_request(self) -> None:
        self.requests.popleft()()

    def release(self) -> None:
        """Close those of the attempt, if there are any, and keep their states."""
        if self._current is not None:
            self._closed_at = self._current.close()
            self._current = None

    def _begin(self, attempt: AttemptNumber, restored: Mapping[OperatorId, bytes] | None) -> None:
        self._begun_later = None
        states = self._closed_at if restored is None else restored
        self._current = AttemptEnumerators(self._graph, self._clock, attempt, states, self._post)

    def _ask(self, request: Callable[[AttemptEnumerators], None]) -> None:
        self.requests.append(lambda: request(self._made))

    @property
    def _made(self) -> AttemptEnumerators:
        assert self._current is not None, "no attempt has begun"
        return self._current


class SimulatedStorage:
    """The `Storage` of a simulated driver: each order is performed when the scheduler chooses it.

    The driver may die in the middle of one.
    """

    def __init__(self, orders: StorageOrders, world: World, driver: SimulatedDriver) -> None:
        self.orders: deque[StorageOrder | None] = deque()
        """None is the end."""
        self._performer = orders
        self._world = world
        self._driver = driver

    @property
    def may_be_resumed(self) -> bool:
        return self._performer.may_be_resumed

    def perform(self, order: StorageOrder) -> None:
        self.orders.append(order)

    def close(self) -> None:
        self.orders.append(None)

    def take_order(self) -> str:
        """Perform the next order; returns a line for the trace."""
        order = self.orders.popleft()
        if order is None:
            self._driver.post(PortClosed("storage"))
            return "closed"
        world = self._world
        before, world.actor = world.actor, self._driver
        try:
            answer = self._performer.perform(order)
        except ProcessKilled:
            return f"{type(order).__name__}: the driver is killed"
        finally:
            world.actor = before
        if answer is not None:
            self._driver.post(answer)
        return f"{type(order).__name__}: {'done' if answer is None else type(answer).__name__}"


class SimulatedCollected(CollectedBuffers):
    """The `Collected` of a simulated driver; a consumer takes each batch at once."""

    def __init__(self, job_graph: JobGraph, post: Callable[[OfAttempt], None], consumers: Consumers) -> None:
        super().__init__(job_graph, post)
        self._consumers = consumers

    def deliver(self, attempt: AttemptNumber, batch: ev.DeliverCollected) -> None:
        super().deliver(attempt, batch)
        consume = self._consumers.get(batch.operator)
        if consume is not None and (taken := self[batch.operator].take_now()) is not None:
            consume(taken)
