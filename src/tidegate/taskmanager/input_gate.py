"""The input gate of a subtask: the queues of its channels, served in turn. Mailbox thread only.

The alignment decides about barriers; the gate reports to it what arrives and what is taken, and performs its decisions
on the queues. A barrier, even one that overtakes, marks its place in its queue until the alignment removes it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from tidegate.core.ids import ChannelId
from tidegate.records.batch import Batch
from tidegate.records.elements import CheckpointBarrier, EndOfInput
from tidegate.records.wire import Event
from tidegate.taskmanager.barriers.alignment import BarrierAlignment, BeginCheckpoint, ChannelBarriers
from tidegate.taskmanager.barriers.in_flight import OvertakenBatch, overtaken
from tidegate.taskmanager.credits import ReceiverCredits


class InputGate:
    """All channels into one subtask."""

    def __init__(
        self,
        channels: dict[ChannelId, int],
        exclusive: int,
        floating: int,
        grant: Callable[[ChannelId, int], None],
        alignment: BarrierAlignment,
    ) -> None:
        """`channels` with the input of each; `grant` gives credits to a channel's sender."""
        self.alignment = alignment
        self._grant = grant
        self._credits = ReceiverCredits(list(channels), exclusive, floating)
        self._channels = {c: _Channel(c, i, alignment.channels[c]) for c, i in channels.items()}
        self._ready: deque[_Channel] = deque()
        self._restored: deque[tuple[ChannelId, Batch]] = deque()
        self._recorded: list[OvertakenBatch] = []
        self._aligned_records = 0
        self._open = Counter(channels.values())
        """How many channels of each input have not ended."""
        self.last_batch: ChannelId | None = None
        """The channel of the batch that was taken last."""
        self.backlog = 0
        self.bytes_in = 0

    def initial_credits(self) -> dict[ChannelId, int]:
        """The credits that each sender starts with."""
        return self._credits.initial()

    def receive(self, id: ChannelId, element: Batch | Event, backlog: int) -> None:
        channel = self._channels[id]
        grants: dict[ChannelId, int] | None = None
        if isinstance(element, Batch):
            grants = self._credits.batch_received(id, backlog)
            self.backlog += 1
            if channel.barriers.recorded_by:
                self._recorded += overtaken("in", id, [element])  # now: processing may change its rows
        elif isinstance(element, CheckpointBarrier):
            if not self.alignment.barrier_arrived(id, element):
                return
        elif isinstance(element, EndOfInput):
            self.alignment.end_arrived(id)
        if not channel.queue and not channel.barriers.is_blocked:
            self._ready.append(channel)
        channel.queue.append(element)
        if grants:  # last: a local sender sends at once, and its elements must come after this one
            self._grant_all(grants)

    def poll(self) -> tuple[int, ChannelId, Batch | Event] | None:
        """The next element with its input and channel, or None."""
        if self._restored:
            id, batch = self._restored.popleft()
            self.last_batch = id
            return self._channels[id].input, id, batch
        if not self._ready:
            return None
        channel = self._ready.popleft()
        queue = channel.queue
        element = queue.popleft()
        if queue:
            self._ready.append(channel)
        if isinstance(element, Batch):
            self.backlog -= 1
            self.last_batch = channel.id
            self._grant_all(self._credits.batch_consumed(channel.id))
        elif isinstance(element, CheckpointBarrier):
            self.alignment.barrier_taken(channel.id, element)
        return channel.input, channel.id, element

    def channels(self) -> list[ChannelId]:
        return list(self._channels)

    def has_channel(self, channel: ChannelId) -> bool:
        return channel in self._channels

    def put_back(self, channel: ChannelId, batch: Batch) -> None:
        """Add a batch that was in flight at the checkpoint: it comes before everything else, without credit."""
        self._restored.append((channel, batch))

    def end_channel(self, channel: ChannelId) -> bool:
        """A channel has ended, for the first and only time; returns whether its whole input has."""
        ended = self._channels[channel]
        assert not ended.has_ended, f"channel {channel} has ended twice"
        ended.has_ended = True
        input = ended.input
        self._open[input] -= 1
        return not self._open[input]

    @property
    def all_ended(self) -> bool:
        return not any(self._open.values())

    # ---- what the alignment decides ----

    def block(self, id: ChannelId) -> None:
        """Take nothing from a channel. Its credits run out, so the queue stays bounded."""
        channel = self._channels[id]
        if channel.queue:
            self._ready.remove(channel)

    def unblock(self, ids: Sequence[ChannelId]) -> None:
        """Go on with blocked channels; what waited there is taken first."""
        for channel in map(self._channels.__getitem__, ids):
            self._aligned_records += sum(e.num_rows for e in channel.queue if isinstance(e, Batch))
            if channel.queue:
                self._ready.appendleft(channel)

    def take_aligned_records(self) -> int:
        """How many records waited in blocked channels since the last call."""
        records, self._aligned_records = self._aligned_records, 0
        return records

    def overtake(self, begin: BeginCheckpoint) -> dict[ChannelId, list[Batch]]:
        """The batches that the barrier of an unaligned checkpoint overtakes, by channel."""
        found: dict[ChannelId, list[Batch]] = {}
        for id, batch in self._restored:  # in flight still, or again
            found.setdefault(id, []).append(batch)
        for id, barrier in begin.overtaken.items():
            ahead = self._channels[id].queue if barrier is None else self.remove_barrier(id, barrier)
            found.setdefault(id, []).extend(e for e in ahead if isinstance(e, Batch))
        return {id: batches for id, batches in found.items() if batches}

    def remove_barrier(self, id: ChannelId, barrier: CheckpointBarrier) -> list[Batch | Event]:
        """Remove a barrier from its queue; returns what is ahead of it."""
        channel = self._channels[id]
        queue = channel.queue
        ahead = list(queue)[: queue.index(barrier)]
        queue.remove(barrier)
        if not queue and not channel.barriers.is_blocked:
            self._ready.remove(channel)
        return ahead

    def take_recorded(self) -> list[OvertakenBatch]:
        """The batches that arrived on recorded channels since the last call."""
        recorded, self._recorded = self._recorded, []
        return recorded

    def _grant_all(self, grants: dict[ChannelId, int]) -> None:
        for channel, n in grants.items():
            self._grant(channel, n)


class _Channel:
    """One channel of the gate, with its state in the alignment."""

    __slots__ = ("barriers", "has_ended", "id", "input", "queue")

    def __init__(self, id: ChannelId, input: int, barriers: ChannelBarriers) -> None:
        self.id = id
        self.input = input
        self.barriers = barriers
        self.queue: deque[Batch | Event] = deque()
        self.has_ended = False
