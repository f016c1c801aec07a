"""Tumbling, sliding and cumulative windows per key, by columns: aggregates of slices that windows share. Pure.

A batch is aggregated by (key, slice), and a window is the merge of its slices when the clock has reached its end. This
is prefix-suffix window aggregation (two stacks): time is cut into blocks of one window's size, and a window is a suffix
of one block (all suffixes are computed once, right to left) merged with the running prefix of the next block. So a
window costs about three merges, however many slices it has. Cumulative windows are prefixes of blocks.

    state.add(*state.group(ids, times, inputs))  a batch, without `late` records; then refreshed()
    for end, part in state.advance(clock): ...   the clock has advanced: windows in order of their ends

A record is late when all its windows are over (`end - 1 + lateness <= clock`). If a record is not late but some of its
windows were emitted already, these are emitted again, once per batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.aggregates.groups import Groups, grouped_pairs
from tidegate.keys.key_index import KeyIndex
from tidegate.operators.window.parts import Columns, Inputs, Part, WindowAggregates, concat, take
from tidegate.operators.window.slice_bounds import Slicing
from tidegate.records.elements import MIN_TIMESTAMP

Longs = npt.NDArray[np.int64]

_SPARE_ROWS: Final = 1024
_FEW_KEYS: Final = 1 << 16
_NO_IDS: Final = np.empty(0, np.int64)


class Slice:
    """The partial results of one slice, to which batches are added."""

    __slots__ = ("_aggregates", "_chunks", "_dense", "_rows", "changed", "written")

    def __init__(self, aggregates: WindowAggregates) -> None:
        self._aggregates = aggregates
        self._dense: Part | None = None
        self._chunks: list[Part] = []  # the first one is large, the others wait to be merged into it
        self._rows = 0
        self.changed: list[Longs] = []
        """The ids whose rows have changed since the last snapshot, with repetitions."""
        self.written = False
        """Whether a snapshot has rows of this slice."""

    def add(self, ids: Longs, columns: Columns, keys: int) -> None:
        """Merge rows (each id once) into it; there are `keys` ids in all."""
        self.changed.append(ids)
        if len(self.changed) > 64:
            self.changed = [np.unique(np.concatenate(self.changed))]
        if self._dense is not None and len(self._dense.columns[0]) < keys:
            if keys > max(_FEW_KEYS, 8 * int(np.count_nonzero(self._dense.columns[0]))):
                self._thin_out()
            else:
                room = max(keys, 2 * len(self._dense.columns[0]))
                self._dense.columns = self._aggregates.widened(self._dense.columns, room)
        elif self._dense is None and not self._chunks and self._fits_dense(len(ids), keys):
            self._dense = self._aggregates.empty_dense(keys)
        if self._dense is not None:
            self._aggregates.scatter(self._dense, ids, columns)
            return
        self._chunks.append(self._aggregates.part_of(ids, columns))
        self._rows += len(ids)
        first = self._chunks[0].ids
        assert first is not None
        if len(self._chunks) > 1 and self._rows > 2 * len(first) + _SPARE_ROWS:
            self.part(keys)
        if self._fits_dense(self._rows, keys):
            self._thicken(keys)

    def part(self, keys: int) -> Part:
        """All rows; do not change them, they are valid until the next `add`."""
        if self._dense is not None:
            return self._dense
        if len(self._chunks) > 1:
            self._chunks = [self._aggregates.merged(self._chunks, keys)]
            self._rows = len(self._chunks[0].rows()[0])
        return self._chunks[0]

    def renumber(self, new_ids: Longs, keys: int) -> None:
        """Replace each key id by `new_ids[id]`, which keeps the order."""
        self.changed = [np.unique(new_ids[np.concatenate(self.changed)])] if self.changed else []
        ids, columns = self.part(keys).rows()
        self._chunks = [self._aggregates.part_of(new_ids[ids], columns)]
        self._dense, self._rows = None, len(ids)

    def _fits_dense(self, rows: int, keys: int) -> bool:
        """Whether enough keys have a row for a dense part."""
        return self._aggregates.can_be_dense and keys <= 4 * rows

    def _thicken(self, keys: int) -> None:
        ids, columns = self.part(keys).rows()
        if not self._fits_dense(len(ids), keys):
            return
        dense = self._aggregates.empty_dense(keys)
        self._aggregates.scatter(dense, ids, columns)
        self._dense, self._chunks, self._rows = dense, [], 0

    def _thin_out(self) -> None:
        assert self._dense is not None
        ids, columns = self._dense.rows()
        self._dense, self._chunks, self._rows = None, [Part(ids, columns)], len(ids)


class WindowMerger:
    """Merges slices into windows, whose ends only grow, by prefixes and suffixes of blocks (see the module)."""

    def __init__(self, slicing: Slicing, aggregates: WindowAggregates) -> None:
        self._slicing = slicing
        self._aggregates = aggregates
        self.forget()

    def forget(self) -> None:
        """Drop the merged prefixes and suffixes: a slice in them has changed."""
        self._tails_of: int | None = None
        self._tails: dict[int, Part] = {}
        self._head_of: int | None = None
        self._head: Part | None = None
        self._head_until = 0

    def window(self, end: int, ends: list[int], part: Callable[[int], Part], keys: int) -> Part | None:
        """The window that ends at `end`; `ends` are those of all slices, in order. None: it has no slice."""
        slicing = self._slicing
        low = bisect_right(ends, slicing.window_start(end))
        high = bisect_right(ends, end)
        if low == high:
            return None
        if high - low == 1:
            return part(ends[low])
        block = slicing.block_start(end)
        middle = min(high, max(low, bisect_right(ends, block)))
        halves: list[Part] = []
        if low < middle:
            halves.append(self._tail(block, ends, low, middle, part, keys))
        if middle < high:
            halves.append(self._grown_head(block, ends, middle, high, part, keys))
        return self._aggregates.merged(halves, keys)

    def _tail(
        self, block: int, ends: list[int], low: int, middle: int, part: Callable[[int], Part], keys: int
    ) -> Part:
        """The suffix of the block that ends at `block`, from slice `low` on."""
        if middle - low == 1:
            return part(ends[low])
        if self._tails_of != block:
            self._tails_of, self._tails = block, {}
            so_far: Part | None = None
            for e in reversed(ends[low:middle]):  # windows only move forward: earlier slices are not needed
                so_far = part(e) if so_far is None else self._aggregates.merged([part(e), so_far], keys)
                self._tails[e] = so_far
        return self._tails[ends[low]]

    def _grown_head(
        self, block: int, ends: list[int], middle: int, high: int, part: Callable[[int], Part], keys: int
    ) -> Part:
        """The prefix of the block that begins at `block`: the slices from `middle` to `high`."""
        if self._head_of != block or self._head is None:
            self._head_of, self._head = block, None
        else:
            middle = bisect_right(ends, self._head_until)
        more = [part(e) for e in ends[middle:high]]
        if more:
            self._head = self._aggregates.merged(
                [self._head, *more] if self._head is not None else more, keys
            )
            self._head_until = ends[high - 1]
        assert self._head is not None
        return self._head


class SliceState:
    """The slices of all keys of one subtask. Mailbox thread only; must not be used after an error."""

    def __init__(self, slicing: Slicing, aggregates: WindowAggregates, lateness_ms: int = 0) -> None:
        self.slicing = slicing
        self.aggregates = aggregates
        self.lateness_ms = lateness_ms
        self.index = KeyIndex()
        self.clock_ms = MIN_TIMESTAMP
        self._late_before = MIN_TIMESTAMP
        self._slices: dict[int, Slice] = {}
        self._ends: list[int] = []
        self._merger = WindowMerger(slicing, aggregates)
        self._merged_until = MIN_TIMESTAMP
        self._touched: dict[int, list[Longs]] = {}
        self._removed: list[tuple[list[pa.Array], int]] = []
        self._largest_window = 0

    def __len__(self) -> int:
        return len(self._ends)

    # ---- records in ----

    def group(self, ids: Longs, timestamps: Longs, inputs: Inputs) -> tuple[Longs, Longs, Columns]:
        """Aggregate records by (key, slice); returns ids, ends of slices and partial results."""
        return aggregate_batch(self.slicing, self.aggregates, ids, len(self.index), timestamps, inputs)

    def late(self, timestamps: Longs) -> npt.NDArray[np.bool_] | None:
        """Which records are late now; None: none is. A record that no window covers is not late."""
        if self._late_before == MIN_TIMESTAMP or int(timestamps.min()) >= self._late_before:
            return None
        late: npt.NDArray[np.bool_] = timestamps < self._late_before
        if self.slicing.has_gaps:
            late &= (self.slicing.numbers(timestamps) & 1) == 0
        return late

    def add(self, ids: Longs, ends: Longs, columns: Columns) -> None:
        """Add partial results (each id and slice once, none of them late) to the slices."""
        for end, own, rows in _by_slice(ids, ends, columns):
            self._add_to(end, own, rows)

    def add_partials(self, ids: Longs, ends: Longs, columns: Columns) -> None:
        """As `add`, but an id and slice may occur more than once; rows are in order of arrival."""
        groups, found_ids, numbers = grouped_pairs(ids, len(self.index), self.slicing.numbers(ends - 1))
        if len(groups) < len(ids):
            ids, ends, columns = (
                found_ids,
                self.slicing.ends(numbers),
                self.aggregates.merge(groups, columns),
            )
        self.add(ids, ends, columns)

    def _add_to(self, end: int, ids: Longs, columns: Columns) -> None:
        found = self._slices.get(end)
        if found is None:
            found = self._slices[end] = Slice(self.aggregates)
            insort(self._ends, end)
        if end <= self._merged_until:
            self._merger.forget()
        found.add(ids, columns, len(self.index))
        if self.lateness_ms and self.slicing.next_window_end(end) - 1 <= self.clock_ms:
            self._touched.setdefault(end, []).append(ids)

    # ---- windows out ----

    def advance(self, clock_ms: int) -> Iterator[tuple[int, Part]]:
        """The clock has advanced: the windows that end by now, in order. Exhaust it before any other call."""
        before = self.clock_ms
        self.clock_ms = clock_ms
        if self._ends:
            yield from self._due(before, clock_ms)
        self._remove_until(clock_ms)

    def _due(self, before: int, clock_ms: int) -> Iterator[tuple[int, Part]]:
        slicing, ends = self.slicing, self._ends
        keys = len(self.index)
        end = slicing.next_window_end(max(before + 2, ends[0]))
        while end - 1 <= clock_ms:
            part = self._merger.window(end, ends, self._part, keys)
            if part is None:
                ahead = bisect_left(ends, end)
                if ahead == len(ends):
                    return
                end = slicing.next_window_end(ends[ahead])
                continue
            self._merged_until = max(self._merged_until, end)
            self._largest_window = max(self._largest_window // 2, int(np.count_nonzero(part.columns[0])))
            yield end, part
            end = slicing.next_window_end(end + 1)

    def refreshed(self) -> Iterator[tuple[int, Part]]:
        """The windows that were emitted before and have changed since the last call, with the changed keys only."""
        touched, self._touched = self._touched, {}
        if not touched:
            return
        slicing, keys = self.slicing, len(self.index)
        due: dict[int, list[Longs]] = {}
        for end, ids in touched.items():
            last = min(slicing.last_window_end(end), self.clock_ms + 1)
            window_end = slicing.next_window_end(max(end, self.clock_ms - self.lateness_ms + 2))
            while window_end <= last:
                due.setdefault(window_end, []).extend(ids)
                window_end = slicing.next_window_end(window_end + 1)
        everyone = np.unique(np.concatenate([i for ids in touched.values() for i in ids]))
        merger = WindowMerger(slicing, self.aggregates)
        for window_end in sorted(due):
            part = merger.window(window_end, self._ends, lambda e: self._part(e).only(everyone), keys)
            assert part is not None
            yield window_end, part.only(np.unique(np.concatenate(due[window_end])))

    def _part(self, end: int) -> Part:
        return self._slices[end].part(len(self.index))

    def recover_clock(self, clock_ms: int) -> None:
        """Set the clock of the checkpoint: windows that end by then were emitted before it."""
        self.clock_ms = self._merged_until = clock_ms
        self._remove_until(clock_ms)

    def _remove_until(self, clock_ms: int) -> None:
        self._late_before = (
            MIN_TIMESTAMP
            if clock_ms == MIN_TIMESTAMP
            else self.slicing.late_before(clock_ms, self.lateness_ms)
        )
        over = bisect_right(self._ends, self._late_before)
        if not over:
            return
        for end in self._ends[:over]:
            gone = self._slices.pop(end)
            if gone.written:
                ids = gone.part(len(self.index)).rows()[0]
                self._removed.append((self.index.keys(ids), end))
        del self._ends[:over]
        if not self._ends:
            self._merger.forget()

    def forget_keys(self) -> None:
        """Renumber the keys when nearly all of them are gone; this makes all earlier ids invalid."""
        keys = len(self.index)
        if keys <= max(_FEW_KEYS, 4 * self._largest_window):
            return
        live = np.zeros(keys, np.bool_)
        for s in self._slices.values():
            live[s.part(keys).rows()[0]] = True
        ids = np.flatnonzero(live)
        if 4 * len(ids) > keys:
            return
        new_ids = np.full(keys, -1)
        new_ids[ids] = np.arange(len(ids))
        index = KeyIndex()
        if len(ids):
            given = index.ids(self.index.keys(ids))
            new_ids[ids] = given
        for s in self._slices.values():
            s.renumber(new_ids, len(ids))
        self.index = index
        self._merger.forget()

    # ---- snapshots ----

    def take_changes(self) -> tuple[Longs, Longs, Columns]:
        """Id, slice and row of everything that has changed since the last call."""
        found: list[tuple[int, Part]] = []
        for end in self._ends:
            s = self._slices[end]
            if s.changed:
                ids = np.unique(np.concatenate(s.changed))
                s.changed, s.written = [], True
                found.append((end, self._part(end).only(ids)))
        return self._rows_of(found)

    def take_removed(self) -> list[tuple[list[pa.Array], int]]:
        """The keys and slice of everything that a snapshot had and that was removed since the last call."""
        removed, self._removed = self._removed, []
        return removed

    def everything(self) -> tuple[Longs, Longs, Columns]:
        """Id, slice and row of everything."""
        return self._rows_of([(end, self._part(end)) for end in self._ends])

    def restore(self, ids: Longs, ends: Longs, columns: Columns) -> None:
        """Add rows of a snapshot."""
        for end, own, rows in _by_slice(ids, ends, columns):
            self._add_to(end, own, rows)
            restored = self._slices[end]
            restored.changed, restored.written = [], True

    def _rows_of(self, parts: list[tuple[int, Part]]) -> tuple[Longs, Longs, Columns]:
        rows = [(end, *part.rows()) for end, part in parts]
        rows = [r for r in rows if len(r[1])]
        if not rows:
            empty = [pa.array([], f.type) for f in self.aggregates.schema]
            return _NO_IDS, _NO_IDS, self.aggregates.from_arrow(empty)
        ids = np.concatenate([r[1] for r in rows])
        ends = np.concatenate([np.full(len(r[1]), r[0]) for r in rows])
        return ids, ends, [concat([r[2][i] for r in rows]) for i in range(len(self.aggregates.schema))]


def _by_slice(ids: Longs, ends: Longs, columns: Columns) -> Iterator[tuple[int, Longs, Columns]]:
    """The rows of each slice, in order of arrival."""
    steps = np.diff(ends)
    if len(steps) and int(steps.min()) < 0:
        order = np.argsort(ends, kind="stable")
        ids, ends, columns = ids[order], ends[order], take(columns, order)
        steps = np.diff(ends)
    cuts = [0, *(np.flatnonzero(steps) + 1).tolist(), len(ends)]
    for start, end in pairwise(cuts):
        yield int(ends[start]), ids[start:end], [c[start:end] for c in columns]


def aggregate_batch(
    slicing: Slicing,
    aggregates: WindowAggregates,
    ids: Longs,
    keys: int,
    timestamps: Longs,
    inputs: Inputs,
) -> tuple[Longs, Longs, Columns]:
    """Aggregate records by (key, slice): id (below `keys`), end of the slice and partial results, each pair once."""
    numbers = slicing.numbers(timestamps)
    if slicing.has_gaps:
        covered = np.flatnonzero((numbers & 1) == 0)
        if len(covered) < len(ids):
            chosen = pa.array(covered)
            inputs = [[array.take(chosen) for array in own] for own in inputs]
            ids, numbers, timestamps = ids[covered], numbers[covered], timestamps[covered]
    if not len(ids):
        return _NO_IDS, _NO_IDS, aggregates.partial(Groups(ids, 0), inputs, timestamps)
    groups, found_ids, found_numbers = grouped_pairs(ids, keys, numbers)
    return found_ids, slicing.ends(found_numbers), aggregates.partial(groups, inputs, timestamps)
