"""`OperatorHarness`: runs one operator of a program in a test, without a cluster: push records, inspect the output.

It uses one thread and a clock that only the test moves, and keeps every output in lists.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from tidegate.api.source import Finished, Idle
from tidegate.api.streams import DataStream, DataStreamSink
from tidegate.core.clock import ManualClock
from tidegate.core.options import Options
from tidegate.graph.blobs import dump_blob, load_blob
from tidegate.graph.job_graph import OperatorPayload
from tidegate.operators.factory import make_operator
from tidegate.operators.operator import OperatorContext
from tidegate.operators.results import ResultType
from tidegate.operators.source import SourceOperator
from tidegate.program.operations import Operation
from tidegate.records.batch import Batch, Origin
from tidegate.records.elements import MAX_WATERMARK
from tidegate.records.types import RecordType, record_type_of
from tidegate.state.operator_states import OperatorStates, Restored, StatesContext
from tidegate.taskmanager.local_directories import LocalDirectories
from tidegate.testing.subtasks import subtask_info


class OperatorHarness:
    """Runs one operator; its `with` block opens and closes the operator.

    >>> from tidegate import Environment
    >>> words = Environment().from_collection([], type=str)
    >>> with OperatorHarness.of(words.map(str.upper, returns=str)) as harness:
    ...     harness.push(["tide", "gate"])
    ...     harness.rows
    ['TIDE', 'GATE']
    """

    def __init__(
        self,
        operation: Operation,
        input_types: Sequence[Any],
        output_type: Any,
        *,
        side_outputs: dict[str, Any] | None = None,
        name: str = "operator",
        options: Options | None = None,
        clock: ManualClock | None = None,
        subtask_index: int = 0,
        parallelism: int = 1,
        restored: Restored | None = None,
    ) -> None:
        """Take an operation and its types; `of` finds them in a program. Pickling copies the operation."""
        self.clock = clock or ManualClock()
        self.name = name
        self.batches: list[Batch] = []
        """The batches of the main output."""
        self.counters: Tally[str] = Tally()
        """The metrics that the operator or the user's function counted, by name."""
        self.gauges: dict[str, int] = {}
        """The last values of the operator's gauges, by name."""
        self.watermarks: list[int] = []
        """The emitted watermarks, in order."""
        self.statuses: list[bool] = []
        """The emitted idle statuses, in order."""
        self.reports: list[tuple[str, int | None]] = []
        """The watermarks that a source reported to its alignment group."""
        self.dropped: list[tuple[int, int, int]] = []
        """The operator's reports of late records: dropped in total, the watermark, how late."""
        self.driver_batches: list[Batch] = []
        """The batches that a sink sent to the driver."""
        self.driver_backlog = 0
        """How many batches the driver has not taken; a test may set it."""
        self.splits_requested = 0
        """How often a source's reader requested a split."""
        self._side: dict[str, list[Batch]] = {}
        payload = OperatorPayload(
            operation,
            tuple(record_type_of(t) for t in input_types),
            record_type_of(output_type),
            {tag: record_type_of(t) for tag, t in (side_outputs or {}).items()},
        )
        payload = load_blob(dump_blob(payload, name))
        self.input_types: tuple[RecordType, ...] = payload.input_types
        self._local_directories = LocalDirectories()
        subtask = subtask_info(name, subtask_index, parallelism)
        options = options or Options()
        directory = self._local_directories.make
        self.states = OperatorStates(
            StatesContext(subtask=subtask, clock=self.clock, options=options, local_directory=directory),
            restored,
        )
        """The operator's state: `snapshot` it, and pass the result to another harness as `restored`."""
        context = OperatorContext(
            subtask=subtask,
            clock=self.clock,
            options=options,
            counter=lambda counter: _Counter(self.counters, counter),
            emit=self.batches.append,
            emit_side=lambda tag, batch: self._side.setdefault(tag, []).append(batch),
            request_split=self._request_split,
            wake=lambda: None,
            send_to_driver=self.driver_batches.append,
            driver_backlog=lambda: self.driver_backlog,
            states=self.states,
            emit_watermark=self.watermarks.append,
            emit_status=self.statuses.append,
            gauge=lambda gauge: _Gauge(self.gauges, gauge),
            report_watermark=lambda group, watermark_ms: self.reports.append((group, watermark_ms)),
            report_dropped=lambda *report: self.dropped.append(report),
        )
        self.operator = make_operator(payload, context)

    @classmethod
    def of(cls, stream: DataStream[Any] | DataStreamSink, **settings: Any) -> OperatorHarness:
        """The harness of the operator that makes this stream (or that is this sink), with the program's types."""
        node = stream._node
        inputs = [
            refs[0].upstream.output_type
            if refs[0].tag is None
            else refs[0].upstream.side_outputs[refs[0].tag]
            for refs in node.inputs
        ]
        settings.setdefault("name", node.name)
        return cls(node.operation, inputs, node.output_type, side_outputs=dict(node.side_outputs), **settings)

    def push(
        self,
        rows: Iterable[Any],
        *,
        timestamps: Iterable[int] | None = None,
        input_index: int = 0,
        origin: Origin | None = None,
    ) -> None:
        """Send one batch of records into an input; tuples and dicts become `Row` records where those are declared.

        `timestamps` are the event times of the records, in milliseconds.
        """
        record_type = self.input_types[input_index]
        adopted = ResultType(record_type).adopt(list(rows))
        stamps = None if timestamps is None else pa.array(timestamps, pa.int64())
        batch = Batch(record_type, rows=adopted, origin=origin, timestamps=stamps)
        self.push_batch(batch, input_index=input_index)

    def advance_watermark(self, watermark_ms: int) -> None:
        self.operator.process_watermark(watermark_ms)

    def advance_clock(self, ms: int) -> None:
        """Advance the wall clock, and call the operator if it has something due; needs a `ManualClock`."""
        assert isinstance(self.clock, ManualClock)
        self.clock.advance_ns(ms * 1_000_000)
        due_ms = self.operator.next_processing_time_ms
        if due_ms is not None and due_ms <= self.clock.now_ms():
            self.operator.on_processing_time(self.clock.now_ms())

    def push_columns(self, columns: Any, *, input_index: int = 0, origin: Origin | None = None) -> None:
        """Send one Arrow record batch into an input."""
        self.push_batch(
            Batch(self.input_types[input_index], columns=columns, origin=origin), input_index=input_index
        )

    def push_batch(self, batch: Batch, *, input_index: int = 0) -> None:
        """Send a batch into an input; an empty one is left out, as in the runtime."""
        if batch.num_rows:
            self.operator.process(batch, input_index)

    def poll(self) -> Idle | Finished | None:
        """Let a source read once: None if it emitted records, otherwise the reason why not."""
        return self._source.advance()

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Give splits to a source, as JSON."""
        self._source.add_splits(splits)

    def finish(self) -> None:
        """Send the last watermark, end every input, and let the operator emit what is left."""
        self.operator.process_watermark(MAX_WATERMARK)
        for index in range(len(self.input_types)):
            self.operator.end_input(index)
        self.operator.finish()

    @property
    def rows(self) -> list[Any]:
        """All records of the main output so far."""
        return [row for batch in self.batches for row in batch.rows]

    def side_rows(self, tag: str) -> list[Any]:
        """All records of a side output so far, by the tag's id."""
        return [row for batch in self._side.get(tag, []) for row in batch.rows]

    def take_rows(self) -> list[Any]:
        """The records of the main output since the last call."""
        rows = self.rows
        self.batches.clear()
        return rows

    def __enter__(self) -> OperatorHarness:
        self.operator.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.operator.close()

    @property
    def _source(self) -> SourceOperator:
        if not isinstance(self.operator, SourceOperator):
            raise TypeError(f"operator {self.name!r} is not a source")
        return self.operator

    def _request_split(self) -> None:
        self.splits_requested += 1


class _Counter:
    def __init__(self, counters: Tally[str], name: str) -> None:
        self._counters = counters
        self._name = name

    def inc(self, n: int = 1) -> None:
        self._counters[self._name] += n


class _Gauge:
    def __init__(self, gauges: dict[str, int], name: str) -> None:
        self._gauges = gauges
        self._name = name

    def set(self, value: int) -> None:
        self._gauges[self._name] = value
