"""CSV: what is a record, what is not, and that both directions agree."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass

import pyarrow as pa
import pytest

from tidegate.core.errors import ProgramError, SchemaError
from tidegate.formats import CsvFormat
from tidegate.formats.lines import DecodedLines, decode_lines
from tidegate.records.types import record_type_of

SCHEMA = pa.schema(
    [pa.field("a", pa.int64(), False), pa.field("s", pa.string(), False), pa.field("f", pa.float64())]
)
GOOD = b"1,x,1.5\n"
GOOD_ROW = {"a": 1, "s": "x", "f": 1.5}


def decode(chunk: bytes, schema: pa.Schema = SCHEMA, columns: list[str] | None = None) -> DecodedLines:
    decoder = CsvFormat().decoder(schema, columns or schema.names)
    return decode_lines(decoder, chunk, pa.RecordBatch.from_pylist([], schema=schema))


@pytest.mark.parametrize(
    "chunk",
    [GOOD, GOOD.rstrip(), b"1,x,1.5\r\n", b"\n\r\n" + GOOD + b"\n", b'"1","x",1.50\n', b'1,"x",1.5\r\n\r\n'],
)
def test_a_line_in_any_spelling_is_the_same_record(chunk):
    decoded = decode(chunk)
    assert (decoded.columns.to_pylist(), decoded.bad) == ([GOOD_ROW], [])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"x,x,1.5\n", "field 'a': int64: invalid value 'x'"),
        (b"1.5,x,1.5\n", "field 'a'"),
        (b"9223372036854775808,x,1\n", "field 'a'"),
        (b",x,1.5\n", "field 'a' is empty"),
        (b"1,x,y\n", "field 'f'"),
        (b"1,x\n", "Expected 3 columns, got 2"),
        (b"1,x,1.5,2\n", "Expected 3 columns, got 4"),
        (b'1,"x,1.5\n', "a quoted value does not end on its line"),
        (b'1,"a""b"",1.5\n', "a quoted value does not end on its line"),
        (b"1,a\rb,1.5\n", "a carriage return"),
        (b"1,\xff,1.5\n", "field 's': string: invalid UTF8"),
        (b"   \n", "Expected 3 columns, got 1"),
    ],
)
def test_a_bad_line_is_named_and_its_neighbours_are_kept(bad, reason):
    decoded = decode(GOOD + bad + GOOD)
    assert decoded.columns.to_pylist() == [GOOD_ROW, GOOD_ROW]
    (one,) = decoded.bad
    assert reason in one.reason
    assert (one.offset, one.rows_before) == (len(GOOD), 1)


def test_a_value_over_two_lines_is_bad_lines_even_if_the_count_comes_out_right():
    decoded = decode(b'1,"x\ny",1.5\n2,x,1\r3,y,1\n')
    assert decoded.columns.num_rows == 0
    assert len(decoded.bad) == 3


def test_empty_values_are_null_and_quoted_ones_are_not():
    schema = pa.schema(
        [pa.field("a", pa.int64()), pa.field("s", pa.string()), pa.field("t", pa.string(), False)]
    )
    decoded = decode(b',,\n1,"",""\n', schema)
    assert decoded.columns.to_pylist() == [{"a": None, "s": None, "t": ""}, {"a": 1, "s": "", "t": ""}]


def test_columns_are_found_by_the_header():
    header = CsvFormat().file_columns(b'f,extra,"s",a', [])
    assert header == ["f", "extra", "s", "a"]
    assert decode(b"1.5,zzz,x,1\n", columns=header).columns.to_pylist() == [GOOD_ROW]


@pytest.mark.parametrize(
    ("columns", "message"),
    [(["a", "s"], "no column 'f'; the columns are a, s"), (["a", "s", "f", "a"], "two columns 'a'")],
)
def test_a_header_that_does_not_fit_is_refused(columns, message):
    with pytest.raises(SchemaError, match=message):
        CsvFormat().decoder(SCHEMA, columns)


@dataclass
class Everything:
    i: int
    f: float
    s: str
    b: bool
    at: dt.datetime
    day: dt.date
    time: dt.time
    price: decimal.Decimal
    maybe: str | None


def test_every_column_type_comes_back_as_it_was_written():
    record_type = record_type_of(Everything)
    rows = [
        Everything(
            -5,
            0.1,
            'a"b,é;',
            True,
            dt.datetime(2024, 1, 2, 3, 4, 5, 678),  # noqa: DTZ001
            dt.date(2024, 2, 29),
            dt.time(1, 2, 3, 4),
            decimal.Decimal("1.25"),
            maybe,
        )
        for maybe in (None, "", "NULL")
    ]
    csv = CsvFormat()
    text = csv.encode(record_type.to_columns(rows))
    columns = csv.file_columns(csv.header(record_type.schema).rstrip(), [])
    decoded = decode(text, record_type.schema, columns)
    assert decoded.bad == []
    assert record_type.to_rows(decoded.columns) == rows


def test_a_line_break_in_a_value_is_refused_when_written():
    with pytest.raises(SchemaError, match="column 's' has a value with a line break"):
        CsvFormat().encode(pa.record_batch({"s": ["a\nb"]}))


@pytest.mark.parametrize(
    "data_type", [pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.binary(), pa.duration("us")]
)
def test_columns_without_a_text_form_are_refused_by_name(data_type):
    with pytest.raises(SchemaError, match="column 'odd'"):
        CsvFormat().check_schema(pa.schema([("odd", data_type)]))


def test_a_delimiter_is_one_character():
    with pytest.raises(ProgramError, match="delimiter"):
        CsvFormat(delimiter=";;")


def test_schema_is_inferred():
    schema = CsvFormat().infer_schema(b"a,b,c,d\n1,x,,2024-01-02T03:04:05\n2.5,y,,2024-01-02T03:04:05\n")
    assert schema == pa.schema(
        {"a": pa.float64(), "b": pa.string(), "c": pa.string(), "d": pa.timestamp("us")}
    )
