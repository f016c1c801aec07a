"""One row state between its table and its files: what a snapshot writes, and what a restore reads.

The mailbox thread calls `restore` and `freeze`. The thread of the asynchronous part calls, once, what `freeze` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any

import pyarrow as pa

from tidegate.snapshot.handles import StateSchema
from tidegate.state.backend import NO_WATERMARK
from tidegate.state.generations import CLEARED, REMOVED, Entries
from tidegate.state.heap.files import Encoded, RowLayout, StoredRows, Watermarks, encode, one_array, portions
from tidegate.state.heap.maps import MapTable
from tidegate.state.heap.values import Generation, HeapTable, chunks
from tidegate.state.ttl import TtlClock


class RowStore:
    """The table of a row state and its conversion to files. With untyped keys there is no layout, and no snapshot."""

    def __init__(
        self, table: HeapTable, schema: StateSchema, layout: RowLayout | None, clock: TtlClock | None
    ) -> None:
        self.table = table
        self.schema = schema
        self._clock = clock
        self._maybe_layout = layout
        self._marks: dict[int, Watermarks | None] = {}
        self._completed_marks: Watermarks | None = None

    @property
    def _layout(self) -> RowLayout:
        assert self._maybe_layout is not None, "a backend with untyped keys takes no snapshots"
        return self._maybe_layout

    def __len__(self) -> int:
        return len(self.table)

    # ---- snapshots ----

    def freeze(self, checkpoint_id: int, full: bool) -> Callable[[], list[Encoded]]:
        """Freeze the current state; the result makes rows of a file of it."""
        table = self.table
        table.sweep()
        generations = table.freeze(checkpoint_id)
        marks = self._watermarks()
        if not full and not generations and (marks is None or marks == self._completed_marks):
            return list
        self._marks[checkpoint_id] = marks
        settled, layers = table.settled, list(table.frozen)
        table.hold(checkpoint_id)

        def write() -> list[Encoded]:
            try:
                rows = self._full_rows(settled, layers) if full else self._changed_rows(generations)
                found = encode(self.schema, rows, "base" if full else "increment", marks)
                return [] if found is None else [found]
            finally:
                self.release(checkpoint_id)

        return write

    def release(self, checkpoint_id: int) -> None:
        """The snapshot of this checkpoint is not read any more, or never will be. Any thread."""
        self.table.release(checkpoint_id)

    def complete(self, checkpoint_id: int) -> None:
        self._completed_marks = self._marks.get(checkpoint_id, self._completed_marks)
        self._marks = {c: marks for c, marks in self._marks.items() if c > checkpoint_id}
        self.table.complete(checkpoint_id)

    def _watermarks(self) -> Watermarks | None:
        clock = self._clock
        if clock is None or not clock.is_event_time:
            return None
        return Watermarks(clock.now(), clock.event_time.first_ms)

    def _changed_rows(self, generations: list[Generation]) -> Iterator[pa.RecordBatch]:
        yield self._layout.columns([], self._no_map_keys(), [])  # so that a file without rows has a schema
        for keys, values in chunks(self.table.merged(generations) if generations else {}):
            yield from self._portion(keys, values)

    def _full_rows(self, settled: Entries, layers: list[Generation]) -> Iterator[pa.RecordBatch]:
        """All live rows: the settled state, overlaid with the frozen generations."""
        yield self._layout.columns([], self._no_map_keys(), [])
        changes = self.table.merged(layers) if layers else {}
        for keys, values in chunks(settled):
            if changes:
                same = [k not in changes for k in keys]
                keys, values = list(compress(keys, same)), list(compress(values, same))
            yield from self._portion(keys, values)
        for keys, values in chunks(changes):
            if isinstance(self.table, MapTable):
                values = [_whole_map(settled.get(k), v) for k, v in zip(keys, values, strict=True)]
            else:
                alive = [v is not REMOVED for v in values]
                keys, values = list(compress(keys, alive)), list(compress(values, alive))
            yield from self._portion(keys, values)

    def _portion(self, keys: list[Any], values: list[Any]) -> Iterator[pa.RecordBatch]:
        if isinstance(self.table, MapTable):
            yield from self._map_columns(keys, values)
        else:
            yield self._layout.columns(keys, None, values)

    def _no_map_keys(self) -> list[Any] | None:
        return [] if isinstance(self.table, MapTable) else None

    def _map_columns(self, owners: list[Any], maps: list[Entries]) -> Iterator[pa.RecordBatch]:
        keys: list[Any] = []
        map_keys: list[Any] = []
        cells: list[Any] = []
        for key, entries in zip(owners, maps, strict=True):
            if CLEARED in entries:  # first row of its key: removes what older files have
                keys.append(key)
                map_keys.append(REMOVED)
                cells.append(REMOVED)
            for map_key, cell in entries.items():
                if map_key is not CLEARED:
                    keys.append(key)
                    map_keys.append(map_key)
                    cells.append(cell)
        for k, m, c in zip(portions(keys), portions(map_keys), portions(cells), strict=True):
            yield self._layout.columns(k, m, c)

    # ---- restore ----

    def restore(self, files: Sequence[StoredRows]) -> None:
        """Add the files of one handle, in order, to the settled state."""
        found: Entries = {}
        for stored in files:
            for batch in stored.table.to_batches(max_chunksize=1 << 18):
                rows = pa.Table.from_batches([batch])
                keys = self._layout.keys.from_column(one_array(rows.column("key")))
                cells = self._layout.cells(rows)
                if isinstance(self.table, MapTable):
                    self._restore_maps(found, rows, keys, cells)
                else:
                    found.update(zip(keys, cells, strict=True))
        if not isinstance(self.table, MapTable):
            for key in [k for k, v in found.items() if v is REMOVED]:
                del found[key]
        if self._clock is not None and files:
            self._restore_times(self._clock.duration_ms, found, files[-1].marks)
        if self.table.settled:
            self.table.settled.update(found)
        else:
            self.table.settled = found

    def _restore_maps(self, found: Entries, rows: pa.Table, keys: list[Any], cells: list[Any]) -> None:
        column = one_array(rows.column("map_key"))
        whole = column.is_null().to_pylist()
        map_keys = iter(self._layout.stored_map_keys(column.drop_null()))
        for key, cell, is_whole in zip(keys, cells, whole, strict=True):
            if is_whole:
                found.pop(key, None)
            elif cell is not REMOVED:
                found.setdefault(key, {})[next(map_keys)] = cell
            else:
                entries = found.get(key, {})
                entries.pop(next(map_keys), None)
                if not entries:
                    found.pop(key, None)

    def _restore_times(self, duration_ms: int, found: Entries, marks: Watermarks | None) -> None:
        """Drop values that had expired in event time; queue all others for expiry."""
        for key in list(found):
            entries = found[key] if isinstance(self.table, MapTable) else {None: found[key]}
            for map_key, (written, kept) in list(entries.items()):
                if marks is not None and written == NO_WATERMARK:
                    written = marks.first_ms
                gone = marks is not None and written != NO_WATERMARK
                if gone and marks is not None and marks.now_ms >= written + duration_ms:
                    del entries[map_key]
                    continue
                entries[map_key] = (written, kept)
                self.table.expect(key if map_key is None else (key, map_key), written)
            if not entries:
                del found[key]
            elif not isinstance(self.table, MapTable):
                found[key] = entries[None]


def _whole_map(settled: Entries | None, changes: Entries) -> Entries:
    older = {} if settled is None or CLEARED in changes else settled
    entries = {**older, **changes}
    return {m: v for m, v in entries.items() if v is not REMOVED and m is not CLEARED}
