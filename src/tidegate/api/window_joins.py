"""Window joins and co-groups, as the user writes them, step by step.

    a.join(b).where("id").equal_to("id").window(TumblingEventTimeWindows("1 min")).apply(pair)
    a.co_group(b).where("id").equal_to("id").window(...).apply(both)

A join calls its function for each pair of records of one key and one window (and, if it is an outer one, for those
without a partner, with None for the side that is missing), a co-group once with all records of both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tidegate.api.flink_names import FlinkNames
from tidegate.api.functions import Function, OutputTag, check_callable, function_name, result_type
from tidegate.api.join_operations import How, WindowJoin
from tidegate.api.joins import JoinFunction, check_late_tag, checked_how, joined_stream, tag_id
from tidegate.api.keyed_streams import KeyedStream
from tidegate.api.keys import check_key_types_meet
from tidegate.api.signatures import check_function
from tidegate.api.state_checks import check_states
from tidegate.api.streams import DataStream
from tidegate.api.triggers import Trigger
from tidegate.api.windowed_streams import WindowedStream, check_windows
from tidegate.api.windows import WindowAssigner
from tidegate.core.errors import ProgramError
from tidegate.core.words import kind_of

Form = Literal["join", "co_group"]


class CoGroupFunction(Function):
    """Computes something of all records of one key and one window, of two streams."""

    @abstractmethod
    def co_group(self, left: Sequence[Any], right: Sequence[Any]) -> Iterable[Any] | None:
        """Return or yield results; either side may be empty, but not both."""


@dataclass(frozen=True, eq=False)
class JoinedStreams(FlinkNames):
    """Two streams to be joined by windows; `where` gives the key of the first."""

    left: DataStream
    right: DataStream
    form: Form

    def __post_init__(self) -> None:
        if not isinstance(self.right, DataStream):
            raise ProgramError(f"{self.form} needs a stream, got {kind_of(self.right)}: {self.right!r}")
        if self.left._env is not self.right._env:
            raise ProgramError(f"{self.form} needs streams of one environment")

    def where(self, *key: Any, returns: Any = None) -> Where:
        """The key of the first stream: columns, or a function, as in `key_by`."""
        return Where(self, self.left.key_by(*key, returns=returns))


@dataclass(frozen=True, eq=False)
class Where(FlinkNames):
    """The key of the first stream is known; `equal_to` gives that of the second."""

    streams: JoinedStreams
    left: KeyedStream

    def equal_to(self, *key: Any, returns: Any = None) -> EqualTo:
        """The key of the second stream, of the same type."""
        right = self.streams.right.key_by(*key, returns=returns)
        check_key_types_meet(self.left._key_spec, right._key_spec)
        return EqualTo(self.left, right, self.streams.form)


@dataclass(frozen=True, eq=False)
class EqualTo(FlinkNames):
    """Both keys are known; `window` says which records belong together."""

    left: KeyedStream
    right: KeyedStream
    form: Form

    def window(self, assigner: WindowAssigner) -> WindowJoinedStreams:
        """The windows, of any kind."""
        return WindowJoinedStreams(self.left, self.right, self.form, WindowedStream(self.left, assigner))


@dataclass(frozen=True, eq=False)
class WindowJoinedStreams(FlinkNames):
    """A window join or co-group, before its function. `windowed` holds what windows do: trigger, lateness."""

    left: KeyedStream
    right: KeyedStream
    form: Form
    windowed: WindowedStream
    kind: How = "inner"
    late_tags: tuple[OutputTag[Any] | None, OutputTag[Any] | None] = (None, None)

    def how(self, how: How) -> WindowJoinedStreams:
        """Also emit records without a partner in the window: of the "left", of the "right", or of both ("full")."""
        if self.form != "join":
            raise ProgramError("how belongs to a join; the function of a co_group sees both sides anyway")
        return replace(self, kind=checked_how(how))

    def trigger(self, trigger: Trigger) -> WindowJoinedStreams:
        """Say when windows are computed; each time, all their pairs are."""
        return replace(self, windowed=self.windowed.trigger(trigger))

    def allowed_lateness(self, lateness: Any) -> WindowJoinedStreams:
        """Keep windows so much longer than the watermark; a record that comes in that time fires its window again."""
        return replace(self, windowed=self.windowed.allowed_lateness(lateness))

    def side_output_left_late_data(self, tag: OutputTag[Any]) -> WindowJoinedStreams:
        """Send records of the left that are too late to this side output; they are counted in any case."""
        check_late_tag(tag, self.left, "side_output_left_late_data")
        return replace(self, late_tags=(tag, self.late_tags[1]))

    def side_output_right_late_data(self, tag: OutputTag[Any]) -> WindowJoinedStreams:
        """Send records of the right that are too late to this side output; they are counted in any case."""
        check_late_tag(tag, self.right, "side_output_right_late_data")
        return replace(self, late_tags=(self.late_tags[0], tag))

    def apply(self, function: Any, *, returns: Any = None, **settings: Any) -> DataStream:
        """Compute windows: a join with `function(left, right)`, one record per pair; a co-group as `co_group` does."""
        if self.form == "co_group":
            return self.co_group(function, returns=returns, **settings)
        check_callable(function, JoinFunction, "apply")
        out = result_type(function, "join", returns, many=False)
        return self._joined("join", function, out, settings)

    def co_group(self, function: Any, *, returns: Any = None, **settings: Any) -> DataStream:
        """Compute windows with `function(lefts, rights)`, which returns or yields any number of results."""
        check_callable(function, CoGroupFunction, "co_group")
        out = result_type(function, "co_group", returns, many=True)
        return self._joined("co_group", function, out, settings)

    def _joined(self, form: Form, function: Any, out: Any, settings: dict[str, Any]) -> DataStream:
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
