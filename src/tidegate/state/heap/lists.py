"""Lists on the heap: whole lists of kept elements. A list in `changed` is in no older generation, so it may grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.cells import ListCells, TtlValueCells, ValueCells
from tidegate.state.generations import REMOVED
from tidegate.state.serializers import ValueSerializer


class WholeLists(ValueCells, ListCells):
    """The list of the current key, without a time to live."""

    def read(self) -> list[Any]:
        kept = super().read()
        return [] if kept is REMOVED else kept

    def own_list(self, more: int = 1) -> list[Any]:
        """The list of this generation, or a copy of the older one."""
        key, table = self.key(), self.table
        found: Any = table.changed.get(key)
        if found is None or found is REMOVED:
            older: Any = REMOVED if found is REMOVED else table.load(key)
            found = table.changed[key] = [] if older is REMOVED else list(older)
        owned: list[Any] = found
        return owned


class TtlWholeLists(WholeLists, TtlValueCells):
    """The list of the current key, with a time to live."""

    def own_list(self, more: int = 1) -> list[Any]:
        key, now = self.key(), self.clock.now()
        cell = self.table.find(key)
        is_gone = cell is REMOVED or self.clock.is_expired(cell[0], now)
        owned: list[Any] = [] if is_gone else self._renewed(key, cell[1])
        self.table.put(key, (now, owned))
        return owned

    def _renewed(self, key: Any, kept: Any) -> Any:
        """A copy if the list is of an older generation, which may be in the middle of being written to a file."""
        return kept if key in self.table.changed else list(kept)


class ListColumn:
    """Converts lists of kept elements to one column and back."""

    def __init__(self, element: ValueSerializer, nullable: bool) -> None:
        self._element = element
        self.arrow_type = pa.list_(pa.field("item", element.arrow_type, nullable))

    def to_column(self, kept: Sequence[list[Any]]) -> pa.Array:
        offsets = np.zeros(len(kept) + 1, np.int32)
        np.cumsum([len(v) for v in kept], out=offsets[1:])
        items = self._element.to_column([item for v in kept for item in v])
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=self.arrow_type)

    def from_column(self, column: pa.Array) -> list[list[Any]]:
        items = self._element.from_column(column.flatten())
        ends = np.cumsum(pc.list_value_length(column).to_numpy()).tolist()
        return [items[a:b] for a, b in zip([0, *ends], ends, strict=False)]
