"""The types of option values: how each is parsed, checked and shown.

The registry in `tidegate.core.options` uses them, and modules that register their own options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from tidegate.core.durations import (
    DURATION_FORM,
    SIZE_FORM,
    format_duration_ms,
    format_size_bytes,
    parse_duration_ms,
    parse_size_bytes,
)
from tidegate.core.uris import path_name

T = TypeVar("T")


@dataclass(frozen=True)
class OptionType(Generic[T]):
    """How to parse and show the values of an option. ``parse`` raises ``ValueError`` for a bad value."""

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
LOCATION: Final = OptionType(
    "text", "a path or a URI", _parse_text, lambda value: _show_text(path_name(value))
)
"""Shown without the credentials that a URI may carry."""
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


def port_range(text: str) -> range:
    """The ports in a text of the type `PORTS`; for an empty text port 0, which lets the kernel choose."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1) if text else range(1)


def _parse_ports(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise ValueError
    text = text.replace(" ", "")
    if text and (not re.fullmatch(r"\d{1,5}(-\d{1,5})?", text) or not _are_ports(port_range(text))):
        raise ValueError
    return text


def _are_ports(ports: range) -> bool:
    return len(ports) > 0 and ports[0] > 0 and ports[-1] < 1 << 16


PORTS: Final = OptionType(
    "ports", "a port (40000) or a range of ports (40000-40010), from 1 to 65535", _parse_ports, _show_text
)


def choice(*words: str, also: Mapping[str, str] = MappingProxyType({})) -> OptionType[str]:
    """One of a few words, whatever the case and ``-`` or ``_``. ``also`` maps other words to one of them.

    A boolean means on or off, because YAML reads a bare ``on`` as true.
    """
    meaning = {word.replace("-", "_"): word for word in words}
    meaning.update({other.replace("-", "_"): meaning[word.replace("-", "_")] for other, word in also.items()})

    def parse(value: object) -> str:
        if isinstance(value, bool):
            value = "on" if value else "off"
        word = meaning.get(value.strip().lower().replace("-", "_")) if isinstance(value, str) else None
        if word is None:
            raise ValueError
        return word

    return OptionType("|".join(words), "one of " + ", ".join(words), parse)


def number(at_least: float, at_most: float) -> OptionType[float]:
    """A number within bounds, both inclusive."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        try:
            result = float(value)
        except ValueError:
            raise ValueError from None
        if not at_least <= result <= at_most:
            raise ValueError
        return result

    return OptionType(
        "number", f"a number from {at_least:g} to {at_most:g}", parse, lambda value: f"{value:g}"
    )


def duration_or_off(minimum: int) -> OptionType[int]:
    """A duration of at least ``minimum`` milliseconds, or off, which is 0."""

    def parse(value: object) -> int:
        if value is False or (isinstance(value, str) and value.strip().lower() in ("off", "none", "never")):
            return 0
        milliseconds = parse_duration_ms(value)
        if 0 < milliseconds < minimum:
            raise ValueError(f"it must be at least {format_duration_ms(minimum)}")
        return milliseconds

    return OptionType(
        "duration", f"{DURATION_FORM}, or off", parse, lambda v: format_duration_ms(v) if v else "off"
    )


def at_least(minimum: int, of: OptionType[int]) -> OptionType[int]:
    """A type that refuses values below ``minimum`` (a zero interval, an empty buffer)."""

    def parse(value: object) -> int:
        number = of.parse(value)
        if number < minimum:
            raise ValueError(f"it must be at least {of.show(minimum)}")
        return number

    return OptionType(of.name, of.form, parse, of.show)
