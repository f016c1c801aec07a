"""The watermark valve: which event time a task has reached, from the watermarks of its channels. Pure.

Each channel has a watermark that never goes back. The task's clock is the minimum over the active channels: those that
are neither idle nor ended. If all are idle it is the maximum, as there is no channel to wait for. The clock never goes
back: a channel that becomes active with an earlier watermark stops the clock until it has caught up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.core.ids import ChannelId
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP


@dataclass(frozen=True)
class AdvanceClock:
    """The task's event time is now this."""

    watermark_ms: int


@dataclass(frozen=True)
class ChangeStatus:
    """The task has become idle, or active again."""

    idle: bool


Action = AdvanceClock | ChangeStatus


class WatermarkValve:
    """The event-time clock of one task, over the channels of all its inputs. Mailbox thread only.

    >>> a, b = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
    >>> valve = WatermarkValve([a, b])
    >>> valve.watermark_received(a, 5)
    []
    >>> valve.watermark_received(b, 3)
    [AdvanceClock(watermark_ms=3)]
    >>> valve.status_received(b, idle=True)
    [AdvanceClock(watermark_ms=5)]
    """

    def __init__(self, channels: Iterable[ChannelId], clock_ms: int = MIN_TIMESTAMP) -> None:
        """`clock_ms`: the clock of a restored task."""
        self._marks: dict[ChannelId, int] = dict.fromkeys(channels, MIN_TIMESTAMP)
        self._idle: set[ChannelId] = set()
        self._ended: set[ChannelId] = set()
        self.clock_ms = clock_ms
        self.is_idle = False

    def watermark_received(self, channel: ChannelId, watermark_ms: int) -> list[Action]:
        """A watermark arrived; one that goes back is ignored."""
        if watermark_ms > self._marks[channel]:
            self._marks[channel] = watermark_ms
            return self._look()
        return []

    def status_received(self, channel: ChannelId, *, idle: bool) -> list[Action]:
        """A channel has become idle, or active."""
        if idle:
            self._idle.add(channel)
        else:
            self._idle.discard(channel)
        return self._look()

    def channel_ended(self, channel: ChannelId) -> list[Action]:
        """A channel has ended: the clock does not wait for it any more."""
        self._ended.add(channel)
        self._idle.discard(channel)
        return self._look()

    def holding(self) -> list[ChannelId]:
        """The active channels with the smallest watermark: those that the clock waits for."""
        marks = {c: mark for c, mark in self._marks.items() if c not in self._idle and c not in self._ended}
        least = min(marks.values(), default=None)
        return [c for c, mark in marks.items() if mark == least]

    def watermark_of(self, channel: ChannelId) -> int:
        """The watermark of a channel; for one that has ended, the last possible."""
        return MAX_WATERMARK if channel in self._ended else self._marks[channel]

    def _look(self) -> list[Action]:
        actions: list[Action] = []
        gone = self._idle | self._ended
        active = [mark for channel, mark in self._marks.items() if channel not in gone]
        if active:
            clock_ms = min(active)
        elif self._idle:
            clock_ms = max(self._marks[channel] for channel in self._idle)
        else:
            clock_ms = MAX_WATERMARK
        idle = not active and bool(self._idle)
        if self.is_idle and not idle:  # before the clock: it advances because a channel is active
            actions.append(ChangeStatus(False))
        if clock_ms > self.clock_ms:
            self.clock_ms = clock_ms
            actions.append(AdvanceClock(clock_ms))
        if idle and not self.is_idle:
            actions.append(ChangeStatus(True))
        self.is_idle = idle
        return actions
