from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidegate import DataGeneratorSource, Environment
from tidegate.core.errors import JobFailedError
from tidegate.testing.scripted_source import Crash, ScriptedSource


def numbers(indices: Any, rng: Any) -> dict[str, Any]:
    return {"n": indices}


def failing_at_70(row: Any) -> int:
    if row.n == 70:
        raise ValueError("seventy is too much")
    return int(row.n)


def program(**options: Any) -> tuple[Environment, Any]:
    env = Environment(runtime="in-process", checkpoint_interval="10 ms", parallelism=2, **options)
    source = env.from_source(DataGeneratorSource(numbers, count=100, rate=1000), uid="numbers")
    return env, source.map(failing_at_70, returns=int)


def test_an_error_that_comes_again_and_again_is_raised_although_restarts_have_no_end() -> None:
    env, mapped = program()
    mapped.print()
    with pytest.raises(JobFailedError) as caught:
        env.execute("for ever")
    text = str(caught.value)
    assert "seventy is too much" in text
    assert "it will not go away by restarting" in text
    assert "the in-process runtime gives up" in text


def test_so_is_one_while_the_results_are_collected() -> None:
    with pytest.raises(JobFailedError, match="the in-process runtime gives up"):
        list(program()[1].execute_and_collect())


def test_a_restart_strategy_with_an_end_is_asked_until_its_end() -> None:
    env, mapped = program(restart_strategy="fixed-delay", restart_attempts=20)
    mapped.print()
    client = env.execute_async("twenty")
    with pytest.raises(JobFailedError, match="seventy is too much"):
        client.result()
    assert client.overview().restarts == 20


def test_many_different_failures_are_survived(tmp_path: Path) -> None:
    script: list[Any] = []
    for n in range(15):
        script += [n, Crash(f"after {n}", how="raise")]
    source = ScriptedSource([script], tmp_path)
    env = Environment(runtime="in-process", checkpoint_interval="10 ms")
    assert set(env.from_source(source, uid="numbers").execute_and_collect()) == set(range(15))


def test_progress_counts_what_was_read_before_the_checkpoint(tmp_path: Path) -> None:
    def failing_once(row: Any) -> int:
        if row.n == 70 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ValueError("seventy is too much")
        return int(row.n)

    env = Environment(runtime="in-process", checkpoint_interval="10 ms", parallelism=2)
    source = env.from_source(DataGeneratorSource(numbers, count=100, rate=1000), uid="numbers")
    source.map(failing_once, returns=int).sink_to(lambda n: None)
    client = env.execute_async("once more")
    metrics = client.result()
    assert client.overview().restored_checkpoint is not None
    (vertex,) = metrics.vertices
    assert vertex.operators()[0].records_out < 100, "counted from the checkpoint on"
    assert metrics.progress == 1.0


class Total(NamedTuple):
    key: int
    parts: list[int]


def total_of(row: Any) -> Total:
    return Total(int(row.n) % 3, [int(row.n)])


def wrong_inside(so_far: Total, new: Total) -> Total:
    return Total(so_far.key, ["not a number"])  # type: ignore[list-item]


def test_checkpoints_that_always_fail_by_what_the_program_stores_are_not_tried_for_ever() -> None:
    env = Environment(
        runtime="in-process",
        checkpoint_interval="10 ms",
        checkpoint_tolerable_failures=0,
        restart_max_backoff="1 s",
    )
    source = env.from_source(DataGeneratorSource(numbers, count=20, rate=1000), uid="numbers")
    totals = source.map(total_of, returns=Total).key_by(lambda total: total.key, returns=int)
    totals.reduce(wrong_inside).sink_to(lambda total: None)
    with pytest.raises(JobFailedError) as caught:
        env.execute("for ever")
    text = str(caught.value)
    assert "state 'reduce-result' cannot store" in text
    assert "the same error as in attempt" in text
    assert "the in-process runtime gives up" in text


def test_a_job_keeps_its_program_until_its_results_are_taken() -> None:
    """The staged files of a DataFrame are deleted when nobody has its source any more."""
    source = DataGeneratorSource(numbers, count=10)
    alive = weakref.ref(source)
    results = Environment(runtime="in-process").from_source(source).execute_and_collect()
    del source
    gc.collect()
    assert alive() is not None
    assert len(list(results)) == 10
    del results
    gc.collect()
    assert alive() is None
