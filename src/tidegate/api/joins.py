"""Joins of two streams by key and time.

    orders.key_by("id").interval_join(payments.key_by("order")).between("0 s", "10 min").apply(pay)
    a.join(b).where("id").equal_to("id").window(TumblingEventTimeWindows("1 min")).apply(f)

Each call returns a new builder; `apply` and `process` add the operator. In an outer join (`how`) a missing partner
is None.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Generic, Literal, Protocol, Unpack, get_args, overload

from typing_extensions import TypeForm

from tidegate.api.functions import Function, OutputTag, OutputTags, check_callable, function_name, result_type
from tidegate.api.keyed_streams import KeyedStream
from tidegate.api.streams import DataStream
from tidegate.core.durations import Duration, parse_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.program.foreign_names import FlinkNames
from tidegate.program.join_operations import How, IntervalJoin
from tidegate.program.key_types import check_key_types_meet
from tidegate.program.operator_settings import Settings, apply_settings
from tidegate.program.side_outputs import declare_side_outputs
from tidegate.program.signatures import check_function
from tidegate.program.state_checks import check_states
from tidegate.program.transformations import StreamRef
from tidegate.records.type_variables import IN1, IN2, NOT_GIVEN, OUT, T1, T2, AnyKey, AnyKeyIn, K, O, T
from tidegate.records.types import RecordType

HOWS: Final = get_args(How)


class JoinContext(Protocol[AnyKey]):
    """What a `ProcessJoinFunction` gets with each pair."""

    @property
    def left_timestamp(self) -> int | None:
        """The event time of the left record; None if there is none (in an outer join)."""
        ...

    @property
    def right_timestamp(self) -> int | None:
        """The event time of the right record; None if there is none (in an outer join)."""
        ...

    @property
    def timestamp(self) -> int:
        """The event time of the results: the later of the two."""
        ...

    @property
    def current_key(self) -> AnyKey:
        """The key of both records."""
        ...

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit a value to a side output."""
        ...


class JoinFunction(Function, Generic[IN1, IN2, OUT]):
    """Makes one record of each pair; for a join that needs `open` or state."""

    @abstractmethod
    def join(self, left: IN1, right: IN2) -> OUT:
        """Return the record of a pair; in an outer join one of the two may be None."""


class ProcessJoinFunction(Function, Generic[IN1, IN2, OUT, AnyKeyIn]):
    """Makes any number of records of each pair, also for side outputs."""

    @abstractmethod
    def process(self, left: IN1, right: IN2, context: JoinContext[AnyKeyIn]) -> Iterable[OUT] | None:
        """Return or yield records; in an outer join one of the two may be None."""


@dataclass(frozen=True, eq=False)
class IntervalJoinStreams(FlinkNames, Generic[K, T1, T2]):
    """Two keyed streams to be joined by the distance of their times; `between` sets the bounds."""

    left: KeyedStream[K, T1]
    right: KeyedStream[K, T2]

    def __post_init__(self) -> None:
        for stream in (self.left, self.right):
            if not isinstance(stream, KeyedStream):
                raise ProgramError(
                    f"interval_join needs two keyed streams, got {stream!r}. Write "
                    f"a.key_by(...).interval_join(b.key_by(...))"
                )
        if self.left._env is not self.right._env:
            raise ProgramError("interval_join needs streams of one environment")
        check_key_types_meet(self.left._key_spec, self.right._key_spec)

    def between(self, lower: Duration, upper: Duration) -> IntervalJoinedStreams[K, T1, T2]:
        """Pair records with left + lower <= right <= left + upper. A bound may be negative: "-5 s"."""
        bounds = (_signed_ms("lower", lower), _signed_ms("upper", upper))
        if bounds[0] > bounds[1]:
            raise ProgramError(
                f"between({lower!r}, {upper!r}): the lower bound is above the upper one, so nothing could meet"
            )
        return IntervalJoinedStreams(self, *bounds, given=f"between({lower!r}, {upper!r})")


@dataclass(frozen=True, eq=False)
class IntervalJoinedStreams(FlinkNames, Generic[K, T1, T2]):
    """An interval join before `apply` or `process` adds its function."""

    streams: IntervalJoinStreams[K, Any, Any]
    lower_ms: int
    upper_ms: int
    kind: How = "inner"
    late_tags: tuple[OutputTag[Any] | None, OutputTag[Any] | None] = field(default=(None, None))
    given: str = ""
    """The bounds as the user wrote them."""

    def lower_bound_exclusive(self) -> IntervalJoinedStreams[K, T1, T2]:
        """Leave out pairs with right = left + lower."""
        return replace(self, lower_ms=self.lower_ms + 1)

    def upper_bound_exclusive(self) -> IntervalJoinedStreams[K, T1, T2]:
        """Leave out pairs with right = left + upper."""
        return replace(self, upper_ms=self.upper_ms - 1)

    @overload
    def how(self, how: Literal["inner"]) -> IntervalJoinedStreams[K, T1, T2]: ...

    @overload
    def how(self, how: Literal["left"]) -> IntervalJoinedStreams[K, T1, T2 | None]: ...

    @overload
    def how(self, how: Literal["right"]) -> IntervalJoinedStreams[K, T1 | None, T2]: ...

    @overload
    def how(self, how: Literal["full"]) -> IntervalJoinedStreams[K, T1 | None, T2 | None]: ...

    def how(self, how: How) -> IntervalJoinedStreams[K, Any, Any]:
        """Also emit records without a partner: of the "left", of the "right", or of both ("full").

        Such a record is emitted once, when the watermark shows that no partner can come. So that it is not late
        downstream, an outer join holds watermarks back by the time that its records wait, plus one millisecond.
        """
        return replace(self, kind=checked_how(how))

    def side_output_left_late_data(self, tag: OutputTag[Any]) -> IntervalJoinedStreams[K, T1, T2]:
        """Send late records of the left stream to this side output. `late_records` counts them in any case."""
        check_late_tag(tag, self.streams.left, "side_output_left_late_data")
        return replace(self, late_tags=(tag, self.late_tags[1]))

    def side_output_right_late_data(self, tag: OutputTag[Any]) -> IntervalJoinedStreams[K, T1, T2]:
        """Send late records of the right stream to this side output. `late_records` counts them in any case."""
        check_late_tag(tag, self.streams.right, "side_output_right_late_data")
        return replace(self, late_tags=(self.late_tags[0], tag))

    def apply(
        self,
        function: Callable[[T1, T2], O] | JoinFunction[T1, T2, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Make one record of each pair with `function(left, right)` (or a `JoinFunction`)."""
        check_callable(function, JoinFunction, "apply")
        out = result_type(function, "join", returns, many=False)
        return self._joined("apply", function, out, (), settings)

    def process(
        self,
        function: ProcessJoinFunction[T1, T2, O, K] | Callable[[T1, T2, JoinContext[K]], Iterable[O] | None],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        side_outputs: OutputTags = (),
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Make any number of records of each pair, also for the `side_outputs` named here."""
        check_callable(function, ProcessJoinFunction, "process")
        out = result_type(function, "process", returns, many=True)
        return self._joined("process", function, out, side_outputs, settings)

    def _joined(
        self,
        form: Any,
        function: Any,
        out: RecordType,
        tags: OutputTags,
        settings: Mapping[str, Any],
    ) -> DataStream[Any]:
        if self.lower_ms > self.upper_ms:
            raise ProgramError(
                f"{self.given} with a bound excluded leaves nothing to meet: times are whole milliseconds. Move the "
                f"bounds apart, or keep both"
            )
        left, right = self.streams.left, self.streams.right
        operation = IntervalJoin(
            form,
            function,
            (left._key_spec, right._key_spec),
            self.lower_ms,
            self.upper_ms,
            self.kind,
            (tag_id(self.late_tags[0]), tag_id(self.late_tags[1])),
        )
        name = f"interval-join {function_name(function)}"
        cls = JoinFunction if form == "apply" else ProcessJoinFunction
        check_function(function, cls, settings.get("name") or name)
        check_states(function, settings.get("name") or name, left._key_spec)
        return joined_stream((left, right), operation, name, out, (tags, self.late_tags), settings)


# ---- shared by the joins ----


def joined_stream(
    streams: tuple[KeyedStream[Any, Any], KeyedStream[Any, Any]],
    operation: Any,
    name: str,
    out: RecordType,
    tags: tuple[OutputTags, tuple[OutputTag[Any] | None, OutputTag[Any] | None]],
    settings: Mapping[str, Any],
) -> DataStream[Any]:
    """Add the operator of a join; `tags` are those of the function, and those for the late records of each side."""
    env = streams[0]._env
    node = env._add(operation, name, tuple(s._inputs() for s in streams), out)
    stream: DataStream[Any] = DataStream(env, (StreamRef(node),), out)
    declare_side_outputs(stream, tags[0])
    for late, side in zip(tags[1], streams, strict=True):
        if late is not None:
            declare_side_outputs(stream, (late,))
            node.side_outputs[late.id] = side.record_type
    apply_settings(stream, settings)
    return stream


def checked_how(how: Any) -> How:
    if how not in HOWS:
        raise ProgramError(f"how is one of {', '.join(map(repr, HOWS))}, got {how!r}")
    found: How = how
    return found


def check_late_tag(tag: Any, stream: DataStream[Any], call: str) -> None:
    """Refuse a tag whose type is not the stream's."""
    if not isinstance(tag, OutputTag):
        raise ProgramError(f"{call} needs an OutputTag, got {tag!r}")
    if not tag.record_type.is_object and tag.record_type != stream.record_type:
        raise ProgramError(
            f"{call}({tag!r}): late records are {stream.record_type.describe()}. Leave the tag's type out: "
            f"OutputTag({tag.id!r})"
        )


def tag_id(tag: OutputTag[Any] | None) -> str | None:
    return None if tag is None else tag.id


def _signed_ms(which: str, value: Any) -> int:
    """A duration in milliseconds that may be negative."""
    negative = False
    if isinstance(value, str):
        text = value.strip()
        negative, value = text.startswith("-"), text.removeprefix("-").removeprefix("+")
    elif isinstance(value, timedelta):
        negative, value = value < timedelta(0), abs(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        negative, value = value < 0, abs(value)
    try:
        ms = parse_duration_ms(value)
    except ValueError as e:
        raise ProgramError(f"between: the {which} bound {value!r}: {e}") from None
    return -ms if negative else ms
