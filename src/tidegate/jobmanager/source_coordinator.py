"""SourceCoordinator: hosts the SplitEnumerator of one source and turns what it decides into events for the JobMaster.

Every call may do the source's I/O (list files, ask a broker), so they all come from one thread that may wait: the
`EnumeratorThread` of the `JobRunner`, or a simulation's only thread. Nothing is raised: an enumerator that raises
becomes one `EnumeratorFailed`, after which it is not called again, except to close it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.api.source import Source, SplitEnumerator
from tidegate.core.clock import Clock
from tidegate.core.errors import TidegateError
from tidegate.core.ids import OperatorId
from tidegate.graph.blobs import load_blob
from tidegate.graph.job_graph import JobGraph, OperatorPayload
from tidegate.jobmanager.checkpoint.events import (
    EnumeratorAnswer,
    EnumeratorSnapshotFailed,
    EnumeratorsSnapshotted,
)
from tidegate.jobmanager.events import EnumeratorEvent, EnumeratorFailed, SplitsAssigned, SplitsExhausted
from tidegate.operators.failures import describe_error, user_traceback

logger = logging.getLogger(__name__)


class SourceCoordinator:
    """One source of a job. It is also the `EnumeratorContext` that its enumerator gets."""

    def __init__(
        self,
        operator: OperatorId,
        name: str,
        source: Source,
        parallelism: int,
        clock: Clock,
        restored: Any = None,
    ) -> None:
        self.operator = operator
        self.name = name
        self._source = source
        self._parallelism = parallelism
        self._clock = clock
        self._restored = restored
        self._enumerator: SplitEnumerator | None = None
        self._failed = False
        self._events: list[EnumeratorEvent] = []
        self._next_poll_ms: int | None = None

    # ---- EnumeratorContext ----

    @property
    def parallelism(self) -> int:
        """How many readers there are."""
        return self._parallelism

    @property
    def clock(self) -> Clock:
        """The time."""
        return self._clock

    def assign(self, splits: Sequence[Any], subtask: int) -> None:
        """Send splits to a reader."""
        self._check_subtask(subtask)
        if splits:
            encoded = tuple(msgspec.json.encode(split) for split in splits)
            self._events.append(SplitsAssigned(self.operator, subtask, encoded))

    def no_more_splits(self, subtask: int) -> None:
        """Tell a reader that nothing follows."""
        self._check_subtask(subtask)
        self._events.append(SplitsExhausted(self.operator, subtask))

    def _check_subtask(self, subtask: int) -> None:
        if not 0 <= subtask < self._parallelism:
            raise ValueError(f"there is no reader {subtask}: the source has parallelism {self._parallelism}")

    # ---- for the driver ----

    @property
    def records_expected(self) -> int | None:
        """How many records the source will give in all; None where it does not know."""
        expected: int | None = getattr(self._source, "expected_records", None)
        return expected

    def start(self) -> list[EnumeratorEvent]:
        """Make the enumerator (from its stored state, if there is one) and start it."""

        def start() -> None:
            if self._restored is None:
                self._enumerator = self._source.create_enumerator(self)
            else:
                self._enumerator = self._source.restore_enumerator(self, self._restored)
            self._enumerator.start()
            if self._enumerator.poll_interval_ms is not None:
                self._next_poll_ms = self._now_ms() + self._enumerator.poll_interval_ms

        return self._call(start) if self._enumerator is None else []

    def request_split(self, subtask: int) -> list[EnumeratorEvent]:
        """A reader is out of work."""
        enumerator = self._enumerator
        return [] if enumerator is None else self._call(lambda: enumerator.handle_split_request(subtask))

    def poll_if_due(self) -> list[EnumeratorEvent]:
        """Let the enumerator look for new splits when its interval has passed."""
        enumerator = self._enumerator
        wait_ms = self.next_poll_in_ms()
        if enumerator is None or wait_ms is None or wait_ms > 0:
            return []
        events = self._call(enumerator.poll)
        interval_ms = enumerator.poll_interval_ms
        self._next_poll_ms = None if interval_ms is None else self._now_ms() + interval_ms
        return events

    def next_poll_in_ms(self) -> int | None:
        """How long until `poll_if_due` has something to do; None: never."""
        if self._next_poll_ms is None or self._failed:
            return None
        return max(0, self._next_poll_ms - self._now_ms())

    def snapshot(self) -> Any:
        """The enumerator's state as plain JSON-able values, to be stored and given back as `restored`."""
        if self._enumerator is None:
            return self._restored
        return msgspec.to_builtins(self._enumerator.snapshot())

    def close(self) -> None:
        """Close the enumerator; what it raises is only logged, because the job has ended."""
        enumerator, self._enumerator = self._enumerator, None
        if enumerator is not None:
            try:
                enumerator.close()
            except Exception:
                logger.warning("the enumerator of source %r could not be closed", self.name, exc_info=True)

    def _call(self, step: Callable[[], None]) -> list[EnumeratorEvent]:
        if self._failed:
            return []
        try:
            step()
        except BaseException as e:  # noqa: BLE001 -- fails the job; sys.exit too, or nobody would answer the readers
            self._failed = True
            self._events.append(_failure(self.operator, e))
        events, self._events = self._events, []
        return events

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def make_coordinators(
    job_graph: JobGraph, clock: Clock, restored: Mapping[OperatorId, bytes] | None = None
) -> list[SourceCoordinator]:
    """One coordinator for each source operator of a job, with the state (JSON) that a checkpoint has for it."""
    made = []
    for vertex in job_graph.vertices:
        for spec in vertex.operators:
            if spec.is_source:
                payload: OperatorPayload = load_blob(spec.blob)
                source = payload.operation.read_source
                state = (restored or {}).get(spec.id)
                made.append(
                    SourceCoordinator(
                        spec.id,
                        spec.name,
                        source,
                        vertex.parallelism,
                        clock,
                        None if state is None else msgspec.json.decode(state),
                    )
                )
    return made


def coordinators_of_attempt(
    job_graph: JobGraph,
    clock: Clock,
    restored: Mapping[OperatorId, bytes],
    ended_with: Mapping[OperatorId, bytes] | None,
) -> tuple[list[SourceCoordinator], list[EnumeratorFailed]]:
    """The coordinators that an attempt begins with, and what fails it at once.

    `ended_with`: where those of the attempt before were, for one that goes on from there instead of from a checkpoint;
    empty if they did not say. Then there are none: beginning again would read everything twice, and so would the
    attempt after this one, if there was something here that it could go on from.
    """
    if ended_with is None:
        return make_coordinators(job_graph, clock, restored), []
    if ended_with:
        return make_coordinators(job_graph, clock, ended_with), []
    sources = [o.id for v in job_graph.vertices for o in v.operators if o.is_source]
    reason = "its enumerator did not say how far it was, so the job cannot go on from there"
    return [], [EnumeratorFailed(source, reason, "") for source in sources[:1]]


def snapshot_all(
    coordinators: Sequence[SourceCoordinator], checkpoint_id: int, clock: Clock
) -> EnumeratorAnswer:
    """The states of all enumerators, or why they could not be taken. Called where the enumerators are called."""
    states = {}
    for coordinator in coordinators:
        try:
            states[coordinator.operator] = msgspec.json.encode(coordinator.snapshot())
        except BaseException as e:  # noqa: BLE001 -- the checkpoint fails, not the job
            reason = f"the enumerator of source {coordinator.name!r}: {describe_error(e)}"
            return EnumeratorSnapshotFailed(checkpoint_id, reason)
    return EnumeratorsSnapshotted(checkpoint_id, states, clock.now_ms())


class EnumeratorThread:
    """Runs the coordinators of an attempt on one thread of their own, so that slow I/O never delays the control server.

    `start`, `request_split`, `snapshot` and `stop` return at once and may come from any thread; events go to `post`, in
    the order in which the enumerators made them.
    """

    def __init__(
        self,
        coordinators: list[SourceCoordinator],
        post: Callable[[EnumeratorEvent | EnumeratorAnswer], None],
        clock: Clock,
    ) -> None:
        self._coordinators = {c.operator: c for c in coordinators}
        self._post = post
        self._clock = clock
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = False
        self._final_states: dict[OperatorId, bytes] = {}
        self._thread = threading.Thread(target=self._run, name="tidegate-enumerators", daemon=True)
        self._started = False

    def start(self) -> None:
        """Start the enumerators."""
        if not self._started and self._coordinators:
            self._started = True
            self._thread.start()

    def request_split(self, operator: OperatorId, subtask: int) -> None:
        """A reader is out of work."""
        self._requests.put(lambda: self._emit(self._coordinators[operator].request_split(subtask)))

    def snapshot(self, checkpoint_id: int) -> None:
        """Take the state of all enumerators and post it behind everything that they decided before."""
        coordinators = list(self._coordinators.values())
        self._requests.put(lambda: self._post(snapshot_all(coordinators, checkpoint_id, self._clock)))

    def request_stop(self) -> None:
        """Let the thread close the enumerators and end; returns at once."""
        self._stopping = True
        self._requests.put(None)

    def final_states(self, timeout_s: float = 2.0) -> dict[OperatorId, bytes]:
        """The enumerators' states when they were stopped; empty if they have not ended in time."""
        if self._started:
            self._thread.join(timeout_s)
        return self._final_states

    def stop(self, timeout_s: float = 2.0) -> None:
        """Close the enumerators and end the thread; one that hangs in its own I/O is left behind with a warning."""
        self.request_stop()
        if self._started:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                names = ", ".join(repr(c.name) for c in self._coordinators.values())
                logger.warning("an enumerator of %s does not return; its thread is left behind", names)

    def _run(self) -> None:
        coordinators = list(self._coordinators.values())
        try:
            for coordinator in coordinators:
                if self._stopping:
                    return
                self._emit(coordinator.start())
            while not self._stopping:
                self._step(coordinators)
        finally:
            states = snapshot_all(coordinators, 0, self._clock)
            if isinstance(states, EnumeratorsSnapshotted):
                self._final_states = dict(states.states)
            for coordinator in coordinators:
                coordinator.close()

    def _step(self, coordinators: list[SourceCoordinator]) -> None:
        waits = [wait for c in coordinators if (wait := c.next_poll_in_ms()) is not None]
        try:
            request = self._requests.get(timeout=min(waits) / 1000 if waits else None)
        except queue.Empty:
            request = None
        if request is not None and not self._stopping:
            request()
        for coordinator in coordinators:
            if self._stopping:
                return
            self._emit(coordinator.poll_if_due())

    def _emit(self, events: list[EnumeratorEvent]) -> None:
        for event in events:
            self._post(event)


def _failure(operator: OperatorId, error: BaseException) -> EnumeratorFailed:
    """Errors of ours are messages already; others come with the user's frames."""
    if isinstance(error, TidegateError):
        return EnumeratorFailed(operator, str(error), "")
    return EnumeratorFailed(operator, describe_error(error), user_traceback(error))
