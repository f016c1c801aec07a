"""The states of a job and of a subtask, and their legal transitions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from tidegate.core.errors import IllegalTransitionError


class JobStatus(enum.Enum):
    """The status of a job."""

    CREATED = "created"
    WAITING_FOR_SLOTS = "waiting for slots"
    RUNNING = "running"
    FAILING = "failing"
    RESTARTING = "restarting"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        return not JOB_TRANSITIONS[self]


class ExecutionState(enum.Enum):
    """The state of one attempt of a subtask."""

    CREATED = "created"
    SCHEDULED = "scheduled"
    DEPLOYING = "deploying"
    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELING = "canceling"
    CANCELED = "canceled"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        return not EXECUTION_TRANSITIONS[self]


J, E = JobStatus, ExecutionState

JOB_TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = MappingProxyType(
    {
        J.CREATED: frozenset({J.WAITING_FOR_SLOTS, J.FAILING, J.CANCELLING}),
        J.WAITING_FOR_SLOTS: frozenset({J.RUNNING, J.FAILING, J.CANCELLING}),
        J.RUNNING: frozenset({J.FINISHED, J.FAILING, J.CANCELLING}),
        J.FAILING: frozenset({J.FAILED, J.RESTARTING, J.CANCELED}),
        J.RESTARTING: frozenset({J.WAITING_FOR_SLOTS, J.FAILED, J.CANCELED}),
        J.CANCELLING: frozenset({J.CANCELED, J.FAILING}),
        J.FINISHED: frozenset(),
        J.FAILED: frozenset(),
        J.CANCELED: frozenset(),
    }
)

_ENDED = frozenset({E.FINISHED, E.CANCELED, E.FAILED})

EXECUTION_TRANSITIONS: Mapping[ExecutionState, frozenset[ExecutionState]] = MappingProxyType(
    {
        E.CREATED: frozenset({E.SCHEDULED, E.CANCELED, E.FAILED}),
        E.SCHEDULED: frozenset({E.DEPLOYING, E.CANCELED, E.FAILED}),
        E.DEPLOYING: frozenset({E.INITIALIZING, E.CANCELING, E.CANCELED, E.FAILED}),
        E.INITIALIZING: frozenset({E.RUNNING, E.CANCELING, E.CANCELED, E.FAILED}),
        E.RUNNING: frozenset({E.CANCELING, *_ENDED}),
        E.CANCELING: _ENDED,
        E.FINISHED: frozenset(),
        E.CANCELED: frozenset(),
        E.FAILED: frozenset(),
    }
)

S = TypeVar("S", JobStatus, ExecutionState)


class StateMachine(Generic[S]):
    """A current state and its history; it changes only along its table of transitions."""

    def __init__(self, subject: str, start: S, table: Mapping[S, frozenset[S]]) -> None:
        self.subject = subject
        self._state: S = start
        self._table: Mapping[S, frozenset[S]] = table
        self.history: list[S] = [start]

    @property
    def state(self) -> S:
        return self._state

    def can(self, target: S) -> bool:
        return target in self._table[self._state]

    def to(self, target: S) -> None:
        """Take a step; an illegal one raises and changes nothing."""
        if not self.can(target):
            raise IllegalTransitionError(
                f"{self.subject} cannot go from {self._state.value} to {target.value}; legal: "
                f"{', '.join(sorted(s.value for s in self._table[self._state])) or 'nothing, it has ended'}"
            )
        self._state = target
        self.history.append(target)
