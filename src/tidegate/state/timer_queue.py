"""The timers of one kind of time, in memory: dicts by time, and a binary heap of the times.

`state.timers` keeps two of them, and writes their changes into checkpoints. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Any, Final

Namespace = tuple[int, int] | None
Timer = tuple[int, Any, Namespace]
"""The time in milliseconds, the key and the namespace."""

_ABSENT: Final = object()
_MOST_EMPTY: Final = 1024
_FEW_TIMES: Final = 256
_SAMPLES: Final = 32


class Several(tuple[Namespace, ...]):
    """The namespaces of several timers of one key for one time."""

    __slots__ = ()


Timers = dict[Any, Any]
"""Key to namespace, or to `Several` namespaces."""

StoredTimers = tuple[Iterable[Any], Iterable[int], Iterable[Any]]
"""Keys, times, and the value of `Timers` for each; each (key, time) occurs once."""


class TimerQueue:
    """The timers of one kind of time.

        stored[time]   as the last snapshot passed them to the backend
        new[time]      registered or changed since
        removed        times and keys that were in `stored`; they are removed, unless they are in `new`

    The timers of a key for one time are in `stored` or in `new`, never in both. A time is in the heap, once, while one
    of the two contains it, even without keys.
    """

    def __init__(self) -> None:
        self.pending = 0
        """The number of waiting timers."""
        self.new: dict[int, Timers] = {}
        self.removed: tuple[list[int], list[Any]] = ([], [])
        self.stored: dict[int, Timers] = {}
        self._times: list[int] = []
        self._emptied = 0
        self._is_firing = False

    # ---- in and out ----

    def register(self, key: Any, timestamp_ms: int, ns: Namespace = None) -> None:
        """Add a timer; one that exists already stays as it is."""
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
        """Add many timers: sequences of equal length."""
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
        """Remove a timer, if it exists."""
        for timers in (self.new.get(timestamp_ms), self.stored.get(timestamp_ms)):
            if timers is None or key not in timers:
                continue
            have = namespaces_of(timers[key])
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
        """Take the timers up to and including this time, earliest first.

        Timers may be registered and deleted meanwhile: one that becomes due is taken in the same pass, in its place. If
        the caller stops early, the rest stays.
        """
        times, all_stored, all_new = self._times, self.stored, self.new
        add_time, add_key = self.removed[0].append, self.removed[1].append
        interrupted: list[
            tuple[int, Timers, Iterator[Any]]
        ] = []  # interrupted by timers with an earlier time
        self._drop_empty()
        run = self._take_times(until_ms)
        self._is_firing = True
        try:
            while True:
                is_next = bool(times) and times[0] <= until_ms and not (run and run[-1] < times[0])
                if not is_next and not run:
                    break
                time = times[0] if is_next else run[-1]
                stored, new = all_stored.get(time), all_new.get(time)
                if interrupted and interrupted[-1][0] == time:
                    _, timers, keys = interrupted.pop()
                else:
                    timers = stored or new or {}
                    if len(timers) <= 1 and (not stored or not new):  # the last one: its dicts can go
                        have = next(iter(timers.values()), None)
                        if have.__class__ is not Several:
                            if is_next:
                                heappop(times)
                            else:
                                run.pop()
                            if stored is not None:
                                del all_stored[time]
                            if new is not None:
                                del all_new[time]
                            for key in timers:
                                if stored:
                                    add_time(time)
                                    add_key(key)
                                self.pending -= 1
                                yield time, key, have
                            continue
                    keys = iter(list(timers))
                is_stored = timers is stored
                for key in keys:
                    have = timers.pop(key, _ABSENT)
                    if have is _ABSENT:
                        continue
                    if is_stored:
                        add_time(time)
                        add_key(key)
                    if have.__class__ is Several:  # the others follow after one of each key
                        self._put(key, time, have[1:])
                        have = have[0]
                    self.pending -= 1
                    yield time, key, have
                    if times and times[0] < time:
                        interrupted.append((time, timers, keys))
                        break
                else:
                    if not is_stored:
                        # Iterating over a dict that has lost many keys starts slowly.
                        all_new[time] = dict(timers)
        finally:
            self._is_firing = False
            if run:
                times += run
                heapify(times)

    @property
    def next_ms(self) -> int | None:
        """The time of the earliest timer. Do not call it during `due`."""
        times = self._times
        while times and not self._is_firing:
            if self.stored.get(times[0]) or self.new.get(times[0]):
                break
            self._end(times[0])
        return times[0] if times else None

    # ---- checkpoints ----

    def restore(self, portions: Iterable[StoredTimers]) -> None:
        """Add the timers of a checkpoint."""
        all_stored = self.stored
        for keys, times_ms, kept in portions:
            for key, time, have in zip(keys, times_ms, kept):  # noqa: B905 - `kept` may be endless
                stored = all_stored.get(time)
                if stored is None:
                    stored = all_stored[time] = {}
                    self._times.append(time)
                stored[key] = have
                self.pending += 1 if have.__class__ is not Several else len(have)
        heapify(self._times)

    def written(self) -> None:
        """Note that the backend has what was in `new` and `removed`."""
        stored = self.stored
        for time, timers in self.new.items():
            older = stored.get(time)
            if older is None:
                stored[time] = timers
            else:
                older.update(timers)
        self.new.clear()
        for gone in self.removed:
            gone.clear()

    # ---- times ----

    def _begin(self, time: int) -> Timers:
        if time not in self.stored:
            heappush(self._times, time)
        new = self.new[time] = {}
        return new

    def _end(self, time: int) -> None:
        """Drop the earliest time, which has no timers left."""
        heappop(self._times)
        self.stored.pop(time, None)
        self.new.pop(time, None)

    def _take_times(self, until_ms: int) -> list[int]:
        """Take all times up to this one out of the heap, earliest last, if a sample shows many; else none.

        Sorting them is four times faster than popping them from the heap one by one.
        """
        times = self._times
        leaves = times[len(times) // 2 :: max(1, len(times) // 2 // _SAMPLES)]
        if len(times) < _FEW_TIMES or 8 * sum(t <= until_ms for t in leaves) < len(leaves):
            return []
        taken = sorted([t for t in times if t <= until_ms], reverse=True)
        times[:] = [t for t in times if t > until_ms]
        heapify(times)
        return taken

    def _drop_empty(self) -> None:
        """Drop times whose timers were all deleted, if there are many."""
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
        namespaces = namespaces_of(timers[key])
        if ns in namespaces:
            return
        if timers is new:
            new[key] = Several((*namespaces, ns))
        else:
            self._take(timers, key, time)
            self._put(key, time, (*namespaces, ns))
        self.pending += 1

    def _take(self, timers: Timers, key: Any, time: int) -> None:
        del timers[key]
        if timers is self.stored.get(time):
            self.removed[0].append(time)
            self.removed[1].append(key)

    def _put(self, key: Any, time: int, namespaces: tuple[Namespace, ...]) -> None:
        new = self.new.get(time)
        if new is None:
            new = self._begin(time)
        new[key] = as_kept(namespaces)


def namespaces_of(have: Any) -> tuple[Namespace, ...]:
    return have if have.__class__ is Several else (have,)


def as_kept(namespaces: tuple[Namespace, ...]) -> Any:
    return namespaces[0] if len(namespaces) == 1 else Several(namespaces)
