"""Whatever type a public signature names can be imported from where users import."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, get_overloads

import pytest

import tidegate
import tidegate.formats
import tidegate.testing

NOT_FOR_USERS = {
    "ArrowTable": "what DataFrames and Arrow tables are to from_collection",
    "Canonical": "how a record type reads columns that others wrote",
    "Counter": "what a context's counter() returns",
    "EqualTo": "a step of join(...).where(...).equal_to(...)",
    "Groups": "given to Kernel.reduce",
    "Key": "made by key_by",
    "NoKey": "the key of a stream that has none",
    "OperatorStateOptions": "the keyword arguments of a state",
    "Operation": "made by the methods of streams",
    "Options": "made by Environment(...)",
    "Pace": "keyword arguments of DataGeneratorSource",
    "PackedRows": "made by the runtime",
    "QuotedValues": "the OpenValues of CSV",
    "Reading": "keyword arguments of FileSource",
    "Restored": "what a checkpoint has of one operator",
    "Settings": "the keyword arguments of an operation",
    "StateOptions": "the keyword arguments of a state",
    "StreamRef": "made by the methods of streams",
    "SubtaskContext": "what the contexts of a subtask show",
    "SubtaskInfo": "made by the runtime",
    "Totals": "the running numbers of the built-in kernels",
    "Transformation": "made by the methods of streams",
    "WatermarkAlignment": "made by WatermarkStrategy.with_alignment",
    "Where": "a step of join(...).where(...)",
}
"""Types that a public signature names although nobody has to write them, with the reason."""


MAY_BE_ANY = {
    "Aggregate": "an aggregate is made before the stream that has its column is known",
    "Kernel": "numpy and Arrow arrays of a type that is known when the program runs",
    "BroadcastContext.apply_to_keyed_state": "a name says nothing about the state's type",
    "DataStream.key_by": "column names say nothing about the key's type",
    "DataStream.partition_custom": "column names say nothing about the key's type",
    "JoinedStreams.where": "column names say nothing about the key's type",
    "IntervalJoinedStreams": "a late record is never None, though a side of an outer join may be",
    "StreamsInWindows": "a late record is never None, though a side of an outer join may be",
    "KeyedState.__init__": "the serializer of any type of value",
    "OnMergeContext.merged_states": "what a trigger remembers, by name",
    "TriggerContext.state": "what a trigger remembers, by name",
    "WindowContext.global_state": "what a function remembers, by name",
    "WindowContext.window_state": "what a function remembers, by name",
    "PickleSerializer.deserialize": "a pickle may be of anything",
    "RecordType": "chosen from data when the program runs",
    "Source.restore_enumerator": "JSON",
    "FileSource.restore_enumerator": "JSON",
    "KnownSplitsSource.restore_enumerator": "JSON",
    "SplitEnumerator.snapshot": "JSON",
    "WindowAssigner.assign_windows": "windows are made before the stream that has them is known",
    "TumblingWindows.assign_windows": "windows are made before the stream that has them is known",
    "SlidingWindows.assign_windows": "windows are made before the stream that has them is known",
    "CumulativeWindows.assign_windows": "windows are made before the stream that has them is known",
    "GlobalWindows.assign_windows": "windows are made before the stream that has them is known",
    "SessionWindows": "windows are made before the stream that has them is known",
    "WatermarkStrategy": "a strategy is made before the stream that has it is known",
    "WriterContext": "the committables of the sink that the context is made for",
    "OutputTags": "tags of several types",
    "TimestampOf": "a strategy is made before the stream that has it is known",
}
"""Public signatures with an `Any`, or all of a class, and why no type can stand there."""


def exported(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


def signatures(owner: Any) -> Iterator[tuple[str, Any, str]]:
    """The annotations of a class or a function that users see: whose, in which module, the text."""
    if inspect.isfunction(owner):
        yield from ((owner.__qualname__, owner.__module__, a) for _, a in annotations(owner))
        return
    replaced: set[str] = set()
    for cls in owner.__mro__:
        if not cls.__module__.startswith("tidegate"):
            continue
        for name, value in vars(cls).items():
            if name in replaced or (name.startswith("_") and name != "__init__"):
                continue
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if inspect.isfunction(function):
                for parameter, annotation in annotations(function):
                    if not parameter.startswith("_"):
                        yield f"{owner.__name__}.{name}", cls.__module__, annotation
        for name, annotation in inspect.get_annotations(cls).items():
            if not name.startswith("_"):
                yield f"{owner.__name__}.{name}", cls.__module__, str(annotation)
        replaced |= vars(cls).keys()


def annotations(function: Any) -> Iterator[tuple[str, str]]:
    """The parameters of a function with their annotations: of its overloads, where it has some."""
    for variant in get_overloads(function) or [function]:
        yield from ((name, str(a)) for name, a in variant.__annotations__.items() if name != "self")


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


def says_any(module: str, annotation: str) -> bool:
    """Whether there is an `Any` in an annotation, or in an alias that it names."""
    names = set(re.findall(r"[A-Za-z_]\w*", annotation)) - MAY_BE_ANY.keys()
    aliases = [repr(getattr(sys.modules[module], name, None)) for name in names]
    return "Any" in names or any("typing.Any" in a and "numpy" not in a for a in aliases)


def defining(owner: str, *member: str) -> str:
    """A member by the class that defines it, from which others inherit it."""
    for cls in PUBLIC[owner].__mro__ if member else ():
        if member[0] in vars(cls) or member[0] in inspect.get_annotations(cls):
            return f"{cls.__name__}.{member[0]}"
    return owner


def test_public_signatures_say_any_only_where_no_type_can_stand() -> None:
    owners = [
        value for value in exported(tidegate).values() if inspect.isclass(value) or inspect.isfunction(value)
    ]
    found = {where for owner in owners for where, module, text in signatures(owner) if says_any(module, text)}
    defined = {defining(*where.split(".")) for where in found}
    excused = {name for name in defined if name in MAY_BE_ANY or name.partition(".")[0] in MAY_BE_ANY}
    assert defined - excused == set()
    used = excused | {name.partition(".")[0] for name in excused} | {"OutputTags", "TimestampOf"}
    assert MAY_BE_ANY.keys() - used == set(), "these have no Any any more"


@pytest.mark.parametrize("module", [tidegate, tidegate.testing, tidegate.formats], ids=lambda m: m.__name__)
def test_every_public_name_is_there_and_has_a_docstring(module: Any) -> None:
    bare = [n for n, v in exported(module).items() if inspect.isclass(v) and not inspect.getdoc(v)]
    assert bare == []


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'tidegate' has no attribute 'Sorce'"):
        tidegate.Sorce  # noqa: B018
