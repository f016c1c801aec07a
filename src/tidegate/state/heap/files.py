"""The files of the heap backend: Parquet, one per state for a base or an increment, sorted by key group.

| column | type | |
|---|---|---|
| `key_group` | int32 | ascending |
| `key` | the key column's type, or a struct of the key columns | |
| `map_key` | the map's key type | map states only; null: the whole map, in a row that says `deleted` |
| `pane` | int64 | pane tables only |
| `value` | the value's type, a list of it (list state), a struct (column and pane tables) | null where `deleted` |
| `deleted` | bool | the key (or entry) was removed; never true in a base |
| `written_ms` | int64 | only with a time to live: when it was last written |

List state has one row per key, map state one per entry, a pane table one per key and pane; rows of one map or pane are
in the order in which they apply. The metadata of a file holds `tidegate.state` (name), `tidegate.kind`,
`tidegate.fingerprint`, `tidegate.content` (`base` or `increment`), `tidegate.version`, and for a time to live in event
time `tidegate.watermark_ms` and `tidegate.first_watermark_ms` of the snapshot. The state is a base and its increments,
in order: the last row of a key counts. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.core.errors import SchemaError, StateCompatibilityError
from tidegate.core.key_groups import KeyGroupRange
from tidegate.snapshot.handles import StateFile, StateSchema
from tidegate.state.backend import NO_WATERMARK
from tidegate.state.generations import REMOVED
from tidegate.state.heap.lists import ListColumn
from tidegate.state.heap.values import CHUNK
from tidegate.state.refusals import cannot_store
from tidegate.state.serializers import KeySerializer, ValueSerializer
from tidegate.storage.storage import CheckpointStorage

Content = Literal["base", "increment"]
Encoded = tuple[pa.Table, dict[str, str]]
"""The rows of a file and its metadata."""
VERSION: Final = "1"
_ROW_GROUP_ROWS: Final = 1 << 18


@dataclass(frozen=True)
class Watermarks:
    """The event time of a snapshot."""

    now_ms: int = NO_WATERMARK
    first_ms: int = NO_WATERMARK


@dataclass(frozen=True)
class RowLayout:
    """Converts the rows of one state to columns and back."""

    operator: str
    schema: StateSchema
    keys: KeySerializer
    map_keys: KeySerializer | None
    values: ValueSerializer | ListColumn
    has_ttl: bool
    max_parallelism: int

    def columns(
        self, keys: Sequence[Any], map_keys: Sequence[Any] | None, cells: Sequence[Any]
    ) -> pa.RecordBatch:
        """Columns of a portion of rows; a cell is a kept value or `REMOVED`. The error for a misfit names its key."""
        deleted = [cell is REMOVED for cell in cells]
        present = [cell for cell in cells if cell is not REMOVED] if True in deleted else cells
        try:
            key = self.keys.to_column(keys)
            values = self.values.to_column([cell[1] for cell in present] if self.has_ttl else present)
        except SchemaError:
            self._name_misfit(keys, cells)
            raise
        arrays = {"key_group": self.keys.key_groups(key, self.max_parallelism).astype(np.int32), "key": key}
        if map_keys is not None and self.map_keys is not None:
            arrays["map_key"] = _spread(self.map_keys.to_column, map_keys)
        gone = np.array(deleted, np.bool_)
        arrays["value"] = _with_gaps(values, gone)
        arrays["deleted"] = pa.array(gone)
        if self.has_ttl:
            written = np.fromiter((cell[0] for cell in present), np.int64, len(present))
            arrays["written_ms"] = _with_gaps(pa.array(written), gone)
        return pa.record_batch(arrays)

    def cells(self, table: pa.Table) -> list[Any]:
        """The cells of a table's rows: kept values, or `REMOVED` if deleted."""
        gone = table.column("deleted").to_numpy()
        present = table if not gone.any() else table.filter(pc.invert(table.column("deleted")))
        values = self.values.from_column(retyped(one_array(present.column("value")), self.values.arrow_type))
        if self.has_ttl:
            times = present.column("written_ms").to_numpy().tolist()
            values = list(zip(times, values, strict=True))
        if present is table:
            return values
        cells: list[Any] = [REMOVED] * len(gone)
        for place, value in zip(np.flatnonzero(~gone).tolist(), values, strict=True):
            cells[place] = value
        return cells

    def stored_map_keys(self, column: pa.Array) -> list[Any]:
        """The map keys of a column without nulls."""
        assert self.map_keys is not None
        return self.map_keys.from_column(retyped(column, self.map_keys.arrow_type))

    def _name_misfit(self, keys: Sequence[Any], cells: Sequence[Any]) -> None:
        for key, cell in zip(keys, cells, strict=True):
            kept = cell[1] if self.has_ttl and cell is not REMOVED else cell
            try:
                self.keys.to_column([key])
                if kept is not REMOVED:
                    self.values.to_column([kept])
            except SchemaError as e:
                raise cannot_store(self.operator, self.schema.name, key, kept, e) from e


def encode(
    schema: StateSchema, batches: Iterable[pa.RecordBatch], content: Content, marks: Watermarks | None = None
) -> Encoded | None:
    """The rows of a file, sorted by key group, and its metadata; None if it would be empty."""
    parts = list(batches)
    if marks is None and not any(b.num_rows for b in parts):
        return None
    table = pa.Table.from_batches(parts)
    groups = table.column("key_group").to_numpy()
    order = np.argsort(groups.astype(np.uint16), kind="stable")
    metadata = _metadata(schema.name, schema.kind, schema.fingerprint, content, marks)
    return table.take(pa.array(order)), metadata


def as_read(stored: StoredRows) -> Encoded:
    """Rows that were read, to be written again unchanged."""
    return stored.table, _metadata(stored.name, stored.kind, stored.fingerprint, stored.content, stored.marks)


def to_parquet(table: pa.Table, metadata: dict[str, str]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata(metadata),
        sink,
        row_group_size=_ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=1,
        use_dictionary=["key_group", "deleted"],
        column_encoding=dict.fromkeys(_integers("", list(table.schema)[1:]), "DELTA_BINARY_PACKED") or None,
    )
    return sink.getvalue()


@dataclass(frozen=True)
class StoredRows:
    """The rows of one file that belong to a range of key groups, and the metadata of the file."""

    file: StateFile
    name: str
    kind: str
    content: Content
    fingerprint: str
    marks: Watermarks | None
    table: pa.Table


def read(storage: CheckpointStorage, file: StateFile, key_groups: KeyGroupRange, operator: str) -> StoredRows:
    """Read a file, which the storage verifies. A file of another format is refused."""
    source = pq.ParquetFile(pa.BufferReader(storage.read(file)))
    metadata = {k.decode(): v.decode() for k, v in (source.schema_arrow.metadata or {}).items()}
    if metadata.get("tidegate.version") != VERSION:
        raise StateCompatibilityError(
            f"operator {operator!r} cannot restore {file.path}: its format has version "
            f"{metadata.get('tidegate.version', 'none')} but this program reads version {VERSION}. Use the version of "
            f"tidegate that wrote it"
        )
    table = _rows_of(source, key_groups)
    marks = None
    if "tidegate.watermark_ms" in metadata:
        marks = Watermarks(
            int(metadata["tidegate.watermark_ms"]), int(metadata["tidegate.first_watermark_ms"])
        )
    content: Content = "base" if metadata["tidegate.content"] == "base" else "increment"
    name, kind = metadata["tidegate.state"], metadata["tidegate.kind"]
    return StoredRows(file, name, kind, content, metadata["tidegate.fingerprint"], marks, table)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def portions(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Cut a sequence into pieces, so that no other thread waits long for the interpreter."""
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))


def _metadata(
    name: str, kind: str, fingerprint: str, content: Content, marks: Watermarks | None
) -> dict[str, str]:
    metadata = {
        "tidegate.version": VERSION,
        "tidegate.state": name,
        "tidegate.kind": kind,
        "tidegate.fingerprint": fingerprint,
        "tidegate.content": content,
    }
    if marks is not None:
        metadata["tidegate.watermark_ms"] = str(marks.now_ms)
        metadata["tidegate.first_watermark_ms"] = str(marks.first_ms)
    return metadata


def _rows_of(source: pq.ParquetFile, key_groups: KeyGroupRange) -> pa.Table:
    """The rows of these key groups; row groups without any are skipped."""
    wanted = []
    for i in range(source.metadata.num_row_groups):
        statistics = source.metadata.row_group(i).column(0).statistics
        if statistics is None or not (statistics.max < key_groups.start or statistics.min > key_groups.end):
            wanted.append(i)
    table = source.read_row_groups(wanted)
    groups = table.column("key_group")
    inside = pc.and_(pc.greater_equal(groups, key_groups.start), pc.less_equal(groups, key_groups.end))
    return table if pc.all(inside).as_py() in (True, None) else table.filter(inside)


def _integers(prefix: str, fields: Iterable[pa.Field]) -> Iterable[str]:
    """The paths of the columns that Parquet stores as 64-bit integers, without lists and maps."""
    for field in fields:
        t = field.type
        if pa.types.is_struct(t):
            yield from _integers(f"{prefix}{field.name}.", t)
        elif t == pa.int64() or pa.types.is_timestamp(t) or pa.types.is_duration(t):
            yield f"{prefix}{field.name}"


def _with_gaps(values: pa.Array, gone: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    """Put nulls at the rows that are gone, and the values at the others."""
    values = retyped(values, relaxed(values.type))
    if not gone.any():
        return values
    places = np.cumsum(~gone) - 1
    return values.take(pa.array(places, mask=gone))


def relaxed(t: pa.DataType) -> pa.DataType:
    """The type with nullable fields: Parquet has no null struct with fields that are not nullable."""
    if not pa.types.is_struct(t):
        return t
    return pa.struct([pa.field(f.name, relaxed(f.type), True) for f in t])


def retyped(array: pa.Array, t: pa.DataType) -> pa.Array:
    """The same values with a type that differs only in the nullability of struct fields."""
    if array.type == t or not pa.types.is_struct(t):
        return array
    children = [retyped(child, f.type) for child, f in zip(array.flatten(), t, strict=True)]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(t), mask=mask)


def _spread(to_column: Any, keys: Sequence[Any]) -> pa.Array:
    """A column of map keys, null in rows about the whole map."""
    gone = np.fromiter((k is REMOVED for k in keys), np.bool_, len(keys))
    return _with_gaps(to_column([k for k in keys if k is not REMOVED]), gone)
