"""Keys: checks the key of `key_by`, and finds the types of keys and of running aggregates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl
import pyarrow as pa

from tidegate.aggregates.aggregate import Aggregate, Kernel
from tidegate.api.functions import function_name, result_type
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.words import kind_of
from tidegate.program.aggregate_inputs import result_field
from tidegate.program.operations import Key
from tidegate.program.signatures import check_arguments
from tidegate.records.types import ObjectType, RecordType, RowType, ScalarType, StructType, brief


def make_key(record_type: RecordType, key: tuple[Any, ...], returns: Any, role: str = "key_by") -> Key:
    """Make the key from the arguments of `key_by`: column names, or one function."""
    if not key:
        raise ProgramError(f"{role} needs at least one column name, or a function")
    if all(isinstance(k, str) for k in key):
        if record_type.is_object:
            raise ProgramError(
                f"{role}({', '.join(map(repr, key))}) needs columns, but the records are Python objects without a "
                f"schema. Give the function before it a return type hint, or key by a function"
            )
        fields = [record_type.schema.field(record_type.field_index(k, role)) for k in key]
        for f in fields:
            if pa.types.is_nested(f.type) or pa.types.is_interval(f.type):
                raise ProgramError(
                    f"{role}({f.name!r}): a key cannot be a {f.type}; key by a scalar column or a function"
                )
        return Key(tuple(key), None, RowType(pa.schema(fields)))
    if len(key) == 1 and callable(key[0]):
        check_arguments(key[0], ("value",), f"{role}: {function_name(key[0])}")
        key_type = result_type(key[0], "__call__", returns, many=False)
        _check_hashable(key_type, role, key[0])
        if key_type.coded and role == "key_by":
            return Key((), PlainKey(key[0], key_type), key_type.in_columns)
        return Key((), key[0], key_type)
    got = repr(key[0]) if len(key) == 1 else repr(key)
    if len(key) == 1 and isinstance(key[0], (list, tuple)):
        got += f". Write {role}({', '.join(map(repr, key[0]))})"
    elif len(key) == 1 and isinstance(key[0], pl.Expr):
        got += f'. Make it a column before: with_columns(part=...).{role}("part")'
    raise ProgramError(f'{role} takes column names ({role}("a", "b")) or one function, got {got}')


class PlainKey:
    """A key function whose keys are what a column would hold: the value of an Enum, the text of a UUID.

    So a key is the same wherever it comes from, and whatever hashes or stores it.
    """

    def __init__(self, function: Any, key_type: RecordType) -> None:
        self._function = function
        self._type = key_type
        self.__name__ = function_name(function)

    def __call__(self, value: Any) -> Any:
        key = self._function(value)
        try:
            return self._type.as_in_columns(key)
        except (TypeError, AttributeError) as e:
            raise SchemaError(
                f"the key function {self.__name__} returned {kind_of(key)}, but {self._type.describe()} is "
                f"declared: {brief(key)}"
            ) from e


def _check_hashable(key_type: RecordType, role: str, function: Any) -> None:
    """Refuse a key type without a stable hash. Scalars and tuples of scalars have one."""
    nested = [f.type for f in key_type.schema if pa.types.is_nested(f.type)]
    no_tuple = isinstance(key_type, StructType) and not issubclass(key_type.python_class, tuple)
    if not key_type.is_object and (nested or no_tuple):
        raise ProgramError(
            f"{role}: the key function {function_name(function)} returns {key_type.describe()}, which cannot be a key. "
            f"Return a scalar, a tuple or a NamedTuple of scalars"
        )


def aggregate_type(
    record_type: RecordType, key: Key, aggregates: Iterable[tuple[str, Aggregate]]
) -> RecordType:
    """The type of running results: the key columns, then the results; object for an untyped key function."""
    results = [result_field(output, aggregate, record_type) for output, aggregate in aggregates]
    if key.function is not None and key.record_type.is_object:
        return ObjectType()
    return RowType(pa.schema([*_key_fields(key, [f.name for f in results]), *results]))


def totals_type(key: Key, kernels: Iterable[tuple[str, Kernel]]) -> RecordType:
    """The type of the partial results of running numbers between the two stages."""
    fields: list[pa.Field] = []
    for output, kernel in kernels:
        totals = kernel.totals() or []
        names = [output] if len(totals) == 1 else [f"{output}.{i}" for i in range(len(totals))]
        fields += [pa.field(name, each.type) for name, each in zip(names, totals, strict=True)]
    return RowType(pa.schema([*_key_fields(key, []), *fields]))


def _key_fields(key: Key, outputs: list[str]) -> list[pa.Field]:
    fields = [
        f.with_name("key") if isinstance(key.record_type, ScalarType) else f for f in key.record_type.schema
    ]
    for f in fields:
        if f.name in outputs:
            raise ProgramError(f"the result column {f.name!r} has the name of a key column; pass output=")
    return fields


def check_key_types_meet(first: Key, second: Key) -> None:
    """Refuse keys of two connected streams that can never be equal."""
    types = [k.record_type for k in (first, second)]
    if any(t.is_object for t in types):
        return
    if types[0].schema.types != types[1].schema.types:
        one, other = (", ".join(map(str, t.schema.types)) for t in types)
        raise ProgramError(
            f"connected streams need keys of one type: {first.describe()} is {one}, {second.describe()} is {other}"
        )
