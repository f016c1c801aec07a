"""`Batch`: the unit between operators, as columns, as rows, or as both.

A batch is made from columns (an Arrow record batch) or from rows (a list of Python objects) and converts to the
other form when somebody asks, at most once. Per-record functions in one chain so hand rows to each other untouched,
vectorised operators hand columns to each other untouched, and an exchange asks for columns once. Rows that go over
a wire to a consumer of rows are packed instead (`packed_rows.py`), and unpacked when he asks.

String columns may arrive dictionary-encoded (cheap to hash, to exchange and to count). `columns` gives them as they
are; `plain_columns` gives exactly the declared Arrow types, which is what user code must see.
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import pyarrow as pa

from tidegate.records.object_copies import copy_objects
from tidegate.records.packed_rows import PackedRows
from tidegate.records.type_variables import AnyRecordOut, T
from tidegate.records.types import RecordType

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
        columns: pa.RecordBatch | None,
        rows: list[AnyRecordOut] | None,
        origin: Origin | None = None,
        timestamps: pa.Int64Array | None = None,
    ) -> None:
        self.type = record_type
        self._columns = columns
        self._rows = rows
        self._packed: PackedRows | None = None
        self.num_rows: int = columns.num_rows if columns is not None else len(rows or ())
        self.origin = origin
        self.timestamps = timestamps

    @classmethod
    def of_columns(
        cls, record_type: RecordType, columns: pa.RecordBatch, origin: Origin | None = None
    ) -> Batch:
        """Make a batch from an Arrow record batch whose fields are those of `record_type`, in order."""
        return cls(record_type, columns, None, origin)

    @classmethod
    def of_rows(cls, record_type: RecordType, rows: list[T], origin: Origin | None = None) -> Batch[T]:
        """Make a batch from Python objects; the list now belongs to the batch."""
        return Batch(record_type, None, rows, origin)

    @classmethod
    def of_packed(cls, record_type: RecordType, packed: PackedRows) -> Batch:
        """Make a batch from packed rows."""
        batch = cls(record_type, None, None)
        batch._packed = packed
        batch.num_rows = packed.count
        return batch

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
        return Batch.of_packed(self.type, PackedRows(packer, [(self.num_rows, data)]))

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
        if self.type.is_object:
            return Batch(self.type, self._columns, copy_objects(self.rows), self.origin, self.timestamps)
        return Batch(self.type, self.columns, None, self.origin, self.timestamps)

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
        return Batch(self.type, columns, rows, origin, stamps)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        forms = (("columns", self._columns), ("rows", self._rows), ("packed", self._packed))
        form = "+".join(name for name, value in forms if value is not None)
        return f"Batch({self.num_rows} x {self.type.describe()}, {form})"
