"""`ConnectedStreams`: two streams that one function processes together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Unpack

from typing_extensions import TypeForm

from tidegate.api.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    Function,
    KeyedBroadcastProcessFunction,
    OutputTags,
    function_name,
    one_result_type,
    require_keys,
)
from tidegate.api.streams import DataStream
from tidegate.core.errors import ProgramError
from tidegate.program import partitioning as p
from tidegate.program.foreign_names import FlinkNames
from tidegate.program.key_types import check_key_types_meet
from tidegate.program.operations import ApplyBroadcastFunction, ApplyCoFunction, Operation
from tidegate.program.operator_settings import Settings, apply_settings
from tidegate.program.side_outputs import declare_side_outputs
from tidegate.program.signatures import check_function
from tidegate.program.state_checks import check_states
from tidegate.program.transformations import StreamRef
from tidegate.records.type_variables import NOT_GIVEN, T1, T2, K, O
from tidegate.records.types import RecordType


class ConnectedStreams(FlinkNames, Generic[T1, T2]):
    """Two streams, possibly of different types. One function processes both, with shared state."""

    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        self._first = first
        self._second = second

    def key_by(
        self,
        first: str | tuple[str, ...] | Callable[[T1], K],
        second: str | tuple[str, ...] | Callable[[T2], K],
    ) -> ConnectedStreams[T1, T2]:
        """Key both streams, so that equal keys of both meet in one subtask.

        Each key is a column name, a tuple of column names, or a function.
        """
        keys: list[tuple[Any, ...]] = [k if isinstance(k, tuple) else (k,) for k in (first, second)]
        return ConnectedStreams(self._first.key_by(*keys[0]), self._second.key_by(*keys[1]))

    def map(
        self,
        function: CoMapFunction[T1, T2, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Turn each record of either stream into one record, with a `CoMapFunction`."""
        return self._apply("map", CoMapFunction, function, returns, settings, many=False)

    def flat_map(
        self,
        function: CoFlatMapFunction[T1, T2, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Turn each record of either stream into any number of records, with a `CoFlatMapFunction`."""
        return self._apply("flat_map", CoFlatMapFunction, function, returns, settings, many=True)

    def process(
        self,
        function: CoProcessFunction[T1, T2, O] | BroadcastProcessFunction[T1, T2, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        side_outputs: OutputTags = (),
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Run a `CoProcessFunction`, or a broadcast function if the second stream is broadcast.

        `stream.connect(rules.broadcast()).process(function)` takes a `BroadcastProcessFunction`, or with
        `stream.key_by(...)` a `KeyedBroadcastProcessFunction`. `side_outputs` names the tags that the function emits
        to.
        """
        if isinstance(function, BroadcastProcessFunction):
            stream = self._apply_broadcast(function, returns, settings)
        else:
            stream = self._apply("process", CoProcessFunction, function, returns, settings, many=True)
        declare_side_outputs(stream, side_outputs)
        return stream

    def _apply_broadcast(
        self, function: BroadcastProcessFunction[T1, T2, O], returns: Any, settings: Mapping[str, Any]
    ) -> DataStream[O]:
        name = function_name(function)
        if not all(isinstance(r.partitioning, p.Broadcast) for r in self._second._inputs()):
            raise ProgramError(
                f"{name} is a {_broadcast_class(function)}, but the second stream, of "
                f"{self._second._node.name!r}, is not broadcast. Write connect(other.broadcast())"
            )
        key = self._first._key()
        if isinstance(function, KeyedBroadcastProcessFunction) and key is None:
            raise ProgramError(
                f"{name} is a KeyedBroadcastProcessFunction, but the first stream, of {self._first._node.name!r}, has "
                f"no keys. Call key_by before connect, or derive it from BroadcastProcessFunction"
            )
        out = one_result_type(function, ("process", "process_broadcast"), returns, many=True)
        operation = ApplyBroadcastFunction(function, key)
        check_function(
            function, BroadcastProcessFunction, settings.get("name") or f"broadcast-process {name}"
        )
        check_states(function, settings.get("name") or f"broadcast-process {name}", key, broadcast=True)
        return self._node_of(operation, f"broadcast-process {name}", out, settings)

    def _apply(
        self,
        form: Any,
        cls: type[Function],
        function: Any,
        returns: Any,
        settings: Mapping[str, Any],
        *,
        many: bool,
    ) -> DataStream[Any]:
        if not isinstance(function, cls):
            raise ProgramError(f"connect().{form} needs a {cls.__name__}, got {function!r}")
        first, second = self._first, self._second
        keys = (first._key(), second._key())
        if (keys[0] is None) != (keys[1] is None):
            raise ProgramError("connect needs both streams keyed or neither")
        paired = None
        if keys[0] is not None and keys[1] is not None:
            paired = (keys[0], keys[1])
            check_key_types_meet(*paired)
        require_keys(function, keys[0], first._node.name)
        out = one_result_type(function, (f"{form}1", f"{form}2"), returns, many=many)
        name = f"co-{form} {function_name(function)}"
        check_function(function, cls, settings.get("name") or name)
        check_states(function, settings.get("name") or name, keys[0])
        return self._node_of(ApplyCoFunction(form, function, paired), name, out, settings)

    def _node_of(
        self, operation: Operation, name: str, out: RecordType, settings: Mapping[str, Any]
    ) -> DataStream[Any]:
        first, second = self._first, self._second
        node = first._env._add(operation, name, (first._inputs(), second._inputs()), out)
        stream: DataStream[Any] = DataStream(first._env, (StreamRef(node),), out)
        apply_settings(stream, settings)
        return stream


def _broadcast_class(function: BroadcastProcessFunction[Any, Any, Any]) -> str:
    keyed = isinstance(function, KeyedBroadcastProcessFunction)
    return "KeyedBroadcastProcessFunction" if keyed else "BroadcastProcessFunction"
