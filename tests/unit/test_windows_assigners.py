"""Which windows a record belongs to, for every kind; sizes that make no sense; time zones."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    GlobalWindow,
    GlobalWindows,
    ProgramError,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

HOUR = 3_600_000
DAY = 24 * HOUR


def ms(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def local(window: TimeWindow, zone: str) -> tuple[str, str]:
    ends = (datetime.fromtimestamp(t / 1000, UTC).astimezone(ZoneInfo(zone)) for t in window)
    start, end = (t.strftime("%m-%d %H:%M") for t in ends)
    return start, end


@given(
    st.integers(-(10**15), 10**15),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(-(10**6), 10**6),
)
def test_sliding_windows_are_all_that_contain_the_moment_whatever_size_and_slide(t, size, slide, offset):
    slide = max(slide, size // 20)
    offset %= slide
    found = SlidingEventTimeWindows(size, slide, offset).assign_windows(None, t)
    first = (t - size - offset) // slide - 1
    starts = [offset + k * slide for k in range(first, first + size // slide + 5)]
    assert list(found) == [TimeWindow(s, s + size) for s in starts if s <= t < s + size]


@given(st.integers(-(10**15), 10**15), st.integers(1, 10**9), st.integers(-(10**9), 10**9))
def test_the_tumbling_window_contains_the_moment_and_is_aligned_to_the_offset(t, size, offset):
    offset = offset % size
    (window,) = TumblingEventTimeWindows(size, offset).assign_windows(None, t)
    assert window.start_ms <= t <= window.max_timestamp_ms
    assert (window.start_ms - offset) % size == 0
    assert window.end_ms - window.start_ms == size


@given(st.integers(-(10**12), 10**12), st.integers(1, 1000), st.integers(1, 30))
def test_cumulative_windows_start_together_and_end_at_every_step_behind_the_moment(t, step, steps):
    size = step * steps
    found = CumulativeEventTimeWindows(size, step).assign_windows(None, t)
    start = t // size * size
    assert list(found) == [
        TimeWindow(start, start + k * step) for k in range(1, steps + 1) if start + k * step > t
    ]


def test_a_slide_longer_than_the_size_leaves_gaps():
    assigner = SlidingEventTimeWindows("2 s", "5 s")
    assert [len(assigner.assign_windows(None, t)) for t in (0, 1_999, 2_000, 4_999, 5_000)] == [1, 1, 0, 0, 1]


def test_times_before_1970_and_in_the_year_9999_have_windows():
    days = TumblingEventTimeWindows("1 d")
    assert days.assign_windows(None, -1) == (TimeWindow(-DAY, 0),)
    end_of_time = ms("9999-12-31T23:59:59")
    assert days.assign_windows(None, end_of_time)[0].end_ms == ms("9999-12-31T00:00:00") + DAY
    berlin = TumblingEventTimeWindows("1 d", time_zone="Europe/Berlin")
    (window,) = berlin.assign_windows(None, end_of_time)
    assert window.start_ms <= end_of_time < window.end_ms


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: TumblingEventTimeWindows(0), "size=0 must be longer than 0"),
        (lambda: TumblingEventTimeWindows("-5 s"), "size='-5 s'"),
        (lambda: TumblingEventTimeWindows("ten"), "size='ten'"),
        (lambda: TumblingEventTimeWindows("1 h", "1 h"), "offset ('1 h') must be shorter than the size"),
        (lambda: SlidingEventTimeWindows("1 h", 0), "slide=0 must be longer than 0"),
        (lambda: SlidingEventTimeWindows("1 h", "5 min", "5 min"), "must be shorter than the slide"),
        (lambda: SlidingEventTimeWindows("1 h", "5 min", time_zone="Asia/Tokyo"), "whole days"),
        (lambda: CumulativeEventTimeWindows("1 h", "25 min"), "must divide max_size"),
        (lambda: EventTimeSessionWindows(0), "gap=0 must be longer than 0"),
        (lambda: EventTimeSessionWindows.with_dynamic_gap("5 s"), "needs a function"),
        (lambda: TumblingEventTimeWindows("1 d", time_zone="Mars/Olympus"), "'Mars/Olympus' is not known"),
        (lambda: TumblingEventTimeWindows("7 h", time_zone="Europe/Berlin"), "divide a day"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_with_the_value(make, part):
    with pytest.raises(ProgramError, match=part.replace("(", r"\(").replace(")", r"\)")):
        make()


def test_sizes_may_be_texts_numbers_and_timedeltas():
    assert (
        TumblingEventTimeWindows("1 h").size_ms
        == TumblingEventTimeWindows.of(timedelta(hours=1)).size_ms
        == HOUR
    )
    assert TumblingEventTimeWindows("1 d", offset="-8 h").offset_ms == -8 * HOUR
    assert TumblingEventTimeWindows("1 d", offset=timedelta(hours=-8)).assign_windows(None, 0) == (
        TimeWindow(-8 * HOUR, 16 * HOUR),
    )


def test_days_of_a_zone_are_from_midnight_to_midnight_also_when_the_clock_is_changed():
    zone = "Europe/Berlin"
    days = TumblingEventTimeWindows("1 d", time_zone=zone)
    lengths = {}
    for date in ("2025-03-29", "2025-03-30", "2025-03-31", "2025-10-26"):
        (window,) = days.assign_windows(None, ms(f"{date}T12:00:00", zone))
        assert local(window, zone)[0] == f"{date[5:]} 00:00"
        lengths[date] = (window.end_ms - window.start_ms) // HOUR
    assert lengths == {"2025-03-29": 24, "2025-03-30": 23, "2025-03-31": 24, "2025-10-26": 25}


def test_a_midnight_that_is_skipped_is_when_the_clock_jumps():
    zone = "America/Sao_Paulo"  # on 2018-11-04 the clock went from 23:59 to 01:00
    (window,) = TumblingEventTimeWindows("1 d", time_zone=zone).assign_windows(
        None, ms("2018-11-04T12:00:00", zone)
    )
    assert local(window, zone) == ("11-04 01:00", "11-05 00:00")


def test_hours_of_a_zone_are_cut_from_its_midnight():
    zone = "Asia/Kolkata"  # 5 hours and 30 minutes
    (window,) = TumblingEventTimeWindows("1 h", time_zone=zone).assign_windows(
        None, ms("2025-06-01T10:20:00", zone)
    )
    assert local(window, zone) == ("06-01 10:00", "06-01 11:00")
    berlin = TumblingEventTimeWindows("6 h", time_zone="Europe/Berlin")
    (last,) = berlin.assign_windows(None, ms("2025-03-30T23:00:00", "Europe/Berlin"))
    assert local(last, "Europe/Berlin") == ("03-30 19:00", "03-31 00:00")


def test_sliding_days_of_a_zone_overlap_by_whole_days():
    zone = "Europe/Berlin"
    weeks = SlidingEventTimeWindows("3 d", "1 d", time_zone=zone)
    found = weeks.assign_windows(None, ms("2025-03-30T12:00:00", zone))
    assert [local(w, zone) for w in found] == [
        ("03-28 00:00", "03-31 00:00"),
        ("03-29 00:00", "04-01 00:00"),
        ("03-30 00:00", "04-02 00:00"),
    ]


@given(
    st.lists(st.integers(-(10**12), 4 * 10**12), min_size=1, max_size=20),
    st.sampled_from(["1 d", "7 d", "1 h"]),
)
def test_windows_of_an_array_are_those_of_its_elements(moments, size):
    for zone in (None, "America/New_York"):
        assigner = TumblingEventTimeWindows(size, time_zone=zone)
        starts, ends = assigner.assign_array(np.array(moments, np.int64))
        one_by_one = [assigner.assign_windows(None, t)[0] for t in moments]
        assert [TimeWindow(int(s), int(e)) for s, e in zip(starts, ends, strict=True)] == one_by_one
        assert all(w.start_ms <= t < w.end_ms for w, t in zip(one_by_one, moments, strict=True))


def test_assigners_are_equal_by_value_and_can_be_sent():
    for assigner in (
        TumblingEventTimeWindows("1 d", time_zone="Europe/Berlin"),
        SlidingEventTimeWindows("10 s", "3 s"),
        CumulativeEventTimeWindows("1 h", "5 min"),
        EventTimeSessionWindows("5 s"),
        TumblingProcessingTimeWindows("5 s"),
        GlobalWindows(),
    ):
        copy = pickle.loads(pickle.dumps(assigner))
        assert copy == assigner
        assert copy.assign_windows(None, 12_345) == assigner.assign_windows(None, 12_345)
    assert TumblingProcessingTimeWindows("5 s") != TumblingEventTimeWindows("5 s")
    assert pickle.loads(pickle.dumps(GlobalWindow())) == GlobalWindow()


def test_assigners_say_in_words_what_they_do():
    assert TumblingEventTimeWindows("90 s", "-1 s").describe() == "tumbling 90 s, offset -1 s"
    assert SlidingEventTimeWindows("1 h", "5 min").describe() == "sliding 1 h / 5 min"
    assert TumblingProcessingTimeWindows("1 d", time_zone="Asia/Tokyo").describe() == (
        "tumbling 1 d, Asia/Tokyo, processing time"
    )
    assert EventTimeSessionWindows(lambda r: 5).describe() == "session dynamic gap"
