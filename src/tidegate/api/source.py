"""The source contract, in the shape of Flink's FLIP-27: splits, an enumerator, readers.

- A **split** is a part of the input with a position inside it: a file range, a partition, a span of numbers. It is a
  `msgspec.Struct` (JSON-able: it will be part of checkpoints) with an `id`.
- The **enumerator** lives in the JobManager, finds splits and hands them out. It is called from one thread only.
- A **reader** lives in a slot, is polled by the mailbox thread, never blocks, and can say at any time which splits it
  still holds, each at the position of the next record (`snapshot`). A reader given those splits continues from there.
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
    """A reader's answer when there is nothing now.

    `wake_at_ns` (monotonic clock) is when to ask again; None means: when `wake` of the reader context is called, or
    new splits arrive.
    """

    wake_at_ns: int | None = None


class Finished(msgspec.Struct, frozen=True):
    """A reader's answer when all its splits are read and it was told that no more will come."""


IDLE = Idle()
FINISHED = Finished()


class Counter(Protocol):
    """A metric that only grows."""

    def inc(self, n: int = 1) -> None:
        """Add n."""
        ...


class Gauge(Protocol):
    """A metric that goes up and down."""

    def set(self, value: int) -> None:
        """The value from now on."""
        ...


@dataclass(eq=False, kw_only=True)
class ReaderContext(SubtaskContext):
    """What a reader may use, and not change. Made by the runtime; all calls from the mailbox thread, except `wake`."""

    subtask: SubtaskInfo
    clock: Clock
    batch_rows: int
    """How many records the next batch may have. Ask for each `poll`: they are fewer while what is chained behind the
    source is slow, since a checkpoint waits until it is done with a batch, or takes Python objects one by one."""
    most_batch_rows: int
    """The most that `batch_rows` can become: read so many at once where to slice is cheaper than to read."""
    request_split: Callable[[], None]
    """Ask the enumerator for a split; the answer comes through `add_splits` or `no_more_splits`."""
    wake: Callable[[], None]
    """Make the runtime poll soon; the only call that is allowed from another thread."""
    counter: Callable[[str], Counter]
    """A named metric of this subtask."""
    side_output: Callable[[str, Batch], None]
    """Emit a batch to the side output with this tag id (for records that could not be parsed)."""


class SourceReader(ABC, Generic[AnyRecordOut, AnySplit]):
    """Reads splits in one slot. One thread; never blocks; a position can be taken between any two polls."""

    last_split: str | None = None
    """The id of the split that the last batch came from, so that each has a watermark of its own and is named when it
    holds the clock back. Empty before the first batch; None: the reader does not say."""

    def start(self) -> None:
        """Called once before the first poll; splits restored from a checkpoint were added before it."""

    @abstractmethod
    def poll(self) -> Batch[AnyRecordOut] | Idle | Finished:
        """Return the next records, or say that there are none now, or none ever.

        At least one record, and at most the `batch_rows` that the context has now; more is taken too, but a checkpoint
        waits for it.
        """

    def records_behind(self) -> int | None:
        """How many records wait in its splits, as far as it knows: no I/O, it is called after every poll.

        What a job needs to know whether it catches up after a failure. None: the reader cannot tell.
        """
        return None

    @abstractmethod
    def add_splits(self, splits: Sequence[AnySplit]) -> None:
        """Take these splits, each from its position on."""

    @abstractmethod
    def no_more_splits(self) -> None:
        """The enumerator will assign no more splits to this reader."""

    @abstractmethod
    def snapshot(self) -> list[AnySplit]:
        """The unfinished splits, each at the position of the next record that `poll` would return."""

    def reading(self) -> list[str]:
        """The ids of the splits that are read at the same time: the watermark waits for each of them.

        A reader that takes its splits one after the other names the one whose turn it is, from its first record to its
        last: what comes after it is not waited for, or the clock would stand still until the last one.
        """
        return [split.id for split in self.snapshot()]

    def close(self) -> None:
        """Release files, sockets and threads; called once, also after a failure."""


class EnumeratorContext(Protocol):
    """What an enumerator may do. Called on the enumerator's own thread only (the JobManager's)."""

    @property
    def parallelism(self) -> int:
        """How many readers there are."""
        ...

    @property
    def clock(self) -> Clock:
        """The time."""
        ...

    def assign(self, splits: Sequence[SourceSplit], subtask: int) -> None:
        """Send splits to a reader."""
        ...

    def no_more_splits(self, subtask: int) -> None:
        """Tell a reader that nothing follows."""
        ...


class SplitEnumerator(ABC):
    """Finds splits and hands them out; lives in the JobManager, one thread.

    `poll_interval_ms` None means that `poll` is never called.
    """

    poll_interval_ms: int | None = None

    def start(self) -> None:
        """Called once, before any request. May raise: the job fails with that message."""

    @abstractmethod
    def handle_split_request(self, subtask: int) -> None:
        """A reader is out of work: `assign` something, call `no_more_splits`, or remember that it waits."""

    def poll(self) -> None:
        """Look for new splits; called every `poll_interval_ms`."""

    @abstractmethod
    def snapshot(self) -> Any:
        """The enumerator's state as a JSON-able value; `Source.restore_enumerator` takes it back."""

    def close(self) -> None:
        """Release what `start` took."""


class Source(ABC, Generic[AnyRecordOut]):
    """Something to read from; a picklable description, opened only in the slots and the JobManager."""

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """Whether the source ends by itself."""

    @property
    @abstractmethod
    def record_type(self) -> RecordType:
        """The type of its records; may look at the input (a Parquet footer), and so may raise."""

    @property
    def resettable(self) -> bool:
        """Whether a reader can start again at a stored position (a socket cannot)."""
        return True

    @property
    def split_type(self) -> type[SourceSplit]:
        """The class of its splits; splits cross the wire and are stored as JSON of this class."""
        return SourceSplit

    @abstractmethod
    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Make the enumerator of a new job."""

    @abstractmethod
    def restore_enumerator(self, context: EnumeratorContext, state: Any) -> SplitEnumerator:
        """Make the enumerator from the state that `SplitEnumerator.snapshot` gave."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader[AnyRecordOut]:
        """Make the reader of one subtask."""

    @property
    def fixed_parallelism(self) -> int | None:
        """The only parallelism that the source can have (a socket: 1), or None."""
        return None

    def side_outputs(self) -> dict[str, RecordType]:
        """Side outputs that its readers may emit to, by tag id (for records that cannot be parsed)."""
        return {}

    def with_columns(self, names: Sequence[str]) -> Source[Row] | None:
        """A source that reads these columns only, or None where that saves nothing. Order: as given."""
        return None

    def describe(self) -> str:
        """A few words for the plan: what is read and how."""
        return type(self).__name__

    def identity(self) -> Identity:
        """What is read, for ids of operators without a uid (see `core/identity.py`); not for display.

        Two sources of one class that read different things should have different ones, or each a uid.
        """
        return (class_identity(self),)


class FixedSplitsEnumerator(SplitEnumerator):
    """Hands out a list of splits that is known from the start, one per request, then says no more."""

    def __init__(self, context: EnumeratorContext, splits: Sequence[SourceSplit]) -> None:
        self._context = context
        self._pending = list(splits)

    def handle_split_request(self, subtask: int) -> None:
        """Assign the next split, or tell the reader that there are none left."""
        if self._pending:
            self._context.assign([self._pending.pop(0)], subtask)
        else:
            self._context.no_more_splits(subtask)

    def snapshot(self) -> Any:
        """The splits not yet assigned."""
        return list(self._pending)
