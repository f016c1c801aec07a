"""Classes with typed fields by value: records and states, splits and committables that a user's own script defines.

A slot cannot import the script, and only there can a hint in quotes (or under `from __future__ import annotations`) be
resolved. So a dataclass or a NamedTuple is sent with the types themselves. A `msgspec.Struct` needs its fields when it
is made, but cloudpickle makes a class first and adds its attributes later, so the class would arrive without fields.
This module makes it again with all of them.
"""

from __future__ import annotations

import inspect
import threading
import typing
import uuid
import weakref
from typing import Any

import msgspec

from tidegate.graph.local_modules import LocalPickler
from tidegate.records.type_hints import is_struct_class

_META = type(msgspec.Struct)
_CONFIG = (
    *(
        "frozen",
        "eq",
        "order",
        "array_like",
        "gc",
        "repr_omit_defaults",
        "omit_defaults",
        "forbid_unknown_fields",
    ),
    *("weakref", "dict", "cache_hash", "tag", "tag_field"),
)
_OF_THE_CLASS = frozenset(("__module__", "__annotations__", "__slots__", "__dict__", "__weakref__"))

_names: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
"""The classes of this process, so that one that comes back, or is loaded twice, is the same class."""
_lock = threading.Lock()
"""Held while a class is looked up and made: two threads that load the same blob get the same class."""


class StructPickler(LocalPickler):
    """A pickler that keeps the fields and hints of classes. What is pickled by name still is."""

    def reducer_override(self, obj: Any) -> Any:
        """Called for every object; cloudpickle handles those that are not such a class."""
        reduced = super().reducer_override(obj)
        if not isinstance(obj, type) or reduced is NotImplemented:
            return reduced
        if isinstance(obj, _META):
            return _reduce(obj)
        return _with_types_for_hints(obj, reduced) if is_struct_class(obj) else reduced


def _with_types_for_hints(cls: type, reduced: Any) -> Any:
    """What cloudpickle made of a class, with its annotations resolved."""
    make, description, (members, slots), *rest = reduced
    hints = typing.get_type_hints(cls, include_extras=True)
    own = {name: hints[name] for name in inspect.get_annotations(cls)}
    return make, description, ({**members, "__annotations__": own}, slots), *rest


def _reduce(cls: Any) -> Any:
    own = inspect.get_annotations(cls)
    fields = [f for f in msgspec.structs.fields(cls) if f.name in own]
    names = {f.name for f in fields}
    config = {name: getattr(cls.__struct_config__, name) for name in _CONFIG}
    config["kw_only"] = any(name not in cls.__match_args__ for name in names)
    described = [
        (f.name, f.type, _given(f.default), _given(f.default_factory), f.encode_name) for f in fields
    ]
    with _lock:
        key = _names.setdefault(cls, uuid.uuid4().hex)
        _classes[key] = cls
    # Methods may name their class, so they follow after it is made; only `__post_init__` must be there before.
    members = {k: v for k, v in vars(cls).items() if k not in _OF_THE_CLASS and k not in names}
    early = {k: members.pop(k) for k in ("__post_init__",) if k in members}
    made = (key, cls.__name__, cls.__qualname__, cls.__module__, cls.__bases__, described, config, early)
    return _make, made, (key, members), None, None, _add_members


def _given(value: Any) -> tuple[Any, ...]:
    """A default, wrapped: msgspec's marker for "no default" is another object in another process."""
    return () if value is msgspec.NODEFAULT else (value,)


def _make(
    key: str,
    name: str,
    qualname: str,
    module: str,
    bases: tuple[type, ...],
    fields: list[tuple[str, Any, tuple[Any, ...], tuple[Any, ...], str]],
    config: dict[str, Any],
    early: dict[str, Any],
) -> type:
    with _lock:
        known = _classes.get(key)
        if known is None:
            known = _classes[key] = _new_struct(name, module, bases, fields, config, early)
            known.__qualname__ = qualname
        return known


def _new_struct(
    name: str,
    module: str,
    bases: tuple[type, ...],
    fields: list[tuple[str, Any, tuple[Any, ...], tuple[Any, ...], str]],
    config: dict[str, Any],
    early: dict[str, Any],
) -> type:
    described = []
    for field, type_, default, factory, encoded in fields:
        settings: dict[str, Any] = {"name": None if encoded == field else encoded}
        if default:
            settings["default"] = default[0]
        if factory:
            settings["default_factory"] = factory[0]
        described.append((field, type_, msgspec.field(**settings)))
    return msgspec.defstruct(name, described, bases=bases, module=module, namespace=early, **config)


def _add_members(cls: type, state: tuple[str, dict[str, Any]]) -> None:
    key, members = state
    if cls in _names:  # complete: this process defined it, or loaded it before
        return
    for name, value in members.items():
        setattr(cls, name, value)
    _names[cls] = key  # last: another thread that loads the same class meanwhile completes it, too
