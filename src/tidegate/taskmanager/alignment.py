"""Barrier alignment of one subtask, as a pure state machine: barriers, ends and the time in, actions out.

| mode           | what a barrier does                                                                              |
|----------------|--------------------------------------------------------------------------------------------------|
| exactly once   | its channel waits until all have one, then the checkpoint begins and all go on                   |
| at least once  | nothing waits; the checkpoint begins when the last channel has its barrier                       |
| unaligned      | the first one begins the checkpoint; until the others have theirs, what they bring is recorded   |

With a timeout an exactly-once alignment that takes too long becomes an unaligned one on the spot, and a barrier that
waits too long in its channel overtakes (`SubtaskCheckpoints` looks after that). A channel that has ended has every
barrier. One checkpoint at a time is aligned (with at least once, several may be counted): a newer
barrier ends an older alignment, which is declined. Barriers of checkpoints that are over change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.core.ids import ChannelId
from tidegate.records.elements import CheckpointBarrier


@dataclass(frozen=True, slots=True)
class BlockChannel:
    """Take nothing more from this channel until `UnblockChannels`."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class UnblockChannels:
    """Go on with all channels."""


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Forward the barrier, then snapshot. `recording`: channels whose barrier is still to come (unaligned only)."""

    barrier: CheckpointBarrier
    recording: frozenset[ChannelId] = frozenset()


@dataclass(frozen=True, slots=True)
class StopRecording:
    """This channel's barrier has come: what follows on it does not belong to the checkpoint."""

    checkpoint_id: int
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class CompleteRecording:
    """Every channel's barrier has come: the in-flight data of the checkpoint is complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """This checkpoint cannot be taken here any more."""

    checkpoint_id: int
    reason: str


Action = (
    BlockChannel | UnblockChannels | BeginCheckpoint | StopRecording | CompleteRecording | DeclineCheckpoint
)


class BarrierAlignment:
    """Which of a subtask's channels have the barrier of which checkpoint."""

    def __init__(
        self, channels: Iterable[ChannelId], *, at_least_once: bool = False, timeout_ms: int | None = None
    ) -> None:
        self._open = set(channels)
        self._at_least_once = at_least_once
        self._timeout_ms = timeout_ms
        self._waiting: dict[int, _Waiting] = {}  # more than one with at least once only
        self._recording: _Waiting | None = None
        self._over = 0
        self._aborted: set[int] = set()
        self._blocked = False
        self._actions: list[Action] = []

    @property
    def is_aligning(self) -> bool:
        """Whether a checkpoint waits for barriers, with channels blocked or not."""
        return bool(self._waiting)

    @property
    def is_free(self) -> bool:
        """Whether no checkpoint waits for barriers, to begin or to have all of its in-flight data."""
        return not self._waiting and self._recording is None

    @property
    def deadline_ms(self) -> int | None:
        """When `time_passed` turns the alignment into an unaligned one; None: never."""
        if self._timeout_ms is None or self._at_least_once or not self._waiting:
            return None
        (waiting,) = self._waiting.values()
        return waiting.barrier.timestamp_ms + self._timeout_ms

    def barrier_received(self, channel: ChannelId, barrier: CheckpointBarrier, now_ms: int) -> list[Action]:
        """A barrier reached the front of its channel; an unaligned one, or one of a recorded channel, the gate."""
        self._actions = []
        id = barrier.checkpoint_id
        recording = self._recording
        if recording is not None and recording.barrier.checkpoint_id == id:
            self._has(recording, channel)
        elif id > self._over and id not in self._aborted:
            if not self._at_least_once:
                # A channel that skipped a checkpoint (it was aborted further up) will never bring its barrier.
                self._end_older(id)
                self._over = id - 1
            waiting = self._waiting.get(id)
            if waiting is None:
                waiting = self._waiting[id] = _Waiting(barrier, set())
            if channel not in waiting.have:
                waiting.have.add(channel)
                self._look(waiting, channel, barrier.unaligned, now_ms)
        return self._actions

    def channel_ended(self, channel: ChannelId, now_ms: int) -> list[Action]:
        """Nothing follows on a channel: it holds nobody up any more."""
        self._actions = []
        self._open.discard(channel)
        if self._recording is not None:
            self._has(self._recording, channel)
        for waiting in sorted(self._waiting.values(), key=lambda w: w.barrier.checkpoint_id):
            if waiting.have >= self._open:
                self._begin(waiting)
        return self._actions

    def triggered(self, barrier: CheckpointBarrier) -> list[Action]:
        """The JobManager began a checkpoint here itself: the subtask is a source, or all its channels have ended.

        With an unaligned barrier, also if the end of every channel has come but waits behind batches.
        """
        self._actions = []
        id = barrier.checkpoint_id
        if id > self._over and id not in self._aborted and id not in self._waiting:
            if self._open and barrier.unaligned:
                self._end_older(id)
                self._begin_unaligned(_Waiting(barrier, set()))
            else:
                self._begin(_Waiting(barrier, set()))
        return self._actions

    def checkpoint_aborted(self, checkpoint_id: int) -> list[Action]:
        """The JobManager gave a checkpoint up: stop waiting for it and ignore its barriers."""
        self._actions = []
        self._aborted.add(checkpoint_id)
        if self._waiting.pop(checkpoint_id, None) is not None:
            self._unblock()
        if self._recording is not None and self._recording.barrier.checkpoint_id == checkpoint_id:
            self._recording = None
        return self._actions

    def time_passed(self, now_ms: int) -> list[Action]:
        """Go on unaligned if the alignment has taken too long."""
        self._actions = []
        deadline_ms = self.deadline_ms
        if deadline_ms is not None and now_ms >= deadline_ms:
            (waiting,) = self._waiting.values()
            self._begin_unaligned(waiting)
        return self._actions

    # ---- inside ----

    def _look(self, waiting: _Waiting, channel: ChannelId, overtook: bool, now_ms: int) -> None:
        late = self._timeout_ms is not None and now_ms - waiting.barrier.timestamp_ms >= self._timeout_ms
        if waiting.have >= self._open:
            # No channel is recorded, but this barrier may have overtaken what waits in its own, and what overtook
            # further up must go on overtaking further down.
            if overtook:
                waiting.barrier = unaligned(waiting.barrier)
            self._begin(waiting)
        elif self._at_least_once:
            pass
        elif overtook or late:
            self._begin_unaligned(waiting)
        else:
            self._blocked = True
            self._actions.append(BlockChannel(channel))

    def _begin(self, waiting: _Waiting) -> None:
        id = waiting.barrier.checkpoint_id
        self._end_older(id)
        self._take(id)
        self._actions.append(BeginCheckpoint(waiting.barrier))
        if waiting.barrier.unaligned:
            self._actions.append(CompleteRecording(id))

    def _begin_unaligned(self, waiting: _Waiting) -> None:
        id = waiting.barrier.checkpoint_id
        waiting.barrier = unaligned(waiting.barrier)
        self._take(id)
        self._recording = waiting
        self._actions.append(BeginCheckpoint(waiting.barrier, frozenset(self._open - waiting.have)))

    def _take(self, id: int) -> None:
        """It begins now: nothing waits for it any more, and what is not newer is over."""
        self._waiting.pop(id, None)
        self._over = id
        self._aborted = {i for i in self._aborted if i > id}
        self._unblock()

    def _unblock(self) -> None:
        if self._blocked:
            self._blocked = False
            self._actions.append(UnblockChannels())

    def _has(self, recording: _Waiting, channel: ChannelId) -> None:
        if channel not in recording.have:
            recording.have.add(channel)
            self._actions.append(StopRecording(recording.barrier.checkpoint_id, channel))
        if recording.have >= self._open:
            self._recording = None
            self._actions.append(CompleteRecording(recording.barrier.checkpoint_id))

    def _end_older(self, id: int) -> None:
        """A newer checkpoint has begun to arrive: what is older can no longer be taken here."""
        for older in sorted(i for i in self._waiting if i < id):
            del self._waiting[older]
            self._unblock()
            self._actions.append(
                DeclineCheckpoint(older, f"a barrier of checkpoint {id} came before all of its own")
            )
        if self._recording is not None and self._recording.barrier.checkpoint_id < id:
            older = self._recording.barrier.checkpoint_id
            self._recording = None
            self._actions.append(
                DeclineCheckpoint(older, f"a barrier of checkpoint {id} came before all of its own")
            )


@dataclass(slots=True)
class _Waiting:
    barrier: CheckpointBarrier
    have: set[ChannelId]


def unaligned(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """The same, from where it begins to overtake."""
    return CheckpointBarrier(barrier.checkpoint_id, barrier.timestamp_ms, unaligned=True)
