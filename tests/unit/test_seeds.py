"""Seeds that rotate: one base after the other covers all, and a run says how to repeat it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.order import rank
from tests.plugins.seeds import ROTATING_SEEDS, VARIABLE, blocks, rotating

ROOT = Path(__file__).parents[2]
DRAWING = """
    from hypothesis import given, settings, strategies as st

    @given(st.integers())
    @settings(max_examples=20, database=None, derandomize=False)
    def check(n):
        drawn.append(n)

    drawn = []

    def test_drawing():
        check()
        raise AssertionError(f"drew {drawn}.")
"""


def seeds_of(monkeypatch: pytest.MonkeyPatch, base: int) -> range:
    monkeypatch.setenv(VARIABLE, str(base))
    return rotating(200, after=400)


def test_a_base_begins_where_the_one_before_it_ends_and_none_takes_a_fixed_seed(monkeypatch):
    days = [seeds_of(monkeypatch, base) for base in range(739_000, 739_000 + ROTATING_SEEDS // 200)]
    assert [seed for day in days[:3] for seed in day] == list(range(days[0].start, days[0].start + 600))
    assert min(day.start for day in days) == 400
    assert len({seed for day in days for seed in day}) == ROTATING_SEEDS
    assert blocks(days[0], 50) == [days[0].start + n for n in (0, 50, 100, 150)]


def drawn_by(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, base: int) -> str:
    monkeypatch.setenv(VARIABLE, str(base))
    result = pytester.runpytest_subprocess("-q", "-p", "tests.plugins.seeds", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert f"rotating seeds: SEED_BASE={base} repeats the choice of this run" in text
    return text[text.index("drew [") : text.index("].")]


def test_a_run_that_fails_says_its_base_which_repeats_what_hypothesis_draws(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(DRAWING)
    first = drawn_by(pytester, monkeypatch, 5)
    assert drawn_by(pytester, monkeypatch, 5) == first
    assert drawn_by(pytester, monkeypatch, 6) != first


def test_files_that_take_long_come_first():
    files = ["tests/unit/test_a.py", "tests/spark/test_b.py", "tests/fault/test_c.py", "tests/fuzz/test_d.py"]
    assert sorted(files, key=rank) == [files[2], files[1], files[0], files[3]]
