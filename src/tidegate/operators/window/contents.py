"""The contents of open windows, in the keyed state: an accumulator per window, or all its elements.

All calls concern the windows of the backend's current key. Accumulators are Python objects while a batch (or a pass of
timers) is processed, and `flush` writes them to the state. Elements are written at once, each as an entry of its own,
so that adding one costs the same however many there are. Mailbox thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, starmap
from typing import Any, Final, NamedTuple

from tidegate.api.evictors import TimestampedValue
from tidegate.api.state import KeyedState, MapState, PickleSerializer
from tidegate.api.windows import TimeWindow
from tidegate.operators.window.row_accumulators import Accumulators
from tidegate.records.types import RecordType, ScalarType, TupleType
from tidegate.state.backend import KeyedStateBackend

NOTHING: Final = object()
"""The contents of a window that does not exist."""

CONTENTS: Final = "$windows"
ELEMENTS: Final = "$elements"
TIMESTAMPS: Final = "$timestamps"


class Contents(ABC):
    """The contents of all windows of one subtask."""

    name: str = CONTENTS
    """The name of the state that knows the windows."""
    open_windows: int
    """How many windows hold something."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend
        self.open_windows = 0

    @abstractmethod
    def add(self, window: TimeWindow, value: Any, timestamp_ms: int) -> bool:
        """Add a value to a window; returns whether the window is new."""

    @abstractmethod
    def get(self, window: TimeWindow) -> Any:
        """The accumulator or the list of elements, or `NOTHING`."""

    @abstractmethod
    def clear(self, window: TimeWindow) -> None:
        """Forget what a window holds."""

    @abstractmethod
    def merge(self, window: TimeWindow, others: Sequence[TimeWindow]) -> None:
        """Move the contents of others into a window; the others are then empty."""

    @abstractmethod
    def flush(self) -> None:
        """Write everything to the state. Changes the current key."""

    @abstractmethod
    def windows(self) -> list[TimeWindow]:
        """The windows of the current key; after `flush`."""

    def all_keys(self) -> list[Any]:
        """The keys that have windows; after `flush`. Reads all of the state."""
        return list(self._backend.keys(self.name))

    def count_restored(self) -> None:
        backend = self._backend
        before = backend.current_key
        for key in self.all_keys():
            backend.current_key = key
            self.open_windows += len(self.windows())
        backend.current_key = before


class AccumulatedContents(Contents):
    """One accumulator per window."""

    def __init__(self, backend: KeyedStateBackend, accumulators: Accumulators) -> None:
        super().__init__(backend)
        self._accumulators = accumulators
        self._store = _Store(accumulators.stored_type)
        self._state = self._store.state(backend, TimeWindow, CONTENTS)
        self._live: dict[tuple[Any, TimeWindow], Any] = {}

    def add(self, window: TimeWindow, value: Any, timestamp_ms: int) -> bool:
        place = (self._backend.current_key, window)
        accumulator = self._live.get(place, NOTHING)
        if accumulator is NOTHING:
            accumulator = self._load(window)
        is_new = accumulator is NOTHING
        if is_new:
            self.open_windows += 1
            accumulator = self._accumulators.create(value, timestamp_ms)
        else:
            accumulator = self._accumulators.add(accumulator, value, timestamp_ms)
        self._live[place] = accumulator
        return is_new

    def get(self, window: TimeWindow) -> Any:
        found = self._live.get((self._backend.current_key, window), NOTHING)
        return self._load(window) if found is NOTHING else found

    def clear(self, window: TimeWindow) -> None:
        found = self._live.pop((self._backend.current_key, window), NOTHING)
        stored = self._state.contains(window)
        if stored:
            self._state.remove(window)
        if stored or found is not NOTHING:
            self.open_windows -= 1

    def merge(self, window: TimeWindow, others: Sequence[TimeWindow]) -> None:
        merged = self.get(window)
        for other in others:
            found = self.get(other)
            if found is NOTHING:
                continue
            self.clear(other)
            if merged is NOTHING:
                self.open_windows += 1
                merged = found
            else:
                merged = self._accumulators.merge(merged, found)
        if merged is not NOTHING:
            self._live[(self._backend.current_key, window)] = merged

    def flush(self) -> None:
        backend, put, dump = self._backend, self._state.put, self._accumulators.dump
        box = self._store.box
        for (backend.current_key, window), accumulator in self._live.items():
            put(window, box(dump(accumulator)))
        self._live.clear()

    def windows(self) -> list[TimeWindow]:
        return [TimeWindow(*w) for w, _ in self._state.items()]

    def _load(self, window: TimeWindow) -> Any:
        stored = self._state.get(window)
        return NOTHING if stored is None else self._accumulators.load(self._store.unbox(stored))


class ElementPlace(NamedTuple):
    """The key of an element in the state: its window, and its number there."""

    start_ms: int
    end_ms: int
    number: int


Runs = list[int]
"""The numbers of a window's elements, in order: first and end (exclusive) of each run, one after the other."""


class ListedContents(Contents):
    """All elements of each window, in order of arrival; with timestamps for evictors.

    If windows merge, the elements of a key are numbered over all its windows, so that a merged window also has them in
    order of arrival.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        element_type: RecordType,
        *,
        timestamped: bool,
        merging: bool,
        side: str = "",
    ) -> None:
        """`side` distinguishes the two sides of a join in the names of their states."""
        super().__init__(backend)
        self._store = _Store(element_type)
        self.name = CONTENTS + side
        self._runs: Any = backend.state(MapState(TimeWindow, list[int], name=self.name))
        self._elements = self._store.state(backend, ElementPlace, ELEMENTS + side)
        self._timestamps: Any = None
        if timestamped:
            self._timestamps = backend.state(MapState(ElementPlace, int, name=TIMESTAMPS))
        self._live: dict[tuple[Any, TimeWindow], Runs] = {}
        self._next: dict[Any, int] | None = {} if merging else None
        """By key, the number of the next element; None: each window counts for itself."""

    def add(self, window: TimeWindow, value: Any, timestamp_ms: int) -> bool:
        runs = self._runs_of(window)
        is_new = runs is None
        if runs is None:
            self.open_windows += 1
            runs = self._live[(self._backend.current_key, window)] = []
        if self._next is None:
            number = runs[-1] if runs else 0
        else:
            number = self._next_number(self._next)
            self._next[self._backend.current_key] = number + 1
        place = ElementPlace(*window, number)
        self._elements.put(place, self._store.box(value))
        if self._timestamps is not None:
            self._timestamps.put(place, timestamp_ms)
        if runs and runs[-1] == number:
            runs[-1] = number + 1
        else:
            runs += (number, number + 1)
        return is_new

    def get(self, window: TimeWindow) -> Any:
        runs = self._runs_of(window)
        if runs is None:
            return NOTHING
        get, unbox = self._elements.get, self._store.unbox
        return [unbox(get(ElementPlace(*window, i))) for i in _numbers(runs)]

    def timestamped(self, window: TimeWindow) -> list[TimestampedValue]:
        runs = self._runs_of(window)
        if runs is None:
            return []
        times = [self._timestamps.get(ElementPlace(*window, i)) for i in _numbers(runs)]
        return list(map(TimestampedValue, self.get(window), times))

    def count(self, window: TimeWindow) -> int:
        runs = self._runs_of(window)
        return 0 if runs is None else sum(runs[1::2]) - sum(runs[::2])

    def replace(
        self, window: TimeWindow, held: Sequence[TimestampedValue], left: Sequence[TimestampedValue]
    ) -> None:
        """Replace the elements `held`, which `timestamped` returned, by `left`: usually some of them, in order."""
        runs = self._runs_of(window)
        assert runs is not None
        numbers = {id(element): number for element, number in zip(held, _numbers(runs), strict=True)}
        stays = [numbers.get(id(element), -1) for element in left]
        if not stays or stays[0] < 0 or any(b <= a for a, b in pairwise(stays)):
            self.clear(window)
            for element in left:
                self.add(window, element.value, element.timestamp_ms)
            return
        for number in set(numbers.values()).difference(stays):
            self._remove(ElementPlace(*window, number))
        self._live[(self._backend.current_key, window)] = _joined((n, n + 1) for n in stays)

    def clear(self, window: TimeWindow) -> None:
        runs = self._runs_of(window)
        if runs is None:
            return
        for number in _numbers(runs):
            self._remove(ElementPlace(*window, number))
        self._live.pop((self._backend.current_key, window), None)
        if self._runs.contains(window):
            self._runs.remove(window)
        self.open_windows -= 1

    def merge(self, window: TimeWindow, others: Sequence[TimeWindow]) -> None:
        """Move the elements of others into a window, in order of arrival."""
        assert self._next is not None
        held = [(other, runs) for other in others if (runs := self._runs_of(other)) is not None]
        if not held:  # a record has made its session longer
            return
        self._next_number(self._next)  # before the highest number leaves its window
        own = self._runs_of(window)
        united = list(_pairs(own or []))
        for other, runs in held:
            united += _pairs(runs)
            for number in _numbers(runs):
                self._move(ElementPlace(*other, number), ElementPlace(*window, number))
            self.clear(other)
        self.open_windows += own is None
        self._live[(self._backend.current_key, window)] = _joined(sorted(united))

    def flush(self) -> None:
        backend, put = self._backend, self._runs.put
        for (backend.current_key, window), runs in self._live.items():
            put(window, runs)
        self._live.clear()
        if self._next is not None:
            self._next.clear()

    def windows(self) -> list[TimeWindow]:
        return [TimeWindow(*w) for w, _ in self._runs.items()]

    def _runs_of(self, window: TimeWindow) -> Runs | None:
        """The numbers of a window's elements, to be changed in place; None: the window does not exist."""
        place = (self._backend.current_key, window)
        found = self._live.get(place)
        if found is None:
            stored = self._runs.get(window)
            if stored is not None:
                found = self._live[place] = list(stored)
        return found

    def _next_number(self, following: dict[Any, int]) -> int:
        """The number of the key's next element; searched once between two flushes."""
        key = self._backend.current_key
        number = following.get(key)
        if number is None:
            number = following[key] = max((runs[-1] for _, runs in self._runs.items()), default=0)
        return number

    def _move(self, old: ElementPlace, new: ElementPlace) -> None:
        self._elements.put(new, self._elements.get(old))
        if self._timestamps is not None:
            self._timestamps.put(new, self._timestamps.get(old))

    def _remove(self, place: ElementPlace) -> None:
        self._elements.remove(place)
        if self._timestamps is not None:
            self._timestamps.remove(place)


def _numbers(runs: Runs) -> Iterable[int]:
    return chain.from_iterable(starmap(range, _pairs(runs)))


def _pairs(runs: Runs) -> Iterable[tuple[int, int]]:
    return zip(runs[::2], runs[1::2], strict=True)


def _joined(pairs: Iterable[tuple[int, int]]) -> Runs:
    """Ascending pairs as the fewest possible runs.

    >>> _joined([(3, 4), (4, 5), (7, 8), (9, 11)])
    [3, 5, 7, 8, 9, 11]
    """
    runs: Runs = []
    for first, end in pairs:
        if runs and runs[-1] == first:
            runs[-1] = end
        else:
            runs += (first, end)
    return runs


class _Store:
    """Stores values of a record type in a map state, where None would mean that there is no value."""

    def __init__(self, record_type: RecordType) -> None:
        self._type: Any = record_type
        self._serializer = PickleSerializer() if record_type.is_object else None
        self._is_boxed = isinstance(record_type, ScalarType) and record_type.schema.field(0).nullable
        if self._is_boxed:
            assert isinstance(record_type, ScalarType)
            self._type = TupleType([(record_type._codec, True)])

    def state(self, backend: KeyedStateBackend, key_type: Any, name: str) -> Any:
        declaration: KeyedState = MapState(key_type, self._type, name=name, serializer=self._serializer)
        return backend.state(declaration)

    def box(self, value: Any) -> Any:
        return (value,) if self._is_boxed else value

    def unbox(self, kept: Any) -> Any:
        return kept[0] if self._is_boxed else kept
