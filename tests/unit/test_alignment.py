"""Barrier alignment: which channel waits, when the checkpoint begins, what is recorded, and that nothing gets stuck."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.ids import ChannelId, EdgeId
from tidegate.records.elements import CheckpointBarrier
from tidegate.taskmanager.barriers.alignment import (
    AbandonCheckpoint,
    Action,
    BarrierAlignment,
    BeginCheckpoint,
    BlockChannel,
    CompleteRecording,
    RemoveBarrier,
    UnblockChannels,
)


def channels(n: int) -> list[ChannelId]:
    return [ChannelId(EdgeId(0), i, 0) for i in range(n)]


def barrier(id: int, *, unaligned: bool = False, at_ms: int = 0) -> CheckpointBarrier:
    return CheckpointBarrier(id, at_ms, unaligned)


def begun(actions: list[Action]) -> list[int]:
    return [a.barrier.checkpoint_id for a in actions if isinstance(a, BeginCheckpoint)]


def recorded(alignment: BarrierAlignment) -> set[ChannelId]:
    return {channel for channel, state in alignment.channels.items() if state.recorded_by}


def test_a_barriered_channel_waits_until_all_have_the_barrier() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    assert alignment.barrier_received(a, barrier(1), 0) == [BlockChannel(a)]
    assert alignment.is_aligning
    assert alignment.channels[a].is_blocked
    assert alignment.barrier_received(b, barrier(1), 5) == [
        UnblockChannels((a,)),
        BeginCheckpoint(barrier(1)),
    ]
    assert not alignment.is_aligning
    assert not alignment.channels[a].is_blocked


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
    assert alignment.barrier_received(a, first, 0) == [BeginCheckpoint(first, {b: None, c: None})]
    assert recorded(alignment) == {b, c}
    assert not alignment.barrier_arrived(b, first), "what is ahead of it is recorded: it needs no place"
    assert recorded(alignment) == {c}, "at once: what follows may arrive before the subtask looks at it"
    assert alignment.next_overtaking() == (b, first)
    assert alignment.barrier_received(b, first, 0) == []
    assert alignment.channel_ended(c) == [CompleteRecording(1)]
    assert recorded(alignment) == set()


def test_an_alignment_that_takes_too_long_goes_on_unaligned() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b], timeout_ms=100)
    assert alignment.barrier_received(a, barrier(1, at_ms=10), 20) == [BlockChannel(a)]
    assert alignment.deadline_ms == 110
    assert alignment.time_passed(109) == []
    late = barrier(1, unaligned=True, at_ms=10)
    assert alignment.time_passed(110) == [UnblockChannels((a,)), BeginCheckpoint(late, {b: None})]
    assert alignment.deadline_ms is None
    assert alignment.barrier_received(b, barrier(1, at_ms=10), 120) == [CompleteRecording(1)]


def test_a_barrier_that_arrives_too_old_starts_unaligned() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b], timeout_ms=100)
    late = barrier(1, unaligned=True, at_ms=10)
    assert alignment.barrier_received(a, barrier(1, at_ms=10), 200) == [BeginCheckpoint(late, {b: None})]


def test_the_end_of_a_channel_counts_as_its_barrier_and_unblocks() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1), 0)
    assert alignment.channel_ended(b) == [UnblockChannels((a,)), BeginCheckpoint(barrier(1))]


def test_a_newer_barrier_ends_the_older_alignment() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1), 0)
    actions = alignment.barrier_received(b, barrier(2), 0)
    assert actions[0] == UnblockChannels((a,))
    assert isinstance(actions[1], AbandonCheckpoint)
    assert actions[1].checkpoint_id == 1
    assert actions[2] == BlockChannel(b)
    assert begun(alignment.barrier_received(a, barrier(2), 0)) == [2]


def test_an_aborted_checkpoint_unblocks_and_its_late_barriers_change_nothing() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1), 0)
    assert alignment.checkpoint_aborted(1) == [UnblockChannels((a,))]
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
    assert alignment.triggered(barrier(1), 0) == [BeginCheckpoint(barrier(1), by_trigger=True)]
    assert alignment.triggered(barrier(1), 0) == []


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
    now_ms = 0

    def perform(actions: list[Action]) -> None:
        for action in actions:
            match action:
                case BlockChannel(channel):
                    blocked.add(channel)
                case UnblockChannels(unblocked):
                    blocked.difference_update(unblocked)
                case BeginCheckpoint(found):
                    begins.append(found.checkpoint_id)
                case CompleteRecording():
                    assert not recorded(alignment)

    def pick(number: int) -> bool:
        ready = [c for c in ids if queues[c] and c not in blocked]
        if not ready:
            return False
        channel = ready[number % len(ready)]
        element = queues[channel].popleft()
        if element is None:
            perform(alignment.channel_ended(channel))
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
    assert alignment.barrier_received(b, barrier(2), 0) == [
        UnblockChannels((a,)),
        BeginCheckpoint(barrier(2)),
    ]


def test_a_trigger_counts_although_a_newer_checkpoint_was_aborted() -> None:
    alignment = BarrierAlignment([])
    alignment.checkpoint_aborted(2)
    assert begun(alignment.triggered(barrier(1), 0)) == [1]
    assert begun(alignment.triggered(barrier(2), 0)) == []


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
                case UnblockChannels(unblocked):
                    blocked.difference_update(unblocked)
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
            perform(alignment.channel_ended(channel))
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


def test_a_barrier_that_overtakes_without_effect_leaves_its_queue() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.checkpoint_aborted(1)
    late = barrier(1, unaligned=True)
    assert alignment.barrier_arrived(a, late)
    assert alignment.next_overtaking() == (a, late)
    assert alignment.barrier_received(a, late, 0) == [RemoveBarrier(a, late)]
    assert not alignment.is_due


def test_a_barrier_that_waits_too_long_in_its_queue_overtakes() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b], timeout_ms=100)
    assert alignment.barrier_arrived(a, barrier(1, at_ms=10))
    assert alignment.deadline_ms == 110
    assert alignment.time_passed(109) == []
    assert alignment.next_overtaking() is None
    assert alignment.time_passed(110) == []
    late = barrier(1, unaligned=True, at_ms=10)
    assert alignment.next_overtaking() == (a, late)
    assert alignment.barrier_received(a, late, 110) == [
        BeginCheckpoint(late, {a: barrier(1, at_ms=10), b: None})
    ]


def test_an_unaligned_checkpoint_takes_queued_barriers_out_and_needs_nothing_of_a_channel_whose_end_arrived() -> (
    None
):
    a, b, c = channels(3)
    alignment = BarrierAlignment([a, b, c])
    first = barrier(1, unaligned=True)
    assert alignment.barrier_arrived(b, barrier(1))
    alignment.end_arrived(c)
    assert alignment.barrier_arrived(a, first)
    assert alignment.next_overtaking() == (a, first)
    assert alignment.barrier_received(a, first, 0) == [
        BeginCheckpoint(first, {a: first, b: barrier(1), c: None})
    ]
    assert recorded(alignment) == set()
    assert alignment.next_overtaking() == (b, barrier(1))
    assert alignment.barrier_received(b, barrier(1), 0) == [CompleteRecording(1)]


def test_the_end_of_a_recorded_channel_completes_the_recording_when_the_subtask_looks() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1, unaligned=True), 0)
    alignment.end_arrived(b)
    assert recorded(alignment) == set()
    assert alignment.is_due
    assert alignment.time_passed(0) == [CompleteRecording(1)]
    assert not alignment.is_due


@pytest.mark.parametrize("last", ["end", "barrier"])
@pytest.mark.parametrize("newer", ["barrier", "trigger"])
def test_a_newer_checkpoint_declines_no_older_one_that_has_all_its_barriers(last: str, newer: str) -> None:
    """What completes it has arrived, but the subtask has not looked yet when the newer one comes."""
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1, unaligned=True), 0)
    assert recorded(alignment) == {b}
    if last == "barrier":
        assert not alignment.barrier_arrived(b, barrier(1, unaligned=True))
    alignment.end_arrived(b)
    if newer == "barrier":
        actions = alignment.barrier_received(a, barrier(2, unaligned=True), 0)
    else:
        alignment.end_arrived(a)
        actions = alignment.triggered(barrier(2, unaligned=True), 0)
    assert actions[0] == CompleteRecording(1)
    assert begun(actions) == [2]
    assert not any(isinstance(action, AbandonCheckpoint) for action in actions)
    while (overtaking := alignment.next_overtaking()) is not None:
        assert alignment.barrier_received(*overtaking, 0) == []


def test_a_queued_barrier_that_a_checkpoint_took_along_counts_before_a_newer_one() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_arrived(b, barrier(1))
    for id in (1, 2):
        alignment.barrier_arrived(a, barrier(id, unaligned=True))
    found: list[Action] = []
    while (overtaking := alignment.next_overtaking()) is not None:
        found += alignment.barrier_received(*overtaking, 0)
    assert begun(found) == [1, 2]
    assert CompleteRecording(1) in found
    assert not any(isinstance(action, AbandonCheckpoint) for action in found)


def test_a_checkpoint_that_fails_here_records_nothing_more() -> None:
    a, b = channels(2)
    alignment = BarrierAlignment([a, b])
    alignment.barrier_received(a, barrier(1, unaligned=True), 0)
    alignment.checkpoint_failed(1)
    assert recorded(alignment) == set()
    assert alignment.barrier_received(b, barrier(1, unaligned=True), 0) == []


def test_a_trigger_waits_for_barriers_and_begins_when_only_ends_follow_and_it_may_overtake() -> None:
    a, b = channels(2)
    for triggered, at_ms in ((barrier(1, unaligned=True), 0), (barrier(1), 100)):
        alignment = BarrierAlignment([a, b], timeout_ms=100)
        assert alignment.triggered(triggered, 0) == []
        alignment.end_arrived(a)
        assert alignment.time_passed(at_ms) == [], "a barrier may still come on the other channel"
        alignment.end_arrived(b)
        assert alignment.time_passed(at_ms) == [
            BeginCheckpoint(barrier(1, unaligned=True), {a: None, b: None}, by_trigger=True),
            CompleteRecording(1),
        ]


def test_an_aligned_trigger_begins_when_all_channels_have_ended() -> None:
    (a,) = channels(1)
    alignment = BarrierAlignment([a])
    assert alignment.triggered(barrier(1), 0) == []
    alignment.end_arrived(a)
    assert alignment.time_passed(0) == []
    assert alignment.channel_ended(a) == []
    assert alignment.time_passed(0) == [BeginCheckpoint(barrier(1), by_trigger=True)]


class Gate:
    """A gate and a subtask as plain lists: performs what the alignment decides, and notes what each checkpoint has."""

    def __init__(self, sent: dict[ChannelId, list[object]], mode: str) -> None:
        self.alignment = BarrierAlignment(
            sent, at_least_once=mode == "at_least_once", timeout_ms=30 if mode == "timeout" else None
        )
        self.mode = mode
        self.sent = sent
        self.to_arrive = {channel: deque(elements) for channel, elements in sent.items()}
        self.queues: dict[ChannelId, list[object]] = {channel: [] for channel in sent}
        self.processed: dict[ChannelId, list[object]] = {channel: [] for channel in sent}
        self.in_checkpoint: dict[int, dict[ChannelId, list[object]]] = {}
        """By checkpoint and channel the records that it covers: processed, overtaken or recorded."""
        self.begun: list[int] = []
        self.complete: list[int] = []
        self.given_up: set[int] = set()
        self.now_ms = 0

    def arrive(self, channel: ChannelId) -> None:
        if not self.to_arrive[channel]:
            return
        element = self.to_arrive[channel].popleft()
        if isinstance(element, CheckpointBarrier):
            if not self.alignment.barrier_arrived(channel, element):
                return
        elif element == "end":
            self.alignment.end_arrived(channel)
        elif by := self.alignment.channels[channel].recorded_by:
            self.in_checkpoint[by][channel].append(element)
        self.queues[channel].append(element)

    def look(self) -> None:
        """What a subtask does before each batch."""
        self.overtake()
        self.perform(self.alignment.time_passed(self.now_ms))
        self.overtake()

    def overtake(self) -> None:
        while (found := self.alignment.next_overtaking()) is not None:
            self.perform(self.alignment.barrier_received(*found, self.now_ms))

    def take(self, number: int) -> bool:
        self.look()
        states = self.alignment.channels
        ready = [c for c, queue in self.queues.items() if queue and not states[c].is_blocked]
        if not ready:
            return False
        channel = ready[number % len(ready)]
        element = self.queues[channel].pop(0)
        if isinstance(element, CheckpointBarrier):
            self.alignment.barrier_taken(channel, element)
            self.perform(self.alignment.barrier_received(channel, element, self.now_ms))
        elif element == "end":
            self.perform(self.alignment.channel_ended(channel))
        else:
            self.processed[channel].append(element)
        return True

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case RemoveBarrier(channel, found):
                    self.queues[channel].remove(found)
                case BeginCheckpoint(found, overtaken):
                    self.begin(found, overtaken)
                case CompleteRecording(id):
                    self.check(id)
                case AbandonCheckpoint(id):
                    self.given_up.add(id)

    def abort(self, id: int) -> None:
        self.given_up.add(id)
        self.perform(self.alignment.checkpoint_aborted(id))

    def begin(
        self, found: CheckpointBarrier, overtaken: Mapping[ChannelId, CheckpointBarrier | None]
    ) -> None:
        id = found.checkpoint_id
        self.begun.append(id)
        has = self.in_checkpoint[id] = {channel: list(done) for channel, done in self.processed.items()}
        for channel, queued in overtaken.items():
            queue = self.queues[channel]
            ahead = queue if queued is None else queue[: queue.index(queued)]
            has[channel] += [e for e in ahead if isinstance(e, int)]
            if queued is not None:
                queue.remove(queued)
        if not found.unaligned:
            assert not overtaken
            self.check(id)

    def check(self, id: int) -> None:
        """The checkpoint has exactly what came before its barrier; where none comes, all that the channel has."""
        self.complete.append(id)
        for channel, elements in self.sent.items():
            cut = next(
                (
                    i
                    for i, e in enumerate(elements)
                    if isinstance(e, CheckpointBarrier) and e.checkpoint_id == id
                ),
                len(elements),
            )
            before = [e for e in elements[:cut] if isinstance(e, int)]
            has = self.in_checkpoint[id][channel]
            assert has[: len(before)] == before
            assert self.mode == "at_least_once" or len(has) == len(before)


@given(
    st.sampled_from(["aligned", "at_least_once", "unaligned", "timeout"]),
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=4), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(["arrive", "take", "abort", "trigger"]), st.integers(0, 99))),
)
def test_a_checkpoint_has_exactly_what_came_before_its_barriers_in_every_order(
    mode: str, plan: list[list[tuple[int, int]]], events: list[tuple[str, int]]
) -> None:
    """`plan`: per channel and checkpoint, how many records precede the barrier, and 0 if the channel skips it."""
    sent: dict[ChannelId, list[object]] = {}
    for channel, parts in zip(channels(len(plan)), plan, strict=True):
        elements: list[object] = []
        for i, (records, has_barrier) in enumerate(parts):
            elements += range(10 * i, 10 * i + records)
            if has_barrier:
                overtakes = mode == "unaligned" or (mode == "timeout" and has_barrier == 3)
                elements.append(barrier(i + 1, unaligned=overtakes, at_ms=10 * i))
        sent[channel] = [*elements, 99, "end"]
    gate = Gate(sent, mode)
    ids = list(sent)
    triggered = 0
    for event, number in events:
        gate.now_ms += number % 9
        match event:
            case "arrive":
                gate.arrive(ids[number % len(ids)])
            case "take":
                gate.take(number)
            case "abort":
                gate.abort(1 + number % 4)
            case "trigger":
                triggered += 1
                found = barrier(triggered, unaligned=mode == "unaligned", at_ms=10 * triggered - 10)
                gate.perform(gate.alignment.triggered(found, gate.now_ms))
    for channel in ids:
        while gate.to_arrive[channel]:
            gate.arrive(channel)
    while gate.take(0):
        pass
    gate.look()
    assert not any(gate.queues.values()), "no channel stays blocked"
    assert not gate.alignment.is_aligning
    assert not recorded(gate.alignment)
    assert gate.begun == sorted(set(gate.begun))
    assert set(gate.begun) <= set(gate.complete) | gate.given_up
    assert gate.processed == {c: [e for e in elements if isinstance(e, int)] for c, elements in sent.items()}
    assert gate.alignment.deadline_ms is None
    whole = all(has for parts in plan for _, has in parts) and len({len(parts) for parts in plan}) == 1
    if mode in ("aligned", "at_least_once") and whole and all(e in ("arrive", "take") for e, _ in events):
        assert gate.complete == list(range(1, 1 + len(plan[0])))
