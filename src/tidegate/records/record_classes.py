"""Record classes: dataclasses, NamedTuples, TypedDicts and pydantic models, taken apart into fields and made again.

This module says which fields a record has, how to read their values, and how to make an equal record of them.
Attributes that are not fields (private ones of a model) are lost on the way.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NotRequired, Required


class RecordClass(ABC):
    """The fields of a class, in order, and the conversion between a record and their values."""

    def __init__(self, cls: type, hints: dict[str, Any]) -> None:
        self.cls = cls
        self.hints = hints
        """Field names and their resolved hints."""
        read = self.reader(tuple(hints))
        self.values: Callable[[Any], tuple[Any, ...]] = (
            read if len(hints) > 1 else lambda record: (read(record),)
        )
        """The values of one record, in order."""

    row_class: type
    """The value of `type(record)`."""
    is_frozen: bool
    """Whether records are immutable."""
    says_all = True
    """Whether every record of exactly `row_class` has all fields and no others."""
    absent: frozenset[str] = frozenset()
    """Fields that a record may lack; null in the columns."""

    @abstractmethod
    def make(self, *values: Any) -> Any:
        """Make a record of the field values in order."""

    @abstractmethod
    def reader(self, names: Sequence[str]) -> Callable[[Any], Any]:
        """A function that returns the value of one field, or a tuple of the values of several."""

    def columns(self, records: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """The values of each field."""
        return (list(map(self.reader((name,)), records)) for name in self.hints)

    def refusal(self, record: Any) -> str:
        """Why a record of `row_class` is not valid; empty if it is."""
        return ""


def record_class_of(hint: Any) -> RecordClass | None:
    """How to take records of a class apart; None if it has no typed fields, or they alone do not make a record."""
    if not isinstance(hint, type):
        return None
    for kind in (_Dataclass, _NamedTuple, _TypedDict, _PydanticModel):
        if kind.takes(hint):
            try:
                hints = typing.get_type_hints(hint, include_extras=True)
            except (NameError, TypeError):
                return None
            return kind.of(hint, hints)
    return None


class _Dataclass(RecordClass):
    def __init__(self, cls: type, hints: dict[str, Any]) -> None:
        super().__init__(cls, hints)
        self.row_class = cls
        self.is_frozen = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        by_name = any(f.kw_only for f in dataclasses.fields(cls) if f.init)
        self.make = self._make_by_name if by_name else cls  # type: ignore[method-assign]

    @staticmethod
    def takes(cls: type) -> bool:
        return dataclasses.is_dataclass(cls)

    @classmethod
    def of(cls, owner: Any, hints: dict[str, Any]) -> RecordClass | None:
        init_vars = [
            f
            for f in owner.__dataclass_fields__.values()
            if f._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]
        ]
        if not owner.__dataclass_params__.init or init_vars:
            return None
        return _with_all(cls, owner, hints, [f.name for f in dataclasses.fields(owner) if f.init])

    def make(self, *values: Any) -> Any:
        return self.cls(*values)

    def _make_by_name(self, *values: Any) -> Any:
        return self.cls(**dict(zip(self.hints, values, strict=True)))

    def reader(self, names: Sequence[str]) -> Callable[[Any], Any]:
        return attrgetter(*names)


class _NamedTuple(RecordClass):
    is_frozen = True

    def __init__(self, cls: type, hints: dict[str, Any]) -> None:
        super().__init__(cls, hints)
        self.row_class = cls
        self.make = cls  # type: ignore[method-assign]

    @staticmethod
    def takes(cls: type) -> bool:
        return issubclass(cls, tuple) and hasattr(cls, "_fields")

    @classmethod
    def of(cls, owner: Any, hints: dict[str, Any]) -> RecordClass | None:
        return _with_all(cls, owner, hints, list(owner._fields))

    def make(self, *values: Any) -> Any:
        return self.cls(*values)

    def reader(self, names: Sequence[str]) -> Callable[[Any], Any]:
        return attrgetter(*names)

    def columns(self, records: Sequence[Any]) -> Iterable[Sequence[Any]]:
        return zip(*records, strict=True) if records else ([] for _ in self.hints)


class _TypedDict(RecordClass):
    """Records are dicts. A missing NotRequired key is null in the columns, so such a key cannot also be Optional."""

    row_class = dict
    is_frozen = False
    says_all = False

    def __init__(self, cls: type, hints: dict[str, Any], absent: frozenset[str]) -> None:
        super().__init__(cls, hints)
        self.absent = absent

    @staticmethod
    def takes(cls: type) -> bool:
        return issubclass(cls, dict) and hasattr(cls, "__required_keys__")

    @classmethod
    def of(cls, owner: Any, hints: dict[str, Any]) -> RecordClass | None:
        absent = {name for name in owner.__optional_keys__ if typing.get_origin(hints[name]) is not Required}
        absent |= {name for name, hint in hints.items() if typing.get_origin(hint) is NotRequired}
        bare = {
            name: typing.get_args(hint)[0] if typing.get_origin(hint) in (Required, NotRequired) else hint
            for name, hint in hints.items()
        }
        if any(type(None) in typing.get_args(bare[name]) for name in absent):
            return None
        return cls(owner, bare, frozenset(absent))

    def make(self, *values: Any) -> Any:
        if not self.absent:
            return dict(zip(self.hints, values, strict=True))
        pairs = zip(self.hints, values, strict=True)
        return {name: value for name, value in pairs if value is not None or name not in self.absent}

    def reader(self, names: Sequence[str]) -> Callable[[Any], Any]:
        if len(names) == 1:
            (name,) = names
            return lambda record: record.get(name)
        return lambda record: tuple([record.get(name) for name in names])

    def refusal(self, record: Any) -> str:
        unknown = [key for key in record if key not in self.hints]
        missing = [name for name in self.hints if name not in record and name not in self.absent]
        if unknown:
            return f"with the unknown key {unknown[0]!r}"
        return f"without the key {missing[0]!r}" if missing else ""


class _PydanticModel(RecordClass):
    """Records are made without validating again: they were valid in the previous task."""

    def __init__(self, cls: type, hints: dict[str, Any]) -> None:
        super().__init__(cls, hints)
        self.row_class = cls
        self.is_frozen = bool(cls.model_config.get("frozen"))  # type: ignore[attr-defined]

    @staticmethod
    def takes(cls: type) -> bool:
        pydantic = sys.modules.get("pydantic")  # code that defines a model has loaded it
        model = getattr(pydantic, "BaseModel", None)
        return model is not None and issubclass(cls, model) and hasattr(cls, "model_fields")

    @classmethod
    def of(cls, owner: Any, hints: dict[str, Any]) -> RecordClass | None:
        if owner.model_config.get("extra") == "allow":  # each record may have its own fields
            return None
        return _with_all(cls, owner, hints, list(owner.model_fields))

    def make(self, *values: Any) -> Any:
        fields = dict(zip(self.hints, values, strict=True))
        made = self.cls.model_construct(**fields)  # type: ignore[attr-defined]
        # An alias may be the name of another field, and model_post_init may have changed a field.
        made.__dict__.update(fields)
        return made

    def reader(self, names: Sequence[str]) -> Callable[[Any], Any]:
        return attrgetter(*names)


def _with_all(kind: Any, owner: type, hints: dict[str, Any], names: Sequence[str]) -> RecordClass | None:
    """The class with these fields, if each of them has a hint."""
    if not names or not all(name in hints for name in names):
        return None
    made: RecordClass = kind(owner, {name: hints[name] for name in names})
    return made
