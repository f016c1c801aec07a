"""Spark DataFrames in and out: every type comes back as it was, and no staging file is left."""

# ruff: noqa: DTZ001 - times without a zone are one of the types
from __future__ import annotations

import datetime as dt
import gc
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.spark.kit import Noting, bag, by_key, in_process
from tidegate import Environment, JobFailedError, ProgramError, SchemaError

pytestmark = pytest.mark.timeout(90)

SCHEMA = T.StructType(
    [
        T.StructField("byte", T.ByteType()),
        T.StructField("short", T.ShortType()),
        T.StructField("int", T.IntegerType()),
        T.StructField("long", T.LongType()),
        T.StructField("float", T.FloatType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("text", T.StringType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("yes", T.BooleanType()),
        T.StructField("day", T.DateType()),
        T.StructField("moment", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("money", T.DecimalType(20, 4)),
        T.StructField("list", T.ArrayType(T.IntegerType())),
        T.StructField(
            "struct", T.StructType([T.StructField("x", T.IntegerType()), T.StructField("y", T.StringType())])
        ),
        T.StructField("map", T.MapType(T.StringType(), T.LongType())),
    ]
)


def all_types(n: int) -> list[tuple[Any, ...]]:
    return [
        (
            i % 100,
            -i,
            i,
            i << 40,
            i / 4,
            i / 8,
            f"text {i} ☃",
            bytes([i % 256, 0]),
            i % 2 == 0,
            dt.date(2024, 2, 29) + dt.timedelta(days=i),
            dt.datetime(2024, 2, 29, 12, 0, 0, i),
            dt.datetime(2024, 2, 29, 12, 0, 0, i),
            Decimal(i) / 4,
            [i, None, i + 1],
            (i, f"y{i}"),
            {f"k{i}": i},
        )
        if i % 3
        else (None,) * 16
        for i in range(n)
    ]


def plain(row: Any) -> Any:
    """Rows and what is inside them as values that compare."""
    if isinstance(row, Row):
        return tuple(plain(v) for v in row)
    if isinstance(row, (list, tuple)):
        return tuple(plain(v) for v in row)
    if isinstance(row, dict):
        return tuple(sorted(row.items()))
    return bytes(row) if isinstance(row, bytearray) else row


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


@pytest.fixture
def staged_env(make_env: Callable[..., Environment], staging: Path) -> Callable[..., Environment]:
    return lambda **options: make_env(spark_staging_dir=str(staging), **options)


def test_a_dataframe_of_every_type_goes_in_and_comes_out_as_it_was(spark, staged_env):
    before = spark.createDataFrame(all_types(30), SCHEMA).repartition(3)
    env = staged_env()
    after = env.from_dataframe(before).rebalance().to_dataframe()
    assert [f.dataType for f in after.schema] == [f.dataType for f in SCHEMA]
    assert bag(map(plain, after.collect())) == bag(map(plain, before.collect()))


def test_values_are_plain_python_in_functions(spark, staged_env, tmp_path):
    note = Noting(tmp_path / "notes")
    env = staged_env()
    rows = env.from_dataframe(spark.createDataFrame(all_types(5), SCHEMA))
    rows.filter(lambda r: r.int is not None).map(
        lambda r: (
            r.byte,
            r.long,
            r.text,
            r.money == Decimal(r.int) / 4,
            r.list,
            dict(r.map),
            r.struct["y"],
            r.day.year,
        )
    ).sink_to(note)
    env.execute()
    assert sorted(note.read()) == [
        (i, i << 40, f"text {i} ☃", True, [i, None, i + 1], {f"k{i}": i}, f"y{i}", 2024) for i in (1, 2, 4)
    ]


def test_the_result_of_a_query_is_counted_per_key(spark, staged_env):
    query = spark.range(1000).withColumn("key", F.col("id") % 7).where("id % 2 = 0").repartition(4)
    counted = staged_env().from_dataframe(query).key_by("key").count()
    assert {k: max(v) for k, v in by_key(counted.execute_and_collect()).items()} == bag(
        i % 7 for i in range(0, 1000, 2)
    )


def test_only_the_columns_that_are_used_are_read(spark, staged_env):
    env = staged_env()
    wide = spark.range(10).select("id", *(F.lit(i).alias(f"c{i}") for i in range(20)))
    assert bag(r.id for r in env.from_dataframe(wide).select("id").execute_and_collect()) == bag(range(10))
    env.from_dataframe(wide).select(pl.col("id") * 2).print()
    assert "Row(id: int64" in env.explain()


def test_an_empty_dataframe_gives_no_records_and_a_dataframe_of_the_right_schema(spark, staged_env):
    env = staged_env()
    nothing = env.from_dataframe(spark.createDataFrame([], SCHEMA))
    assert list(nothing.execute_and_collect()) == []
    back = nothing.to_dataframe()
    assert back.count() == 0
    assert back.columns == [f.name for f in SCHEMA]


@dataclass
class Sale:
    day: dt.date
    amount: float
    items: list[str]
    note: str | None


def sale(i: int) -> Sale:
    return Sale(
        dt.date(2024, 1, 1 + i % 28), i / 2, [f"item {j}" for j in range(i % 3)], None if i % 2 else "even"
    )


def test_records_of_a_dataclass_become_a_dataframe_that_sql_can_query(spark, staged_env):
    sales = staged_env().from_sequence(0, 99).map(sale).to_dataframe()
    assert dict(sales.dtypes) == {
        "day": "date",
        "amount": "double",
        "items": "array<string>",
        "note": "string",
    }
    sales.createOrReplaceTempView("sales")
    found = spark.sql("SELECT day, sum(amount) AS total FROM sales WHERE note IS NULL GROUP BY day").collect()
    expected: dict[dt.date, float] = {}
    for s in map(sale, range(100)):
        if s.note is None:
            expected[s.day] = expected.get(s.day, 0) + s.amount
    assert {r.day: r.total for r in found} == expected
    spark.catalog.dropTempView("sales")


def test_scalars_and_tuples_have_the_columns_that_the_docs_say(staged_env):
    env = staged_env()
    assert sorted(tuple(r) for r in env.from_sequence(1, 3).to_dataframe().collect()) == [(1,), (2,), (3,)]
    assert env.from_sequence(1, 3).to_dataframe().columns == ["value"]
    pairs = env.from_collection([(1, "a"), (2, "b")], type=tuple[int, str]).to_dataframe()
    assert pairs.columns == ["f0", "f1"]
    assert sorted(tuple(r) for r in pairs.collect()) == [(1, "a"), (2, "b")]


def test_a_dataframe_can_go_round_several_times(spark, staged_env):
    frame = spark.range(20)
    for _ in range(3):
        frame = staged_env().from_dataframe(frame).with_columns(pl.col("id") + 1).to_dataframe()
    assert sorted(r.id for r in frame.collect()) == list(range(3, 23))


def test_a_stream_can_be_read_twice_from_one_staged_dataframe(spark, staged_env):
    stream = staged_env().from_dataframe(spark.range(50))
    for _ in range(2):
        assert bag(r.id for r in stream.execute_and_collect()) == bag(range(50))


def test_no_staging_file_is_left_behind_a_program(spark, staged_env, staging):
    def program() -> list[Any]:
        env = staged_env()
        return sorted(r.id for r in env.from_dataframe(spark.range(50)).execute_and_collect())

    assert program() == list(range(50))
    gc.collect()
    assert list(staging.iterdir()) == []


def test_the_in_process_runtime_reads_dataframes_too(spark, staging):
    env = in_process(spark_staging_dir=str(staging))
    assert bag(r.id for r in env.from_dataframe(spark.range(9)).execute_and_collect()) == bag(range(9))


# ---- refused ----


def test_a_streaming_dataframe_is_refused(spark, make_env):
    with pytest.raises(ProgramError, match="bounded DataFrame; this one is streaming"):
        make_env().from_dataframe(spark.readStream.format("rate").load())


@pytest.mark.parametrize("value", [[1, 2], None, pa.table({"a": [1]})], ids=["list", "None", "table"])
def test_what_is_no_dataframe_is_refused(make_env, value):
    with pytest.raises(ProgramError, match="from_dataframe needs a Spark DataFrame, got a "):
        make_env().from_dataframe(value)


def test_objects_without_columns_cannot_become_a_dataframe(make_env):
    with pytest.raises(SchemaError, match="they have no columns"):
        make_env().from_collection([1, "a"]).to_dataframe()


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.time64("us"),
        pa.timestamp("ns"),
        pa.duration("ns"),
        pa.list_(pa.duration("s")),
        pa.struct([("t", pa.timestamp("ns", "UTC"))]),
    ],
    ids=str,
)
def test_a_column_that_spark_would_misread_is_refused_before_the_job_runs(make_env, kind):
    stream = make_env().from_collection([], type=pa.schema([("good", pa.int64()), ("bad", kind)]))
    with pytest.raises(SchemaError, match="to_dataframe cannot return column 'bad'"):
        stream.to_dataframe()


def test_durations_and_moments_of_any_century_come_back(staged_env):
    long_ago = dt.datetime(1582, 10, 4)
    env = staged_env()
    values = [(dt.timedelta(days=-1, microseconds=7), long_ago), (dt.timedelta(0), dt.datetime(9999, 12, 31))]
    frame = env.from_collection(values, type=tuple[dt.timedelta, dt.datetime]).to_dataframe()
    assert sorted(tuple(r) for r in frame.collect()) == sorted(values)
    again = env.from_dataframe(frame.select("f1"))
    assert sorted(r.f1 for r in again.execute_and_collect()) == [long_ago, dt.datetime(9999, 12, 31)]


@pytest.mark.parametrize("query", ["interval '3' second", "interval '3' month", "array(interval '3' day)"])
def test_a_column_that_only_spark_can_read_is_refused(spark, make_env, query):
    with pytest.raises(SchemaError, match="from_dataframe cannot read column 'bad'"):
        make_env().from_dataframe(spark.sql(f"SELECT 1 AS good, {query} AS bad"))


def test_a_job_that_fails_on_its_way_to_a_dataframe_says_why(make_env):
    with pytest.raises(JobFailedError, match="operator 'divide'"):
        make_env().from_sequence(0, 3).map(lambda n: 1 // n, returns=int, name="divide").to_dataframe()


def test_a_query_that_fails_while_it_is_staged_raises_sparks_own_error_and_leaves_nothing(
    spark, staged_env, staging
):
    bad = spark.range(10).select(F.raise_error(F.lit("no such luck")).cast("long").alias("x"))
    with pytest.raises(Exception, match="no such luck"):
        staged_env().from_dataframe(bad)
    gc.collect()
    assert list(staging.iterdir()) == []
