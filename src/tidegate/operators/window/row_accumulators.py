"""Accumulators of windows: for built-in aggregates, for a reduce function, for the user's `AggregateFunction`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from tidegate.aggregates.aggregate import Aggregate
from tidegate.aggregates.rows import RowAggregates
from tidegate.api.state import AggregateFunction
from tidegate.operators.columns.aggregate_inputs import AggregateInputs
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType
from tidegate.state.copies import row_copier


class Accumulators(ABC):
    """How values become an accumulator, and an accumulator a result. `dump` and `load` are for the state."""

    stored_type: RecordType

    @abstractmethod
    def create(self, value: Any, timestamp_ms: int) -> Any:
        """The accumulator of one value."""

    @abstractmethod
    def add(self, accumulator: Any, value: Any, timestamp_ms: int) -> Any:
        """The accumulator with one more value; may change the given one."""

    @abstractmethod
    def merge(self, left: Any, right: Any) -> Any:
        """Merge two accumulators; may change both."""

    @abstractmethod
    def result(self, accumulator: Any) -> Any:
        """The result, which is the caller's own."""

    def dump(self, accumulator: Any) -> Any:
        return accumulator

    def load(self, stored: Any) -> Any:
        return stored

    def of_all(self, values: Iterable[tuple[Any, int]]) -> Any:
        """The accumulator of values with timestamps; None if there are none."""
        accumulator: Any = None
        for i, (value, timestamp_ms) in enumerate(values):
            accumulator = (
                self.add(accumulator, value, timestamp_ms) if i else self.create(value, timestamp_ms)
            )
        return accumulator


class AggregateAccumulators(RowAggregates, Accumulators):
    """Several aggregates side by side; the result is a list with one value each."""

    def __init__(self, aggregates: tuple[tuple[str, Aggregate], ...], record_type: RecordType) -> None:
        self._inputs = AggregateInputs([a for _, a in aggregates], record_type)
        outputs = [output for output, _ in aggregates]
        super().__init__(list(zip(outputs, self._inputs.kernels, strict=True)))

    def values(self, batch: Batch) -> list[tuple[Any, ...]]:
        """What `add` takes, for each record of a batch."""
        return list(zip(*self._inputs.rows(batch), strict=True))

    def create(self, value: Any, timestamp_ms: int) -> Any:
        return self.add(self.start(), value, timestamp_ms)


class ReduceAccumulators(Accumulators):
    """The reduced value itself."""

    def __init__(self, function: Callable[[Any, Any], Any], record_type: RecordType) -> None:
        self._function = function
        self._copy = row_copier(record_type)
        self.stored_type = record_type

    def create(self, value: Any, timestamp_ms: int) -> Any:
        """The value; a copy if the function could change it, as other operators may hold it too."""
        return value if self._copy is None else self._copy(value)

    def add(self, accumulator: Any, value: Any, timestamp_ms: int) -> Any:
        return self._function(accumulator, value)

    def merge(self, left: Any, right: Any) -> Any:
        return self._function(left, right)

    def result(self, accumulator: Any) -> Any:
        """The value; a copy if it can change later."""
        return accumulator if self._copy is None else self._copy(accumulator)


class FunctionAccumulators(Accumulators):
    """The accumulators of the user's `AggregateFunction`."""

    def __init__(self, function: AggregateFunction[Any, Any, Any], accumulator_type: RecordType) -> None:
        self._function = function
        self.stored_type = accumulator_type

    def create(self, value: Any, timestamp_ms: int) -> Any:
        return self._function.add(value, self._function.create_accumulator())

    def add(self, accumulator: Any, value: Any, timestamp_ms: int) -> Any:
        return self._function.add(value, accumulator)

    def merge(self, left: Any, right: Any) -> Any:
        return self._function.merge(left, right)

    def result(self, accumulator: Any) -> Any:
        """The function's result; a copy if it is the accumulator itself, which may change later."""
        result = self._function.get_result(accumulator)
        return deepcopy(result) if result is accumulator else result
