"""The types of option values: how each is read, checked and shown.

Used by the registry in `tidegate.core.options` and by modules that register options of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tidegate.core.durations import (
    DURATION_FORM,
    SIZE_FORM,
    format_duration_ms,
    format_size_bytes,
    parse_duration_ms,
    parse_size_bytes,
)

T = TypeVar("T")


@dataclass(frozen=True)
class OptionType(Generic[T]):
    """How the values of an option are read and shown. ``parse`` raises ``ValueError`` for a bad value."""

    name: str
    form: str
    parse: Callable[[object], T]
    show: Callable[[T], str] = str


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0"):
            return False
    raise ValueError


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _show_text(value: str) -> str:
    return repr(value) if not value or value != value.strip() else value


BOOLEAN: Final = OptionType("bool", "true or false", _parse_bool, lambda value: str(value).lower())
TEXT: Final = OptionType("text", "a text", _parse_text, _show_text)
DURATION: Final = OptionType("duration", DURATION_FORM, parse_duration_ms, format_duration_ms)
SIZE: Final = OptionType("size", SIZE_FORM, parse_size_bytes, format_size_bytes)


def integer(at_least: int, at_most: int | None = None) -> OptionType[int]:
    """A whole number within bounds, both inclusive."""
    bounds = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError
        try:
            number = int(value)
        except ValueError:
            raise ValueError from None
        if number < at_least or (at_most is not None and number > at_most):
            raise ValueError
        return number

    return OptionType("int", f"a whole number {bounds}", parse)


def choice(*words: str) -> OptionType[str]:
    """One of a few words. YAML reads a bare ``on`` as true, so a boolean stands for the words on and off."""

    def parse(value: object) -> str:
        if isinstance(value, bool):
            value = "on" if value else "off"
        if not isinstance(value, str) or value.strip().lower() not in words:
            raise ValueError
        return value.strip().lower()

    return OptionType("|".join(words), "one of " + ", ".join(words), parse)


def at_least(minimum: int, of: OptionType[int]) -> OptionType[int]:
    """The same type, refusing smaller values (a zero interval, a buffer of no bytes)."""

    def parse(value: object) -> int:
        number = of.parse(value)
        if number < minimum:
            raise ValueError(f"it must be at least {of.show(minimum)}")
        return number

    return OptionType(of.name, of.form, parse, of.show)
