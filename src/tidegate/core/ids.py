"""Ids as types, so that a slot number cannot be passed where a subtask number is meant."""

from __future__ import annotations

import secrets
from typing import NamedTuple, NewType

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


def new_job_id() -> JobId:
    """Return a random job id of 16 hexadecimal digits."""
    return JobId(secrets.token_hex(8))
