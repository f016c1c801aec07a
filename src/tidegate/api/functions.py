"""The user's functions: plain callables, or classes for what needs set-up, state, two inputs or side outputs.

The user creates the instance. It is sent to every slot, where one thread calls `open(context)`, then its method for
each record, then `close()` (also after a failure).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar, overload

from typing_extensions import TypeForm

from tidegate.api.source import Counter
from tidegate.api.state import (
    AggregateFunction,
    KeyedState,
    StateDeclaration,
    give_declarations,
    take_declarations,
)
from tidegate.core.errors import ProgramError
from tidegate.core.subtask_info import SubtaskContext, SubtaskInfo
from tidegate.core.words import a_or_an, kind_of
from tidegate.program.foreign_names import METHODS
from tidegate.records.type_arguments import is_open, substitute, type_arguments
from tidegate.records.type_hints import strip_optional
from tidegate.records.type_variables import IN, IN1, IN2, KEY, OUT, AnyKey, AnyKeyIn, T
from tidegate.records.types import ObjectType, RecordType, record_type_of

S = TypeVar("S", bound=KeyedState)


@dataclass(frozen=True, kw_only=True)
class RuntimeContext(SubtaskContext):
    """Where a function runs: job, operator and subtask."""

    subtask: SubtaskInfo
    counter: Callable[[str], Counter]
    """Returns a counter of this subtask by name; `JobClient.metrics()` shows it."""


class OutputTag(Generic[T]):
    """Names a side output and the type of its records.

    >>> late = OutputTag("late", str)
    >>> late
    OutputTag('late', str)
    """

    @overload
    def __init__(self: OutputTag[Any], id: str) -> None: ...

    @overload
    def __init__(self, id: str, type: TypeForm[T]) -> None: ...

    def __init__(self, id: str, type: object = None) -> None:
        if not id:
            raise ProgramError("an OutputTag needs a name, got an empty one")
        self.id = id
        self.record_type: RecordType = record_type_of(type)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"OutputTag({self.id!r}, {self.record_type.describe()})"


OutputTags = OutputTag[Any] | Iterable[OutputTag[Any]]
"""The side outputs of an operator. Each tag has its own type."""


class TimerService(Protocol):
    """The time and, on a keyed stream, the timers of the current key.

    A timer is identified by its key, its time and its kind (event or processing time): registering it twice has no
    further effect. Timers are part of checkpoints. If a processing time passes while the job is down, its timer fires
    after the restart.
    """

    @property
    def current_watermark(self) -> int:
        """Event time, in milliseconds: -2^63 before the first watermark, 2^63 - 1 at the end of input."""
        ...

    @property
    def current_processing_time(self) -> int:
        """The wall clock, in milliseconds since 1970 (UTC)."""
        ...

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Call `on_timer` for the current key when the watermark reaches this time.

        A timer whose time has passed already fires at the next watermark.
        """
        ...

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Delete the current key's timer for this time, if there is one."""
        ...

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Call `on_timer` for the current key when the wall clock reaches this time."""
        ...

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Delete the current key's timer for this time, if there is one."""
        ...


class ProcessContext(Protocol[AnyKey]):
    """What a process function gets with each record."""

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit a value to a side output."""
        ...

    @property
    def current_key(self) -> AnyKey:
        """The key of the record; raises an error on a stream without keys."""
        ...

    @property
    def timestamp(self) -> int | None:
        """The record's event time in milliseconds; in `on_timer`, the timer's time.

        None if the stream has no event time: neither the source (`env.from_source(source, WatermarkStrategy...)`) nor
        `stream.assign_timestamps_and_watermarks(...)` got a WatermarkStrategy. Also None for records that `on_timer`
        emitted at a processing time. For the wall clock use `timer_service.current_processing_time`.
        """
        ...

    @property
    def timer_service(self) -> TimerService:
        """The time; timers too, in the functions whose names start with Keyed."""
        ...


class OnTimerContext(ProcessContext[AnyKey], Protocol[AnyKey]):
    """What `on_timer` gets: the timer's key and time."""

    @property
    def time_domain(self) -> Literal["event", "processing"]:
        """Which time made the timer fire."""
        ...


class BroadcastContext(Protocol[AnyKey]):
    """What a broadcast process function gets with each broadcast record."""

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit a value to a side output."""
        ...

    @overload
    def apply_to_keyed_state(self, state: S, function: Callable[[AnyKey, S], object]) -> None: ...

    @overload
    def apply_to_keyed_state(self, state: str, function: Callable[[AnyKey, Any], object]) -> None: ...

    def apply_to_keyed_state(
        self, state: KeyedState | str, function: Callable[[AnyKey, Any], object]
    ) -> None:
        """Call `function(key, state)` for every key of this subtask that has something in this keyed state.

        `state` is the attribute that declares it (`self.limit`), or its name. During the call it, and every other keyed
        state, is that of the key. The order of the keys means nothing. Refused on a stream without keys.
        """
        ...


class Function(ABC):  # noqa: B024 - each kind below has its abstract method
    """A function with a life cycle: `open`, its method for each record, `close`."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for name in METHODS.keys() & vars(cls).keys():
            ours = getattr(cls, METHODS[name], None)
            if ours is not None and ours.__module__ == __name__:  # no class of the user's defines ours
                raise ProgramError(f"{cls.__name__} defines {name}(); in tidegate it is {METHODS[name]}()")
        take_declarations(cls)

    if not TYPE_CHECKING:  # a type checker shall see only the arguments of __init__

        def __new__(cls, *args: object, **options: object) -> Self:
            if (args or options) and cls.__init__ is object.__init__:
                raise TypeError(f"{cls.__name__}() takes no arguments")
            function = super().__new__(cls)
            give_declarations(function)
            return function

    def __getstate__(self) -> Any:
        # State is not copied: a copy, here or in a slot, gets the declarations of its class.
        state = super().__getstate__()
        if isinstance(state, dict):
            return {k: v for k, v in state.items() if not isinstance(v, StateDeclaration)} or None
        return state

    def open(self, context: RuntimeContext) -> None:
        """Called once in the slot before the first record."""

    def close(self) -> None:
        """Called once in the slot after the last record, also after a failure."""


class MapFunction(Function, Generic[IN, OUT]):
    """Turns one record into one; for a map that needs `open` or state."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """Return the new record."""


class FlatMapFunction(Function, Generic[IN, OUT]):
    """Turns one record into any number of records."""

    @abstractmethod
    def flat_map(self, value: IN) -> Iterable[OUT]:
        """Return or yield the new records."""


class FilterFunction(Function, Generic[IN]):
    """Keeps or drops records."""

    @abstractmethod
    def filter(self, value: IN) -> bool:
        """Return whether to keep the record."""


class ReduceFunction(Function, Generic[T]):
    """Combines two records of one key into one of the same type."""

    @abstractmethod
    def reduce(self, left: T, right: T) -> T:
        """Return the combination; `left` is the result so far."""


class ProcessFunction(Function, Generic[IN, OUT, AnyKeyIn]):
    """Turns one record into any number of records, also for side outputs. On a keyed stream it knows the key.

    `class Sort(ProcessFunction[Click, Click])`; the type of the key may follow.
    """

    @abstractmethod
    def process(self, value: IN, context: ProcessContext[AnyKeyIn]) -> Iterable[OUT] | None:
        """Return or yield the records for the main output, or return None for nothing."""


class TimedFunction(Function, Generic[KEY, OUT]):
    """The timers of the process functions on keyed streams."""

    def on_timer(self, timestamp: int, context: OnTimerContext[KEY]) -> Iterable[OUT] | None:
        """Called when a timer of `context.current_key` fires; return or yield records as `process` does.

        They are of the same type as those of `process`. Timers fire in the order of their times, before the watermark
        that made them due goes on downstream. Records get the timer's time as their timestamp in event time, and none
        in processing time.
        """
        return None


class KeyedProcessFunction(ProcessFunction[IN, OUT, KEY], TimedFunction[KEY, OUT], Generic[KEY, IN, OUT]):
    """A process function on a keyed stream, with timers: `class Alarm(KeyedProcessFunction[str, Click, Alert])`."""


class CoMapFunction(Function, Generic[IN1, IN2, OUT]):
    """A map over two connected streams, with one method for each."""

    @abstractmethod
    def map1(self, value: IN1) -> OUT:
        """Map a record of the first stream."""

    @abstractmethod
    def map2(self, value: IN2) -> OUT:
        """Map a record of the second stream."""


class CoFlatMapFunction(Function, Generic[IN1, IN2, OUT]):
    """A flat map over two connected streams, with one method for each."""

    @abstractmethod
    def flat_map1(self, value: IN1) -> Iterable[OUT]:
        """Return or yield the records that replace one of the first stream."""

    @abstractmethod
    def flat_map2(self, value: IN2) -> Iterable[OUT]:
        """Return or yield the records that replace one of the second stream."""


class CoProcessFunction(Function, Generic[IN1, IN2, OUT, AnyKeyIn]):
    """A process function over two connected streams, with one method for each."""

    @abstractmethod
    def process1(self, value: IN1, context: ProcessContext[AnyKeyIn]) -> Iterable[OUT] | None:
        """Process a record of the first stream."""

    @abstractmethod
    def process2(self, value: IN2, context: ProcessContext[AnyKeyIn]) -> Iterable[OUT] | None:
        """Process a record of the second stream."""


class KeyedCoProcessFunction(
    CoProcessFunction[IN1, IN2, OUT, KEY], TimedFunction[KEY, OUT], Generic[KEY, IN1, IN2, OUT]
):
    """A process function over two connected keyed streams; both methods share the key's state and timers."""


class BroadcastProcessFunction(Function, Generic[IN1, IN2, OUT, AnyKeyIn]):
    """A process function over a stream and a broadcast stream, such as rules, settings or prices.

    Every subtask gets all records of the broadcast stream. Both methods share a `BroadcastState`: `process_broadcast`
    writes it, `process` reads it.
    """

    @abstractmethod
    def process(self, value: IN1, context: ProcessContext[AnyKeyIn]) -> Iterable[OUT] | None:
        """Process a record of the stream; broadcast state is read-only here."""

    @abstractmethod
    def process_broadcast(self, value: IN2, context: BroadcastContext[AnyKeyIn]) -> Iterable[OUT] | None:
        """Process a broadcast record. It must do the same in every subtask, so that broadcast state stays equal."""


class KeyedBroadcastProcessFunction(
    BroadcastProcessFunction[IN1, IN2, OUT, KEY], TimedFunction[KEY, OUT], Generic[KEY, IN1, IN2, OUT]
):
    """A broadcast process function on a keyed stream, with keyed state and timers.

    `process_broadcast` reaches the state of all keys through `context.apply_to_keyed_state`.
    """


def result_type(function: Any, method: str, returns: Any, *, many: bool) -> RecordType:
    """Find the record type of a function's results.

    That is `returns` if given. Else it is the return hint of the callable, or of `method` on a function object, or what
    the class gives for the type variable (`class F(MapFunction[Click, int])`); with `many`, the element type of the
    iterable. Without a usable hint: `ObjectType`.
    """
    if isinstance(returns, str):
        raise ProgramError(f"returns={returns!r} is text; give the type itself, such as returns=int")
    if returns is not None:
        return record_type_of(returns)
    is_class = isinstance(function, (Function, AggregateFunction))
    found: RecordType = ObjectType()
    for hint in _method_hints(function, method) if is_class else (_return_hint(function),):
        result = _element_hint(hint) if many else hint
        if found.is_object and result is not None and not is_open(result):
            found = record_type_of(result)
    return found


def one_result_type(function: Any, methods: tuple[str, ...], returns: Any, *, many: bool) -> RecordType:
    """Find the one type that all these methods (and `on_timer`, if defined) return.

    A method without a hint is assumed to return what the others do.
    """
    if has_timers(function):
        methods = (*methods, "on_timer")
    first: tuple[str, RecordType] | None = None
    for method in methods:
        found = result_type(function, method, returns, many=many)
        if first is not None and not found.is_object and found != first[1]:
            raise ProgramError(
                f"{function_name(function)}.{first[0]} gives {first[1].describe()} but {method} gives "
                f"{found.describe()}; both must give one type. Change a return hint, or pass returns="
            )
        if first is None and not found.is_object:
            first = (method, found)
    return ObjectType() if first is None else first[1]


def has_timers(function: Any) -> bool:
    """Whether the function's class defines `on_timer`."""
    return isinstance(function, TimedFunction) and type(function).on_timer is not TimedFunction.on_timer


def require_keys(function: Any, key: object, stream: str) -> None:
    """Refuse a function that needs keys on a stream without keys."""
    if isinstance(function, TimedFunction) and key is None:
        kinds = (KeyedProcessFunction, KeyedCoProcessFunction, KeyedBroadcastProcessFunction)
        kind = next(k.__name__ for k in kinds if isinstance(function, k))
        raise ProgramError(
            f"{function_name(function)} is a {kind}, but the stream of {stream!r} has no keys. Call key_by before it, "
            f"or derive it from {kind.removeprefix('Keyed')}"
        )


def check_callable(function: Any, cls: type[Function], operation: str) -> None:
    """Refuse, when the program is built, a function that `operation` cannot call."""
    is_class = isinstance(function, type) and issubclass(function, Function)
    if isinstance(function, cls) or (
        callable(function) and not is_class and not isinstance(function, Function)
    ):
        return
    if is_class:
        raise ProgramError(
            f"{operation} got the class {function.__name__}; give it an instance: {function.__name__}()"
        )
    hint = ""
    if isinstance(function, str):
        hint = (
            '. Write a polars expression: filter(pl.col("price") > 1)'
            if operation == "filter"
            else f". For columns by name use select({function!r})"
        )
    raise ProgramError(
        f"{operation} needs a callable or {a_or_an(cls.__name__)}, got {kind_of(function)}: {function!r}{hint}"
    )


def function_name(function: Any) -> str:
    """The name of a function in plans and errors."""
    if isinstance(function, Function):
        return type(function).__name__
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    if name is None and isinstance(function, functools.partial):
        return function_name(function.func)
    return (name or type(function).__name__).rpartition("<locals>.")[2]


def _return_hint(function: Any) -> Any:
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target) and not isinstance(target, type) and hasattr(target, "__call__"):  # noqa: B004
        target = type(target).__call__
    if isinstance(target, type):
        return target
    try:
        return typing.get_type_hints(target, localns=_captured(target), include_extras=True).get("return")
    except (NameError, TypeError, AttributeError):
        return None


def _method_hints(owner: object, method: str) -> Iterator[Any]:
    """The return hint of a method, then that of the tidegate method which it overrides."""
    defining = [cls for cls in type(owner).__mro__ if method in vars(cls)]
    ours = next(cls for cls in defining if cls.__module__.startswith("tidegate."))
    hint = _return_hint(getattr(owner, method))
    yield substitute(hint, type_arguments(type(owner), defining[0]))
    yield substitute(_return_hint(vars(ours)[method]), type_arguments(type(owner), ours))


def _captured(function: Any) -> dict[str, Any] | None:
    """The captured variables of a function by name: its hints may name local classes."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return None
    captured = {}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # the variable has no value yet
            captured[name] = cell.cell_contents
    return captured


def _element_hint(hint: Any) -> Any:
    hint, _ = strip_optional(hint)
    args = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if not args or not (isinstance(origin, type) and issubclass(origin, Iterable)):
        return None
    if origin is tuple and (len(args) != 2 or args[1] is not Ellipsis):
        return None
    return args[0]
