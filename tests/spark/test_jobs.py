"""Transformations and record types against plain Python: in one thread with several seeds, in processes, on Spark."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests.spark.kit import RUNTIMES, SEEDS, Noting, also_on_spark, bag, by_key, collected, in_process
from tidegate import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    Environment,
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)


@pytest.fixture(params=RUNTIMES)
def env(request: pytest.FixtureRequest, env_of: Callable[..., Environment]) -> Environment:
    """An environment of parallelism 2; the batches are small, so that a job has many."""
    return env_of(request.param, batch_rows=16)


# ---- functions: plain, lambdas, partials, methods, classes ----


def double(n: int) -> int:
    return 2 * n


def divisors(n: int) -> Iterator[int]:
    yield from (d for d in range(1, n + 1) if n % d == 0)


def is_odd(n: int) -> bool:
    return n % 2 == 1


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, n: int) -> int:
        return self.factor * n

    def method(self, n: int) -> int:
        return self.factor * n


class Adding(MapFunction):
    """Needs its `open`: the summand is no part of what travels."""

    def open(self, context: RuntimeContext) -> None:
        assert context.parallelism == 2
        assert 0 <= context.subtask_index < 2
        self.summand = 100
        self.counter = context.counter("added")

    def map(self, value: int) -> int:
        self.counter.inc()
        return value + self.summand


class Divisors(FlatMapFunction):
    def flat_map(self, value: int) -> Iterator[int]:
        return divisors(value)


class Odd(FilterFunction):
    def filter(self, value: int) -> bool:
        return is_odd(value)


class Sum(ReduceFunction):
    def reduce(self, left: int, right: int) -> int:
        return left + right


def run_functions(env: Environment) -> DataStream:
    """map, flat_map and filter in all the forms that a function can have, one behind the other."""
    return (
        env.from_sequence(1, 40)
        .map(double)
        .map(lambda n: n + 1, returns=int)
        .map(functools.partial(pow, exp=2), returns=int)
        .map(Scale(3))
        .map(Scale(2).method)
        .map(Adding())
        .filter(lambda n: n % 5 != 0)
        .filter(Odd().filter)
        .map(lambda n: n % 60 + 1)  # no type: objects
        .flat_map(divisors)
        .flat_map(Divisors())
        .filter(Odd())
        .map(str)
    )


def expected_functions() -> list[str]:
    numbers = [6 * (2 * n + 1) ** 2 + 100 for n in range(1, 41)]
    kept = [n % 60 + 1 for n in numbers if n % 5 != 0 and n % 2 == 1]
    twice = [e for n in kept for d in divisors(n) for e in divisors(d)]
    return [str(n) for n in twice if n % 2 == 1]


@also_on_spark
def test_map_flat_map_and_filter_take_every_form_of_a_function(env):
    assert bag(collected(run_functions(env))) == bag(expected_functions())


def test_functions_chained_give_the_same_as_functions_behind_exchanges():
    for seed in SEEDS:
        unchained = in_process(seed, chaining=False, batch_rows=7)
        assert bag(collected(run_functions(unchained))) == bag(expected_functions())


def test_one_subtask_keeps_the_order():
    env = in_process(parallelism=1, batch_rows=7)
    assert collected(env.from_sequence(1, 50).map(double).flat_map(divisors)) == [
        d for n in range(1, 51) for d in divisors(2 * n)
    ]


class Route(ProcessFunction):
    """Odd numbers go on, twice; even ones aside; zero to a third place. Nothing (None) for negative ones."""

    EVEN = OutputTag("even", int)
    ZERO = OutputTag("zero", str)

    def process(self, value: int, context: Any) -> Iterator[int] | None:
        if value < 0:
            return None
        if value == 0:
            context.output(self.ZERO, "zero")
        elif value % 2 == 0:
            context.output(self.EVEN, value)
            return iter(())
        return iter([value, value])


@also_on_spark
def test_process_emits_to_the_main_and_to_side_outputs(env, tmp_path):
    routed = env.from_collection(list(range(-5, 30)), type=int).process(
        Route(), returns=int, side_outputs=(Route.EVEN, Route.ZERO)
    )
    even, zero, main = (Noting(tmp_path / name) for name in ("even", "zero", "main"))
    routed.get_side_output(Route.EVEN).map(double).sink_to(even)
    routed.get_side_output(Route.ZERO).rebalance().sink_to(zero, parallelism=1)
    routed.sink_to(main)
    env.execute()
    assert bag(main.read()) == bag([*range(1, 30, 2), *range(1, 30, 2), 0, 0])
    assert bag(even.read()) == bag(2 * n for n in range(2, 30, 2))
    assert zero.read() == ["zero"]


def test_a_side_output_that_nobody_reads_is_dropped(env):
    routed = env.from_sequence(1, 20).process(Route(), returns=int, side_outputs=(Route.EVEN,))
    assert bag(collected(routed)) == bag([*range(1, 21, 2)] * 2)


def test_process_knows_the_key(env):
    def tell(value: int, context: Any) -> Iterator[tuple[int, int]]:
        yield value, context.current_key

    keyed = env.from_sequence(1, 60).key_by(lambda n: n % 7, returns=int)
    assert bag(collected(keyed.process(tell))) == bag((n, n % 7) for n in range(1, 61))


@also_on_spark
def test_functions_are_opened_before_the_first_record_and_closed_after_the_last(env, tmp_path):
    class Life(MapFunction):
        def __init__(self, note: Noting) -> None:
            self.note = note

        def open(self, context: RuntimeContext) -> None:
            self.me = context.subtask_index
            self.note((self.me, "open"))

        def map(self, value: int) -> int:
            self.note((self.me, "map"))
            return value

        def close(self) -> None:
            self.note((self.me, "close"))

    note = Noting(tmp_path)
    collected(env.from_sequence(1, 40).rebalance().map(Life(note)))
    for events in by_key(note.read()).values():
        assert events[0] == "open"
        assert events[-1] == "close"
        assert set(events[1:-1]) <= {"map"}
    assert sorted(by_key(note.read())) == [0, 1]
    assert bag(event for _, event in note.read()) == {"open": 2, "map": 40, "close": 2}


# ---- columns ----


def click_rows(n: int) -> list[dict[str, Any]]:
    return [{"app": f"app-{i % 5}", "n": i, "price": i / 4 if i % 3 else None} for i in range(n)]


@also_on_spark
def test_expressions_give_what_python_gives(env):
    stream = (
        env.from_collection(click_rows(50))
        .filter(pl.col("n") % 2 == 0)
        .with_columns(
            (pl.col("n") * 10).alias("ten"), pl.col("price").fill_null(0.0), pl.lit("x").alias("mark")
        )
        .select("app", pl.col("ten") + 1, (pl.col("price") * 2).alias("double"), "mark")
        .filter(pl.col("double") < 20)
    )
    expected = [
        (r["app"], r["n"] * 10 + 1, 2 * (r["price"] or 0.0), "x")
        for r in click_rows(50)
        if r["n"] % 2 == 0 and 2 * (r["price"] or 0.0) < 20
    ]
    assert bag(map(tuple, collected(stream))) == bag(expected)


def test_map_batches_may_keep_drop_and_multiply_rows(env):
    def some(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 3 in batch.column("value").to_pylist():
            return batch.slice(0, 0)  # no rows of this batch go on
        return batch.take(pa.array([i for i in range(batch.num_rows) for _ in range(2)]))

    env = _with_batches_of(env, 4)
    found = bag(collected(env.from_sequence(0, 31).map_batches(some).map(double)))
    # Readers cut 0..31 into spans of 16 and those into batches of 4; 0..3 is one of them.
    assert found == bag(2 * n for n in range(4, 32) for _ in range(2))


def _with_batches_of(env: Environment, rows: int) -> Environment:
    env.options = env.options.with_values({"execution.batch_rows": rows}, "the test")
    return env


def test_map_batches_that_return_nothing_but_empty_batches_end_the_job_with_no_records(env):
    assert (
        collected(env.from_sequence(1, 100).map_batches(lambda b: b.slice(0, 0)).key_by("value").count())
        == []
    )


def test_map_batches_may_change_the_type(env):
    def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
        apps = batch.column("app")
        return pa.record_batch({"length": pa.array([len(a) for a in apps.to_pylist()], pa.int32())})

    out = env.from_collection(click_rows(30)).map_batches(
        lengths, returns=pa.schema([("length", pa.int64())])
    )
    assert bag(r.length for r in collected(out)) == bag([5] * 30)


# ---- several streams ----


def test_union_of_three_streams_and_of_a_stream_with_itself(env):
    a, b, c = env.from_sequence(1, 10), env.from_sequence(5, 15), env.from_collection([1, 99])
    both = a.union(b, c)
    assert bag(collected(both.union(both).map(double))) == bag(
        2 * n for n in (*range(1, 11), *range(5, 16), 1, 99) for _ in range(2)
    )


class Tagging(CoMapFunction):
    def map1(self, value: int) -> str:
        return f"number {value}"

    def map2(self, value: str) -> str:
        return f"word {value}"


class Repeating(CoFlatMapFunction):
    def flat_map1(self, value: int) -> Iterator[int]:
        yield from [value] * 2

    def flat_map2(self, value: str) -> Iterator[int]:
        yield len(value)


class Enrich(CoProcessFunction):
    """Joins amounts with names that came before or come after, by key; what waits is kept in the function."""

    def open(self, context: RuntimeContext) -> None:
        self.names: dict[Any, str] = {}
        self.waiting: dict[Any, list[int]] = {}

    def process1(self, value: Any, context: Any) -> Iterator[tuple[str, int]]:
        key = context.current_key
        assert key == value.id
        if key in self.names:
            yield self.names[key], value.amount
        else:
            self.waiting.setdefault(key, []).append(value.amount)

    def process2(self, value: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.names[context.current_key] = value.name
        for amount in self.waiting.pop(context.current_key, []):
            yield value.name, amount


def test_connected_streams_are_mapped_by_their_own_methods(env):
    numbers, words = env.from_sequence(1, 20), env.from_collection(["tide", "gate", "a"])
    assert bag(collected(numbers.connect(words).map(Tagging()))) == bag(
        [*(f"number {n}" for n in range(1, 21)), "word tide", "word gate", "word a"]
    )
    assert bag(collected(numbers.connect(words).flat_map(Repeating()))) == bag(
        [*range(1, 21), *range(1, 21), 4, 4, 1]
    )


@also_on_spark
def test_connected_keyed_streams_meet_by_key_whatever_comes_first(env):
    payments = [{"id": i % 9, "amount": i} for i in range(200)]
    people = [{"id": i, "name": f"person {i}"} for i in range(9)]
    joined = (
        env.from_collection(payments)
        .connect(env.from_collection(people))
        .key_by("id", "id")
        .process(Enrich())
    )
    assert bag(collected(joined)) == bag((f"person {p['id']}", p["amount"]) for p in payments)


# ---- shapes of programs ----


def test_a_chain_of_fifty_operators(env):
    stream = env.from_sequence(1, 100)
    for i in range(50):
        stream = stream.map(double if i % 2 else lambda n: n + 1, returns=int)
    expected = list(range(1, 101))
    for i in range(50):
        expected = [2 * n if i % 2 else n + 1 for n in expected]
    assert bag(collected(stream)) == bag(expected)


@also_on_spark
def test_twenty_sinks_on_one_stream_all_get_everything(env, tmp_path):
    stream = env.from_sequence(1, 50).map(double)
    notes = [Noting(tmp_path / str(i)) for i in range(20)]
    for i, note in enumerate(notes):
        (stream if i % 2 else stream.rebalance()).sink_to(note)
    env.execute()
    assert all(bag(note.read()) == bag(range(2, 101, 2)) for note in notes)


def test_two_sinks_on_one_stream_both_get_everything_and_the_docstring_says_so(env, tmp_path):
    stream = env.from_sequence(1, 50)
    one, other = Noting(tmp_path / "one"), Noting(tmp_path / "other")
    stream.sink_to(one)
    stream.sink_to(other)
    env.execute()
    assert bag(one.read()) == bag(other.read()) == bag(range(1, 51))
    assert "every sink gets every record" in " ".join(str(DataStream.sink_to.__doc__).split())


def test_a_source_of_zero_records_ends_everything_cleanly(env, tmp_path):
    note = Noting(tmp_path)
    nothing = env.from_collection([], type=str)
    counted = nothing.key_by("value").count()
    assert collected(counted) == []
    nothing.union(env.from_collection([], type=str)).map(str.upper).rebalance().sink_to(note)
    env.execute()
    assert note.read() == []


def test_a_diamond_gives_both_branches(env):
    numbers = env.from_sequence(1, 30)
    small, large = numbers.filter(pl.col("value") < 10), numbers.filter(pl.col("value") >= 10).map(double)
    assert bag(collected(small.union(large))) == bag([*range(1, 10), *range(20, 61, 2)])


def test_settings_of_operators_are_in_the_plan_and_change_no_result(env):
    stream = (
        env.from_sequence(1, 60, name="numbers", uid="numbers")
        .map(double, name="double them", parallelism=1, max_parallelism=16)
        .start_new_chain()
        .filter(is_odd, parallelism=2)
        .disable_chaining()
        .uid("odd ones")
        .union(env.from_sequence(1, 5, parallelism=1))
        .map(double, uid="again")
    )
    assert bag(collected(stream)) == bag([2, 4, 6, 8, 10])
    stream.sink_to(lambda record: None)
    plan = env.explain()
    for text in ("numbers", "double them", "odd ones"):
        assert text in plan
