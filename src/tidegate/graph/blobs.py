"""Blobs: the user's functions and objects as bytes. The only pickles that leave the driver.

Functions and classes from modules that are not installed (a script, a notebook, a test) are pickled by value, so the
slots need not import them; those of installed packages are pickled by name.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from tidegate.api.environment import Environment
from tidegate.api.streams import DataStream
from tidegate.core.errors import ModuleMissingError, SerializationError
from tidegate.core.words import kind_of
from tidegate.graph.struct_classes import StructPickler


def dump_blob(value: Any, owner: str) -> bytes:
    """Pickle a user's object; the error names its `owner` (an operator)."""
    try:
        return _dumps(value)
    except Exception as e:
        kind, name, item = _culprit(value)
        where = f" because of {kind} {name!r} ({kind_of(item)})" if kind else ""
        if _lives_in_the_driver(item):
            raise SerializationError(
                f"operator {owner!r} cannot be sent to the slots{where}, which exists in the driver alone. Take what "
                f"the function needs out of it before (a value, a list), and let the function use that"
            ) from e
        raise SerializationError(
            f"operator {owner!r} cannot be sent to the slots{where}: {type(e).__name__}: {e}. "
            f"Open files, connections, locks and sessions inside the function's open(), not outside"
        ) from e


def load_blob(data: bytes) -> Any:
    """Unpickle what `dump_blob` made; only called on bytes from the job's own authenticated driver.

    A class that this process defined comes back as itself, unchanged.
    """
    return _Loader(io.BytesIO(data)).load()


def load_in_slot(data: bytes, owner: str) -> Any:
    """`load_blob` in a slot; if it fails, raises a `SerializationError` that names the operator."""
    try:
        return load_blob(data)
    except ImportError as e:
        raise ModuleMissingError(
            f"operator {owner!r} cannot be loaded in the slot: {type(e).__name__}: {e}. Install the module on every "
            f"executor, or ship it with the job"
        ) from e
    except BaseException as e:
        raise SerializationError(
            f"operator {owner!r} cannot be loaded in the slot: {type(e).__name__}: {e}. The slot must have the same "
            f"Python and package versions as the driver"
        ) from e


class _Loader(pickle.Unpickler):
    """Does not change this process's own classes.

    cloudpickle recognises a class that comes back to the process that defined it, but sets all its attributes again, as
    they were pickled: its methods would then see only the globals that their code uses, and not the classes that their
    hints name. A class that came from another process does get them again: it may have changed there.
    """

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if module == _CLOUDPICKLE.__name__:
            if name in ("_make_skeleton_class", "_make_skeleton_enum"):
                return functools.partial(_make_class, found)
            if name == "_class_setstate":
                return functools.partial(_set_class_state, found)
        return found


_CLOUDPICKLE = sys.modules[cloudpickle.CloudPickler.__module__]
_from_elsewhere: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes of this process that were made from a blob."""
_lock = threading.Lock()
"""Held while a class is made and noted: a second thread that loads it then completes it, too."""


def _make_class(make: Callable[..., type], *description: Any) -> type:
    *_, tracker_id, _extra = description
    with _lock:
        is_known = tracker_id in _CLOUDPICKLE._DYNAMIC_CLASS_TRACKER_BY_ID
        cls = make(*description)
        if not is_known:
            _from_elsewhere.add(cls)
    return cls


def _set_class_state(set_state: Callable[[type, Any], type], cls: type, state: Any) -> type:
    return set_state(cls, state) if cls in _from_elsewhere else cls


def _dumps(value: Any) -> bytes:
    with io.BytesIO() as file:
        StructPickler(file, protocol=5).dump(value)
        return file.getvalue()


def _culprit(value: Any) -> tuple[str, str, Any]:
    """The captured variable, global or attribute that cannot be pickled, a few levels deep: its kind, name and value.

    The kind and the name are empty if it is not found.
    """
    for holder in _holders(value, 5):
        for kind, name, item in _parts(holder):
            if not _pickles(item) and not any(not _pickles(i) for _, _, i in _parts(item)):
                return kind, name, item
    return "", "", None


def _lives_in_the_driver(value: Any) -> bool:
    """Whether it belongs to the driver: useless in a slot, and not to be searched for parts."""
    return (
        isinstance(value, (Environment, DataStream)) or type(value).__module__.partition(".")[0] == "pyspark"
    )


def _holders(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth:
        for _, _, item in _parts(value):
            if not _pickles(item):
                yield from _holders(item, depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, str, Any]]:
    if _lives_in_the_driver(value):
        return
    if isinstance(value, MethodType):
        yield "the object of the method", value.__name__, value.__self__
        value = value.__func__
    if isinstance(value, functools.partial):
        yield from (("the bound argument", str(i), a) for i, a in enumerate(value.args))
        yield from (("the bound argument", name, a) for name, a in value.keywords.items())
        yield "the function", getattr(value.func, "__name__", "?"), value.func
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, dict):
        yield from (("the entry", str(key), item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        names = getattr(value, "_fields", None)
        yield from (("the item", names[i] if names else str(i), item) for i, item in enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
        yield from (("the attribute", name, item) for name, item in vars(value).items())


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield "the captured variable", name, cell.cell_contents
    for name in sorted(_global_names(code) & set(function.__globals__)):
        item = function.__globals__[name]
        if not isinstance(item, (ModuleType, type)):
            yield "the global variable", name, item
    yield from (("the default value", str(i), item) for i, item in enumerate(function.__defaults__ or ()))


def _global_names(code: CodeType) -> set[str]:
    """The names that a function uses, including those in nested functions."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _pickles(value: Any) -> bool:
    try:
        _dumps(value)
    except Exception:  # noqa: BLE001 - the user's objects may raise anything while they are pickled
        return False
    return True
