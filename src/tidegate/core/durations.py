"""Durations and sizes as people write them: "500 ms" to milliseconds, "32 KiB" to bytes, and back.

The engine counts in whole milliseconds and whole bytes, as plain ``int``. These functions convert a user's value at the
border. They raise ``ValueError`` with only the reason; the caller (the option registry) adds the key and the origin of
the value.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

from tidegate.core.words import kind_of

Duration = str | int | float | timedelta
"""A duration as users write it."""

DURATION_FORM: Final = "a duration such as '500 ms', '1.5 s', '10 min', '2 h', or a number of milliseconds"
SIZE_FORM: Final = "a size such as '32 KiB', '1 MiB', '4096 B', or a number of bytes"

_NANOSECONDS: Final[dict[str, int]] = {
    unit: factor
    for factor, units in (
        (1, ("ns", "nano", "nanos", "nanosecond", "nanoseconds")),
        (1_000, ("us", "µs", "μs", "micro", "micros", "microsecond", "microseconds")),
        (1_000_000, ("ms", "milli", "millis", "millisecond", "milliseconds")),
        (1_000_000_000, ("s", "sec", "secs", "second", "seconds")),
        (60_000_000_000, ("m", "min", "mins", "minute", "minutes")),
        (3_600_000_000_000, ("h", "hr", "hrs", "hour", "hours")),
        (86_400_000_000_000, ("d", "day", "days")),
    )
    for unit in units
}
_NS_PER_MS: Final = 1_000_000

# One letter is the binary unit, as in Flink's and Spark's settings; "kB" and "MB" are decimal, as in SI.
_BYTES: Final[dict[str, int]] = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 10**3,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 10**6,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 10**9,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 10**12,
}

_QUANTITY: Final = re.compile(
    r"\s*(?P<number>-?\d+(?:_\d+)*(?:\.\d+)?|\.\d+)\s*(?P<unit>[A-Za-zµμ]*)\s*", re.ASCII
)

_DURATION_STEPS: Final = (
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1_000),
    ("ms", 1),
)
_SIZE_STEPS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


def parse_duration_ms(value: object) -> int:
    """The milliseconds of a text with a unit, a number (of milliseconds) or a ``timedelta``.

    >>> parse_duration_ms("1.5 s"), parse_duration_ms("10 min"), parse_duration_ms(250)
    (1500, 600000, 250)
    """
    if isinstance(value, timedelta):
        microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        return _whole(Decimal(microseconds) / 1_000, "milliseconds")
    number, unit = _quantity(value, DURATION_FORM)
    if not unit:
        return _whole(number, "milliseconds")
    nanoseconds = _NANOSECONDS.get(unit) or _NANOSECONDS.get(unit.lower())
    if nanoseconds is None:
        raise ValueError(f"{unit!r} is not a unit of time (use ms, s, min, h or d)")
    return _whole(number * nanoseconds / _NS_PER_MS, "milliseconds")


def format_duration_ms(milliseconds: int) -> str:
    """The shortest text that parses back to the same milliseconds.

    >>> format_duration_ms(90_000), format_duration_ms(1_500), format_duration_ms(120_000)
    ('90 s', '1500 ms', '2 min')
    """
    return _format(milliseconds, _DURATION_STEPS, "ms")


def parse_size_bytes(value: object) -> int:
    """The bytes of a text with a unit, or of a number (of bytes).

    >>> parse_size_bytes("32 KiB"), parse_size_bytes("1 MB"), parse_size_bytes(512)
    (32768, 1000000, 512)
    """
    number, unit = _quantity(value, SIZE_FORM)
    if not unit:
        return _whole(number, "bytes")
    factor = _BYTES.get(unit.lower())
    if factor is None:
        raise ValueError(f"{unit!r} is not a unit of size (use B, KiB, MiB, GiB, kB, MB or GB)")
    return _whole(number * factor, "bytes")


def format_size_bytes(size: int) -> str:
    """The shortest text that parses back to the same number of bytes.

    >>> format_size_bytes(1 << 20), format_size_bytes(1_000)
    ('1 MiB', '1000 B')
    """
    return _format(size, _SIZE_STEPS, "B")


def _quantity(value: object, form: str) -> tuple[Decimal, str]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{kind_of(value)} is not {form}")
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not {form}")
        return Decimal(match["number"].replace("_", "")), match["unit"]
    number = Decimal(str(value))
    if not number.is_finite():
        raise ValueError(f"{value!r} is not {form}")
    return number, ""


def _whole(number: Decimal, unit: str) -> int:
    if number < 0:
        raise ValueError("it must not be negative")
    whole = int(number)
    if whole != number:
        raise ValueError(f"it is not a whole number of {unit}")
    return whole


def _format(amount: int, steps: tuple[tuple[str, int], ...], smallest: str) -> str:
    if amount < 0:
        raise ValueError(f"{amount} is negative")
    if amount == 0:
        return f"0 {smallest}"
    unit, size = next((unit, size) for unit, size in steps if amount % size == 0)
    return f"{amount // size} {unit}"
