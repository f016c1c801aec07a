"""The days of a time zone, from local midnight to local midnight: 23 to 25 hours long.

Windows with a `time_zone` are cut here. A day begins when the wall clock first shows `offset_ms` past midnight or, if
the clock skips that moment, when it jumps over it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from tidegate.core.errors import ProgramError

DAY_MS: Final = 86_400_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - wall clock time has no zone
_MS: Final = timedelta(milliseconds=1)
_CACHE_LIMIT: Final = 100_000


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this name; refuses an unknown one."""
    if not isinstance(name, str):
        raise ProgramError(f'time_zone is the name of a zone such as "Europe/Berlin", got {name!r}')
    try:
        return ZoneInfo(name)
    except Exception as e:  # noqa: BLE001 - zoneinfo raises five kinds for a wrong name
        raise ProgramError(
            f'time_zone={name!r} is not known here ({type(e).__name__}). Use a name such as "Europe/Berlin"'
        ) from None


class LocalDays:
    """The days of a zone, numbered from 1970-01-01. Caches the starts of days; one thread uses it."""

    def __init__(self, time_zone: str, offset_ms: int = 0) -> None:
        self._zone = zone_of(time_zone)
        self._offset_ms = offset_ms
        self._starts: dict[int, int] = {}

    def start_ms(self, day: int) -> int:
        found = self._starts.get(day)
        if found is None:
            if len(self._starts) > _CACHE_LIMIT:
                self._starts.clear()
            found = self._starts[day] = self._compute(day)
        return found

    def day_of(self, timestamp_ms: int) -> int:
        try:
            wall = (_EPOCH + timestamp_ms * _MS).astimezone(self._zone).replace(tzinfo=None)
            day = ((wall - _WALL_EPOCH) // _MS - self._offset_ms) // DAY_MS
        except OverflowError:  # before the year 1 or after 9999, beyond the calendar
            day = (timestamp_ms - self._offset_ms) // DAY_MS
        while self.start_ms(day) > timestamp_ms:
            day -= 1
        while self.start_ms(day + 1) <= timestamp_ms:
            day += 1
        return day

    def days_of(self, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if not len(timestamps):
            return timestamps
        first, last = self.day_of(int(timestamps.min())), self.day_of(int(timestamps.max()))
        if last - first > _CACHE_LIMIT:
            return np.array([self.day_of(int(t)) for t in timestamps], np.int64)
        starts = self.starts_of(np.arange(first, last + 1))
        return np.searchsorted(starts, timestamps, side="right") - 1 + first

    def starts_of(self, days: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        distinct, places = np.unique(days, return_inverse=True)
        starts: npt.NDArray[Any] = np.array([self.start_ms(int(d)) for d in distinct], np.int64)
        return starts[places]

    def _compute(self, day: int) -> int:
        wall_ms = day * DAY_MS + self._offset_ms
        try:
            wall = _WALL_EPOCH + wall_ms * _MS
            return (wall.replace(tzinfo=self._zone).astimezone(UTC) - _EPOCH) // _MS
        except OverflowError:
            return wall_ms
