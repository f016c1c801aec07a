"""Tables as collections, maps in rows, columns by keyword: what users of pandas, polars and Spark expect."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import Row as SparkRow

from tidegate import Environment, ProgramError, SchemaError
from tidegate.records.rows import row_class
from tidegate.records.types import RowType

DATA = {"app": ["chess", "maps"], "n": [1, 2]}


class Click(NamedTuple):
    app: str
    n: int


@pytest.fixture
def env() -> Environment:
    return Environment(runtime="in-process", parallelism=1)


@pytest.mark.parametrize(
    "make",
    [
        pd.DataFrame,
        lambda data: pd.DataFrame(data, index=["x", "y"]),
        pl.DataFrame,
        pa.table,
        pa.RecordBatch.from_pydict,
        lambda data: [SparkRow(app=a, n=n) for a, n in zip(data["app"], data["n"], strict=True)],
    ],
    ids=["pandas", "pandas with an index", "polars", "table", "batch", "Spark rows"],
)
def test_a_table_is_a_collection_of_its_rows(env: Environment, make: Callable[[Any], Any]) -> None:
    stream = env.from_collection(make(DATA))
    assert stream.record_type.describe() == "Row(app: string?, n: int64?)"
    assert repr(list(stream.execute_and_collect())) == "[Row(app='chess', n=1), Row(app='maps', n=2)]"
    typed = env.from_collection(make(DATA), type=Click) if not isinstance(make(DATA), list) else None
    assert typed is None or list(typed.execute_and_collect()) == [Click("chess", 1), Click("maps", 2)]


def test_the_types_of_a_table_are_those_of_python(env: Environment) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - as pandas has them
    frame = pd.DataFrame({"at": [moment], "kind": pd.Categorical(["a"]), "maybe": [None]})
    with pytest.raises(SchemaError, match="column 'maybe' has no values that tell its type"):
        env.from_collection(frame)
    (row,) = env.from_collection(frame.drop(columns="maybe")).execute_and_collect()
    assert row == (moment, "a")
    assert type(row.at) is dt.datetime


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a"]), pl.List(pl.Categorical)], ids=str)
def test_categories_of_polars_are_text(env: Environment, kind: Any) -> None:
    value = ["a"] if isinstance(kind, pl.List) else "a"
    stream = env.from_collection(pl.DataFrame({"kind": [value, None]}, schema={"kind": kind}))
    assert [row.kind for row in stream.execute_and_collect()] == [value, None]


def test_an_empty_table_has_its_type_and_no_records(env: Environment) -> None:
    stream = env.from_collection(pl.DataFrame(schema={"n": pl.Int64}))
    assert stream.record_type.describe() == "Row(n: int64?)"
    assert list(stream.execute_and_collect()) == []


def test_a_table_without_a_declared_column_is_refused(env: Environment) -> None:
    with pytest.raises(SchemaError, match=r"a table of app as Click.*: it has no column 'n'"):
        env.from_collection(pl.DataFrame({"app": ["chess"]}), type=Click)


def test_structs_of_spark_rows_are_dicts(env: Environment) -> None:
    rows = [SparkRow(id=1, place=SparkRow(city="Oslo"))]
    assert list(env.from_collection(rows).execute_and_collect()) == [(1, {"city": "Oslo"})]


# ---- maps ----


MAPS = pa.schema(
    [
        ("m", pa.map_(pa.string(), pa.int64())),
        ("nested", pa.struct([("inner", pa.list_(pa.map_(pa.string(), pa.map_(pa.int64(), pa.string()))))])),
    ]
)


def test_maps_of_a_row_are_dicts_before_and_after_an_exchange(env: Environment) -> None:
    records = [{"m": {"a": 1}, "nested": {"inner": [{"x": {1: "y"}}, None]}}, {"m": None, "nested": None}]
    stream = env.from_collection(records, type=MAPS)
    moved = stream.rebalance().map(lambda row: row, returns=MAPS)
    for found in (list(stream.execute_and_collect()), list(moved.execute_and_collect())):
        assert [row.as_dict() for row in found] == records


def test_a_map_with_a_key_twice_is_refused_and_not_cut() -> None:
    columns = pa.RecordBatch.from_arrays(
        [pa.array([[("a", 1), ("a", 2)]], MAPS.field("m").type)], names=["m"]
    )
    with pytest.raises(SchemaError, match="a map has a key twice"):
        RowType(columns.schema).to_rows(columns)


def test_a_row_shows_the_names_of_its_columns() -> None:
    row = row_class(("app", "the count", "class"))("chess", 3, "x")
    assert repr(row) == "Row(app='chess', 'the count'=3, class='x')"
    assert row["the count"] == 3


# ---- columns by keyword ----


def test_columns_are_named_by_keyword_as_in_polars(env: Environment) -> None:
    numbers = env.from_sequence(1, 3)
    more = numbers.with_columns(double=pl.col("value") * 2, name=pl.lit("n"), uid="more")
    assert list(more.execute_and_collect()) == [(1, 2, "n"), (2, 4, "n"), (3, 6, "n")]
    assert more.record_type.names == ["value", "double", "name"]
    picked = numbers.select(square=pl.col("value") ** 2, name="squares")
    assert list(picked.execute_and_collect()) == [(1,), (4,), (9,)]
    assert picked._node.name == "squares"
    assert list(numbers.select(["value"]).execute_and_collect()) == [(1,), (2,), (3,)]


def test_a_keyword_that_is_no_expression_is_answered_with_one(env: Environment) -> None:
    with pytest.raises(ProgramError, match=r"with_columns\(x=1\).*x=pl.lit\(1\)"):
        env.from_sequence(1, 3).with_columns(x=1)


def test_several_conditions_must_all_hold(env: Environment) -> None:
    numbers = env.from_sequence(1, 9)
    found = numbers.filter(pl.col("value") > 3, pl.col("value") % 2 == 0)
    assert list(found.execute_and_collect()) == [4, 6, 8]
    with pytest.raises(ProgramError, match="filter takes one function, or polars expressions"):
        numbers.filter(pl.col("value") > 3, lambda n: True)


# ---- what has no type ----


class Tagged(NamedTuple):
    name: str
    tags: set[str]


def tagged(n: int) -> Tagged:
    return Tagged(str(n), {"a"})


def test_a_type_that_travels_as_a_pickle_is_named_in_the_log_with_the_reason(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    stream = env.from_sequence(1, 2).map(tagged).rebalance().map(lambda t: len(t.tags), returns=int)
    assert list(stream.execute_and_collect()) == [1, 1]
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "'map tagged' sends records to " in line
    assert (
        "because field 'tags' of Tagged is set[str], which has no Arrow type; give `tagged` a return type hint"
        in line
    )


def test_whoever_declares_no_type_or_object_is_not_warned(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    anything = env.from_sequence(1, 2).map(lambda n: {n}).rebalance().map(len, returns=int)
    assert list(anything.execute_and_collect()) == [1, 1]
    meant = env.from_sequence(1, 2).map(lambda n: {n}, returns=object).rebalance().map(len, returns=int)
    assert list(meant.execute_and_collect()) == [1, 1]
    assert caplog.records == []
