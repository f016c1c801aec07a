"""Barrier alignment of one subtask, as a pure state machine: events and the time in, actions out.

It is one process of a Chandy–Lamport snapshot; its variants are Flink's.

| mode           | what a barrier does                                                                              |
|----------------|--------------------------------------------------------------------------------------------------|
| exactly once   | its channel is blocked until all have one, then the checkpoint begins and all go on              |
| at least once  | nothing is blocked; the checkpoint begins when the last channel has its barrier                  |
| unaligned      | the first one begins the checkpoint; what the others bring before their barriers is recorded     |

With a timeout, an exactly-once alignment that takes too long goes on unaligned, and a barrier that waits too long in
its queue overtakes what is ahead of it.

The gate reports what arrives at once (`barrier_arrived`, `end_arrived`) and what it takes from a queue. The subtask
reports, between two batches, the barriers that count (`barrier_received`: taken from its queue, or overtaking), the
ends that were taken, the JobManager's triggers and aborts, and the time.

A channel that has ended has every barrier. One checkpoint is aligned at a time (with at least once, several may be
counted): a newer barrier ends an older alignment, which is declined, unless it is unaligned and has all its barriers;
then it is completed first. Barriers of checkpoints that are over change nothing. If all channels end before the latest
triggered checkpoint's barrier arrives, the trigger begins it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.core.ids import ChannelId
from tidegate.records.elements import CheckpointBarrier


@dataclass(frozen=True, slots=True)
class BlockChannel:
    """Take nothing more from this channel until `UnblockChannels`."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class UnblockChannels:
    """Go on with the channels that were blocked."""

    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class RemoveBarrier:
    """Take this barrier out of its channel's queue: it has overtaken what is ahead of it, without effect."""

    channel: ChannelId
    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Forward the barrier, then snapshot.

    What an unaligned barrier overtakes is part of the checkpoint. `overtaken` has the channels in whose queues it does,
    each with the barrier to take out of the queue, or None: it overtakes everything there.
    """

    barrier: CheckpointBarrier
    overtaken: Mapping[ChannelId, CheckpointBarrier | None] = field(default_factory=dict)
    by_trigger: bool = False
    """Whether the JobManager's trigger begins it, not a barrier."""


@dataclass(frozen=True, slots=True)
class CompleteRecording:
    """Every channel has the barrier of this unaligned checkpoint: its in-flight data is complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AbandonCheckpoint:
    """This checkpoint cannot be taken here any more."""

    checkpoint_id: int
    reason: str


Action = (
    BlockChannel | UnblockChannels | RemoveBarrier | BeginCheckpoint | CompleteRecording | AbandonCheckpoint
)


@dataclass(slots=True)
class ChannelBarriers:
    """The state of one channel with regard to barriers. Only `BarrierAlignment` changes it; the gate reads it."""

    is_blocked: bool = False
    """Nothing is taken from it: its barrier was taken, and other channels wait for theirs."""
    recorded_by: int = 0
    """The unaligned checkpoint that records what arrives, up to its barrier; 0: none."""
    end_arrived: bool = False
    """The end is in the queue: no barrier will arrive."""
    has_ended: bool = False
    """The end was taken: the channel has every barrier."""


class BarrierAlignment:
    """Which of a subtask's channels have the barrier of which checkpoint."""

    def __init__(
        self, channels: Iterable[ChannelId], *, at_least_once: bool = False, timeout_ms: int | None = None
    ) -> None:
        self.channels = {channel: ChannelBarriers() for channel in channels}
        self.timeout_ms = timeout_ms
        """The age at which a barrier goes on unaligned; None: it never does."""
        self._at_least_once = at_least_once
        self._queued: dict[tuple[ChannelId, int], CheckpointBarrier] = {}
        """The barriers in the queues, by channel and checkpoint, in the order in which they arrived."""
        self._overtaking: deque[tuple[ChannelId, CheckpointBarrier]] = deque()
        self._waiting: dict[int, _Waiting] = {}  # more than one with at least once only
        self._recording: _Waiting | None = None
        self._triggered: CheckpointBarrier | None = None
        """The JobManager's latest trigger, until that checkpoint has begun here."""
        self._open = self._ends_to_arrive = len(self.channels)
        self._over = 0
        self._aborted: set[int] = set()
        self._actions: list[Action] = []

    @property
    def is_aligning(self) -> bool:
        """Whether a checkpoint waits for barriers, with channels blocked or not."""
        return bool(self._waiting)

    @property
    def is_due(self) -> bool:
        """Whether `next_overtaking` or `time_passed` may have something to do. Asked in every step of the task."""
        if self._overtaking or self._triggered is not None or self._recording is not None:
            return True
        return self.timeout_ms is not None and bool(self._waiting or self._queued)

    @property
    def deadline_ms(self) -> int | None:
        """When `time_passed` makes a barrier go on unaligned; None: never."""
        if self.timeout_ms is None:
            return None
        barrier: CheckpointBarrier | None = None
        if self._waiting:
            if not self._at_least_once:
                (waiting,) = self._waiting.values()
                barrier = waiting.barrier
        elif self._recording is None:
            if self._queued:
                barrier = next(iter(self._queued.values()))
            elif self._only_ends_follow:
                barrier = self._triggered
        return None if barrier is None else barrier.timestamp_ms + self.timeout_ms

    def is_late(self, barrier: CheckpointBarrier, now_ms: int) -> bool:
        """Whether a barrier is so old that it overtakes."""
        return self.timeout_ms is not None and now_ms - barrier.timestamp_ms >= self.timeout_ms

    # ---- what the gate reports: facts, at any time ----

    def barrier_arrived(self, channel: ChannelId, barrier: CheckpointBarrier) -> bool:
        """A barrier arrived; returns whether it goes into the channel's queue, to mark its place."""
        state, id = self.channels[channel], barrier.checkpoint_id
        if state.recorded_by == id:
            state.recorded_by = 0  # now: what follows may arrive before the subtask looks at the barrier
            self._overtaking.append((channel, barrier))
            return False
        if barrier.unaligned:
            self._overtaking.append((channel, barrier))
        self._queued[channel, id] = barrier
        return True

    def barrier_taken(self, channel: ChannelId, barrier: CheckpointBarrier) -> None:
        """A barrier was taken from its queue in its turn; `barrier_received` follows."""
        self._queued.pop((channel, barrier.checkpoint_id), None)

    def end_arrived(self, channel: ChannelId) -> None:
        """The end of a channel arrived, perhaps after batches that wait."""
        state = self.channels[channel]
        if state.end_arrived:
            return
        state.end_arrived = True
        self._ends_to_arrive -= 1
        if state.recorded_by:
            assert self._recording is not None
            self._recording.missing.discard(channel)
            state.recorded_by = 0

    # ---- what the subtask reports: decisions, between two batches ----

    def next_overtaking(self) -> tuple[ChannelId, CheckpointBarrier] | None:
        """A barrier that does not wait for its turn, and its channel: for `barrier_received`."""
        return self._overtaking.popleft() if self._overtaking else None

    def barrier_received(self, channel: ChannelId, barrier: CheckpointBarrier, now_ms: int) -> list[Action]:
        """A barrier was taken from its queue, or overtakes what is ahead of it there."""
        self._actions = []
        id = barrier.checkpoint_id
        if self._recording is not None and self._recording.barrier.checkpoint_id == id:
            self._recording.missing.discard(channel)
            self.channels[channel].recorded_by = 0
            self._complete_recording()
        elif id > self._over and id not in self._aborted:
            if not self._at_least_once:
                # A channel that skipped a checkpoint (it was aborted further up) will never bring its barrier.
                self._end_older(id)
                self._over = id - 1
            waiting = self._waiting.get(id)
            if waiting is None:
                waiting = self._waiting[id] = _Waiting(barrier, self._not_ended())
            if channel in waiting.missing:
                waiting.missing.remove(channel)
                if barrier.unaligned:
                    # Also if it is the last: it may overtake in its own queue, and must go on overtaking further down.
                    waiting.barrier = barrier
                overtakes = barrier.unaligned or self.is_late(waiting.barrier, now_ms)
                if not waiting.missing or (overtakes and not self._at_least_once):
                    self._begin(waiting, channel)
                elif not self._at_least_once:
                    self.channels[channel].is_blocked = True
                    self._actions.append(BlockChannel(channel))
        stale = self._queued.pop((channel, id), None)
        if stale is not None:
            self._actions.append(RemoveBarrier(channel, stale))
        return self._actions

    def channel_ended(self, channel: ChannelId) -> list[Action]:
        """The end of a channel was taken: no checkpoint waits for it any more."""
        self._actions = []
        self.end_arrived(channel)
        state = self.channels[channel]
        if not state.has_ended:
            state.has_ended = True
            self._open -= 1
        self._complete_recording()
        for waiting in sorted(self._waiting.values(), key=lambda w: w.barrier.checkpoint_id):
            waiting.missing.discard(channel)
            if not waiting.missing:
                self._begin(waiting)
        return self._actions

    def triggered(self, barrier: CheckpointBarrier, now_ms: int) -> list[Action]:
        """The JobManager triggered a checkpoint. While barriers can come, the subtask waits for them."""
        self._actions = []
        if barrier.checkpoint_id > self._over:
            self._triggered = barrier
            self._look_at_trigger(now_ms)
        return self._actions

    def checkpoint_aborted(self, checkpoint_id: int) -> list[Action]:
        """The JobManager aborted a checkpoint: stop waiting for it and ignore its barriers."""
        self._actions = []
        self._aborted.add(checkpoint_id)
        if self._triggered is not None and self._triggered.checkpoint_id == checkpoint_id:
            self._triggered = None
        if self._waiting.pop(checkpoint_id, None) is not None:
            self._unblock()
        self.checkpoint_failed(checkpoint_id)
        return self._actions

    def checkpoint_failed(self, checkpoint_id: int) -> None:
        """A checkpoint that has begun cannot be finished here: stop recording for it."""
        if self._recording is not None and self._recording.barrier.checkpoint_id == checkpoint_id:
            self._end_recording()

    def time_passed(self, now_ms: int) -> list[Action]:
        """Do what is due: look at a trigger, complete a recording, go on unaligned.

        Afterwards `next_overtaking` also returns a queued barrier that is late.
        """
        self._actions = []
        self._look_at_trigger(now_ms)
        self._complete_recording()
        if self._waiting:
            deadline_ms = self.deadline_ms
            if deadline_ms is not None and now_ms >= deadline_ms:
                (waiting,) = self._waiting.values()
                self._begin(waiting)
        elif self._queued and self._recording is None:
            (channel, _), barrier = next(iter(self._queued.items()))
            if self.is_late(barrier, now_ms):
                self._overtaking.append((channel, unaligned(barrier)))
        return self._actions

    # ---- inside ----

    @property
    def _only_ends_follow(self) -> bool:
        """Whether the end of every channel has arrived, but not all were taken: no barrier will arrive."""
        return self._open > 0 and not self._ends_to_arrive

    def _not_ended(self) -> set[ChannelId]:
        return {channel for channel, state in self.channels.items() if not state.has_ended}

    def _look_at_trigger(self, now_ms: int) -> None:
        """Begin the triggered checkpoint if no barrier of it can arrive.

        If only ends can arrive, after batches that wait, an unaligned or late checkpoint does not wait for those.
        """
        barrier = self._triggered
        if barrier is None:
            return
        if self._open:
            if self._ends_to_arrive or not (barrier.unaligned or self.is_late(barrier, now_ms)):
                return
            barrier = unaligned(barrier)
        self._triggered = None
        id = barrier.checkpoint_id
        if id <= self._over or id in self._aborted or id in self._waiting:
            return
        self._begin(_Waiting(barrier, self._not_ended()), by_trigger=True)

    def _begin(
        self, waiting: _Waiting, barrier_of: ChannelId | None = None, by_trigger: bool = False
    ) -> None:
        """Begin a checkpoint: unaligned if channels do not have its barrier yet.

        The barrier that just came, on `barrier_of`, may overtake what waits in its own queue. For each other channel:
        if its barrier is queued, it leaves the queue; if its end is queued, nothing follows; else what arrives is
        recorded.
        """
        id = waiting.barrier.checkpoint_id
        self._end_older(id)
        self._waiting.pop(id, None)
        self._over = id
        self._aborted = {i for i in self._aborted if i > id}
        if self._triggered is not None and self._triggered.checkpoint_id <= id:
            self._triggered = None
        self._unblock()
        overtaken: dict[ChannelId, CheckpointBarrier | None] = {}
        if barrier_of is not None and (queued := self._queued.pop((barrier_of, id), None)) is not None:
            overtaken[barrier_of] = queued
        if waiting.missing:
            waiting.barrier = unaligned(waiting.barrier)
        for channel in sorted(waiting.missing):
            queued = overtaken[channel] = self._queued.pop((channel, id), None)
            if queued is not None:
                if not queued.unaligned:  # else it is among them already
                    self._overtaking.append((channel, queued))
            elif self.channels[channel].end_arrived:
                waiting.missing.discard(channel)
            else:
                self.channels[channel].recorded_by = id
        self._actions.append(BeginCheckpoint(waiting.barrier, overtaken, by_trigger))
        if waiting.barrier.unaligned:
            self._recording = waiting
            self._complete_recording()

    def _unblock(self) -> None:
        blocked = sorted(channel for channel, state in self.channels.items() if state.is_blocked)
        for channel in blocked:
            self.channels[channel].is_blocked = False
        if blocked:
            self._actions.append(UnblockChannels(tuple(blocked)))

    def _complete_recording(self) -> None:
        if self._recording is not None and not self._recording.missing:
            self._actions.append(CompleteRecording(self._recording.barrier.checkpoint_id))
            self._recording = None

    def _end_recording(self) -> None:
        self._recording = None
        for state in self.channels.values():
            state.recorded_by = 0

    def _end_older(self, id: int) -> None:
        """A newer checkpoint has begun to arrive: older ones that miss barriers can no longer be taken here."""
        if self._recording is not None:
            mine = self._recording.barrier.checkpoint_id
            self._recording.missing.difference_update(
                c for c, b in self._overtaking if b.checkpoint_id == mine
            )
            self._complete_recording()
        older = sorted(i for i in self._waiting if i < id)
        for i in older:
            del self._waiting[i]
            self._unblock()
        if self._recording is not None and self._recording.barrier.checkpoint_id < id:
            older.append(self._recording.barrier.checkpoint_id)
            self._end_recording()
        for i in older:
            self._actions.append(
                AbandonCheckpoint(i, f"a barrier of checkpoint {id} came before all of its own")
            )


@dataclass(slots=True)
class _Waiting:
    """A checkpoint and the channels that do not have its barrier yet."""

    barrier: CheckpointBarrier
    missing: set[ChannelId]


def unaligned(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """An unaligned copy of the barrier."""
    return CheckpointBarrier(barrier.checkpoint_id, barrier.timestamp_ms, unaligned=True)
