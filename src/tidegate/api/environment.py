"""`Environment`: where a program starts, with its options and its Spark session."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, overload

from typing_extensions import TypeForm

from tidegate.api.job_client import JobClient
from tidegate.api.source import Source
from tidegate.api.streams import DataStream
from tidegate.api.watermarks import WatermarkStrategy
from tidegate.core.errors import ProgramError
from tidegate.core.options import Options
from tidegate.core.words import kind_of
from tidegate.program.driver_sinks import CollectSink
from tidegate.program.foreign_names import FlinkNames, NamesOfClass
from tidegate.program.operations import Operation, ReadSource, WriteSink
from tidegate.program.operator_settings import Settings, apply_settings
from tidegate.program.option_files import options_from_file
from tidegate.program.sequences import CollectionSource, NumberSequenceSource
from tidegate.program.side_outputs import declare_strategy
from tidegate.program.transformations import StreamRef, Transformation
from tidegate.records.rows import Row
from tidegate.records.tables import ArrowTable, as_table
from tidegate.records.type_variables import T
from tidegate.records.types import RecordType, brief

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import DataFrame, SparkSession

    from tidegate.metrics.snapshot import JobMetrics


@dataclass(frozen=True)
class Program:
    """What the user wrote: the sinks, all transformations, and the options."""

    name: str
    sinks: tuple[Transformation, ...]
    transformations: tuple[Transformation, ...]
    options: Options


@dataclass
class Ambient:
    """What a command of the CLI sets for the script that it runs.

    There is one per process, so that all threads of the script see it.
    """

    arguments: tuple[str, ...] = ()
    """Options from the command line of `tidegate run`; they override those of the program."""
    instead_of_running: Callable[[Program], NoReturn] | None = None
    """Set by `tidegate explain`: called with the complete program at the point where it would start to run."""


ambient = Ambient()


class Environment(FlinkNames, metaclass=NamesOfClass):
    """Where a program starts.

    Options come from the defaults, a YAML or TOML file (`config`), keyword arguments, the list `args`
    (`["--parallelism", "4"]`) and the command line of `tidegate run`; a later one overrides an earlier one.
    `spark` is an existing SparkSession; without one, the job starts a local session.

    >>> from tidegate import Environment
    >>> env = Environment(parallelism=2, runtime="in-process")
    >>> numbers = env.from_sequence(1, 4)
    >>> sorted(numbers.execute_and_collect())
    [1, 2, 3, 4]
    """

    def __init__(
        self,
        *,
        spark: SparkSession | None = None,
        config: str | os.PathLike[str] | None = None,
        args: Sequence[str] = (),
        **options: object,
    ) -> None:
        layers = Options() if config is None else options_from_file(config)
        layers = layers.with_keywords(**options).with_arguments(args)
        self.options: Options = layers.with_arguments(ambient.arguments).checked()
        self.spark = spark
        self._nodes: list[Transformation] = []
        self._sinks: list[Transformation] = []
        self._next_id = 0
        self._was_executed = False

    # ---- sources ----

    def from_source(
        self, source: Source[T], watermarks: WatermarkStrategy | None = None, **settings: Unpack[Settings]
    ) -> DataStream[T]:
        """Read from a source: files, a data generator, a socket, or your own `Source`.

        With a `WatermarkStrategy` its records have event times.
        """
        if isinstance(source, type) and issubclass(source, Source):
            raise ProgramError(f"from_source got the class {source.__name__}; give it an instance")
        if not isinstance(source, Source):
            raise ProgramError(f"from_source needs a Source, got {kind_of(source)}: {source!r}")
        return self._read(source, source.describe(), settings, watermarks)

    @overload
    def from_collection(
        self, values: ArrowTable | Iterable[Mapping[str, object]], **settings: Unpack[Settings]
    ) -> DataStream[Row]: ...

    @overload
    def from_collection(self, values: Iterable[T], **settings: Unpack[Settings]) -> DataStream[T]: ...

    @overload
    def from_collection(
        self, values: ArrowTable | Iterable[object], *, type: TypeForm[T], **settings: Unpack[Settings]
    ) -> DataStream[T]: ...

    def from_collection(
        self, values: Any, *, type: object = None, **settings: Unpack[Settings]
    ) -> DataStream[Any]:
        """Read a list, or the rows of a pandas or polars DataFrame or of an Arrow table.

        The record type is `type`, or the columns of the table, or the one class of all values; else it is object.

        None may be among plain values. Integers among floats become floats if none is beyond 2**53:
        `[1, None]` is read as `int | None`, `[1, 2.5]` as `float`.

        >>> from tidegate import Environment
        >>> env = Environment(runtime="in-process")
        >>> list(env.from_collection(["a", "b"]).execute_and_collect())
        ['a', 'b']
        """
        table = as_table(values)
        if table is not None:
            return self._read(CollectionSource(table, type), "collection", settings)
        if not isinstance(values, Iterable):
            raise ProgramError(f"from_collection needs values to iterate over, got {values!r}")
        if isinstance(values, (str, bytes, bytearray, Mapping)):
            raise ProgramError(_refused_collection(values))
        return self._read(CollectionSource(values, type), "collection", settings)

    def from_sequence(self, start: int, end: int, **settings: Unpack[Settings]) -> DataStream[int]:
        """Read the numbers from `start` to `end`, both included, split over the subtasks."""
        return self._read(NumberSequenceSource(start, end), f"sequence {start}..{end}", settings)

    def from_dataframe(self, dataframe: DataFrame, **settings: Unpack[Settings]) -> DataStream[Row]:
        """Read a bounded Spark DataFrame. It is staged as Parquet files, so that it can be read again after a failure.

        The files go to the directory of the option `spark.staging_dir`. They are deleted when neither the program nor a
        running job needs them any more.
        """
        return self._read(self._launch().stage_dataframe(dataframe, self), "dataframe", settings)

    # ---- running ----

    def execute(self, job_name: str | None = None) -> JobMetrics:
        """Run the program and wait for its end. Prints the plan and live progress as the options say.

        This uses up what was built: for a second job, build the streams again.

        Returns the final `JobMetrics`. Raises `JobFailedError` with the operator, the position and the user's
        traceback, once. Ctrl-C cancels the job, and the KeyboardInterrupt reaches the caller.
        """
        program = self._take_program(job_name)
        try:
            metrics: JobMetrics = self._launch().execute(program, self.spark)
        except KeyboardInterrupt:
            # A new exception, so that the traceback shows the line of the program, not the code that waited here.
            raise KeyboardInterrupt(f"job {program.name!r} was cancelled") from None
        return metrics

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start the program and return at once, with a client for the running job."""
        client: JobClient = self._launch().execute_async(self._take_program(job_name), self.spark)
        return client

    def explain(self, format: str = "text", job_name: str | None = None) -> str:
        """The plan: the operators, their chains and why an edge is not chained, and the slots needed.

        `format` is "text", "json", "mermaid" or "svg"; `job_name` is the one that `execute` will get. If no stream has
        a sink yet, the plan shows the open ends as if they were collected. A notebook shows the picture.
        """
        if self._sinks or not self._nodes:
            return self._explain(self._program(job_name), format)
        read = {ref.upstream.id for node in self._nodes for refs in node.inputs for ref in refs}
        ends = [node for node in self._nodes if node.id not in read]
        sinks = [self._collected((StreamRef(node),), node.output_type) for node in ends]
        program = Program(self._job_name(job_name), tuple(sinks), (), self.options)
        return self._explain(
            program, format, "the program has no sink: it is shown as if its streams were collected"
        )

    def _explain(self, program: Program, format: str, note: str = "") -> str:
        text: str = self._launch().explain(program, format, note)
        return text

    def _explain_stream(self, stream: DataStream[Any], format: str, job_name: str | None) -> str:
        sink = self._collected(stream._refs, stream.record_type)
        return self._explain(Program(self._job_name(job_name), (sink,), (), self.options), format)

    def _collected(self, refs: tuple[StreamRef, ...], record_type: RecordType) -> Transformation:
        """Add a sink that collects, without registering it as a sink of the program."""
        return self._add(WriteSink(CollectSink()), "collect", (refs,), record_type, register=False)

    # ---- inside ----

    def _program(self, job_name: str | None, sinks: Sequence[Transformation] | None = None) -> Program:
        name = self._job_name(job_name)
        if sinks is not None:  # one stream was asked for: do not report the others as unused
            self._forget(sinks)
            return Program(name, tuple(sinks), (), self.options)
        if self._was_executed and not self._nodes:
            raise ProgramError(
                "what was built in this environment was already executed: an earlier call has used it up. Build the "
                "streams and their sinks again"
            )
        return Program(name, tuple(self._sinks), tuple(self._nodes), self.options)

    def _job_name(self, given: str | None) -> str:
        return given or self.options.job_name or _script_name()

    def _forget(self, sinks: Sequence[Transformation]) -> None:
        """Forget the nodes that lead to these sinks: they run now, so a later plan must not report them as unused."""
        run: set[int] = set()
        waiting = list(sinks)
        while waiting:
            node = waiting.pop()
            if node.id not in run:
                run.add(node.id)
                waiting += [ref.upstream for refs in node.inputs for ref in refs]
        self._nodes = [node for node in self._nodes if node.id not in run]

    def _take_program(self, job_name: str | None) -> Program:
        program = self._program(job_name)
        self._was_executed = self._was_executed or bool(self._sinks)
        self._sinks.clear()
        self._nodes.clear()
        return program

    def _collect(self, sink: Transformation, job_name: str | None) -> Iterator[Any]:
        program = self._program(job_name, (sink,))
        rows: Iterator[Any] = self._launch().collect(program, self.spark)
        return rows

    def _to_dataframe(self, stream: DataStream[Any], job_name: str | None) -> Any:
        return self._launch().to_dataframe(self, stream, job_name)

    def _read(
        self,
        source: Source[T],
        name: str,
        settings: Mapping[str, Any],
        watermarks: WatermarkStrategy | None = None,
    ) -> DataStream[T]:
        node = self._add(ReadSource(source, watermarks), name, (), source.record_type)
        node.fixed_parallelism = source.fixed_parallelism
        node.side_outputs.update(source.side_outputs())
        if watermarks is not None:
            declare_strategy(node, watermarks, settings.get("name") or name)
        stream: DataStream[T] = DataStream(self, (StreamRef(node),), node.output_type)
        apply_settings(stream, settings)
        return stream

    def _add(
        self,
        operation: Operation,
        name: str,
        inputs: tuple[tuple[StreamRef, ...], ...],
        output_type: RecordType,
        *,
        register: bool = True,
    ) -> Transformation:
        node = Transformation(self._next_id, operation, name, inputs, output_type)
        self._next_id += 1
        if register:
            self._nodes.append(node)
            if operation.written_sink is not None:
                self._sinks.append(node)
        return node

    @staticmethod
    def _launch() -> ModuleType:
        # The only upward import of the api. It is by name, so that a program stays plain data until it runs.
        return importlib.import_module("tidegate.launch")


def _refused_collection(values: Any) -> str:
    """Say why this iterable is not a collection of records."""
    if isinstance(values, Mapping):
        records = "keys"
        advice = (
            "Pass list(d.items()) for pairs of key and value, list(d) for the keys, or [d] for one record"
        )
    else:
        records = "letters" if isinstance(values, str) else "bytes"
        advice = f"Pass [value] for one record, or list(value) for the {records}"
    return (
        f"from_collection needs a list of records, but got one {type(values).__name__}, of which it would read the "
        f"{records}: {brief(values)}. {advice}"
    )


def _script_name() -> str:
    """The name of the user's script; "job" in a notebook or with `python -c`."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    named = script.suffix == ".py" and script.stem not in ("__main__", "ipykernel_launcher")
    return script.stem if named else "job"
