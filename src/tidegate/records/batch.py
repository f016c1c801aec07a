"""`Batch`: the unit between operators, as columns, as rows, or as both.

A batch is made from columns (an Arrow record batch) or from rows (a list of Python objects) and converts to the
other form when somebody asks, at most once. Per-record functions in one chain so hand rows to each other untouched,
vectorised operators hand columns to each other untouched, and an exchange asks for columns once. Rows that go over
a wire to a consumer of rows are packed instead (`packed_rows.py`), and unpacked when he asks.

String columns may arrive dictionary-encoded (cheap to hash, to exchange and to count). `columns` gives them as they
are; `plain_columns` gives exactly the declared Arrow types, which is what user code must see.
"""

from __future__ import annotations

from itertools import compress
from typing import Generic, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.records.object_copies import copy_objects
from tidegate.records.packed_rows import PackedRows
from tidegate.records.type_variables import AnyRecordOut
from tidegate.records.types import RecordType

Mask: TypeAlias = pa.BooleanArray | npt.NDArray[np.bool_] | list[bool]

_FEW_ROWS = 32


class Origin(NamedTuple):
    """Where a batch came from: a source split and the position of its first record; for error messages."""

    split: str
    position: int
    unit: str = "record"

    def at(self, row: int) -> str:
        """Name the position of the row with this index in the batch."""
        return f"{self.unit} {self.position + row} of {self.split}"


class Batch(Generic[AnyRecordOut]):
    """Some records of one type, in order. Immutable for everyone but its own lazy conversion."""

    __slots__ = ("_columns", "_packed", "_rows", "num_rows", "origin", "timestamps", "type")

    def __init__(
        self,
        record_type: RecordType,
        *,
        columns: pa.RecordBatch | None = None,
        rows: list[AnyRecordOut] | None = None,
        packed: PackedRows | None = None,
        origin: Origin | None = None,
        timestamps: pa.Int64Array | None = None,
    ) -> None:
        """Give at least one form; a list of `rows` then belongs to the batch, and packed rows have no timestamps."""
        self.type = record_type
        self._columns = columns
        self._rows = rows
        self._packed = packed
        if columns is not None:
            self.num_rows: int = columns.num_rows
        else:
            self.num_rows = len(rows or ()) if packed is None else packed.count
        self.origin = origin
        self.timestamps = timestamps

    def pack(self) -> Batch[AnyRecordOut] | None:
        """The same records as packed rows; None where they must leave as columns, or have them already."""
        if self._packed is not None:
            return self
        packer = self.type.packer
        if packer is None or not self._rows or self._columns is not None or self.timestamps is not None:
            return None
        data = packer.pack(self._rows)
        if data is None:
            return None
        return Batch(self.type, packed=PackedRows(packer, [(self.num_rows, data)]))

    @property
    def packed(self) -> PackedRows | None:
        """The packed rows, if that is how the batch was made."""
        return self._packed

    @property
    def columns(self) -> pa.RecordBatch:
        """The records as Arrow columns; string columns may be dictionary-encoded. Raises `SchemaError`."""
        if self._columns is None:
            self._columns = self.type.to_columns(self._rows or [] if self._packed is None else self.rows)
        return self._columns

    @property
    def plain_columns(self) -> pa.RecordBatch:
        """The records as Arrow columns of exactly the declared types."""
        return self.type.plain(self.columns)

    @property
    def rows(self) -> list[AnyRecordOut]:
        """The records as Python objects of the declared type; do not change the list."""
        if self._rows is None:
            if self._packed is not None:
                self._rows = self._packed.slice(0, self.num_rows)
            else:
                assert self._columns is not None
                self._rows = self.type.to_rows(self._columns)
        return self._rows

    @property
    def has_rows(self) -> bool:
        """Whether rows exist already (so that asking for them costs nothing)."""
        return self._rows is not None

    @property
    def has_columns(self) -> bool:
        """Whether columns exist already (so that asking for them costs nothing)."""
        return self._columns is not None

    def nbytes(self) -> int:
        """Bytes of these records as columns, or an estimate from the type where measuring costs more than it tells."""
        if self._packed is not None:
            return self._packed.nbytes
        if self._columns is not None and self.num_rows > _FEW_ROWS:
            return int(self._columns.nbytes)
        return self.num_rows * self.type.estimated_row_bytes

    def unshared(self) -> Batch[AnyRecordOut]:
        """The same records for another consumer, who may change his without the first noticing."""
        if not self.has_rows or self.type.can_be_shared:
            return self
        if not self.type.is_object:
            return self.without_rows()
        rows = copy_objects(self.rows)
        return Batch(
            self.type, columns=self._columns, rows=rows, origin=self.origin, timestamps=self.timestamps
        )

    def portion(self, start: int, most: int) -> int:
        """How many rows from `start` on a consumer of at most so many does best to take."""
        rows = min(most, self.num_rows - start)
        return rows if self._packed is None or self._rows is not None else self._packed.portion(start, rows)

    def slice(self, start: int, length: int) -> Batch[AnyRecordOut]:
        """A part of the batch, without copying columns."""
        columns = None if self._columns is None else self._columns.slice(start, length)
        rows = None if self._rows is None else self._rows[start : start + length]
        if rows is None and columns is None and self._packed is not None:
            rows = self._packed.slice(start, length)
        stamps = None if self.timestamps is None else self.timestamps.slice(start, length)
        origin = None if self.origin is None else self.origin._replace(position=self.origin.position + start)
        return Batch(self.type, columns=columns, rows=rows, origin=origin, timestamps=stamps)

    def filter(self, mask: Mask) -> Batch[AnyRecordOut]:
        """The records where the mask is true, in the forms that exist; their positions in the source are lost."""
        columns, stamps = self._columns, self.timestamps
        rows = self.rows if columns is None else self._rows
        if rows is not None:
            flags = mask.to_numpy(zero_copy_only=False) if isinstance(mask, pa.Array) else mask
            rows = list(compress(rows, flags if isinstance(flags, list) else flags.tolist()))
        if columns is not None or stamps is not None:
            chosen = mask if isinstance(mask, pa.Array) else pa.array(mask, pa.bool_())
            columns = None if columns is None else columns.filter(chosen)
            stamps = None if stamps is None else stamps.filter(chosen)
        return Batch(self.type, columns=columns, rows=rows, timestamps=stamps)

    def take(self, indices: npt.NDArray[np.intp]) -> Batch[AnyRecordOut]:
        """The records at these indices, in their order, in the forms that exist; positions in the source are lost."""
        columns, stamps = self._columns, self.timestamps
        rows = self.rows if columns is None else self._rows
        if rows is not None:
            rows = [rows[i] for i in indices.tolist()]
        if columns is not None or stamps is not None:
            chosen = pa.array(indices)
            columns = None if columns is None else columns.take(chosen)
            stamps = None if stamps is None else stamps.take(chosen)
        return Batch(self.type, columns=columns, rows=rows, timestamps=stamps)

    def project(self, record_type: RecordType) -> Batch:
        """Only the columns of `record_type`, which are some of the batch's."""
        return self.with_columns(record_type, self.columns.select(record_type.schema.names))

    def with_columns(self, record_type: RecordType, columns: pa.RecordBatch) -> Batch:
        """Other columns for the same records, a row for each: origin and timestamps stay."""
        return Batch(record_type, columns=columns, origin=self.origin, timestamps=self.timestamps)

    def with_timestamps(self, timestamps: pa.Int64Array | None) -> Batch[AnyRecordOut]:
        """The same records with other timestamps."""
        rows = self.rows if self._columns is None else self._rows  # packed rows have no timestamps
        return Batch(self.type, columns=self._columns, rows=rows, origin=self.origin, timestamps=timestamps)

    def without_rows(self) -> Batch[AnyRecordOut]:
        """The same records as columns alone: whoever asks for rows gets his own."""
        return self.with_columns(self.type, self.columns)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        forms = (("columns", self._columns), ("rows", self._rows), ("packed", self._packed))
        form = "+".join(name for name, value in forms if value is not None)
        return f"Batch({self.num_rows} x {self.type.describe()}, {form})"
