"""Times and sizes in a few characters, for people; not exact, unlike those of `core.durations`."""

from __future__ import annotations


def brief_duration(milliseconds: float) -> str:
    """A time.

    >>> brief_duration(7), brief_duration(1_230), brief_duration(61_000)
    ('7 ms', '1.2 s', '61.0 s')
    """
    return f"{milliseconds:.0f} ms" if abs(milliseconds) < 1000 else f"{milliseconds / 1000:.1f} s"


def brief_size(size: int) -> str:
    """A number of bytes.

    >>> brief_size(512), brief_size(3 << 20)
    ('512 B', '3.0 MiB')
    """
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
