"""CSV: one record per line, read strictly and written with pyarrow."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from tidegate.core.errors import ProgramError, SchemaError
from tidegate.formats.format import TextFormat, as_dictionary, check_no_nulls, refuse_column
from tidegate.formats.lines import LineDecoder, LinesRefused, LineTable
from tidegate.formats.quoted_values import QuotedValues, QuoteRules
from tidegate.records.columns import rows_without_columns

# Which of the numbers that Arrow accepts we accept too; Arrow ignores the blanks around them.
_WHOLE_NUMBER = r"^[ \t]*-?[0-9]+[ \t]*$"
_NUMBER = r"(?i)^[ \t]*[+-]?(nan|inf|infinity)[ \t]*$"
_COLUMN = re.compile(
    r"^(?:CSV parse error: )?(?:In CSV column #(\d+): )?(?:Row #\d+: )?(?:CSV conversion error to )?"
)


class CsvFormat(TextFormat):
    """Values between delimiters, one record per line, UTF-8, quoted with `"` where needed.

    With a header (the default) the first line of each file names its columns, and those that the schema does not name
    are ignored. Without a header the columns are those of the schema, in order. An empty value is null; in a `str`
    column that is not nullable it is the empty string. `""` is always the empty string. In a file of one column an
    empty line is an empty value; in other files it is ignored. A quoted value must end on its line: all lines that it
    spans are bad. Integers are decimal digits with an optional `-`; other numbers may have an exponent, or be `nan`,
    `inf` or `-inf`. Dates and times are ISO 8601, booleans `true`/`false` or `1`/`0`. Nested columns, bytes and
    timedelta are refused.

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"app": ["mail"], "clicks": [3]})
    >>> CsvFormat(delimiter=";").encode(batch)
    b'"mail";3\\n'
    """

    name = "csv"
    extension = "csv"

    def __init__(self, *, delimiter: str = ",", header: bool = True) -> None:
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise ProgramError(f"a CSV delimiter is one ASCII character, not {delimiter!r}")
        self.delimiter = delimiter
        self.has_header = header

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse nested columns and those without a text form."""
        for field in schema:
            data_type = field.type
            if pa.types.is_nested(data_type):
                raise refuse_column("CSV", field, "has no nested values. Use JSON or Parquet.")
            if not _is_text_type(data_type):
                raise refuse_column(
                    "CSV", field, "is not written or read with that type. Use Parquet, or convert the column."
                )

    def file_columns(self, first_line: bytes, declared: Sequence[str]) -> list[str]:
        """The names in the header; without a header, the declared columns."""
        if not self.has_header:
            return list(declared)
        try:
            rows = list(csv.reader([first_line.decode("utf-8")], delimiter=self.delimiter, strict=True))
        except (UnicodeDecodeError, csv.Error) as e:
            raise SchemaError(f"the header cannot be read: {e}") from e
        if not rows:
            raise SchemaError("the header is an empty line")
        return rows[0]

    def decoder(
        self, schema: pa.Schema, columns: Sequence[str], dictionary_columns: Sequence[str] = ()
    ) -> LineDecoder:
        """Make the decoder; raises `SchemaError` if a column is missing or occurs twice."""
        missing = [name for name in schema.names if name not in columns]
        if missing:
            raise SchemaError(f"there is no column {missing[0]!r}; the columns are {', '.join(columns)}")
        twice = [name for name in schema.names if list(columns).count(name) > 1]
        if twice:
            raise SchemaError(f"there are two columns {twice[0]!r}")
        return _CsvDecoder(schema, list(columns), dictionary_columns, self.delimiter)

    def open_values(self) -> QuotedValues:
        return QuotedValues(self.delimiter)

    def infer_schema(self, sample: bytes) -> pa.Schema:
        """Types that fit all values of the sample; a column without any value is a string column."""
        try:
            table = self._read_sample(sample, {})
            whole = [f.name for f in table.schema if pa.types.is_integer(f.type)]
            if whole and _has_hexadecimal(sample):
                # Arrow reads 0x10 as a number, we do not.
                texts = self._read_sample(sample, dict.fromkeys(whole, pa.string()))
                whole = [
                    n for n in whole if pc.all(pc.match_substring_regex(texts[n], _WHOLE_NUMBER)).as_py()
                ]
        except pa.ArrowException as e:
            raise SchemaError(f"no schema can be inferred: {e}") from e
        fields = []
        for field in table.schema:
            data_type = field.type
            if pa.types.is_null(data_type) or (pa.types.is_integer(data_type) and field.name not in whole):
                data_type = pa.string()
            elif pa.types.is_timestamp(data_type):
                data_type = pa.timestamp("us", data_type.tz)
            fields.append(pa.field(field.name, data_type))
        return pa.schema(fields)

    def _read_sample(self, sample: bytes, types: dict[str, pa.DataType]) -> pa.Table:
        return pa_csv.read_csv(
            pa.BufferReader(sample),
            pa_csv.ReadOptions(use_threads=False, autogenerate_column_names=not self.has_header),
            self._parse_options(),
            pa_csv.ConvertOptions(null_values=[""], strings_can_be_null=True, column_types=types),
        )

    def encode(self, columns: pa.RecordBatch) -> bytes:
        """Lines of values; strings are quoted, so that an empty string is not read as null."""
        return self._write(columns)

    def header(self, schema: pa.Schema) -> bytes:
        """The line with the column names; empty if files have no header."""
        if not self.has_header:
            return b""
        names = pa.record_batch([pa.array([n]) for n in schema.names], names=schema.names)
        return self._write(names)

    def _write(self, columns: pa.RecordBatch) -> bytes:
        for name, column in zip(columns.schema.names, columns.columns, strict=True):
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                _refuse_newlines(name, column)
        out = io.BytesIO()
        options = pa_csv.WriteOptions(include_header=False, delimiter=self.delimiter, quoting_style="needed")
        pa_csv.write_csv(columns, out, options)
        return out.getvalue()

    def _parse_options(self) -> pa_csv.ParseOptions:
        return pa_csv.ParseOptions(delimiter=self.delimiter)


class _CsvDecoder(LineDecoder):
    def __init__(
        self, schema: pa.Schema, columns: list[str], dictionary_columns: Sequence[str], delimiter: str
    ) -> None:
        self._schema = schema
        self._names = columns
        self._dictionaries = {n for n in dictionary_columns if n in schema.names}
        # In a file of one column an empty line is a value: null is written as one.
        self.blank = None if len(columns) == 1 else b"\r"
        self._parse_options = pa_csv.ParseOptions(
            delimiter=delimiter, ignore_empty_lines=self.blank is not None
        )
        self._delimiter = delimiter.encode()
        self._quote_rules = QuoteRules(delimiter)
        # Named by position: a file may have several columns of one name that the schema does not read.
        self._positions = [f"c{columns.index(name)}" for name in schema.names]
        self._all = [f"c{i}" for i in range(len(columns))]
        self._whole_numbers = [i for i, f in enumerate(schema) if pa.types.is_integer(f.type)]
        self._convert = self._convert_options(schema.types)

    def _convert_options(self, types: list[pa.DataType]) -> pa_csv.ConvertOptions:
        return pa_csv.ConvertOptions(
            column_types=dict(zip(self._positions, types, strict=True)),
            include_columns=self._positions,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def decode(self, chunk: bytes, lines: LineTable) -> pa.RecordBatch:
        self._check_layout(chunk, lines)
        table = self._read(chunk, self._convert)
        if table.num_rows != len(lines):
            raise LinesRefused(f"{table.num_rows} records in one line")
        if not self._positions:  # Arrow would include all columns
            return rows_without_columns(len(lines))
        arrays = []
        for field, column in zip(self._schema, table.columns, strict=True):
            array = column.combine_chunks()
            if isinstance(array, pa.ChunkedArray):
                array = array.chunk(0)
            if array.null_count and not field.nullable and _is_string(field.type):
                array = array.fill_null("")
            arrays.append(array)
        self._check_numbers(chunk, arrays)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        empty = check_no_nulls(batch, self._schema)
        if empty is not None:
            raise LinesRefused(empty)
        for name in self._dictionaries:
            index = batch.schema.get_field_index(name)
            batch = batch.set_column(index, name, as_dictionary(batch.column(index)))
        return batch

    def _read(self, chunk: bytes, convert: pa_csv.ConvertOptions) -> pa.Table:
        options = pa_csv.ReadOptions(use_threads=False, block_size=len(chunk) + 1, column_names=self._all)
        try:
            return pa_csv.read_csv(pa.BufferReader(chunk), options, self._parse_options, convert)
        except pa.ArrowException as e:
            raise LinesRefused(self._reason(str(e))) from None

    def _check_numbers(self, chunk: bytes, arrays: list[pa.Array]) -> None:
        """Refuse spellings that only Arrow accepts as numbers: `0x10`, `nan(1)`, `1e400` as infinity."""
        doubtful = {}
        if self._whole_numbers and _has_hexadecimal(chunk):
            doubtful = dict.fromkeys(self._whole_numbers, _WHOLE_NUMBER)
        for i, array in enumerate(arrays):
            if pa.types.is_floating(array.type) and pc.any(pc.invert(pc.is_finite(array))).as_py():
                doubtful[i] = _NUMBER
        if not doubtful:
            return
        types = [pa.string() if i in doubtful else a.type for i, a in enumerate(arrays)]
        texts = self._read(chunk, self._convert_options(types))
        for i, spelling in doubtful.items():
            fits = pc.match_substring_regex(texts.column(i), spelling)
            if i not in self._whole_numbers:
                fits = pc.or_(fits, pc.is_finite(arrays[i]))
            refused = texts.column(i).filter(pc.invert(fits))
            if len(refused):
                field = self._schema.field(i)
                raise LinesRefused(
                    f"field {field.name!r}: {field.type}: invalid value {refused[0].as_py()!r}"
                )

    def look(self, line: bytes) -> str | None:
        if b'"' in line:
            return None
        found = line.count(self._delimiter) + 1
        return None if found == len(self._all) else f"Expected {len(self._all)} columns, got {found}"

    def _check_layout(self, chunk: bytes, lines: LineTable) -> None:
        """Refuse the chunk unless the parser will see the same lines: no value spans a line end."""
        if self.blank is not None and lines.has_blank_lines():
            raise LinesRefused("the line is empty")
        if b"\r" in chunk:
            returns = np.count_nonzero(lines.bytes == ord("\r"))
            if returns != np.count_nonzero(lines.bytes[np.minimum(lines.ends, len(chunk) - 1)] == ord("\r")):
                raise LinesRefused("a carriage return in the line")
        broken = self._quote_rules.check(chunk, lines)
        if broken is not None:
            raise LinesRefused(broken)

    def _reason(self, message: str) -> str:
        found = _COLUMN.match(message)
        rest = message[found.end() :] if found else message
        if found and found[1] is not None:
            name = self._names[int(found[1])] if int(found[1]) < len(self._names) else f"#{found[1]}"
            return f"field {name!r}: {rest}"
        return re.sub(r"(Expected \d+ columns, got \d+).*", r"\1", rest, flags=re.DOTALL)


def _has_hexadecimal(chunk: bytes) -> bool:
    """Whether the chunk has a `0x`; a search for two bytes would take longer than this."""
    if b"x" not in chunk and b"X" not in chunk:
        return False
    text = np.frombuffer(chunk, np.uint8)
    return bool(((text[:-1] == ord("0")) & ((text[1:] | 0x20) == ord("x"))).any())


def _refuse_newlines(name: str, column: pa.Array) -> None:
    """Refuse values with a line break: readers split files by lines and could not read them back."""
    data = column.buffers()[2]
    if data is None or not _has_line_end(data):
        return
    for value in column.to_pylist():
        if value is not None and ("\n" in value or "\r" in value):
            raise SchemaError(
                f"column {name!r} has a value with a line break, which CSV files with one record per line cannot "
                f"hold: {value[:80]!r}. Remove it first, or write JSON or Parquet."
            )


def _has_line_end(data: pa.Buffer) -> bool:
    text = data.to_pybytes()
    return b"\n" in text or b"\r" in text


def _is_string(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _is_text_type(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        _is_string(data_type)
        or types.is_integer(data_type)
        or types.is_float32(data_type)
        or types.is_float64(data_type)
        or types.is_boolean(data_type)
        or types.is_date32(data_type)
        or types.is_time(data_type)
        or types.is_timestamp(data_type)
        or types.is_decimal128(data_type)
    )
