"""Async I/O: one subtask makes many requests at a time, with `async def` functions.

Every checkpoint holds the records whose requests are not answered yet. After a recovery the subtask makes those
requests again: each record appears with its answer exactly once in the stream, but the other side may be asked more
than once.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic

from tidegate.api.functions import Function, function_name
from tidegate.api.state import declared_states
from tidegate.core.durations import Duration, parse_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity, function_identity
from tidegate.program.operations import FunctionOperation
from tidegate.records.type_variables import IN, OUT


class AsyncFunction(Function, Generic[IN, OUT]):
    """Makes a request for each record. `open` and `close` are called as for every function.

    `invoke` and `timeout` run on the event loop of the subtask, which has its own thread. They cannot use state.
    """

    @abstractmethod
    async def invoke(self, value: IN) -> Iterable[OUT]:
        """Return the records that replace this one."""

    def timeout(self, value: IN) -> Iterable[OUT]:
        """Return the records to emit if there was no answer in time. Unless you define it, the job fails."""
        raise TimeoutError(
            "no answer in time. Raise the timeout, or define timeout(value) to give another result"
        )


@dataclass(frozen=True)
class AsyncRetry:
    """How often, and after which errors, a request is repeated. The timeout covers all attempts together.

    >>> AsyncRetry(3, "100 ms").delay_ms(2)
    200.0
    """

    attempts: int
    """Requests in total, including the first."""
    delay: Duration = "100 ms"
    on: tuple[type[BaseException], ...] = (Exception,)
    multiplier: float = 2.0
    """The factor by which the delay grows after each attempt."""

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise ProgramError(f"AsyncRetry needs at least one attempt, got {self.attempts!r}")
        if self.multiplier < 1:
            raise ProgramError(f"AsyncRetry: the delay cannot shrink (multiplier {self.multiplier!r})")
        _duration("AsyncRetry: delay", self.delay, least=0)

    def delay_ms(self, attempt: int) -> float:
        """The wait after this attempt; the first attempt is 1."""
        return float(_duration("delay", self.delay, least=0) * self.multiplier ** (attempt - 1))


@dataclass(frozen=True)
class ApplyAsync(FunctionOperation):
    """Runs an async function for every record, at most `capacity` at a time."""

    kind = "async"
    keeps_state = True
    function: Any
    ordered: bool
    capacity: int
    timeout_ms: int
    retry: AsyncRetry | None

    def detail(self) -> str:
        order = "in order" if self.ordered else "as they are answered"
        return f"{function_name(self.function)}, at most {self.capacity} at a time, {order}"

    def identity(self) -> Identity:
        """The function and the order. The capacity may change."""
        return "async", function_identity(self.function), self.ordered


def async_operation(
    function: Any, *, ordered: bool, capacity: int, timeout: Any, retry: AsyncRetry | None
) -> ApplyAsync:
    """Check the arguments of `map_async` and build its operation."""
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asks how it is called, not whether
    )
    if not isinstance(function, AsyncFunction) and not is_async:
        hint = (
            "Give it an instance of the class" if isinstance(function, type) else "Define it with `async def`"
        )
        raise ProgramError(f"map_async needs an async function or an AsyncFunction, got {function!r}. {hint}")
    if isinstance(function, AsyncFunction) and not inspect.iscoroutinefunction(function.invoke):
        raise ProgramError(f"{function_name(function)}.invoke must be `async def`")
    for state in declared_states(function).values():
        raise ProgramError(
            f"map_async: {function_name(function)} declares state {state.name!r}, but does not run on the thread that "
            f"owns state. Use state in a process function before or after it"
        )
    if type(capacity) is not int or capacity < 1:
        raise ProgramError(f"map_async: capacity must be at least 1, got {capacity!r}")
    if retry is not None and not isinstance(retry, AsyncRetry):
        raise ProgramError(f"map_async: retry must be an AsyncRetry, got {retry!r}")
    timeout_ms = _duration("map_async: timeout", timeout, least=1)
    return ApplyAsync(function, bool(ordered), capacity, timeout_ms, retry)


def _duration(what: str, value: Any, *, least: int) -> int:
    try:
        ms = parse_duration_ms(value)
    except ValueError as e:
        raise ProgramError(f"{what}={value!r}: {e}") from e
    if ms < least:
        raise ProgramError(f"{what} must be at least {least} ms, got {value!r}")
    return ms
