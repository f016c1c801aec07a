"""Rolling aggregates and reduce, against a plain dict, over every way to cut a stream into batches."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import CountDistinct, Environment, MaxBy, ReduceFunction, RuntimeContext, ValueState
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.operators.failures import OperatorError, user_traceback
from tidegate.records.batch import Batch, Origin
from tidegate.testing.harness import OperatorHarness

MIDNIGHT = dt.datetime.fromisoformat("2000-01-01")
KEYS = {
    "text": (pa.string(), st.sampled_from(["a", "b", "", "é", None])),
    "number": (pa.int64(), st.integers(-2, 2) | st.none()),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, math.nan, None])),
    "price": (
        pa.decimal128(9, 2),
        st.sampled_from([decimal.Decimal("1.50"), decimal.Decimal("-0.01"), None]),
    ),
    "day": (pa.date32(), st.sampled_from([dt.date(2024, 1, 1), dt.date(2024, 1, 2), None])),
}
VALUES = {
    "int64": (pa.int64(), st.integers(-1000, 1000) | st.none()),
    "int8": (pa.int8(), st.integers(-128, 127) | st.none()),
    "uint64": (pa.uint64(), st.integers(0, 2**40) | st.none()),
    "float64": (pa.float64(), st.sampled_from([0.1, -2.5, 1e300, math.nan, math.inf, None])),
    "timestamp": (
        pa.timestamp("us"),
        st.integers(0, 10**9).map(lambda s: MIDNIGHT + dt.timedelta(seconds=s)) | st.none(),
    ),
    "money": (
        pa.decimal128(12, 2),
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: exact(n, 2)) | st.none(),
    ),
    "wide": (
        pa.decimal128(36, 6),
        st.integers(-(10**36) + 1, 10**36 - 1).map(lambda n: exact(n, 6)) | st.none(),
    ),
    "date": (pa.date32(), st.dates(dt.date(2000, 1, 1), dt.date(2030, 1, 1)) | st.none()),
}
EXACT = decimal.Context(prec=100, traps=[decimal.Inexact])
KINDS = ["count", "sum", "min", "max"]


def exact(unscaled: int, scale: int) -> decimal.Decimal:
    return decimal.Decimal(unscaled).scaleb(-scale, EXACT)


def combine(kind: str, so_far: Any, value: Any) -> Any:
    """One step of the oracle; a None value changes nothing, NaN is the largest number."""
    if kind == "count":
        return (so_far or 0) + 1
    if value is None:
        return so_far
    if so_far is None:
        return value
    if kind == "sum":
        return EXACT.add(so_far, value) if isinstance(value, decimal.Decimal) else so_far + value
    ordered = sorted([so_far, value], key=lambda v: (v != v, v if v == v else 0))
    return ordered[0] if kind == "min" else ordered[1]


def canonical(key: Any) -> Any:
    if isinstance(key, float):
        return "nan" if key != key else key + 0.0
    return tuple(map(canonical, key)) if isinstance(key, tuple) else key


def oracle(kind: str, records: list[tuple[Any, Any]], state: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The result after each record."""
    out = []
    for key, value in records:
        k = canonical(key)
        state[k] = combine(kind, state.get(k), value)
        out.append((k, state[k]))
    return out


def same(got: list[tuple[Any, Any]], expected: list[tuple[Any, Any]]) -> bool:
    return list(map(repr, got)) == list(map(repr, expected))


def canonical_rows(rows: list[Any]) -> list[tuple[Any, Any]]:
    return [(canonical(r[0]), r[1]) for r in rows]


def cut(records: list[Any], borders: list[int]) -> list[list[Any]]:
    places = sorted({0, len(records), *(b % (len(records) + 1) for b in borders)})
    return [records[a:b] for a, b in pairwise(places)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, pa.Schema, list[list[tuple[Any, Any]]], bool]:
    kind = draw(st.sampled_from(KINDS))
    key_type, keys = KEYS[draw(st.sampled_from(sorted(KEYS)))]
    names = ["float64", "int64", "int8", "money", "uint64", "wide"] if kind == "sum" else sorted(VALUES)
    value_type, values = VALUES[draw(st.sampled_from(names))]
    records = draw(st.lists(st.tuples(keys, values), max_size=30))
    borders = draw(st.lists(st.integers(0, 30), max_size=4))
    schema = pa.schema([pa.field("k", key_type), pa.field("v", value_type)])
    return kind, schema, cut(records, borders), draw(st.booleans())


def columns_of(schema: pa.Schema, records: list[tuple[Any, Any]], encode: bool) -> pa.RecordBatch:
    arrays = [pa.array([r[i] for r in records], schema.field(i).type) for i in range(2)]
    if encode and pa.types.is_string(arrays[0].type):
        arrays[0] = arrays[0].dictionary_encode()
    return pa.RecordBatch.from_arrays(arrays, names=["k", "v"])


def source(schema: Any) -> Any:
    return Environment().from_collection([], type=schema)


def aggregated(keyed: Any, kind: str, **settings: Any) -> Any:
    return keyed.count(**settings) if kind == "count" else getattr(keyed, kind)("v", **settings)


def upstream_harness(made: Any) -> OperatorHarness:
    """The operator before the last one: the local stage of a mini-batch aggregate."""
    node = made._node.inputs[0][0].upstream
    types = [ref.upstream.output_type for (ref,) in node.inputs]
    return OperatorHarness(node.operation, types, node.output_type, name=node.name)


# ---- against the oracle ----


@given(streams())
@settings(deadline=None)
def test_each_record_gets_its_running_total_however_the_stream_is_cut(case: Any) -> None:
    kind, schema, batches, encode = case
    state: dict[Any, Any] = {}
    with OperatorHarness.of(aggregated(source(schema).key_by("k"), kind, emit="each")) as h:
        for records in batches:
            h.push_columns(columns_of(schema, records, encode))
            assert same(canonical_rows(h.take_rows()), oracle(kind, records, state))


@given(streams())
@settings(deadline=None)
def test_local_and_merge_stages_together_give_the_latest_of_each_key_and_batch(case: Any) -> None:
    kind, schema, batches, encode = case
    if kind == "sum" and pa.types.is_floating(schema.field("v").type):
        return  # partial sums of floats may differ in the last bit
    state: dict[Any, Any] = {}
    made = aggregated(source(schema).key_by("k"), kind, emit="batch")
    with upstream_harness(made) as local, OperatorHarness.of(made) as merge:
        for records in batches:
            local.push_columns(columns_of(schema, records, encode))
            for batch in local.batches:
                assert batch.num_rows == len({canonical(k) for k, _ in records})
                merge.push_batch(batch)
            local.batches.clear()
            expected = dict(oracle(kind, records, state))
            got = canonical_rows(merge.take_rows())
            assert len(got) == len(expected)
            assert same(sorted(got, key=repr), sorted(expected.items(), key=repr))


@given(streams(), st.sampled_from(["each", "batch"]))
@settings(deadline=None)
def test_untyped_key_function_gives_the_same_totals_as_a_column(case: Any, emit: str) -> None:
    kind, schema, batches, encode = case
    state: dict[Any, Any] = {}
    keyed = source(schema).key_by(lambda r: canonical(r.k))
    with OperatorHarness.of(aggregated(keyed, kind, emit=emit)) as h:
        for records in batches:
            h.push_columns(columns_of(schema, records, encode))
            expected = oracle(kind, records, state)
            if emit == "batch":
                expected = list(dict(expected).items())
            assert same(h.take_rows(), expected)


@given(streams(), st.sampled_from(["each", "batch"]))
@settings(deadline=None)
def test_typed_key_function_gives_key_columns(case: Any, emit: str) -> None:
    kind, schema, batches, encode = case
    state: dict[Any, Any] = {}

    def text(row: Any) -> str | None:
        return None if row.k is None else str(canonical(row.k))

    with OperatorHarness.of(aggregated(source(schema).key_by(text), kind, emit=emit)) as h:
        for records in batches:
            h.push_columns(columns_of(schema, records, encode))
            expected = oracle(
                kind, [(None if k is None else str(canonical(k)), v) for k, v in records], state
            )
            rows = h.take_rows()
            assert all(row._fields[0] == "key" for row in rows)
            got = [tuple(r) for r in rows]
            if emit == "batch":
                got, expected = sorted(got, key=repr), sorted(dict(expected).items(), key=repr)
            assert same(got, expected)


class NotedKey:
    """A key function that knows for which records it ran."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, record: tuple[str, int]) -> Any:
        self.seen.append(record)
        return record[1] % 2


@pytest.mark.parametrize("returns", [int, None], ids=["typed", "untyped"])
@pytest.mark.parametrize(
    "operate",
    [
        lambda k: k.aggregate(last=MaxBy("f1"), names=CountDistinct("f0")),
        lambda k: k.aggregate(last=MaxBy("f1"), names=CountDistinct("f0"), emit="batch"),
        lambda k: k.sum("f1"),
        lambda k: k.sum("f1", emit="batch"),
        lambda k: k.reduce(add),
    ],
    ids=["by rows", "by rows per batch", "by columns", "by columns per batch", "reduce"],
)
def test_key_function_runs_once_for_each_record(operate: Any, returns: Any) -> None:
    records = [("a", 1), ("b", 2), ("c", 3)]
    keyed = Environment().from_collection([], type=tuple[str, int]).key_by(NotedKey(), returns=returns)
    with OperatorHarness.of(operate(keyed)) as h:
        h.push(records)
        assert h.rows
        operation: Any = h.operator.operation  # a copy, with a key function of its own
        assert operation.key.function.seen == records


def add(left: tuple[Any, int], right: tuple[Any, int]) -> tuple[Any, int]:
    return (left[0], left[1] + right[1])


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-9, 9)), max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
    st.sampled_from(["each", "batch"]),
    st.booleans(),
)
@settings(deadline=None)
def test_reduce_gives_what_a_dict_gives(records: Any, borders: Any, emit: str, as_rows: bool) -> None:
    made = source(tuple[str | None, int]).key_by("f0").reduce(add, emit=emit)
    state: dict[Any, Any] = {}
    with OperatorHarness.of(made) as h:
        for part in cut(records, borders):
            expected = []
            for k, v in part:
                state[k] = (k, v) if k not in state else add(state[k], (k, v))
                expected.append((k, state[k]))
            if as_rows:
                h.push(part)
            else:
                h.push_columns(h.input_types[0].to_columns(part))
            latest = [v for _, v in expected] if emit == "each" else list(dict(expected).values())
            assert h.take_rows() == latest


# ---- what the columns look like ----

CLICKS = pa.schema([pa.field("app", pa.string()), pa.field("v", pa.int64())])


def encoded(apps: list[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(apps, pa.string()).dictionary_encode(), pa.array(range(len(apps)), pa.int64())],
        names=["app", "v"],
    )


def test_each_result_keeps_the_key_column_as_it_came_and_the_position() -> None:
    origin = Origin("f", 5)
    columns = encoded(["a", "b", "a"])
    with OperatorHarness.of(source(CLICKS).key_by("app").count()) as h:
        h.push_columns(columns, origin=origin)
        (out,) = h.batches
    assert out.columns.column(0).equals(columns.column(0))
    assert pa.types.is_dictionary(out.columns.column(0).type)
    assert out.columns.schema.names == ["app", "count"]
    assert out.origin == origin


def test_keys_of_several_columns_are_counted_together() -> None:
    schema = pa.schema([("x", pa.int64()), ("y", pa.string())])
    made = source(schema).key_by("y", "x").count(emit="batch")
    with upstream_harness(made) as local, OperatorHarness.of(made) as merge:
        for _ in range(2):
            local.push_columns(pa.record_batch({"x": [1, 1, 2, None], "y": ["a", "b", "a", None]}))
        local.push_columns(pa.record_batch({"x": [1, 1], "y": ["a", "a"]}))
        for batch in local.batches:
            merge.push_batch(batch)
        assert [tuple(r) for r in merge.rows[-1:]] == [("a", 1, 4)]
        assert merge.batches[0].columns.schema.names == ["y", "x", "count"]


def test_local_stage_counts_slices_of_a_huge_dictionary_cheaply() -> None:
    words = pa.array([f"w{i}" for i in range(5000)])
    column = pa.DictionaryArray.from_arrays(pa.array([4999, 3, 4999], pa.int32()), words)
    made = source(CLICKS).key_by("app").count(emit="batch")
    with upstream_harness(made) as h:
        h.push_columns(pa.RecordBatch.from_arrays([column, pa.array([1, 2, 3])], names=["app", "v"]))
        assert [tuple(r) for r in h.rows] == [("w4999", 2), ("w3", 1)]
        assert len(h.batches[0].columns.column(0).dictionary) == 2


def test_many_keys_over_many_small_batches() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    made = source(schema).key_by("k").max("v", emit="batch")
    with OperatorHarness.of(made) as h:
        for start in range(0, 20_000, 5_000):
            keys = list(range(start, start + 5_000))
            h.push_columns(pa.record_batch({"k": keys, "max_v": keys}))
        h.batches.clear()
        h.push_columns(pa.record_batch({"k": [19_999, 0], "max_v": [1, 7]}))
        assert sorted(tuple(r) for r in h.rows) == [(0, 7), (19_999, 19_999)]


@pytest.mark.parametrize(("kind", "expected"), [("min", [math.nan, 2.0, 1.0, 1.0]), ("max", [math.nan] * 4)])
@pytest.mark.parametrize("key", ["k", lambda r: r.k])
def test_nan_is_the_largest_number(kind: str, expected: list[float], key: Any) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.float64())])
    with OperatorHarness.of(aggregated(source(schema).key_by(key), kind, emit="each")) as h:
        h.push([("a", math.nan), ("a", 2.0), ("a", 1.0), ("a", math.nan)])
        assert repr([r[1] for r in h.rows]) == repr(expected)


# ---- what goes wrong ----


@pytest.mark.parametrize("emit", ["each", "batch"])
def test_sum_that_leaves_int64_is_an_error_that_names_the_sum(emit: str) -> None:
    made = source(CLICKS).key_by(lambda r: r.app, returns=str).sum("v", emit=emit).name("total")
    with OperatorHarness.of(made) as h:
        h.push([("a", 2**62), ("b", 1)])
        with pytest.raises(OperatorError) as caught:
            h.push([("a", 2**62)])
    assert caught.value.operator == "total"
    assert isinstance(caught.value.__cause__, OverflowError)
    assert "sum('v') of key 'a'" in str(caught.value.__cause__)
    assert "does not fit an int64" in str(caught.value.__cause__)


def test_large_values_that_fit_are_summed_exactly_per_batch() -> None:
    made = source(CLICKS).key_by(lambda r: r.app, returns=str).sum("v", emit="batch")
    with OperatorHarness.of(made) as h:
        h.push([("a", 2**62), ("a", -(2**62)), ("a", 2**62), ("b", 2**62), ("a", 2**61)])
        assert dict(map(tuple, h.rows)) == {"a": 2**62 + 2**61, "b": 2**62}


def test_key_function_of_the_wrong_type_is_named() -> None:
    made = source(CLICKS).key_by(lambda r: r.v, returns=str).count()
    with OperatorHarness.of(made) as h, pytest.raises(OperatorError) as caught:
        h.push([("a", 1)])
    assert "key function" in str(caught.value.__cause__)
    assert "returned the wrong type" in str(caught.value.__cause__)


def test_key_that_cannot_be_hashed_names_the_record() -> None:
    made = source(CLICKS).key_by(lambda r: [r.v]).count()
    with OperatorHarness.of(made) as h, pytest.raises(OperatorError) as caught:
        h.push([("a", 1)])
    assert "unhashable" in str(caught.value.__cause__)
    assert "app='a'" in caught.value.record


@dataclass
class Click:
    app: str
    n: int


@pytest.mark.parametrize("kind", [list[int], Click, tuple[str, list[int]]])
def test_typed_key_without_a_hash_is_refused_where_it_is_written(kind: Any) -> None:
    with pytest.raises(ProgramError, match=r"key_by: the key function .* returns .*, which cannot be a key"):
        source(CLICKS).key_by(lambda r: r, returns=kind)


# ---- reduce ----


def test_first_record_of_a_key_is_its_first_result() -> None:
    with OperatorHarness.of(source(Click).key_by("app").reduce(lambda a, b: Click(a.app, a.n + b.n))) as h:
        h.push([Click("a", 1), Click("b", 5), Click("a", 2)])
        assert h.rows == [Click("a", 1), Click("b", 5), Click("a", 3)]


def test_reduce_function_that_raises_names_operator_position_and_record() -> None:
    made = source(int).key_by(lambda n: 0).reduce(lambda a, b: a // b).name("divide")
    with OperatorHarness.of(made) as h, pytest.raises(OperatorError) as caught:
        h.push([4, 2, 0, 1], origin=Origin("f", 10, "line"))
    error = caught.value
    assert (error.operator, error.position, error.record) == ("divide", "line 12 of f", "0")
    assert error.__cause__ is not None
    assert re.findall(r'File "(.*?)"', user_traceback(error.__cause__)) == [
        __file__
    ]  # not the loop that called it


@pytest.mark.parametrize(
    ("type", "rows", "function"),
    [
        (int, [1, 2], lambda a, b: "3"),
        (int, [1, 2], lambda a, b: None),
        (Click, [Click("a", 1), Click("a", 2)], lambda a, b: (a, b)),
        (tuple[str, int], [("a", 1), ("a", 2)], lambda a, b: ("a",)),
        (CLICKS, [("a", 1), ("a", 2)], lambda a, b: ("a",)),
    ],
)
def test_reduce_result_of_the_wrong_type_is_refused(
    type: Any, rows: list[Any], function: Callable[..., Any]
) -> None:
    made = source(type).key_by(lambda _: 0).reduce(function).name("sum up")
    with OperatorHarness.of(made) as h, pytest.raises(OperatorError) as caught:
        h.push(rows, origin=Origin("f", 10, "line"))
    assert caught.value.operator == "sum up"
    assert caught.value.position == "line 11 of f"
    assert isinstance(caught.value.__cause__, SchemaError)
    assert "returned the wrong type" in str(caught.value.__cause__)


def test_reduce_function_reads_its_own_results_by_name_also_if_they_were_plain_tuples() -> None:
    made = source(CLICKS).key_by("app").reduce(lambda a, b: (a.app, a.v + b.v))
    with OperatorHarness.of(made) as h:
        h.push([("a", 1), ("a", 2), ("a", 3)])
        assert [(r.app, r.v) for r in h.rows] == [("a", 1), ("a", 3), ("a", 6)]


def test_nan_is_one_key() -> None:
    made = source(pa.schema([("k", pa.float64()), ("v", pa.int64())])).key_by("k")
    with OperatorHarness.of(made.reduce(lambda a, b: (a.k, a.v + b.v))) as h:
        h.push_columns(pa.record_batch({"k": [math.nan, 1.0, math.nan], "v": [1, 2, 3]}))
        assert [r.v for r in h.rows] == [1, 2, 4]


def test_nan_is_one_key_in_rows_too() -> None:
    with OperatorHarness.of(source(tuple[float, int]).key_by("f0").reduce(add)) as h:
        h.push([(float("nan"), 1), (1.0, 2), (float("nan"), 3)])
        assert [total for _, total in h.rows] == [1, 2, 4]


def test_reduce_function_never_sees_a_result_of_its_own_that_was_of_the_wrong_length() -> None:
    def shorten(left: tuple[str, int], right: tuple[str, int]) -> Any:
        return (left[0], left[1] + right[1])[:1]

    made = source(tuple[str, int]).key_by("f0").reduce(shorten).name("shorten")
    with OperatorHarness.of(made) as h, pytest.raises(OperatorError) as caught:
        h.push([("a", 1), ("a", 2), ("a", 3)], origin=Origin("f", 10, "line"))
    assert isinstance(caught.value.__cause__, SchemaError)  # not the IndexError of a second call
    assert (caught.value.operator, caught.value.position) == ("shorten", "line 11 of f")
    assert "returned the wrong type" in str(caught.value.__cause__)


def test_a_state_of_the_function_may_not_have_the_name_of_the_reduces_own() -> None:
    class Counting(ReduceFunction):
        seen = ValueState(int, name="reduce-result")

        def reduce(self, left: tuple[str, int], right: tuple[str, int]) -> tuple[str, int]:
            return left

    made = source(tuple[str, int]).key_by("f0").reduce(Counting())
    with pytest.raises(OperatorError) as caught, OperatorHarness.of(made):
        pass
    assert "'reduce-result', as the reduce's own is" in str(caught.value.__cause__)


def test_reduce_function_object_is_opened() -> None:
    class Largest(ReduceFunction):
        def open(self, context: RuntimeContext) -> None:
            self.calls = context.counter("calls")

        def reduce(self, left: int, right: int) -> int:
            self.calls.inc()
            return max(left, right)

    with OperatorHarness.of(source(int).key_by(lambda n: n % 2).reduce(Largest())) as h:
        h.push([1, 4, 3, 2])
        assert h.rows == [1, 4, 3, 4]
        assert h.counters["calls"] == 2


def test_reduced_batch_keeps_timestamps_for_each_and_has_none_per_batch() -> None:
    for emit, stamps in (("each", [1, 2]), ("batch", None)):
        with OperatorHarness.of(source(int).key_by(lambda n: 0).reduce(max, emit=emit)) as h:
            h.push_batch(Batch(h.input_types[0], rows=[5, 6], timestamps=pa.array([1, 2])))
            out = h.batches[0].timestamps
            assert (None if out is None else out.to_pylist()) == stamps
