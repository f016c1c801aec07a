"""Rounded times and sizes in a few characters, for people; `core.durations` has exact ones."""

from __future__ import annotations


def brief_duration(milliseconds: float) -> str:
    """A duration in the unit that keeps it short.

    >>> brief_duration(7), brief_duration(1_230), brief_duration(61_000), brief_duration(900_000)
    ('7 ms', '1.2 s', '61.0 s', '15.0 min')
    >>> brief_duration(36_000_000), brief_duration(864_000_000)
    ('10.0 h', '10.0 days')
    """
    if abs(milliseconds) < 1000:
        return f"{milliseconds:.0f} ms"
    value, unit = milliseconds / 1000, "s"
    for times, most, larger in ((60, 120, "min"), (60, 120, "h"), (24, 48, "days")):
        if abs(value) < most:
            break
        value, unit = value / times, larger
    return f"{value:.1f} {unit}"


def brief_size(size: int) -> str:
    """A number of bytes in the unit that keeps it short.

    >>> brief_size(512), brief_size(3 << 20)
    ('512 B', '3.0 MiB')
    """
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
