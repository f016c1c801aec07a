"""Interval joins and window joins beside a live Flink, at the clock: late records, equal times, any order of arrival.

A script is the records and the watermarks of two inputs in one order. In Flink a gate keeps to that order; here an
operator is driven by it. Times lie close together: many of them are equal to each other and to the watermark.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import pytest

from tests.event_time.flink import run_scripts
from tests.unit.operators_kit import harness, stamped
from tidegate import (
    CountTrigger,
    Environment,
    EventTimeSessionWindows,
    OutputTag,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.testing.harness import OperatorHarness

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SCRIPTS = 24
STEPS = 80
SIDES = ("left", "right")
Record = tuple[str, int]
"""A key, and the number of the step."""
LATE = [OutputTag(f"late {side}", Record) for side in SIDES]


class Step(NamedTuple):
    """A record of a side, or (without a key) its watermark."""

    side: int
    key: str
    time: int
    number: int


@dataclass(frozen=True)
class Interval:
    """The bounds of an interval join, and whether each is left out."""

    lower: int
    upper: int
    excluded: tuple[bool, bool]

    def line(self, number: int) -> str:
        words = (number, self.lower, self.upper, *(str(e).lower() for e in self.excluded))
        return f"interval {' '.join(map(str, words))}"

    def reach(self, side: int) -> int:
        """How long a record of a side waits."""
        return max(0, self.upper - self.excluded[1] if side == 0 else -self.lower - self.excluded[0])


@dataclass(frozen=True)
class Windows:
    """The windows of a window join; `count`: a count trigger, 0 for none."""

    kind: str
    size: int
    slide: int
    lateness: int
    count: int

    def line(self, number: int) -> str:
        words = (number, self.kind, self.size, self.slide, self.lateness, self.count)
        return f"window {' '.join(map(str, words))}"


@dataclass(frozen=True)
class Script:
    steps: list[Step]
    intervals: list[Interval]
    windows: list[Windows]

    def lines(self) -> list[str]:
        """As FlinkJoins.java reads them."""
        joins = [join.line(n) for n, join in enumerate(self.intervals)]
        joins += [windows.line(n) for n, windows in enumerate(self.windows)]
        return joins + [
            f"record {SIDES[s.side]} {s.key} {s.time} {s.number}"
            if s.key
            else f"mark {SIDES[s.side]} {s.time}"
            for s in self.steps
        ]

    def clocked(self) -> Iterator[tuple[Step, int]]:
        """Each step, and the clock after it."""
        marks = [MIN_TIMESTAMP, MIN_TIMESTAMP]
        for step in self.steps:
            if not step.key:
                marks[step.side] = step.time
            yield step, min(marks)


def script(seed: int) -> Script:
    chance = random.Random(seed)
    steps: list[Step] = []
    marks = [chance.choice([-3, 0, 1_700_000_000_000])] * 2
    for number in range(STEPS):
        side = chance.randrange(2)
        if chance.random() < 0.3:
            marks[side] += chance.choice([0, 1, 1, 2, 5])
            steps.append(Step(side, "", marks[side], number))
        else:
            time = chance.choice(marks) + chance.choice([-2, -1, 0, 0, 0, 1, 2, 4])
            steps.append(Step(side, chance.choice("ab"), time, number))
    intervals = []
    for _ in range(5):
        lower, upper = sorted((chance.randint(-4, 4), chance.choice([0, chance.randint(-4, 4)])))
        excluded = chance.random() < 0.2, chance.random() < 0.2
        intervals.append(Interval(lower, upper, excluded if upper - lower >= 2 else (False, False)))
    windows = []
    for kind in ("tumbling", "sliding", "session"):
        size = chance.randint(1, 6)
        slide = chance.randint(1, size) if kind == "sliding" else 0
        windows.append(Windows(kind, size, slide, chance.choice([0, 0, 1, 4]), chance.choice([0, 0, 3])))
    return Script(steps, intervals, windows)


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """What Flink finds in all scripts: one JVM for all of them."""
    scripts = {str(seed): script(seed).lines() for seed in range(SCRIPTS)}
    return run_scripts(tmp_path_factory.mktemp("flink"), scripts)


def drive(made: Any, of: Script) -> OperatorHarness:
    """An operator that has seen all of a script, and the end of its inputs."""
    with harness(made) as h:
        clock = MIN_TIMESTAMP
        for step, now in of.clocked():
            if step.key:
                h.push([(step.key, step.number)], timestamps=[step.time], input_index=step.side)
            elif now > clock:
                clock = now
                h.advance_watermark(clock)
        h.finish()
    return h


def streams() -> tuple[Any, Any]:
    env = Environment()
    return env.from_collection([], type=Record), env.from_collection([], type=Record)


# ---- interval joins ----


def numbers(left: Record, right: Record) -> tuple[int, int]:
    return left[1], right[1]


def forgotten(of: Script, join: Interval) -> Counter[tuple[int, int, int]]:
    """The pairs that Flink does not find, as one of the two came at the very watermark that had removed the other."""
    lower, upper = join.lower + join.excluded[0], join.upper - join.excluded[1]
    found: Counter[tuple[int, int, int]] = Counter()
    there: list[tuple[Step, bool]] = []  # whether a watermark has removed it
    clock = MIN_TIMESTAMP
    for step, now in of.clocked():
        if not step.key and now > clock:
            clock = now
            there = [(s, is_gone or s.time + join.reach(s.side) <= clock) for s, is_gone in there]
        elif step.key and step.time >= clock:
            for other, is_gone in there:
                left, right = (step, other) if step.side == 0 else (other, step)
                meets = other.side != step.side and other.key == step.key
                if meets and is_gone and lower <= right.time - left.time <= upper:
                    assert step.time == clock == other.time + join.reach(other.side)
                    found[left.number, right.number, max(left.time, right.time)] += 1
            there.append((step, False))
    return found


@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_interval_joins_and_their_late_records_are_those_of_flink(
    seed: int, flink: dict[str, list[list[str]]]
) -> None:
    of = script(seed)
    for number, join in enumerate(of.intervals):
        left, right = (stream.key_by("f0") for stream in streams())
        joined = left.interval_join(right).between(join.lower, join.upper)
        joined = joined.side_output_left_late_data(LATE[0]).side_output_right_late_data(LATE[1])
        joined = joined.lower_bound_exclusive() if join.excluded[0] else joined
        joined = joined.upper_bound_exclusive() if join.excluded[1] else joined
        h = drive(joined.apply(numbers, returns=tuple[int, int]), of)
        mine = [
            words for words in flink[str(seed)] if words[:2] in (["pair", f"{number}"], ["late", f"{number}"])
        ]
        pairs = Counter(tuple(map(int, words[2:])) for words in mine if words[0] == "pair")
        late = Counter((words[2], int(words[3])) for words in mine if words[0] == "late")
        assert Counter((*pair, time) for pair, time in stamped(h)) == pairs + forgotten(of, join), (
            number,
            join,
        )
        ours = Counter((side, n) for side in SIDES for _, n in h.side_rows(f"late {side}"))
        assert ours == late, (number, join)


def test_the_scripts_have_late_records_and_pairs_at_the_watermark(flink: dict[str, list[list[str]]]) -> None:
    lines = [words for found in flink.values() for words in found]
    assert sum(words[0] == "late" for words in lines) > 500
    assert sum(words[0] == "pair" for words in lines) > 1000
    lost = [forgotten(of, join) for of in map(script, range(SCRIPTS)) for join in of.intervals]
    assert sum(each.total() for each in lost) > 50


# ---- window joins ----


def sides(lefts: list[Record], rights: list[Record]) -> list[tuple[list[int], list[int]]]:
    return [([n for _, n in lefts], [n for _, n in rights])]


def either(left: Record | None, right: Record | None) -> tuple[int, int]:
    return -1 if left is None else left[1], -1 if right is None else right[1]


ALONE: dict[str, tuple[bool, bool]] = {
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
}


def pairs_of(lefts: list[int], rights: list[int], how: str) -> Iterator[tuple[int, int]]:
    """What a join makes of a window, given what Flink's co-group sees of it."""
    if lefts and rights:
        yield from product(lefts, rights)
    else:
        yield from ((n, -1) for n in lefts if ALONE[how][0])
        yield from ((-1, n) for n in rights if ALONE[how][1])


@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_window_joins_and_co_groups_are_those_of_flink(seed: int, flink: dict[str, list[list[str]]]) -> None:
    of = script(seed)
    for number, windows in enumerate(of.windows):
        assigners: dict[str, Callable[[], Any]] = {
            "tumbling": lambda w=windows: TumblingEventTimeWindows(w.size),
            "sliding": lambda w=windows: SlidingEventTimeWindows(w.size, w.slide),
            "session": lambda w=windows: EventTimeSessionWindows(w.size),
        }
        left, right = streams()
        joined = left.join(right).where("f0").equal_to("f0").window(assigners[windows.kind]())
        joined = joined.allowed_lateness(windows.lateness)
        joined = joined.trigger(CountTrigger(windows.count)) if windows.count else joined
        mine = [words for words in flink[str(seed)] if words[1] == f"{number}"]
        groups = [
            tuple([int(n) for n in side[1:].split(",") if n] for side in words[2:])
            for words in mine
            if words[0] == "group"
        ]

        def comparable(group: Any, kind: str = windows.kind) -> Any:
            """In a session that was several, Flink has the records in another order."""
            return tuple(tuple(sorted(side) if kind == "session" else side) for side in group)

        ours = drive(joined.co_group(sides, returns=Any), of).rows
        assert Counter(map(comparable, ours)) == Counter(map(comparable, groups)), (number, windows)
        inner = Counter((int(words[2]), int(words[3])) for words in mine if words[0] == "joined")
        for how in ALONE:
            rows = Counter(drive(joined.how(how).apply(either, returns=Any), of).rows)
            assert rows == Counter(p for group in groups for p in pairs_of(*group, how)), (
                number,
                windows,
                how,
            )
            assert how != "inner" or rows == inner, (number, windows)
