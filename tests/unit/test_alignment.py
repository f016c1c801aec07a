"""Barrier alignment: which channel waits, when the checkpoint begins, what is recorded, and that nothing gets stuck."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.ids import ChannelId, EdgeId
from tidegate.records.elements import CheckpointBarrier
from tidegate.taskmanager.alignment import (
    Action,
    BarrierAlignment,
    BeginCheckpoint,
    BlockChannel,
    CompleteRecording,
    DeclineCheckpoint,
    StopRecording,
    UnblockChannels,
)


def channels(n: int) -> list[ChannelId]:
    return [ChannelId(EdgeId(0), i, 0) for i in range(n)]


def barrier(id: int, *, unaligned: bool = False, at_ms: int = 0) -> CheckpointBarrier:
    return CheckpointBarrier(id, at_ms, unaligned)


def begun(actions: list[Action]) -> list[int]:
    return [a.barrier.checkpoint_id for a in actions if isinstance(a, BeginCheckpoint)]


def test_a_barriered_channel_waits_until_all_have_the_barrier() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    assert alignment.barrier_received(a, barrier(1), 0) == [BlockChannel(a)]
    assert alignment.is_aligning
    assert alignment.barrier_received(b, barrier(1), 5) == [UnblockChannels(), BeginCheckpoint(barrier(1))]
    assert not alignment.is_aligning


def test_a_single_channel_never_waits() -> None:
    (a,) = channels(1)
    assert BarrierAlignment([a]).barrier_received(a, barrier(1), 0) == [BeginCheckpoint(barrier(1))]


def test_at_least_once_never_blocks() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b], at_least_once=True)
    assert alignment.barrier_received(a, barrier(1), 0) == []
    assert alignment.barrier_received(a, barrier(2), 0) == []
    assert alignment.barrier_received(b, barrier(1), 0) == [BeginCheckpoint(barrier(1))]
    assert alignment.barrier_received(b, barrier(2), 0) == [BeginCheckpoint(barrier(2))]


def test_an_unaligned_barrier_begins_at_once_and_records_the_others() -> None:
    a, b, c = channels(3)
    alignment = BarrierAlignment([a, b, c])
    first = barrier(1, unaligned=True)
    assert alignment.barrier_received(a, first, 0) == [BeginCheckpoint(first, frozenset({b, c}))]
    assert alignment.barrier_received(b, first, 0) == [StopRecording(1, b)]
    assert alignment.channel_ended(c, 0) == [StopRecording(1, c), CompleteRecording(1)]


def test_an_alignment_that_takes_too_long_goes_on_unaligned() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b], timeout_ms=100)
    assert alignment.barrier_received(a, barrier(1, at_ms=10), 20) == [BlockChannel(a)]
    assert alignment.deadline_ms == 110
    assert alignment.time_passed(109) == []
    late = barrier(1, unaligned=True, at_ms=10)
    assert alignment.time_passed(110) == [UnblockChannels(), BeginCheckpoint(late, frozenset({b}))]
    assert alignment.deadline_ms is None
    assert alignment.barrier_received(b, barrier(1, at_ms=10), 120) == [
        StopRecording(1, b),
        CompleteRecording(1),
    ]


def test_a_barrier_that_arrives_too_old_starts_unaligned() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b], timeout_ms=100)
    late = barrier(1, unaligned=True, at_ms=10)
    assert alignment.barrier_received(a, barrier(1, at_ms=10), 200) == [BeginCheckpoint(late, frozenset({b}))]


def test_the_end_of_a_channel_counts_as_its_barrier_and_unblocks() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1), 0)
    assert alignment.channel_ended(b, 0) == [UnblockChannels(), BeginCheckpoint(barrier(1))]


def test_a_newer_barrier_ends_the_older_alignment() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1), 0)
    actions = alignment.barrier_received(b, barrier(2), 0)
    assert actions[0] == UnblockChannels()
    assert isinstance(actions[1], DeclineCheckpoint)
    assert actions[1].checkpoint_id == 1
    assert actions[2] == BlockChannel(b)
    assert begun(alignment.barrier_received(a, barrier(2), 0)) == [2]


def test_an_aborted_checkpoint_unblocks_and_its_late_barriers_change_nothing() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1), 0)
    assert alignment.checkpoint_aborted(1) == [UnblockChannels()]
    assert alignment.barrier_received(b, barrier(1), 0) == []
    assert alignment.checkpoint_aborted(1) == []
    alignment.barrier_received(a, barrier(2), 0)
    assert begun(alignment.barrier_received(b, barrier(2), 0)) == [2]


def test_aborting_a_newer_checkpoint_leaves_the_older_alignment_alone() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1), 0)
    assert alignment.checkpoint_aborted(2) == []
    assert begun(alignment.barrier_received(b, barrier(1), 0)) == [1]


def test_a_repeated_or_old_barrier_changes_nothing() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(2), 0)
    assert alignment.barrier_received(a, barrier(2), 0) == []
    alignment.barrier_received(b, barrier(2), 0)
    assert alignment.barrier_received(a, barrier(1), 0) == []


def test_a_trigger_begins_where_no_barrier_can_come() -> None:
    alignment = BarrierAlignment([])
    assert alignment.triggered(barrier(1)) == [BeginCheckpoint(barrier(1))]
    assert alignment.triggered(barrier(1)) == []


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(["aligned", "at_least_once", "unaligned", "timeout"]),
    st.lists(st.integers(0, 100), max_size=60),
    st.sets(st.integers(1, 5)),
)
def test_no_order_of_events_leaves_a_channel_blocked_or_begins_a_checkpoint_twice(
    n: int, last: int, mode: str, picks: list[int], aborted: set[int]
) -> None:
    """Every channel has barriers 1 to `last`, then its end, in order; aborts come at any time."""
    ids = channels(n)
    alignment = BarrierAlignment(
        ids, at_least_once=mode == "at_least_once", timeout_ms=30 if mode == "timeout" else None
    )
    queues = {c: deque([*range(1, last + 1), None]) for c in ids}
    aborts = deque(sorted(aborted))
    blocked: set[ChannelId] = set()
    begins: list[int] = []
    recording: dict[int, set[ChannelId]] = {}
    now_ms = 0

    def perform(actions: list[Action]) -> None:
        for action in actions:
            match action:
                case BlockChannel(channel):
                    blocked.add(channel)
                case UnblockChannels():
                    blocked.clear()
                case BeginCheckpoint(found, channels_left):
                    begins.append(found.checkpoint_id)
                    recording[found.checkpoint_id] = set(channels_left)
                case StopRecording(id, channel):
                    recording[id].discard(channel)
                case CompleteRecording(id):
                    assert not recording[id]
                case DeclineCheckpoint():
                    pass

    def pick(number: int) -> bool:
        ready = [c for c in ids if queues[c] and c not in blocked]
        if not ready:
            return False
        channel = ready[number % len(ready)]
        element = queues[channel].popleft()
        if element is None:
            perform(alignment.channel_ended(channel, now_ms))
        else:
            perform(
                alignment.barrier_received(channel, barrier(element, unaligned=mode == "unaligned"), now_ms)
            )
        return True

    for number in picks:
        now_ms += number % 7
        perform(alignment.time_passed(now_ms))
        if number % 11 == 0 and aborts:
            perform(alignment.checkpoint_aborted(aborts.popleft()))
        else:
            pick(number)
    while pick(0):
        pass
    assert not blocked
    assert not any(queues.values())
    assert not alignment.is_aligning
    assert begins == sorted(set(begins))
    if not aborted and (mode == "at_least_once" or n == 1):
        assert begins == list(range(1, last + 1))


def test_an_older_barrier_cannot_join_a_newer_alignment() -> None:
    """Channel a skipped checkpoint 1 (it was aborted further up); the abort reaches this subtask late."""
    a, b = channels(2)
    alignment = BarrierAlignment([a, b], timeout_ms=100)
    assert alignment.barrier_received(a, barrier(2), 0) == [BlockChannel(a)]
    assert alignment.barrier_received(b, barrier(1), 0) == []
    assert alignment.checkpoint_aborted(1) == []
    assert alignment.deadline_ms == 100
    assert alignment.barrier_received(b, barrier(2), 0) == [UnblockChannels(), BeginCheckpoint(barrier(2))]


def test_a_trigger_counts_although_a_newer_checkpoint_was_aborted() -> None:
    alignment = BarrierAlignment([])
    alignment.checkpoint_aborted(2)
    assert begun(alignment.triggered(barrier(1))) == [1]
    assert begun(alignment.triggered(barrier(2))) == []


@given(
    st.integers(2, 4),
    st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=5),
    st.lists(st.integers(0, 99)),
)
def test_an_aligned_cut_never_has_a_record_from_behind_its_barrier(
    n: int, skipped: list[set[int]], picks: list[int]
) -> None:
    """Checkpoint i is skipped by the channels in `skipped[i]`, then aborted; the aborts come at any time."""
    ids = channels(n)
    alignment = BarrierAlignment(ids)
    last = len(skipped)
    queues = {
        c: deque([*(i + 1 for i in range(last) if j not in skipped[i]), None]) for j, c in enumerate(ids)
    }
    aborts = deque(i + 1 for i in range(last) if any(j < n for j in skipped[i]))
    newest = dict.fromkeys(ids, 0)
    blocked: set[ChannelId] = set()
    ended: set[ChannelId] = set()

    def perform(actions: list[Action]) -> None:
        for action in actions:
            match action:
                case BlockChannel(channel):
                    blocked.add(channel)
                case UnblockChannels():
                    blocked.clear()
                case BeginCheckpoint(found):
                    assert all(newest[c] == found.checkpoint_id for c in ids if c not in ended)

    def pick(number: int) -> bool:
        ready = [c for c in ids if queues[c] and c not in blocked]
        if not ready:
            return False
        channel = ready[number % len(ready)]
        element = queues[channel].popleft()
        if element is None:
            ended.add(channel)
            perform(alignment.channel_ended(channel, 0))
        else:
            newest[channel] = element
            perform(alignment.barrier_received(channel, barrier(element), 0))
        return True

    for number in picks:
        if number % 5 == 0 and aborts:
            perform(alignment.checkpoint_aborted(aborts.popleft()))
        else:
            pick(number)
    while aborts:
        perform(alignment.checkpoint_aborted(aborts.popleft()))
    while pick(0):
        pass
    assert not blocked
    assert not any(queues.values())
