"""Timers per key, in event time and processing time: deduplicated, deletable, fired in order, part of checkpoints.

    timers = TimerService(backend)                          # in `open`; contains what a checkpoint had
    timers.register_event_time(key, 60_000)                 # keys as in `backend.current_key`
    for timestamp_ms, key, namespace in timers.due_event_time(watermark_ms):
        ...                                                 # may register and delete; what becomes due fires, too
    timers.snapshot()                                       # in `Operator.snapshot`

A timer is a key, a time and a namespace: None, or a pair of ints (the start and end of a window). Timers live in
memory, in a dict by time. `snapshot` passes the changes to the backend, so a timer that was registered and fired
between two checkpoints is never written. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from types import NoneType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.backend import KeyedStateBackend, PaneRows
from tidegate.state.serializers import KeySerializer
from tidegate.state.timer_queue import (
    Namespace,
    Several,
    StoredTimers,
    Timer,
    TimerQueue,
    Timers,
    as_kept,
    namespaces_of,
)

__all__ = ["EVENT_TIMERS", "PROCESSING_TIMERS", "Namespace", "Timer", "TimerService"]

EVENT_TIMERS: Final = "$timers.event"
PROCESSING_TIMERS: Final = "$timers.processing"

_NAMESPACES: Final = pa.list_(pa.int64())
STORED: Final = pa.schema([("plain", pa.bool_()), ("namespaces", _NAMESPACES)])
"""What a checkpoint has for each key and time: whether there is a timer without a namespace (which is restored first),
and the namespaces of the others, two ints each, in order of registration."""


class TimerService:
    """The timers of one operator subtask.

    Timers fire in the order of their times. Timers of one key and time fire in the order of registration. So do those
    of different keys until a restore; after it their order is undefined.
    """

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._event = TimerQueue()
        self._processing = TimerQueue()
        self._stores = [
            (self._event, _StoredTimers(backend, EVENT_TIMERS)),
            (self._processing, _StoredTimers(backend, PROCESSING_TIMERS)),
        ]
        for queue, store in self._stores:
            queue.restore(store.read())
        # Bound once, to save a call per timer. See `TimerQueue`.
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
        """The time of the earliest event-time timer, or None."""
        return self._event.next_ms

    @property
    def next_processing_time_ms(self) -> int | None:
        """The time of the earliest processing-time timer, for `Operator.next_processing_time_ms`."""
        return self._processing.next_ms

    @property
    def pending_event_time(self) -> int:
        return self._event.pending

    @property
    def pending_processing_time(self) -> int:
        return self._processing.pending

    @property
    def pending(self) -> int:
        return self._event.pending + self._processing.pending

    def snapshot(self) -> None:
        """Pass the changes since the last call to the backend. Call it before the backend's own snapshot."""
        for queue, store in self._stores:
            store.write(queue)


class _StoredTimers:
    """The durable copy: a pane table with one row per key and time, which holds the namespaces of the timers."""

    def __init__(self, backend: KeyedStateBackend, name: str) -> None:
        self._table = backend.panes(name, STORED)
        self._key_type = backend.context.key_type

    def read(self) -> Iterator[StoredTimers]:
        for rows in self._table.restored():
            key = KeySerializer(self._key_type)
            yield (
                key.from_column(key.join(rows.keys)),
                rows.panes.tolist(),
                self._namespaces_of(*rows.values),
            )

    def write(self, queue: TimerQueue) -> None:
        if self._key_type.is_object:
            return  # the snapshot of the backend raises the error
        new, stored = queue.new, queue.stored
        times, keys = queue.removed
        if not new.keys().isdisjoint(times):
            gone = [(t, k) for t, k in zip(times, keys, strict=True) if k not in new.get(t, ())]
            times, keys = [t for t, _ in gone], [k for _, k in gone]
        changed = self._rows(new)
        removed = PaneRows(self._keys(keys), np.array(times, np.int64), [])
        is_all = not stored
        queue.written()
        self._table.write(changed, removed, lambda: changed if is_all else self._rows(stored))

    def _rows(self, timers: dict[int, Timers]) -> PaneRows:
        have = list(chain.from_iterable(at.values() for at in timers.values()))
        keys = self._keys(list(chain.from_iterable(timers.values())))
        counts = np.fromiter(map(len, timers.values()), np.int64, len(timers))
        times = np.repeat(np.fromiter(timers, np.int64, len(timers)), counts)
        count = len(have)
        kinds = set(map(type, have))
        if kinds <= {NoneType}:
            return PaneRows(keys, times, [pa.repeat(True, count), pa.nulls(count, _NAMESPACES)])
        if kinds.isdisjoint((NoneType, Several)):  # each has exactly one namespace
            ints = pa.array(np.fromiter(chain.from_iterable(have), np.int64, 2 * count))
            offsets = pa.array(np.arange(0, 2 * count + 1, 2, dtype=np.int32))
            pairs = pa.ListArray.from_arrays(offsets, ints)
            return PaneRows(keys, times, [pa.repeat(False, count), pairs])
        several = list(map(namespaces_of, have))
        flat = [[x for pair in n if pair for x in pair] or None for n in several]
        return PaneRows(keys, times, [pa.array([None in n for n in several]), pa.array(flat, _NAMESPACES)])

    def _keys(self, keys: list[Any]) -> list[pa.Array]:
        return KeySerializer(self._key_type).columns(keys)

    def _namespaces_of(self, plain: pa.Array, flat: pa.Array) -> Iterable[Any]:
        if flat.null_count == len(flat):
            return repeat(None)
        lengths = flat.value_lengths()
        if not flat.null_count and pc.all(pc.equal(lengths, 2)).as_py() and not pc.any(plain).as_py():
            ints = flat.flatten().to_numpy()
            return zip(ints[::2].tolist(), ints[1::2].tolist(), strict=True)
        rows = zip(plain.to_pylist(), flat.to_pylist(), strict=True)
        return [as_kept((*((None,) if p else ()), *_pairs(f or ()))) for p, f in rows]


def _pairs(flat: Sequence[int]) -> Iterable[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)
