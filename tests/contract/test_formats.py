"""The contract of formats: one suite that every format passes, whatever its bytes look like.

What is written is read back, a text format is read from any line on, and a line that is no record is named alone.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.core.errors import SchemaError
from tidegate.formats import CsvFormat, JsonLinesFormat, ParquetFormat, TextFormat, TextLinesFormat
from tidegate.formats.lines import DecodedLines, decode_lines

ROWS = 60
CLICKS = pa.schema([pa.field("app", pa.string(), nullable=False), pa.field("n", pa.int64())])
LINES = pa.schema([pa.field("value", pa.string(), nullable=False)])
WORDS = ['tide "gate", ☃', "plain", "a\tb", " spaces ", "{}", "0", "\\", "x" * 300, "ünïcode", "'"]


def _clicks() -> pa.RecordBatch:
    apps, numbers = (
        [WORDS[i % 10] for i in range(ROWS)],
        [None if i % 7 == 0 else i - 30 for i in range(ROWS)],
    )
    return pa.record_batch([pa.array(apps), pa.array(numbers, pa.int64())], schema=CLICKS)


def _lines() -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(["" if i % 7 == 0 else WORDS[i % 10] for i in range(ROWS)])], schema=LINES
    )


@dataclass
class Case:
    """A format under test, records for it, and a column that it cannot hold."""

    format: TextFormat | ParquetFormat
    records: pa.RecordBatch
    refused: pa.DataType

    @property
    def schema(self) -> pa.Schema:
        return self.records.schema

    @property
    def text(self) -> TextFormat:
        assert isinstance(self.format, TextFormat)
        return self.format

    def written(self, *batches: pa.RecordBatch) -> bytes:
        stream = io.BytesIO()
        writer = self.format.open_writer(stream, self.schema)
        for batch in batches:
            writer.write(batch)
        writer.finish()
        return stream.getvalue()

    def read(self, file: bytes) -> pa.RecordBatch:
        if isinstance(self.format, ParquetFormat):
            return pq.read_table(io.BytesIO(file)).combine_chunks().to_batches()[0]
        decoded = self.decode(file[len(self.format.header(self.schema)) :])
        assert decoded.bad == []
        return decoded.columns

    def decode(self, chunk: bytes, schema: pa.Schema | None = None, dictionary: bool = False) -> DecodedLines:
        schema = self.schema if schema is None else schema
        first_line = self.text.header(self.schema).rstrip(b"\r\n")
        columns = self.text.file_columns(first_line, self.schema.names)
        decoder = self.text.decoder(schema, columns, self.schema.names[:1] if dictionary else ())
        return decode_lines(decoder, chunk, pa.RecordBatch.from_pylist([], schema=schema))


TEXT_CASES = {
    "JSON lines": lambda: Case(JsonLinesFormat(), _clicks(), pa.dense_union([pa.field("u", pa.int64())])),
    "CSV": lambda: Case(CsvFormat(), _clicks(), pa.list_(pa.int64())),
    "text lines": lambda: Case(TextLinesFormat(), _lines(), pa.int64()),
}
CASES = TEXT_CASES | {"Parquet": lambda: Case(ParquetFormat(), _clicks(), pa.month_day_nano_interval())}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


@pytest.fixture(params=TEXT_CASES)
def text_case(request: pytest.FixtureRequest) -> Case:
    return TEXT_CASES[request.param]()


# ---- every format ----


def test_what_is_written_is_read_back_however_the_records_came(case):
    whole = case.written(case.records)
    assert case.read(whole).to_pylist() == case.records.to_pylist()
    pieces = [case.records.slice(i, 7) for i in range(0, ROWS, 7)]
    assert case.read(case.written(*pieces)).to_pylist() == case.records.to_pylist()


def test_the_schema_that_was_written_is_accepted_and_one_that_cannot_be_is_refused_by_its_column(case):
    case.format.check_schema(case.schema)
    with pytest.raises(SchemaError, match="odd"):
        case.format.check_schema(pa.schema([pa.field("odd", case.refused)]))


def test_a_writer_knows_about_how_large_the_file_is_before_and_after_it_is_written(case):
    stream = io.BytesIO()
    writer = case.format.open_writer(stream, case.schema)
    empty = writer.size_bytes()
    writer.write(case.records)
    assert writer.size_bytes() > empty, "what is buffered counts"
    writer.flush()
    writer.finish()
    assert not stream.closed, "the stream belongs to the caller"


def test_a_name_and_an_extension_say_which_format_it_is(case):
    assert case.format.name
    assert case.format.extension.isalnum()


# ---- text: lines ----


def test_a_flushed_file_holds_every_record_so_far(text_case):
    stream = io.BytesIO()
    writer = text_case.format.open_writer(stream, text_case.schema)
    for i in range(0, ROWS, 20):
        writer.write(text_case.records.slice(i, 20))
        writer.flush()
        assert text_case.read(stream.getvalue()).num_rows == i + 20
        assert writer.size_bytes() == len(stream.getvalue())


def test_every_record_is_one_line_and_no_records_are_none(text_case):
    assert text_case.text.encode(text_case.records).count(b"\n") == ROWS
    assert text_case.text.encode(text_case.records.slice(0, 0)) == b""
    assert text_case.decode(b"").columns.num_rows == 0


def test_lines_are_records_from_any_line_on_and_however_they_are_cut(text_case):
    lines = text_case.text.encode(text_case.records).splitlines(keepends=True)
    expected = text_case.records.to_pylist()
    for cut in range(0, ROWS + 1, 4):
        before, after = (text_case.decode(b"".join(part)) for part in (lines[:cut], lines[cut:]))
        assert before.columns.to_pylist() + after.columns.to_pylist() == expected
        assert [after.start_of(0)] == [0] if cut < ROWS else after.columns.num_rows == 0


def test_line_ends_of_windows_and_a_last_line_without_one_change_nothing(text_case):
    chunk = text_case.text.encode(text_case.records)
    expected = text_case.records.to_pylist()
    assert text_case.decode(chunk.replace(b"\n", b"\r\n")).columns.to_pylist() == expected
    assert text_case.decode(chunk.removesuffix(b"\n")).columns.to_pylist() == expected


@pytest.mark.parametrize("place", [0, 1, 30, ROWS])
def test_a_line_that_is_no_record_is_named_with_its_place_and_the_others_are_kept(text_case, place):
    lines = text_case.text.encode(text_case.records).splitlines(keepends=True)
    head = b"".join(lines[:place])
    decoded = text_case.decode(head + b"\xff\xfe\n" + b"".join(lines[place:]))
    assert decoded.columns.to_pylist() == text_case.records.to_pylist()
    (bad,) = decoded.bad
    assert (bad.offset, bad.rows_before, bad.text) == (len(head), place, b"\xff\xfe")
    assert bad.reason
    assert "\n" not in bad.reason
    starts = [decoded.start_of(i) for i in range(ROWS)]
    assert starts == sorted(set(starts) - {len(head)}), "every row has its own line"


def test_dictionary_columns_hold_the_same_values(text_case):
    chunk = text_case.text.encode(text_case.records)
    first = text_case.decode(chunk, dictionary=True).columns.column(0)
    assert pa.types.is_dictionary(first.type)
    assert first.to_pylist() == text_case.records.column(0).to_pylist()


@pytest.mark.parametrize("kept", [0, 1])
def test_a_decoder_gives_the_columns_that_it_is_asked_for_one_row_per_line(text_case, kept):
    schema = pa.schema(list(text_case.schema)[-kept:] if kept else [])
    decoded = text_case.decode(text_case.text.encode(text_case.records), schema)
    assert decoded.columns.num_rows == ROWS
    assert decoded.columns.schema.names == schema.names
    for name in schema.names:
        assert decoded.columns.column(name).to_pylist() == text_case.records.column(name).to_pylist()


def test_the_schema_of_some_lines_names_the_columns_and_reads_them(text_case):
    file = text_case.written(text_case.records)
    schema = text_case.text.infer_schema(file)
    assert schema.names == text_case.schema.names
    decoded = text_case.decode(file[len(text_case.text.header(text_case.schema)) :], schema)
    assert decoded.columns.to_pylist() == text_case.records.to_pylist()
