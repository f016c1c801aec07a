"""Thousands of seeds: kills, zombies, lost messages, failing storage, damaged files. The answer stays exact.

`make test` runs 400 fixed seeds and 200 that rotate, `make test-long SEEDS=20000` as many as one wants. A seed that
fails is run again three times and named with the command that shows it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.plugins.seeds import blocks, rotating
from tests.simulation.recovery import EVENT_TIME, Plan, Run, digest
from tidegate.core.failpoints import NAMES

PER_TEST = 50
FIXED, ROTATING = 400, 200
EVENT_TIME_FIXED, EVENT_TIME_ROTATING = 50, 50
SEARCHED = 4_000
"""So many seeds at most are looked through for one that strikes."""
LONG_SEEDS = int(os.environ.get("SEEDS") or 20_000)

passed: Counter[str] = Counter()
struck: Counter[str] = Counter()
done: Counter[str] = Counter()


def check(seed: int) -> None:
    """Run a seed; if it breaks an invariant, find out whether it does so every time."""
    try:
        run = Run(seed)
        run.run()
    except Exception as e:
        again = Counter(_error_of(seed) for _ in range(3))
        plan = Plan.of(seed)
        raise AssertionError(
            f"seed {seed} ({plan.program.name}, {plan.mode}, {plan.backend}, parallelism {plan.parallelism}): "
            f"{type(e).__name__}: {e}\nthree more runs: {dict(again)}\n"
            f"show it with: PYTHONPATH=src:. {sys.executable} -m tests.simulation.recovery {seed}"
        ) from e
    passed.update(run.faults.passed)
    struck.update(run.faults.struck)
    done.update(
        {
            "seeds": 1,
            "events": len(run.simulation.trace),
            "completed checkpoints": len(run.completed),
            "restores": run.restores,
            "drivers": run.drivers,
            run.plan.mode: 1,
            run.plan.backend: 1,
            run.plan.program.name: 1,
        }
    )


def _error_of(seed: int) -> str:
    try:
        Run(seed).run()
    except Exception as e:  # noqa: BLE001 -- whatever it is, it is compared
        return f"{type(e).__name__}: {str(e)[:80]}"
    return "no error"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", [*range(0, FIXED, PER_TEST), *blocks(rotating(ROTATING, FIXED), PER_TEST)])
def test_no_fault_at_any_moment_changes_the_answer(first):
    for seed in range(first, first + PER_TEST):
        check(seed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "first", [EVENT_TIME, *blocks(rotating(EVENT_TIME_ROTATING, EVENT_TIME + EVENT_TIME_FIXED), PER_TEST)]
)
def test_no_fault_at_any_moment_makes_a_window_or_a_timer_fire_twice_or_never(first):
    for seed in range(first, first + PER_TEST):
        check(seed)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_no_fault_at_any_moment_changes_the_answer_for_as_many_seeds_as_one_wants():
    for seed in range(FIXED, FIXED + LONG_SEEDS):
        check(seed)
    for seed in range(EVENT_TIME + EVENT_TIME_FIXED, EVENT_TIME + EVENT_TIME_FIXED + LONG_SEEDS // 4):
        check(seed)


@pytest.mark.timeout(900)
def test_every_failpoint_is_passed_raises_and_kills_in_some_seed():
    wanted = {f"{how} at {name}" for name in NAMES for how in ("kill", "error")}
    seed = FIXED
    while not (wanted <= set(struck)) and seed < SEARCHED:  # little to do after the tests above
        check(seed)
        seed += 1
    assert not wanted - set(struck), "a failpoint that no seed exercises"
    assert set(passed) == set(NAMES)


@pytest.mark.timeout(900)
def test_every_kind_of_fault_happens_and_is_recovered_from():
    seed = FIXED
    kinds = {"kill", "stop", "cut", "driver", "damage", "lose", "repeat", "delay"}
    while not (kinds <= set(struck)) and seed < SEARCHED:
        check(seed)
        seed += 1
    assert not kinds - set(struck)
    assert done["restores"] > done["seeds"] // 4
    assert done["completed checkpoints"] > done["seeds"]


def test_one_seed_is_one_trace_in_this_process_and_in_others():
    seeds = [3, 11, 60, 1042]
    here = {seed: digest(Run(seed).run()) for seed in seeds}
    assert {seed: digest(Run(seed).run()) for seed in seeds} == here
    assert len(set(here.values())) == len(seeds)
    for hash_seed in ("1", "2"):
        for seed in seeds[:2]:
            shown = subprocess.run(
                [sys.executable, "-m", "tests.simulation.recovery", str(seed)],
                env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "src:."},
                capture_output=True,
                text=True,
                check=True,
            )
            assert shown.stdout.split()[-1] == here[seed]
