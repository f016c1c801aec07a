"""Values with a plainer form in columns: enums, UUIDs, numpy scalars.

| hint | column | |
|---|---|---|
| an `Enum` of texts, or of integers | `string`, `int64` | the member's value, as other systems write it |
| any other `Enum` | `string` | the member's name |
| `UUID` | `string` | the usual text, which every format, Spark and SQL have |
| `numpy.int32`, `numpy.float64`, `numpy.bool_`, ... | the same type in Arrow | |
| `Literal["a", "b"]` | the type of its values | |
"""

from __future__ import annotations

import enum
import typing
import uuid
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import SchemaError


class Canonical(NamedTuple):
    """The one form of a value in a column, to which foreign columns are brought, so that equal values are equal keys.

    `of_value` returns a value in that form, or raises `SchemaError` if it is not valid. `is_quick` says for a whole
    column which values have the form already.
    """

    of_value: Callable[[Any], Any]
    is_quick: Callable[[pa.Array], pa.Array] | None = None


Conversions = tuple[pa.DataType, Callable[[Any], Any], Callable[[Any], Any], Canonical | None]
"""The Arrow type, the conversion into a column, the conversion back, and the canonical form."""

_NUMPY_KINDS = "biuf"


def conversions_of(hint: Any) -> Conversions | None:
    """The column form of such a type; None for other types."""
    if not isinstance(hint, type):
        return None
    if issubclass(hint, enum.Enum):
        return _enum(hint)
    if issubclass(hint, uuid.UUID):
        return pa.string(), _text_of_uuid, _uuid_of_text, _CANONICAL_UUID
    if issubclass(hint, np.generic):
        return _numpy(hint)
    return None


def literal_type(hint: Any) -> Any:
    """The type of the values of a `Literal` (`T | None` if None is among them); None if they have several types."""
    values = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    classes = {type(value) for value in values}
    rest = classes - {type(None)}
    if len(rest) != 1:
        return None
    (cls,) = rest
    return cls if len(classes) == 1 else cls | None


def _enum(cls: type[enum.Enum]) -> Conversions | None:
    members = list(cls)
    values = {type(member.value) for member in members}
    if values == {str} or (values == {int} and all(-(1 << 63) <= m.value < 1 << 63 for m in members)):
        arrow_type = pa.string() if values == {str} else pa.int64()
        known: dict[Any, enum.Enum] = {member.value: member for member in members}
        find: Callable[[Any], Any] = (
            cls  # also finds combined flags, and what `_missing_` of the class accepts
        )
        read: Callable[[Any], Any] = lambda member: member.value  # noqa: E731
    elif issubclass(cls, enum.Flag) or not members:
        return None
    else:
        arrow_type, known, find = pa.string(), {member.name: member for member in members}, cls.__getitem__
        read = lambda member: member.name  # noqa: E731

    def encode(value: Any) -> Any:
        if not isinstance(value, cls):
            raise TypeError
        return read(value)

    def decode(value: Any) -> Any:
        found = known.get(value)
        if found is not None:
            return found
        try:
            return find(value)
        except (ValueError, KeyError) as e:
            some = ", ".join(map(repr, list(known)[:10]))
            raise SchemaError(f"{value!r} is no {cls.__name__}; there are {some}") from e

    values = pa.array(list(known), arrow_type)
    canonical = Canonical(lambda value: read(decode(value)), lambda array: pc.is_in(array, values))
    return arrow_type, encode, decode, canonical


def _text_of_uuid(value: Any) -> str:
    if not isinstance(value, uuid.UUID):
        raise TypeError
    return str(value)


def _uuid_of_text(value: str) -> uuid.UUID:
    try:
        return uuid.UUID(value)
    except ValueError:
        raise SchemaError(f"{value!r} is no UUID") from None


_UUID = f"^{'-'.join(f'[0-9a-f]{{{digits}}}' for digits in (8, 4, 4, 4, 12))}$"
_CANONICAL_UUID = Canonical(
    lambda value: str(_uuid_of_text(value)), lambda array: pc.match_substring_regex(array, _UUID)
)


def _numpy(cls: type[np.generic]) -> Conversions | None:
    try:
        dtype = np.dtype(cls)
        arrow_type = pa.from_numpy_dtype(dtype)
    except (TypeError, NotImplementedError, pa.ArrowException):
        return None
    if dtype.kind not in _NUMPY_KINDS or arrow_type == pa.float16():
        return None

    def encode(value: Any) -> Any:  # a plain number passes; the column checks whether it fits
        return value.item() if isinstance(value, np.generic) else value

    return arrow_type, encode, cls, None
