"""Windows of built-in aggregates under the faults of the recovery simulation: every pane comes out once, and right."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import pytest

from tests.plugins.seeds import blocks, rotating
from tests.simulation import recovery
from tests.simulation.recovery_programs import Click, Output, Program, clicks
from tidegate import (
    Count,
    CountDistinct,
    CumulativeEventTimeWindows,
    Environment,
    EventTimeSessionWindows,
    First,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.api.streams import DataStream

COLUMNS = ("key", "start", "end", "n", "total", "different", "first")
PER_TEST = 20
FIXED = 1_000
ASSIGNERS: list[Any] = [
    TumblingEventTimeWindows(10),
    SlidingEventTimeWindows(20, 5),
    SlidingEventTimeWindows(13, 5),
    CumulativeEventTimeWindows(20, 5),
    EventTimeSessionWindows(4),
]


def moment(click: Click) -> int:
    """Out of order by up to 12 ms, each of a key at another time."""
    return 60 + click.n + click.n * 7919 % 13


def _program(assigner: Any) -> Program:
    def build(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
        stream = env.from_collection(inputs["s0"], name="s0")
        timed = stream.assign_timestamps_and_watermarks(WatermarkStrategy.bounded(30, moment))
        panes = timed.key_by("key").window(assigner)
        made = panes.aggregate(n=Count(), total=Sum("n"), different=CountDistinct("n"), first=First("n"))
        times = [pl.col(f"window_{name}").dt.epoch("ms").alias(name) for name in ("start", "end")]
        return made.select("key", *times, *COLUMNS[3:])

    def check(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
        found = Counter(tuple(row[c] for c in COLUMNS) for rows in output.values() for row in rows)
        truth = Counter(panes_of(assigner, program.all_clicks()))
        if guarantee == "exactly_once":
            assert found == truth, f"lost {truth - found}, too many {found - truth}"
        elif guarantee == "repeated":
            assert set(found) == set(truth), (
                f"lost {set(truth) - set(found)}, wrong {set(found) - set(truth)}"
            )

    return Program(assigner.describe(), {"s0": clicks(160, 0)}, build, check)


def panes_of(assigner: Any, all_clicks: list[Click]) -> list[tuple[int, ...]]:
    """All panes, from the whole input at once."""
    panes: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    if isinstance(assigner, EventTimeSessionWindows):
        assert assigner.gap_ms is not None
        by_key: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for click in all_clicks:
            by_key[click.key].append((moment(click), click.n))
        for key, events in by_key.items():
            sessions: list[list[tuple[int, int]]] = []
            for event in sorted(events):
                if not sessions or event[0] - sessions[-1][-1][0] > assigner.gap_ms:
                    sessions.append([])
                sessions[-1].append(event)
            for session in sessions:
                panes[key, session[0][0], session[-1][0] + assigner.gap_ms] = session
    else:
        for click in all_clicks:
            for window in assigner.assign_windows(click, moment(click)):
                panes[(click.key, *window)].append((moment(click), click.n))
    return [
        (*where, len(events), sum(n for _, n in events), len({n for _, n in events}), min(events)[1])
        for where, events in panes.items()
    ]


def _with_watermarks(plan_of: Callable[[int], recovery.Plan]) -> Callable[[int], recovery.Plan]:
    def plan(seed: int) -> recovery.Plan:
        found = plan_of(seed)
        found.values["watermark.interval"] = random.Random(f"watermarks {seed}").choice((0, 0, 5))
        return found

    return plan


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "first",
    [
        FIXED,
        *blocks(rotating(PER_TEST, FIXED + PER_TEST), PER_TEST),
        *(
            pytest.param(first, marks=pytest.mark.long)
            for first in range(FIXED + PER_TEST, FIXED + 2_000, PER_TEST)
        ),
    ],
)
def test_panes_are_exact_whatever_fails(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PROGRAMS", tuple(_program(a) for a in ASSIGNERS))
    monkeypatch.setattr(recovery.Plan, "of", staticmethod(_with_watermarks(recovery.Plan.of)))
    completed = restores = 0
    for seed in range(first, first + PER_TEST):
        run = recovery.Run(seed)
        try:
            run.run()
        except Exception as e:
            raise AssertionError(f"seed {seed} ({run.plan.program.name}, {run.plan.mode}): {e}") from e
        completed += len(run.completed)
        restores += run.restores
    assert completed > 0
    assert restores > 0
