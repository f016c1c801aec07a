"""Programs in event time for runs under faults: windows by columns and by record, timers, an interval join,
deduplication, requests in flight.

The number of a record is its time. Every reader gives its numbers in order, so nothing is late, however the readers
are apart: a record is lost, or a pane comes twice, only if a clock is wrong.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.simulation.recovery_programs import Click, Output, Program, _compare, click_of, clicks
from tidegate import (
    AsyncFunction,
    Environment,
    EventTimeSessionWindows,
    KeyedProcessFunction,
    MapState,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.api.streams import DataStream

IN_ORDER = WatermarkStrategy.monotonous("n")
SIZE = 20


class Pane(NamedTuple):
    key: int
    start: int
    count: int


class Pair(NamedTuple):
    left: int
    right: int


def _timed(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    source = env.from_collection(inputs["s0"], name="s0")
    return source.assign_timestamps_and_watermarks(IN_ORDER)


def _show(row: Any) -> Pane:
    return Pane(row.key, round(row.window_start.timestamp() * 1000), row.count)


def _tumbling(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    windows = _timed(env, inputs).key_by("key").window(TumblingEventTimeWindows(SIZE))
    return windows.count().map(_show, returns=Pane)


def _sessions(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    windows = _timed(env, inputs).key_by("key").window(EventTimeSessionWindows(4))
    return windows.count().map(_show, returns=Pane)


class CountPane(ProcessWindowFunction):
    def process(self, key: int, context: Any, elements: Iterable[Click]) -> Iterable[Pane]:
        yield Pane(key, context.window.start_ms, len(list(elements)))


def _sliding(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    windows = _timed(env, inputs).key_by("key").window(SlidingEventTimeWindows(SIZE, SIZE // 2))
    return windows.process(CountPane(), returns=Pane)


class ByHand(KeyedProcessFunction):
    """Tumbling windows with a map and timers."""

    counts = MapState(int, int)

    def process(self, value: Click, context: Any) -> Iterable[Pane]:
        start = value.n // SIZE * SIZE
        self.counts.put(start, (self.counts.get(start) or 0) + 1)
        context.timer_service.register_event_time_timer(start + SIZE - 1)
        return ()

    def on_timer(self, timestamp: int, context: Any) -> Iterable[Pane]:
        start = timestamp // SIZE * SIZE
        yield Pane(context.current_key, start, self.counts.get(start) or 0)
        self.counts.remove(start)


def _timers(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    return _timed(env, inputs).key_by("key").process(ByHand(), returns=Pane)


def _joined(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    left = _timed(env, inputs)
    right = env.from_sequence(0, len(inputs["s1"]) - 1, name="s1").map(click_of)
    timed = right.assign_timestamps_and_watermarks(IN_ORDER)
    join = left.key_by("key").interval_join(timed.key_by("key")).between(-6, 6)
    return join.apply(lambda a, b: Pair(a.n, b.n), returns=Pair)


def _twice(click: Click) -> list[Click]:
    return [click, click]


def _deduplicated(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    """One copy of each record passes; that it did is forgotten when the watermark is behind it."""
    return _timed(env, inputs).flat_map(_twice, returns=Click).key_by("n").deduplicate(within=SIZE)


class Ask(AsyncFunction):
    """Some answers come later than those of records behind them. They come from a thread, so that runs of one seed
    differ in when."""

    async def invoke(self, value: Click) -> Iterable[Click]:
        for _ in range(value.n % 4):
            await asyncio.sleep(0)
        return [value]


def _asked(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    """A record that a watermark has passed, or an answer that is lost or comes twice, makes a window wrong."""
    asked = _timed(env, inputs).map_async(Ask(), ordered=False, capacity=3, returns=Click)
    return asked.key_by("key").window(TumblingEventTimeWindows(SIZE)).count().map(_show, returns=Pane)


# ---- the checks ----


def _check_panes(truth: Counter[Pane], output: Output, guarantee: str) -> None:
    found = Counter(Pane(r["key"], r["start"], r["count"]) for rows in output.values() for r in rows)
    if guarantee == "at_least_once":  # a record may count twice, but no window may be missing
        assert {(p.key, p.start) for p in truth} <= {(p.key, p.start) for p in found}
    else:
        _compare(found, truth, guarantee)


def _check_windows(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
    slide = SIZE // 2 if program.name == "sliding windows" else SIZE
    counts: Counter[tuple[int, int]] = Counter()
    for click in program.all_clicks():
        last = click.n // slide * slide
        counts.update((click.key, start) for start in range(last, click.n - SIZE, -slide))
    _check_panes(Counter(Pane(k, start, n) for (k, start), n in counts.items()), output, guarantee)


def _check_sessions(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
    if guarantee == "at_least_once":
        return  # a record that is read again may join what was apart
    truth: Counter[Pane] = Counter()
    for key in {click.key for click in program.all_clicks()}:
        times = sorted(click.n for click in program.all_clicks() if click.key == key)
        start, count = times[0], 0
        for n, following in zip(times, [*times[1:], None], strict=True):
            count += 1
            if following is None or following > n + 4:
                truth[Pane(key, start, count)] += 1
                start, count = following or 0, 0
    _check_panes(truth, output, guarantee)


def _check_joined(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
    left, right = program.inputs["s0"], program.inputs["s1"]
    truth = Counter(Pair(a.n, b.n) for a in left for b in right if a.key == b.key and abs(a.n - b.n) <= 6)
    found = Counter(Pair(r["left"], r["right"]) for rows in output.values() for r in rows)
    if guarantee == "at_least_once":
        assert set(truth) <= set(found)
    else:
        _compare(found, truth, guarantee)


def _check_deduplicated(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
    found = Counter(Click(r["key"], r["n"], r["source"]) for rows in output.values() for r in rows)
    _compare(found, Counter(program.all_clicks()), guarantee)


EVENT_TIME_PROGRAMS = (
    Program("tumbling windows", {"s0": clicks(160, 0)}, _tumbling, _check_windows),
    Program("sliding windows", {"s0": clicks(120, 0)}, _sliding, _check_windows),
    Program("sessions", {"s0": clicks(160, 0)}, _sessions, _check_sessions),
    Program("timers", {"s0": clicks(160, 0)}, _timers, _check_windows),
    Program(
        "interval join", {"s0": clicks(80, 0), "s1": [click_of(n) for n in range(70)]}, _joined, _check_joined
    ),
    Program("deduplicated", {"s0": clicks(120, 0)}, _deduplicated, _check_deduplicated),
    Program("asked", {"s0": clicks(100, 0)}, _asked, _check_windows),
)
