"""The threads that implement a real driver's ports: its gang, its enumerators, its storage.

They may block, so that the control thread never does: an order returns at once, and the answer is posted. A thread
that hangs is abandoned; `join`, for the user's thread, waits only for threads that have posted their last answer.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from tidegate.core.clock import Clock
from tidegate.core.ids import AttemptNumber, OperatorId
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint.storage_orders import StorageOrder, StorageOrders, answer_to_crash
from tidegate.jobmanager.failover.events import OfAttempt
from tidegate.jobmanager.ports import DriverEvent, PortClosed
from tidegate.jobmanager.source_coordinator import AttemptEnumerators, sources_of
from tidegate.protocol.bootstrap import SlotBootstrap

logger = logging.getLogger(__name__)

Post = Callable[[DriverEvent], None]


class OrderThread:
    """Performs orders one after the other. Any thread may give them."""

    def __init__(self, name: str) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, order: Callable[[], None]) -> None:
        """Perform an order, after all earlier ones."""
        self._orders.put(order)

    def end(self, on_end: Callable[[], None]) -> None:
        """Perform all earlier orders, call `on_end`, and end."""
        self._orders.put(partial(self._end, on_end))
        self._orders.put(None)

    def join(self) -> None:
        """Wait for the thread, if `on_end` has been called."""
        if self._has_ended:
            self._thread.join()

    def _end(self, on_end: Callable[[], None]) -> None:
        self._has_ended = True
        on_end()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            order()


class StorageThread:
    """The `Storage` of a real driver."""

    def __init__(self, orders: StorageOrders, post: Post) -> None:
        self._orders = orders
        self._post = post
        self._thread = OrderThread("tidegate-storage")
        self.start, self.join = self._thread.start, self._thread.join

    @property
    def may_be_resumed(self) -> bool:
        return self._orders.may_be_resumed

    def perform(self, order: StorageOrder) -> None:
        self._thread.do(partial(self._perform, order))

    def close(self) -> None:
        self._thread.end(partial(self._post, PortClosed("storage")))

    def _perform(self, order: StorageOrder) -> None:
        try:
            answer = self._orders.perform(order)
        except Exception as e:
            logger.exception("%s failed", type(order).__name__)
            answer = answer_to_crash(order, e)
        if answer is not None:
            self._post(answer)


class GangHost(Protocol):
    """Starts and ends the processes of a job: Spark. All calls but `control_host` come from one thread."""

    def control_host(self) -> tuple[str, str]:
        """The address to bind the control port to, and the one under which slots reach it. Called once, first."""
        ...

    def count_slots(self) -> int | None:
        """How many slots there are now; None if the host cannot know. May be slow, may raise."""
        ...

    def count_busy_slots(self) -> tuple[int, int]:
        """How many of them are held by anything but the gang, and how many of those by this job's earlier gangs.

        Called after a `count_slots` that returned a number. May be slow, may raise.
        """
        ...

    def start(self, slots: int, bootstrap: SlotBootstrap, on_end: Callable[[ev.GangEnded], None]) -> None:
        """Start the gang and return at once.

        `on_end` is called once, from any thread, when all its tasks are gone. An exception has the same meaning.
        """
        ...

    def cancel(self) -> None:
        """End the gang's processes; `on_end` follows. Called at most once, after `start`."""
        ...

    def close(self) -> None:
        """Release everything; called once, last, also when nothing was started."""
        ...


class GangThread:
    """The `Gang` of a real driver: calls its host."""

    def __init__(
        self, host: GangHost, bootstrap: Callable[[AttemptNumber], SlotBootstrap], post: Post
    ) -> None:
        self._host = host
        self._bootstrap = bootstrap
        self._post = post
        self._started = False
        self._thread = OrderThread("tidegate-host")
        self.start_thread, self.join = self._thread.start, self._thread.join

    def count_slots(self, attempt: AttemptNumber) -> None:
        self._thread.do(partial(self._count, attempt))

    def start(self, attempt: AttemptNumber, slots: int) -> None:
        self._thread.do(partial(self._start, attempt, slots))

    def cancel(self, attempt: AttemptNumber) -> None:
        """Have the host end the slots, if it has started any."""
        self._thread.do(self._cancel)

    def close(self) -> None:
        self._thread.do(self._close)
        self._thread.end(partial(self._post, PortClosed("gang")))

    def _count(self, attempt: AttemptNumber) -> None:
        try:
            available = self._host.count_slots()
            busy, own = (0, 0) if available is None else self._host.count_busy_slots()
            event: ev.Event = ev.SlotsCounted(available, busy, own)
        except Exception as e:  # noqa: BLE001 -- fails the job
            event = ev.CountingFailed(f"{type(e).__name__}: {e}")
        self._post(OfAttempt(attempt, event))

    def _start(self, attempt: AttemptNumber, slots: int) -> None:
        def post(event: ev.Event) -> None:
            self._post(OfAttempt(attempt, event))

        try:
            self._started = True
            self._host.start(slots, self._bootstrap(attempt), post)
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

    def _close(self) -> None:
        try:
            self._host.close()
        except Exception:
            logger.warning("the host of the slots could not be closed", exc_info=True)


class EnumeratorThreads:
    """The `Enumerators` of a real driver: a thread for each attempt, so that a hung one does not block the next."""

    def __init__(self, job_graph: JobGraph, clock: Clock, post: Post) -> None:
        self._graph = job_graph
        self._clock = clock
        self._post = post
        self._current: _AttemptThread | None = None

    def begin(self, attempt: AttemptNumber, restored: Mapping[OperatorId, bytes] | None) -> None:
        """Prepare the thread of an attempt, on which its enumerators will be made."""
        before = self._current

        def make() -> AttemptEnumerators:
            states = restored
            if states is None and before is not None:
                states = before.closed_at()
            return AttemptEnumerators(self._graph, self._clock, attempt, states, self._post)

        sources = [source.id for _, source in sources_of(self._graph)]
        self._current = _AttemptThread(make, sources)

    def start(self) -> None:
        """Start the thread of the attempt and its enumerators."""
        self._attempt.start()

    def request_split(self, operator: OperatorId, subtask: int) -> None:
        self._attempt.ask(lambda enumerators: enumerators.request_split(operator, subtask))

    def snapshot(self, checkpoint_id: int) -> None:
        self._attempt.ask(lambda enumerators: enumerators.snapshot(checkpoint_id))

    def stop(self) -> None:
        if self._current is not None:
            self._current.stop()

    def close(self) -> None:
        closed = partial(self._post, PortClosed("enumerators"))
        if self._current is None:
            closed()
        else:
            self._current.close(closed)

    def join(self) -> None:
        """Wait for the current thread, if its enumerators are closed."""
        if self._current is not None:
            self._current.join()

    @property
    def _attempt(self) -> _AttemptThread:
        assert self._current is not None, "no attempt has begun"
        return self._current


class _AttemptThread:
    """Runs the enumerators of one attempt."""

    WAIT_FOR_STATES_S = 2.0

    def __init__(self, make: Callable[[], AttemptEnumerators], sources: list[OperatorId]) -> None:
        self._sources = sources
        self._requests: queue.SimpleQueue[Callable[[AttemptEnumerators], None] | None] = queue.SimpleQueue()
        self._stopping = False
        self._lock = threading.Lock()
        self._on_closed: Callable[[], None] | None = None
        self._closed_at: Mapping[OperatorId, bytes] | None = None
        self._has_closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(make,), name="tidegate-enumerators", daemon=True
        )
        self._started = False

    def start(self) -> None:
        self._started = True
        self._thread.start()

    def ask(self, request: Callable[[AttemptEnumerators], None]) -> None:
        self._requests.put(request)

    def stop(self) -> None:
        self._stopping = True
        self._requests.put(None)

    def close(self, on_closed: Callable[[], None]) -> None:
        self.stop()
        with self._lock:
            if self._started and not self._has_closed.is_set():
                self._on_closed = on_closed
                return
        on_closed()

    def closed_at(self) -> Mapping[OperatorId, bytes] | None:
        """The states that its enumerators had when closed; None if unknown. The next attempt's thread waits here."""
        if self._started and self._has_closed.wait(self.WAIT_FOR_STATES_S):
            return self._closed_at
        return None

    def join(self) -> None:
        if self._has_closed.is_set():
            self._thread.join()

    def _run(self, make: Callable[[], AttemptEnumerators]) -> None:
        enumerators = make()
        try:
            for source in self._sources:
                if self._stopping:
                    return
                enumerators.start(source)
            while not self._stopping:
                self._step(enumerators)
        finally:
            self._closed_at = enumerators.close()
            with self._lock:
                self._has_closed.set()
            if self._on_closed is not None:
                self._on_closed()

    def _step(self, enumerators: AttemptEnumerators) -> None:
        wait_ms = enumerators.next_poll_in_ms()
        try:
            request = self._requests.get(timeout=None if wait_ms is None else wait_ms / 1000)
        except queue.Empty:
            request = None
        if self._stopping:
            return
        if request is not None:
            request(enumerators)
        enumerators.poll_if_due()
