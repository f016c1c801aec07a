"""SourceCoordinator: hosts the SplitEnumerator of one source and turns its decisions into events for the JobMaster.

Every call may do the source's I/O (list files, ask a broker), so all come from one thread that may block. No call
raises: if the enumerator does, the answer is one `EnumeratorFailed`; after that it is only closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.api.source import Source, SplitEnumerator
from tidegate.core.clock import Clock
from tidegate.core.errors import TidegateError
from tidegate.core.ids import AttemptNumber, OperatorId
from tidegate.graph.blobs import load_blob
from tidegate.graph.job_graph import JobGraph, JobVertex, OperatorPayload, OperatorSpec
from tidegate.jobmanager.checkpoint.events import (
    EnumeratorAnswer,
    EnumeratorSnapshotFailed,
    EnumeratorsSnapshotted,
)
from tidegate.jobmanager.events import EnumeratorEvent, EnumeratorFailed, SplitsAssigned, SplitsExhausted
from tidegate.jobmanager.failover.events import JobEvent, OfAttempt
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
        return self._parallelism

    @property
    def clock(self) -> Clock:
        return self._clock

    def assign(self, splits: Sequence[Any], subtask: int) -> None:
        self._check_subtask(subtask)
        if splits:
            encoded = tuple(msgspec.json.encode(split) for split in splits)
            self._events.append(SplitsAssigned(self.operator, subtask, encoded))

    def no_more_splits(self, subtask: int) -> None:
        """Notify a reader that no splits follow."""
        self._check_subtask(subtask)
        self._events.append(SplitsExhausted(self.operator, subtask))

    def _check_subtask(self, subtask: int) -> None:
        if not 0 <= subtask < self._parallelism:
            raise ValueError(f"there is no reader {subtask}: the source has parallelism {self._parallelism}")

    # ---- for the driver ----

    @property
    def records_expected(self) -> int | None:
        """How many records the source will emit in all; None where it does not know."""
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
        """A reader has no splits left."""
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
        """Time until `poll_if_due` polls; None: never."""
        if self._next_poll_ms is None or self._failed:
            return None
        return max(0, self._next_poll_ms - self._now_ms())

    def snapshot(self) -> Any:
        """The enumerator's state as plain JSON-able values; a later coordinator gets it as `restored`."""
        if self._enumerator is None:
            return self._restored
        return msgspec.to_builtins(self._enumerator.snapshot())

    def close(self) -> None:
        """Close the enumerator; an exception is only logged, because the job has ended."""
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
        except BaseException as e:  # noqa: BLE001 -- fails the job; sys.exit too, or readers would wait for ever
            self._failed = True
            self._events.append(_failure(self.operator, e))
        events, self._events = self._events, []
        return events

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def make_coordinators(
    job_graph: JobGraph, clock: Clock, restored: Mapping[OperatorId, bytes] | None = None
) -> list[SourceCoordinator]:
    """One coordinator for each source of a job, with its state (JSON) in the checkpoint, if any."""
    made = []
    for vertex, spec in sources_of(job_graph):
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


def sources_of(job_graph: JobGraph) -> list[tuple[JobVertex, OperatorSpec]]:
    """The source operators of a job, each with its vertex."""
    return [(v, spec) for v in job_graph.vertices for spec in v.operators if spec.is_source]


def snapshot_all(
    coordinators: Sequence[SourceCoordinator], checkpoint_id: int, clock: Clock
) -> EnumeratorAnswer:
    """The states of all enumerators, or why they could not be taken. Called on the thread of the enumerators."""
    states = {}
    for coordinator in coordinators:
        try:
            states[coordinator.operator] = msgspec.json.encode(coordinator.snapshot())
        except BaseException as e:  # noqa: BLE001 -- the checkpoint fails, not the job
            reason = f"the enumerator of source {coordinator.name!r}: {describe_error(e)}"
            return EnumeratorSnapshotFailed(checkpoint_id, reason)
    return EnumeratorsSnapshotted(checkpoint_id, states, clock.now_ms())


class AttemptEnumerators:
    """The enumerators of all sources of one attempt. `post` gets their events, in order."""

    def __init__(
        self,
        job_graph: JobGraph,
        clock: Clock,
        attempt: AttemptNumber,
        states: Mapping[OperatorId, bytes] | None,
        post: Callable[[JobEvent], None],
    ) -> None:
        """They begin from these states (JSON). None: their progress is not known, and the attempt fails.

        Then no enumerator is made: from the beginning it would read everything twice, and the next attempt would
        go on from its state.
        """
        self._clock = clock
        self._attempt = attempt
        self._post = post
        self._coordinators: dict[OperatorId, SourceCoordinator] = {}
        first = sources_of(job_graph)[0][1].id
        if states is None:
            reason = "its enumerator did not say how far it was, so the job cannot go on from there"
            self._emit([EnumeratorFailed(first, reason, "")])
            return
        try:
            self._coordinators = {c.operator: c for c in make_coordinators(job_graph, clock, states)}
        except Exception as e:  # noqa: BLE001 -- fails the attempt
            self._emit([_failure(first, e)])

    def start(self, source: OperatorId) -> None:
        if source in self._coordinators:
            self._emit(self._coordinators[source].start())

    def request_split(self, source: OperatorId, subtask: int) -> None:
        """A reader has no splits left."""
        if source in self._coordinators:
            self._emit(self._coordinators[source].request_split(subtask))

    def snapshot(self, checkpoint_id: int) -> None:
        """Take the states of all and post them, after all events before."""
        self._post(snapshot_all(list(self._coordinators.values()), checkpoint_id, self._clock))

    def next_poll_in_ms(self) -> int | None:
        """Time until `poll_if_due` polls; None: never."""
        waits = (coordinator.next_poll_in_ms() for coordinator in self._coordinators.values())
        return min((wait for wait in waits if wait is not None), default=None)

    def poll_if_due(self) -> None:
        """Poll every enumerator whose interval has passed."""
        for coordinator in self._coordinators.values():
            self._emit(coordinator.poll_if_due())

    def close(self) -> Mapping[OperatorId, bytes] | None:
        """Close all; returns their states, for an attempt that goes on from there. None: not known."""
        coordinators = list(self._coordinators.values())
        answer = snapshot_all(coordinators, 0, self._clock)
        for coordinator in coordinators:
            coordinator.close()
        return (answer.states or None) if isinstance(answer, EnumeratorsSnapshotted) else None

    def _emit(self, events: Sequence[EnumeratorEvent]) -> None:
        for event in events:
            self._post(OfAttempt(self._attempt, event))


def _failure(operator: OperatorId, error: BaseException) -> EnumeratorFailed:
    """Our own errors are complete messages; others get the frames of the user's code."""
    if isinstance(error, TidegateError):
        return EnumeratorFailed(operator, str(error), "")
    return EnumeratorFailed(operator, describe_error(error), user_traceback(error))
