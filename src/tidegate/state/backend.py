"""The contract of keyed state backends; `tests/contract/test_state_backends.py` is the suite that all pass.

One backend per operator subtask, owned by the slot's mailbox thread. The operator sets `current_key` before it runs
user code for a record, and `NO_KEY` after. `snapshot` is the synchronous part: short, it freezes what there is; the
callable that it returns is the asynchronous part, which runs once on another thread while the mailbox thread goes on.

Increments build on checkpoints that have **completed** only: what was written for an aborted one is written again.
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
    """Something was looked up or stored under `NO_KEY`."""


class NoKey:
    """The type of `NO_KEY`. It has no hash, so that no table takes it and a live state need not look for it."""

    def __repr__(self) -> str:
        return "NO_KEY"

    def __hash__(self) -> int:
        raise NoKeyError


NO_KEY: Final = NoKey()
"""`current_key` while there is none: keyed state is refused then."""

NO_WATERMARK: Final = -(1 << 63)
"""`current_watermark_ms` before the first watermark."""

AsyncPart = Callable[[SnapshotWriter], KeyedStateHandle]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BackendContext:
    """What a backend may know."""

    operator_name: str
    subtask_index: int
    attempt: int
    key_type: RecordType
    """The keys' type; `current_key` is a row of it (the plain value where the key is one column)."""
    key_groups: KeyGroupRange
    max_parallelism: int
    clock: Clock
    options: Options
    local_directory: Callable[[], str]
    """Makes (once) an empty local directory of this subtask that is removed when the slot ends."""

    def shares_nothing(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint must not refer to files of earlier ones; all subtasks decide alike, by its id."""
        every = self.options.checkpoint_full_every
        return every > 0 and checkpoint_id % every == 0


class ColumnTable(ABC):
    """Vectorised values per key for built-in aggregates: a fixed set of numeric arrays beside each key.

    `begin` gives the batch's keys dense ids and arrays of their values, indexed by id, to be changed in place; `commit`
    says which ids were changed. Nothing else may happen to the backend in between.
    """

    @abstractmethod
    def begin(self, keys: Sequence[pa.Array]) -> tuple[Ids, int, list[npt.NDArray[Any]]]:
        """(id of each row, number of ids, the value arrays - views of at least that many elements).

        Ids that are new have the arrays' initial values.
        """

    @abstractmethod
    def commit(self, touched: Ids | None = None) -> None:
        """Keep the changes of these ids (None: of all ids of the batch)."""


@dataclass(frozen=True)
class ColumnArray:
    """One value array of a `ColumnTable`; decimals are arrays of `PAIR` and say which decimals."""

    name: str
    dtype: np.dtype[Any]
    initial: Any
    decimal: pa.Decimal128Type | None = None

    @property
    def type_name(self) -> str:
        """What the schema of the state says: it is part of its fingerprint."""
        d = self.decimal
        return str(self.dtype) if d is None else f"decimal128({d.precision}, {d.scale})"

    def to_arrow(self, values: npt.NDArray[Any]) -> pa.Array:
        """Values as files have them."""
        return pa.array(values) if self.decimal is None else array_of_pairs(values, self.decimal)

    def to_numpy(self, column: pa.Array) -> npt.NDArray[Any]:
        """The way back."""
        if self.decimal is not None:
            return pairs_of(column)
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values


@dataclass(frozen=True)
class PaneRows:
    """Rows of a `PaneTable`: key columns (as `ColumnTable.begin` takes them), panes and values, of one length."""

    keys: Sequence[pa.Array]
    panes: Ids
    values: Sequence[pa.Array]

    def __len__(self) -> int:
        return len(self.panes)


class PaneTable(ABC):
    """The durable copy of window state that a vectorised operator keeps live itself: (key, pane) -> Arrow values.

    A pane is any int64 (the end of a slice, the start of a session). The operator says in its `snapshot` what has
    changed since it last did; the table sees to it that every checkpoint is complete, whatever was aborted before.
    """

    @abstractmethod
    def restored(self) -> Iterator[PaneRows]:
        """What the checkpoint had for the key groups of this subtask, in portions; asked once, in `open`."""

    @abstractmethod
    def write(self, changed: PaneRows, removed: PaneRows, everything: Callable[[], PaneRows]) -> None:
        """Take over the changes since the last call. Called from every `Operator.snapshot`, on the mailbox thread.

        `removed` has no values. A (key, pane) is at most once in both together; removing one that is not stored is no
        error. `everything` gives all live rows, for a table that now writes a whole copy; it may be called or not,
        before `write` returns. The arrays belong to the table from now on: none may be a view of what still changes.
        """


@dataclass
class EventTime:
    """The watermarks that the state of a subtask has seen, in this attempt and before. Mailbox thread only."""

    now_ms: int = NO_WATERMARK
    """The latest one: it never goes back, also not where an attempt begins without one."""
    first_ms: int = NO_WATERMARK

    def advance(self, watermark_ms: int) -> None:
        """A watermark came."""
        self.now_ms = max(self.now_ms, watermark_ms)
        if self.first_ms == NO_WATERMARK:
            self.first_ms = self.now_ms

    @classmethod
    def of_all(cls, restored: Sequence[EventTime]) -> EventTime:
        """Where a subtask goes on that takes over the state of several: nothing expires too early."""
        now_ms = min((r.now_ms for r in restored), default=NO_WATERMARK)
        if now_ms == NO_WATERMARK:  # for one of them the first is still to come
            return cls()
        return cls(now_ms, max(r.first_ms for r in restored))


class KeyedStateBackend(ABC):
    """The keyed state of one operator subtask."""

    name: ClassVar[str]
    """The value of `state.backend`; checkpoints have it, so it never changes."""

    def __init__(self, context: BackendContext) -> None:
        self.context = context
        self.event_time = EventTime()
        """The operator's watermark, for state with a time to live in event time."""
        # No default on the class: CPython 3.11 would look there each time, for 20 ns, before it looks here.
        self.current_key: Any = NO_KEY
        self.claimed: set[str] = set()
        """The names that `state`, `columns` and `panes` were asked for."""

    @property
    def current_watermark_ms(self) -> int:
        """The operator's watermark; one that is behind changes nothing."""
        return self.event_time.now_ms

    @current_watermark_ms.setter
    def current_watermark_ms(self, watermark_ms: int) -> None:
        self.event_time.advance(watermark_ms)

    @abstractmethod
    def state(self, declaration: KeyedState) -> KeyedState:
        """The live state of a declaration: a subclass of its class. Called before the first record, in `open`.

        After a restore, a state of that name with another fingerprint is a `StateCompatibilityError` naming both.
        """

    def table(self, declaration: KeyedState) -> ValueGenerations | None:
        """The table under the live state of a declaration, for a hot loop; see `generations` for what it may do.

        None where the backend does not keep the user's values themselves there: then the live state is to be used.
        """
        return None

    @abstractmethod
    def keys(self, name: str) -> Iterator[Any]:
        """The keys that have something in the row state of this name, as of now; their order means nothing.

        States may be used while they are iterated. Not for every record: it may read all of the state.
        """

    @abstractmethod
    def columns(self, name: str, arrays: Sequence[ColumnArray]) -> ColumnTable:
        """The live column table of this name; the same rules as for `state`."""

    @abstractmethod
    def panes(self, name: str, values: pa.Schema) -> PaneTable:
        """The pane table of this name, with these values; the same rules as for `state`."""

    @abstractmethod
    def restore(self, handles: Sequence[KeyedStateHandle], storage: CheckpointStorage) -> None:
        """Take from these handles what belongs to `context.key_groups`. Called once, before any of the above.

        Handles of the other backend are taken too where the format allows it; else a `StateCompatibilityError` says so.
        """

    @abstractmethod
    def snapshot(self, checkpoint_id: int) -> AsyncPart:
        """Freeze the state of this moment (mailbox thread, short); the result writes it (another thread, once)."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """All checkpoints up to this one are done for: the next increment builds on it."""

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """This checkpoint's files are gone or going; nothing may refer to them."""

    @property
    @abstractmethod
    def key_count(self) -> int:
        """About how many (state, key) entries there are, for metrics."""

    @abstractmethod
    def close(self) -> None:
        """Release memory, files and threads; called once, also after a failure."""
