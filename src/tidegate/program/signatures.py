"""Checks, at the line of the program, that a function accepts the arguments with which its operator calls it.

A callable whose signature Python cannot tell (many built-ins) is not checked; a mistake shows when it is called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from tidegate.api.functions import (
    BroadcastProcessFunction,
    CoProcessFunction,
    Function,
    TimedFunction,
    function_name,
)
from tidegate.core.errors import ProgramError

_ALIASES: Final = {"ctx": "context", "acc": "accumulator"}
_KEEP_THEIR_PLACE: Final = ("context", "accumulator")
_TAKES_MANY: Final = {
    "map": "flat_map",
    "map1": "a CoFlatMapFunction",
    "map2": "a CoFlatMapFunction",
}
_BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def check_function(function: Any, cls: type[Function], operator: str) -> None:
    """Refuse a function whose parameters do not fit: an instance of a function class, or a callable in its place.

    The one abstract method of `cls` says how a plain callable is called.
    """
    if isinstance(function, Function):
        _refuse_idle_on_timer(function, operator)
        check_methods(function, operator)
        return
    (method,) = cls.__abstractmethods__
    ours = getattr(cls, method)
    names = tuple(inspect.signature(ours).parameters)[1:]
    check_arguments(function, names, f"operator {operator!r}: {function_name(function)}", ours=ours)


def check_methods(owner: Any, operator: str) -> None:
    """Refuse a user's method that does not fit the tidegate method that it overrides."""
    for cls in type(owner).__mro__:
        if not cls.__module__.startswith("tidegate."):
            continue
        for name, ours in vars(cls).items():
            if name.startswith("_") or not inspect.isfunction(ours) or getattr(type(owner), name) is ours:
                continue
            names = tuple(inspect.signature(ours).parameters)[1:]
            where = f"operator {operator!r}: {type(owner).__name__}.{name}"
            form = f"{name}({', '.join(('self', *names))})"
            check_arguments(getattr(owner, name), names, where, form, ours)


def check_arguments(
    function: Any, names: Sequence[str], where: str, form: str = "", ours: Callable[..., Any] | None = None
) -> None:
    """Refuse a callable that cannot take arguments of these names by position, or does not return what is needed.

    `ours` is the tidegate method that it stands for; without one, it must return a value.
    """
    if not inspect.isroutine(function) and not isinstance(function, (type, functools.partial)):
        # The bound method of an object: for a static `__call__` inspect would wrongly drop a parameter.
        function = getattr(function, "__call__", None)  # noqa: B004 - asks how it is called, not whether
    _refuse_what_runs_later(function, where, ours)
    try:
        # The wrapper is called, so a decorator's __wrapped__ does not count.
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError, NameError):  # NameError: a hint names something unknown
        return
    called = f"({', '.join(names)})"
    advice = f"Define it as {form}" if form else f"Give it {_count(len(names))}"
    try:
        signature.bind(*names)
    except TypeError:
        takes = inspect.Signature([p.replace(annotation=p.empty) for p in signature.parameters.values()])
        raise ProgramError(f"{where} is called with {called}, but takes {takes}. {advice}") from None
    by_position = [p.name for p in signature.parameters.values() if p.kind in _BY_POSITION]
    theirs = [_ALIASES.get(name, name) for name in by_position[: len(names)]]  # the others have defaults
    for name in _KEEP_THEIR_PLACE:
        if name in names and name in theirs and theirs.index(name) != names.index(name):
            raise ProgramError(
                f"{where} is called with {called}, but its {name} is argument {theirs.index(name) + 1} of "
                f"({', '.join(theirs)}). Put its parameters in the order {called}"
            )


def _refuse_what_runs_later(function: Any, where: str, ours: Callable[..., Any] | None) -> None:
    """Refuse a function that only works when its result is awaited or iterated over, which nobody does here."""
    if inspect.isasyncgenfunction(function) or (
        inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(ours)
    ):
        raise ProgramError(
            f"{where} is `async def`, and nobody awaits it here. To ask the outside, use map_async with a coroutine "
            f"(or an AsyncFunction, which returns any number of records); else define it with `def`"
        )
    returned = "" if ours is None else str(ours.__annotations__.get("return"))
    if inspect.isgeneratorfunction(function) and "Iterable" not in returned:
        many = _TAKES_MANY.get(getattr(ours, "__name__", ""))
        advice = f"For any number of records use {many}" if many else "Return it instead"
        raise ProgramError(f"{where} yields, but must return one value. {advice}")


def _refuse_idle_on_timer(function: Function, operator: str) -> None:
    if isinstance(function, TimedFunction) or not callable(getattr(function, "on_timer", None)):
        return
    kinds = (CoProcessFunction, BroadcastProcessFunction)
    keyed = next((f"Keyed{k.__name__}" for k in kinds if isinstance(function, k)), "KeyedProcessFunction")
    raise ProgramError(
        f"operator {operator!r}: {function_name(function)} defines on_timer, which is never called: only functions of "
        f"keyed streams have timers. Derive it from {keyed}, and call key_by before it"
    )


def _count(arguments: int) -> str:
    return "one parameter" if arguments == 1 else f"{arguments} parameters"
