"""The keys of a batch's records: as Python values, taken from whichever form the batch already has, or as columns."""

from __future__ import annotations

from math import nan
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.operators.failures import batch_position, blame, record_failure, rows_of
from tidegate.operators.results import wrong_type
from tidegate.program.operations import Key
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType, ScalarType, StructType, TupleType, column_values

PLAIN_KEYS = frozenset((pa.int64(), pa.string()))
"""Types whose values are the same in rows and in columns, and equal exactly when their keys are."""


def key_values(batch: Batch, columns: tuple[str, ...]) -> list[Any]:
    """The values of one key column, or tuples of the values of several. None is a key like any other.

    >>> from tidegate.records.types import record_type_of
    >>> batch = Batch(record_type_of(tuple[str, int]), rows=[("a", 1), ("b", 2)])
    >>> key_values(batch, ("f1",)), key_values(batch, ("f0", "f1"))
    ([1, 2], [('a', 1), ('b', 2)])
    """
    types = [batch.type.schema.field(_position(batch, name)).type for name in columns]
    # A coded field has another value in rows; the key is the value in the column.
    if not batch.type.coded.isdisjoint(columns):
        in_rows = False
    elif batch.has_columns:
        in_rows = batch.has_rows and PLAIN_KEYS.issuperset(types)  # do not convert them again
    else:
        in_rows = not any(map(pa.types.is_floating, types))  # every NaN in rows may be an object of its own
    if in_rows:
        return _from_rows(batch, columns)
    parts = [_values(batch.columns.column(_position(batch, name))) for name in columns]
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def record_keys(batch: Batch, key: Key, operator: str) -> list[Any]:
    """The key of every record; if the key function raises, the error names `operator` and the record."""
    if key.function is None:
        return key_values(batch, key.columns)
    rows = rows_of(batch, operator)
    records = iter(rows)
    function = key.function
    try:
        keys = [function(r) for r in records]
    except BaseException as e:
        raise record_failure(operator, batch, rows, records) from e
    return canonical_keys(keys, key.record_type)


class KeyColumns:
    """The keys of the batches of one operator's input, as columns."""

    def __init__(self, key: Key, input_type: RecordType, operator: str) -> None:
        self._key = key
        self._operator = operator
        self.positions = [input_type.field_index(c, "the key") for c in key.columns]
        """Where the key columns are; empty for a key function."""

    def of(self, batch: Batch, keys: list[Any] | None = None) -> list[pa.Array]:
        """The key of every record; a `SchemaError` of the records themselves is raised as it is.

        Pass `keys` where they are known, so that the user's function runs once.
        """
        if self._key.function is None:
            columns = batch.columns
            return [columns.column(i) for i in self.positions]
        if keys is None:
            keys = record_keys(batch, self._key, self._operator)
        with blame(self._operator, batch_position(batch)):
            return keys_to_columns(keys, self._key)


def keys_to_columns(keys: list[Any], key: Key) -> list[pa.Array]:
    """Keys as columns; raises `SchemaError` for one that is not of the key's type."""
    try:
        key.record_type.check_rows(keys)
        return list(key.record_type.to_columns(keys).columns)
    except SchemaError as e:
        raise wrong_type(e, f"the key function {key.describe()} returned the wrong type") from e


def key_position(key: Key, record_type: RecordType) -> int | None:
    """The position of the key in a tuple; None if the field is not the key exactly as it is looked up.

    A loop that reads the key itself needs no list of all keys: 5 ns per record instead of 40.
    """
    if key.function is not None or len(key.columns) != 1 or not isinstance(record_type, TupleType):
        return None
    if key.columns[0] in record_type.coded:
        return None
    position = record_type.field_index(key.columns[0], "the key")
    return position if record_type.schema.field(position).type in PLAIN_KEYS else None


def canonical_keys(keys: list[Any], record_type: RecordType) -> list[Any]:
    """The results of a key function, with one Python value for each key, for hashing and for looking up.

    A whole number where a float is declared becomes that float (it would hash as an int), and every NaN becomes the
    same object (a dict finds it by identity).

    >>> from tidegate.records.types import record_type_of
    >>> canonical_keys([1, 2.5], record_type_of(float)), canonical_keys([("a", 1)], record_type_of(tuple[str, float]))
    ([1.0, 2.5], [('a', 1.0)])
    """
    if record_type.is_object:
        return list(map(_one_nan, keys)) if float in set(map(type, keys)) else keys
    floats = [i for i, kind in enumerate(record_type.schema.types) if pa.types.is_floating(kind)]
    if not floats:
        return keys
    if isinstance(record_type, ScalarType):
        return list(map(_as_float, keys))
    if not isinstance(record_type, TupleType):
        return keys
    return [
        tuple(_as_float(part) if i in floats else part for i, part in enumerate(key))
        if key.__class__ is tuple
        else key
        for key in keys
    ]


def _as_float(key: Any) -> Any:
    return float(key) if key.__class__ is int else _one_nan(key)


def _one_nan(key: Any) -> Any:
    return nan if key.__class__ is float and key != key else key


def _values(column: pa.Array) -> list[Any]:
    values = column_values(column, None)
    if pa.types.is_floating(column.type):  # one object for all NaN: a dict finds it by identity
        return [nan if v != v else v for v in values]
    return values


def _from_rows(batch: Batch, columns: tuple[str, ...]) -> list[Any]:
    rows = batch.rows
    if isinstance(batch.type, ScalarType):
        return rows if len(columns) == 1 else [(row,) * len(columns) for row in rows]
    first = rows[0]
    positions = [_position(batch, name) for name in columns]
    get: Any
    if isinstance(batch.type, StructType):
        get = batch.type.record_class.reader(columns)
    elif isinstance(first, dict):
        get = itemgetter(*columns)
    elif hasattr(first, "_fields"):  # a Row: its own [] is written in Python, its attributes are not
        get = attrgetter(*(first._fields[i] for i in positions))
    else:
        get = itemgetter(*positions)
    return list(map(get, rows))


def _position(batch: Batch, column: str) -> int:
    return batch.type.field_index(column, "the key")
