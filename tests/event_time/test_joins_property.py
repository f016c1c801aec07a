"""Joins, deduplication and timers in whole jobs equal plain Python: any order, parallelism 1 to 4, crashes."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.event_time import reference as ref
from tests.event_time.crashing import COMMON, Crashes, environment
from tests.plugins.seeds import examples as each_run
from tidegate import (
    DataStream,
    Environment,
    KeyedCoProcessFunction,
    OnTimerContext,
    ProcessContext,
    TumblingEventTimeWindows,
    ValueState,
    WatermarkStrategy,
)

HOWS = ("inner", "left", "right", "full")
WITHIN = 7
SIZE = 10


class Click(NamedTuple):
    key: str
    ts: int
    value: int


class Found(NamedTuple):
    """What a branch gave: two numbers of records or times, -1 for none."""

    branch: str
    key: str
    first: int
    second: int


@dataclass(frozen=True)
class Case:
    left: list[Click]
    right: list[Click]
    delay: int
    lower: int
    upper: int
    parallelism: int
    batch_rows: int
    seed: int


@st.composite
def clicks(draw: Any, delay: int, first: int) -> list[Click]:
    """Times that go up, each with a jitter that is shorter than the delay: out of order, but never late."""
    ts, out = 0, []
    for number in range(draw(st.integers(0, 25))):
        ts += draw(st.integers(0, 4))
        out.append(Click(draw(st.sampled_from("abc")), ts + draw(st.integers(0, delay)), first + number))
    return out


@st.composite
def cases(draw: Any) -> Case:
    delay = draw(st.integers(0, 8))
    lower, upper = sorted(draw(st.tuples(st.integers(-12, 12), st.integers(-12, 12))))
    return Case(
        draw(clicks(delay, 0)),
        draw(clicks(delay, 1000)),
        delay,
        lower,
        upper,
        draw(st.integers(1, 4)),
        draw(st.sampled_from([1, 2, 5, 100])),
        draw(st.integers(0, 10_000)),
    )


class Latest(KeyedCoProcessFunction):
    """Remembers the highest time of the key, and says so whenever the watermark is 5 ms behind some record."""

    highest = ValueState(int, default=-1)

    def process1(self, value: Click, context: ProcessContext) -> Iterator[Found]:
        assert context.timestamp == value.ts
        self.highest.update(max(self.highest.value(), value.ts))
        context.timer_service.register_event_time_timer(value.ts + 5)
        return iter(())

    def process2(self, value: Click, context: ProcessContext) -> Iterator[Found]:
        return self.process1(value, context)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Found]:
        assert self.highest.value() >= timestamp - 5
        yield Found("timers", context.current_key, timestamp, -1)


def pair(how: str) -> Any:
    def found(left: Click | None, right: Click | None) -> Found:
        one = left or right
        assert one is not None
        return Found(how, one.key, -1 if left is None else left.value, -1 if right is None else right.value)

    return found


def kept(click: Click) -> Found:
    return Found("deduplicated", click.key, click.value, -1)


def program(env: Environment, case: Case) -> DataStream:
    def timed(name: str, events: list[Click]) -> Any:
        source = env.from_collection(events, type=Click, uid=name).set_parallelism(1)
        strategy = WatermarkStrategy.bounded(case.delay, "ts")
        return source.assign_timestamps_and_watermarks(strategy, uid=f"{name}-times").set_parallelism(1)

    left, right = timed("left", case.left), timed("right", case.right)
    a, b = left.key_by("key"), right.key_by("key")
    joins = [
        a.interval_join(b)
        .between(case.lower, case.upper)
        .how(how)
        .apply(pair(how), returns=Found, uid=f"{how}-join")
        for how in HOWS
    ]
    windows = left.join(right).where("key").equal_to("key").window(TumblingEventTimeWindows(SIZE)).how("full")
    return joins[0].union(
        *joins[1:],
        windows.apply(pair("window"), returns=Found, uid="window"),
        a.deduplicate(within=WITHIN, uid="deduplicate").map(kept, uid="kept"),
        a.connect(b).process(Latest(), returns=Found, uid="timers"),
    )


def expected(case: Case) -> Counter[Found]:
    left = [ref.Event(*e) for e in case.left]
    right = [ref.Event(*e) for e in case.right]
    found: Counter[Found] = Counter()

    def add(branch: str, pairs: list[tuple[ref.Event | None, ref.Event | None]]) -> None:
        for one, other in pairs:
            key = (one or other).key  # type: ignore[union-attr]
            found[Found(branch, key, one.value if one else -1, other.value if other else -1)] += 1

    for how in HOWS:
        add(how, ref.interval_join(left, right, case.lower, case.upper, how))
    for window in {e.ts // SIZE for e in (*left, *right)}:
        sides = [[e for e in side if e.ts // SIZE == window] for side in (left, right)]
        add("window", ref.interval_join(sides[0], sides[1], -SIZE, SIZE, "full"))
    last: dict[str, int] = {}
    for event in left:
        if event.key not in last or event.ts >= last[event.key] + WITHIN:
            last[event.key] = event.ts
            found[Found("deduplicated", event.key, event.value, -1)] += 1
    found.update({Found("timers", e.key, e.ts + 5, -1): 1 for e in (*left, *right)})
    return found


@pytest.mark.parametrize("examples", each_run(50, long=100))
def test_joins_deduplication_and_timers_equal_plain_python(examples: int) -> None:
    @given(case=cases())
    @settings(COMMON, max_examples=examples)
    def check_all(case: Case) -> None:
        assert Counter(program(environment(case), case).execute_and_collect()) == expected(case)

    check_all()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", each_run(10, long=30))
def test_a_crash_at_any_moment_changes_nothing_nor_does_another_parallelism(examples: int) -> None:
    check_with_crashes("heap", examples)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", each_run(3, long=8))  # a database per subtask and attempt takes its time
def test_a_crash_at_any_moment_changes_nothing_with_rocksdb(examples: int) -> None:
    check_with_crashes("rocksdb", examples)


def check_with_crashes(backend: str, examples: int) -> None:
    crashes = Crashes()

    @given(case=cases(), parallelism=st.none() | st.integers(1, 4))
    @settings(COMMON, max_examples=examples)
    def check_all(case: Case, parallelism: int | None) -> None:
        def is_the_moment(found: Found) -> bool:
            return zlib.crc32(repr((found, case.seed)).encode()) % 3 == 0

        written = crashes.written(case, backend, program, Found, is_the_moment, parallelism)
        assert Counter(written) == expected(case)

    check_all()
    if examples > (3 if backend == "rocksdb" else 10):  # the few examples of a day may all miss
        assert crashes.seen["restored"] > examples // 4
