"""The contract of keyed state backends; all pass the suite `tests/contract/test_state_backends.py`.

Each operator subtask has one backend, owned by the mailbox thread of the slot. The operator sets `current_key` before
it runs user code for a record, and `NO_KEY` after it. `snapshot` is the synchronous part: it is short and freezes the
state. The callable that it returns is the asynchronous part: it runs once on another thread while the mailbox thread
goes on.

Increments build only on **completed** checkpoints: what was written for an aborted one is written again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.api.state import KeyedState
from tidegate.core.clock import Clock
from tidegate.core.key_groups import KeyGroupRange
from tidegate.core.options import Options
from tidegate.records.decimals import array_of_pairs, pairs_of
from tidegate.records.types import RecordType
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.generations import ValueGenerations
from tidegate.storage.storage import CheckpointStorage, SnapshotWriter


class NoKeyError(Exception):
    """`NO_KEY` was used to look up or store something."""


class NoKey:
    """The type of `NO_KEY`. It has no hash, so no table accepts it, and live states need not check for it."""

    def __repr__(self) -> str:
        return "NO_KEY"

    def __hash__(self) -> int:
        raise NoKeyError


NO_KEY: Final = NoKey()
"""`current_key` while there is none; using keyed state then raises an error."""

NO_WATERMARK: Final = -(1 << 63)
"""`current_watermark_ms` before the first watermark."""

AsyncPart = Callable[[SnapshotWriter], KeyedStateHandle]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BackendContext:
    """What a backend knows about its subtask."""

    operator_name: str
    subtask_index: int
    attempt: int
    key_type: RecordType
    """The type of the keys; `current_key` is a row of it (the plain value if the key is one column)."""
    key_groups: KeyGroupRange
    max_parallelism: int
    clock: Clock
    options: Options
    local_directory: Callable[[], str]
    """Makes, once, an empty local directory for this subtask, which is removed when the slot ends."""

    def shares_nothing(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint must not refer to files of earlier ones. The id decides, so all subtasks agree."""
        every = self.options.checkpoint_full_every
        return every > 0 and checkpoint_id % every == 0


class ColumnTable(ABC):
    """Vectorised values per key for built-in aggregates: a fixed set of numeric arrays, indexed by key.

    `begin` returns dense ids of the batch's keys, and the arrays of values by id, to be changed in place. `commit` says
    which ids have changed. Nothing else may happen to the backend between the two.
    """

    @abstractmethod
    def begin(self, keys: Sequence[pa.Array]) -> tuple[Ids, int, list[npt.NDArray[Any]]]:
        """Return (the id of each row, the number of ids, the value arrays: views of at least that many elements).

        New ids have the initial values of the arrays.
        """

    @abstractmethod
    def commit(self, touched: Ids | None = None) -> None:
        """Keep the changes of these ids (None: of all ids of the batch)."""


@dataclass(frozen=True)
class ColumnArray:
    """One value array of a `ColumnTable`. Arrays of decimals have dtype `PAIR` and set `decimal`."""

    name: str
    dtype: np.dtype[Any]
    initial: Any
    decimal: pa.Decimal128Type | None = None

    @property
    def type_name(self) -> str:
        """The type in the schema of the state; part of its fingerprint."""
        d = self.decimal
        return str(self.dtype) if d is None else f"decimal128({d.precision}, {d.scale})"

    def to_arrow(self, values: npt.NDArray[Any]) -> pa.Array:
        """The values as a column of a state file."""
        return pa.array(values) if self.decimal is None else array_of_pairs(values, self.decimal)

    def to_numpy(self, column: pa.Array) -> npt.NDArray[Any]:
        """The values of a column of a state file."""
        if self.decimal is not None:
            return pairs_of(column)
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values


@dataclass(frozen=True)
class PaneRows:
    """Rows of a `PaneTable`: key columns (as in `ColumnTable.begin`), panes and values, of equal length."""

    keys: Sequence[pa.Array]
    panes: Ids
    values: Sequence[pa.Array]

    def __len__(self) -> int:
        return len(self.panes)


class PaneTable(ABC):
    """The durable copy of window state, (key, pane) -> Arrow values, for a vectorised operator with its own live copy.

    A pane is any int64 (the end of a slice, the start of a session). In its `snapshot` the operator passes what has
    changed since the last one. The table makes every checkpoint complete, whichever earlier ones were aborted.
    """

    @abstractmethod
    def restored(self) -> Iterator[PaneRows]:
        """Yield what the checkpoint has for the key groups of this subtask, in portions. Called once, in `open`."""

    @abstractmethod
    def write(self, changed: PaneRows, removed: PaneRows, everything: Callable[[], PaneRows]) -> None:
        """Take the changes since the last call. Called by every `Operator.snapshot`, on the mailbox thread.

        `removed` has no values. A (key, pane) occurs at most once in both together; removing one that is not stored is
        not an error. `everything` returns all live rows, for a table that writes a full copy now; it may be called only
        before `write` returns. The table owns the arrays from now on: none may be a view of data that still changes.
        """


@dataclass
class EventClock:
    """The watermarks that the state of a subtask has seen, in this attempt and before. Mailbox thread only."""

    now_ms: int = NO_WATERMARK
    """The latest one. It never goes back, even if an attempt starts without one."""
    first_ms: int = NO_WATERMARK

    def advance(self, watermark_ms: int) -> None:
        self.now_ms = max(self.now_ms, watermark_ms)
        if self.first_ms == NO_WATERMARK:
            self.first_ms = self.now_ms

    @classmethod
    def of_all(cls, restored: Sequence[EventClock]) -> EventClock:
        """The time of a subtask that takes over the state of several, chosen so that nothing expires too early."""
        now_ms = min((r.now_ms for r in restored), default=NO_WATERMARK)
        if now_ms == NO_WATERMARK:  # one of them has not seen a watermark yet
            return cls()
        return cls(now_ms, max(r.first_ms for r in restored))


class KeyedStateBackend(ABC):
    """The keyed state of one operator subtask."""

    name: ClassVar[str]
    """The value of the option `state.backend`. Checkpoints contain it, so it never changes."""

    def __init__(self, context: BackendContext) -> None:
        self.context = context
        self.event_time = EventClock()
        """The operator's watermark, for state with a time to live in event time."""
        # No default on the class: CPython 3.11 would look there first, each time, for 20 ns.
        self.current_key: Any = NO_KEY
        self.claimed: set[str] = set()
        """The names for which `state`, `columns` or `panes` was called."""

    @property
    def current_watermark_ms(self) -> int:
        """The operator's watermark. Setting an earlier one changes nothing."""
        return self.event_time.now_ms

    @current_watermark_ms.setter
    def current_watermark_ms(self, watermark_ms: int) -> None:
        self.event_time.advance(watermark_ms)

    @abstractmethod
    def state(self, declaration: KeyedState) -> KeyedState:
        """The live state of a declaration: a subclass of its class. Called in `open`, before the first record.

        If the checkpoint has a state of that name with another fingerprint, it raises a `StateCompatibilityError` that
        names both.
        """

    def table(self, declaration: KeyedState) -> ValueGenerations | None:
        """The table under the live state of a declaration, for a hot loop; see `generations` for the rules.

        None if the backend does not keep the user's values themselves: then use the live state.
        """
        return None

    @abstractmethod
    def keys(self, name: str) -> Iterator[Any]:
        """The keys that have something in the row state of this name; their order means nothing.

        States may be used during the iteration. Do not call it for every record: it may read all of the state.
        """

    @abstractmethod
    def columns(self, name: str, arrays: Sequence[ColumnArray]) -> ColumnTable:
        """The live column table of this name; the rules of `state` apply."""

    @abstractmethod
    def panes(self, name: str, values: pa.Schema) -> PaneTable:
        """The pane table of this name with these values; the rules of `state` apply."""

    @abstractmethod
    def restore(self, handles: Sequence[KeyedStateHandle], storage: CheckpointStorage) -> None:
        """Restore what belongs to `context.key_groups` from these handles. Called once, before any of the above.

        The caller has checked that this kind of backend wrote them (`check_written_by`).
        """

    @abstractmethod
    def snapshot(self, checkpoint_id: int) -> AsyncPart:
        """Freeze the current state (mailbox thread, short). The result writes it (another thread, once)."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Older checkpoints are superseded; the next increment builds on this one."""

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The files of this checkpoint are deleted, or will be: do not refer to them."""

    @property
    @abstractmethod
    def key_count(self) -> int:
        """Roughly how many (state, key) entries there are, for metrics."""

    @abstractmethod
    def close(self) -> None:
        """Release memory, files and threads. Called once, also after a failure."""
