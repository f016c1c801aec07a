"""The source contract, in the shape of Flink's FLIP-27: splits, an enumerator, readers.

- A **split** is a part of the input with a position inside it: a file range, a partition, a span of numbers. It is a
  `msgspec.Struct` with an `id`, and is stored in checkpoints as JSON.
- The **enumerator** lives in the JobManager, finds splits and assigns them. One thread calls it.
- A **reader** lives in a slot and never blocks. The mailbox thread polls it. At any time `snapshot` says which
  splits it still has, each at the position of its next record. A reader that gets those splits continues from there.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

import msgspec
from typing_extensions import TypeVar

from tidegate.core.clock import Clock
from tidegate.core.identity import Identity, class_identity
from tidegate.core.subtask_info import SubtaskContext, SubtaskInfo
from tidegate.records.batch import Batch
from tidegate.records.rows import Row
from tidegate.records.type_variables import AnyRecordOut
from tidegate.records.types import RecordType

AnySplit = TypeVar("AnySplit", bound="SourceSplit", default=Any)


class Boundedness(enum.Enum):
    """Whether a source ends by itself."""

    BOUNDED = "bounded"
    CONTINUOUS_UNBOUNDED = "unbounded"


class SourceSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the input and the position inside it; subclass with the fields that a reader needs."""

    id: str


class Idle(msgspec.Struct, frozen=True):
    """A reader's answer when it has no records now.

    `wake_at_ns` (monotonic clock) says when to poll again. None: when the reader calls `wake` of its context, or gets
    new splits.
    """

    wake_at_ns: int | None = None


class Finished(msgspec.Struct, frozen=True):
    """A reader's answer when it has read all its splits and no more will come."""


IDLE = Idle()
FINISHED = Finished()


class Counter(Protocol):
    """A metric that only grows."""

    def inc(self, n: int = 1) -> None: ...


class Gauge(Protocol):
    """A metric that goes up and down."""

    def set(self, value: int) -> None: ...


@dataclass(eq=False, kw_only=True)
class ReaderContext(SubtaskContext):
    """What a reader may use but not change. The runtime makes it. Call it on the mailbox thread only, except `wake`."""

    subtask: SubtaskInfo
    clock: Clock
    batch_rows: int
    """How many records the next batch may have. Read it at each `poll`: it is smaller while the operators chained after
    the source are slow (a checkpoint waits until they have finished a batch) or take Python objects one by one."""
    most_batch_rows: int
    """The upper limit of `batch_rows`: read this many at once if slicing is cheaper than reading."""
    request_split: Callable[[], None]
    """Request a split from the enumerator, which answers through `add_splits` or `no_more_splits`."""
    wake: Callable[[], None]
    """Make the runtime poll soon. Any thread may call it."""
    counter: Callable[[str], Counter]
    """Returns a counter of this subtask by name."""
    side_output: Callable[[str, Batch], None]
    """Emit a batch to the side output with this tag id (for records that could not be parsed)."""


class SourceReader(ABC, Generic[AnyRecordOut, AnySplit]):
    """Reads splits in one slot. One thread calls it; it never blocks.

    A snapshot may be taken between any two polls.
    """

    last_split: str | None = None
    """The id of the split that the last batch came from, so that each split has its own watermark and is named when it
    holds event time back. Empty before the first batch; None: the reader does not say."""

    def start(self) -> None:
        """Called once before the first poll, after the splits of a checkpoint were added."""

    @abstractmethod
    def poll(self) -> Batch[AnyRecordOut] | Idle | Finished:
        """Return the next records, `IDLE` (none now) or `FINISHED` (no more).

        Return at least one record and at most `batch_rows` of the context. A larger batch is accepted, but delays
        checkpoints.
        """

    def records_behind(self) -> int | None:
        """How many records wait in its splits, as far as it knows; None: it cannot tell.

        It shows whether a job catches up after a failure. Called after every poll, so it must do no I/O.
        """
        return None

    @abstractmethod
    def add_splits(self, splits: Sequence[AnySplit]) -> None:
        """Start to read these splits, each from its position."""

    @abstractmethod
    def no_more_splits(self) -> None:
        """Note that the enumerator will assign no more splits to this reader."""

    @abstractmethod
    def snapshot(self) -> list[AnySplit]:
        """Return the unfinished splits, each at the position of the next record that `poll` would return."""

    def reading(self) -> list[str]:
        """The ids of the splits that are read concurrently: the watermark waits for each of them.

        A reader that takes its splits one after the other returns only the current one, from its first record to its
        last. If it also returned those that come later, event time would stand still until the last one starts.
        """
        return [split.id for split in self.snapshot()]

    def close(self) -> None:
        """Release files, sockets and threads. Called once, also after a failure."""


class EnumeratorContext(Protocol):
    """What an enumerator may do, on its own thread only (in the JobManager)."""

    @property
    def parallelism(self) -> int:
        """The number of readers."""
        ...

    @property
    def clock(self) -> Clock: ...

    def assign(self, splits: Sequence[SourceSplit], subtask: int) -> None:
        """Send splits to a reader."""
        ...

    def no_more_splits(self, subtask: int) -> None:
        """Notify a reader that no split follows."""
        ...


class SplitEnumerator(ABC):
    """Finds splits and assigns them to readers. It lives in the JobManager; one thread calls it.

    If `poll_interval_ms` is None, `poll` is never called.
    """

    poll_interval_ms: int | None = None

    def start(self) -> None:
        """Called once, before any request. If it raises, the job fails with that message."""

    @abstractmethod
    def handle_split_request(self, subtask: int) -> None:
        """A reader has no split left: `assign` one, call `no_more_splits`, or remember that it waits."""

    def poll(self) -> None:
        """Look for new splits; called every `poll_interval_ms`."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the state as a JSON-able value, for `Source.restore_enumerator`."""

    def close(self) -> None:
        """Release what `start` acquired."""


class Source(ABC, Generic[AnyRecordOut]):
    """Where a stream starts: a picklable description that is opened only in the slots and the JobManager."""

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """Whether the source ends by itself."""

    @property
    @abstractmethod
    def record_type(self) -> RecordType:
        """The type of its records. It may read the input (a Parquet footer), and so may raise."""

    @property
    def resettable(self) -> bool:
        """Whether a reader can restart at a stored position (a socket cannot)."""
        return True

    @property
    def split_type(self) -> type[SourceSplit]:
        """The class of its splits, which are sent and stored as JSON."""
        return SourceSplit

    @abstractmethod
    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Make the enumerator of a new job."""

    @abstractmethod
    def restore_enumerator(self, context: EnumeratorContext, state: Any) -> SplitEnumerator:
        """Make the enumerator from a `SplitEnumerator.snapshot`."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader[AnyRecordOut]:
        """Make the reader of one subtask."""

    @property
    def fixed_parallelism(self) -> int | None:
        """The only parallelism that the source allows (a socket: 1), or None."""
        return None

    def side_outputs(self) -> dict[str, RecordType]:
        """Side outputs that its readers may emit to, by tag id (for records that cannot be parsed)."""
        return {}

    def with_columns(self, names: Sequence[str]) -> Source[Row] | None:
        """A source that reads only these columns, in this order; None if that saves nothing."""
        return None

    def describe(self) -> str:
        """A few words for the plan: what is read, and how."""
        return type(self).__name__

    def identity(self) -> Identity:
        """What is read, for ids of operators without a uid (see `core/identity.py`); not for display.

        Two sources of one class that read different things need different identities, or a uid each.
        """
        return (class_identity(self),)


class FixedSplitsEnumerator(SplitEnumerator):
    """Assigns a fixed list of splits, one per request."""

    def __init__(self, context: EnumeratorContext, splits: Sequence[SourceSplit]) -> None:
        self._context = context
        self._pending = list(splits)

    def handle_split_request(self, subtask: int) -> None:
        if self._pending:
            self._context.assign([self._pending.pop(0)], subtask)
        else:
            self._context.no_more_splits(subtask)

    def snapshot(self) -> Any:
        return list(self._pending)
