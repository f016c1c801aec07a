"""Nexmark, q0 to q22: each query of `examples/nexmark` gives what DuckDB finds over the same events."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import run_program
from tests.plugins.nexmark import NEXMARK
from tidegate import Environment

NAMES = [f"q{n}" for n in range(23)]
UPDATING = ["q4", "q12", "q18", "q19"]


def test_all_queries_are_there_in_both_languages(nexmark: Any):
    assert sorted(nexmark.queries.QUERIES) == sorted(nexmark.oracle.SQL) == sorted(NAMES)
    assert [name for name in NAMES if nexmark.queries.QUERIES[name].key] == UPDATING


@pytest.mark.parametrize("name", NAMES)
def test_query_equals_duckdb(nexmark: Any, name: str):
    events = nexmark.generator.Nexmark(20_000, seed=3)
    env = Environment(runtime="in-process", parallelism=2)
    query = nexmark.queries.QUERIES[name]
    rows = list(query.build(nexmark.queries.Streams(env, events)).execute_and_collect())
    found = nexmark.oracle.comparable(query.result(rows))
    right = nexmark.oracle.comparable(nexmark.oracle.expected(name, events))
    assert len(right) > 1
    assert found == right


def test_queries_equal_duckdb_on_spark(tmp_path: Path):
    command = [sys.executable, NEXMARK / "run.py", "q4", "q5", "q8", "--events", "20000", "--check"]
    done = run_program([*command, "--parallelism", "2"], tmp_path)
    assert done.code == 0, done.out + done.err
    lines = [line for line in done.out.splitlines() if line.endswith("equal to DuckDB's")]
    assert [line.split(",")[0] for line in lines] == ["q4", "q5", "q8"]


def test_a_wrong_result_is_seen(nexmark: Any):
    script = runpy.run_path(str(NEXMARK / "run.py"), run_name="nexmark")
    events = nexmark.generator.Nexmark(5_000)
    right = nexmark.oracle.expected("q2", events)
    assert script["_differences"]("q2", right, events) == (0, 0)
    assert script["_differences"]("q2", [*right[1:], (0, 0)], events) == (1, 1)
    assert script["_differences"]("q2", [*right, right[0]], events) == (0, 1)
