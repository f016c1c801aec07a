"""Channels: what leaves a producer subtask (`OutputChannel`) and what waits at a consumer (`InputGate`).

Mailbox thread only. An output channel gathers small batches until they fill a buffer, the buffer timeout has passed or
the slot has nothing else to do; then the batch waits for a credit and goes out, to a queue of the same slot (no socket,
no serialisation) or to the network. Events (end of input, watermarks, barriers) keep their place and need no credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from tidegate.core.ids import ChannelId
from tidegate.records.batch import Batch
from tidegate.records.columns import join_columns
from tidegate.records.elements import CheckpointBarrier, EndOfInput
from tidegate.records.packed_rows import PackedRows
from tidegate.records.wire import Event
from tidegate.taskmanager.alignment import unaligned
from tidegate.taskmanager.credits import ReceiverCredits, SenderCredits

Deliver = Callable[[ChannelId, "Batch | Event", int], int]
"""Hand an element and the backlog behind it to the other side; returns the bytes that went over a wire."""

LARGEST = 2
"""Buffers that a batch may be as large as: a cut costs the fixed cost of every operator behind it once more."""

MANY_ROWS = 512
"""Rows that are worth a batch of their own: they are in the processor's caches now and would not be later, so a local
consumer gets them at once, and what leaves the slot becomes columns at once."""

MAX_BACKLOG = 2
"""Full batches that may wait for credit before the task is back-pressured."""


class OutputChannel:
    """One channel out of a subtask."""

    def __init__(
        self,
        id: ChannelId,
        credits: SenderCredits,
        buffer_bytes: int,
        deliver: Deliver,
        *,
        remote: bool = False,
        as_rows: bool = False,
    ) -> None:
        """`remote`: what leaves goes over a wire as columns, or as packed rows where it is wanted so (`as_rows`).

        So its size is measured instead of estimated.
        """
        self.id = id
        self.credits = credits
        self._buffer_bytes = buffer_bytes
        self._deliver = deliver
        self._remote = remote
        self._as_rows = as_rows
        self._pending: list[Batch] = []
        self._pending_bytes = 0
        self.pending_since_ns = 0
        self._queue: deque[Batch | Event] = deque()
        self._batches_queued = 0
        self.bytes_out = 0
        self.ended = False
        """Whether the end of input was sent: the consumer needs nothing more."""

    @property
    def backlog(self) -> int:
        """Batches that wait for credit."""
        return self._batches_queued

    @property
    def has_pending(self) -> bool:
        """Whether small batches wait to be flushed."""
        return bool(self._pending)

    @property
    def is_available(self) -> bool:
        """Whether the producer may go on."""
        return self._batches_queued < MAX_BACKLOG

    @property
    def is_drained(self) -> bool:
        """Whether everything has left."""
        return not self._pending and not self._queue

    def add(self, batch: Batch, now_ns: int) -> None:
        """Take a batch for this consumer."""
        fresh_rows = batch.num_rows >= MANY_ROWS and batch.has_rows and not batch.has_columns
        if fresh_rows and self._remote:
            batch = self._leaving(batch)
        size = batch.nbytes()
        if not self._pending:
            self.pending_since_ns = now_ns
        self._pending.append(batch)
        self._pending_bytes += size
        if self._pending_bytes >= self._buffer_bytes or (fresh_rows and not self._remote):
            self.flush()

    def add_event(self, event: Event) -> None:
        """Send an event behind everything that was added before it."""
        self.flush()
        self._queue.append(event)
        self.send()

    def overtake(
        self, barrier: CheckpointBarrier, instead_of: CheckpointBarrier | None = None
    ) -> list[Batch]:
        """Send an unaligned barrier past everything that waits; returns the batches that it overtook.

        `instead_of` is the aligned barrier of the same checkpoint, which waits in the queue: only what is in front of
        it is overtaken, and it goes.
        """
        self.flush()
        waiting = list(self._queue)
        if instead_of is not None:
            waiting = waiting[: waiting.index(instead_of)]
            self._queue.remove(instead_of)
        self.bytes_out += self._deliver(self.id, barrier, self._batches_queued)
        return [e for e in waiting if isinstance(e, Batch)]

    def has_queued(self, event: Event) -> bool:
        """Whether this event still waits behind batches."""
        return event in self._queue

    def flush(self) -> None:
        """Make the pending batches ready to go, cut where one is much larger than a buffer."""
        if not self._pending:
            return
        merged = merge(self._pending)
        size = self._pending_bytes
        if self._remote:
            merged = self._leaving(merged)
            size = int(merged.columns.nbytes) if merged.packed is None else merged.nbytes()
        self._pending = []
        self._pending_bytes = 0
        too_big = size > LARGEST * self._buffer_bytes and merged.num_rows > 1
        parts = _cut(merged, size, self._buffer_bytes) if too_big else [merged]
        self._queue.extend(parts)
        self._batches_queued += len(parts)
        self.send()

    def _leaving(self, batch: Batch) -> Batch:
        """The batch in the form in which it goes over the wire; raises `SchemaError`."""
        packed = batch.pack() if self._as_rows else None
        if packed is not None:
            return packed
        return Batch(batch.type, batch.columns, None, None, batch.timestamps)

    def granted(self, n: int) -> None:
        """The consumer has room for n more batches."""
        self.credits.granted(n)
        self.send()

    def send(self) -> None:
        """Send while there are credits."""
        queue = self._queue
        while queue:
            element = queue[0]
            if isinstance(element, Batch):
                if not self.credits.take():
                    return
                self._batches_queued -= 1
            elif isinstance(element, EndOfInput):
                self.ended = True
            queue.popleft()
            # A local consumer may grant from inside the call, which sends the next elements before it returns.
            sent = self._deliver(self.id, element, self._batches_queued)
            self.bytes_out += sent


def merge(batches: list[Batch]) -> Batch:
    """Several batches of one type as one; records without a timestamp beside others that have one get null."""
    if len(batches) == 1:
        return batches[0]
    merged = _merge_records(batches)
    if any(b.timestamps is not None for b in batches):
        merged.timestamps = pa.concat_arrays(
            [pa.nulls(b.num_rows, pa.int64()) if b.timestamps is None else b.timestamps for b in batches]
        )
    return merged


def _merge_records(batches: list[Batch]) -> Batch:
    """Rows stay rows where all have them, else columns."""
    record_type = batches[0].type
    if any(b.packed is not None for b in batches):
        packed = [p.packed for b in batches if (p := b.pack()) is not None]
        if len(packed) == len(batches):
            return Batch.of_packed(record_type, PackedRows.joined(p for p in packed if p is not None))
    elif all(b.has_rows for b in batches) and not any(b.has_columns for b in batches):
        return Batch.of_rows(record_type, list(chain.from_iterable(b.rows for b in batches)))
    parts = [b.columns for b in batches]
    if any(p.schema.types != parts[0].schema.types for p in parts[1:]):
        parts = [record_type.plain(p) for p in parts]
    return Batch.of_columns(record_type, join_columns(parts))


def _cut(batch: Batch, size: int, buffer_bytes: int) -> list[Batch]:
    rows = max(1, batch.num_rows * buffer_bytes // size)
    return [batch.slice(i, min(rows, batch.num_rows - i)) for i in range(0, batch.num_rows, rows)]


class InputGate:
    """All channels into one subtask, served in turn."""

    def __init__(self, channels: dict[ChannelId, int], exclusive: int, floating: int) -> None:
        self._input_of = channels
        self._credits = ReceiverCredits(list(channels), exclusive, floating)
        self._queues: dict[ChannelId, deque[Batch | Event]] = {c: deque() for c in channels}
        self._ready: deque[ChannelId] = deque()
        self._restored: deque[tuple[ChannelId, Batch]] = deque()
        self._blocked: set[ChannelId] = set()
        self._aligned_records = 0
        self._recording: set[ChannelId] = set()
        self._recorded: CheckpointBarrier | None = None
        """The newest checkpoint that recorded channels here."""
        self._barriers: list[tuple[ChannelId, CheckpointBarrier]] = []
        """Those that wait in the queues, in the order in which they came."""
        self._unended = set(channels)
        """Channels whose end has not come, not even into the queue."""
        self._overtakers: deque[_Overtaker] = deque()
        self._overtaking: _Overtaker | None = None
        self.record: Callable[[ChannelId, Batch], None] = _no_record
        """Called with each batch of a channel that is being recorded."""
        self._open: dict[int, set[ChannelId]] = {}
        for channel, index in channels.items():
            self._open.setdefault(index, set()).add(channel)
        self.grant: Callable[[ChannelId, int], None] = _no_grant
        self.backlog = 0
        self.bytes_in = 0

    def initial_credits(self) -> dict[ChannelId, int]:
        """What each sender starts with."""
        return self._credits.initial()

    def receive(self, channel: ChannelId, element: Batch | Event, backlog: int) -> None:
        """An element came in on a channel."""
        grants: dict[ChannelId, int] = {}
        queue = self._queues[channel]
        if isinstance(element, Batch):
            grants = self._credits.batch_received(channel, backlog)
            self.backlog += 1
            if channel in self._recording:
                self.record(channel, element)
        elif isinstance(element, CheckpointBarrier):
            if element.unaligned or (
                channel in self._recording and element.checkpoint_id == self._recorded_id
            ):
                ahead = [e for e in queue if isinstance(e, Batch)]
                self._overtakers.append(_Overtaker(channel, element, ahead))
                if element.checkpoint_id >= self._recorded_id:
                    self._recording.discard(channel)  # now: what follows may come before the task looks at it
                return
            self._barriers.append((channel, element))
        elif isinstance(element, EndOfInput):
            self._unended.discard(channel)
            if channel in self._recording and self._recorded is not None:  # its barrier will not come
                self._recording.discard(channel)
                self._overtakers.append(_Overtaker(channel, self._recorded, []))
        if not queue and channel not in self._blocked:
            self._ready.append(channel)
        queue.append(element)
        # Last: a local sender answers a grant at once, and what it sends belongs behind this element.
        self._grant_all(grants)

    def poll(self) -> tuple[int, ChannelId, Batch | Event] | None:
        """The next element with its input and channel, or None."""
        if self._restored:
            channel, batch = self._restored.popleft()
            return self._input_of[channel], channel, batch
        if not self._ready:
            return None
        channel = self._ready.popleft()
        queue = self._queues[channel]
        element = queue.popleft()
        if queue:
            self._ready.append(channel)
        if isinstance(element, Batch):
            self.backlog -= 1
            self._grant_all(self._credits.batch_consumed(channel))
        elif isinstance(element, CheckpointBarrier):
            self._barriers.remove((channel, element))
        return self._input_of[channel], channel, element

    def channels(self) -> list[ChannelId]:
        """All channels that lead here."""
        return list(self._input_of)

    def has_channel(self, channel: ChannelId) -> bool:
        """Whether the channel leads here."""
        return channel in self._input_of

    def has_elements(self) -> bool:
        """Whether `poll` would return something."""
        return bool(self._ready or self._restored)

    # ---- checkpoints ----

    def block(self, channel: ChannelId) -> None:
        """Leave a channel alone: its barrier has come. Its credits run out, so nothing piles up."""
        self._blocked.add(channel)
        if self._queues[channel]:
            self._ready.remove(channel)

    def unblock(self) -> None:
        """Go on with all channels; what waited is taken first."""
        for channel in sorted(self._blocked):
            queue = self._queues[channel]
            self._aligned_records += sum(e.num_rows for e in queue if isinstance(e, Batch))
            if queue:
                self._ready.appendleft(channel)
        self._blocked.clear()

    def take_aligned_records(self) -> int:
        """How many records waited in blocked channels since the last call."""
        records, self._aligned_records = self._aligned_records, 0
        return records

    @property
    def first_barrier(self) -> CheckpointBarrier | None:
        """The first of the barriers that wait in the queues behind batches."""
        return self._barriers[0][1] if self._barriers else None

    def hurry_first_barrier(self) -> tuple[ChannelId, CheckpointBarrier]:
        """Let that barrier overtake what is in front of it; returns it, unaligned from now on, and its channel."""
        channel, barrier = self._barriers[0]
        late = unaligned(barrier)
        self._overtaking = _Overtaker(channel, late, self._take_out(channel, barrier))
        return channel, late

    @property
    def only_ends_follow(self) -> bool:
        """Whether the end of every open channel has come, but not all have been taken: no barrier will come."""
        return not self._unended and not self.all_ended

    def next_overtaker(self) -> tuple[ChannelId, CheckpointBarrier] | None:
        """A barrier that does not wait in its channel's queue, and its channel."""
        self._overtaking = self._overtakers.popleft() if self._overtakers else None
        return None if self._overtaking is None else (self._overtaking.channel, self._overtaking.barrier)

    @property
    def has_overtaker(self) -> bool:
        """Whether `next_overtaker` would return one."""
        return bool(self._overtakers)

    def overtaken_by(
        self, barrier: CheckpointBarrier, recording: frozenset[ChannelId]
    ) -> dict[ChannelId, list[Batch]]:
        """An unaligned checkpoint begins: the batches in front of its barrier, by channel.

        Channels in `recording` have no barrier yet: what waits is overtaken and what comes is recorded, up to the
        barrier; one that waits in the queue (it was sent aligned) is taken out of it. A channel whose end has come has
        every barrier.
        """
        self._recorded, id = barrier, barrier.checkpoint_id
        arrived = {o.channel: o.batches for o in self._overtakers if o.barrier.checkpoint_id == id}
        found: dict[ChannelId, list[Batch]] = {}
        for channel, batch in self._restored:  # in flight still, or again
            found.setdefault(channel, []).append(batch)
        if self._overtaking is not None and self._overtaking.barrier.checkpoint_id == id:
            found.setdefault(self._overtaking.channel, []).extend(self._overtaking.batches)
        for channel in sorted(recording):
            ahead = arrived[channel] if channel in arrived else self._take_aligned(channel, barrier)
            found.setdefault(channel, []).extend(ahead)
        return {channel: batches for channel, batches in found.items() if batches}

    def _take_aligned(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Batch]:
        for waiting, queued in self._barriers:
            if waiting == channel and queued.checkpoint_id == barrier.checkpoint_id:
                self._overtakers.append(_Overtaker(channel, queued, []))
                return self._take_out(channel, queued)
        if channel in self._unended:
            self._recording.add(channel)
        else:
            self._overtakers.append(_Overtaker(channel, barrier, []))
        return [e for e in self._queues[channel] if isinstance(e, Batch)]

    def _take_out(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Batch]:
        """Remove a barrier from its queue; returns the batches in front of it."""
        queue = self._queues[channel]
        ahead = [e for e in list(queue)[: queue.index(barrier)] if isinstance(e, Batch)]
        queue.remove(barrier)
        self._barriers.remove((channel, barrier))
        if not queue and channel in self._ready:
            self._ready.remove(channel)
        return ahead

    @property
    def _recorded_id(self) -> int:
        return 0 if self._recorded is None else self._recorded.checkpoint_id

    def stop_recording(self, channel: ChannelId) -> None:
        """The channel's barrier has come."""
        self._recording.discard(channel)

    def stop_recording_all(self) -> None:
        """The checkpoint is over."""
        self._recording.clear()

    def put_back(self, channel: ChannelId, batch: Batch) -> None:
        """A batch that was in flight when the checkpoint was taken: it comes before everything else, without credit."""
        self._restored.append((channel, batch))

    def end_channel(self, channel: ChannelId) -> bool:
        """A channel has ended; returns whether its whole input has."""
        rest = self._open[self._input_of[channel]]
        rest.discard(channel)
        return not rest

    @property
    def all_ended(self) -> bool:
        """Whether every channel has ended."""
        return not any(self._open.values())

    def _grant_all(self, grants: dict[ChannelId, int]) -> None:
        for channel, n in grants.items():
            self.grant(channel, n)


class _Overtaker(NamedTuple):
    """A barrier past the queue of its channel, and the batches that were in it."""

    channel: ChannelId
    barrier: CheckpointBarrier
    batches: list[Batch]


def _no_record(channel: ChannelId, batch: Batch) -> None:
    raise AssertionError("nobody records this gate")


def _no_grant(channel: ChannelId, n: int) -> None:
    raise AssertionError("the gate is not connected")
