"""What windows and joins must give, in plain Python: a list of events in, panes and late events out.

Shares no code with tidegate, and is written for clarity, not for speed. The events come in batches; behind each batch
the watermark is `highest timestamp - delay - 1`. At the end it is infinite.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Window = tuple[int, int]


class Event(NamedTuple):
    """One record: a key, an event time, a value."""

    key: str | None
    ts: int
    value: Any


class Pane(NamedTuple):
    """One result of one window."""

    key: str | None
    start: int
    end: int
    values: tuple[Any, ...]
    """The values of the events in it, in order of arrival."""


@dataclass(frozen=True)
class Windows:
    """Which windows there are: `kind` and its numbers."""

    kind: str
    size: int = 0
    slide: int = 0
    offset: int = 0

    def of(self, ts: int) -> list[Window]:
        """The windows of a timestamp; of a session, the one that an event alone would have."""
        size, slide, offset = self.size, self.slide, self.offset
        if self.kind == "tumbling":
            start = (ts - offset) // size * size + offset
            return [(start, start + size)]
        if self.kind == "sliding":
            last = (ts - offset) // slide * slide + offset
            starts = range(last, ts - size, -slide)
            return [(start, start + size) for start in starts]
        if self.kind == "cumulative":  # size is the largest, slide the step
            start = (ts - offset) // size * size + offset
            ends = range(start + slide, start + size + 1, slide)
            return [(start, end) for end in ends if ts < end]
        if self.kind == "session":
            return [(ts, ts + size)]
        return [(0, math.inf)]  # type: ignore[list-item]


@dataclass(frozen=True)
class When:
    """When a window is computed: at its end (and again for each late event), every n events, or every so often."""

    kind: str = "end"
    number: int = 0
    purging: bool = False


@dataclass
class _State:
    """A window of one key that is open."""

    values: list[tuple[int, Any]] = field(default_factory=list)
    """Each with the number of its arrival."""
    counted: int = 0
    timers: set[float] = field(default_factory=set)
    next_fire: float | None = None


class Reference:
    """Runs events through windows. `panes` and `late` are what must come out."""

    def __init__(self, windows: Windows, when: When, lateness: int) -> None:
        self.windows = windows
        self.when = when
        self.lateness = lateness
        self.clock: float = -math.inf
        self.panes: list[Pane] = []
        self.late: list[Event] = []
        self._open: dict[str | None, dict[Window, _State]] = defaultdict(dict)
        self._timers: list[tuple[float, str, Window, str | None]] = []
        """A heap. A window's own timers say which of them still hold."""
        self._arrived = 0

    def run(self, batches: list[list[Event]], delay: int) -> Reference:
        """All batches, with a watermark behind each, and the end."""
        highest: float = -math.inf
        for batch in batches:
            for event in batch:
                self.add(event)
            highest = max([highest, *(e.ts for e in batch)])
            self.advance(highest - delay - 1)
        self.advance(math.inf)
        return self

    def add(self, event: Event) -> None:
        """One event."""
        taken, belongs = False, False
        self._arrived += 1
        for window in self.windows.of(event.ts):
            belongs = True
            if self.windows.kind == "session":
                window = self._merged(event.key, window)
            if self._is_over(window):
                continue
            taken = True
            state = self._open[event.key].setdefault(window, _State())
            state.values.append((self._arrived, event.value))
            self._on_element(event, window, state)
        if belongs and not taken:
            self.late.append(event)

    def is_open(self, key: str | None, window: Window) -> bool:
        """Whether the window may still change."""
        return window in self._open[key]

    def _is_over(self, window: Window) -> bool:
        return window[1] - 1 + self.lateness <= self.clock

    def _merged(self, key: str | None, window: Window) -> Window:
        """The session that an event makes of those that it touches; their contents are put together."""
        touched = [w for w in self._open[key] if w[0] <= window[1] and window[0] <= w[1]]
        merged = (min([window[0], *(w[0] for w in touched)]), max([window[1], *(w[1] for w in touched)]))
        if touched and (len(touched) > 1 or touched[0] != merged):
            together = _State()
            for w in sorted(touched):
                old = self._open[key].pop(w)
                together.values = sorted(together.values + old.values)
                together.counted += old.counted
            if merged[1] - 1 > self.clock:
                self._set_timer(merged[1] - 1, key, merged, together)
            self._open[key][merged] = together
        return merged

    # ---- triggers ----

    def _on_element(self, event: Event, window: Window, state: _State) -> None:
        if self.when.kind == "count":
            state.counted += 1
            if state.counted >= self.when.number:
                state.counted = 0
                self._fire(event.key, window, state)
            return
        if window[1] - 1 <= self.clock:
            self._fire(event.key, window, state)
            return
        self._set_timer(window[1] - 1, event.key, window, state)
        if self.when.kind == "continuous" and state.next_fire is None:
            self._fire_next(event.ts, event.key, window, state)

    def _fire_next(self, time: float, key: str | None, window: Window, state: _State) -> None:
        """At the next multiple that event time has not passed yet, or at the end of the window."""
        time = max(time, self.clock)
        if time < window[1] - 1:
            time += self.when.number - time % self.when.number
        state.next_fire = min(time, window[1] - 1)
        self._set_timer(state.next_fire, key, window, state)

    def _set_timer(self, time: float, key: str | None, window: Window, state: _State) -> None:
        if time not in state.timers:
            state.timers.add(time)
            heapq.heappush(self._timers, (time, repr(key), window, key))

    def advance(self, watermark: float) -> None:
        """Event time advances: what is due fires in order of time, then what is over goes."""
        if watermark <= self.clock:
            return
        self.clock = watermark
        while self._timers and self._timers[0][0] <= watermark:
            time, _, window, key = heapq.heappop(self._timers)
            state = self._open[key].get(window)
            if state is None or time not in state.timers:
                continue  # merged with another one, or over
            state.timers.discard(time)
            if time == window[1] - 1:
                self._fire(key, window, state)
            elif state.next_fire == time:
                self._fire_next(time, key, window, state)
                self._fire(key, window, state)
        for states in self._open.values():
            for window in [w for w in states if self._is_over(w)]:
                del states[window]

    def _fire(self, key: str | None, window: Window, state: _State) -> None:
        if state.values:
            self.panes.append(Pane(key, window[0], window[1], tuple(value for _, value in state.values)))
        if self.when.purging:
            state.values = []


def count_windows(events: list[Event], size: int, slide: int | None) -> list[Pane]:
    """Windows of so many events per key: every `size`, or the last `size` every `slide` events."""
    seen: dict[str, list[int]] = defaultdict(list)
    panes = []
    for event in events:
        values = seen[event.key]
        values.append(event.value)
        if (slide is None and len(values) % size == 0) or (slide is not None and len(values) % slide == 0):
            panes.append(Pane(event.key, 0, 0, tuple(values[-size:])))
    return panes


def interval_join(
    left: list[Event], right: list[Event], lower: int, upper: int, how: str = "inner"
) -> list[tuple[Event | None, Event | None]]:
    """Pairs of equal keys with `lower <= right.ts - left.ts <= upper`, and those without a partner if `how` says so."""
    pairs: list[tuple[Event | None, Event | None]] = [
        (a, b) for a in left for b in right if a.key == b.key and lower <= b.ts - a.ts <= upper
    ]
    if how in ("left", "full"):
        pairs += [(a, None) for i, a in enumerate(left) if not _has_partner(a, right, lower, upper)]
    if how in ("right", "full"):
        pairs += [(None, b) for b in right if not _has_partner(b, left, -upper, -lower)]
    return pairs


def _has_partner(event: Event, others: list[Event], lower: int, upper: int) -> bool:
    return any(o.key == event.key and lower <= o.ts - event.ts <= upper for o in others)


def batches_of(events: list[Event], rows: int) -> list[list[Event]]:
    """The events as a source gives them."""
    return [events[i : i + rows] for i in range(0, len(events), rows)]


RESULTS: dict[str, Callable[[tuple[int, ...]], object]] = {
    "count": len,
    "sum": sum,
    "min": min,
    "max": max,
    "avg": lambda values: sum(values) / len(values),
    "distinct": lambda values: len(set(values)),
    "values": lambda values: ",".join(map(str, values)),
}
"""What is computed from the values of a pane."""


def results(panes: list[Pane], what: str) -> Iterator[tuple[str, int, int, object]]:
    """The panes with what is computed from them."""
    for pane in panes:
        yield pane.key, pane.start, pane.end, RESULTS[what](pane.values)
