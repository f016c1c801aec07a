"""Functions on Arrow batches and polars expressions: types, encodings, and refusals that name both schemas."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate import Environment
from tidegate.core.errors import SchemaError
from tidegate.operators.columns.schema_fit import conform
from tidegate.operators.failures import OperatorError
from tidegate.records.batch import Batch, Origin
from tidegate.testing.harness import OperatorHarness

CLICKS = pa.schema([pa.field("app", pa.string()), pa.field("n", pa.int64())])
ORIGIN = Origin("clicks.parquet", 50, "row")


def clicks() -> Any:
    return Environment().from_collection([], type=CLICKS)


def encoded(apps: list[str | None], numbers: list[int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(apps, pa.string()).dictionary_encode(), pa.array(numbers, pa.int64())], names=["app", "n"]
    )


BATCH = encoded(["a", "b", "a", None], [1, 2, None, 4])


def run(made: Any, columns: pa.RecordBatch = BATCH, **settings: Any) -> list[Batch]:
    with OperatorHarness.of(made) as h:
        h.push_columns(columns, **settings)
        return h.batches


def failure_of(made: Any, columns: pa.RecordBatch = BATCH, **settings: Any) -> OperatorError:
    with OperatorHarness.of(made) as h, pytest.raises(OperatorError) as caught:
        h.push_columns(columns, **settings)
    return caught.value


# ---- map_batches ----


def test_batch_function_sees_exactly_the_declared_types() -> None:
    seen: list[pa.Schema] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.types != CLICKS.types:
            raise AssertionError(batch.schema)
        return batch

    (out,) = run(clicks().map_batches(look))
    assert out.columns.schema.types == CLICKS.types
    assert not seen


def test_batch_function_may_return_a_table_and_columns_in_another_order() -> None:
    def double(batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"n": pc.multiply(batch.column("n"), 2), "app": batch.column("app")})

    (out,) = run(clicks().map_batches(double))
    assert out.columns.schema.names == ["app", "n"]
    assert [tuple(r) for r in out.rows] == [("a", 2), ("b", 4), ("a", None), (None, 8)]


def test_batch_function_that_returns_no_rows_emits_nothing() -> None:
    assert run(clicks().map_batches(lambda b: b.slice(0, 0))) == []
    assert run(clicks().map_batches(lambda b: pa.Table.from_batches([], schema=b.schema))) == []


def test_columns_that_fit_without_loss_are_cast() -> None:
    narrow = pa.schema([("n", pa.int32()), ("app", pa.large_string())])
    (out,) = run(clicks().map_batches(lambda b: b.select(["n", "app"]), returns=narrow))
    assert out.columns.schema.types == narrow.types


@pytest.mark.parametrize(
    ("returns", "make"),
    [
        (pa.schema([("n", pa.int8())]), lambda b: pa.record_batch({"n": [1000]})),
        (pa.schema([("n", pa.int64())]), lambda b: pa.record_batch({"n": [1.5]})),
        (pa.schema([("n", pa.int64())]), lambda b: pa.record_batch({"n": ["1"]})),
        (pa.schema([("n", pa.string())]), lambda b: pa.record_batch({"n": [1]})),
        (pa.schema([("n", pa.float32())]), lambda b: pa.record_batch({"n": [0.1]})),
        (pa.schema([("n", pa.int64())]), lambda b: pa.record_batch({"m": [1]})),
        (pa.schema([("n", pa.int64())]), lambda b: pa.record_batch({"n": [1], "m": [2]})),
        (pa.schema([pa.field("n", pa.int64(), False)]), lambda b: pa.record_batch({"n": [1, None]})),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_both_schemas(returns: pa.Schema, make: Any) -> None:
    error = failure_of(clicks().map_batches(make, returns=returns, name="shape"), origin=ORIGIN)
    assert error.operator == "shape"
    assert error.position == "the batch that starts at row 50 of clicks.parquet"
    cause = error.__cause__
    assert isinstance(cause, SchemaError)
    assert "returned the wrong type" in str(cause)
    assert f"Declared: (n: {returns.types[0]})" in str(cause)
    assert "Got: (" in str(cause)


@pytest.mark.parametrize("result", [None, 3, pl.DataFrame({"n": [1]})])
def test_batch_function_must_return_arrow_columns(result: Any) -> None:
    cause = failure_of(clicks().map_batches(lambda _: result)).__cause__
    assert "expected a pyarrow.RecordBatch" in str(cause)
    assert ("to_arrow" in str(cause)) == isinstance(result, pl.DataFrame)


def test_batch_function_that_raises_names_operator_and_batch() -> None:
    error = failure_of(clicks().map_batches(lambda b: 1 / 0, name="divide"), origin=ORIGIN)
    assert error.operator == "divide"
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_conform_returns_the_same_object_when_nothing_is_to_do() -> None:
    batch = pa.record_batch({"app": ["a"], "n": [1]}, schema=CLICKS)
    assert conform(batch, CLICKS) is batch


def test_conform_keeps_dictionaries_of_the_declared_type() -> None:
    out = conform(BATCH, CLICKS)
    assert pa.types.is_dictionary(out.schema.types[0])


# ---- expressions ----


def test_filter_expression_keeps_dictionary_columns_and_drops_nulls() -> None:
    (out,) = run(clicks().filter(pl.col("n") > 1))
    assert pa.types.is_dictionary(out.columns.schema.types[0])
    assert [tuple(r) for r in out.rows] == [("b", 2), (None, 4)]


def test_filter_expression_on_an_encoded_text_column_sees_text() -> None:
    (out,) = run(clicks().filter(pl.col("app").str.to_uppercase() == "A"))
    assert out.columns.column("n").to_pylist() == [1, None]


def test_filter_expression_passes_a_batch_that_loses_nothing_on_untouched() -> None:
    with OperatorHarness.of(clicks().filter(pl.lit(True))) as h:
        batch = Batch(h.input_types[0], columns=BATCH, origin=ORIGIN)
        h.push_batch(batch)
        assert h.batches == [batch]


def test_filter_expression_that_drops_everything_emits_nothing() -> None:
    assert run(clicks().filter(pl.col("n") > 100)) == []


def test_filter_expression_filters_rows_that_exist_already() -> None:
    with OperatorHarness.of(clicks().filter(pl.col("n") > 1)) as h:
        h.push([("a", 1), ("b", 2)])
        (out,) = h.batches
    assert out.has_rows
    assert [tuple(r) for r in out.rows] == [("b", 2)]
    assert out.columns.num_rows == 1


def test_filter_expression_with_a_selector() -> None:
    numbers = Environment().from_collection([], type=pa.schema([("x", pa.int64()), ("y", pa.int64())]))
    (out,) = run(numbers.filter(pl.all_horizontal(pl.all() > 1)), pa.record_batch({"x": [1, 2], "y": [5, 6]}))
    assert [tuple(r) for r in out.rows] == [(2, 6)]


def test_select_passes_plain_columns_on_and_computes_the_others() -> None:
    made = clicks().select("app", pl.col("app").alias("name"), (pl.col("n") * 2).alias("double"))
    (out,) = run(made, origin=ORIGIN)
    assert [pa.types.is_dictionary(t) for t in out.columns.schema.types] == [True, True, False]
    assert [tuple(r) for r in out.rows] == [("a", "a", 2), ("b", "b", 4), ("a", "a", None), (None, None, 8)]
    assert out.origin == ORIGIN


def test_select_gives_literals_the_length_of_the_columns_beside_them() -> None:
    (out,) = run(clicks().select("app", pl.lit(7).alias("seven"), (pl.lit(1) + 1).alias("two")))
    assert [tuple(r)[1:] for r in out.rows] == [(7, 2)] * 4


def test_select_of_text_gives_the_declared_type() -> None:
    made = clicks().select(pl.col("app").str.to_uppercase())
    (out,) = run(made)
    assert out.columns.schema.types == [pa.string()]
    assert out.columns.column(0).to_pylist() == ["A", "B", "A", None]


def test_select_with_a_selector() -> None:
    (out,) = run(clicks().select(pl.all().name.prefix("my_")))
    assert out.columns.schema.names == ["my_app", "my_n"]
    assert [r[0] for r in out.rows] == ["a", "b", "a", None]


@pytest.mark.parametrize("beside", [(), ("n",)], ids=["alone", "beside a column"])
def test_a_selector_that_finds_no_column_leaves_as_many_records_as_there_are(beside: tuple[str, ...]) -> None:
    made = clicks().select(*beside, pl.col(pl.Float64) * 2, pl.lit(7).alias("seven"))
    (out,) = run(made)
    assert out.columns.schema.names == [*beside, "seven"]
    assert out.columns.column("seven").to_pylist() == [7] * 4


def test_with_columns_replaces_and_adds_and_leaves_the_others_encoded() -> None:
    (out,) = run(clicks().with_columns((pl.col("n") + 1).alias("n"), pl.lit("x").alias("tag")))
    assert pa.types.is_dictionary(out.columns.schema.types[0])
    assert [tuple(r) for r in out.rows] == [("a", 2, "x"), ("b", 3, "x"), ("a", None, "x"), (None, 5, "x")]


def test_expression_on_an_offset_slice_sees_only_the_slice() -> None:
    (out,) = run(clicks().select((pl.col("n") * 10).alias("n"), "app"), BATCH.slice(1, 2))
    assert [tuple(r) for r in out.rows] == [(20, "b"), (None, "a")]


def test_expression_that_fails_on_the_data_names_the_operator() -> None:
    made = clicks().select(pl.col("app").str.to_integer(strict=True).alias("number")).name("parse")
    error = failure_of(made, origin=ORIGIN)
    assert error.operator == "parse"
    assert error.position == "the batch that starts at row 50 of clicks.parquet"


def test_timestamps_stay_with_their_records() -> None:
    for made in (clicks().select("n"), clicks().map_batches(lambda b: b)):
        with OperatorHarness.of(made) as h:
            h.push_batch(Batch(h.input_types[0], columns=BATCH, timestamps=pa.array([1, 2, 3, 4])))
            assert h.batches[0].timestamps.to_pylist() == [1, 2, 3, 4]
    with OperatorHarness.of(clicks().filter(pl.col("n") > 1)) as h:
        h.push_batch(Batch(h.input_types[0], columns=BATCH, timestamps=pa.array([1, 2, 3, 4])))
        assert h.batches[0].timestamps.to_pylist() == [2, 4]
