"""A quick check whether a value fits its declared type, also inside, so that a misfit is refused when it is stored.

If only a checkpoint found it, every checkpoint in every attempt would fail, far from the line that stored it.
`fits_for` generates a function for one type; a check costs about 50 ns per part. It may reject a value that fits (a
numpy integer, for example), but never accepts one that does not: after a rejection the caller asks the serializer.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import typing
from collections.abc import Callable
from typing import Any

from tidegate.records import type_hints
from tidegate.records.codecs import codec_of
from tidegate.records.record_classes import record_class_of
from tidegate.records.types import RecordType, RowType, ScalarType, StructType, TupleType

Fits = Callable[[Any], bool]


def fits_for(hint: Any) -> Fits | None:
    """A function that checks whether a value (never None) fits this type; None if there is no quick way.

    >>> fits = fits_for(dict[str, list[int]])
    >>> fits({"a": [1]}), fits({"a": ["1"]}), fits({"a": [1 << 63]}), fits([])
    (True, False, False, False)
    >>> fits_for(dict[str, memoryview])
    """
    if isinstance(hint, StructType):
        hint = hint.python_class
    scope: dict[str, Any] = {"is_text": _is_text, "datetime": dt.datetime, "date": dt.date}
    text = _look_at_columns(hint, scope) if isinstance(hint, RecordType) else _look(hint, "v", scope, 0)
    found: Fits | None = None if text is None else eval(f"lambda v: {text}", scope)
    return found


def _look_at_columns(record_type: RecordType, scope: dict[str, Any]) -> str | None:
    """The expression for records of a stream whose values are those of their columns."""
    looks = [codec_of(field.type).look for field in record_type.schema]
    if isinstance(record_type, ScalarType) and not record_type.coded:
        return looks[0] and looks[0].format(v="v")
    if isinstance(record_type, RowType):
        scope["kind"] = record_type._row
        values = [f"v.{name}" for name in record_type._row._fields]  # not v[i], which is Python code in Row
        first = "v.__class__ is kind"
    elif isinstance(record_type, TupleType) and not record_type.coded:
        values = [f"v[{i}]" for i in range(len(looks))]
        first = f"v.__class__ is tuple and len(v) == {len(looks)}"
    else:
        return None
    nullable = [field.nullable for field in record_type.schema]
    return _all(
        first,
        [
            look and (f"({value} is None or {look.format(v=value)})" if may_be_none else look.format(v=value))
            for look, value, may_be_none in zip(looks, values, nullable, strict=True)
        ],
    )


def _look(hint: Any, value: str, scope: dict[str, Any], depth: int) -> str | None:
    """The expression that checks `value`; None if there is none."""
    hint, optional = type_hints.strip_optional(type_hints.resolve_alias(hint))
    hint = type_hints.resolve_alias(hint)
    text = _look_inside(hint, value, scope, depth)
    if text is None:
        return None
    return f"({value} is None or {text})" if optional else f"({text})"


def _look_inside(hint: Any, value: str, scope: dict[str, Any], depth: int) -> str | None:
    if isinstance(hint, type) and hint in type_hints.SCALARS:
        look = codec_of(type_hints.SCALARS[hint]).look
        return look and look.format(v=value)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    item, key = f"i{depth}", f"k{depth}"
    if origin is list:
        inner = _look(args[0], item, scope, depth + 1)
        return inner and f"{value}.__class__ is list and all([{inner} for {item} in {value}])"
    if origin is dict:
        of_key, inner = _look(args[0], key, scope, depth + 1), _look(args[1], item, scope, depth + 1)
        if of_key is None or inner is None:
            return None
        pairs = f"for {key}, {item} in {value}.items()"
        return f"{value}.__class__ is dict and all([{of_key} and {inner} {pairs}])"
    parts = type_hints.fixed_tuple_args(hint) if origin is tuple else None
    if parts is not None:
        looks = [_look(part, f"{value}[{i}]", scope, depth) for i, part in enumerate(parts)]
        return _all(f"{value}.__class__ is tuple and len({value}) == {len(parts)}", looks)
    record_class = record_class_of(hint)
    if record_class is not None and (dataclasses.is_dataclass(hint) or issubclass(hint, tuple)):
        name = f"class{len(scope)}"
        scope[name] = record_class.row_class
        fields = record_class.hints.items()
        looks = [_look(field_hint, f"{value}.{field}", scope, depth) for field, field_hint in fields]
        return _all(f"{value}.__class__ is {name}", looks)
    return None


def _all(first: str, looks: list[str | None]) -> str | None:
    known = [look for look in looks if look is not None]
    return " and ".join([first, *known]) if len(known) == len(looks) else None


def _is_text(value: str) -> bool:
    """Whether the text can be encoded: half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
