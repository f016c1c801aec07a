"""Windows in a harness: streams to cut, results in short, checkpoints cut and restored, what is left in the state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tidegate import Environment, KeyedStream, WatermarkStrategy
from tidegate.core.clock import ManualClock
from tidegate.state.operator_states import Restored
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.testing.harness import OperatorHarness


class Click(NamedTuple):
    """A record."""

    user: str
    amount: int


def clicks(backend: str = "heap", **options: Any) -> Any:
    """A stream of clicks with event time."""
    env = Environment(state_backend=backend, **options)
    return env.from_collection([], type=Click).assign_timestamps_and_watermarks(
        WatermarkStrategy.no_watermarks(lambda click: 0)
    )


def by_user(backend: str = "heap", **options: Any) -> KeyedStream:
    """Clicks by user."""
    keyed: KeyedStream = clicks(backend, **options).key_by("user")
    return keyed


def harness(stream: Any, **settings: Any) -> OperatorHarness:
    """The operator of a stream, with the options of its environment."""
    return OperatorHarness.of(stream, options=stream._env.options, **settings)


def push(h: OperatorHarness, *events: tuple[str, int, int]) -> None:
    """One batch of (user, amount, timestamp)."""
    h.push([Click(u, a) for u, a, _ in events], timestamps=[t for _, _, t in events])


def panes(h: OperatorHarness) -> list[tuple[Any, ...]]:
    """The aggregates that came out since the last call: (key, start, end, results ...), times in milliseconds."""
    found: list[tuple[Any, ...]] = []
    for batch in h.batches:
        names = batch.columns.schema.names
        columns = []
        for name in names:
            column = batch.columns.column(name)
            columns.append((column.cast("int64") if name.startswith("window_") else column).to_pylist())
        found += zip(*columns, strict=True)
    h.batches.clear()
    return found


def times(h: OperatorHarness) -> list[int]:
    """The timestamps of what came out."""
    return [t for batch in h.batches for t in batch.timestamps.to_pylist()]


def left_in_state(h: OperatorHarness) -> dict[str, Any]:
    """The keys that have something, by state, and how many timers there are; what is empty is left out."""
    operator: Any = h.operator
    names = sorted(n for n in operator.backend.claimed if not n.startswith("$timers"))
    found: dict[str, Any] = {name: sorted(operator.backend.keys(name)) for name in names}
    found["timers"] = operator._timers.pending
    return {name: what for name, what in found.items() if what}


class Checkpoints:
    """Cuts a harness and gives another one that goes on from there, at the same event time."""

    def __init__(self, directory: Path) -> None:
        self._storage = FilesystemStorage(str(directory), "job-1")
        self._count = 0

    def restored(self, h: OperatorHarness, stream: Any, clock: ManualClock | None = None) -> OperatorHarness:
        """Another subtask, opened."""
        self._count += 1
        h.operator.snapshot(self._count)
        part = h.states.snapshot(self._count)
        snapshot = part(self._storage.writer(self._count, 0, "test-operator", 0))
        keyed = () if snapshot.keyed is None else (snapshot.keyed,)
        other = harness(stream, clock=clock, restored=Restored(keyed, snapshot.states, self._storage))
        other.__enter__()
        other.states.check_claimed()
        other.operator.clock_ms = h.operator.clock_ms  # the task restores it
        return other


def rows(events: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Records as plain tuples."""
    return [tuple(e) for e in events]
