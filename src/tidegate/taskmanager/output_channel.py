"""Output channels: what a subtask sends to one consumer. Mailbox thread only.

A channel gathers small batches until they fill a buffer, the buffer timeout has passed or the slot has nothing else to
do. Then the batch waits for a credit and is sent: to the gate of a subtask in the same slot (no socket, no
serialisation) or to the network. Events (end of input, watermarks, barriers) keep their place and need no credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain

import pyarrow as pa

from tidegate.core.ids import ChannelId
from tidegate.records.batch import Batch
from tidegate.records.columns import join_columns
from tidegate.records.elements import CheckpointBarrier, EndOfInput
from tidegate.records.packed_rows import PackedRows
from tidegate.records.wire import Event
from tidegate.taskmanager.credits import SenderCredits

Deliver = Callable[[ChannelId, "Batch | Event", int], int]
"""Hand an element, and how many batches wait after it, to the other side; returns the bytes that went over a wire."""

LARGEST = 2
"""How many buffers a batch may fill before it is cut: each part pays the fixed cost of every later operator again."""

MANY_ROWS = 512
"""Rows that are worth a batch of their own. They are in the processor's caches now and would not be later, so a local
consumer gets them at once, and rows that leave the slot become columns at once."""

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
        """`remote`: batches leave over a wire, as columns or (`as_rows`) as packed rows; so their size is measured."""
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
        """Whether the producer may go on; if not, it is back-pressured."""
        return self._batches_queued < MAX_BACKLOG

    @property
    def is_drained(self) -> bool:
        return not self._pending and not self._queue

    def add(self, batch: Batch, now_ns: int) -> None:
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
        """Send an event after everything that was added before it."""
        self.flush()
        self._queue.append(event)
        self.send()

    def overtake(
        self, barrier: CheckpointBarrier, instead_of: CheckpointBarrier | None = None
    ) -> list[Batch]:
        """Send an unaligned barrier past everything that waits; returns the batches that it overtook.

        `instead_of` is the aligned barrier of the same checkpoint, which waits in the queue: it is removed, and only
        what was ahead of it is overtaken.
        """
        self.flush()
        waiting = list(self._queue)
        if instead_of is not None:
            waiting = waiting[: waiting.index(instead_of)]
            self._queue.remove(instead_of)
        self.bytes_out += self._deliver(self.id, barrier, self._batches_queued)
        return [e for e in waiting if isinstance(e, Batch)]

    def has_queued(self, event: Event) -> bool:
        """Whether this event still waits for batches ahead of it."""
        return event in self._queue

    def flush(self) -> None:
        """Queue the pending batches as one, cut where it is much larger than a buffer."""
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
        return batch.without_rows() if packed is None else packed

    def granted(self, n: int) -> None:
        """The consumer has room for n more batches."""
        self.credits.granted(n)
        self.send()

    def send(self) -> None:
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
    if all(b.timestamps is None for b in batches):
        return merged
    stamps = [pa.nulls(b.num_rows, pa.int64()) if b.timestamps is None else b.timestamps for b in batches]
    return merged.with_timestamps(pa.concat_arrays(stamps))


def _merge_records(batches: list[Batch]) -> Batch:
    """Rows stay rows if all batches have them, else the result is columns."""
    record_type = batches[0].type
    if any(b.packed is not None for b in batches):
        packed = [p.packed for b in batches if (p := b.pack()) is not None]
        if len(packed) == len(batches):
            return Batch(record_type, packed=PackedRows.joined(p for p in packed if p is not None))
    elif all(b.has_rows for b in batches) and not any(b.has_columns for b in batches):
        return Batch(record_type, rows=list(chain.from_iterable(b.rows for b in batches)))
    parts = [b.columns for b in batches]
    if any(p.schema.types != parts[0].schema.types for p in parts[1:]):
        parts = [record_type.plain(p) for p in parts]
    return Batch(record_type, columns=join_columns(parts))


def _cut(batch: Batch, size: int, buffer_bytes: int) -> list[Batch]:
    rows = max(1, batch.num_rows * buffer_bytes // size)
    return [batch.slice(i, min(rows, batch.num_rows - i)) for i in range(0, batch.num_rows, rows)]
