"""Records in and out of tasks: what a source read and what a sink wrote count where no edge does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tidegate import BlackholeSink, Environment
from tidegate.cli.progress import Rates, plain_line
from tidegate.metrics.snapshot import JobMetrics


def nothing(n: int) -> None:
    pass


def run(build: Callable[[Environment], Any]) -> JobMetrics:
    env = Environment(runtime="in-process", parallelism=1)
    build(env)
    return env.execute("job")


def in_and_out(metrics: JobMetrics) -> list[tuple[int, int]]:
    return [(v.total("records_in"), v.total("records_out")) for v in metrics.vertices]


def only_even(env: Environment) -> Any:
    return env.from_sequence(1, 100).filter(lambda n: n % 2 == 0)


@pytest.mark.parametrize(
    "write",
    [
        lambda stream: stream.sink_to(BlackholeSink()),
        lambda stream: stream.sink_to(nothing),
    ],
    ids=["a sink", "a function"],
)
def test_a_job_of_one_chained_task_reads_what_its_source_emits_and_writes_what_its_sink_gets(
    write: Callable[[Any], Any],
) -> None:
    metrics = run(lambda env: write(only_even(env)))
    assert in_and_out(metrics) == [(100, 50)]


def test_a_sink_beside_an_edge_counts_with_it() -> None:
    def build(env: Environment) -> None:
        even = only_even(env)
        even.sink_to(BlackholeSink())
        even.rebalance().map(float).sink_to(BlackholeSink())

    assert in_and_out(run(build)) == [(100, 100), (50, 50)]


def test_an_exchange_is_counted_at_both_ends() -> None:
    metrics = run(lambda env: only_even(env).key_by(lambda n: n % 3).reduce(max).sink_to(BlackholeSink()))
    assert in_and_out(metrics) == [(100, 50), (50, 50)]


def test_progress_shows_the_rate_of_a_job_that_is_one_task() -> None:
    metrics = run(lambda env: only_even(env).sink_to(BlackholeSink()))
    (vertex,) = metrics.vertices
    after_a_second = replace(vertex.subtasks[0], busy_ms=1000, idle_ms=0, backpressured_ms=0)
    shown = replace(metrics, vertices=(replace(vertex, subtasks=(after_a_second,)),))
    assert " 100/s" in plain_line(shown, Rates().add(shown))
