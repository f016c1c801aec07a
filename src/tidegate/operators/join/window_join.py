"""Window joins and co-groups: the windows of `WindowOperator`, with the records of two streams kept apart.

When a window is computed, the function of a join gets each pair of a left and a right record (an outer join also gets
records without a partner, with None); the function of a co-group gets all records of both sides at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.api.windows import TimeWindow
from tidegate.operators.functions.row_operator import UnkeyedContext
from tidegate.operators.window.computation import WindowComputation
from tidegate.operators.window.contents import NOTHING, Contents, ListedContents
from tidegate.operators.window.results import FunctionResults
from tidegate.operators.window.window_operator import WindowOperator
from tidegate.program.join_operations import WindowJoin
from tidegate.program.operations import Key
from tidegate.records.batch import Batch
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.copies import itself, row_copier

Sides = tuple[list[Any], list[Any]]


class WindowJoinOperator(WindowOperator):
    """Two inputs into the same windows. Mailbox thread only."""

    operation: WindowJoin
    _computation: JoinComputation
    _side = 0

    def open(self) -> None:
        """Open the function, and find what a checkpoint had."""
        self._buffered = self.context.gauge("buffered_records")
        super().open()

    def process(self, batch: Batch, input_index: int) -> None:
        """Add each record to its windows, on its side."""
        self._side = self._computation.contents.side = input_index
        super().process(batch, input_index)

    def keys(self, batch: Batch, key: Key) -> list[Any]:
        """The keys of the side that the batch came from."""
        return super().keys(batch, self.operation.keys[self._side])

    def _make_computation(self) -> JoinComputation:
        return JoinComputation(self, self.operation, self.backend)

    @property
    def _late_tag(self) -> str | None:
        return self.operation.late_tags[self._side]

    def _show(self) -> None:
        super()._show()
        self._buffered.set(self._computation.contents.records)


class JoinComputation(WindowComputation):
    """What the windows of a join hold, and how one is computed."""

    contents: SidedContents

    def __init__(
        self, operator: WindowJoinOperator, operation: WindowJoin, backend: KeyedStateBackend
    ) -> None:
        self._backend = backend
        self.contents = SidedContents(backend, operator)
        self.contents.count_restored()
        tags = [tag for tag in operator.side_outputs if tag not in operation.late_tags]
        self.results = FunctionResults(operator, UnkeyedContext(tags), many=True)
        self._compute = self._co_group if operation.form == "co_group" else self._join
        self._outer = operation.outer
        copiers = [row_copier(t) for t in operator.input_types]
        self._is_mutable = any(c is not None for c in copiers)
        self._copies = tuple(c or itself for c in copiers)
        function: Callable[..., Any] = operator.method("co_group" if operation.form == "co_group" else "join")
        self._function_of_two = function

    def values(self, batch: Batch) -> list[Any]:
        return batch.rows

    def add(self, place: TimeWindow, value: Any, timestamp_ms: int) -> bool:
        return self.contents.add(place, value, timestamp_ms)

    def fire(self, window: TimeWindow, place: TimeWindow, timestamp_ms: int | None) -> None:
        """Compute a window, if it holds something."""
        held = self.contents.get(place)
        if held is not NOTHING:
            key = self._backend.current_key
            self.results.add(key, window, self._compute(held), timestamp_ms)

    def clear(self, window: TimeWindow, place: TimeWindow) -> None:
        self.contents.clear(place)

    def flush(self) -> None:
        self.contents.flush()

    def _co_group(self, held: Sides) -> Any:
        return self._function_of_two(*held)

    def _join(self, held: Sides) -> list[Any]:
        lefts, rights = held
        function = self._function_of_two
        if lefts and rights:
            if not self._is_mutable:
                return [function(left, right) for left in lefts for right in rights]
            copy_left, copy_right = self._copies
            return [function(copy_left(left), copy_right(right)) for left in lefts for right in rights]
        alone: list[Any] = []
        if self._outer[0]:
            alone += [function(left, None) for left in lefts]
        if self._outer[1]:
            alone += [function(None, right) for right in rights]
        return alone


class SidedContents(Contents):
    """The elements of each window, of two sides; `side` is the side that `add` adds to."""

    side = 0

    def __init__(self, backend: KeyedStateBackend, operator: WindowJoinOperator) -> None:
        super().__init__(backend)
        left, right = operator.input_types
        merging = operator.operation.assigner.is_merging
        self._sides = (
            ListedContents(backend, left, timestamped=False, merging=merging, side=".left"),
            ListedContents(backend, right, timestamped=False, merging=merging, side=".right"),
        )
        self.records = 0
        """How many records wait."""

    def add(self, window: TimeWindow, value: Any, timestamp_ms: int) -> bool:
        """Append a record of the current side."""
        self.records += 1
        is_new = self._sides[self.side].add(window, value, timestamp_ms)
        is_new = is_new and not self._sides[1 - self.side].count(window)
        if is_new:
            self.open_windows += 1
        return is_new

    def get(self, window: TimeWindow) -> Any:
        """The records of the left and of the right."""
        held = [side.get(window) for side in self._sides]
        if held == [NOTHING, NOTHING]:
            return NOTHING
        return tuple([] if side is NOTHING else side for side in held)

    def clear(self, window: TimeWindow) -> None:
        held = sum(side.count(window) for side in self._sides)
        for side in self._sides:
            side.clear(window)
        self.records -= held
        if held:
            self.open_windows -= 1

    def merge(self, window: TimeWindow, others: Sequence[TimeWindow]) -> None:
        held = {w for w in (window, *others) if any(side.count(w) for side in self._sides)}
        for side in self._sides:
            side.merge(window, others)
        self.open_windows -= max(0, len(held) - 1)

    def flush(self) -> None:
        for side in self._sides:
            side.flush()

    def windows(self) -> list[TimeWindow]:
        return list(dict.fromkeys(w for side in self._sides for w in side.windows()))

    def all_keys(self) -> list[Any]:
        return list(dict.fromkeys(key for side in self._sides for key in side.all_keys()))

    def count_restored(self) -> None:
        super().count_restored()
        backend = self._backend
        before = backend.current_key
        for side in self._sides:
            for key in side.all_keys():
                backend.current_key = key
                self.records += sum(map(side.count, side.windows()))
        backend.current_key = before
