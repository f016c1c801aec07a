"""Timers per key, in event time and in processing time: deduplicated, deletable, fired in order, part of checkpoints.

    timers = TimerService(backend)                          # in `open`; what a checkpoint had is there
    timers.register_event_time(key, 60_000)                 # keys as `backend.current_key` takes them
    for timestamp_ms, key, namespace in timers.due_event_time(watermark_ms):
        ...                                                 # may register and delete; what became due fires, too
    timers.snapshot()                                       # in `Operator.snapshot`

A timer is a key, a time and a namespace: None, or a pair of ints (a window's start and end). It is in memory only, in a
dict by time; `snapshot` gives what has changed to the backend, so a timer that was registered and fired between two
checkpoints is never written. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.backend import KeyedStateBackend, PaneRows
from tidegate.state.serializers import KeySerializer

Namespace = tuple[int, int] | None
Timer = tuple[int, Any, Namespace]
"""The time in milliseconds, the key and the namespace."""

EVENT_TIMERS: Final = "$timers.event"
PROCESSING_TIMERS: Final = "$timers.processing"

_NAMESPACES: Final = pa.list_(pa.int64())
STORED: Final = pa.schema([("plain", pa.bool_()), ("namespaces", _NAMESPACES)])
"""What a checkpoint has for each key and time: whether there is a timer without a namespace, and the ints of those with
one, a pair for each, in order of registration."""

_ABSENT: Final = object()
_MOST_EMPTY: Final = 1024


class TimerService:
    """The timers of one operator subtask.

    Timers fire by time; those of one key and time in the order in which they were registered, those of different keys
    too until a restore, after which they may come in any order.
    """

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._event = TimerQueue()
        self._processing = TimerQueue()
        self._stores = [
            (self._event, _StoredTimers(backend, EVENT_TIMERS)),
            (self._processing, _StoredTimers(backend, PROCESSING_TIMERS)),
        ]
        for queue, store in self._stores:
            store.read_into(queue)
        # Bound once: a call less for each timer. See `TimerQueue` for what they do.
        self.register_event_time = self._event.register
        self.register_event_times = self._event.register_all
        self.delete_event_time = self._event.delete
        self.due_event_time = self._event.due
        self.register_processing_time = self._processing.register
        self.register_processing_times = self._processing.register_all
        self.delete_processing_time = self._processing.delete
        self.due_processing_time = self._processing.due

    @property
    def next_event_time_ms(self) -> int | None:
        """The time of the earliest event-time timer; None if there is none."""
        return self._event.next_ms

    @property
    def next_processing_time_ms(self) -> int | None:
        """The time of the earliest processing-time timer, as `Operator.next_processing_time_ms` wants it."""
        return self._processing.next_ms

    @property
    def pending_event_time(self) -> int:
        """How many event-time timers wait."""
        return self._event.pending

    @property
    def pending_processing_time(self) -> int:
        """How many processing-time timers wait."""
        return self._processing.pending

    @property
    def pending(self) -> int:
        """How many timers wait."""
        return self._event.pending + self._processing.pending

    def snapshot(self) -> None:
        """Give what has changed since the last call to the backend; before the backend's own snapshot."""
        for queue, store in self._stores:
            store.write(queue)


class _Several(tuple[Namespace, ...]):
    """The namespaces of one key's timers for one time, where there are several."""

    __slots__ = ()


Timers = dict[Any, Any]
"""By key: the namespace, or `_Several` of them."""


class TimerQueue:
    """The timers of one kind of time.

        stored[time]   as the last snapshot gave them to the backend
        new[time]      registered or changed since
        removed[time]  keys that were in `stored`; they are gone, unless they are in `new`

    A key has its timers for one time in `stored` or in `new`, never in both. A time is in the heap, once, as long as
    one of the two has it, be it with no keys left.
    """

    def __init__(self) -> None:
        self.pending = 0
        """How many timers wait."""
        self.new: dict[int, Timers] = {}
        self.removed: dict[int, Timers] = {}
        self.stored: dict[int, Timers] = {}
        self._times: list[int] = []
        self._emptied = 0
        self._is_firing = False

    # ---- in and out ----

    def register(self, key: Any, timestamp_ms: int, ns: Namespace = None) -> None:
        """Fire at this time; a timer that there is already stays as it is."""
        new = self.new.get(timestamp_ms)
        if new is None:
            new = self._begin(timestamp_ms)
        stored = self.stored.get(timestamp_ms)
        if key in new or (stored is not None and key in stored):
            self._register_second(key, timestamp_ms, ns)
        else:
            new[key] = ns
            self.pending += 1

    def register_all(
        self, keys: Iterable[Any], timestamps_ms: Iterable[int], ns: Iterable[Namespace] | None = None
    ) -> None:
        """Register many timers: sequences of one length."""
        all_new, all_stored = self.new, self.stored
        added = 0
        for key, time, namespace in zip(keys, timestamps_ms, repeat(None) if ns is None else ns):  # noqa: B905
            new = all_new.get(time)
            if new is None:
                new = self._begin(time)
            stored = all_stored.get(time)
            if key in new or (stored is not None and key in stored):
                self._register_second(key, time, namespace)
            else:
                new[key] = namespace
                added += 1
        self.pending += added

    def delete(self, key: Any, timestamp_ms: int, ns: Namespace = None) -> None:
        """Do not fire; a timer that does not exist is no error."""
        for timers in (self.new.get(timestamp_ms), self.stored.get(timestamp_ms)):
            if timers is None or key not in timers:
                continue
            have = _namespaces(timers[key])
            left = tuple(n for n in have if n != ns)
            if len(left) == len(have):
                return
            self._take(timers, key, timestamp_ms)
            if left:
                self._put(key, timestamp_ms, left)
            self.pending -= 1
            if not timers:
                self._emptied += 1
                self._drop_empty()
            return

    def due(self, until_ms: int) -> Iterator[Timer]:
        """Take the timers up to and including this time, the earliest first.

        What is registered or deleted while they are taken counts: a timer that has become due comes in the same pass,
        in its place. Those that were not taken, when the caller stops early, are still there.
        """
        times = self._times
        interrupted: list[tuple[int, Timers, Iterator[Any]]] = []  # by timers for an earlier time
        self._drop_empty()
        self._is_firing = True
        try:
            while times and times[0] <= until_ms:
                time = times[0]
                if interrupted and interrupted[-1][0] == time:
                    _, timers, keys = interrupted.pop()
                else:
                    timers = self.stored.get(time) or self.new.get(time) or {}
                    if not timers:
                        self._end(time)
                        continue
                    keys = iter(list(timers))
                removed = self.removed.setdefault(time, {}) if timers is self.stored.get(time) else None
                for key in keys:
                    ns = timers.pop(key, _ABSENT)
                    if ns is _ABSENT:
                        continue
                    if removed is not None:
                        removed[key] = None
                    if ns.__class__ is _Several:  # the others follow when those of all keys were taken
                        self._put(key, time, ns[1:])
                        ns = ns[0]
                    self.pending -= 1
                    yield time, key, ns
                    if times[0] != time:
                        interrupted.append((time, timers, keys))
                        break
                else:
                    if (
                        removed is None
                    ):  # a dict remembers the room of what was in it, and is slow to begin with
                        self.new[time] = dict(timers)
        finally:
            self._is_firing = False

    @property
    def next_ms(self) -> int | None:
        """The time of the earliest timer. Not while `due` is on its way."""
        times = self._times
        while times and not self._is_firing:
            if self.stored.get(times[0]) or self.new.get(times[0]):
                break
            self._end(times[0])
        return times[0] if times else None

    # ---- checkpoints ----

    def restore(self, keys: Iterable[Any], times_ms: Iterable[int], kept: Iterable[Any]) -> None:
        """Take what a checkpoint had: each key and time once, with its namespace or `_Several`."""
        all_stored = self.stored
        for key, time, have in zip(keys, times_ms, kept):  # noqa: B905 - namespaces may be an endless None
            stored = all_stored.get(time)
            if stored is None:
                stored = all_stored[time] = {}
                self._times.append(time)
            stored[key] = have
            self.pending += 1 if have.__class__ is not _Several else len(have)
        heapify(self._times)

    def written(self) -> None:
        """What was in `new` and `removed` is in the backend."""
        stored = self.stored
        for time, timers in self.new.items():
            older = stored.get(time)
            if older is None:
                stored[time] = timers
            else:
                older.update(timers)
        self.new.clear()
        self.removed.clear()

    # ---- times ----

    def _begin(self, time: int) -> Timers:
        if time not in self.stored:
            heappush(self._times, time)
        new = self.new[time] = {}
        return new

    def _end(self, time: int) -> None:
        """The earliest time has no timers left."""
        heappop(self._times)
        self.stored.pop(time, None)
        self.new.pop(time, None)

    def _drop_empty(self) -> None:
        """Forget times of which all timers were deleted, when they are many."""
        times = self._times
        if self._emptied <= max(_MOST_EMPTY, len(times) // 2) or self._is_firing:
            return
        self._emptied = 0
        for kept in (self.stored, self.new):
            for time in [t for t, timers in kept.items() if not timers]:
                del kept[time]
        times[:] = {**self.stored, **self.new}
        heapify(times)

    # ---- several timers of one key and time ----

    def _register_second(self, key: Any, time: int, ns: Namespace) -> None:
        new = self.new[time]
        timers = new if key in new else self.stored[time]
        namespaces = _namespaces(timers[key])
        if ns in namespaces:
            return
        if timers is new:
            new[key] = _Several((*namespaces, ns))
        else:
            self._take(timers, key, time)
            self._put(key, time, (*namespaces, ns))
        self.pending += 1

    def _take(self, timers: Timers, key: Any, time: int) -> None:
        del timers[key]
        if timers is self.stored.get(time):
            self.removed.setdefault(time, {})[key] = None

    def _put(self, key: Any, time: int, namespaces: tuple[Namespace, ...]) -> None:
        new = self.new.get(time)
        if new is None:
            new = self._begin(time)
        new[key] = _as_kept(namespaces)


def _namespaces(have: Any) -> tuple[Namespace, ...]:
    return have if have.__class__ is _Several else (have,)


def _as_kept(namespaces: tuple[Namespace, ...]) -> Any:
    return namespaces[0] if len(namespaces) == 1 else _Several(namespaces)


class _StoredTimers:
    """The durable copy: a pane table with a row for each key and time, and the namespaces of the timers there."""

    def __init__(self, backend: KeyedStateBackend, name: str) -> None:
        self._table = backend.panes(name, STORED)
        self._key_type = backend.context.key_type

    def read_into(self, queue: TimerQueue) -> None:
        """Give the queue what the checkpoint had."""
        for rows in self._table.restored():
            key = KeySerializer(self._key_type)
            queue.restore(
                key.from_column(key.join(rows.keys)), rows.panes.tolist(), self._namespaces_of(*rows.values)
            )

    def write(self, queue: TimerQueue) -> None:
        """Write what has changed since the last call."""
        if self._key_type.is_object:
            return  # the backend's own snapshot says what is wrong
        new, stored = queue.new, queue.stored
        gone = {
            time: keys if time not in new else [k for k in keys if k not in new[time]]
            for time, keys in queue.removed.items()
        }
        changed = self._rows(new)
        removed = PaneRows(*self._places(gone), [])
        queue.written()
        self._table.write(changed, removed, lambda: self._rows(stored))

    def _rows(self, timers: dict[int, Timers]) -> PaneRows:
        have = list(chain.from_iterable(at.values() for at in timers.values()))
        keys, times = self._places(timers)
        if not any(have):  # none has a namespace
            plain = pa.repeat(True, len(have))
            return PaneRows(keys, times, [plain, pa.nulls(len(have), _NAMESPACES)])
        several = list(map(_namespaces, have))
        flat = [None if n == (None,) else [x for pair in n if pair for x in pair] for n in several]
        return PaneRows(keys, times, [pa.array([None in n for n in several]), pa.array(flat, _NAMESPACES)])

    def _places(self, timers: Mapping[int, Collection[Any]]) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
        """The key columns and times."""
        keys = list(chain.from_iterable(timers.values()))
        counts = np.fromiter(map(len, timers.values()), np.int64, len(timers))
        times = np.repeat(np.fromiter(timers, np.int64, len(timers)), counts)
        return KeySerializer(self._key_type).columns(keys), times

    def _namespaces_of(self, plain: pa.Array, flat: pa.Array) -> Iterable[Any]:
        if flat.null_count == len(flat):
            return repeat(None)
        rows = zip(plain.to_pylist(), flat.to_pylist(), strict=True)
        return [_as_kept((*((None,) if p else ()), *_pairs(f or ()))) for p, f in rows]


def _pairs(flat: Sequence[int]) -> Iterable[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)
