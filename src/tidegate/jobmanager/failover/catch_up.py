"""Whether a job catches up after a recovery, as a pure state machine: samples and the time in, a warning out.

A job that went on from a checkpoint is behind by what arrived meanwhile. It catches up only if it reads faster than new
records arrive; if it does not, it is warned of once per recovery. Sources report how many records wait in them
(`SourceReader.records_behind`); if no source can, nothing is watched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tidegate.metrics.snapshot import RECORDS_BEHIND, CatchUp, SubtaskMetrics


class Sample(NamedTuple):
    """What the sources of an attempt have reported, summed."""

    behind: int
    read: int
    """Since the attempt began."""


def sample_of(reports: Iterable[bytes]) -> Sample | None:
    """The sum over the encoded `SubtaskMetrics` of an attempt; None if no source knows how many records wait."""
    behind = read = 0
    known = False
    for raw in reports:
        try:
            metrics = msgspec.msgpack.decode(raw, type=SubtaskMetrics)
        except msgspec.MsgspecError:
            continue  # a display must not fail the job
        if RECORDS_BEHIND in metrics.gauges:
            known = True
            behind += metrics.gauges[RECORDS_BEHIND]
            read += metrics.operators[0].records_out if metrics.operators else metrics.records_out
    return Sample(behind, read) if known else None


class CatchUpWatch:
    """Watches one job, from each recovery until it has caught up."""

    EVERY_MS = 1_000
    WINDOW_MS = 5_000
    """Rates are measured over this time."""
    NEAR_MS = 1_000
    """A job that is behind by no more than what arrives in this time has caught up."""

    def __init__(self) -> None:
        self._watching = False
        self._due_ms = 0
        self._began_ms: int | None = None
        self._samples: deque[tuple[int, Sample]] = deque()
        self._warned = False
        self.value: CatchUp | None = None
        """The latest result. Any thread."""

    def began(self, now_ms: int) -> None:
        """Start watching: an attempt goes on from a checkpoint."""
        self._watching, self._warned = True, False
        self._began_ms = None
        self._due_ms = now_ms
        self._samples.clear()
        self.value = None

    def is_due(self, now_ms: int) -> bool:
        """Whether `sampled` should be called now."""
        return self._watching and now_ms >= self._due_ms

    def sampled(self, sample: Sample | None, now_ms: int) -> str:
        """Take a sample; returns a warning, or an empty string."""
        self._due_ms = now_ms + self.EVERY_MS
        if sample is None:
            return ""
        if self._began_ms is None:
            self._began_ms = now_ms
        samples = self._samples
        samples.append((now_ms, sample))
        while len(samples) > 2 and now_ms - samples[1][0] >= self.WINDOW_MS:
            samples.popleft()
        first_ms, first = samples[0]
        took_ms = now_ms - first_ms
        if took_ms < self.WINDOW_MS:
            self.value = CatchUp(records_behind=sample.behind)
            return ""
        read = (sample.read - first.read) * 1000 / took_ms
        arriving = max(0.0, read + (sample.behind - first.behind) * 1000 / took_ms)
        done = sample.behind <= arriving * self.NEAR_MS / 1000
        self._watching = not done
        self.value = CatchUp(
            records_behind=sample.behind,
            records_read_per_s=read,
            records_arriving_per_s=arriving,
            caught_up_after_ms=now_ms - self._began_ms if done else None,
        )
        if done or read > arriving or self._warned:
            return ""
        self._warned = True
        return (
            f"it does not catch up after its recovery: it reads {read:.0f} records/s while {arriving:.0f} records/s "
            f"arrive, and {sample.behind} records wait in its sources. Give it more slots (a higher parallelism) or a "
            f"faster function; else it falls further behind with every failure"
        )
