"""Blobs: the user's functions and objects as bytes. The only pickles that leave the driver.

Functions and classes from modules that are not installed (a script, a notebook, a test) travel by value, so the
slots need not be able to import them; installed packages travel by name.
"""

from __future__ import annotations

import contextlib
import site
import sys
import sysconfig
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import cloudpickle

from tidegate.core.errors import SerializationError


def dump_blob(value: Any, owner: str) -> bytes:
    """Pickle a user's object; `owner` (an operator) is named when it cannot be done."""
    try:
        with _local_modules_by_value():
            return bytes(cloudpickle.dumps(value, protocol=5))
    except Exception as e:
        part = _culprit(value)
        where = f" because of {part}" if part else ""
        raise SerializationError(
            f"operator {owner!r} cannot be sent to the slots{where}: {type(e).__name__}: {e}. "
            f"Open files, connections, locks and sessions inside the function's open(), not outside"
        ) from e


def load_blob(data: bytes) -> Any:
    """Unpickle what `dump_blob` made; only ever called on bytes from the job's own authenticated driver."""
    return cloudpickle.loads(data)


@contextlib.contextmanager
def _local_modules_by_value() -> Iterator[None]:
    registered = []
    already = cloudpickle.list_registry_pickle_by_value()
    for name, module in list(sys.modules.items()):
        if name not in already and _is_local(name, module):
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _installed_prefixes() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    prefixes = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], sys.prefix, sys.base_prefix}
    prefixes.update(site.getsitepackages())
    prefixes.add(site.getusersitepackages())
    return tuple(prefixes)


_INSTALLED = _installed_prefixes()


def _is_local(name: str, module: ModuleType) -> bool:
    if name == "__main__" or name.partition(".")[0] in ("tidegate", "pyspark", "cloudpickle"):
        return False
    file = getattr(module, "__file__", None)
    if not file or getattr(module, "__name__", None) != name or not file.endswith(".py"):
        return False
    return not file.startswith(_INSTALLED) and "site-packages" not in file


def _culprit(value: Any) -> str:
    """Name the closure variable or attribute that does not pickle, one or two levels down; empty if unknown."""
    for holder in _holders(value, 3):
        for kind, name, item in _parts(holder):
            if not _pickles(item) and not any(not _pickles(i) for _, _, i in _parts(item)):
                return f"{kind} {name!r} (a {type(item).__name__})"
    return ""


def _holders(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth:
        for _, _, item in _parts(value):
            if not _pickles(item):
                yield from _holders(item, depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, str, Any]]:
    code = getattr(value, "__code__", None)
    if code is not None:
        cells = getattr(value, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars, cells, strict=False):
            with contextlib.suppress(ValueError):
                yield "the captured variable", name, cell.cell_contents
        names = set(code.co_names)
        for name in names & set(value.__globals__):
            item = value.__globals__[name]
            if not isinstance(item, (ModuleType, type)):
                yield "the global variable", name, item
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
        for name, item in vars(value).items():
            yield "the attribute", name, item


def _pickles(value: Any) -> bool:
    try:
        with _local_modules_by_value():
            cloudpickle.dumps(value)
    except Exception:
        return False
    return True
