"""The watermark valve: a task's clock is the minimum over its channels, and never goes back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.ids import ChannelId, EdgeId
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP
from tidegate.taskmanager.watermark_valve import AdvanceClock, ChangeStatus, WatermarkValve

P = [ChannelId(EdgeId(0), i, 0) for i in range(4)]


def seeds_example() -> WatermarkValve:
    """Four partitions at 2, 4, 3 and 6: the clock is 2."""
    valve = WatermarkValve(P)
    for channel, mark in zip(P, (2, 4, 3, 6), strict=True):
        valve.watermark_received(channel, mark)
    assert valve.clock_ms == 2
    return valve


@pytest.mark.spec("S3-20")
def test_the_example_of_4_7_and_6():
    valve = seeds_example()
    assert valve.watermark_received(P[0], 4) == [AdvanceClock(3)]
    assert valve.watermark_received(P[1], 7) == []
    assert valve.watermark_received(P[2], 6) == [AdvanceClock(4)]


@pytest.mark.parametrize("order", list(itertools.permutations([(0, 4), (1, 7), (2, 6)])))
def test_any_order_of_arrival_ends_at_the_same_clock(order: list[tuple[int, int]]):
    valve = seeds_example()
    for channel, mark in order:
        valve.watermark_received(P[channel], mark)
    assert valve.clock_ms == 4


def test_a_watermark_that_goes_back_changes_nothing():
    valve = seeds_example()
    assert valve.watermark_received(P[3], 1) == []
    assert valve.watermark_of(P[3]) == 6


def test_an_idle_channel_is_left_out_until_it_is_active_and_holds_the_clock_until_it_has_caught_up():
    valve = seeds_example()
    assert valve.status_received(P[0], idle=True) == [AdvanceClock(3)]
    assert valve.status_received(P[0], idle=False) == []
    assert valve.holding() == [P[0]]
    for channel in P[1:]:
        assert valve.watermark_received(channel, 9) == []
    assert valve.watermark_received(P[0], 5) == [AdvanceClock(5)]


def test_a_channel_that_wakes_up_makes_no_more_records_late_than_were_when_it_did():
    """In Flink the others would take the clock to 9, and what this one has between 6 and 9 would be late."""
    valve = WatermarkValve(P[:2])
    valve.watermark_received(P[0], 2)
    valve.watermark_received(P[1], 6)
    assert valve.status_received(P[0], idle=True) == [AdvanceClock(6)]
    assert valve.status_received(P[0], idle=False) == []
    assert valve.watermark_received(P[1], 9) == []
    assert valve.watermark_received(P[0], 6) == []
    assert valve.watermark_received(P[0], 8) == [AdvanceClock(8)]


def test_a_watermark_of_an_idle_channel_is_a_promise_all_the_same():
    valve = WatermarkValve(P[:2])
    valve.watermark_received(P[1], 6)
    assert valve.status_received(P[0], idle=True) == [AdvanceClock(6)]
    assert valve.watermark_received(P[0], 7) == []
    assert valve.watermark_received(P[1], 9) == [AdvanceClock(9)]
    assert valve.status_received(P[1], idle=True) == [ChangeStatus(True)]
    assert valve.watermark_received(P[0], 12) == [AdvanceClock(12)], "where all are idle, too"
    assert valve.status_received(P[0], idle=False) == [ChangeStatus(False)]
    assert valve.holding() == [P[0]]


def test_all_idle_is_said_once_and_the_clock_is_then_the_maximum():
    valve = seeds_example()
    for channel in P[1:]:
        valve.status_received(channel, idle=True)
    assert valve.status_received(P[0], idle=True) == [AdvanceClock(6), ChangeStatus(True)]
    assert valve.status_received(P[0], idle=True) == []
    assert valve.status_received(P[2], idle=False) == [ChangeStatus(False)]


def test_ended_channels_hold_nothing_back_and_the_last_one_ends_time():
    valve = seeds_example()
    assert valve.channel_ended(P[0]) == [AdvanceClock(3)]
    for channel in P[1:3]:
        valve.channel_ended(channel)
    assert valve.channel_ended(P[3]) == [AdvanceClock(MAX_WATERMARK)]
    assert not valve.is_idle


def test_a_restored_clock_is_not_said_again_and_does_not_go_back():
    valve = WatermarkValve(P[:1], 10)
    assert valve.watermark_received(P[0], 7) == []
    assert valve.watermark_received(P[0], 12) == [AdvanceClock(12)]


EVENTS = st.lists(
    st.tuples(st.sampled_from(P), st.one_of(st.integers(-50, 50), st.booleans(), st.just("end"))), max_size=40
)


@given(EVENTS)
def test_the_clock_is_the_minimum_of_active_channels_and_monotone(events):
    valve = WatermarkValve(P)
    marks, idle, ended = dict.fromkeys(P, MIN_TIMESTAMP), set(), set()
    for channel, event in events:
        if channel in ended:
            continue
        before = valve.clock_ms
        if event == "end":
            actions = valve.channel_ended(channel)
            ended.add(channel)
            idle.discard(channel)
        elif isinstance(event, bool):
            actions = valve.status_received(channel, idle=event)
            (idle.add if event else idle.discard)(channel)
        else:
            actions = valve.watermark_received(channel, event)
            marks[channel] = max(marks[channel], event)
        active = [marks[c] for c in P if c not in idle and c not in ended]
        told = [a.watermark_ms for a in actions if isinstance(a, AdvanceClock)]
        if active:
            assert valve.clock_ms == max(before, min(active))
        assert told == ([valve.clock_ms] if valve.clock_ms > before else [])
        assert valve.is_idle == (not active and bool(idle))
