"""Watermarks of a source (or of any stream): one generator per split, the minimum over the active splits.

Pure except for the user's generators: records and the time in, watermarks and changes of the status out. The result
never goes back. A watermark with which a generator goes back is ignored and counted.
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
"""Before a subtask's number: stands for the split of a stream without splits, or whose reader does not name them."""


class GeneratorFailure(Exception):
    """A generator of the user raised at a row of a batch; the cause is its exception."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class StoredSplit(msgspec.Struct, frozen=True):
    """What a checkpoint keeps of a split's generator."""

    split: str
    watermark_ms: int


class _Split:
    """One split: its generator, its watermark, and since when it has been quiet."""

    __slots__ = ("generator", "idle", "observed", "quiet_since_ms", "watermark_ms")

    def __init__(self, generator: WatermarkGenerator | None, now_ms: int) -> None:
        self.generator = generator
        self.watermark_ms = MIN_TIMESTAMP
        self.quiet_since_ms = now_ms
        self.idle = False
        self.observed = False
        """Whether records came to this subtask; if not, it may be a restored split that another subtask reads."""


class SplitWatermarks:
    """The watermark of one subtask. Mailbox thread only."""

    def __init__(self, strategy: WatermarkStrategy, subtask: int, now_ms: int, parallelism: int = 1) -> None:
        self._strategy = strategy
        self._parallelism = parallelism
        self._whole = f"{_WHOLE}{subtask}"
        self._splits: dict[str, _Split] = {}
        self._empty_since_ms = now_ms
        self._finished_ms = MIN_TIMESTAMP
        """The watermark of finished splits, while no other split is read."""
        self.refused = 0
        """Watermarks with which a generator of the user went back."""
        self.emitted_ms = MIN_TIMESTAMP
        self.is_idle = False
        self.changed = False
        """Whether records came since the last `advance`."""
        self.punctuated = False
        """Whether one of these records made a watermark, which must not wait for the interval."""

    def observe(self, split: str | None, batch: Batch, now_ms: int) -> None:
        """Take records of a split (None: of the stream), with timestamps, before they are emitted."""
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
        """Set the splits that are read now and those that wait for their turn; others no longer hold the watermark.

        One that waits is not quiet: it would become idle, and be late when its turn comes.
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
        """Ask the generators, find idle splits, and combine. Returns (the new idle status, the new watermark).

        Each is None if it has not changed. Emit the status False before the watermark, True after it.
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
            else:  # finished splits hold nothing back, and their watermarks stay true
                combined = max((s.watermark_ms for s in self._splits.values()), default=self._finished_ms)
            if combined > self.emitted_ms:
                watermark_ms = self.emitted_ms = combined
        status = idle if idle != self.is_idle else None
        self.is_idle = idle
        return status, watermark_ms

    @property
    def reached_ms(self) -> int:
        """How far the records are that have come; a generator that is asked periodically may not know yet."""
        active = [s.watermark_ms for s in self._splits.values() if not s.idle]
        return max(self.emitted_ms, min(active, default=MIN_TIMESTAMP))

    def touch(self, now_ms: int) -> None:
        """Treat all splits as active up to now."""
        self._empty_since_ms = now_ms
        for state in self._splits.values():
            state.quiet_since_ms = now_ms

    def next_idle_ms(self) -> int | None:
        """When the next split becomes idle if no record comes; None: never."""
        idleness = self._strategy.idleness_ms
        if idleness is None:
            return None
        if not self._splits:
            return None if self.is_idle else self._empty_since_ms + idleness
        quiet = [s.quiet_since_ms for s in self._splits.values() if not s.idle]
        return min(quiet) + idleness if quiet else None

    def holder(self, now_ms: int) -> tuple[str, int]:
        """The split that the watermark waits for (empty: none), and how long it has been quiet; any thread."""
        active = [(s.watermark_ms, name, s) for name, s in list(self._splits.items()) if not s.idle]
        if not active:
            return "", 0
        _, name, state = min(active, key=lambda found: found[:2])
        return "" if name == self._whole else name, max(0, now_ms - state.quiet_since_ms)

    def snapshot(self) -> list[bytes]:
        """The entries of a checkpoint: how far each split is, also one without a watermark, which holds all others."""
        marks = {name: s.watermark_ms for name, s in self._splits.items()} or {self._whole: MIN_TIMESTAMP}
        return [msgspec.json.encode(StoredSplit(name, mark)) for name, mark in marks.items()]

    def restore(self, entries: Iterable[bytes], now_ms: int) -> None:
        """Restore from a checkpoint, given the entries of all subtasks.

        The next `keep` drops splits that other subtasks read now. A stream without splits restores its own entry or,
        after a rescale, the smallest: records of any old subtask may come here now.
        """
        marks = {s.split: s.watermark_ms for s in (msgspec.json.decode(e, type=StoredSplit) for e in entries)}
        whole = {split: mark for split, mark in marks.items() if split.startswith(_WHOLE)}
        named = marks.keys() - whole.keys()
        own = whole.get(self._whole)  # besides named ones: of a reader that had read nothing
        if not named and (own is None or len(whole) != self._parallelism):
            own = min(whole.values(), default=None)
        if own is not None:
            self._state(self._whole, now_ms).watermark_ms = own
        for split in named:
            self._state(split, now_ms).watermark_ms = marks[split]
        self.changed = bool(marks)

    def resume(self, watermark_ms: int) -> None:
        """Send no watermark below this one, which was sent before the checkpoint, perhaps for splits now finished."""
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
