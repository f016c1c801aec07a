"""What open windows hold, in the keyed state: an accumulator each, or all their elements.

All calls are about the windows of the backend's current key. Accumulators are Python objects while a batch (or a pass
of timers) is worked on, and go into the state in `flush`; elements go there at once, each as an entry of its own, so
that one more costs the same however many there are. Mailbox thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tidegate.api.evictors import TimestampedValue
from tidegate.api.state import KeyedState, MapState, PickleSerializer
from tidegate.api.windows import TimeWindow
from tidegate.operators.window.row_accumulators import Accumulators
from tidegate.records.types import RecordType, ScalarType, TupleType
from tidegate.state.backend import KeyedStateBackend

NOTHING: Final = object()
"""What a window holds that does not exist."""

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
        """Take a value into a window; whether the window is new."""

    @abstractmethod
    def get(self, window: TimeWindow) -> Any:
        """The accumulator or the list of elements, or `NOTHING`."""

    @abstractmethod
    def clear(self, window: TimeWindow) -> None:
        """Forget what a window holds."""

    @abstractmethod
    def merge(self, window: TimeWindow, others: Sequence[TimeWindow]) -> None:
        """Bring what others hold into a window; the others are then empty."""

    @abstractmethod
    def flush(self) -> None:
        """Put everything into the state. Changes the current key."""

    @abstractmethod
    def windows(self) -> list[TimeWindow]:
        """The windows of the current key; after `flush`."""

    def all_keys(self) -> list[Any]:
        """The keys that have windows; after `flush`. Reads all of the state."""
        return list(self._backend.keys(self.name))

    def count_restored(self) -> None:
        """Count what a checkpoint had."""
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
        """Bring a value into the accumulator."""
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
        """The accumulator."""
        found = self._live.get((self._backend.current_key, window), NOTHING)
        return self._load(window) if found is NOTHING else found

    def clear(self, window: TimeWindow) -> None:
        """Forget the accumulator."""
        found = self._live.pop((self._backend.current_key, window), NOTHING)
        stored = self._state.contains(window)
        if stored:
            self._state.remove(window)
        if stored or found is not NOTHING:
            self.open_windows -= 1

    def merge(self, window: TimeWindow, others: Sequence[TimeWindow]) -> None:
        """Merge the accumulators."""
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
        """Put the accumulators into the state."""
        backend, put, dump = self._backend, self._state.put, self._accumulators.dump
        box = self._store.box
        for (backend.current_key, window), accumulator in self._live.items():
            put(window, box(dump(accumulator)))
        self._live.clear()

    def windows(self) -> list[TimeWindow]:
        """The windows that have an accumulator."""
        return [TimeWindow(*w) for w, _ in self._state.items()]

    def _load(self, window: TimeWindow) -> Any:
        stored = self._state.get(window)
        return NOTHING if stored is None else self._accumulators.load(self._store.unbox(stored))


class ElementPlace(NamedTuple):
    """The key of an element in the state: its window, and its number there."""

    start_ms: int
    end_ms: int
    number: int


class Extent(NamedTuple):
    """The numbers of a window's elements: from `first` up to, not including, `end`."""

    first: int
    end: int


class ListedContents(Contents):
    """All elements of each window, in the order in which they came; with timestamps for evictors."""

    def __init__(
        self, backend: KeyedStateBackend, element_type: RecordType, timestamped: bool, side: str = ""
    ) -> None:
        """`side` tells the two sides of a join apart, in the names of their states."""
        super().__init__(backend)
        self._store = _Store(element_type)
        self.name = CONTENTS + side
        self._extents: Any = backend.state(MapState(TimeWindow, Extent, name=self.name))
        self._elements = self._store.state(backend, ElementPlace, ELEMENTS + side)
        self._timestamps: Any = None
        if timestamped:
            self._timestamps = backend.state(MapState(ElementPlace, int, name=TIMESTAMPS))
        self._live: dict[tuple[Any, TimeWindow], Extent] = {}

    def add(self, window: TimeWindow, value: Any, timestamp_ms: int) -> bool:
        """Append an element."""
        extent = self._extent(window)
        is_new = extent is None
        if extent is None:
            self.open_windows += 1
            extent = Extent(0, 0)
        place = ElementPlace(*window, extent.end)
        self._elements.put(place, self._store.box(value))
        if self._timestamps is not None:
            self._timestamps.put(place, timestamp_ms)
        self._live[(self._backend.current_key, window)] = Extent(extent.first, extent.end + 1)
        return is_new

    def get(self, window: TimeWindow) -> Any:
        """The elements."""
        extent = self._extent(window)
        if extent is None:
            return NOTHING
        get, unbox = self._elements.get, self._store.unbox
        return [unbox(get(ElementPlace(*window, i))) for i in range(*extent)]

    def timestamped(self, window: TimeWindow) -> list[TimestampedValue]:
        """The elements with their timestamps."""
        extent = self._extent(window)
        values = self.get(window)
        if extent is None:
            return []
        times = [self._timestamps.get(ElementPlace(*window, i)) for i in range(*extent)]
        return list(map(TimestampedValue, values, times))

    def count(self, window: TimeWindow) -> int:
        """How many elements a window holds."""
        extent = self._extent(window)
        return 0 if extent is None else extent.end - extent.first

    def replace(self, window: TimeWindow, elements: Iterable[TimestampedValue]) -> None:
        """Hold just these elements."""
        self.clear(window)
        for element in elements:
            self.add(window, element.value, element.timestamp_ms)

    def clear(self, window: TimeWindow) -> None:
        """Forget the elements."""
        extent = self._extent(window)
        if extent is None:
            return
        for i in range(*extent):
            place = ElementPlace(*window, i)
            self._elements.remove(place)
            if self._timestamps is not None:
                self._timestamps.remove(place)
        self._live.pop((self._backend.current_key, window), None)
        if self._extents.contains(window):
            self._extents.remove(window)
        self.open_windows -= 1

    def merge(self, window: TimeWindow, others: Sequence[TimeWindow]) -> None:
        """Append what the others hold."""
        for other in others:
            if self._timestamps is not None:
                for element in self.timestamped(other):
                    self.add(window, element.value, element.timestamp_ms)
            else:
                found = self.get(other)
                for value in () if found is NOTHING else found:
                    self.add(window, value, 0)
            self.clear(other)

    def flush(self) -> None:
        """Put the extents into the state."""
        backend, put = self._backend, self._extents.put
        for (backend.current_key, window), extent in self._live.items():
            put(window, extent)
        self._live.clear()

    def windows(self) -> list[TimeWindow]:
        """The windows that have elements."""
        return [TimeWindow(*w) for w, _ in self._extents.items()]

    def _extent(self, window: TimeWindow) -> Extent | None:
        found = self._live.get((self._backend.current_key, window))
        if found is None:
            stored = self._extents.get(window)
            found = None if stored is None else Extent(*stored)
        return found


class _Store:
    """How values of a record type are kept in a map state, where None would be the absence of one."""

    def __init__(self, record_type: RecordType) -> None:
        self._type: Any = record_type
        self._serializer = PickleSerializer() if record_type.is_object else None
        self._is_boxed = isinstance(record_type, ScalarType) and record_type.schema.field(0).nullable
        if self._is_boxed:
            assert isinstance(record_type, ScalarType)
            self._type = TupleType([(record_type._codec, True)])

    def state(self, backend: KeyedStateBackend, key_type: Any, name: str) -> Any:
        """The live map state."""
        declaration: KeyedState = MapState(key_type, self._type, name=name, serializer=self._serializer)
        return backend.state(declaration)

    def box(self, value: Any) -> Any:
        """What is put."""
        return (value,) if self._is_boxed else value

    def unbox(self, kept: Any) -> Any:
        """The value of what was got."""
        return kept[0] if self._is_boxed else kept
