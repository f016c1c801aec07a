"""Dense ids for keys: keyed operators index their arrays of totals and states with them.

An operator keeps one `KeyIndex` and asks it for the ids of each batch's key columns. Ids count up from 0 and are never
reused. They exist in one process only: snapshots store the keys themselves.

Numbers and times are found in an `IdTable` by their 64 bits. Text, binary and decimals are found in a `BytesTable`,
once per distinct value of a batch: the column is dictionary-encoded if it is not already, and the ids are taken by
index. The ids of several columns are combined pairwise into 64 bits and looked up in an `IdTable` again. Equality is
exact everywhere; nothing relies on a hash alone. Null is a key like any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import KeyTypeError
from tidegate.keys.bytes_table import BytesTable
from tidegate.keys.id_table import IdTable
from tidegate.records.column_bits import (
    CodeTable,
    dictionary_codes,
    fixed_width_bits,
    from_fixed_width_bits,
    has_nulls,
    is_bytes_like,
    is_fixed_width,
    null_mask,
)
from tidegate.records.recent_dictionaries import RecentDictionaries

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFF_FFFF)
_FEW_ROWS: Final = 32
_MOST_RECENT: Final = 1 << 16


class KeyIndex:
    """Ids for keys of one or more columns. The first batch fixes their types."""

    def __init__(self) -> None:
        self._columns: list[_ColumnIndex] = []
        self._pairs: list[IdTable] = []
        self._recent: dict[object, int] = {}

    def __len__(self) -> int:
        """The number of distinct keys so far, which is the next id."""
        if self._pairs:
            return len(self._pairs[-1])
        return len(self._columns[0]) if self._columns else 0

    def ids(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Ids:
        """The id of each row's key; a new key gets the next one.

        New keys of a batch get ids in the order of the rows, or of the column's dictionary. The result may be
        read-only.
        """
        if len(columns) == 1 and 0 < len(columns[0]) <= _FEW_ROWS:
            return self._few_ids(columns[0])
        return self._all_ids(columns)

    def _few_ids(self, column: pa.Array | pa.ChunkedArray) -> Ids:
        """Look up a few rows one by one: the vectorised way has a fixed cost of many look-ups."""
        kind = _value_type(column.type)
        if not (pa.types.is_integer(kind) or is_bytes_like(kind)):
            return self._all_ids([column])
        keys = column.to_pylist()
        recent = self._recent
        found = [recent.get(key, -1) for key in keys]
        if -1 not in found and self._columns:
            self._columns[0].check(kind)
            return np.array(found, dtype=np.int64)
        ids = self._all_ids([column])
        if len(recent) > _MOST_RECENT:
            recent.clear()
        recent.update(zip(keys, ids.tolist(), strict=True))
        return ids

    def _all_ids(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Ids:
        arrays = [_one_array(column) for column in columns]
        if not self._columns:
            if not arrays:
                raise ValueError("a key needs at least one column")
            self._columns = [_column_index(array.type) for array in arrays]
            self._pairs = [IdTable() for _ in arrays[1:]]
        if len(arrays) != len(self._columns):
            raise ValueError(f"the key has {len(self._columns)} columns, but the batch has {len(arrays)}")
        if len({len(array) for array in arrays}) > 1:
            raise ValueError(f"key columns have different lengths: {[len(array) for array in arrays]}")
        for column, array in zip(self._columns, arrays, strict=True):
            column.check(_value_type(array.type))
        ids, *others = [column.ids(array) for column, array in zip(self._columns, arrays, strict=True)]
        for table, other in zip(self._pairs, others, strict=True):
            pair = ids.astype(np.uint64)
            pair <<= _HALF
            pair |= other.view(np.uint64)
            ids = table.ids(pair)
        return ids

    def freeze(self) -> KeyIndex:
        """The current keys, without a copy. Another thread may read them with `keys` while this index grows.

        Keys are only appended, where the frozen index does not look, or moved to new, larger arrays.
        """
        frozen = KeyIndex()
        frozen._columns = [column.freeze() for column in self._columns]
        frozen._pairs = [copy(table) for table in self._pairs]
        return frozen

    def keys(self, ids: Ids | None = None) -> list[pa.Array]:
        """The key columns of these ids (default: all, in order). Text comes back plain, not dictionary-encoded."""
        if ids is None:
            ids = np.arange(len(self), dtype=np.int64)
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < len(self)):
            raise IndexError(f"ids must be from 0 to {len(self) - 1}, but are {ids.min()} to {ids.max()}")
        columns: list[pa.Array] = []
        for table, column in zip(reversed(self._pairs), reversed(self._columns[1:]), strict=True):
            pair = table.keys(ids)
            columns.append(column.keys((pair & _LOW).view(np.int64)))
            ids = (pair >> _HALF).view(np.int64)
        if self._columns:
            columns.append(self._columns[0].keys(ids))
        return columns[::-1]


class _ColumnIndex(ABC):
    """Ids for the values of one column.

    A table assigns ids to values that are not null. The first null takes the next id; later ids of the table are
    shifted by one.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self._null_id: int | None = None

    def __len__(self) -> int:
        return self._table_size() + (self._null_id is not None)

    def check(self, kind: pa.DataType) -> None:
        """Refuse a column of another type. Text may change its layout, and a batch may have only nulls."""
        if kind == self.type or pa.types.is_null(kind) or _family(kind) == _family(self.type) != "other":
            return
        raise KeyTypeError(f"a key column of type {self.type} became {kind}. Cast it to one type.")

    def ids(self, array: pa.Array) -> Ids:
        """The id of each row's value, including null."""
        if pa.types.is_null(array.type):
            array = pa.nulls(len(array), self.type)
        null = null_mask(array) if has_nulls(array) else None
        table_ids = self._table_ids(array, null)
        null_id = self._null_id
        if null is not None and null_id is None and null.any():
            null_id = self._null_id = self._table_size()
        if null_id is not None:
            table_ids = table_ids + (table_ids >= null_id)
            if null is not None:
                table_ids[null] = null_id
        return table_ids

    def keys(self, ids: Ids) -> pa.Array:
        """The values of these ids."""
        if self._null_id is None:
            return self._values(ids, None)
        null = ids == self._null_id
        if not self._table_size():
            return pa.nulls(len(ids), self.type)
        table_ids = ids - (ids > self._null_id)
        table_ids[null] = 0
        return self._values(table_ids, null)

    def freeze(self) -> _ColumnIndex:
        return copy(self)

    @abstractmethod
    def _table_size(self) -> int:
        """The number of values in the table."""

    @abstractmethod
    def _table_ids(self, array: pa.Array, null: Mask | None) -> Ids:
        """The ids of the table; undefined for null rows."""

    @abstractmethod
    def _values(self, table_ids: Ids, null: Mask | None) -> pa.Array:
        """The values of these ids, null where the mask is set."""


class _NullColumn(_ColumnIndex):
    """A column without a type, which has only nulls."""

    def _table_size(self) -> int:
        return 0

    def _table_ids(self, array: pa.Array, null: Mask | None) -> Ids:
        return np.zeros(len(array), np.int64)

    def _values(self, table_ids: Ids, null: Mask | None) -> pa.Array:
        return pa.nulls(len(table_ids), self.type)


class _NumberColumn(_ColumnIndex):
    """Numbers, bools and times, by their bits."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._table = IdTable()

    def freeze(self) -> _ColumnIndex:
        frozen = copy(self)
        frozen._table = copy(self._table)
        return frozen

    def _table_size(self) -> int:
        return len(self._table)

    def _table_ids(self, array: pa.Array, null: Mask | None) -> Ids:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        bits = fixed_width_bits(array)
        if null is None:
            return self._table.ids(bits)
        ids = np.zeros(len(array), np.int64)
        ids[~null] = self._table.ids(bits[~null])
        return ids

    def _values(self, table_ids: Ids, null: Mask | None) -> pa.Array:
        return from_fixed_width_bits(self._table.keys(table_ids), self.type, null)


class _BytesColumn(_ColumnIndex):
    """Text, binary and decimals, by their bytes: looked up once per distinct value of a batch, then by index."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._table = BytesTable()
        self._recent: RecentDictionaries[CodeTable] = RecentDictionaries()

    def freeze(self) -> _ColumnIndex:
        frozen = copy(self)
        frozen._table = self._table.freeze()
        frozen._recent = RecentDictionaries()
        return frozen

    def _table_size(self) -> int:
        return len(self._table)

    def _table_ids(self, array: pa.Array, null: Mask | None) -> Ids:
        encoded = _encoded(array)
        dictionary = encoded.dictionary
        id_of_code = self._known(dictionary, repeats=pa.types.is_dictionary(array.type))
        ids = self._by_code(id_of_code, encoded, null)
        if int(ids.min(initial=0)) < 0:
            # Only values that rows use become keys: after an exchange the dictionary also has those of other subtasks.
            codes = dictionary_codes(encoded)
            used = np.zeros(len(dictionary) + 1, np.bool_)
            used[codes if null is None else codes[~null]] = True
            new = np.flatnonzero(used & (id_of_code.numbers < 0))
            values = dictionary if len(new) == len(dictionary) else dictionary.take(pa.array(new))
            id_of_code.numbers[new] = self._table.ids(values)
            ids = self._by_code(id_of_code, encoded, null)
        return ids

    def _by_code(self, id_of_code: CodeTable, encoded: pa.DictionaryArray, null: Mask | None) -> Ids:
        if null is None:
            ids: Ids = id_of_code.look_up(encoded).to_numpy()
            return ids
        codes = dictionary_codes(encoded)
        codes[null] = len(encoded.dictionary)  # also rows whose index refers to a null in the dictionary
        taken: Ids = id_of_code.numbers.take(codes)
        return taken

    def _known(self, dictionary: pa.Array, *, repeats: bool) -> CodeTable:
        """Table ids by code, -1 for new values; null, the last code, has 0. A column's own dictionary often repeats."""
        id_of_code = self._recent.find(dictionary) if repeats else None
        if id_of_code is None:
            id_of_code = CodeTable(np.append(self._table.find(dictionary), 0))
            if repeats:
                self._recent.keep(dictionary, id_of_code)
        return id_of_code

    def _values(self, table_ids: Ids, null: Mask | None) -> pa.Array:
        taken = self._table.array().take(pa.array(table_ids, mask=null))
        if pa.types.is_decimal(self.type):
            return pc.cast(taken, pa.binary(self.type.byte_width)).view(self.type)
        if _family(self.type) == "text":
            taken = taken.view(pa.large_string())
        return taken if taken.type == self.type else pc.cast(taken, self.type)


def _column_index(kind: pa.DataType) -> _ColumnIndex:
    kind = _value_type(kind)
    if pa.types.is_null(kind):
        return _NullColumn(kind)
    if is_fixed_width(kind):
        return _NumberColumn(kind)
    if is_bytes_like(kind) or pa.types.is_decimal(kind):
        return _BytesColumn(kind)
    raise KeyTypeError(f"a column of type {kind} cannot be a key: it has no stable hash.")


def _value_type(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind


def _family(kind: pa.DataType) -> str:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "binary"
    return "other"


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if isinstance(column, pa.ChunkedArray):  # too long for 32-bit offsets
            raise ValueError("a key column of more than 2 GiB in one batch")
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return pc.run_end_decode(column) if pa.types.is_run_end_encoded(column.type) else column


def _encoded(array: pa.Array) -> pa.DictionaryArray:
    """The column as a dictionary array of text or binary, with a dictionary not much longer than the column."""
    if not pa.types.is_dictionary(array.type):
        return _as_bytes(array).dictionary_encode()
    if len(array.dictionary) > 2 * len(array) + 1024:
        return _encoded(array.dictionary_decode())
    dictionary = array.dictionary
    values = _as_bytes(dictionary)
    if values is dictionary:
        return array
    return pa.DictionaryArray.from_arrays(array.indices, values)


def _as_bytes(array: pa.Array) -> pa.Array:
    """Decimals of one type are equal exactly if their bytes are. Arrow has no `take` for views of text yet."""
    kind = array.type
    if pa.types.is_decimal(kind):
        return array.view(pa.binary(kind.byte_width))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pc.cast(array, pa.large_binary())
    return array
