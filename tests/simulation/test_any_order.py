"""The same program under hundreds of orders of events: the result never depends on the order."""

from __future__ import annotations

import pytest

from tests.simulation.programs import TOPOLOGIES, run
from tidegate import Environment

TINY = {"buffer_size": 1, "buffers_per_channel": 1, "floating_buffers": 0, "batch_rows": 3}
OPTIONS = (
    {},
    TINY,
    {**TINY, "buffer_timeout": 0},
    {**TINY, "floating_buffers": 1, "batch_rows": 7},
    {**TINY, "buffer_size": 64, "batch_rows": 1, "buffer_timeout": 0},
    {**TINY, "floating_buffers": 8, "batch_rows": 40},
    {**TINY, "chaining": False},
)
SEEDS = range(21)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_order_of_events_gives_the_result_of_plain_python(name):
    topology = TOPOLOGIES[name]
    for seed in SEEDS:
        env = Environment(runtime="in-process", parallelism=2, **OPTIONS[seed % len(OPTIONS)])
        rows, _ = run(topology.build(env), seed)
        try:
            topology.verify(rows)
        except AssertionError as e:
            raise AssertionError(f"{name} with seed {seed} and {OPTIONS[seed % len(OPTIONS)]}: {e}") from e


@pytest.mark.parametrize("name", ["hash", "union", "connect", "broadcast"])
def test_one_seed_is_one_order_and_another_seed_another(name):
    def trace(seed: int) -> list[str]:
        env = Environment(runtime="in-process", parallelism=2, **TINY)
        rows, made = run(TOPOLOGIES[name].build(env), seed)
        TOPOLOGIES[name].verify(rows)
        return made

    traces = {seed: tuple(trace(seed)) for seed in range(12)}
    assert len(set(traces.values())) == 12
    for seed in (0, 5, 11):
        assert tuple(trace(seed)) == traces[seed]


def test_two_hundred_seeds_give_two_hundred_orders_and_one_result():
    traces = set()
    for seed in range(200):
        env = Environment(runtime="in-process", parallelism=2, **TINY)
        rows, trace = run(TOPOLOGIES["hash"].build(env), seed)
        TOPOLOGIES["hash"].verify(rows)
        traces.add(tuple(trace))
    assert len(traces) == 200


def test_parallelism_changes_nothing_but_the_order():
    for parallelism in (1, 2, 3, 5):
        env = Environment(runtime="in-process", parallelism=parallelism, **TINY)
        rows, _ = run(TOPOLOGIES["union"].build(env), seed=parallelism)
        TOPOLOGIES["union"].verify(rows)


def test_a_key_function_that_gives_whole_numbers_for_floats_has_one_key_for_both():
    """1 and 1.0 are equal, so they must meet in one subtask, although an int hashes differently."""

    def as_declared(pair: tuple[int, bool]) -> float:
        return pair[0] if pair[1] else float(pair[0])

    pairs = [(i, exact) for i in range(6) for exact in (True, False)]
    for parallelism in (1, 3):
        env = Environment(runtime="in-process", parallelism=parallelism)
        counts = env.from_collection(pairs).key_by(as_declared).count().execute_and_collect()
        assert sorted(counts) == [(float(i), n) for i in range(6) for n in (1, 2)]
