"""The settings of an operator: uid, name, parallelism, chaining, slot sharing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypedDict

from tidegate.core.errors import ProgramError
from tidegate.core.key_groups import UPPER_BOUND_MAX_PARALLELISM
from tidegate.program.foreign_names import FlinkNames
from tidegate.program.transformations import Transformation


class Settings(TypedDict, total=False):
    """The settings that an operation takes as keyword arguments."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str


class OperatorSettings(FlinkNames):
    """The settings that every operator has. Each call changes the operator and returns the same stream."""

    _node: Transformation

    def _own_node(self, setting: str) -> Transformation:
        """The operator to change; a stream that is not the direct output of an operator refuses."""
        return self._node

    def uid(self, uid: str) -> Self:
        """Set the durable id of the operator. State is found by it, so it must never change."""
        node = self._own_node("uid")
        node.uid = _checked_text(uid, "a uid")
        return self

    def name(self, name: str) -> Self:
        """Set the name of the operator in plans, metrics and errors."""
        node = self._own_node("name")
        node.name = _checked_text(name, "a name")
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of the operator."""
        node = self._own_node("set_parallelism")
        _check_count(parallelism, "parallelism", node.name)
        fixed = node.fixed_parallelism
        if fixed is not None and parallelism != fixed:
            raise ProgramError(
                f"operator {node.name!r} can only run with parallelism {fixed}, got {parallelism}"
            )
        node.parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups of the operator: the highest parallelism that it can be rescaled to."""
        node = self._own_node("set_max_parallelism")
        _check_count(max_parallelism, "max parallelism", node.name)
        node.max_parallelism = max_parallelism
        return self

    def start_new_chain(self) -> Self:
        """Start a new chain with this operator: it is not chained to the one before it."""
        self._own_node("start_new_chain").chaining = "head"
        return self

    def disable_chaining(self) -> Self:
        """Never chain this operator to its neighbours, so that an expensive function gets its own task."""
        self._own_node("disable_chaining").chaining = "never"
        return self

    def slot_sharing_group(self, group: str) -> Self:
        """Put the operator into this group of slots; operators of different groups never share a slot."""
        node = self._own_node("slot_sharing_group")
        node.slot_sharing_group = _checked_text(group, "a slot-sharing group")
        return self


SETTINGS = frozenset(Settings.__annotations__)


def apply_settings(target: OperatorSettings, settings: Mapping[str, object]) -> None:
    """Apply settings that were given as keyword arguments."""
    calls: dict[str, Callable[[Any], Any]] = {
        "uid": target.uid,
        "name": target.name,
        "parallelism": target.set_parallelism,
        "max_parallelism": target.set_max_parallelism,
        "slot_sharing_group": target.slot_sharing_group,
    }
    assert calls.keys() == SETTINGS
    for key, value in settings.items():
        if key not in calls:
            raise ProgramError(f"unknown setting {key!r}; there are {', '.join(sorted(calls))}")
        calls[key](value)


def _checked_text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ProgramError(f"{what} is a text that is not empty, got {value!r}")
    return value


def _check_count(value: object, what: str, operator: str) -> None:
    most = UPPER_BOUND_MAX_PARALLELISM
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ProgramError(f"operator {operator!r}: {what} must be a number from 1 to {most}, got {value!r}")
