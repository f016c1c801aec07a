"""Every type that a Parquet file can hold, through every format: it comes back as it was, or is refused by name.

A refusal comes where the program is written, with a reason that is true; a column that is not read never matters.
"""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.connectors.reader_harness import ReaderHarness, all_splits, read_all
from tidegate import FileSource
from tidegate.core.errors import SchemaError
from tidegate.formats import CsvFormat, JsonLinesFormat, ParquetFormat
from tidegate.records.plain_types import plain_type

NESTED = "CSV has no nested values. Use JSON or Parquet"
NO_CSV = "CSV is not written or read with that type. Use Parquet, or convert the column"
NO_JSON = "JSON is not written or read with that type. Use Parquet, or convert the column first"
MICROSECONDS = "JSON holds microseconds. Cast the column to those first"
DAY, NOON = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, 0, 0, 5)  # noqa: DTZ001
NANOSECONDS = [1_709_208_000_000_000_007, None, -1]
POINT = pa.struct([("x", pa.int64()), ("at", pa.timestamp("ns"))])


class Case(NamedTuple):
    """A type, values of it, what a reader without a schema makes of it, and why a format refuses it."""

    kind: pa.DataType
    values: list[Any]
    json: str | None = None
    csv: str | None = None
    parquet: str | None = None
    read_as: pa.DataType | None = None


CASES = [
    Case(pa.null(), [None, None], csv=NO_CSV),
    Case(pa.bool_(), [True, None, False]),
    Case(pa.int8(), [-128, None, 127]),
    Case(pa.int64(), [-(2**63), None, 2**63 - 1]),
    Case(pa.uint64(), [0, None, 2**64 - 1]),
    Case(pa.float16(), [1.5, None, -0.1], csv=NO_CSV),
    Case(pa.float32(), [0.1, None, 3e38]),
    Case(pa.float64(), [0.1, None, -0.0, 5e-324, 1e308]),
    Case(pa.string(), ["a", None, "", 'q"é☃, ']),
    Case(pa.large_string(), ["a", None, ""]),
    Case(pa.string_view(), ["a", None, "x" * 30], csv=NO_CSV, read_as=pa.string()),
    Case(pa.binary(), [b"\x00\xff", None, b""], csv=NO_CSV),
    Case(pa.large_binary(), [b"\x00\xff", None, b""], csv=NO_CSV),
    Case(pa.binary_view(), [b"a", None, b"x" * 30], csv=NO_CSV, read_as=pa.binary()),
    Case(pa.binary(3), [b"abc", None, b"\x00\x00\x00"], csv=NO_CSV),
    Case(pa.date32(), [DAY, None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    Case(pa.date64(), [DAY, None], csv=NO_CSV, read_as=pa.date32()),
    Case(pa.time32("s"), [dt.time(1, 2, 3), None], read_as=pa.time32("ms")),
    Case(pa.time32("ms"), [dt.time(1, 2, 3, 4000), None]),
    Case(pa.time64("us"), [dt.time(1, 2, 3, 4), None]),
    Case(pa.time64("ns"), [dt.time(1, 2, 3, 4), None], json=MICROSECONDS),
    Case(pa.timestamp("s"), [NOON.replace(microsecond=0), None], read_as=pa.timestamp("ms")),
    Case(pa.timestamp("ms"), [NOON.replace(microsecond=0), None]),
    Case(pa.timestamp("us"), [NOON, None, dt.datetime(1600, 1, 1)]),  # noqa: DTZ001
    Case(pa.timestamp("ns"), NANOSECONDS),
    Case(pa.timestamp("us", "UTC"), [1, None]),
    Case(pa.timestamp("ns", "Europe/Berlin"), NANOSECONDS),
    Case(pa.duration("s"), [dt.timedelta(1), None], csv=NO_CSV),
    Case(pa.duration("us"), [dt.timedelta(days=-1, microseconds=5), None], csv=NO_CSV),
    Case(pa.duration("ns"), [1, None], json=MICROSECONDS, csv=NO_CSV),
    Case(pa.decimal32(5, 2), [Decimal("1.25"), None], csv=NO_CSV),
    Case(pa.decimal64(15, 2), [Decimal("1.25"), None], csv=NO_CSV),
    Case(pa.decimal128(38, 2), [Decimal("9" * 36 + ".99"), None, Decimal("-0.01")]),
    Case(
        pa.decimal128(5, -2), [Decimal("1E+2"), None], parquet="cannot hold it: Scale must be a non-negative"
    ),
    Case(pa.decimal256(60, 5), [Decimal("9" * 50 + ".12345"), None], csv=NO_CSV),
    Case(pa.list_(pa.int64()), [[1, None], None, []], csv=NESTED),
    Case(pa.large_list(pa.string()), [["a"], None, []], csv=NESTED),
    Case(pa.list_(pa.int64(), 2), [[1, 2], None, [3, None]], csv=NESTED),
    Case(pa.list_view(pa.int64()), [[1], None], json=NO_JSON, csv=NESTED, read_as=pa.list_(pa.int64())),
    Case(pa.list_(pa.timestamp("ns")), [NANOSECONDS, None, []], csv=NESTED),
    Case(POINT, [{"x": 1, "at": 7}, None, {"x": None, "at": None}], csv=NESTED),
    Case(pa.list_(POINT), [[{"x": 1, "at": 1_709_208_000_000_000_007}], None, []], csv=NESTED),
    Case(pa.struct([("b", pa.binary(2)), ("f", pa.float16())]), [{"b": b"ab", "f": 0.5}, None], csv=NESTED),
    Case(pa.struct([("t", pa.time64("ns"))]), [{"t": dt.time(1)}, None], json=MICROSECONDS, csv=NESTED),
    Case(pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], None, []], csv=NESTED),
    Case(pa.map_(pa.int64(), pa.timestamp("ns")), [[(1, 7)], None], csv=NESTED),
    Case(
        pa.map_(pa.date32(), pa.int64()), [[(DAY, 1)], None], json="objects with str or int keys", csv=NESTED
    ),
    Case(
        pa.month_day_nano_interval(),
        [None],
        json=NO_JSON,
        csv=NO_CSV,
        parquet="cannot hold it: Unhandled type",
    ),
]


def name(case: Case) -> str:
    return str(case.kind)


def column(case: Case) -> pa.Array:
    return pa.array(case.values, case.kind)


@pytest.mark.parametrize("case", CASES, ids=name)
@pytest.mark.parametrize("form", [JsonLinesFormat(), CsvFormat(), ParquetFormat()], ids=lambda f: f.name)
def test_a_column_comes_back_as_it_was_written_or_is_refused_by_name(tmp_path: Path, form: Any, case: Case):
    batch = pa.record_batch({"k": range(len(case.values)), "c": column(case)})
    reason = getattr(case, form.name)
    if reason is not None:
        with pytest.raises(SchemaError, match=f"column '[cat]+' is .*{reason}"):
            form.check_schema(batch.schema)
        return
    form.check_schema(batch.schema)
    path = tmp_path / f"a.{form.extension}"
    stream = io.BytesIO()
    writer = form.open_writer(stream, batch.schema)
    writer.write(batch.slice(0, 1))
    writer.write(batch.slice(1))
    writer.finish()
    path.write_bytes(stream.getvalue())
    table = pa.Table.from_batches([b.plain_columns for b in batches_of(FileSource(path, form, batch.schema))])
    back = table.column("c").combine_chunks()
    plain = plain_type(case.kind)
    assert back.type == plain
    assert back.equals(pa.array(case.values, plain)), back


def batches_of(source: FileSource) -> list[Any]:
    harness = ReaderHarness(source, all_splits(source), batch_rows=2)
    try:
        return harness.batches()
    finally:
        harness.reader.close()


@pytest.mark.parametrize("case", [c for c in CASES if c.parquet is None], ids=name)
def test_a_parquet_file_is_read_without_a_schema_and_any_of_its_columns_without_the_others(tmp_path, case):
    array = column(case)
    pq.write_table(pa.table({"k": range(len(array)), "c": array}), tmp_path / "a.parquet")
    source = FileSource(tmp_path, "parquet")
    assert source.record_type.schema.field("c").type == (case.read_as or case.kind)
    assert [tuple(row) for row in read_all(source.with_columns(["k"]))] == [(i,) for i in range(len(array))]
    (column_read,) = {batch.plain_columns.column("c").type for batch in batches_of(source)}
    assert column_read == (case.read_as or case.kind)
    assert sum(batch.num_rows for batch in batches_of(source.with_columns([]))) == len(array)


@pytest.mark.parametrize(("size", "line"), [(2, '{"c":[1]}'), (2, '{"c":[1,2,3]}'), (0, '{"c":[1]}')])
def test_a_list_of_another_size_is_bad(tmp_path, size, line):
    (tmp_path / "a.json").write_text(line + "\n")
    source = FileSource(
        tmp_path, "json", pa.schema([("c", pa.list_(pa.int64(), size))]), on_bad_record="skip"
    )
    assert read_all(source) == []


@pytest.mark.parametrize(("kind", "text"), [(pa.float16(), "70000"), (pa.float32(), "1e39")])
def test_a_number_too_large_for_its_type_is_bad(tmp_path, kind, text):
    (tmp_path / "a.json").write_text(f'{{"c":{text}}}\n{{"c":1.5}}\n')
    source = FileSource(tmp_path, "json", pa.schema([("c", kind)]), on_bad_record="skip")
    assert [row.c for row in read_all(source)] == [1.5]
