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
        (b'1,"a"b,1.5\n', "a quoted value has text after its closing quote"),
        (b'1,""b,1.5\n', "a quoted value has text after its closing quote"),
        (b"0x10,x,1.5\n", "field 'a': int64: invalid value '0x10'"),
        (b'"0XfF",x,1.5\n', "field 'a': int64: invalid value '0XfF'"),
        (b"1_000,x,1.5\n", "field 'a'"),
        (b"+5,x,1.5\n", "field 'a'"),
        (b"1e3,x,1.5\n", "field 'a'"),
        ("１２,x,1.5\n".encode(), "field 'a'"),
        (b"nan,x,1.5\n", "field 'a'"),
        (b"1,x,1e400\n", "field 'f': double: invalid value '1e400'"),
        (b"1,x,nan(1)\n", "field 'f': double: invalid value 'nan(1)'"),
        (b"1,x,0x10\n", "field 'f'"),
        (b"1,x,1_0\n", "field 'f'"),
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


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("-7", -7),
        ("007", 7),
        ("-0", 0),
        (" 12\t", 12),
        ('"12"', 12),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_whole_numbers_are_decimal_digits_with_a_minus_or_not(text, number):
    assert decode(f"{text},0x1f,1\n".encode()).columns.column("a").to_pylist() == [number]


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e3", 1000.0), ("+1.5", 1.5), (".5", 0.5), ("-inf", float("-inf")), ("1e-400", 0.0), (" 2 ", 2.0)],
)
def test_numbers_may_have_an_exponent_or_be_infinite(text, number):
    assert decode(f"1,x,{text}\n".encode()).columns.column("f").to_pylist() == [number]


def test_a_number_that_does_not_fit_in_a_float_is_not_taken_for_infinity():
    narrow = pa.schema([pa.field("a", pa.int64()), pa.field("f", pa.float32())])
    decoded = decode(b"1,1e39\n2,inf\n3,1e38\n", narrow)
    assert [bad.text for bad in decoded.bad] == [b"1,1e39"]
    assert decoded.columns.column("a").to_pylist() == [2, 3]


def test_a_quote_inside_a_value_that_is_not_quoted_is_a_character():
    decoded = decode(b'1,5" pipe,1\n2,a"b"c,2\n3,x"",3\n')
    assert decoded.columns.column("s").to_pylist() == ['5" pipe', 'a"b"c', 'x""']


def test_in_a_file_of_one_column_an_empty_line_is_an_empty_value():
    csv = CsvFormat()
    for data_type, value in [(pa.string(), "x"), (pa.int64(), 1), (pa.float64(), 0.5), (pa.bool_(), True)]:
        schema = pa.schema([pa.field("a", data_type)])
        rows = [{"a": v} for v in (None, value, None, None, value, None)]
        text = csv.encode(pa.RecordBatch.from_pylist(rows, schema=schema))
        decoded = decode(text, schema)
        assert (decoded.columns.to_pylist(), decoded.bad) == (rows, [])
        assert decode(text.replace(b"\n", b"\r\n"), schema).columns.to_pylist() == rows
        assert decode(text, pa.schema([]), ["a"]).columns.num_rows == 6, "also where no column is read"
    whole = pa.schema([pa.field("s", pa.string(), nullable=False)])
    assert decode(b'a\n\n""\n', whole).columns.column(0).to_pylist() == ["a", "", ""]
    numbers = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    assert [bad.reason[:18] for bad in decode(b"1\n\n2\n", numbers).bad] == ["field 'a' is empty"]


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


def test_a_column_of_hexadecimal_numbers_is_inferred_as_text():
    schema = CsvFormat().infer_schema(b"id,n\n0x1f,1\n,2\n7,\n")
    assert schema == pa.schema({"id": pa.string(), "n": pa.int64()})
