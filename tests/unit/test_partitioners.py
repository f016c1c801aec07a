"""Partitioners: each record exactly once (or to everyone), order kept per channel, a key always to one channel."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.key_groups import subtask_for_key_group
from tidegate.keys.hashing import hash_values
from tidegate.keys.key_group_columns import key_groups
from tidegate.operators.failures import OperatorError
from tidegate.program import partitioning as p
from tidegate.program.operations import Key
from tidegate.records.batch import Batch
from tidegate.records.columns import rows_without_columns
from tidegate.records.types import RowType, record_type_of
from tidegate.taskmanager.partitioners import make_partitioner, reachable_consumers, split


class Click(NamedTuple):
    app: str
    n: int


CLICK = record_type_of(Click)
INT = record_type_of(int)
BY_APP = Key(("app",), None, record_type_of(str))
BY_BOTH = Key(("app", "n"), None, record_type_of(tuple[str, int]))
BY_FUNCTION = Key((), lambda click: click.app, record_type_of(str))

apps = st.text("abcde", max_size=2)
batches = st.lists(st.lists(apps, min_size=1, max_size=80), min_size=1, max_size=5)
NON_BROADCAST = {
    "hash": p.Hash(BY_APP),
    "hash of two": p.Hash(BY_BOTH),
    "hash of a function": p.Hash(BY_FUNCTION),
    "rebalance": p.Rebalance(),
    "rescale": p.Rescale(),
    "shuffle": p.Shuffle(),
    "global": p.Global(),
    "custom": p.Custom(lambda app, n: len(app) % n, BY_APP),
}


def clicks(parts: list[list[str]], *, rows: bool, dictionary: bool = False) -> list[Batch]:
    numbers = itertools.count()
    made = []
    for part in parts:
        records = [Click(app, next(numbers)) for app in part]
        if rows:
            made.append(Batch(CLICK, rows=records))
            continue
        columns = CLICK.to_columns(records)
        if dictionary:
            arrays = [columns.column("app").dictionary_encode(), columns.column("n")]
            columns = pa.RecordBatch.from_arrays(arrays, names=["app", "n"])
        made.append(Batch(CLICK, columns=columns))
    return made


def spread(partitioning, parts: list[Batch], consumers: int, producer: int = 0) -> dict[int, list]:
    """What each consumer gets, in order."""
    partition = make_partitioner(partitioning, consumers, 128, producer, "next")
    got: dict[int, list] = defaultdict(list)
    for batch in parts:
        for consumer, part in partition(batch):
            assert part.num_rows, "no empty batch leaves"
            assert 0 <= consumer < consumers
            got[consumer] += part.rows
    return dict(got)


@pytest.mark.parametrize("name", NON_BROADCAST)
@given(batches, st.integers(1, 9), st.sampled_from(["rows", "columns", "dictionary"]))
def test_every_record_goes_to_exactly_one_consumer_in_order(name, parts, consumers, form):
    made = clicks(parts, rows=form == "rows", dictionary=form == "dictionary")
    got = spread(NON_BROADCAST[name], made, consumers)
    total = sum(map(len, parts))
    assert sorted(r.n for rows in got.values() for r in rows) == list(range(total))
    assert [r.app for r in sorted((r for rows in got.values() for r in rows), key=lambda r: r.n)] == list(
        itertools.chain(*parts)
    )
    for rows in got.values():
        numbers = [r.n for r in rows]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("key", [BY_APP, BY_BOTH, BY_FUNCTION], ids=["column", "columns", "function"])
@given(batches, st.integers(1, 9), st.integers(1, 300))
def test_a_key_goes_to_the_subtask_of_its_key_group_in_every_form_and_from_every_producer(
    key, parts, consumers, max_parallelism
):
    if consumers > max_parallelism:
        consumers = max_parallelism
    owner: dict[object, int] = {}
    for producer, form in enumerate([(True, False), (False, False), (False, True)]):
        partition = make_partitioner(p.Hash(key), consumers, max_parallelism, producer, "next")
        for batch in clicks(parts, rows=form[0], dictionary=form[1]):
            for consumer, part in partition(batch):
                for record in part.rows:
                    value = tuple(record) if key is BY_BOTH else record.app
                    assert owner.setdefault(value, consumer) == consumer
    if key is not BY_BOTH:
        values = list(owner)
        groups = key_groups(hash_values(values), max_parallelism).tolist()
        expected = [subtask_for_key_group(g, consumers, max_parallelism) for g in groups]
        assert [owner[v] for v in values] == expected


@given(batches, st.integers(1, 9))
def test_broadcast_gives_everything_to_everyone_and_shares_no_row(parts, consumers):
    made = clicks(parts, rows=True)
    got = spread(p.Broadcast(), made, consumers)
    expected = [row for batch in made for row in batch.rows]
    assert got == dict.fromkeys(range(consumers), expected)
    firsts = {id(rows[0]) for rows in got.values()}
    assert len(firsts) == consumers


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 9), st.integers(0, 20))
def test_rebalance_is_even_whatever_the_sizes_of_the_batches(sizes, consumers, producer):
    numbers = itertools.count()
    made = [Batch(INT, rows=[next(numbers) for _ in range(size)]) for size in sizes]
    got = spread(p.Rebalance(), made, consumers, producer)
    counts = [len(got.get(i, [])) for i in range(consumers)]
    assert max(counts) - min(counts) <= len(sizes), "at most one record per batch apart"


def test_single_records_go_round_in_turn_and_producers_do_not_start_alike():
    one_by_one = [Batch(INT, rows=[i]) for i in range(6)]
    assert spread(p.Rebalance(), one_by_one, 3, producer=0) == {0: [0, 3], 1: [1, 4], 2: [2, 5]}
    assert spread(p.Rebalance(), one_by_one, 3, producer=1) == {1: [0, 3], 2: [1, 4], 0: [2, 5]}


def test_shuffle_is_about_even_and_the_same_in_every_run():
    made = [Batch(INT, rows=list(range(i, i + 100))) for i in range(0, 4000, 100)]
    first, second = spread(p.Shuffle(), made, 4), spread(p.Shuffle(), made, 4)
    assert first == second
    assert all(850 < len(rows) < 1150 for rows in first.values())


@given(st.integers(1, 12), st.integers(1, 12))
def test_pointwise_channels_reach_every_consumer_and_serve_every_producer(producers, consumers):
    reached = Counter(
        consumer for i in range(producers) for consumer in reachable_consumers(True, i, producers, consumers)
    )
    assert set(reached) == set(range(consumers))
    if consumers >= producers:
        assert set(reached.values()) == {1}, "groups do not overlap"
    else:
        assert max(reached.values()) - min(reached.values()) <= 1, (
            "consumers have about equally many producers"
        )
    assert all(
        list(reachable_consumers(False, i, producers, consumers)) == list(range(consumers))
        for i in range(producers)
    )


def test_forward_is_subtask_by_subtask():
    assert [list(reachable_consumers(True, i, 4, 4)) for i in range(4)] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("answer", [2, -1, 1.0, "0", None, True])
def test_a_custom_partitioner_that_answers_nonsense_is_blamed_with_the_key_and_the_range(answer):
    partition = make_partitioner(p.Custom(lambda app, n: answer, BY_APP), 2, 128, 0, "next")
    with pytest.raises(OperatorError) as caught:
        partition(clicks([["a"]], rows=True)[0])
    assert caught.value.operator == "next"
    assert isinstance(caught.value.__cause__, ProgramError)
    assert f"returned {answer!r} for key 'a'; it must return a number from 0 to 1" in str(
        caught.value.__cause__
    )


def test_a_key_function_that_raises_is_blamed():
    key = Key((), lambda click: 1 // 0, record_type_of(int))
    partition = make_partitioner(p.Hash(key), 2, 128, 0, "next")
    with pytest.raises(OperatorError) as caught:
        partition(clicks([["a"]], rows=True)[0])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_dictionary_that_is_longer_than_its_batch_does_not_travel_with_every_part():
    words = pa.array([f"app {i}" for i in range(10_000)])
    column = pa.DictionaryArray.from_arrays(pa.array([3, 4], pa.int32()), words)
    columns = pa.RecordBatch.from_arrays([column, pa.array([0, 1])], names=["app", "n"])
    partition = make_partitioner(p.Hash(BY_APP), 2, 128, 0, "next")
    parts = partition(Batch(CLICK, columns=columns))
    assert sum(part.columns.nbytes for _, part in parts) < 1_000
    assert sorted(row.app for _, part in parts for row in part.rows) == ["app 3", "app 4"]


def test_objects_without_a_schema_keep_their_identity():
    made = [object() for _ in range(10)]
    objects = record_type_of(object)
    partition = make_partitioner(p.Shuffle(), 3, 128, 0, "next")
    got = [row for _, part in partition(Batch(objects, rows=made)) for row in part.rows]
    assert {id(o) for o in got} == {id(o) for o in made}


def test_a_dictionary_whose_values_change_places_or_are_null_sends_each_key_to_its_own_consumer():
    text = record_type_of(str | None)
    partition = make_partitioner(p.Hash(Key(("value",), None, text)), 4, 128, 0, "count")
    values = ["a", "b", None, "c", "d"]
    wanted = [subtask_for_key_group(int(g), 4, 128) for g in key_groups(hash_values(values), 128)]
    for dictionary in (values, values[::-1], ["b", "a", "c", "d"]):
        codes = [dictionary.index(v) if v in dictionary else None for v in values] * 20
        column = pa.DictionaryArray.from_arrays(
            pa.array(codes, pa.int32()), pa.array(dictionary, pa.string())
        )
        batch = Batch(text, columns=pa.RecordBatch.from_arrays([column], names=text.names))
        got = {value: consumer for consumer, part in partition(batch) for value in part.rows}
        assert got == dict(zip(values, wanted, strict=True))


@given(st.lists(st.lists(st.one_of(st.text(max_size=3), st.none())), max_size=6), st.integers(1, 9))
def test_tuples_go_by_the_key_group_of_their_field_however_late_a_key_comes(parts, consumers):
    record_type = record_type_of(tuple[int, str | None])
    key = Key(("f1",), None, record_type_of(str | None))
    numbers = itertools.count()
    rows = [[(next(numbers), app) for app in part] for part in parts if part]
    as_rows = spread(p.Hash(key), [Batch(record_type, rows=part) for part in rows], consumers)
    as_columns = spread(
        p.Hash(key),
        [Batch(record_type, columns=record_type.to_columns(part)) for part in rows],
        consumers,
    )
    assert as_rows == as_columns


@pytest.mark.parametrize(("app", "got"), [(["a"], "list"), (7, "int"), (None, "None")])
def test_a_tuple_whose_key_is_of_another_type_is_refused_with_the_column(app, got):
    record_type = record_type_of(tuple[str, int])
    partition = make_partitioner(
        p.Hash(Key(("f0",), None, record_type_of(str))), 2, 128, producer=0, operator="next"
    )
    with pytest.raises(SchemaError, match=f"column 'f0' is string.* got.*{got}"):
        partition(Batch(record_type, rows=[("b", 1), (app, 2)]))


@pytest.mark.parametrize("text", ["encoded", "plain"])
def test_large_batches_are_cut_as_small_ones_whatever_their_columns(text: str):
    rows = 20_000
    apps = pa.array([None if i % 7 == 0 else f"app-{i % 100}" for i in range(rows)], pa.string())
    numbers = pa.array([None if i % 11 == 0 else i for i in range(rows)], pa.int64())
    arrays = [
        apps.dictionary_encode() if text == "encoded" else apps,
        numbers,
        numbers.cast(pa.float64()),
        numbers.cast(pa.int32()).cast(pa.date32()),
        numbers.cast(pa.timestamp("us", "UTC")),
        numbers.cast(pa.int32()).cast(pa.float32()),
    ]
    names = ["app", "n", "f", "d", "t", "g"]
    kind = RowType(pa.schema([pa.field(n, a.type) for n, a in zip(names, [apps, *arrays[1:]], strict=True)]))
    columns = pa.RecordBatch.from_arrays(arrays, names=names)
    batch = Batch(kind, columns=columns, timestamps=pa.array(range(rows))).slice(3, rows - 5)
    target = np.random.default_rng(1).integers(0, 3, batch.num_rows).astype(np.uint16)
    target[target == 1] = 2
    parts = dict(split(batch, target, 4))
    assert sorted(parts) == [0, 2], "no empty batch"
    for consumer, part in parts.items():
        chosen = pa.array(np.flatnonzero(target == consumer))
        assert part.columns.equals(batch.columns.take(chosen))
        assert part.columns.schema.equals(columns.schema)
        assert part.timestamps.equals(batch.timestamps.take(chosen))
    ((only, whole),) = split(batch, np.full(batch.num_rows, 3, np.uint16), 4)
    assert (only, whole) == (3, batch), "a batch for one consumer is not copied"


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("rows", [7, 40_000])
def test_records_without_columns_are_counted_out_as_well(rows: int, stamped: bool):
    stamps = pa.array(range(rows)) if stamped else None
    batch = Batch(RowType(pa.schema([])), columns=rows_without_columns(rows), timestamps=stamps)
    target = (np.arange(rows) % 3).astype(np.uint16)
    assert sum(part.num_rows for _, part in split(batch, target, 3)) == rows


def test_senders_with_dictionaries_of_their_own_take_turns():
    text = record_type_of(str)
    partition = make_partitioner(p.Hash(Key(("value",), None, text)), 3, 128, 0, "count")
    values = [f"app-{i}" for i in range(50)]
    wanted = dict(
        zip(
            values,
            [subtask_for_key_group(int(g), 3, 128) for g in key_groups(hash_values(values), 128)],
            strict=True,
        )
    )
    for turn in range(40):
        dictionary = values[turn % 20 :] + values[: turn % 20]
        codes = pa.array(list(range(50)) * 400, pa.int32())
        column = pa.DictionaryArray.from_arrays(codes, pa.array(dictionary))
        batch = Batch(text, columns=pa.RecordBatch.from_arrays([column], names=text.names))
        parts = partition(batch)
        assert sum(part.num_rows for _, part in parts) == 20_000
        assert {value: consumer for consumer, part in parts for value in set(part.rows)} == wanted
