"""Window assigners of users: what they return is checked where it is used."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate import Environment, JobFailedError, Sum, TimeWindow, WatermarkStrategy, WindowAssigner


class Shifts(WindowAssigner):
    """Returns what the test wants."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def assign_windows(self, element: Any, timestamp_ms: int) -> Any:
        return self.returned


def sums(returned: Any) -> list[int]:
    env = Environment(runtime="in-process", progress="off")
    rows = [{"k": "a", "n": n, "t": n} for n in (1, 2)]
    stream = env.from_collection(rows).assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("t"))
    windows = stream.key_by("k").window(Shifts(returned)).aggregate(total=Sum("n"))
    return [row.total for row in windows.execute_and_collect()]


def test_a_window_that_it_returns_has_the_records():
    assert sums([TimeWindow(0, 10)]) == [3]


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (TimeWindow(0, 10), "0"),
        ([(0, 10)], r"\(0, 10\)"),
        ([TimeWindow(10, 0)], r"TimeWindow\(start_ms=10, end_ms=0\)"),
    ],
)
def test_anything_but_windows_is_refused_with_what_to_return(returned, shown):
    with pytest.raises(
        JobFailedError, match=rf"(?s)Shifts\.assign_windows must return a list of TimeWindow.* is {shown}"
    ):
        sums(returned)
