"""Writes to a sink in one slot."""

from __future__ import annotations

from operator import length_hint

from tidegate.api.sink import FunctionSink, SinkWriter, WriterContext
from tidegate.core.errors import SchemaError
from tidegate.operators.failures import OperatorError, blame, close_blamed
from tidegate.operators.operator import Operator
from tidegate.operators.row_operator import batch_position
from tidegate.records.batch import Batch
from tidegate.records.types import brief


class SinkOperator(Operator):
    """Hands batches to the sink's writer."""

    _writer: SinkWriter | None = None
    _finished = False

    def open(self) -> None:
        """Make the writer."""
        c = self.context
        with blame(c.operator_name):
            self._writer = self.operation.sink.create_writer(
                WriterContext(
                    job_id=c.job_id,
                    attempt=c.attempt,
                    operator_name=c.operator_name,
                    subtask_index=c.subtask_index,
                    parallelism=c.parallelism,
                    clock=c.clock,
                    record_type=self.input_types[0],
                    counter=c.counter,
                    send_to_driver=c.send_to_driver,
                    driver_backlog=c.driver_backlog,
                )
            )

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
        """Finish the output: nothing follows."""
        with blame(self.context.operator_name):
            self.writer.flush(True)
        self._finished = True

    def close(self) -> None:
        """Close the writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            close_blamed(self.context.operator_name, writer.close, clean=self._finished)

    @property
    def writer(self) -> SinkWriter:
        """The writer; exists from `open` to `close`."""
        assert self._writer is not None, "the sink is not open"
        return self._writer


class FunctionSinkOperator(SinkOperator):
    """Calls the user's function with every record; when it raises, the record is known."""

    def process(self, batch: Batch, input_index: int) -> None:
        """Call the function for each record."""
        sink: FunctionSink = self.operation.sink
        function = sink.function
        try:
            rows = batch.rows
        except BaseException as e:
            raise OperatorError(self.context.operator_name, batch_position(batch)) from e
        records = iter(rows)
        try:
            for r in records:
                function(r)
        except BaseException as e:
            index = max(0, len(rows) - length_hint(records) - 1)
            position = "" if batch.origin is None else batch.origin.at(index)
            raise OperatorError(self.context.operator_name, position, brief(rows[index])) from e
