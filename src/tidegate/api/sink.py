"""The sink contract: a writer in each slot and, for exactly-once, a committer.

A transactional sink writes where no reader looks. At a checkpoint, `SinkWriter.prepare_commit` closes what was written
up to the barrier and describes it as **committables**, which become part of the checkpoint. When the checkpoint is
complete, the `Committer` makes them visible. After a failure it does so again from the checkpoint, so committing must
be idempotent. Output that belongs to no completed checkpoint never becomes visible.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import msgspec

from tidegate.api.functions import function_name
from tidegate.api.source import Counter
from tidegate.core.clock import Clock
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity, class_identity, function_identity
from tidegate.core.subtask_info import SubtaskContext, SubtaskInfo
from tidegate.records.batch import Batch
from tidegate.records.type_variables import AnyCommittable, AnyRecordIn
from tidegate.records.types import RecordType


@dataclass(frozen=True)
class SinkJob:
    """The job that a sink is prepared for, as the driver sees it."""

    job_id: str
    attempt: int = 0
    """The number of the driver's first attempt. Each driver of the job has its own, if `claimed`."""
    parallelism: int = 1
    resuming: bool = False
    """Whether the job continues from a checkpoint, so that it owns what is in the target."""
    claimed: bool = True
    """Whether drivers are numbered. If not, as in a job without checkpoints, two may have the same `attempt`."""


@dataclass(frozen=True, kw_only=True)
class WriterContext(SubtaskContext):
    """What a sink writer may use. The runtime makes it."""

    subtask: SubtaskInfo
    clock: Clock
    record_type: RecordType
    counter: Callable[[str], Counter]
    send_to_driver: Callable[[Batch], None]
    """Send a batch to the driver, which collects or prints it."""
    driver_backlog: Callable[[], int]
    """Returns how many batches the driver has not taken yet."""
    checkpointed: bool = False
    """Whether checkpoints are on. They make committables visible; without them, the end of the input does."""
    recovered: tuple[Any, ...] = ()
    """The committables of all subtasks in the checkpoint that the job continues from. They are committed, or about
    to be, so the writer must not touch them."""
    checkpoints_retained: int = 1
    """How many completed checkpoints are kept: the job may restart from the oldest."""


class SinkWriter(ABC, Generic[AnyRecordIn, AnyCommittable]):
    """Writes the records of one subtask. Called on the mailbox thread only."""

    @abstractmethod
    def write(self, batch: Batch[AnyRecordIn]) -> None:
        """Write these records; may buffer."""

    def flush(self, end_of_input: bool) -> None:
        """Make everything written so far durable. With `end_of_input`, finish: no record follows."""

    def prepare_commit(self, defer: Callable[[Callable[[], None]], None]) -> Sequence[AnyCommittable]:
        """Return what was written since the last call as committables (`Sink.committable_type`), and start afresh.

        Must be quick. Slow work (closing and syncing files, uploads) goes into `defer(work)`: it runs once on another
        thread, before the committables are durable. If it fails, the checkpoint fails.
        """
        return ()

    def is_ready(self) -> bool:
        """Whether `write` may be called now; while it may not, the task is back-pressured. Must not block."""
        return True

    def close(self) -> None:
        """Release resources. Called once, also after a failure. Unfinished output stays invisible."""


class Committer(ABC, Generic[AnyCommittable]):
    """Makes committables visible. Runs in the slot, on the mailbox thread only."""

    @abstractmethod
    def commit(self, committables: Sequence[AnyCommittable]) -> None:
        """Make the committables visible, and replace nothing.

        One that is visible already is not an error, even if a consumer has removed it since. One that is lost must
        raise an error. They may come from a checkpoint that somebody has changed: do not follow a name that leads out
        of the target.
        """

    def close(self) -> None:
        """Release resources. Called once, also after a failure."""


class Sink(ABC, Generic[AnyRecordIn]):
    """Where a stream ends: a picklable description that is opened only in the slots."""

    committable_type: type[msgspec.Struct] | None = None
    """The class of its committables, a `msgspec.Struct` that is stored as JSON. None: no transactions."""

    def create_committer(self, context: WriterContext) -> Committer:
        """Make the committer of one subtask. Called only if there is a `committable_type`."""
        raise ProgramError(
            f"{type(self).__name__} has a committable_type but no committer. Define create_committer(context)"
        )

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter[AnyRecordIn]:
        """Make the writer of one subtask."""

    def check_target(self, job: SinkJob) -> None:
        """Called in the driver before `prepare`: refuse what `prepare` would refuse, and change nothing.

        Another driver may still run the job. When all checks have passed, that driver is fenced and `prepare` is
        called. `job.attempt` is only a lower bound of the number that the job will get.
        """

    def prepare(self, job: SinkJob) -> None:
        """Called once in the driver before the job starts: create, check and claim the target. May raise."""

    def release(self, job: SinkJob, *, resumable: bool) -> None:
        """Called once in the driver after `prepare`, when the job has ended in any way and its processes are gone.

        Give up the claim on the target. If `resumable`, the job may continue from a checkpoint, later or already in
        another driver: keep what is not committed. An exception here is logged. A driver that was killed does not call
        this: the next `prepare` finds what it left.
        """

    def check_type(self, record_type: RecordType) -> None:
        """Refuse, at plan time, a record type that this sink cannot write: raise `SchemaError`."""

    def target(self) -> str | None:
        """What only one sink of a job may write to (a directory, a topic); None: sinks may share it."""
        return None

    per_record: ClassVar[bool] = False
    """Whether its writer runs the user's Python for each record, and so reads rows."""

    def describe(self) -> str:
        """A few words for the plan: what is written, and where."""
        return type(self).__name__

    def describe_repetition(self, name: str) -> str:
        """What this sink does with records that are replayed. Asked only if it has no transactions."""
        return f"{name} writes without transactions, so it repeats records after a recovery"

    def identity(self) -> Identity:
        """What is written and where, for ids of operators without a uid (see `core/identity.py`); not for display."""
        return (class_identity(self),)


class FunctionSink(Sink[AnyRecordIn]):
    """Calls the user's own function with every record."""

    per_record = True

    def __init__(self, function: Callable[[AnyRecordIn], object]) -> None:
        self.function = function

    def create_writer(self, context: WriterContext) -> SinkWriter[AnyRecordIn]:
        return _FunctionWriter(self.function)

    def describe(self) -> str:
        return f"function {getattr(self.function, '__name__', type(self.function).__name__)}"

    def describe_repetition(self, name: str) -> str:
        return f"`{function_name(self.function)}` is called again for records that are replayed"

    def identity(self) -> Identity:
        return "function", function_identity(self.function)


class _FunctionWriter(SinkWriter[AnyRecordIn]):
    def __init__(self, function: Callable[[AnyRecordIn], object]) -> None:
        self._function = function

    def write(self, batch: Batch[AnyRecordIn]) -> None:
        function = self._function
        for row in batch.rows:
            function(row)


class BlackholeSink(Sink[object]):
    """Drops all records; for measurements."""

    def create_writer(self, context: WriterContext) -> SinkWriter[object]:
        return _BlackholeWriter()

    def describe(self) -> str:
        return "blackhole"

    def identity(self) -> Identity:
        return ("blackhole",)


class _BlackholeWriter(SinkWriter[object]):
    def write(self, batch: Batch[object]) -> None:
        pass
