"""Records on their way to the driver, across attempts."""

from __future__ import annotations

from typing import Any

from tidegate.core.ids import AttemptNumber, OperatorId
from tidegate.jobmanager.events import CollectedConsumed, DeliverCollected
from tidegate.jobmanager.failover.events import OfAttempt
from tidegate.runtime.collected_results import CollectedBuffer

SINK = OperatorId("sink")


def test_what_is_taken_is_answered_to_the_attempt_that_sent_it():
    """Sequences begin again with every attempt: an old number would tell a new one that more was taken than it sent."""
    answers: list[Any] = []
    buffer = CollectedBuffer(SINK, answers.append)
    buffer.deliver(AttemptNumber(0), DeliverCollected(SINK, 1, 100, b"old"))
    buffer.deliver(AttemptNumber(1), DeliverCollected(SINK, 1, 1, b"new"))
    taken = [buffer.take(), buffer.take_now()]
    assert buffer.take_now() is None
    assert [batch.data for batch in taken if batch is not None] == [b"old", b"new"]
    assert answers == [
        OfAttempt(AttemptNumber(0), CollectedConsumed(SINK, 1, 100)),
        OfAttempt(AttemptNumber(1), CollectedConsumed(SINK, 1, 1)),
    ]
