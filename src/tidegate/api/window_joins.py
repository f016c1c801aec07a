"""Window joins and co-groups, step by step.

    a.join(b).where("id").equal_to("id").window(TumblingEventTimeWindows("1 min")).apply(pair)
    a.co_group(b).where("id").equal_to("id").window(...).apply(both)

A join calls its function for each pair of records of one key and one window. An outer join also calls it for records
without a partner, with None for the missing side. A co-group calls its function once, with all records of both sides.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NoReturn, Self, Unpack, cast, overload

from typing_extensions import TypeForm, TypeVar

from tidegate.api.functions import Function, OutputTag, check_callable, function_name, result_type
from tidegate.api.joins import JoinFunction, check_late_tag, checked_how, joined_stream, tag_id
from tidegate.api.keyed_streams import KeyedStream
from tidegate.api.streams import DataStream
from tidegate.api.triggers import Trigger
from tidegate.api.windowed_streams import WindowedStream, check_windows
from tidegate.api.windows import WindowAssigner
from tidegate.core.durations import Duration
from tidegate.core.errors import ProgramError
from tidegate.core.words import kind_of
from tidegate.program.foreign_names import FlinkNames
from tidegate.program.join_operations import How, WindowJoin
from tidegate.program.key_types import check_key_types_meet
from tidegate.program.operator_settings import Settings
from tidegate.program.signatures import check_function
from tidegate.program.state_checks import check_states
from tidegate.records.type_variables import IN1, IN2, NOT_GIVEN, OUT, T1, T2, K, O
from tidegate.records.types import RecordType

Form = Literal["join", "co_group"]
W = TypeVar("W", default=Any)
"""What `window` returns: `WindowJoinedStreams` or `WindowCoGroupedStreams`."""


class CoGroupFunction(Function, Generic[IN1, IN2, OUT]):
    """Computes results from all records of two streams that have the same key and window."""

    @abstractmethod
    def co_group(self, left: Sequence[IN1], right: Sequence[IN2]) -> Iterable[OUT] | None:
        """Return or yield results; either side may be empty, but not both."""


@dataclass(frozen=True, eq=False)
class JoinedStreams(FlinkNames, Generic[T1, T2, W]):
    """Two streams to be joined by windows; `where` sets the key of the first."""

    left: DataStream[T1]
    right: DataStream[T2]
    form: Form

    def __post_init__(self) -> None:
        if not isinstance(self.right, DataStream):
            raise ProgramError(f"{self.form} needs a stream, got {kind_of(self.right)}: {self.right!r}")
        if self.left._env is not self.right._env:
            raise ProgramError(f"{self.form} needs streams of one environment")

    @overload
    def where(self, key: Callable[[T1], K], /, *, returns: TypeForm[K] = ...) -> Where[K, T1, T2, W]: ...

    @overload
    def where(self, *key: str) -> Where[Any, T1, T2, W]: ...

    def where(self, *key: Any, returns: Any = None) -> Where[Any, T1, T2, W]:
        """Set the key of the first stream: columns, or a function, as in `key_by`."""
        return Where(self, self.left.key_by(*key, returns=returns))


@dataclass(frozen=True, eq=False)
class Where(FlinkNames, Generic[K, T1, T2, W]):
    """A window join with the key of the first stream; `equal_to` sets that of the second."""

    streams: JoinedStreams[T1, T2, W]
    left: KeyedStream[K, T1]

    @overload
    def equal_to(self, key: Callable[[T2], K], /, *, returns: TypeForm[K] = ...) -> EqualTo[T1, T2, W]: ...

    @overload
    def equal_to(self, *key: str) -> EqualTo[T1, T2, W]: ...

    def equal_to(self, *key: Any, returns: Any = None) -> EqualTo[T1, T2, W]:
        """Set the key of the second stream, of the same type."""
        right = self.streams.right.key_by(*key, returns=returns)
        check_key_types_meet(self.left._key_spec, right._key_spec)
        return EqualTo(self.left, right, self.streams.form)


@dataclass(frozen=True, eq=False)
class EqualTo(FlinkNames, Generic[T1, T2, W]):
    """A window join with both keys; `window` sets the windows."""

    left: KeyedStream[Any, T1]
    right: KeyedStream[Any, T2]
    form: Form

    def window(self, assigner: WindowAssigner) -> W:
        """Set the windows, of any kind."""
        made = WindowJoinedStreams if self.form == "join" else WindowCoGroupedStreams
        return cast(W, made(self.left, self.right, WindowedStream(self.left, assigner)))


@dataclass(frozen=True, eq=False)
class StreamsInWindows(FlinkNames, Generic[T1, T2]):
    """Two streams in windows, before the function. `windowed` holds the trigger and the lateness."""

    left: KeyedStream[Any, Any]
    right: KeyedStream[Any, Any]
    windowed: WindowedStream[Any, Any]
    kind: How = "inner"
    late_tags: tuple[OutputTag[Any] | None, OutputTag[Any] | None] = (None, None)

    def trigger(self, trigger: Trigger[Any]) -> Self:
        """Set when windows are computed. Each firing computes all pairs."""
        return replace(self, windowed=self.windowed.trigger(trigger))

    def allowed_lateness(self, lateness: Duration) -> Self:
        """Keep windows this much longer than the watermark; a record in that time fires its window again."""
        return replace(self, windowed=self.windowed.allowed_lateness(lateness))

    def side_output_left_late_data(self, tag: OutputTag[Any]) -> Self:
        """Send left records that are too late to this side output. `late_records` counts them in any case."""
        check_late_tag(tag, self.left, "side_output_left_late_data")
        return replace(self, late_tags=(tag, self.late_tags[1]))

    def side_output_right_late_data(self, tag: OutputTag[Any]) -> Self:
        """Send right records that are too late to this side output. `late_records` counts them in any case."""
        check_late_tag(tag, self.right, "side_output_right_late_data")
        return replace(self, late_tags=(self.late_tags[0], tag))

    def co_group(
        self,
        function: Callable[[Sequence[T1], Sequence[T2]], Iterable[O] | None] | CoGroupFunction[T1, T2, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Compute windows with `function(lefts, rights)`, which returns or yields any number of results."""
        check_callable(function, CoGroupFunction, "co_group")
        out = result_type(function, "co_group", returns, many=True)
        return self._joined("co_group", function, out, settings)

    def _joined(
        self, form: Form, function: Any, out: RecordType, settings: Mapping[str, Any]
    ) -> DataStream[Any]:
        windows = self.windowed._windows
        operation = WindowJoin(
            assigner=windows.assigner,
            key=windows.key,
            trigger=windows.trigger,
            allowed_lateness_ms=windows.allowed_lateness_ms,
            form=form,
            function=function,
            keys=(self.left._key_spec, self.right._key_spec),
            how=self.kind,
            late_tags=(tag_id(self.late_tags[0]), tag_id(self.late_tags[1])),
        )
        name = f"{'window-join' if form == 'join' else 'co-group'} {function_name(function)}"
        check_windows(operation, settings.get("name") or name)
        cls = JoinFunction if form == "join" else CoGroupFunction
        check_function(function, cls, settings.get("name") or name)
        check_states(function, settings.get("name") or name, self.left._key_spec)
        return joined_stream((self.left, self.right), operation, name, out, ((), self.late_tags), settings)


class WindowJoinedStreams(StreamsInWindows[T1, T2]):
    """A window join before its function. In an outer join (`how`) a missing partner is None."""

    @overload
    def how(self, how: Literal["inner"]) -> WindowJoinedStreams[T1, T2]: ...

    @overload
    def how(self, how: Literal["left"]) -> WindowJoinedStreams[T1, T2 | None]: ...

    @overload
    def how(self, how: Literal["right"]) -> WindowJoinedStreams[T1 | None, T2]: ...

    @overload
    def how(self, how: Literal["full"]) -> WindowJoinedStreams[T1 | None, T2 | None]: ...

    def how(self, how: How) -> WindowJoinedStreams[Any, Any]:
        """Also emit records without a partner in the window: of the "left", of the "right", or of both ("full")."""
        return replace(self, kind=checked_how(how))

    def apply(
        self,
        function: Callable[[T1, T2], O] | JoinFunction[T1, T2, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Compute windows with `function(left, right)`, which returns one record per pair."""
        check_callable(function, JoinFunction, "apply")
        out = result_type(function, "join", returns, many=False)
        return self._joined("join", function, out, settings)


class WindowCoGroupedStreams(StreamsInWindows[T1, T2]):
    """A window co-group before its function."""

    apply = StreamsInWindows.co_group

    def how(self, how: object) -> NoReturn:
        """Refused: the function of a co-group gets both sides and sees which one is empty."""
        raise ProgramError("how belongs to a join; the function of a co_group sees both sides anyway")
