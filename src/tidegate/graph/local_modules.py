"""Modules that are not installed (a script, a notebook, a test): what they define is pickled by value.

This pickler decides that itself. cloudpickle has a registry for it, but that belongs to the whole process: programs
that are planned on two threads, and other users of cloudpickle, would see each other's entries.
"""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import cloudpickle
from cloudpickle import cloudpickle as reducers


class LocalPickler(cloudpickle.Pickler):
    """cloudpickle's pickler, but functions and classes of local modules, and these modules, are pickled by value."""

    def reducer_override(self, obj: Any) -> Any:
        """Called for every object except the plainest; cloudpickle handles what is not local."""
        if isinstance(obj, FunctionType):
            return self._dynamic_function_reduce(obj) if _is_local(obj) else super().reducer_override(obj)
        if isinstance(obj, type):
            return reducers._dynamic_class_reduce(obj) if _is_local(obj) else super().reducer_override(obj)
        if isinstance(obj, ModuleType) and _is_local_module(obj.__name__):
            state = {name: value for name, value in vars(obj).items() if name != "__builtins__"}
            return reducers.dynamic_subimport, (obj.__name__, state)
        if isinstance(obj, TypeVar) and _is_local(obj):
            return reducers._make_typevar, reducers._decompose_typevar(obj)
        return super().reducer_override(obj)


def _is_local(obj: Any) -> bool:
    name = getattr(obj, "__module__", None)
    return isinstance(name, str) and _is_local_module(name)


def _is_local_module(name: str) -> bool:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return bool(file) and getattr(module, "__name__", None) == name and _is_local_file(name, str(file))


def _installed_prefixes() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    prefixes = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]}
    prefixes.update(site.getsitepackages())
    prefixes.add(site.getusersitepackages())
    return tuple(os.path.join(prefix, "") for prefix in prefixes)


_INSTALLED = _installed_prefixes()
_PACKAGES = frozenset(("site-packages", "dist-packages"))


@functools.lru_cache(maxsize=65536)  # asked for every function and class of a blob
def _is_local_file(name: str, file: str) -> bool:
    if name == "__main__" or name.partition(".")[0] in ("tidegate", "pyspark", "cloudpickle"):
        return False
    if not file.endswith(".py"):
        return False
    return not file.startswith(_INSTALLED) and not _PACKAGES.intersection(file.split(os.sep))
