"""Windows of every kind equal the reference: any order of events, lateness, triggers, parallelism 1 to 4, crashes."""

from __future__ import annotations

import tempfile
import zlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.event_time.crashing import COMMON, Crashes, environment, time_passes
from tests.event_time.jobs import Case, Click, Found, cases, check, found_in, program
from tests.plugins.seeds import examples as each_run
from tidegate import WatermarkStrategy
from tidegate.testing.scripted_source import Pause, ScriptedSource

pytestmark = pytest.mark.timeout(900)

BRANCHES = 8
# An example has 8 cases: more than 1,000 in each run, others every day, and more than 5,000 in a long one.
PARALLELISM = st.none() | st.integers(1, 4)
"""Of the job that goes on; None: the same job."""


def check_forms(forms: tuple[str, ...], examples: int) -> None:
    @given(cases(forms=forms, many=BRANCHES))
    @settings(COMMON, max_examples=examples)
    def check_all(case: Case) -> None:
        check(case, program(environment(case), case).execute_and_collect())

    check_all()


@pytest.mark.parametrize("examples", each_run(70, long=290))
def test_built_in_aggregates_over_every_kind_of_window_equal_the_reference(examples):
    check_forms(("columns",), examples)


@pytest.mark.parametrize("examples", each_run(70, long=290))
def test_functions_over_every_kind_of_window_with_every_trigger_equal_the_reference(examples):
    check_forms(("process", "aggregate"), examples)


@pytest.mark.parametrize("examples", each_run(10, long=20))
def test_a_source_that_is_idle_holds_no_window_back_and_changes_nothing(tmp_path, examples):
    fired_before_the_end = Counter()

    @given(cases(many=BRANCHES, least=20, most_rows=4, in_order=True))
    @settings(COMMON, max_examples=examples)
    def check_all(case: Case) -> None:
        directory = Path(tempfile.mkdtemp(dir=tmp_path))
        silent = ScriptedSource([[Pause("silent")]], directory, type=Click)
        last = case.events[-1]

        def end_at_last(click: Click) -> Click:
            if click == last:
                silent.release("silent")
            return click

        def end(found: Found) -> Found:
            if not (directory / "released silent").exists():
                (directory / "fired").touch()
                silent.release("silent")
            return found

        env = environment(case, max_parallelism=8)
        strategy = WatermarkStrategy.bounded(case.delay, "ts")
        clicks = env.from_collection(case.events, type=Click, uid="clicks").set_parallelism(1)
        clicks = clicks.map(end_at_last).set_parallelism(1)
        timed = clicks.assign_timestamps_and_watermarks(strategy).set_parallelism(1)
        never = env.from_source(silent, strategy.with_idleness("1 ms"), uid="silent").set_parallelism(1)
        with time_passes():
            found = list(found_in(timed.union(never), case).map(end, returns=Found).execute_and_collect())
        check(case, found)
        fired_before_the_end[(directory / "fired").exists()] += 1

    check_all()
    if examples > 10:  # the few examples of a day may all miss
        assert fired_before_the_end[True] > examples // 4, fired_before_the_end


@pytest.mark.parametrize("examples", each_run(10, long=30))
def test_a_crash_at_any_moment_changes_nothing_nor_does_another_parallelism(examples):
    crashes = Crashes()

    @given(case=cases(many=BRANCHES, least=20, most_rows=4), parallelism=PARALLELISM)
    @settings(COMMON, max_examples=examples)
    def check_all(case: Case, parallelism: int | None) -> None:
        check_with_a_crash(crashes, case, "heap", parallelism)

    check_all()
    if examples > 10:
        assert crashes.seen["restored"] > examples // 4, crashes.seen
        assert crashes.seen["rescaled"] > 0


@pytest.mark.parametrize("examples", each_run(3, long=6))  # a database per subtask and attempt takes its time
def test_a_crash_at_any_moment_changes_nothing_with_rocksdb(examples):
    crashes = Crashes()

    @given(case=cases(many=BRANCHES, least=20, most_rows=4), parallelism=PARALLELISM)
    @settings(COMMON, max_examples=examples)
    def check_all(case: Case, parallelism: int | None) -> None:
        check_with_a_crash(crashes, case, "rocksdb", parallelism)

    check_all()
    if examples > 3:
        assert crashes.seen["restored"] > examples // 4, crashes.seen


def check_with_a_crash(crashes: Crashes, case: Case, backend: str, parallelism: int | None) -> None:
    """Each pane comes once, and late events are late: the output is that of the run without a crash."""

    def is_the_moment(found: Found) -> bool:
        return zlib.crc32(repr((found, case.seed)).encode()) % 3 == 0 or found.start < 0

    check(case, crashes.written(case, backend, program, Found, is_the_moment, parallelism))
