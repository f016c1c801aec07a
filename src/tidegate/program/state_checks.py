"""Checks the states that functions declare, so that mistakes are refused at their line of the program.

Streams call this for every function that they take. Whether keyed state can be stored also depends on options, so that
is checked when the program is planned (`check_keys_can_be_stored`).
"""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa

from tidegate.api.functions import Function, function_name
from tidegate.api.state import (
    AggregateFunction,
    AggregatingState,
    BroadcastState,
    KeyedState,
    MapState,
    ReducingState,
    StateDeclaration,
    ValueState,
    declared_states,
)
from tidegate.core.errors import ProgramError, SchemaError, TidegateError
from tidegate.core.options import Options
from tidegate.core.state_backends import STATE_BACKENDS
from tidegate.core.words import kind_of
from tidegate.program.operations import Key, Operation
from tidegate.program.signatures import check_arguments, check_methods
from tidegate.records.type_hints import strip_optional
from tidegate.records.types import RecordType, record_type_of


def check_states(function: Any, operator: str, key: Key | None, *, broadcast: bool = False) -> None:
    """Refuse states that the function cannot have here; `key` is that of its stream, if it has one."""
    name = function_name(function)
    if not isinstance(function, Function):
        refuse_state_of_callable(function, operator)
        return
    declared = declared_states(function)
    _refuse_states_of_instance(function, declared, operator)
    for state in declared.values():
        where = f"operator {operator!r}: state {state.name!r} of {name}"
        if isinstance(state, KeyedState) and key is None:
            raise ProgramError(
                f"{where} is kept by key, but the stream has no keys. Call key_by before this operation, or declare "
                f"an OperatorListState, which belongs to the subtask"
            )
        if isinstance(state, BroadcastState) and not broadcast:
            raise ProgramError(
                f"{where} is broadcast state, which only a BroadcastProcessFunction or KeyedBroadcastProcessFunction "
                f"can write. Use stream.connect(other.broadcast()).process(function)"
            )
        _check_types(state, where)
        if isinstance(state, AggregatingState):
            check_methods(state.function, operator)
        if isinstance(state, ReducingState):
            check_arguments(state.function, ("so_far", "value"), f"{where}: its function")


def refuse_state_of_callable(function: Any, operator: str) -> None:
    """Refuse a plain callable that uses state: it has no life cycle."""
    held = function
    while isinstance(held, functools.partial):
        held = held.func
    for owner in (held, getattr(held, "__self__", None)):
        for state in declared_states(owner).values():
            raise ProgramError(
                f"operator {operator!r}: {function_name(function)} uses state {state.name!r} of "
                f"{type(owner).__name__}, but it is a plain callable. Give the operation an instance of a class that "
                f"is derived from MapFunction, ProcessFunction or another of tidegate's function classes"
            )


def check_keys_can_be_stored(operation: Operation, operator: str, options: Options) -> None:
    """Refuse keys without a type if keyed state must be stored."""
    key = operation.state_key()
    if key is None or not key.record_type.is_object or not operation.keeps_keyed_state:
        return
    states = [repr(s.name) for s in operation.states() if isinstance(s, KeyedState)]
    if operation.has_timers:
        states.append("of the timers")
    if options.checkpoint_interval:
        why = "checkpoints are on"
    elif not STATE_BACKENDS[options.state_backend].keeps_objects and (
        states or not operation.keeps_untyped_keys
    ):
        why = f"state.backend is {options.state_backend}"
    else:
        return
    state = states[0] if states else f"of the {operation.kind}"
    raise ProgramError(
        f"operator {operator!r}: state {state} is kept by {key.describe()}, whose keys have no type, so it "
        f"cannot be stored ({why}). Give the key function a return type hint (`def user(event) -> str`), or pass "
        f"key_by(..., returns=str)"
    )


def _refuse_states_of_instance(
    function: Function, declared: dict[str, StateDeclaration], operator: str
) -> None:
    # Not by identity: a job in this process may have unpickled the class, which then has equal declarations.
    for attribute, value in vars(function).items():
        if isinstance(value, StateDeclaration) and not (attribute in declared and value.owner):
            raise ProgramError(
                f"operator {operator!r}: {function_name(function)} has {kind_of(value)} in its instance, as "
                f"self.{attribute}. Declare it on the class: `{attribute} = {type(value).__name__}(...)` in the "
                f"class body"
            )
        if attribute in declared and not isinstance(value, StateDeclaration):
            raise ProgramError(
                f"operator {operator!r}: {function_name(function)} sets self.{attribute} to {kind_of(value)}, "
                f"but declares {kind_of(declared[attribute])} of that name, which would take its place. Rename "
                f"one of them; a first value is given by ValueState(type, default=...)"
            )


def _check_types(state: StateDeclaration, where: str) -> None:
    if isinstance(state, (MapState, BroadcastState)):
        key_type = _record_type(state.key_type, where)
        nullable = len(key_type.schema) == 1 and key_type.schema.field(0).nullable
        if key_type.is_object or key_type.is_mutable or nullable or any(map(_is_mutable, key_type.schema)):
            raise ProgramError(
                f"{where} has keys of type {_words(state.key_type)}, but they must be scalars (not None), tuples, "
                f"NamedTuples or frozen dataclasses of types that Arrow knows"
            )
        _check_value_type(state, state.value_type, where)
    else:
        _check_value_type(state, getattr(state, "type", None), where)
    if isinstance(state, ReducingState) and not callable(state.function):
        raise ProgramError(
            f"{where} needs a function of two values, got {kind_of(state.function)}. Pass a callable, such "
            f"as max, or the method of an object"
        )
    if isinstance(state, AggregatingState) and not isinstance(state.function, AggregateFunction):
        raise ProgramError(
            f"{where} needs an AggregateFunction (an instance), got {state.function!r}. Derive one with "
            f"create_accumulator, add and get_result"
        )


def _check_value_type(state: Any, hint: Any, where: str) -> None:
    if state.serializer is not None:
        if not isinstance(getattr(state.serializer, "name", None), str) or not state.serializer.name:
            raise ProgramError(f"{where}: its serializer needs a name, which is stored in checkpoints")
        return
    record_type = _record_type(strip_optional(hint)[0], where)
    if record_type.is_object:
        raise ProgramError(
            f"{where} is of type {_words(hint)}, which has no Arrow type. Use a scalar, a dataclass, a NamedTuple, a "
            f"tuple, or lists and maps of these, or give the state a serializer= (PickleSerializer() takes anything)"
        )
    if isinstance(state, ValueState) and state.default is not None:
        try:
            record_type.to_columns([state.default])
        except SchemaError as e:
            raise ProgramError(f"{where} has a default of another type: {e}") from e


def _record_type(hint: Any, where: str) -> RecordType:
    try:
        return record_type_of(hint)
    except TidegateError as e:
        raise ProgramError(f"{where}: {e}") from e


def _is_mutable(field: pa.Field) -> bool:
    kind = field.type
    if pa.types.is_struct(kind):
        return any(_is_mutable(kind.field(i)) for i in range(kind.num_fields))
    return bool(pa.types.is_nested(kind))


def _words(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else repr(hint)
