"""Whatever type a public signature names can be imported from where users import."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

import tidegate
import tidegate.formats
import tidegate.testing

NOT_FOR_USERS = {
    "Canonical": "how a record type reads columns that others wrote",
    "Counter": "what a context's counter() returns",
    "EqualTo": "a step of join(...).where(...).equal_to(...)",
    "Key": "made by key_by",
    "Operation": "made by the methods of streams",
    "Options": "made by Environment(...)",
    "PackedRows": "made by the runtime",
    "QuotedValues": "the OpenValues of CSV",
    "Restored": "what a checkpoint has of one operator",
    "StreamRef": "made by the methods of streams",
    "Transformation": "made by the methods of streams",
    "WatermarkAlignment": "made by WatermarkStrategy.with_alignment",
    "Where": "a step of join(...).where(...)",
}
"""Types that a public signature names although nobody has to write them, with the reason."""


def exported(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


def signatures(owner: Any) -> Iterator[tuple[str, Any, str]]:
    """The annotations of a class or a function that users see: whose, in which module, the text."""
    if inspect.isfunction(owner):
        yield from ((owner.__qualname__, owner.__module__, str(a)) for a in owner.__annotations__.values())
        return
    for cls in owner.__mro__:
        if not cls.__module__.startswith("tidegate"):
            continue
        for name, value in vars(cls).items():
            if name.startswith("_") and name != "__init__":
                continue
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if inspect.isfunction(function):
                for parameter, annotation in function.__annotations__.items():
                    if not parameter.startswith("_"):
                        yield f"{owner.__name__}.{name}", cls.__module__, str(annotation)
        for name, annotation in inspect.get_annotations(cls).items():
            if not name.startswith("_"):
                yield f"{owner.__name__}.{name}", cls.__module__, str(annotation)


@lru_cache
def imported_for_types(module: str) -> dict[str, str]:
    """The names that a module imports, also those for the type checker alone: name to module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def types_named(module: str, annotation: str) -> Iterator[type]:
    """The classes of tidegate in an annotation."""
    for name in set(re.findall(r"[A-Za-z_]\w*", annotation)):
        found = getattr(sys.modules[module], name, None)
        if found is None and name in imported_for_types(module):
            found = getattr(importlib.import_module(imported_for_types(module)[name]), name, None)
        if inspect.isclass(found) and found.__module__.startswith("tidegate."):
            yield found


PUBLIC = {**exported(tidegate), **exported(tidegate.testing), **exported(tidegate.formats)}


@pytest.mark.parametrize(
    "name", sorted(n for n, v in PUBLIC.items() if inspect.isclass(v) or inspect.isfunction(v))
)
def test_every_type_of_a_public_signature_can_be_imported_from_the_top(name: str) -> None:
    known = {id(value) for value in PUBLIC.values()}
    missing = {
        f"{cls.__name__} ({where})"
        for where, module, annotation in signatures(PUBLIC[name])
        for cls in types_named(module, annotation)
        if id(cls) not in known and cls.__name__ not in NOT_FOR_USERS and not cls.__name__.startswith("_")
    }
    assert not missing, f"{sorted(missing)} cannot be imported from tidegate, .testing or .formats"


@pytest.mark.parametrize("module", [tidegate, tidegate.testing, tidegate.formats], ids=lambda m: m.__name__)
def test_every_public_name_is_there_and_has_a_docstring(module: Any) -> None:
    bare = [n for n, v in exported(module).items() if inspect.isclass(v) and not inspect.getdoc(v)]
    assert bare == []


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'tidegate' has no attribute 'Sorce'"):
        tidegate.Sorce  # noqa: B018
