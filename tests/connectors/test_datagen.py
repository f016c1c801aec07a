"""The data generator: the same records whatever cuts the stream, and an even rate."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.connectors.reading import SourceRun
from tidegate.api.source import FINISHED, Boundedness, Idle
from tidegate.connectors.datagen import (
    DataGeneratorSource,
    choice,
    created_at_ns,
    normal,
    now_ms,
    sequence,
    uniform_float,
    uniform_int,
    zipf_choice,
)
from tidegate.connectors.datagen.blocks import BLOCK, GeneratorSplit
from tidegate.core.clock import ManualClock
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.records.batch import Batch

APPS = [f"app-{i}" for i in range(50)]
MS = 1_000_000


def fields():
    return {"i": sequence(), "app": zipf_choice(APPS), "user": uniform_int(0, 10**7), "x": normal()}


def generate(indices, rng):
    return {"i": indices, "u": rng.random(len(indices)), "odd": pa.array(indices % 2 == 1)}


TRUTH = {
    "fields": SourceRun(DataGeneratorSource(fields=fields(), count=40_000, seed=5)).read_to_end()[0],
    "function": SourceRun(DataGeneratorSource(generate, count=40_000, seed=5)).read_to_end()[0],
}


def source_of(form: str, count: int | None, rate: float | None, seed: int = 5) -> DataGeneratorSource:
    if form == "fields":
        return DataGeneratorSource(fields=fields(), count=count, rate=rate, seed=seed)
    return DataGeneratorSource(generate, count=count, rate=rate, seed=seed)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_records_depend_on_seed_and_index_alone_over_parallelism_batches_rate_and_restores(data):
    form = data.draw(st.sampled_from(["fields", "function"]))
    count = data.draw(st.integers(0, 40_000) | st.none())
    rate = data.draw(st.sampled_from([None, 1000, 333_333.3, 1e9]))
    source = source_of(form, count, rate)
    seen, restored = [], None
    clock = ManualClock(1000)
    for last in [False] * data.draw(st.integers(0, 3)) + [True]:
        parallelism = data.draw(st.integers(1, 5))
        run = SourceRun(
            source,
            parallelism,
            batch_rows=data.draw(st.sampled_from([1, 700, BLOCK, 65_536])) if not last else 65_536,
            clock=clock,
            restored=restored,
        )
        if last and count is not None:
            seen += chain.from_iterable(run.read_to_end())
            assert run.checkpoint()[1] == []
        else:
            for subtask in data.draw(st.lists(st.integers(0, parallelism - 1), max_size=6)):
                answer = run.poll(subtask)
                seen += answer.rows if isinstance(answer, Batch) else []
                clock.advance_ns(data.draw(st.integers(0, 5 * MS)))
            restored = run.checkpoint()
    truth = TRUTH[form]
    assert len({row.i for row in seen}) == len(seen)
    assert all(row == truth[row.i] for row in seen if row.i < len(truth))
    if count is not None:
        assert sorted(row.i for row in seen) == list(range(count))


def test_records_of_a_seed_stay_the_same_from_version_to_version():
    source = DataGeneratorSource(fields={"app": zipf_choice(APPS), "user": uniform_int(0, 10**7)}, seed=42)
    assert [tuple(row.values()) for row in source.preview(4).to_pylist()] == [
        ("app-15", 3645063),
        ("app-24", 5528995),
        ("app-27", 6070231),
        ("app-1", 1847065),
    ]


def test_another_seed_gives_other_records():
    other = SourceRun(source_of("fields", 1000, None, seed=6)).read_to_end()[0]
    assert [row.user for row in other] != [row.user for row in TRUTH["fields"][:1000]]


def test_unbounded_readers_share_the_blocks_in_turn():
    run = SourceRun(source_of("fields", None, None), 2, batch_rows=2 * BLOCK)
    assert run.source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    first, second = run.next_batch(0), run.next_batch(1)
    assert [row.i // BLOCK for row in first.rows[::BLOCK]] == [0, 2]
    assert [row.i // BLOCK for row in second.rows[::BLOCK]] == [1, 3]


@pytest.mark.parametrize("rate", [None, 100])
def test_there_are_exactly_as_many_shares_as_readers_where_it_never_ends(rate):
    run = SourceRun(source_of("fields", None, rate), 3)
    for subtask in range(3):
        run.poll(subtask)
    assert [len(splits) for splits in run.assigned] == [1, 1, 1]


@given(st.integers(0, 100_000), st.integers(1, 7), st.sampled_from([1, BLOCK]), st.data())
def test_shares_cover_every_index_once(count, shares, unit, data):
    splits = [
        GeneratorSplit(id=str(k), start=0, end=count, share=k, shares=shares, unit=unit)
        for k in range(shares)
    ]
    assert sum(split.size() for split in splits) == count
    split = data.draw(st.sampled_from(splits))
    a = data.draw(st.integers(0, split.size()))
    b = data.draw(st.integers(a, min(split.size(), a + 20_000)))
    sliced = chain.from_iterable(
        range(block * BLOCK, (block + 1) * BLOCK)[rows] for block, rows in split.pieces(a, b)
    )
    expected = [split.index(position) for position in range(a, b)]
    assert list(sliced) == expected
    assert all(0 <= index < count for index in expected)


def test_strings_come_as_dictionaries_and_rows_as_strings():
    batch = SourceRun(DataGeneratorSource(fields={"app": zipf_choice(APPS)}, count=10)).next_batch()
    assert pa.types.is_dictionary(batch.columns.column("app").type)
    assert batch.plain_columns.schema == pa.schema([pa.field("app", pa.string(), nullable=False)])
    assert set(batch.columns.column("app").to_pylist()) == {row.app for row in batch.rows} <= set(APPS)


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 5000])
def test_zipf_choice_draws_each_value_as_often_as_its_weight_says(n):
    column = zipf_choice([str(k) for k in range(n)], s=1.1)
    drawn = np.concatenate(
        [column.draw(np.arange(BLOCK), np.random.default_rng(block)) for block in range(60)]
    )
    weights = np.arange(1, n + 1) ** -1.1
    expected = weights / weights.sum() * drawn.size
    found = np.bincount(drawn, minlength=n)
    assert found.size == n
    # Six standard deviations of a count; the seeds are fixed, so this passes always or never.
    assert (np.abs(found - expected) <= 6 * np.sqrt(expected) + 6).all()


def test_choice_never_draws_a_value_of_weight_zero():
    column = choice([10, 20, 30], weights=[1, 0, 3])
    drawn = column.to_arrow(column.draw(np.arange(100_000), np.random.default_rng(1)))
    counts = {v["values"]: v["counts"] for v in drawn.value_counts().to_pylist()}
    assert set(counts) == {10, 30}
    assert counts[30] / counts[10] == pytest.approx(3, rel=0.05)


def test_numbers_stay_in_their_range():
    source = DataGeneratorSource(fields={"i": uniform_int(-3, 3), "f": uniform_float(1, 2)}, count=5000)
    rows = SourceRun(source).read_to_end()[0]
    assert {row.i for row in rows} == {-3, -2, -1, 0, 1, 2}
    assert all(1 <= row.f < 2 for row in rows)


def test_only_the_wanted_columns_are_drawn_and_their_values_are_the_same():
    narrow = source_of("fields", 1000, None).with_columns(["user", "app"])
    rows = SourceRun(narrow).read_to_end()[0]
    assert [tuple(row) for row in rows] == [(row.user, row.app) for row in TRUTH["fields"][:1000]]
    assert source_of("function", 1000, None).with_columns(["u"]) is None


def test_rate_limited_reader_gives_what_is_due_and_says_when_to_come_back():
    clock = ManualClock(1000)
    start = clock.monotonic_ns()
    run = SourceRun(source_of("fields", None, 10_000), clock=clock)
    assert [row.i for row in run.next_batch().rows] == [0]
    assert run.poll() == Idle(start + MS // 2)
    clock.advance_ns(MS // 2 - 1)
    assert run.poll() == Idle(start + MS // 2)
    clock.advance_ns(1)
    assert [row.i for row in run.next_batch().rows] == [1, 2, 3, 4, 5]
    clock.advance_ns(10 * MS)  # a stall
    assert len(run.next_batch()) == 100
    assert run.poll() == Idle(clock.monotonic_ns() + MS // 2)


def test_slow_rate_wakes_at_the_very_time_of_the_next_record():
    clock = ManualClock()
    run = SourceRun(source_of("fields", 3, 3), clock=clock)
    run.next_batch()
    times = []
    while (answer := run.poll()) is not FINISHED:
        if isinstance(answer, Idle):
            assert answer.wake_at_ns > clock.monotonic_ns()
            clock.advance_ns(answer.wake_at_ns - clock.monotonic_ns())
        else:
            times.append((clock.monotonic_ns(), len(answer)))
    assert times == [(333_333_334, 1), (666_666_667, 1)]


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_rate_is_the_rate_of_all_readers_together_and_their_records_interleave(parallelism):
    clock = ManualClock()
    run = SourceRun(source_of("fields", None, 1000), parallelism, clock=clock)
    for subtask in range(parallelism):
        run.poll(subtask)
    arrivals = []
    for _ in range(1000):
        for subtask in range(parallelism):
            answer = run.poll(subtask)
            arrivals += [row.i for row in answer.rows] if isinstance(answer, Batch) else []
        clock.advance_ns(MS)
    assert arrivals == list(range(1000))


def test_stall_longer_than_a_batch_is_caught_up_in_full_batches_at_once():
    clock = ManualClock()
    run = SourceRun(source_of("fields", None, 1000), clock=clock, batch_rows=100)
    run.next_batch()
    clock.advance_ns(250 * MS)
    assert [len(run.poll()) for _ in range(3)] == [100, 100, 50]
    assert isinstance(run.poll(), Idle)


def test_restored_reader_keeps_the_rate_and_does_not_make_up_for_the_time_in_between():
    clock = ManualClock()
    run = SourceRun(source_of("fields", None, 1000), clock=clock)
    run.next_batch()
    clock.advance_ns(100 * MS)
    assert len(run.next_batch()) == 100
    clock.advance_ns(3_600_000 * MS)
    later = SourceRun(run.source, clock=clock, restored=run.checkpoint())
    assert [row.i for row in later.next_batch().rows] == [101]


def test_tick_sets_the_least_time_between_batches():
    clock = ManualClock()
    source = DataGeneratorSource(fields={"i": sequence()}, rate=10_000, tick="20 ms")
    run = SourceRun(source, clock=clock)
    run.next_batch()
    assert run.poll() == Idle(20 * MS)
    clock.advance_ns(20 * MS)
    assert len(run.next_batch()) == 200


def test_stamps_tell_when_a_record_left_and_not_when_its_block_was_drawn():
    clock = ManualClock(5000)
    source = DataGeneratorSource(fields={"ts": now_ms(), "created": created_at_ns()}, rate=1000)
    run = SourceRun(source, clock=clock)
    assert run.next_batch().rows[0] == (5000, 5000 * MS)
    clock.advance_ns(7 * MS)
    assert set(run.next_batch().rows) == {(5007, 5007 * MS)}


def test_function_and_fields_make_one_record_together():
    source = DataGeneratorSource(generate, fields={"ts": sequence(100, 10)}, count=3)
    assert source.record_type.names == ["i", "u", "odd", "ts"]
    assert [(row.i, row.ts) for row in SourceRun(source).read_to_end()[0]] == [(0, 100), (1, 110), (2, 120)]


def test_function_may_return_a_record_batch_with_dictionaries_and_lists_become_columns():
    def batches(indices, rng):
        names = pa.DictionaryArray.from_arrays(pa.array(indices % 2), pa.array(["even", "odd"]))
        return pa.record_batch({"n": pa.array(indices), "name": names})

    batch = SourceRun(DataGeneratorSource(batches, count=20_000)).next_batch()
    assert batch.type.schema.field("name").type == pa.string()
    assert [row.name for row in batch.rows[:3]] == ["even", "odd", "even"]
    assert len(batch) == 20_000

    lists = DataGeneratorSource(lambda indices, rng: {"s": [str(i) for i in indices]}, count=2)
    assert [row.s for row in SourceRun(lists).read_to_end()[0]] == ["0", "1"]


def test_schema_sets_type_and_order_of_a_functions_columns():
    schema = pa.schema([pa.field("u", pa.float32()), pa.field("i", pa.int32())])
    batch = SourceRun(DataGeneratorSource(generate, count=5, schema=schema)).next_batch()
    assert batch.columns.schema == schema
    scalars = DataGeneratorSource(lambda indices, rng: {"value": indices}, count=3, schema=int)
    assert SourceRun(scalars).read_to_end() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("function", "schema", "words"),
    [
        (lambda indices, rng: {"a": indices[:5]}, None, "column 'a' has 5 values for 8192 indices"),
        (lambda indices, rng: indices, None, "must return a dict of arrays or a record batch, not a ndarray"),
        (lambda indices, rng: {"a": indices}, pa.schema({"b": pa.int64()}), "returned a, but not 'b'"),
        (
            lambda indices, rng: {"b": np.full(len(indices), "x")},
            pa.schema({"b": pa.int64()}),
            "column 'b' cannot be int64",
        ),
    ],
)
def test_wrong_answer_of_a_function_is_refused_with_the_column(function, schema, words):
    with pytest.raises(SchemaError, match=words):
        SourceRun(DataGeneratorSource(function, count=10, schema=schema)).read_to_end()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DataGeneratorSource(), "generator function or fields"),
        (lambda: DataGeneratorSource(fields={"a": 3}), "field 'a' must be a column"),
        (
            lambda: DataGeneratorSource({"a": uniform_int(0, 3)}),
            "not a dict. Columns by name are given as fields=",
        ),
        (lambda: DataGeneratorSource(generate, count=-1), "count"),
        (lambda: DataGeneratorSource(generate, rate=0), "rate"),
        (lambda: DataGeneratorSource(generate, rate=1e-9), "11 days"),
        (lambda: DataGeneratorSource(generate, rate=1, tick="soon"), "tick 'soon'"),
        (lambda: DataGeneratorSource(generate, rate=1, tick="1 parsec"), "parsec"),
        (lambda: uniform_int(3, 3), "uniform_int"),
        (lambda: choice([]), "choice"),
        (lambda: choice([1, "x"]), "one type"),
        (lambda: choice([1, 2], weights=[1]), "one weight for each"),
        (lambda: choice([1, 2], weights=[1, -1]), "not negative"),
    ],
)
def test_generator_that_makes_no_sense_is_refused(make, words):
    with pytest.raises(ProgramError, match=words):
        make()


def test_fields_that_a_given_schema_does_not_have_are_refused():
    with pytest.raises(SchemaError, match="the fields are a, but the schema has b"):
        DataGeneratorSource(fields={"a": sequence()}, schema=pa.schema({"b": pa.int64()}))
