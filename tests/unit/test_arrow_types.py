"""Every Arrow type through every kind of operator: it comes out as it went in, or is refused where it is written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate import (
    CountDistinct,
    Environment,
    FileSource,
    First,
    TopN,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.api.streams import DataStream
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.records.types import RowType


class Kind(NamedTuple):
    """A type, two values, and what it cannot be used for."""

    declared: pa.DataType
    values: list[Any]
    plain: pa.DataType | None = None
    """The type that records have, where it is another."""
    refuses: str = ""


START = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - a column without a zone
ZONED = START.replace(tzinfo=dt.UTC)
NESTED = "key distinct"
KINDS = {
    "map": Kind(pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("b", 2)]], refuses=NESTED),
    "map in a struct": Kind(
        pa.struct([("m", pa.map_(pa.string(), pa.int64()))]), [{"m": [("a", 1)]}, {"m": []}], refuses=NESTED
    ),
    "fixed-size binary": Kind(pa.binary(4), [b"abcd", b"efgh"]),
    "list of fixed-size binary": Kind(pa.list_(pa.binary(2)), [[b"ab"], [b"cd"]], refuses=NESTED),
    "decimal32": Kind(pa.decimal32(5, 2), [Decimal("1.50"), Decimal("2.25")]),
    "decimal64": Kind(pa.decimal64(10, 2), [Decimal("1.50"), Decimal("2.25")]),
    "decimal128": Kind(pa.decimal128(38, 2), [Decimal("1.50"), Decimal("2.25")]),
    "decimal256": Kind(pa.decimal256(50, 2), [Decimal("1.50"), Decimal("2.25")], refuses="touch"),
    "decimal256 in a list": Kind(
        pa.list_(pa.decimal256(50, 2)), [[Decimal("1.50")], []], refuses=f"touch {NESTED}"
    ),
    "interval": Kind(
        pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3])] * 2, refuses=f"touch {NESTED}"
    ),
    "large string": Kind(pa.large_string(), ["a", "b"]),
    "large list": Kind(pa.large_list(pa.int64()), [[1], [2, 3]], refuses=NESTED),
    "fixed-size list": Kind(pa.list_(pa.int64(), 2), [[1, 2], [2, 3]], refuses=NESTED),
    "string view": Kind(pa.string_view(), ["a", "b"], pa.string()),
    "binary view": Kind(pa.binary_view(), [b"a", b"b"], pa.binary()),
    "list view": Kind(pa.list_view(pa.int64()), [[1], [2, 3]], pa.list_(pa.int64()), NESTED),
    "dictionary of text": Kind(pa.dictionary(pa.int8(), pa.string()), ["a", "b"], pa.string()),
    "dictionary of numbers": Kind(pa.dictionary(pa.uint64(), pa.int64()), [1, 2], pa.int64()),
    "run-end encoded": Kind(pa.run_end_encoded(pa.int32(), pa.int64()), [7, 8], pa.int64()),
    "half float": Kind(pa.float16(), [1.0, 2.0]),
    "half float in a struct": Kind(
        pa.struct([("h", pa.float16())]), [{"h": 1.0}, {"h": 2.0}], refuses=NESTED
    ),
    "time of seconds": Kind(pa.time32("s"), [dt.time(1), dt.time(2)]),
    "time of milliseconds": Kind(pa.time32("ms"), [dt.time(1), dt.time(2)]),
    "date64": Kind(pa.date64(), [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]),
    "timestamp of seconds": Kind(pa.timestamp("s"), [START, START + dt.timedelta(1)]),
    "timestamp with an offset": Kind(pa.timestamp("us", "+02:00"), [ZONED, ZONED]),
    "duration of seconds": Kind(pa.duration("s"), [dt.timedelta(1), dt.timedelta(2)]),
    "null": Kind(pa.null(), [None, None], refuses="distinct"),
    "extension": Kind(pa.uuid(), [b"0" * 16, b"1" * 16]),
    "struct without fields": Kind(pa.struct([]), [{}, {}], refuses=NESTED),
}

Use = Callable[[DataStream], DataStream]
TEN = TumblingEventTimeWindows("10 s")


def stamped(stream: DataStream) -> DataStream:
    return stream.assign_timestamps_and_watermarks(WatermarkStrategy.bounded("1 s", pl.col("n") * 1))


def later(first: Any, second: Any) -> Any:
    return second


PASSING: dict[str, Use] = {
    "nothing": lambda s: s,
    "with_columns": lambda s: s.with_columns((pl.col("n") + 1).alias("m")),
    "with_columns alias": lambda s: s.with_columns(pl.col("x").alias("y")).select(
        pl.col("y").alias("x"), "n"
    ),
    "select": lambda s: s.select("x", (pl.col("n") + 1).alias("m")),
    "select alias": lambda s: s.select(pl.col("x").alias("y"), "n").select(pl.col("y").alias("x"), "n"),
    "select all": lambda s: s.select(pl.all()),
    "a run": lambda s: s.with_columns(pl.col("n") + 1).select("n", "x").with_columns(pl.col("n") * 2),
    "computed selector": lambda s: s.with_columns(pl.col(pl.Int64).name.suffix("_too")),
    "filter": lambda s: s.filter(pl.col("n") > 0),
    "filter of some": lambda s: s.filter(pl.col("n").is_in([1, 2, 3])).filter(pl.col("n") < 3),
    "timestamps": lambda s: stamped(s),
    "exchange": lambda s: s.rebalance().filter(pl.col("n") > 0),
    "keyed": lambda s: s.key_by("n").reduce(later, emit="each"),
    "deduplicated": lambda s: stamped(s).key_by("n").deduplicate(within="1 h"),
    "window join": lambda s: (
        stamped(s)
        .join(stamped(s))
        .where("n")
        .equal_to("n")
        .window(TEN)
        .apply(later, returns=s.record_type.schema)
    ),
    "first of a window": lambda s: stamped(s).key_by("n").window(TEN).aggregate(x=First("x")),
}


def stream(kind: Kind) -> DataStream:
    env = Environment(runtime="in-process", parallelism=1)
    rows = [{"x": x, "n": n} for n, x in enumerate(kind.values, 1)]
    return env.from_collection(rows, type=pa.schema([("x", kind.declared), ("n", pa.int64())]))


@pytest.mark.parametrize("use", PASSING)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_column_that_is_passed_on_keeps_its_type_and_its_values(kind: Kind, use: str) -> None:
    source = stream(kind)
    made = PASSING[use](source)
    assert source.record_type.schema.field("x").type == (kind.plain or kind.declared)
    assert made.record_type.schema.field("x").type == (kind.plain or kind.declared)
    wanted = [row.x for row in source.execute_and_collect()]
    assert [row.x for row in made.execute_and_collect()] == wanted


USING: dict[str, Use] = {
    "touch": lambda s: s.filter(pl.col("x").is_not_null() | True).with_columns(
        pl.col("x").is_null().alias("z")
    ),
    "touch all": lambda s: s.select(pl.all().is_null()),
    "key": lambda s: s.key_by("x").count(),
    "distinct": lambda s: stamped(s).window_all(TEN).aggregate(found=CountDistinct("x")),
    "best": lambda s: stamped(s).window_all(TEN).aggregate(found=TopN(1, by="n")),
}


@pytest.mark.parametrize("use", USING)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_column_that_is_used_works_or_is_refused_by_name_where_it_is_written(kind: Kind, use: str) -> None:
    source = stream(kind)
    if use.split()[0] in kind.refuses.split():
        with pytest.raises(
            ProgramError, match=r"'x'.*" + str(kind.plain or kind.declared).split("(")[0].split("<")[0]
        ):
            USING[use](source)
    else:
        assert list(USING[use](source).execute_and_collect())


def test_a_union_is_refused_by_its_column() -> None:
    union = pa.sparse_union([pa.field("a", pa.int64()), pa.field("b", pa.string())])
    with pytest.raises(SchemaError, match=r"column 'x': records cannot hold a union .*Use a struct"):
        RowType(pa.schema([("x", union)]))


def test_layouts_that_a_function_hands_over_become_the_declared_types() -> None:
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(["a", "b"], pa.string_view()),
            pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([7])),
            pa.array([[1], None], pa.list_view(pa.int64())),
            pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array(["c"], pa.string_view())),
        ],
        names=["text", "run", "list", "category"],
    )
    made = (
        Environment(runtime="in-process")
        .from_collection([1])
        .map_batches(lambda _: rows, returns=rows.schema)
    )
    assert made.record_type.schema.types == [pa.string(), pa.int64(), pa.list_(pa.int64()), pa.string()]
    assert list(map(tuple, made.execute_and_collect())) == [("a", 7, [1], "c"), ("b", 7, None, None)]


def test_a_parquet_file_of_views_is_read_as_the_plain_types(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(["a", "b"], pa.string_view()), "n": [1, 2]})
    pq.write_table(table, tmp_path / "views.parquet")
    env = Environment(runtime="in-process", parallelism=1)
    read = env.from_source(FileSource(tmp_path / "views.parquet")).filter(pl.col("n") > 1)
    assert read.record_type.schema.field("x").type == pa.string()
    assert list(map(tuple, read.execute_and_collect())) == [("b", 2)]


def test_a_result_that_arrow_has_no_type_for_is_refused_with_its_name_and_type() -> None:
    numbers = Environment().from_collection([{"n": 1}])
    with pytest.raises(ProgramError, match=r"select: column 'big' would be Int128, .*Cast the expression"):
        numbers.select(pl.col("n").cast(pl.Int128).alias("big"))
