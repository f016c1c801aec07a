"""The threads that stand at a real driver's ports: its gang, its enumerators, its storage.

Each may wait, so that the control thread never does: an order returns at once, and the answer is posted. A thread that
hangs is left behind; `join`, for the user's thread, waits only for those that have said their last word.
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
    """Does what it is told, one order after the other. Orders may come from any thread."""

    def __init__(self, name: str) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._has_said_all = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def do(self, order: Callable[[], None]) -> None:
        """Do this, after what was ordered before."""
        self._orders.put(order)

    def end(self, last_word: Callable[[], None]) -> None:
        """Do what was ordered before, say the last word, and end."""
        self._orders.put(partial(self._say, last_word))
        self._orders.put(None)

    def join(self) -> None:
        """Wait for the end, if it has said its last word."""
        if self._has_said_all:
            self._thread.join()

    def _say(self, last_word: Callable[[], None]) -> None:
        self._has_said_all = True
        last_word()

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
        """Whether another driver may go on from what is stored."""
        return self._orders.may_be_resumed

    def perform(self, order: StorageOrder) -> None:
        """Perform this, after what was ordered before."""
        self._thread.do(partial(self._perform, order))

    def close(self) -> None:
        """Finish what was ordered, then end."""
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
        """Ask the host for its slots."""
        self._thread.do(partial(self._count, attempt))

    def start(self, attempt: AttemptNumber, slots: int) -> None:
        """Have the host start the slots of an attempt."""
        self._thread.do(partial(self._start, attempt, slots))

    def cancel(self, attempt: AttemptNumber) -> None:
        """Have the host end them, if it has started any."""
        self._thread.do(self._cancel)

    def close(self) -> None:
        """Close the host."""
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
    """The `Enumerators` of a real driver: a thread for each attempt, so that one that hangs does not hold the next."""

    def __init__(self, job_graph: JobGraph, clock: Clock, post: Post) -> None:
        self._graph = job_graph
        self._clock = clock
        self._post = post
        self._current: _AttemptThread | None = None

    def begin(self, attempt: AttemptNumber, restored: Mapping[OperatorId, bytes] | None) -> None:
        """Prepare the thread of an attempt; its enumerators are made on it."""
        before = self._current

        def make() -> AttemptEnumerators:
            states = restored
            if states is None and before is not None:
                states = before.closed_at()
            return AttemptEnumerators(self._graph, self._clock, attempt, states, self._post)

        sources = [source.id for _, source in sources_of(self._graph)]
        self._current = _AttemptThread(make, sources)

    def start(self) -> None:
        """Start the thread of the attempt, and its enumerators."""
        self._attempt.start()

    def request_split(self, operator: OperatorId, subtask: int) -> None:
        """A reader is out of work."""
        self._attempt.ask(lambda enumerators: enumerators.request_split(operator, subtask))

    def snapshot(self, checkpoint_id: int) -> None:
        """Take the state of all."""
        self._attempt.ask(lambda enumerators: enumerators.snapshot(checkpoint_id))

    def stop(self) -> None:
        """Let the thread of the attempt close its enumerators and end."""
        if self._current is not None:
            self._current.stop()

    def close(self) -> None:
        """The same, with a last word."""
        closed = partial(self._post, PortClosed("enumerators"))
        if self._current is None:
            closed()
        else:
            self._current.close(closed)

    def join(self) -> None:
        """Wait for the end of the current thread, if it has said its last word."""
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
        self._last_word: Callable[[], None] | None = None
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

    def close(self, last_word: Callable[[], None]) -> None:
        self.stop()
        with self._lock:
            if self._started and not self._has_closed.is_set():
                self._last_word = last_word
                return
        last_word()

    def closed_at(self) -> Mapping[OperatorId, bytes] | None:
        """Where its enumerators were when they were closed; None if they cannot say. Waits, on the next thread."""
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
            if self._last_word is not None:
                self._last_word()

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
