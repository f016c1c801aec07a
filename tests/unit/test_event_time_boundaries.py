"""Every small case around the clock: two records and two watermarks at all times and in all orders.

Each key is a case of its own, so that one run of an operator is hundreds of cases. What must come out is said by the
rule alone: a window is over when `end - 1 + lateness <= watermark`, a timer is due when `time <= watermark`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

import pytest

from tests.unit.operators_kit import harness
from tidegate import (
    CumulativeEventTimeWindows,
    Environment,
    EventTimeSessionWindows,
    KeyedProcessFunction,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
)
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP

TIMES = range(-1, 4)
Record = tuple[str, int]
"""A key, and 1 for the first record of a case, 10 for the second: a sum says who is in it."""
LATE: OutputTag[Any] = OutputTag("late", Record)
Window = tuple[int, int]


class Script(NamedTuple):
    """Two records in order of arrival: the time of each, and how many watermarks came before it."""

    first: int
    first_slot: int
    second: int
    second_slot: int


SCRIPTS = [Script(a, i, b, j) for a, b, i, j in product(TIMES, TIMES, range(3), range(3)) if i <= j]
KEYS = {str(n): script for n, script in enumerate(SCRIPTS)}


def arriving(slot: int) -> Iterator[tuple[int, list[tuple[str, int, int]]]]:
    """What comes after so many watermarks: the side of a join, and its records (key, amount, time)."""
    yield 0, [(key, 1, s.first) for key, s in KEYS.items() if s.first_slot == slot]
    yield 1, [(key, 10, s.second) for key, s in KEYS.items() if s.second_slot == slot]


def run(made: Any, watermarks: tuple[int, ...], *, sides: bool = False) -> tuple[Counter[Any], Counter[Any]]:
    """The results, and the late records, of all scripts in one operator."""
    with harness(made) as h:
        for slot, clock in enumerate([*watermarks, None]):
            for side, records in arriving(slot):
                rows = [(key, amount) for key, amount, _ in records]
                h.push(rows, timestamps=[t for *_, t in records], input_index=side if sides else 0)
            if clock is not None:
                h.advance_watermark(clock)
        h.finish()
        return Counter(h.rows), Counter(h.side_rows("late"))


def records_of(script: Script, clocks: list[int]) -> Iterator[tuple[int, int, int]]:
    """Amount, time and the clock at the arrival of each record."""
    yield 1, script.first, clocks[script.first_slot]
    yield 10, script.second, clocks[script.second_slot]


def windows_of(kind: str, time: int) -> list[Window]:
    """Each kind that is tested, record by record, without arithmetic on remainders."""
    all_of: dict[str, Iterable[Window]] = {
        "tumbling": [(s, s + 2) for s in range(-2, 6, 2)],
        "sliding": [(s, s + 3) for s in range(-4, 6, 2)],
        "gaps": [(s, s + 1) for s in range(-3, 7, 3)],
        "cumulative": [(s, e) for s in range(-4, 8, 4) for e in (s + 2, s + 4)],
        "session": [(time, time + 2)],
    }
    return [(start, end) for start, end in all_of[kind] if start <= time < end]


ASSIGNERS: dict[str, Any] = {
    "tumbling": TumblingEventTimeWindows(2),
    "sliding": SlidingEventTimeWindows(3, 2),
    "gaps": SlidingEventTimeWindows(1, 3),
    "cumulative": CumulativeEventTimeWindows(4, 2),
    "session": EventTimeSessionWindows(2),
}


class Pane(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Iterable[Record]) -> Iterator[Any]:
        yield key, context.window.start_ms, context.window.end_ms, sum(amount for _, amount in elements)


def must_give(
    kind: str, script: Script, clocks: list[int], lateness: int
) -> tuple[list[tuple[int, int, int]], set[int]]:
    """The panes (start, end, sum) that a script has, and the records that are late.

    A window is computed when the clock reaches its end, and for each record that comes after that.
    """
    held: dict[Window, int] = {}
    panes: list[tuple[int, int, int]] = []
    late: set[int] = set()
    arrivals = list(records_of(script, clocks))
    slots = [script.first_slot, script.second_slot]
    for slot, clock in enumerate([*clocks, MAX_WATERMARK]):
        before = clocks[slot - 1] if slot else MIN_TIMESTAMP
        if slot:
            panes += [(*w, total) for w, total in held.items() if before < w[1] - 1 <= clock]
            held = {w: total for w, total in held.items() if w[1] - 1 + lateness > clock}
        for (amount, time, _), mine in zip(arrivals, slots, strict=True):
            if mine != slot:
                continue
            found = windows_of(kind, time)
            taken = False
            for window in found:
                if kind == "session":  # one record before it at most, so at most one session to meet
                    for other in [w for w in held if w[0] <= window[1] and window[0] <= w[1]]:
                        window = min(window[0], other[0]), max(window[1], other[1])
                        amount += held.pop(other)
                if window[1] - 1 + lateness <= clock:
                    continue
                taken = True
                held[window] = held.get(window, 0) + amount
                if window[1] - 1 <= clock:
                    panes.append((*window, held[window]))
            if found and not taken:
                late.add(amount)
    return panes, late


@pytest.mark.parametrize("form", ["columns", "rows"])
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_windows_are_over_and_records_late_at_the_same_millisecond_as_in_flink(kind: str, form: str) -> None:
    for lateness in range(3):
        windows = Environment().from_collection([], type=Record).key_by("f0").window(ASSIGNERS[kind])
        windows = windows.allowed_lateness(lateness).side_output_late_data(LATE)
        made = windows.aggregate(n=Sum("f1")) if form == "columns" else windows.process(Pane(), returns=Any)
        for watermarks in combinations(TIMES, 2):
            results, late = run(made, watermarks)
            ours: dict[str, list[Any]] = {}
            for key, start, end, total in results.elements():
                if form == "columns":
                    start, end = (int(t.timestamp() * 1000) for t in (start, end))
                ours.setdefault(key, []).append((start, end, total))
            for key, script in KEYS.items():
                panes, is_late = must_give(kind, script, [MIN_TIMESTAMP, *watermarks], lateness)
                where = f"{script}, watermarks {watermarks}, lateness {lateness}"
                if (
                    form == "columns"
                ):  # a window that changes twice in one slot may be sent once, as it is then
                    assert set(ours.get(key, [])) <= set(panes), where
                    assert {p[:2]: p for p in sorted(ours.get(key, []))} == {
                        p[:2]: p for p in sorted(panes)
                    }, where
                else:
                    assert Counter(ours.get(key, [])) == Counter(panes), where
                assert {amount for amount in (1, 10) if late[key, amount]} == is_late, where


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_a_window_join_takes_the_records_that_a_window_takes(kind: str) -> None:
    for lateness in range(2):
        env = Environment()
        left, right = (env.from_collection([], type=Record) for _ in range(2))
        joined = (
            left.join(right).where("f0").equal_to("f0").window(ASSIGNERS[kind]).allowed_lateness(lateness)
        )
        made = joined.co_group(lambda a, b: [((*a, *b)[0][0], sum(n for _, n in (*a, *b)))], returns=Any)
        for watermarks in combinations(TIMES, 2):
            ours, _ = run(made, watermarks, sides=True)
            expected: Counter[Any] = Counter()
            for key, script in KEYS.items():
                panes, _ = must_give(kind, script, [MIN_TIMESTAMP, *watermarks], lateness)
                expected.update((key, total) for *_, total in panes)
            assert ours == expected, (watermarks, lateness)


@pytest.mark.parametrize("within", [1, 2, 3])
@pytest.mark.parametrize("key_type", [str, Any])
def test_deduplication_forgets_a_key_no_sooner_than_its_duplicates_are_late(
    within: int, key_type: Any
) -> None:
    keyed = Environment().from_collection([], type=Record).key_by(lambda r: r[0], returns=key_type)
    made = keyed.deduplicate(within=within, late_data=LATE)
    for watermarks in combinations(TIMES, 2):
        passed, late = run(made, watermarks)
        expected: Counter[Any] = Counter()
        expected_late: Counter[Any] = Counter()
        for key, script in KEYS.items():
            last: int | None = None
            for amount, time, clock in records_of(script, [MIN_TIMESTAMP, *watermarks]):
                if time <= clock:
                    expected_late[key, amount] += 1
                elif last is None or time >= last + within:
                    last = time
                    expected[key, amount] += 1
        assert (passed, late) == (expected, expected_late), watermarks


class Alarm(KeyedProcessFunction):
    def process(self, value: Record, context: ProcessContext) -> None:
        context.timer_service.register_event_time_timer(context.timestamp + 1)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Any]:
        yield context.current_key, timestamp, context.timer_service.current_watermark


def test_a_timer_fires_at_the_first_watermark_after_its_registration_that_reaches_it() -> None:
    made = Environment().from_collection([], type=Record).key_by("f0").process(Alarm(), returns=Any)
    for watermarks in combinations(TIMES, 2):
        fired, _ = run(made, watermarks)
        expected: Counter[Any] = Counter()
        for key, script in KEYS.items():
            waiting: set[int] = set()
            for slot, clock in enumerate([*watermarks, MAX_WATERMARK]):
                at = ((script.first, script.first_slot), (script.second, script.second_slot))
                waiting |= {time + 1 for time, mine in at if mine == slot}
                expected.update((key, due, clock) for due in waiting if due <= clock)
                waiting = {due for due in waiting if due > clock}
        assert fired == expected, watermarks
