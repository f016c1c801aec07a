"""What tests of single operators share: a harness with the program's options, output with times, the next attempt."""

from __future__ import annotations

from typing import Any

from tests.contract.state_backend_kit import MemoryStorage
from tidegate import Environment
from tidegate.records.batch import Batch
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.state.operator_states import Restored
from tidegate.testing.harness import OperatorHarness

Pair = tuple[str, int]


def pairs(env: Environment) -> Any:
    """A stream of pairs, for its types: a harness pushes the records."""
    return env.from_collection([], type=Pair)


def keyed(env: Environment) -> Any:
    """The same by the first of each pair."""
    return pairs(env).key_by("f0")


def harness(made: Any, **settings: Any) -> OperatorHarness:
    """The operator of a stream, not open yet."""
    return OperatorHarness.of(made, options=made._env.options, **settings)


def times_of(batch: Batch) -> list[int]:
    """The timestamps of a batch that must have them."""
    assert batch.timestamps is not None
    times: list[int] = batch.timestamps.to_pylist()
    return times


def stamped(h: OperatorHarness) -> list[tuple[Any, int]]:
    """Everything that came out, with its time."""
    return [pair for b in h.batches for pair in zip(b.rows, times_of(b), strict=True)]


def next_attempt(
    made: Any, before: OperatorHarness, storage: MemoryStorage, checkpoint: int
) -> OperatorHarness:
    """The operator of the attempt that is restored from a checkpoint, open, at the clock that the task restores."""
    before.operator.snapshot(checkpoint)
    snapshot = before.states.snapshot(checkpoint)(storage.writer(checkpoint, 0, "operator", 0))
    assert snapshot.keyed is not None
    following = harness(made, restored=Restored((snapshot.keyed,), snapshot.states, storage))
    following.operator.open()
    following.operator.clock_ms = before.operator.clock_ms
    if before.operator.clock_ms != MIN_TIMESTAMP:
        following.operator.on_event_time(before.operator.clock_ms)
    before.operator.close()
    before.states.close()
    return following
