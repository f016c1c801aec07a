"""Windows of every kind equal the reference: any order of events, lateness, triggers, parallelism 1 to 4, crashes."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.event_time.jobs import Case, Found, cases, check, program
from tidegate import Environment, FileSink, RestartStrategies

pytestmark = pytest.mark.timeout(900)

BRANCHES = 8
EXAMPLES = {"columns": 260, "rows": 260, "heap": 100, "rocksdb": 30}
"""Of 8 cases each: more than 5,000 in all. A database per subtask and attempt takes its time."""

COMMON = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # making a failing job small takes minutes
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


def environment(case: Case, **more: object) -> Environment:
    return Environment(
        runtime="in-process",
        parallelism=case.parallelism,
        seed=case.seed,
        batch_rows=case.batch_rows,
        watermark_interval=0,
        **more,
    )


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
    directory = Path(tempfile.mkdtemp(prefix="windows-"))
    try:
        marker = directory / "crashed"

        def crash_once(found: Found) -> Found:
            if (
                zlib.crc32(repr((found, case.seed)).encode()) % 5 == 0 or found.start < 0
            ) and not marker.exists():
                marker.touch()
                raise RuntimeError("once")
            return found

        env = environment(
            case,
            state_backend=backend,
            checkpoint_interval="10 ms",
            checkpoint_dir=str(directory / "checkpoints"),
            restart_strategy=RestartStrategies.fixed_delay(3, "1 ms"),
        )
        out = directory / "out"
        program(env, case).map(crash_once, returns=Found, uid="crash").sink_to(
            FileSink(out, format="parquet"), uid="out"
        )
        env.execute()
        check(case, found_in(out))
    finally:
        shutil.rmtree(directory)


def found_in(out: Path) -> list[Found]:
    files = sorted(out.glob("part-*"))
    return [Found(**row) for file in files for row in pq.read_table(file).to_pylist()]
