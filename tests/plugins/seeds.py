"""Seeds that rotate: each run takes a few fixed ones, and others that follow from one number, its base.

The base is the day (UTC), or what the variable SEED_BASE says. The run prints it, and `SEED_BASE=... make test` repeats
the run. Hypothesis draws its examples from it too. The tests marked `long` take all that the days would.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import pytest

VARIABLE = "SEED_BASE"
ROTATING_SEEDS = 900_000
"""So many seeds there are to rotate through; each kind of test adds its own offset."""

# Set where it is missing, so that the workers of this run have the same one.
os.environ.setdefault(VARIABLE, str(datetime.datetime.now(datetime.UTC).date().toordinal()))


def seed_base() -> int:
    """The number that this run's seeds follow from."""
    return int(os.environ[VARIABLE])


def rotating(seeds: int, after: int) -> range:
    """This run's seeds beyond the fixed ones, which end at `after`: one base begins where the one before it ends."""
    first = after + seed_base() * seeds % ROTATING_SEEDS
    return range(first, first + seeds)


def blocks(seeds: range, per_test: int) -> list[int]:
    """The first seed of each test that takes `per_test` of them."""
    return list(range(seeds.start, seeds.stop, per_test))


def examples(each_run: int, *, long: int) -> list[Any]:
    """For `parametrize`: how many examples a property has in each run, and how many in a long one."""
    return [each_run, pytest.param(long, marks=[pytest.mark.long, pytest.mark.timeout(0)])]


def _repeat() -> str:
    return f"rotating seeds: {VARIABLE}={seed_base()} repeats the choice of this run"


@pytest.hookimpl(tryfirst=True)  # before the plugin of Hypothesis reads it
def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(seed_base())


def pytest_report_header() -> str:
    return _repeat()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(_repeat())
