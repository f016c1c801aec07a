"""Windows of every kind equal the reference: any order of events, lateness, triggers, parallelism 1 to 4, crashes."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings

from tests.event_time.crashing import COMMON, environment, written_with_a_crash
from tests.event_time.jobs import Case, Found, cases, check, program

pytestmark = pytest.mark.timeout(900)

BRANCHES = 8
EXAMPLES = {"columns": 260, "rows": 260, "heap": 100, "rocksdb": 30}
"""Of 8 cases each: more than 5,000 in all. A database per subtask and attempt takes its time."""


@given(cases(forms=("columns",), many=BRANCHES))
@settings(COMMON, max_examples=EXAMPLES["columns"])
def test_built_in_aggregates_over_every_kind_of_window_equal_the_reference(case: Case):
    check(case, program(environment(case), case).execute_and_collect())


@given(cases(forms=("process", "aggregate"), many=BRANCHES))
@settings(COMMON, max_examples=EXAMPLES["rows"])
def test_functions_over_every_kind_of_window_with_every_trigger_equal_the_reference(case: Case):
    check(case, program(environment(case), case).execute_and_collect())


@given(case=cases(many=BRANCHES))
@settings(COMMON, max_examples=EXAMPLES["heap"])
def test_a_crash_at_any_moment_changes_nothing(case: Case):
    check_with_a_crash(case, "heap")


@given(case=cases(many=BRANCHES))
@settings(COMMON, max_examples=EXAMPLES["rocksdb"])
def test_a_crash_at_any_moment_changes_nothing_with_rocksdb(case: Case):
    check_with_a_crash(case, "rocksdb")


def check_with_a_crash(case: Case, backend: str) -> None:
    """Each pane comes once, and late events are late: the output is that of the run without a crash."""

    def crashes(found: Found) -> bool:
        return zlib.crc32(repr((found, case.seed)).encode()) % 5 == 0 or found.start < 0

    check(case, written_with_a_crash(case, backend, program, Found, crashes))
