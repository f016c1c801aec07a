"""Ids as types, so that the type checker refuses a slot number in place of a subtask number."""

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
    """A channel from one subtask to another: an edge, the producer's and the consumer's subtask index."""

    edge: EdgeId
    producer: int
    consumer: int


ATTEMPTS_PER_DRIVER: Final = 1_000_000
"""A driver that resumes a job starts with the next multiple, so that no two drivers use the same attempt number:
processes of the earlier driver may still write, and the number keeps their files apart."""

CHECKPOINTS_PER_DRIVER: Final = 1_000_000_000
"""The same for checkpoint ids: no two drivers of a job use the same id, so none can write or delete the other's files.
At one checkpoint per second they last 31 years."""


def driver_of_attempt(attempt: int) -> int:
    """The number of the driver that runs an attempt, counted from 0."""
    return attempt // ATTEMPTS_PER_DRIVER


def driver_of_checkpoint(checkpoint_id: int) -> int:
    """The number of the driver that took a checkpoint, counted from 0.

    >>> driver_of_checkpoint(42), driver_of_checkpoint(1_000_000_042)
    (0, 1)
    """
    return checkpoint_id // CHECKPOINTS_PER_DRIVER


def first_checkpoint_of(attempt: int) -> int:
    """The id of the first checkpoint of the driver that runs an attempt.

    >>> first_checkpoint_of(3), first_checkpoint_of(1_000_003)
    (1, 1000000001)
    """
    return driver_of_attempt(attempt) * CHECKPOINTS_PER_DRIVER + 1


def attempt_name(attempt: int) -> str:
    """An attempt for people: counted per driver; names the driver only if it is not the first.

    >>> attempt_name(2), attempt_name(1_000_000)
    ('attempt 2', 'driver 2, attempt 0')
    """
    driver, number = divmod(attempt, ATTEMPTS_PER_DRIVER)
    return f"driver {driver + 1}, attempt {number}" if driver else f"attempt {number}"


def new_job_id() -> JobId:
    """A random job id of 16 hexadecimal digits."""
    return JobId(secrets.token_hex(8))
