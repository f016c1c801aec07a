"""Ids as types, so that a slot number cannot be passed where a subtask number is meant."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple, NewType

JobId = NewType("JobId", str)
AttemptNumber = NewType("AttemptNumber", int)
SlotId = NewType("SlotId", int)
OperatorId = NewType("OperatorId", str)
VertexId = NewType("VertexId", int)
EdgeId = NewType("EdgeId", int)


class SubtaskId(NamedTuple):
    """One parallel instance of a job vertex."""

    vertex: VertexId
    index: int  # type: ignore[assignment]  # a field may hide tuple.index


class ChannelId(NamedTuple):
    """One direction of data between two subtasks: an edge, the producer's and the consumer's subtask index."""

    edge: EdgeId
    producer: int
    consumer: int


ATTEMPTS_PER_DRIVER: Final = 1_000_000
"""A driver that resumes a job begins with the next multiple, so that no attempt of an earlier driver has the same
number: its processes may still write, and the number is what keeps their files apart."""

CHECKPOINTS_PER_DRIVER: Final = 1_000_000_000
"""The same for the ids of checkpoints: no two drivers of a job ever use the same one, so none can write or delete what
another wrote. One checkpoint per second uses them up in 31 years."""


def driver_of_attempt(attempt: int) -> int:
    """Which driver of the job an attempt is of, counted from 0."""
    return attempt // ATTEMPTS_PER_DRIVER


def driver_of_checkpoint(checkpoint_id: int) -> int:
    """Which driver of the job took a checkpoint.

    >>> driver_of_checkpoint(42), driver_of_checkpoint(1_000_000_042)
    (0, 1)
    """
    return checkpoint_id // CHECKPOINTS_PER_DRIVER


def first_checkpoint_of(attempt: int) -> int:
    """The id of the first checkpoint of the driver that an attempt is of.

    >>> first_checkpoint_of(3), first_checkpoint_of(1_000_003)
    (1, 1000000001)
    """
    return driver_of_attempt(attempt) * CHECKPOINTS_PER_DRIVER + 1


def attempt_name(attempt: int) -> str:
    """An attempt as people read it: counted for each driver, and the driver only where it is not the first.

    >>> attempt_name(2), attempt_name(1_000_000)
    ('attempt 2', 'driver 2, attempt 0')
    """
    driver, number = divmod(attempt, ATTEMPTS_PER_DRIVER)
    return f"driver {driver + 1}, attempt {number}" if driver else f"attempt {number}"


def new_job_id() -> JobId:
    """Return a random job id of 16 hexadecimal digits."""
    return JobId(secrets.token_hex(8))
