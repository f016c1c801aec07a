"""Credits: how many batches a sender may send. Pure; both sides of every channel, local or remote.

A receiver grants each channel its exclusive buffers at the start. A batch uses one credit; when the consumer has taken
it from the queue, the buffer is free and the credit goes back. With each batch a sender says how many more wait (its
backlog). While the gate has floating buffers, the receiver lends them for the backlog, and takes them back when free.

Invariant, per channel: credits out + batches queued = exclusive + floating buffers lent to it.
"""

from __future__ import annotations

from collections import deque

from tidegate.core.errors import ProtocolError
from tidegate.core.ids import ChannelId


class ReceiverCredits:
    """The receiving side of all channels of one input gate."""

    def __init__(self, channels: list[ChannelId], exclusive: int, floating: int) -> None:
        self._floating = floating
        self._out = dict.fromkeys(channels, exclusive)
        self._lent = dict.fromkeys(channels, 0)
        self._backlog = dict.fromkeys(channels, 0)
        self._wanting: deque[ChannelId] = deque()

    def initial(self) -> dict[ChannelId, int]:
        """The first grants: what each sender has before it receives any."""
        return dict(self._out)

    @property
    def floating_free(self) -> int:
        """Floating buffers that are not lent."""
        return self._floating

    def credits(self, channel: ChannelId) -> int:
        """Credits that the sender of this channel holds."""
        return self._out[channel]

    def batch_received(self, channel: ChannelId, backlog: int) -> dict[ChannelId, int]:
        """A batch arrived; returns new grants. A sender without credit breaks the protocol."""
        if self._out[channel] <= 0:
            raise ProtocolError(f"channel {channel} sent a batch without credit")
        self._out[channel] -= 1
        self._backlog[channel] = backlog
        if backlog > self._out[channel] and channel not in self._wanting:
            self._wanting.append(channel)
        return self._lend()

    def batch_consumed(self, channel: ChannelId) -> dict[ChannelId, int]:
        """The consumer took a batch of this channel: its buffer is free; returns new grants."""
        if self._lent[channel] and self._backlog[channel] <= self._out[channel]:
            self._lent[channel] -= 1
            self._floating += 1
            return self._lend()
        self._out[channel] += 1
        grants = self._lend()
        grants[channel] = grants.get(channel, 0) + 1
        return grants

    def _lend(self) -> dict[ChannelId, int]:
        grants: dict[ChannelId, int] = {}
        while self._floating and self._wanting:
            channel = self._wanting.popleft()
            if self._backlog[channel] <= self._out[channel]:
                continue
            self._floating -= 1
            self._lent[channel] += 1
            self._out[channel] += 1
            grants[channel] = grants.get(channel, 0) + 1
            self._wanting.append(channel)
        return grants


class SenderCredits:
    """The sending side of one channel."""

    __slots__ = ("available",)

    def __init__(self, initial: int) -> None:
        self.available = initial

    def granted(self, n: int) -> None:
        """The receiver has room for n more batches."""
        self.available += n

    def take(self) -> bool:
        """Use one credit if there is one."""
        if self.available <= 0:
            return False
        self.available -= 1
        return True
