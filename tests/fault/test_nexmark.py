"""Nexmark while its workers are killed: what the files hold in the end is what DuckDB finds over the same events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.fault.kit import kill, pids, running, until, until_completed, until_restarted
from tidegate import Environment, FileSink

KILLS = 3


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("name", ["q3", "q5", "q6", "q7", "q8", "q9", "q11", "q13", "q17", "q20"])
def test_query_equals_duckdb_although_workers_are_killed(
    spark: Any,
    tmp_path: Path,
    nexmark: Any,
    name: str,
    backend: str,
):
    events = nexmark.generator.Nexmark(300_000, seed=5)
    env = Environment(
        spark=spark,
        parallelism=2,
        progress="off",
        state_backend=backend,
        checkpoint_interval="100 ms",
        checkpoint_dir=str(tmp_path / "checkpoints"),
        restart_strategy="fixed-delay",
        restart_attempts=100,
        restart_delay="10 ms",
    )
    query = nexmark.queries.QUERIES[name]
    stream = query.build(nexmark.queries.Streams(env, events))
    stream.sink_to(FileSink(tmp_path / "out", "parquet"), uid="out")
    killed = 0
    with running(env, name) as client:
        while killed < KILLS:
            until_completed(client, client.checkpoints().completed + 1)
            victim = pids(client)[killed % 2 :]
            killed += bool(victim) and kill(victim[0])
            until_restarted(client, killed)
        until(client, lambda: client.status().is_terminal, "the end", 300)
        client.result(10)
    rows = [row for file in sorted((tmp_path / "out").glob("part-*")) for row in pl.read_parquet(file).rows()]
    right = nexmark.oracle.comparable(nexmark.oracle.expected(name, events))
    assert nexmark.oracle.comparable(rows) == right
