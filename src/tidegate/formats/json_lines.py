"""JSON lines: one object per line, read strictly with msgspec, written with polars.

Why msgspec and not polars or pyarrow for reading: it refuses what does not fit instead of making it fit (polars turns
a number in a string column into text and a lone surrogate into NUL; pyarrow crashes on a line `null`), it skips
fields that nobody asked for almost for free, and for all columns it takes no more CPU than polars does.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.formats.format import TextFormat, as_dictionary
from tidegate.formats.json_columns import BuildError, JsonColumn, json_column, struct_fields
from tidegate.formats.lines import LineDecoder, LinesRefused, LineTable

_OPEN, _CLOSE = ord("{"), ord("}")
_PLACE = re.compile(r" - at `\$(?:\[0\])?\.?([^`]*)`$")


class JsonLinesFormat(TextFormat):
    """One JSON object per line, UTF-8.

    | column               | in JSON                                                   |
    |----------------------|-----------------------------------------------------------|
    | int, float, bool, str| number without / with fraction, `true`/`false`, string    |
    | datetime, date, time | ISO 8601 string, `2024-01-31T10:00:00.5`                  |
    | timedelta            | ISO 8601 duration, `PT1.5S`                               |
    | Decimal              | string or number, taken digit by digit; written as string |
    | bytes                | base64 string                                             |
    | list, dict, dataclass| array, object, object                                     |
    | None                 | `null`, or the field is missing                           |

    Fields that the schema does not name are ignored. Of a key that occurs twice, the last one counts. JSON has no
    NaN and no infinity: they are refused when read and become `null` when written.

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"app": ["mail"], "clicks": [3]})
    >>> JsonLinesFormat().encode(batch)
    b'{"app":"mail","clicks":3}\\n'
    """

    name = "json"
    extension = "json"

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse the column types that have no JSON form (unions, maps with other keys than str or int)."""
        for field in schema:
            json_column(field)

    def file_columns(self, first_line: bytes, declared: Sequence[str]) -> list[str]:
        """Every line names its own columns."""
        return list(declared)

    def decoder(
        self, schema: pa.Schema, columns: Sequence[str], dictionary_columns: Sequence[str] = ()
    ) -> LineDecoder:
        """Make the decoder for a schema."""
        return _JsonDecoder(schema, dictionary_columns)

    def infer_schema(self, sample: bytes) -> pa.Schema:
        """Fields in the order of their first appearance; lines that are no objects are passed over."""
        values: dict[str, list[Any]] = {}
        rows = 0
        for line in sample.splitlines():
            try:
                record = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if not isinstance(record, dict):
                continue
            for name, value in record.items():
                values.setdefault(name, []).append(value)
            rows += 1
        if not rows:
            raise SchemaError("no line of the sample is a JSON object")
        fields = []
        for name, examples in values.items():
            try:
                found = pa.array(examples).type
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
                raise SchemaError(f"field {name!r} has values of different types: {e}") from e
            fields.append(pa.field(name, pa.string() if pa.types.is_null(found) else found))
        return pa.schema(fields)

    def encode(self, columns: pa.RecordBatch) -> bytes:
        """Lines of compact JSON."""
        if columns.num_columns == 0:
            return b"{}\n" * columns.num_rows
        if not all(_polars_writes(t) for t in columns.schema.types):
            rows = columns.to_pylist(maps_as_pydicts="strict")
            encoder = msgspec.json.Encoder(decimal_format="string")
            return encoder.encode_lines(rows)
        frame: Any = pl.from_arrow(columns)
        changes = []
        for name, dtype in frame.schema.items():
            if dtype == pl.Datetime:
                changes.append(pl.col(name).dt.to_string("iso:strict"))
            elif dtype == pl.Binary:
                changes.append(pl.col(name).bin.encode("base64"))
        out = io.BytesIO()
        (frame.with_columns(changes) if changes else frame).write_ndjson(out)
        return out.getvalue()


class _JsonDecoder(LineDecoder):
    blank = b" \t\r"

    def __init__(self, schema: pa.Schema, dictionary_columns: Sequence[str]) -> None:
        self._columns: list[JsonColumn] = [json_column(field) for field in schema]
        self._getters = [attrgetter(f"f{i}") for i in range(len(schema))]
        self._dictionaries = [field.name in dictionary_columns for field in schema]
        self._decoder = msgspec.json.Decoder(struct_fields("Record", list(schema), self._columns))
        self._schema = pa.schema(
            [
                pa.field(f.name, pa.dictionary(pa.int32(), f.type), f.nullable) if d else f
                for f, d in zip(schema, self._dictionaries, strict=True)
            ]
        )

    def decode(self, chunk: bytes, lines: LineTable) -> pa.RecordBatch:
        # Every line starts with { and ends with }: as no valid object has "}" and "{" side by side, each line end
        # is then an end of an object, and with as many objects as lines each line is exactly one.
        whole = lines.enclosed_by(_OPEN, _CLOSE)
        if not whole and len(lines) != 1:
            raise LinesRefused("the lines are not one object each")
        rows = self._objects(chunk)
        if len(rows) != len(lines):
            raise LinesRefused(f"{len(rows)} objects in one line")
        arrays = []
        for field, column, get, dictionary in zip(
            self._schema, self._columns, self._getters, self._dictionaries, strict=True
        ):
            try:
                array = column.build(list(map(get, rows)))
            except BuildError as e:
                raise LinesRefused(f"field {field.name!r}: {e}") from None
            arrays.append(as_dictionary(array) if dictionary else array)
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def look(self, line: bytes) -> str | None:
        try:
            count = len(self._objects(line))
        except LinesRefused as e:
            return str(e)
        return None if count == 1 else f"{count} objects in one line"

    def _objects(self, chunk: bytes) -> list[Any]:
        try:
            if not chunk.isascii():
                chunk.decode()
            return self._decoder.decode_lines(chunk)
        except msgspec.DecodeError as e:
            raise LinesRefused(_reason(e)) from None
        except UnicodeDecodeError as e:
            raise LinesRefused(f"not UTF-8: byte {chunk[e.start]:#04x} at byte {e.start}") from None
        except RecursionError:
            raise LinesRefused("nested too deeply") from None


def _reason(error: msgspec.DecodeError) -> str:
    """The message of msgspec in our words: the field first, not the place in a list of lines."""
    message = str(error)
    place = _PLACE.search(message)
    if place is None:
        return message
    what = message[: place.start()]
    return f"field {place[1]!r}: {what}" if place[1] else what


def _polars_writes(data_type: pa.DataType, top: bool = True) -> bool:
    """Whether polars writes the type as the table of `JsonLinesFormat` says."""
    types = pa.types
    if types.is_list(data_type) or types.is_large_list(data_type):
        return _polars_writes(data_type.value_type, top=False)
    if types.is_struct(data_type):
        return all(_polars_writes(f.type, top=False) for f in data_type)
    if types.is_timestamp(data_type):
        return top
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return top
    return bool(
        types.is_integer(data_type)
        or types.is_float32(data_type)
        or types.is_float64(data_type)
        or types.is_boolean(data_type)
        or types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_date32(data_type)
    )
