"""The same records through Flink and through tidegate: windows, late records and interval joins are the same.

Both have a watermark behind every record, and one subtask, so that which records are late is no accident. In a join the
two inputs race, in both engines: there the records are out of order but never late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.event_time import reference as ref
from tests.event_time.flink import JoinCase, as_found, run_flink
from tests.event_time.jobs import BUILT_IN, GROWING, Branch, Case, Click, Found, check_equal, program
from tidegate import Environment, ProcessJoinFunction, WatermarkStrategy

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

WINDOW_CASES = 24
JOIN_CASES = 8
EVENTS = 300
KINDS = ("tumbling", "sliding", "session")


def branch_of(chance: random.Random, kind: str, form: str) -> Branch:
    size = chance.randint(1, 60)
    windows = ref.Windows(kind, size)
    if kind == "tumbling":
        windows = ref.Windows(kind, size, 0, chance.randint(0, size - 1))
    elif kind == "sliding":
        slide = chance.randint(
            1, min(size, 30)
        )  # in gaps between windows records are late in Flink, here in no window
        windows = ref.Windows(kind, size, slide, chance.randint(1 - slide, slide - 1))
    when = ref.When()
    if form == "process" and kind != "session" and chance.random() < 0.5:
        when = ref.When("count", chance.randint(1, 4), chance.random() < 0.5)
    lateness = chance.choice([0, 0, 5, 40])
    built_in = GROWING if lateness else tuple(BUILT_IN)
    what = {"process": "values", "aggregate": "sum"}.get(form) or chance.choice(built_in)
    return Branch(windows, when, lateness, what, form)


def window_case(seed: int) -> Case:
    """Every kind of window in every form, and records some of which are late."""
    chance = random.Random(seed)
    now, jitter = chance.choice([-500, 0, 1_700_000_000_000]), chance.choice([0, 10, 60])
    events = []
    for _ in range(EVENTS):
        now += chance.choice([0, 0, 1, 2, 5, 30])
        behind = chance.randint(0, jitter) if chance.random() < 0.4 else 0
        events.append(Click(chance.choice("abc"), now - behind, chance.randint(0, 9)))
    branches = (
        branch_of(chance, kind, form) for kind in KINDS for form in ("columns", "process", "aggregate")
    )
    return Case(events, 1, chance.choice([0, 3, 20]), 1, seed, tuple(branches))


def join_case(seed: int) -> JoinCase:
    chance = random.Random(seed)
    delay = chance.choice([0, 5, 20])

    def side() -> list[Click]:
        now, out = 0, []
        for number in range(EVENTS):
            now += chance.choice([0, 0, 1, 3])
            out.append(Click(chance.choice("abc"), now + chance.randint(0, delay), number))
        return out

    bounds = [sorted((chance.randint(-15, 15), chance.randint(-15, 15))) for _ in range(4)]
    return JoinCase(side(), side(), delay, tuple((low, high) for low, high in bounds), seed)


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """What Flink finds in all cases: one JVM for all of them."""
    cases: dict[str, Case | JoinCase] = {f"windows-{seed}": window_case(seed) for seed in range(WINDOW_CASES)}
    cases |= {f"join-{seed}": join_case(seed) for seed in range(JOIN_CASES)}
    return run_flink(tmp_path_factory.mktemp("flink"), cases)


def environment(seed: int) -> Environment:
    return Environment(runtime="in-process", parallelism=1, batch_rows=1, watermark_interval=0, seed=seed)


@pytest.mark.parametrize("seed", range(WINDOW_CASES))
def test_windows_and_their_late_records_are_those_of_flink(seed: int, flink: dict[str, list[list[str]]]):
    case = window_case(seed)
    ours = Counter(program(environment(seed), case).execute_and_collect())
    theirs = as_found(case, flink[f"windows-{seed}"])
    check_equal(case, comparable(case, ours), comparable(case, theirs))


def test_the_cases_have_late_records_and_results_that_are_computed_again(flink: dict[str, list[list[str]]]):
    found = [as_found(window_case(seed), flink[f"windows-{seed}"]) for seed in range(WINDOW_CASES)]
    assert sum(n for each in found for pane, n in each.items() if pane.start == -1) > 1000
    places = (Counter(pane[:4] for pane in each if pane.start != -1) for each in found)
    assert sum(n > 1 for each in places for n in each.values()) > 100


def comparable(case: Case, found: Counter[Found]) -> Counter[Found]:
    """When sessions become one, elements stay in the order of arrival here; in Flink a session's come together."""
    same: Counter[Found] = Counter()
    for pane, n in found.items():
        branch = case.branches[pane.branch]
        if branch.windows.kind == "session" and branch.what == "values":
            pane = pane._replace(result=",".join(sorted(pane.result.split(","))))
        same[pane] += n
    return same


class Met(NamedTuple):
    """Two records that have met."""

    join: int
    key: str
    left: int
    right: int
    timestamp: int


class Meet(ProcessJoinFunction):
    def __init__(self, join: int) -> None:
        self.join = join

    def process(self, left: Click, right: Click, context: Any) -> Iterator[Met]:
        yield Met(self.join, left.key, left.value, right.value, context.timestamp)


@pytest.mark.parametrize("seed", range(JOIN_CASES))
def test_interval_joins_are_those_of_flink(seed: int, flink: dict[str, list[list[str]]]):
    case, env = join_case(seed), environment(seed)
    strategy = WatermarkStrategy.bounded(case.delay, "ts")
    left, right = (
        env.from_collection(side, type=Click).assign_timestamps_and_watermarks(strategy).key_by("key")
        for side in (case.left, case.right)
    )
    joins = [
        left.interval_join(right).between(lower, upper).process(Meet(number), returns=Met)
        for number, (lower, upper) in enumerate(case.bounds)
    ]
    ours = Counter(joins[0].union(*joins[1:]).execute_and_collect())
    theirs = Counter(
        Met(int(join), key, *map(int, numbers)) for _, join, key, *numbers in flink[f"join-{seed}"]
    )
    assert ours == theirs
    assert ours, "nothing has met: the case shows nothing"
