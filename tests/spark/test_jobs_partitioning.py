"""Partitionings between operators of different parallelism: who gets what, and that nobody gets it twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.kit import SEEDS, bag, in_process
from tidegate import DataStream, Environment, ProcessFunction, RuntimeContext

N = 240
WIDTHS = [(1, 1), (1, 4), (4, 1), (2, 4), (4, 2), (3, 4), (4, 3), (2, 2)]


@pytest.fixture
def make_env(make_process_env: Callable[..., Environment]) -> Callable[..., Environment]:
    return make_process_env


class Where(ProcessFunction):
    """Tells for each record through which subtasks it went: (number, first subtask, second subtask)."""

    def open(self, context: RuntimeContext) -> None:
        self.subtask = context.subtask_index

    def process(self, value: Any, context: Any) -> list[Any]:
        return [(value, self.subtask)] if isinstance(value, int) else [(*value, self.subtask)]


def spread(
    env: Environment, how: str, producers: int, consumers: int, *args: Any
) -> list[tuple[int, int, int]]:
    first = env.from_sequence(0, N - 1, parallelism=producers).process(
        Where(), returns=tuple[int, int], parallelism=producers
    )
    partitioned: DataStream = getattr(first, how)(*args)
    return list(partitioned.process(Where(), parallelism=consumers).execute_and_collect())


def assert_once(found: list[tuple[int, int, int]]) -> None:
    assert sorted(n for n, _, _ in found) == list(range(N))


@pytest.mark.parametrize(("producers", "consumers"), WIDTHS)
@pytest.mark.parametrize("how", ["rebalance", "rescale", "shuffle", "global_"])
def test_every_record_arrives_once(how, producers, consumers):
    for seed in SEEDS:
        assert_once(spread(in_process(seed, batch_rows=11), how, producers, consumers))


@pytest.mark.parametrize("how", ["rebalance", "rescale", "shuffle", "global_", "broadcast"])
@pytest.mark.parametrize(("producers", "consumers"), [(2, 4), (4, 3)])
def test_partitionings_between_processes(make_env, how, producers, consumers):
    check_partitioning(make_env(batch_rows=11), how, producers, consumers)


@pytest.mark.parametrize("how", ["rebalance", "broadcast"])
def test_partitionings_on_spark(make_spark_env, how):
    check_partitioning(make_spark_env(batch_rows=11), how, 4, 3)


def check_partitioning(env: Environment, how: str, producers: int, consumers: int) -> None:
    found = spread(env, how, producers, consumers)
    if how == "broadcast":
        assert bag((n, c) for n, _, c in found) == bag((n, c) for n in range(N) for c in range(consumers))
    else:
        assert_once(found)
    if how == "rebalance":
        assert {c for _, _, c in found} == set(range(consumers))
    if how == "global_":
        assert {c for _, _, c in found} == {0}


@pytest.mark.parametrize(("producers", "consumers"), WIDTHS)
def test_broadcast_gives_every_record_to_every_subtask(producers, consumers):
    for seed in SEEDS:
        found = spread(in_process(seed, batch_rows=11), "broadcast", producers, consumers)
        assert bag((n, c) for n, _, c in found) == bag((n, c) for n in range(N) for c in range(consumers))


@pytest.mark.parametrize(("producers", "consumers"), WIDTHS)
@pytest.mark.parametrize("batch_rows", [1, 11, 1000])
def test_rebalance_is_even(producers, consumers, batch_rows):
    found = spread(in_process(batch_rows=batch_rows), "rebalance", producers, consumers)
    for producer in {p for _, p, _ in found}:
        loads = Counter(c for _, p, c in found if p == producer)
        assert (
            max(loads.values()) - min(loads.values()) <= N // min(batch_rows, N) // producers // 2 + consumers
        )
        assert len(loads) == consumers


@pytest.mark.parametrize(("producers", "consumers"), WIDTHS)
def test_rescale_keeps_to_a_near_group_and_is_even_in_it(producers, consumers):
    found = spread(in_process(batch_rows=3), "rescale", producers, consumers)
    reached: dict[int, Counter[int]] = defaultdict(Counter)
    for _, p, c in found:
        reached[p][c] += 1
    for loads in reached.values():
        assert len(loads) <= -(-consumers // producers)
        assert max(loads.values()) - min(loads.values()) <= len(loads)
    assert {c for loads in reached.values() for c in loads} == set(range(consumers))


def test_forward_keeps_the_subtask():
    assert all(p == c for _, p, c in spread(in_process(chaining=False), "forward", 4, 4))
    assert all(p == c for _, p, c in spread(in_process(), "forward", 4, 4))


def test_global_sends_everything_to_the_first_subtask():
    assert {c for _, _, c in spread(in_process(), "global_", 2, 4)} == {0}


def test_shuffle_reaches_every_subtask_and_differs_by_producer():
    found = spread(in_process(batch_rows=1000), "shuffle", 2, 4)
    loads = Counter(c for _, _, c in found)
    assert set(loads) == {0, 1, 2, 3}
    assert max(loads.values()) < N / 2


def test_a_custom_partitioning_goes_where_the_function_says(make_env):
    def last_digit(number: int, subtasks: int) -> int:
        return number % 10 % subtasks

    for env in (in_process(0), in_process(1), make_env()):
        by_column = spread(env, "partition_custom", 2, 4, last_digit, "f0")
        assert_once(by_column)
        assert all(c == n % 10 % 4 for n, _, c in by_column)
    for seed in SEEDS:
        by_function = spread(
            in_process(seed), "partition_custom", 2, 3, last_digit, lambda pair: pair[0] // 10
        )
        assert all(c == n // 10 % 10 % 3 for n, _, c in by_function)


def test_hash_gives_one_subtask_per_key_and_uses_all_of_them(make_spark_env):
    for env in (in_process(0, parallelism=4), make_spark_env(parallelism=4)):
        numbers = env.from_sequence(0, N - 1)
        found = list(
            numbers.map(lambda n: (n, n % 40), returns=tuple[int, int])
            .key_by("f1")
            .process(Where(), returns=tuple[int, int, int])
            .execute_and_collect()
        )
        places: dict[int, set[int]] = defaultdict(set)
        for _, key, subtask in found:
            places[key].add(subtask)
        assert all(len(p) == 1 for p in places.values())
        assert {s for p in places.values() for s in p} == {0, 1, 2, 3}
        assert len(found) == N


def test_max_parallelism_bounds_the_subtasks_that_keys_reach():
    env = in_process(parallelism=2, max_parallelism=2)
    found = list(env.from_sequence(0, 99).key_by("value").process(Where()).execute_and_collect())
    assert {s for _, s in found} == {0, 1}
    env = in_process(parallelism=3)
    keyed = env.from_sequence(0, 99).key_by("value").process(Where(), max_parallelism=3)
    assert {s for _, s in keyed.execute_and_collect()} == {0, 1, 2}


def test_up_and_down_and_up_again_loses_nothing(make_env):
    for env in (in_process(0), in_process(1), make_env()):
        stream = env.from_sequence(1, N, parallelism=1)
        for i, width in enumerate((4, 1, 3, 2, 4)):
            stream = stream.map(lambda n, i=i: n + i, returns=int, parallelism=width)
        assert sorted(stream.execute_and_collect()) == [n + 10 for n in range(1, N + 1)]


def test_order_holds_within_a_producer_and_a_consumer():
    for seed in SEEDS:
        for how in ("rebalance", "shuffle", "rescale", "broadcast"):
            seen: dict[tuple[int, int], list[int]] = defaultdict(list)
            for n, p, c in spread(in_process(seed, parallelism=3, batch_rows=5), how, 2, 3):
                seen[(p, c)].append(n)
            assert all(numbers == sorted(numbers) for numbers in seen.values())
