"""Watermarks of a source (or of any stream): one generator per split, the minimum over the splits that are active.

Pure but for the user's generators: records and the time go in, watermarks and changes of the status come out. The
result never goes back. A generator that goes back is refused, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow.compute as pc

from tidegate.api.watermarks import WatermarkGenerator, WatermarkStrategy
from tidegate.core.errors import ProgramError
from tidegate.core.words import kind_of
from tidegate.records.batch import Batch
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP

_WHOLE: Final = "#"
"""In front of a subtask's number: the split of a stream that has none, or whose reader does not say which it reads."""


class GeneratorFailure(Exception):
    """What a generator of the user raised at a row of a batch; the cause says why."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class StoredSplit(msgspec.Struct, frozen=True):
    """What a checkpoint keeps of a split's generator."""

    split: str
    watermark_ms: int


class _Split:
    """One split: its generator's state, and since when it is quiet."""

    __slots__ = ("generator", "idle", "observed", "quiet_since_ms", "watermark_ms")

    def __init__(self, generator: WatermarkGenerator | None, now_ms: int) -> None:
        self.generator = generator
        self.watermark_ms = MIN_TIMESTAMP
        self.quiet_since_ms = now_ms
        self.idle = False
        self.observed = False
        """Whether records came here; if not, it may be one of another subtask, from a checkpoint."""


class SplitWatermarks:
    """The watermark of one subtask. Mailbox thread only."""

    def __init__(self, strategy: WatermarkStrategy, subtask: int, now_ms: int, parallelism: int = 1) -> None:
        self._strategy = strategy
        self._parallelism = parallelism
        self._whole = f"{_WHOLE}{subtask}"
        self._splits: dict[str, _Split] = {}
        self._empty_since_ms = now_ms
        self._finished_ms = MIN_TIMESTAMP
        """How far the splits were that are finished, while no other is read."""
        self.refused = 0
        """Watermarks that a generator of the user took back."""
        self.emitted_ms = MIN_TIMESTAMP
        self.is_idle = False
        self.changed = False
        """Whether records came since `advance` was last asked."""
        self.punctuated = False
        """Whether a record among them brought a watermark, which is not to wait."""

    def observe(self, split: str | None, batch: Batch, now_ms: int) -> None:
        """Records of a split (None: of the stream), with timestamps, have come, and not been emitted yet."""
        state = self._state(self._whole if split is None else split, now_ms)
        state.quiet_since_ms = now_ms
        state.idle = False
        state.observed = True
        self.changed = True
        if self._strategy.kind == "bounded":
            most = pc.max(batch.timestamps).as_py()
            state.watermark_ms = max(state.watermark_ms, most - self._strategy.out_of_orderness_ms - 1)
        elif state.generator is not None:
            before_ms = state.watermark_ms
            assert batch.timestamps is not None
            seen = 0
            try:
                for record, timestamp_ms in zip(batch.rows, batch.timestamps.to_pylist(), strict=True):
                    self._take(state, state.generator.on_event(record, timestamp_ms))
                    seen += 1
            except BaseException as e:
                raise GeneratorFailure(seen) from e
            self.punctuated = self.punctuated or state.watermark_ms > before_ms

    def keep(self, splits: Iterable[str], now_ms: int, waiting: Iterable[str] = ()) -> None:
        """These are the splits that are read now, and those that wait for their turn; others hold nothing back.

        One that waits is not quiet: it would be idle, and late when its turn comes.
        """
        queued = set(waiting)
        current = queued.union(splits)
        for split in [s for s in self._splits if s not in current]:
            state = self._splits.pop(split)
            self.changed = True
            self._empty_since_ms = now_ms
            if state.observed and not current:
                self._ask(state)
                self._finished_ms = max(self._finished_ms, state.watermark_ms)
        for split in current:
            state = self._state(split, now_ms)
            if split in queued:
                state.quiet_since_ms = now_ms

    def advance(self, now_ms: int) -> tuple[bool | None, int | None]:
        """(a change of the status: idle or not, or None; the new watermark, or None).

        Ask the generators, find what is idle, and combine. A status False comes before the watermark, True behind it.
        """
        self.changed = self.punctuated = False
        for state in self._splits.values():
            self._ask(state)
            idleness = self._strategy.idleness_ms
            if idleness is not None and now_ms - state.quiet_since_ms >= idleness:
                state.idle = True
        active = [s.watermark_ms for s in self._splits.values() if not s.idle]
        idle = bool(self._splits) and not active
        if not self._splits and self._strategy.idleness_ms is not None:
            idle = now_ms - self._empty_since_ms >= self._strategy.idleness_ms
        watermark_ms: int | None = None
        if self._strategy.kind != "none":
            if active:
                combined = min(active)
            else:  # of finished splits nothing follows: they hold nothing back, and what they promised holds
                combined = max((s.watermark_ms for s in self._splits.values()), default=self._finished_ms)
            if combined > self.emitted_ms:
                watermark_ms = self.emitted_ms = combined
        status = idle if idle != self.is_idle else None
        self.is_idle = idle
        return status, watermark_ms

    @property
    def reached_ms(self) -> int:
        """How far the records are that have come; a generator that is asked from time to time may not know it yet."""
        active = [s.watermark_ms for s in self._splits.values() if not s.idle]
        return max(self.emitted_ms, min(active, default=MIN_TIMESTAMP))

    def touch(self, now_ms: int) -> None:
        """Nobody was quiet up to now."""
        self._empty_since_ms = now_ms
        for state in self._splits.values():
            state.quiet_since_ms = now_ms

    def next_idle_ms(self) -> int | None:
        """When the next split will have been quiet for too long, if nothing comes."""
        idleness = self._strategy.idleness_ms
        if idleness is None:
            return None
        if not self._splits:
            return None if self.is_idle else self._empty_since_ms + idleness
        quiet = [s.quiet_since_ms for s in self._splits.values() if not s.idle]
        return min(quiet) + idleness if quiet else None

    def holder(self, now_ms: int) -> tuple[str, int]:
        """The split that the watermark waits for, empty if there are none, and how long it is quiet; any thread."""
        active = [(s.watermark_ms, name, s) for name, s in list(self._splits.items()) if not s.idle]
        if not active:
            return "", 0
        _, name, state = min(active, key=lambda found: found[:2])
        return "" if name == self._whole else name, max(0, now_ms - state.quiet_since_ms)

    def snapshot(self) -> list[bytes]:
        """What a checkpoint keeps: how far each split is, also one that has no watermark yet and holds all others."""
        marks = {name: s.watermark_ms for name, s in self._splits.items()} or {self._whole: MIN_TIMESTAMP}
        return [msgspec.json.encode(StoredSplit(name, mark)) for name, mark in marks.items()]

    def restore(self, entries: Iterable[bytes], now_ms: int) -> None:
        """Go on where a checkpoint was, given the entries of all subtasks.

        Splits that others read now are dropped by the next `keep`. A stream without splits goes on from its own entry,
        or, where the subtasks have become more or fewer, from the smallest: records of any may come here now.
        """
        marks = {s.split: s.watermark_ms for s in (msgspec.json.decode(e, type=StoredSplit) for e in entries)}
        whole = {split: mark for split, mark in marks.items() if split.startswith(_WHOLE)}
        named = marks.keys() - whole.keys()
        own = whole.get(self._whole)  # beside named ones: of a reader that had read nothing
        if not named and (own is None or len(whole) != self._parallelism):
            own = min(whole.values(), default=None)
        if own is not None:
            self._state(self._whole, now_ms).watermark_ms = own
        for split in named:
            self._state(split, now_ms).watermark_ms = marks[split]
        self.changed = bool(marks)

    def resume(self, watermark_ms: int) -> None:
        """This was sent before the checkpoint, if only for splits that are finished since: nothing less follows."""
        self.emitted_ms = max(self.emitted_ms, watermark_ms)

    def _state(self, split: str, now_ms: int) -> _Split:
        found = self._splits.get(split)
        if found is None:
            make = self._strategy.generator
            generator = None if make is None else make()
            if make is not None and not isinstance(generator, WatermarkGenerator):
                raise ProgramError(
                    f"WatermarkStrategy.periodic got a factory that made {kind_of(generator)}; it must make a "
                    f"WatermarkGenerator (derive yours from it)"
                )
            found = self._splits[split] = _Split(generator, now_ms)
        return found

    def _ask(self, state: _Split) -> None:
        if state.generator is not None:
            self._take(state, state.generator.on_periodic())

    def _take(self, state: _Split, watermark_ms: int | None) -> None:
        if watermark_ms is None:
            return
        if type(watermark_ms) is not int or not MIN_TIMESTAMP <= watermark_ms <= MAX_WATERMARK:
            raise ProgramError(
                f"the watermark generator returned {watermark_ms!r}; it must return whole milliseconds, of 64 bits, or "
                f"None"
            )
        if watermark_ms < state.watermark_ms:
            self.refused += 1
        else:
            state.watermark_ms = watermark_ms
