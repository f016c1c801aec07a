"""Pane tables of the heap backend: only the changes since the last completed checkpoint.

The operator keeps the live rows. What it passes to `write` is kept unchanged until a checkpoint that contains it is
complete; the thread of the asynchronous part makes columns of it. After many checkpoints in a row that did not
complete, the changes are dropped and the operator must pass a full copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.core.errors import CheckpointError
from tidegate.keys.key_index import KeyIndex
from tidegate.snapshot.handles import StateSchema
from tidegate.state.backend import PaneRows, PaneTable
from tidegate.state.heap.files import Encoded, StoredRows, encode, one_array, relaxed, retyped
from tidegate.state.serializers import KeySerializer

_MOST_OPEN: Final = 8
_PORTION: Final = 1 << 18
_NEVER: Final = -1


@dataclass(frozen=True)
class _Change:
    checkpoint_id: int
    changed: PaneRows
    removed: PaneRows


class PaneStore(PaneTable):
    """One pane table. Mailbox thread, except for what `freeze` returns."""

    def __init__(
        self,
        schema: StateSchema,
        values: pa.Schema,
        keys: KeySerializer | None,
        max_parallelism: int,
        writes_base: Callable[[], bool],
    ) -> None:
        self.schema = schema
        self._value_type = pa.struct(list(values))
        self._maybe_keys = keys
        self._max_parallelism = max_parallelism
        self._writes_base = writes_base
        self._given: list[tuple[PaneRows, PaneRows]] = []
        self._whole: PaneRows | None = None
        self._open: list[_Change] = []
        """The changes that no completed checkpoint has, oldest first."""
        self._dropped = _NEVER
        """The newest checkpoint whose changes were dropped."""
        self._completed = _NEVER
        self._everything: Callable[[], PaneRows] | None = None
        """All rows, between a `write` and the snapshot that follows it."""
        self._row_count = 0
        self._stored: list[list[StoredRows]] = []

    def __len__(self) -> int:
        return self._row_count

    @property
    def _keys(self) -> KeySerializer:
        assert self._maybe_keys is not None, "a backend with untyped keys takes no snapshots"
        return self._maybe_keys

    # ---- for the operator ----

    def restored(self) -> Iterator[PaneRows]:
        """What the checkpoint had; once."""
        stored, self._stored = self._stored, []
        for files in stored:
            table = _latest(files, self._keys)
            self._row_count += table.num_rows
            for batch in table.to_batches(max_chunksize=_PORTION):
                values = retyped(batch.column("value"), self._value_type)
                yield PaneRows(
                    self._keys.split(batch.column("key")), batch.column("pane").to_numpy(), values.flatten()
                )

    def write(self, changed: PaneRows, removed: PaneRows, everything: Callable[[], PaneRows]) -> None:
        """Keep the changes for the next snapshot, or a full copy."""
        if len(changed) or len(removed):
            self._given.append((changed, removed))
        self._everything = everything
        if self._writes_base():
            self._whole = everything()
            self._row_count = len(self._whole)

    # ---- snapshots ----

    @property
    def needs_base(self) -> bool:
        """Whether changes were dropped that the last completed checkpoint does not have."""
        return self._completed < self._dropped

    def freeze(self, checkpoint_id: int, full: bool) -> Callable[[], list[Encoded]]:
        """Make what was written part of this checkpoint; the result makes rows of a file of it."""
        whole, self._whole = self._whole, None
        everything, self._everything = self._everything, None
        if (
            full and whole is None and everything is not None
        ):  # asked for by the checkpoint: nobody has changed anything
            whole = everything()
            self._row_count = len(whole)
        self._open += [_Change(checkpoint_id, changed, removed) for changed, removed in self._given]
        self._given = []
        if full and whole is None:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} needs all rows of state {self.schema.name!r}, but its operator has not "
                f"written any. The operator must call `write` in each `snapshot`"
            )
        changes = list(self._open)
        if len(changes) > _MOST_OPEN:
            self._dropped = checkpoint_id
            self._open = []

        def make() -> list[Encoded]:
            rows = self._full_rows(whole) if whole is not None and full else self._changed_rows(changes)
            found = encode(self.schema, rows, "base" if full else "increment")
            return [] if found is None else [found]

        return make

    def release(self, checkpoint_id: int) -> None:
        """Does nothing: what was written does not change."""

    def complete(self, checkpoint_id: int) -> None:
        self._completed = checkpoint_id
        self._open = [c for c in self._open if c.checkpoint_id > checkpoint_id]

    def _full_rows(self, whole: PaneRows) -> Iterator[pa.RecordBatch]:
        yield self._columns(whole, deleted=False)

    def _changed_rows(self, changes: Sequence[_Change]) -> Iterator[pa.RecordBatch]:
        for change in changes:
            yield self._columns(change.removed, deleted=True)
            yield self._columns(change.changed, deleted=False)

    def _columns(self, rows: PaneRows, deleted: bool) -> pa.RecordBatch:
        count = len(rows)
        key = self._keys.join(rows.keys)
        value_type = relaxed(self._value_type)
        if deleted:
            value = pa.nulls(count, value_type)
        else:
            value = pa.StructArray.from_arrays(
                [retyped(v, f.type) for v, f in zip(rows.values, value_type, strict=True)],
                fields=list(value_type),
            )
        return pa.record_batch(
            {
                "key_group": self._keys.key_groups(key, self._max_parallelism).astype(np.int32),
                "key": key,
                "pane": pa.array(rows.panes, pa.int64()),
                "value": value,
                "deleted": pa.array(np.full(count, deleted)),
            }
        )

    # ---- restore ----

    def restore(self, files: Sequence[StoredRows]) -> None:
        """Take the files of one handle, in order."""
        self._stored.append(list(files))


def _latest(files: Sequence[StoredRows], keys: KeySerializer) -> pa.Table:
    """The current rows of a base and its increments: the last of each key and pane, unless it is `deleted`."""
    table = pa.concat_tables([f.table for f in files])
    if len(files) > 1 or any(f.content == "increment" for f in files):
        ids = KeyIndex().ids(keys.split(one_array(table.column("key"))))
        panes: npt.NDArray[Any] = table.column("pane").to_numpy()
        order = np.lexsort((panes, ids))  # stable: the last of equal ones is the latest
        ids, panes = ids[order], panes[order]
        is_last = np.ones(len(order), np.bool_)
        is_last[:-1] = (ids[1:] != ids[:-1]) | (panes[1:] != panes[:-1])
        gone = table.column("deleted").to_numpy()
        kept = order[is_last]
        table = table.take(pa.array(np.sort(kept[~gone[kept]])))
    return pa.table({name: one_array(table.column(name)) for name in ("key", "pane", "value")})
