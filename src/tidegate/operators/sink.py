"""Writes to a sink in one slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidegate.api.sink import Committer, FunctionSink, Sink, SinkWriter, WriterContext
from tidegate.core.errors import SchemaError, StateCompatibilityError
from tidegate.core.failpoints import failpoint
from tidegate.operators.failures import (
    OperatorError,
    batch_position,
    blame,
    close_blamed,
    record_failure,
    rows_of,
)
from tidegate.operators.operator import Operator
from tidegate.records.batch import Batch

COMMITTABLES = "committables"
"""The name of the operator state that holds what is prepared but not known to be committed."""


class SinkOperator(Operator):
    """Hands batches to the sink's writer, and what belongs to completed checkpoints to its committer.

    Every subtask restores the committables of all, so that none takes another's for litter, and commits its share.
    """

    _writer: SinkWriter | None = None
    _committer: Committer | None = None
    _finished = False

    def open(self) -> None:
        """Commit what the checkpoint has, then make the writer."""
        c = self.context
        sink: Sink = self.operation.sink
        self._prepared: list[tuple[int, list[Any]]] = []
        """Committables by checkpoint, oldest first."""
        self._broken: BaseException | None = None
        """Why something prepared could not be finished; set on the upload thread."""
        with blame(c.operator_name):
            recovered = [self._decoded(entry, sink) for entry in c.states.entries(COMMITTABLES)]
            context = WriterContext(
                subtask=c.subtask,
                clock=c.clock,
                record_type=self.input_types[0],
                counter=c.counter,
                send_to_driver=c.send_to_driver,
                driver_backlog=c.driver_backlog,
                checkpointed=c.options.checkpoint_interval > 0,
                recovered=tuple(recovered),
                checkpoints_retained=c.options.checkpoint_retained,
            )
            if sink.committable_type is not None:
                self._committer = sink.create_committer(context)
                self._commit(recovered[c.subtask_index :: c.parallelism])
            self._writer = sink.create_writer(context)

    def _decoded(self, entry: bytes, sink: Sink) -> Any:
        try:
            return msgspec.json.decode(entry, type=sink.committable_type)
        except msgspec.MsgspecError as e:
            raise StateCompatibilityError(
                f"operator {self.context.operator_name!r} cannot restore what it has to commit: {entry[:200]!r} is "
                f"nothing that {type(sink).__name__} has prepared: {e}"
            ) from e

    def is_ready(self) -> bool:
        """Whether the writer takes a batch now."""
        with blame(self.context.operator_name):
            return self.writer.is_ready()

    def process(self, batch: Batch, input_index: int) -> None:
        """Write the batch. Records that turn out not to fit their type are the fault of whoever made them."""
        try:
            self.writer.write(batch)
        except SchemaError as e:
            batch.columns  # noqa: B018 - raises the error again, bare, if the records are its reason
            raise OperatorError(self.context.operator_name, batch_position(batch)) from e
        except BaseException as e:
            raise OperatorError(self.context.operator_name, batch_position(batch)) from e

    def finish(self) -> None:
        """Finish the output: nothing follows. Without checkpoints this is when it becomes visible."""
        with blame(self.context.operator_name):
            self.writer.flush(True)
            if self._committer is not None and not self.context.options.checkpoint_interval:
                self._commit(self.writer.prepare_commit(lambda work: work()))
        self._finished = True

    def snapshot(self, checkpoint_id: int) -> None:
        """Close what was written up to the barrier; it stays in the checkpoints until it is committed."""
        if self._committer is None:
            return
        self._check_whole()
        with blame(self.context.operator_name):
            self._prepared.append((checkpoint_id, list(self.writer.prepare_commit(self._defer))))
        self._keep_prepared()

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """What was prepared goes with the next checkpoint, unless it could not be finished: then it is lost here."""
        self._check_whole()

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise OperatorError(self.context.operator_name) from self._broken

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Commit everything that the checkpoint covers."""
        due = [c for id, prepared in self._prepared if id <= checkpoint_id for c in prepared]
        with blame(self.context.operator_name):
            self._commit(due)
        self._prepared = [(id, prepared) for id, prepared in self._prepared if id > checkpoint_id]
        self._keep_prepared()

    def close(self) -> None:
        """Close the writer and the committer."""
        writer, self._writer = self._writer, None
        committer, self._committer = self._committer, None
        for part in (writer, committer):
            if part is not None:
                close_blamed(self.context.operator_name, part.close, clean=self._finished)

    @property
    def writer(self) -> SinkWriter:
        """The writer; exists from `open` to `close`."""
        assert self._writer is not None, "the sink is not open"
        return self._writer

    def _defer(self, work: Callable[[], None]) -> None:
        def remembering() -> None:
            try:
                failpoint("sink.prepare")
                work()
            except BaseException as e:
                self._broken = e
                raise

        self.context.states.defer(remembering)

    def _commit(self, committables: Sequence[Any]) -> None:
        if committables and self._committer is not None:
            failpoint("sink.commit.before")
            self._committer.commit(committables)
            failpoint("sink.commit.after")

    def _keep_prepared(self) -> None:
        entries = [msgspec.json.encode(c) for _, prepared in self._prepared for c in prepared]
        self.context.states.put_entries(COMMITTABLES, entries, "union")


class FunctionSinkOperator(SinkOperator):
    """Calls the user's function with every record; when it raises, the record is known."""

    def process(self, batch: Batch, input_index: int) -> None:
        """Call the function for each record."""
        sink: FunctionSink = self.operation.sink
        function = sink.function
        rows = rows_of(batch, self.name)
        records = iter(rows)
        try:
            for r in records:
                function(r)
        except BaseException as e:
            raise record_failure(self.name, batch, rows, records) from e
