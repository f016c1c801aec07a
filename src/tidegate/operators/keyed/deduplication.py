"""Deduplication within a time, by columns: which keys were seen, when, and when they can be forgotten.

A record passes, at once, if it is the first of its key, or if its time is at least `within` after that of the last one
that passed. A record that is not after the watermark is late: it is counted and dropped (or sent to the side output),
as its key may have been forgotten. So a key is remembered until the watermark is `within` after it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.core.errors import ProgramError
from tidegate.keys.key_index import KeyIndex
from tidegate.operators.event_time.late_records import LateRecords
from tidegate.operators.failures import OperatorError, batch_position, blame
from tidegate.operators.functions.row_keys import KeyColumns, record_keys
from tidegate.operators.keyed.latest_values import not_storable
from tidegate.operators.operator import Operator
from tidegate.program.join_operations import Deduplicate
from tidegate.records.batch import Batch
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.state.backend import PaneRows

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

STATE_NAME: Final = "$deduplicate"
_VALUES: Final = pa.schema([pa.field("kept_ms", pa.int64(), False)])
_NEVER: Final = MIN_TIMESTAMP
_PASSES: Final = 4
_SWEEPS: Final = 16
_FEW: Final = 1024


def deduplicate_operator(operation: Deduplicate) -> type[Operator]:
    """The operator for an operation: by columns unless keys are Python objects without a type."""
    return ObjectDeduplicateOperator if operation.key.record_type.is_object else DeduplicateOperator


class TimedFilter(Operator):
    """Leaves out late records and duplicates; the base of both operators. Mailbox thread only."""

    operation: Deduplicate

    def open(self) -> None:
        self._late = LateRecords(self)
        self._remembered = self.context.gauge("remembered_keys")

    def process(self, batch: Batch, input_index: int) -> None:
        """Emit the records that are not duplicates."""
        stamps = batch.timestamps
        if stamps is None or stamps.null_count:
            cause = ProgramError(
                "records have no event time, which deduplicate goes by. Give the source a WatermarkStrategy"
            )
            raise OperatorError(self.name, batch_position(batch)) from cause
        times: Longs = stamps.to_numpy()
        late = times <= self.clock_ms
        if late.any():
            self._late.leave_out(batch, late, self.operation.late_tag)
            batch, times = batch.filter(~late), times[~late]
        if not batch.num_rows:
            return
        passes = self.passes(batch, times)
        if passes.all():
            self.context.emit(batch)
        elif passes.any():
            self.context.emit(batch.filter(passes))

    @abstractmethod
    def passes(self, batch: Batch, times: Longs) -> Mask:
        """Whether each record passes."""


class DeduplicateOperator(TimedFilter):
    """Keys have columns. A key's id is its place in arrays; keys are renumbered when most of them are forgotten."""

    def open(self) -> None:
        """Find the state: empty, or as a checkpoint has it."""
        super().open()
        self._index = KeyIndex()
        self._kept: Longs = np.full(_FEW, _NEVER, np.int64)
        """When the last record of each id passed."""
        self._stored: Mask = np.zeros(_FEW, np.bool_)
        """Whether the backend knows an id's key."""
        self._changed: Mask = np.zeros(_FEW, np.bool_)
        self._sweep_ms = MIN_TIMESTAMP
        key = self.operation.key
        self._keys = KeyColumns(key, self.input_types[0], self.name)
        self._table = self.context.states.keyed(key.record_type).panes(STATE_NAME, _VALUES)
        for rows in self._table.restored():
            ids = self._ids(rows.keys)
            self._kept[ids] = rows.values[0].to_numpy()
            self._stored[ids] = True
        self._live = int(np.count_nonzero(self._kept != _NEVER))
        """How many keys are remembered; counted as they come and go, since there may be too many to scan."""
        self._remembered.set(self._live)

    def passes(self, batch: Batch, times: Longs) -> Mask:
        """In each pass the first candidate of every key passes, and may rule out others of its key."""
        with blame(self.name, batch_position(batch)):
            ids = self._ids(self._keys.of(batch))
        kept, within_ms = self._kept, self.operation.within_ms
        passes = np.zeros(len(ids), np.bool_)
        candidates = np.flatnonzero(_is_after(times, kept[ids], within_ms))
        for _ in range(_PASSES):
            if not len(candidates):
                break
            mine, first = np.unique(ids[candidates], return_index=True)
            rows = candidates[first]
            passes[rows] = True
            self._live += int(np.count_nonzero(kept[mine] == _NEVER))
            kept[mine] = times[rows]
            self._changed[mine] = True
            candidates = candidates[_is_after(times[candidates], kept[ids[candidates]], within_ms)]
        for row in candidates.tolist():  # keys that pass often in one batch: one by one is faster
            if times[row] >= kept[ids[row]] + within_ms:
                passes[row] = True
                kept[ids[row]] = times[row]
        self._remembered.set(self._live)
        return passes

    def on_event_time(self, watermark_ms: int) -> None:
        """Forget keys whose duplicates would be late; not at every watermark, as it scans all keys."""
        if watermark_ms < self._sweep_ms:
            return
        within_ms = self.operation.within_ms
        self._sweep_ms = watermark_ms + max(1, within_ms // _SWEEPS)
        kept = self._kept
        over = (kept != _NEVER) & (kept <= watermark_ms - within_ms + 1)
        kept[over] = _NEVER
        self._live -= int(np.count_nonzero(over))
        self._remembered.set(self._live)
        self._forget()

    def snapshot(self, checkpoint_id: int) -> None:
        is_live = self._kept != _NEVER
        changed, removed = np.flatnonzero(self._changed & is_live), np.flatnonzero(self._stored & ~is_live)
        self._table.write(
            self._rows(changed),
            PaneRows(self._keys_of(removed), np.zeros(len(removed), np.int64), ()),
            lambda: self._rows(np.flatnonzero(is_live)),
        )
        self._stored = is_live
        self._changed[:] = False

    # ---- inside ----

    def _ids(self, keys: Any) -> Longs:
        ids = self._index.ids(keys)
        size = len(self._kept)
        if len(self._index) > size:
            more = max(size, len(self._index) - size)
            self._kept = np.concatenate([self._kept, np.full(more, _NEVER, np.int64)])
            self._stored = np.concatenate([self._stored, np.zeros(more, np.bool_)])
            self._changed = np.concatenate([self._changed, np.zeros(more, np.bool_)])
        return ids

    def _keys_of(self, ids: Longs) -> list[pa.Array]:
        if not len(self._index):
            return [pa.array([], t) for t in self.operation.key.record_type.schema.types]
        return self._index.keys(ids)

    def _rows(self, ids: Longs) -> PaneRows:
        return PaneRows(self._keys_of(ids), np.zeros(len(ids), np.int64), [pa.array(self._kept[ids])])

    def _forget(self) -> None:
        """Renumber the keys if most are forgotten; keys that the backend must still remove stay."""
        needed = np.flatnonzero((self._kept != _NEVER) | self._stored)
        if len(self._index) < _FEW or len(needed) > len(self._index) // 2:
            return
        keys = self._keys_of(needed)
        kept, stored, changed = self._kept[needed], self._stored[needed], self._changed[needed]
        self._index = KeyIndex()
        size = max(_FEW, len(needed))
        self._kept = np.full(size, _NEVER, np.int64)
        self._stored, self._changed = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        if len(needed):
            ids = self._index.ids(keys)
            self._kept[ids], self._stored[ids], self._changed[ids] = kept, stored, changed


class ObjectDeduplicateOperator(TimedFilter):
    """Keys are any hashable Python objects, in a dict; for jobs without checkpoints."""

    def open(self) -> None:
        """Start without keys; raise if checkpoints are on, which cannot store them."""
        super().open()
        self._kept: dict[Any, int] = {}
        if self.context.options.checkpoint_interval:
            self._refuse()

    def passes(self, batch: Batch, times: Longs) -> Mask:
        kept, within_ms = self._kept, self.operation.within_ms
        out = []
        for key, time in zip(record_keys(batch, self.operation.key, self.name), times.tolist(), strict=True):
            last = kept.get(key)
            is_new = last is None or time >= last + within_ms
            if is_new:
                kept[key] = time
            out.append(is_new)
        self._remembered.set(len(kept))
        return np.array(out, np.bool_)

    def on_event_time(self, watermark_ms: int) -> None:
        """Forget keys whose duplicates would be late."""
        over_ms = watermark_ms - self.operation.within_ms + 1
        for key in [k for k, kept_ms in self._kept.items() if kept_ms <= over_ms]:
            del self._kept[key]
        self._remembered.set(len(self._kept))

    def snapshot(self, checkpoint_id: int) -> None:
        """Raise: objects cannot be stored in a checkpoint."""
        self._refuse()

    def _refuse(self) -> None:
        raise ProgramError(not_storable(self.name, self.operation.key, self.input_types[0]))


def _is_after(times: Longs, kept: Longs, within_ms: int) -> Mask:
    return (kept == _NEVER) | (times - within_ms >= kept)
