"""Pane tables in RocksDB: one entry per key and pane, used only when a snapshot writes changes.

The key in the database is the stream's key followed by the pane: 8 bytes, big-endian, plus 2**63. The value is a row of
`RowBytes`. The operator keeps the live rows, so only a restore reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.records.types import RecordType
from tidegate.state.backend import PaneRows, PaneTable
from tidegate.state.rocksdb.database import Entry
from tidegate.state.rocksdb.row_bytes import RowBytes
from tidegate.state.rocksdb.rows import TableContext
from tidegate.state.rocksdb.stored_keys import StoredKeys
from tidegate.state.rocksdb.write_back import FrozenEntries, Store

_PANE_BYTES: Final = 8
_BIAS: Final = np.uint64(1 << 63)
_CHUNK: Final = 65536


class RocksDBPaneTable(PaneTable, Store):
    """The pane table of one name."""

    def __init__(self, context: TableContext, key_type: RecordType, values: pa.Schema) -> None:
        self._context = context
        self._rows = RowBytes(values)
        self._keys = StoredKeys(key_type)
        self._written: list[tuple[PaneRows, PaneRows]] = []
        context.write_back.add(self)

    # ---- for the operator ----

    def restored(self) -> Iterator[PaneRows]:
        """The rows of this table in the database."""
        entries = self._context.entries()
        while chunk := list(islice(entries, _CHUNK)):
            found = [entry for entry, _ in chunk]
            panes = b"".join([entry[-_PANE_BYTES:] for entry in found])
            yield PaneRows(
                self._keys.columns_of(found, _PANE_BYTES),
                (np.frombuffer(panes, ">u8").astype(np.uint64) ^ _BIAS).view(np.int64),
                self._rows.to_columns([value for _, value in chunk]),
            )

    def write(self, changed: PaneRows, removed: PaneRows, everything: Callable[[], PaneRows]) -> None:
        """Keep the changes until they are written."""
        if len(changed) or len(removed):
            self._written.append((changed, removed))

    # ---- generations ----

    def freeze(self) -> FrozenEntries | None:
        """Without a copy: what was written does not change."""
        written, self._written = self._written, []
        return (lambda: self._entries(written)) if written else None

    def thaw(self) -> None:
        """Does nothing: nothing is kept."""

    def _entries(self, written: list[tuple[PaneRows, PaneRows]]) -> Iterator[Entry]:
        for changed, removed in written:
            yield from zip(self._places(removed), repeat(None))
            for start in range(0, len(changed), _CHUNK):
                rows = _portion(changed, start)
                yield from zip(self._places(rows), self._rows.of_columns(rows.values), strict=True)

    def _places(self, rows: PaneRows) -> Iterable[bytes]:
        panes: npt.NDArray[np.uint64] = np.ascontiguousarray(rows.panes, np.int64).view(np.uint64) ^ _BIAS
        tails: list[bytes] = panes.astype(">u8").view("V8").tolist()
        keys = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in rows.keys]
        return [k + t for k, t in zip(self._context.entry_keys.of_columns(keys), tails, strict=True)]


def _portion(rows: PaneRows, start: int) -> PaneRows:
    def part(columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [c.slice(start, _CHUNK) for c in columns]

    return PaneRows(part(rows.keys), rows.panes[start : start + _CHUNK], part(rows.values))
