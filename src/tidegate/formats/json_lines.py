"""JSON lines: one object per line, read strictly with msgspec, written with polars.

Why msgspec and not polars or pyarrow for reading: it refuses values that do not fit instead of converting them (polars
turns a number in a string column into text and a lone surrogate into NUL; pyarrow crashes on a line `null`), it skips
unwanted fields almost for free, and for all columns it takes no more CPU than polars. Lines that provably have one
layout need no parser at all (`json_layout`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.formats.format import TextFormat, as_dictionary
from tidegate.formats.json_columns import (
    BuildError,
    JsonColumn,
    hint_of,
    json_column,
    struct_fields,
    values_of,
)
from tidegate.formats.learned_dictionary import FirstValues, LearnedDictionary
from tidegate.formats.lines import LineDecoder, LinesRefused, LineTable
from tidegate.records.columns import rows_without_columns

if TYPE_CHECKING:
    from tidegate.formats.layout_reader import LayoutReader

# With fewer rows codes save nothing noticeable.
_ROWS_FOR_CODES = 1_024
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

    Fields that the schema does not name are ignored. If a key occurs twice, the last value counts. JSON has no NaN and
    no infinity: the reader refuses them, the writer writes `null`.

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"app": ["mail"], "clicks": [3]})
    >>> JsonLinesFormat().encode(batch)
    b'{"app":"mail","clicks":3}\\n'
    """

    name = "json"
    extension = "json"
    other_extensions = ("jsonl", "ndjson")

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse the column types that have no JSON form (unions, maps with other keys than str or int)."""
        for field in schema:
            json_column(field)

    def file_columns(self, first_line: bytes, declared: Sequence[str]) -> list[str]:
        return list(declared)

    def decoder(
        self, schema: pa.Schema, columns: Sequence[str], dictionary_columns: Sequence[str] = ()
    ) -> LineDecoder:
        return _JsonDecoder(schema, dictionary_columns)

    def prepare(self) -> None:
        """Import the compiled loops: takes tenths of a second, or seconds if numba has no cache to keep them."""
        _layout_reader([])

    def infer_schema(self, sample: bytes) -> pa.Schema:
        """Fields in the order of their first appearance; lines that are not objects are skipped."""
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
        if columns.num_columns == 0:
            return b"{}\n" * columns.num_rows
        if not all(_polars_writes(t) for t in columns.schema.types):
            rows = columns.to_pylist(maps_as_pydicts="strict")
            encoder = msgspec.json.Encoder(decimal_format="string", enc_hook=_iso_text)
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
    """Decodes by the lines' common layout if they have one, otherwise with one of two parsers.

    One parser returns text, the other one the codes of learned dictionaries. The first values of a string column show
    whether the distinct values are few. If so, the column is read as a dictionary until they become too many; then it
    is read as text for good.
    """

    blank = b" \t\r"

    def __init__(self, schema: pa.Schema, dictionary_columns: Sequence[str]) -> None:
        self._fields: list[pa.Field] = list(schema)
        self._columns: list[JsonColumn] = [json_column(field) for field in schema]
        self._getters = [values_of(f"f{i}") for i in range(len(schema))]
        self._always = [field.name in dictionary_columns for field in schema]
        self._undecided = {i: FirstValues() for i, f in enumerate(schema) if pa.types.is_string(f.type)}
        self._learned: dict[int, LearnedDictionary] = {}
        self._by_layout = _layout_reader(self._fields)
        self._text_parser = self._make_parser({})
        self._code_parser = self._text_parser

    def decode(self, chunk: bytes, lines: LineTable) -> pa.RecordBatch:
        if not self._undecided:
            arrays = self._by_layout.read(chunk, self._learned)
            if arrays is not None:
                lines.counted(len(arrays[0]))
                return self._batch(arrays)
            if any(dictionary.full for dictionary in self._learned.values()):
                self._forget_full_ones()
        return self._parse(chunk, lines)

    def _parse(self, chunk: bytes, lines: LineTable) -> pa.RecordBatch:
        # Every line starts with { and ends with }. No valid object has "}" and "{" side by side, so each line end
        # is then the end of an object, and if there are as many objects as lines, each line is exactly one.
        whole = lines.enclosed_by(_OPEN, _CLOSE)
        if not whole and len(lines) != 1:
            raise LinesRefused("the lines are not one object each")
        learned = self._dictionaries_for(len(lines))
        rows = self._objects(chunk, self._code_parser if learned else self._text_parser)
        if rows is None:
            self._forget_full_ones()
            return self._parse(chunk, lines)
        if len(rows) != len(lines):
            raise LinesRefused(f"{len(rows)} objects in one line")
        if not self._fields:
            return rows_without_columns(len(rows))
        arrays = [self._array(i, rows, learned.get(i)) for i in range(len(self._fields))]
        if sum(dictionary.renew() for dictionary in learned.values()):
            self._code_parser = self._make_parser(self._learned)
        return self._batch(arrays)

    def _batch(self, arrays: list[pa.Array]) -> pa.RecordBatch:
        arrays = [as_dictionary(a) if always else a for a, always in zip(arrays, self._always, strict=True)]
        fields = [pa.field(f.name, a.type, f.nullable) for f, a in zip(self._fields, arrays, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def look(self, line: bytes) -> str | None:
        try:
            count = len(self._objects(line, self._text_parser) or ())
        except LinesRefused as e:
            return str(e)
        return None if count == 1 else f"{count} objects in one line"

    def _dictionaries_for(self, rows: int) -> dict[int, LearnedDictionary]:
        """The dictionaries to read this many rows with: none if one is longer than that."""
        if rows < max(_ROWS_FOR_CODES, *map(len, self._learned.values()), 0):
            return {}
        return self._learned

    def _array(self, index: int, rows: list[Any], learned: LearnedDictionary | None) -> pa.Array:
        values = self._getters[index](rows)
        if learned is not None:
            return learned.encode(values)
        try:
            array = self._columns[index].build(values)
        except BuildError as e:
            raise LinesRefused(f"field {self._fields[index].name!r}: {e}") from None
        if index in self._undecided:
            self._look_at(index, values)
        return array

    def _look_at(self, index: int, values: list[str | None]) -> None:
        first = self._undecided[index]
        first.add(values)
        if not first.enough:
            return
        del self._undecided[index]
        dictionary = first.dictionary()
        if dictionary is not None:
            self._learned[index] = dictionary
            self._code_parser = self._make_parser(self._learned)

    def _forget_full_ones(self) -> None:
        self._learned = {i: d for i, d in self._learned.items() if not d.full}
        self._code_parser = self._make_parser(self._learned)

    def _make_parser(self, learned: dict[int, LearnedDictionary]) -> Any:
        columns = list(self._columns)
        for i, dictionary in learned.items():
            columns[i] = columns[i]._replace(hint=hint_of(self._fields[i], dictionary.hint))
        return msgspec.json.Decoder(struct_fields("Record", self._fields, columns))

    def _objects(self, chunk: bytes, parser: Any) -> list[Any] | None:
        """The objects of a chunk; None if a value does not fit into its learned dictionary."""
        try:
            if not chunk.isascii():
                chunk.decode()
            return parser.decode_lines(chunk)
        except msgspec.DecodeError as e:
            if any(dictionary.full for dictionary in self._learned.values()):
                return None
            raise LinesRefused(_reason(e)) from None
        except UnicodeDecodeError as e:
            raise LinesRefused(f"not UTF-8: byte {chunk[e.start]:#04x} at byte {e.start}") from None
        except RecursionError:
            raise LinesRefused("nested too deeply") from None


def _iso_text(value: Any) -> str:
    """The text of a nanosecond timestamp, which Arrow returns as a pandas Timestamp."""
    return str(value.isoformat())


def _layout_reader(fields: Sequence[pa.Field]) -> LayoutReader:
    try:
        from tidegate.formats.layout_reader import LayoutReader  # imports numba, which only readers need
    except ImportError as e:
        raise ImportError(
            f"{e}. JSON lines are read by loops that numba compiles: install tidegate with all its dependencies "
            f"on every machine where Spark runs its tasks"
        ) from e
    return LayoutReader(fields)


def _reason(error: msgspec.DecodeError) -> str:
    """The message of msgspec with the field first, instead of a place in a list of lines."""
    message = str(error)
    place = _PLACE.search(message)
    if place is None:
        return message
    what = message[: place.start()]
    return f"field {place[1]!r}: {what}" if place[1] else what


def _polars_writes(data_type: pa.DataType, top: bool = True) -> bool:
    """Whether polars writes the type as the table in `JsonLinesFormat` says."""
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
