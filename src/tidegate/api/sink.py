"""The sink contract: a writer in each slot and, for exactly-once, a committer.

A transactional sink writes where nobody looks. When a checkpoint is taken, `SinkWriter.prepare_commit` closes what was
written up to the barrier and describes it as **committables**, which are part of the checkpoint. When the checkpoint is
complete, the `Committer` makes them visible; after a failure that is done again from the checkpoint, so committing must
be idempotent. What belongs to no completed checkpoint is never visible.
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
    """The job that a sink is prepared for, as its driver sees it."""

    job_id: str
    attempt: int = 0
    """The number of the driver's first attempt; another driver of the job has another."""
    parallelism: int = 1
    resuming: bool = False
    """Whether the job goes on from a checkpoint, so that what is there is its own."""
    claimed: bool = True
    """Whether drivers are counted; without, as in a job that takes no checkpoints, two may have the same `attempt`."""


@dataclass(frozen=True, kw_only=True)
class WriterContext(SubtaskContext):
    """What a sink writer may use. Made by the runtime."""

    subtask: SubtaskInfo
    clock: Clock
    record_type: RecordType
    counter: Callable[[str], Counter]
    send_to_driver: Callable[[Batch], None]
    """Hand a batch to whoever collects this sink in the driver."""
    driver_backlog: Callable[[], int]
    """How many batches the driver has not taken yet."""
    checkpointed: bool = False
    """Whether checkpoints are on: then committables become visible with them, else at the end of the input."""
    recovered: tuple[Any, ...] = ()
    """All committables of the checkpoint that the job goes on from, of every subtask; they are committed already
    or are being committed, so they must not be touched."""
    checkpoints_retained: int = 1
    """How many completed checkpoints are kept: the job may go on from the oldest of them."""


class SinkWriter(ABC, Generic[AnyRecordIn, AnyCommittable]):
    """Writes the records of one subtask; mailbox thread only."""

    @abstractmethod
    def write(self, batch: Batch[AnyRecordIn]) -> None:
        """Write these records; may buffer."""

    def flush(self, end_of_input: bool) -> None:
        """Make everything written so far durable; with `end_of_input`, finish: nothing follows."""

    def prepare_commit(self, defer: Callable[[Callable[[], None]], None]) -> Sequence[AnyCommittable]:
        """What was written since the last call, as committables (`Sink.committable_type`); what follows is new.

        Must be short. Slow work (closing and syncing files, uploads) goes into `defer(work)`, which runs once on
        another thread, before the committables are durable; if it fails, the checkpoint does.
        """
        return ()

    def is_ready(self) -> bool:
        """Whether `write` may be called now; while False the task is back-pressured. Must not block."""
        return True

    def close(self) -> None:
        """Release what was taken; called once, also after a failure. Unfinished output stays invisible."""


class Committer(ABC, Generic[AnyCommittable]):
    """Makes committables visible, in the slot. Mailbox thread only."""

    @abstractmethod
    def commit(self, committables: Sequence[AnyCommittable]) -> None:
        """Make them visible, and replace nothing.

        One that was made visible already is no error, also if a consumer has taken it away since; one that is lost is a
        loud error. They may come from a checkpoint, which somebody may have changed: follow no name out of the target.
        """

    def close(self) -> None:
        """Release what was taken; called once, also after a failure."""


class Sink(ABC, Generic[AnyRecordIn]):
    """Somewhere to write to; a picklable description, opened only in the slots."""

    committable_type: type[msgspec.Struct] | None = None
    """The class of its committables, a `msgspec.Struct`: they are stored as JSON. None: it has no transactions."""

    def create_committer(self, context: WriterContext) -> Committer:
        """Make the committer of one subtask; called only where there is a `committable_type`."""
        raise ProgramError(
            f"{type(self).__name__} has a committable_type but no committer. Define create_committer(context)"
        )

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter[AnyRecordIn]:
        """Make the writer of one subtask."""

    def check_target(self, job: SinkJob) -> None:
        """Called in the driver before `prepare`: refuse what that would refuse, and change nothing.

        Another driver may still run the job. It is fenced, and `prepare` called, when nothing else can be refused any
        more. `job.attempt` is only the lowest that the job may get.
        """

    def prepare(self, job: SinkJob) -> None:
        """Called once in the driver before the job starts: create, check and claim the target. May raise."""

    def release(self, job: SinkJob, *, resumable: bool) -> None:
        """Called once in the driver after `prepare`, when the job has ended in any way and its processes are gone.

        Give the target back. `resumable`: there may be a checkpoint from which the job goes on later, or in another
        driver already, so what is not committed must stay. What this raises is logged. A driver that is killed does not
        get here: the next `prepare` finds what was left.
        """

    def check_type(self, record_type: RecordType) -> None:
        """Refuse, at plan time, a record type that this sink cannot write (raise `SchemaError`)."""

    def target(self) -> str | None:
        """What only one sink of a job may write to (a directory, a topic); None: sharing does no harm."""
        return None

    per_record: ClassVar[bool] = False
    """Whether its writer runs the user's Python per record, and so wants rows."""

    def describe(self) -> str:
        """A few words for the plan: what is written, where."""
        return type(self).__name__

    def describe_repetition(self, name: str) -> str:
        """What the sink of this name does with records that are replayed; asked where it has no transactions."""
        return f"{name} writes without transactions, so it repeats records after a recovery"

    def identity(self) -> Identity:
        """What is written, where, for ids of operators without a uid (see `core/identity.py`); not for display."""
        return (class_identity(self),)


class FunctionSink(Sink[AnyRecordIn]):
    """Calls the user's own function with every record."""

    per_record = True

    def __init__(self, function: Callable[[AnyRecordIn], object]) -> None:
        self.function = function

    def create_writer(self, context: WriterContext) -> SinkWriter[AnyRecordIn]:
        """Make a writer that calls the function for each record."""
        return _FunctionWriter(self.function)

    def describe(self) -> str:
        """The function's name."""
        return f"function {getattr(self.function, '__name__', type(self.function).__name__)}"

    def describe_repetition(self, name: str) -> str:
        """The function is called once more."""
        return f"`{function_name(self.function)}` is called again for records that are replayed"

    def identity(self) -> Identity:
        """The function."""
        return "function", function_identity(self.function)


class _FunctionWriter(SinkWriter[AnyRecordIn]):
    def __init__(self, function: Callable[[AnyRecordIn], object]) -> None:
        self._function = function

    def write(self, batch: Batch[AnyRecordIn]) -> None:
        function = self._function
        for row in batch.rows:
            function(row)


class BlackholeSink(Sink[object]):
    """Takes everything and keeps nothing; for measuring."""

    def create_writer(self, context: WriterContext) -> SinkWriter[object]:
        """Make a writer that drops its records."""
        return _BlackholeWriter()

    def describe(self) -> str:
        """The sink's name."""
        return "blackhole"

    def identity(self) -> Identity:
        """There is only one."""
        return ("blackhole",)


class _BlackholeWriter(SinkWriter[object]):
    def write(self, batch: Batch[object]) -> None:
        pass
