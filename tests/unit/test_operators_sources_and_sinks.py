"""Source and sink operators, and building any operator from its spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tidegate import Environment
from tidegate.api.sink import Sink, SinkWriter, WriterContext
from tidegate.api.source import FINISHED, IDLE, Finished, Idle, ReaderContext, SourceReader, SourceSplit
from tidegate.core.errors import ModuleMissingError, SchemaError, SerializationError
from tidegate.core.identity import Identity
from tidegate.core.ids import OperatorId
from tidegate.core.options import Options
from tidegate.graph.blobs import dump_blob
from tidegate.graph.job_graph import OperatorPayload, OperatorSpec
from tidegate.operators.factory import build_operator, operator_class
from tidegate.operators.failures import OperatorError
from tidegate.operators.functions.record_functions import MapOperator
from tidegate.program.operations import ApplyFunction, Operation, ReadSource, WriteSink
from tidegate.program.sequences import CollectionSource, NumberSequenceSource, SpanSplit
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import record_type_of
from tidegate.testing.harness import OperatorHarness

ROW = pa.schema([pa.field("app", pa.string()), pa.field("n", pa.int64())])


def span(position: int, end: int) -> bytes:
    return msgspec.json.encode(SpanSplit(id="s", position=position, end=end))


def source_harness(source: Any, **settings: Any) -> OperatorHarness:
    return OperatorHarness(ReadSource(source), [], source.record_type, name="numbers", **settings)


class ScriptedReader(SourceReader):
    """Answers polls from a list; an exception in it is raised."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.events: list[str] = []

    def start(self) -> None:
        self.events.append("start")

    def poll(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def add_splits(self, splits: Sequence[Any]) -> None:
        self.events.append(f"add {[s.id for s in splits]}")

    def no_more_splits(self) -> None:
        self.events.append("no more")

    def snapshot(self) -> list[Any]:
        return [SourceSplit(id="left")]

    def close(self) -> None:
        self.events.append("close")


class ScriptedSource(CollectionSource):
    def __init__(self, answers: list[Any], record_type: Any) -> None:
        super().__init__([], record_type)
        self.answers = answers

    @property
    def split_type(self) -> type[SourceSplit]:
        return SourceSplit

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return ScriptedReader(self.answers)


def scripted(answers: list[Any], type: Any = ROW) -> OperatorHarness:
    return source_harness(ScriptedSource(answers, type))


# ---- sources ----


def test_source_emits_batches_until_its_splits_are_read() -> None:
    with source_harness(NumberSequenceSource(1, 5), options=Options().with_keywords(batch_rows=2)) as h:
        assert h.poll() == IDLE
        assert h.splits_requested == 1
        h.add_splits([span(0, 5)])
        h.operator.no_more_splits()
        answers: list[Idle | Finished | None] = [h.poll() for _ in range(4)]
    assert answers == [None, None, None, FINISHED]
    assert [b.num_rows for b in h.batches] == [2, 2, 1]
    assert h.rows == [1, 2, 3, 4, 5]


def test_source_continues_from_the_splits_of_its_snapshot() -> None:
    options = Options().with_keywords(batch_rows=2)
    with source_harness(NumberSequenceSource(1, 5), options=options) as first:
        first.add_splits([span(0, 5)])
        first.poll()
        saved = first.operator.positions()
    with source_harness(NumberSequenceSource(1, 5), options=options) as second:
        second.add_splits(saved)
        while second.poll() is None:
            pass
        assert first.rows + second.rows == [1, 2, 3, 4, 5]


def test_restored_splits_are_there_before_the_reader_starts_and_it_starts_once() -> None:
    with scripted([IDLE, IDLE]) as h:
        reader = h.operator.reader
        h.add_splits([msgspec.json.encode(SourceSplit(id="old"))])
        h.poll()
        h.poll()
    assert reader.events == ["add ['old']", "start", "close"]


def test_reader_that_raises_is_blamed_on_its_operator() -> None:
    with scripted([OSError("disk gone")]) as h, pytest.raises(OperatorError) as caught:
        h.poll()
    assert caught.value.operator == "numbers"
    assert isinstance(caught.value.__cause__, OSError)


def test_reader_that_answers_nonsense_is_refused() -> None:
    with scripted([None]) as h, pytest.raises(OperatorError) as caught:
        h.poll()
    assert "must return a Batch, Idle or Finished, but returned a NoneType" in str(caught.value.__cause__)


def test_batch_with_other_columns_than_declared_is_refused_with_both() -> None:
    wrong = Batch(record_type_of(ROW), columns=pa.record_batch({"app": ["a"], "m": [1]}))
    with scripted([wrong]) as h, pytest.raises(OperatorError) as caught:
        h.poll()
    assert isinstance(caught.value.__cause__, SchemaError)
    assert "Declared: (app: string, n: int64)" in str(caught.value.__cause__)
    assert "Got: (app: string, m: int64)" in str(caught.value.__cause__)


def test_batch_of_another_record_type_is_refused() -> None:
    with scripted([Batch(record_type_of(int), rows=[1])]) as h, pytest.raises(OperatorError) as caught:
        h.poll()
    assert "gave int, declared is Row" in str(caught.value.__cause__)


def test_rows_of_a_source_are_read_by_name_also_if_it_gave_dicts() -> None:
    origin = Origin("collection", 0, "value")
    with scripted([Batch(record_type_of(ROW), rows=[{"n": 1, "app": "a"}], origin=origin)]) as h:
        assert h.poll() is None
        assert h.rows[0].app == "a"
        assert h.batches[0].origin == origin


def test_encoded_columns_of_a_source_stay_encoded() -> None:
    encoded = pa.RecordBatch.from_arrays(
        [pa.array(["a"]).dictionary_encode(), pa.array([1])], names=["app", "n"]
    )
    with scripted([Batch(record_type_of(ROW), columns=encoded)]) as h:
        h.poll()
        assert pa.types.is_dictionary(h.batches[0].columns.schema.types[0])


def test_source_has_no_input() -> None:
    with scripted([]) as h, pytest.raises(AssertionError, match="has no input"):
        h.operator.process(Batch(record_type_of(int), rows=[1]), 0)


# ---- sinks ----


class RecordingSink(Sink):
    def __init__(self, fail_in: str = "") -> None:
        self.fail_in = fail_in

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return RecordingWriter(context, self.fail_in)


class RecordingWriter(SinkWriter):
    def __init__(self, context: WriterContext, fail_in: str) -> None:
        self.context = context
        self.fail_in = fail_in
        self.events: list[Any] = []
        self.ready = True

    def _do(self, name: str, event: Any) -> None:
        if self.fail_in == name:
            raise OSError(f"cannot {name}")
        self.events.append(event)

    def write(self, batch: Batch) -> None:
        self._do("write", batch.columns.num_rows)

    def flush(self, end_of_input: bool) -> None:
        self._do("flush", f"flush {end_of_input}")

    def is_ready(self) -> bool:
        return self.ready

    def close(self) -> None:
        self._do("close", "close")


def sink_harness(fail_in: str = "", type: Any = int) -> OperatorHarness:
    return OperatorHarness(WriteSink(RecordingSink(fail_in)), [type], type, name="out")


def test_sink_writes_flushes_at_the_end_and_closes() -> None:
    with sink_harness() as h:
        writer = h.operator.writer
        h.push([1, 2])
        h.finish()
    assert writer.events == [2, "flush True", "close"]
    assert writer.context.record_type == record_type_of(int)


def test_sink_is_ready_when_its_writer_is() -> None:
    with sink_harness() as h:
        assert h.operator.is_ready()
        h.operator.writer.ready = False
        assert not h.operator.is_ready()


def test_sink_that_was_not_finished_is_closed_without_a_flush() -> None:
    with sink_harness() as h:
        writer = h.operator.writer
    assert writer.events == ["close"]


@pytest.mark.parametrize("fail_in", ["write", "flush", "close"])
def test_sink_that_fails_is_named(fail_in: str) -> None:
    def live() -> None:
        with sink_harness(fail_in) as h:
            h.push([1])
            h.finish()

    with pytest.raises(OperatorError) as caught:
        live()
    assert caught.value.operator == "out"
    assert str(caught.value.__cause__) == f"cannot {fail_in}"


def test_records_that_do_not_fit_their_type_are_not_the_sinks_fault() -> None:
    with sink_harness(type=tuple[str, int]) as h, pytest.raises(SchemaError):
        h.push_batch(Batch(h.input_types[0], rows=[("a", "no number")]))


def test_sink_function_that_raises_names_the_record() -> None:
    numbers = Environment().from_collection([], type=int)
    made = numbers.sink_to(lambda n: 1 // n, name="divide")
    with OperatorHarness.of(made) as h, pytest.raises(OperatorError) as caught:
        h.push([1, 0], origin=Origin("f", 10, "line"))
    error = caught.value
    assert (error.operator, error.position, error.record) == ("divide", "line 11 of f", "0")


def test_sink_to_the_driver_is_not_ready_while_the_driver_is_behind() -> None:
    numbers = Environment().from_collection([], type=int)
    with OperatorHarness.of(numbers.print()) as h:
        h.push([1, 2])
        assert [b.rows for b in h.driver_batches] == [[1, 2]]
        h.driver_backlog = 1000
        assert not h.operator.is_ready()


# ---- building ----


def spec(blob: bytes) -> OperatorSpec:
    return OperatorSpec(OperatorId("id"), None, "double", "map", "", "int", blob)


def test_operator_is_built_from_its_spec() -> None:
    number = record_type_of(int)
    payload = OperatorPayload(ApplyFunction("map", lambda n: 2 * n), (number,), number, {})
    with OperatorHarness(ApplyFunction("map", abs), [int], int) as h:
        operator = build_operator(spec(dump_blob(payload, "double")), h.operator.context)
        assert isinstance(operator, MapOperator)
        operator.open()
        operator.process(Batch(number, rows=[4]), 0)
        assert h.rows == [8]


def test_blob_that_cannot_be_loaded_names_the_operator_and_the_reason() -> None:
    missing = b"cnot_installed_anywhere\nthing\n."
    with pytest.raises(
        ModuleMissingError,
        match=r"operator 'double' cannot be loaded.*not_installed_anywhere.*Install the module",
    ):
        build_operator(spec(missing), OperatorHarness(ApplyFunction("map", abs), [int], int).operator.context)
    with pytest.raises(SerializationError, match="holds an int"):
        build_operator(
            spec(dump_blob(3, "x")), OperatorHarness(ApplyFunction("map", abs), [int], int).operator.context
        )


def test_operation_without_an_operator_is_refused() -> None:
    class Other(Operation):
        def identity(self) -> Identity:
            return ("other",)

    with pytest.raises(TypeError, match="no operator performs an Other"):
        operator_class(Other())
