"""Two and three drivers of one program, stopped between any two steps, woken and killed: one history is visible."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.simulation.drivers import ENDS, Run
from tidegate.jobmanager import job_claim as claiming

PER_TEST = 50
SEEDS = 200
LONG_SEEDS = int(os.environ.get("SEEDS") or 20_000) // 4

ends: Counter[str] = Counter()
stops: Counter[str] = Counter()


def check(seed: int) -> None:
    """Run a seed; one that breaks an invariant is named with the command that shows it."""
    run = Run(seed)
    try:
        ends.update(run.run())
    except Exception as e:
        raise AssertionError(
            f"seed {seed} ({run.program.name}, parallelism {run.parallelism}): {type(e).__name__}: {e}\n"
            f"show it with: PYTHONPATH=src:. {sys.executable} -m tests.simulation.drivers {seed}"
        ) from e
    stops.update(run.stops)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_drivers_that_are_started_beside_each_other_write_one_output(first):
    for seed in range(first, first + PER_TEST):
        check(seed)


def test_a_seed_decides_everything_whatever_the_system_calls_random(monkeypatch):
    def history(seed: int, step: int) -> list[str]:
        numbers = itertools.count(1 << 30, step)
        system = SimpleNamespace(urandom=lambda n: next(numbers).to_bytes(n, "big"))
        monkeypatch.setattr(claiming, "os", system)
        run = Run(seed)
        run.run()
        return run.trace

    for seed in (16, 52):  # 52: two drivers claim the same number at once
        assert history(seed, 1) == history(seed, -1), seed


@pytest.mark.long
@pytest.mark.timeout(0)
def test_drivers_that_are_started_beside_each_other_write_one_output_for_as_many_seeds_as_one_wants():
    for seed in range(SEEDS, SEEDS + LONG_SEEDS):
        check(seed)


@pytest.mark.timeout(600)
def test_every_way_to_end_and_every_step_on_the_storage_is_met_by_some_seed():
    seed = SEEDS
    steps = {"storage.write", "storage.list", "storage.delete", "checkpoint.before_manifest"}
    wanted = set(ENDS) - {"gone"}  # that one is rare
    while not (wanted <= set(ends) and steps <= set(stops)) and seed < 2 * SEEDS:
        check(seed)
        seed += 1
    assert not wanted - set(ends)
    assert not steps - set(stops)
