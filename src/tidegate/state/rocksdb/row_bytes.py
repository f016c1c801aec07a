"""Rows of Arrow columns as compact bytes, a batch at a time, and back.

    1 byte    version, 1
    for each column: 1 byte, whether there is a value (1) or null (0), then
      fixed width  the value as Arrow stores it, little-endian; a bool is one byte
      all others   4 bytes: the length of its bytes, which follow at the end of the row, in the order of the columns

Text and binary are their bytes; a list of fixed-width values without nulls is a 1 and those values one after the other;
any other list, and every other type, is a 0 and msgpack of its plain form (`records.codecs`). Any thread; immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import StateCompatibilityError
from tidegate.records.codecs import bytes_codec
from tidegate.records.column_bits import is_bytes_like

VERSION: Final = 1
_FLAT: Final = b"\x01"
_PACKED: Final = b"\x00"


class RowBytes:
    """Converts the rows of one schema to bytes and back."""

    def __init__(self, schema: pa.Schema) -> None:
        self._types: list[pa.DataType] = list(schema.types)
        fields: list[tuple[str, str]] = [("version", "u1")]
        for i, t in enumerate(self._types):
            fields += [(f"valid{i}", "u1"), (f"value{i}", _width(t) or "<u4")]
        self._head = np.dtype(fields)
        self._loose = [i for i, t in enumerate(self._types) if _width(t) is None]
        """The columns of which the head of a row has only the length."""

    def of_columns(self, columns: Sequence[pa.Array]) -> list[bytes]:
        heads = np.zeros(len(columns[0]) if columns else 0, self._head)
        heads["version"] = VERSION
        tails: list[list[bytes]] = []
        for i, (column, t) in enumerate(zip(columns, self._types, strict=True)):
            heads[f"valid{i}"] = pc.is_valid(column).to_numpy(zero_copy_only=False)
            if i in self._loose:
                cells = _cells(column, t)
                heads[f"value{i}"] = np.fromiter(map(len, cells), np.int64, len(cells))
                tails.append(cells)
            else:
                heads[f"value{i}"] = _fixed(column)
        rows: list[bytes] = heads.view(f"V{heads.itemsize}").tolist()
        if not tails:
            return rows
        if len(tails) == 1:
            return [head + tail for head, tail in zip(rows, tails[0], strict=True)]
        return [b"".join(parts) for parts in zip(rows, *tails, strict=True)]

    def to_columns(self, rows: Sequence[bytes]) -> list[pa.Array]:
        """The columns of rows. A row of another version is refused."""
        size = self._head.itemsize
        heads = np.frombuffer(b"".join([row[:size] for row in rows] if self._loose else rows), self._head)
        if len(heads) and (heads["version"] != VERSION).any():
            found = int(heads["version"][heads["version"] != VERSION][0])
            raise StateCompatibilityError(
                f"a row of a pane table has format version {found} but this program reads version {VERSION}. Use the "
                f"version of tidegate that wrote it"
            )
        ends = np.full(len(heads), size, np.int64)
        columns = []
        for i, t in enumerate(self._types):
            valid = heads[f"valid{i}"].astype(np.bool_)
            if i not in self._loose:
                columns.append(_from_fixed(heads[f"value{i}"], valid, t))
                continue
            starts, ends = ends, ends + heads[f"value{i}"]
            cells = [row[a:b] for row, a, b in zip(rows, starts.tolist(), ends.tolist(), strict=True)]
            columns.append(_from_cells(cells, valid, t))
        return columns


def _width(t: pa.DataType) -> str | None:
    """The numpy type of a fixed-width value in a row; None for other types."""
    if pa.types.is_boolean(t):
        return "u1"
    if pa.types.is_primitive(t) or pa.types.is_decimal(t) or pa.types.is_fixed_size_binary(t):
        return f"V{t.bit_width // 8}"
    return None


def _fixed(column: pa.Array) -> npt.NDArray[Any]:
    """Fixed-width values; undefined for null rows."""
    t = column.type
    if pa.types.is_boolean(t):
        return pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), _width(t))
    width = t.bit_width // 8
    return np.frombuffer(data, _width(t), len(column), column.offset * width)


def _from_fixed(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_], t: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(t):
        return pa.array(values.astype(np.bool_), t, mask=None if valid.all() else ~valid)
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(t, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def _cells(column: pa.Array, t: pa.DataType) -> list[bytes]:
    """The bytes of each value; empty if it is null."""
    if is_bytes_like(t):
        texts: list[bytes] = column.cast(pa.large_binary()).fill_null(b"").to_pylist()
        return texts
    if _is_flat_list(t) and not (items := column.flatten()).null_count:
        width = _item_width(t)
        if pa.types.is_boolean(t.value_type):
            data = _fixed(items).astype("u1").tobytes()
        else:
            data = _fixed(items).tobytes()
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        ends = (np.cumsum(lengths, dtype=np.int64) * width).tolist()
        return [_FLAT + data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    to_bytes, _ = bytes_codec(t, True, False)
    return [b"" if v is None else _PACKED + to_bytes(v) for v in column.to_pylist()]


def _from_cells(cells: list[bytes], valid: npt.NDArray[np.bool_], t: pa.DataType) -> pa.Array:
    if is_bytes_like(t):
        found = cells if valid.all() else [c if v else None for c, v in zip(cells, valid, strict=True)]
        return pa.array(found, pa.large_binary()).cast(t)
    if _is_flat_list(t) and all(cell[:1] != _PACKED for cell in cells):
        data = b"".join([cell[1:] for cell in cells])
        width, item = _item_width(t), t.value_type
        lengths = np.fromiter((max(0, len(cell) - 1) // width for cell in cells), np.int64, len(cells))
        offsets = np.zeros(len(cells) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values = np.frombuffer(data, _width(item))
        items = _from_fixed(values, np.ones(len(values), np.bool_), item)
        wide = pa.types.is_large_list(t)
        kind = pa.LargeListArray if wide else pa.ListArray
        mask = None if valid.all() else pa.array(~valid)
        return kind.from_arrays(pa.array(offsets, pa.int64() if wide else pa.int32()), items, t, mask=mask)
    _, from_bytes = bytes_codec(t, True, False)
    return pa.array(
        [_value(cell, t, from_bytes) if v else None for cell, v in zip(cells, valid, strict=True)], t
    )


def _value(cell: bytes, t: pa.DataType, from_bytes: Any) -> Any:
    if cell[:1] == _PACKED:
        return from_bytes(cell[1:])
    values = np.frombuffer(cell, _width(t.value_type), offset=1)
    return _from_fixed(values, np.ones(len(values), np.bool_), t.value_type).to_pylist()


def _is_flat_list(t: pa.DataType) -> bool:
    return (pa.types.is_list(t) or pa.types.is_large_list(t)) and _width(t.value_type) is not None


def _item_width(t: pa.DataType) -> int:
    return 1 if pa.types.is_boolean(t.value_type) else int(t.value_type.bit_width) // 8
