"""The top of the import order: plans a program and runs it on the runtime that the options name.

`Environment` imports this module by name to explain or run a program; no other module imports it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from tidegate.api.environment import Environment, Program, ambient
from tidegate.api.sink import Sink, SinkJob
from tidegate.api.streams import DataStream
from tidegate.cli.notebook import is_notebook
from tidegate.cli.plan import print_plan
from tidegate.cli.progress import ProgressDisplay
from tidegate.core.errors import JobError
from tidegate.core.ids import OperatorId
from tidegate.core.options import Options
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.event_time import event_time_warnings
from tidegate.graph.explain import explain as explain_graph
from tidegate.graph.explain_plan import Plan, plan_of, untyped_records
from tidegate.graph.guarantees import guarantees
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.stream_graph import StreamGraph, StreamNode, build_stream_graph
from tidegate.jobmanager.resume_point import Beginning, Prospect, prospect
from tidegate.metrics.event_time import dropped_words
from tidegate.metrics.snapshot import JobMetrics
from tidegate.program.driver_sinks import CollectSink, PrintSink, print_batch
from tidegate.program.operations import WriteSink
from tidegate.records.types import RecordType
from tidegate.records.wire import decode_batch

_LOG = logging.getLogger(__name__)


def explain(program: Program, format: str, note: str) -> str:
    """The plan of a program in one of the formats; `note` is added to its warnings."""
    return explain_graph(_stream_graph(program), format, note)


def execute(program: Program, spark: Any) -> JobMetrics:
    """Run a program to its end, with a live display if the option `progress` asks for it."""
    graph = _graph_to_run(program)
    shown = _shows_progress(program.options)
    if shown and not is_notebook():
        print_plan(explain_graph(graph, "text"))
        if program.options.runtime == "spark":
            print("\nstarting on Spark ...", flush=True)  # noqa: T201
    client = _start(graph, program, spark)
    display = None
    if shown and program.options.runtime == "spark":
        _hide_progress_bar(spark)
        display = ProgressDisplay.of(client)
    with display or contextlib.nullcontext():
        return _result(client)


def execute_async(program: Program, spark: Any) -> Any:
    """Start a program and return its client."""
    return _start(_graph_to_run(program), program, spark)


def collect(program: Program, spark: Any) -> Iterator[Any]:
    """Start a program whose only sink collects, and yield its records as they arrive; closing early cancels it."""
    graph = _graph_to_run(program)
    node = next(n for n, sink in _sinks(graph) if isinstance(sink, CollectSink))
    client = _start(graph, program, spark)
    # Requested here, so that dropping the iterator before its first step cancels the job too.
    return _rows(client.collected_batches(node.operator_id), node.output_type)


def stage_dataframe(dataframe: Any, env: Environment) -> Any:
    """A source that reads a Spark DataFrame, staged as Parquet files that live as long as the source."""
    from tidegate.spark.dataframes import stage

    source, location = stage(dataframe, env.options)
    weakref.finalize(source, _remove, location)
    return source


def to_dataframe(env: Environment, stream: DataStream[Any], job_name: str | None) -> Any:
    """Run a bounded stream into Parquet files and read them as a Spark DataFrame.

    The files stay until the session is gone: DataFrames derived from this one read them, but do not reference it.
    """
    from tidegate.spark.dataframes import dataframe_of, new_staging_dir, staging_sink
    from tidegate.spark.session import obtain_session

    location = new_staging_dir(env.options)
    try:
        sink = staging_sink(location)
        node = env._add(WriteSink(sink), "to_dataframe", (stream._refs,), stream.record_type, register=False)
        sink.check_type(stream.record_type)
        execute(env._program(job_name, (node,)), env.spark)
        session = obtain_session(env.spark, env.options, 1)
    except BaseException:
        _remove(location)
        raise
    weakref.finalize(session, _remove, location)
    return dataframe_of(session, location, stream.record_type)


# ---- inside ----


def _stream_graph(program: Program) -> StreamGraph:
    return build_stream_graph(program.name, program.sinks, program.transformations, program.options)


def _graph_to_run(program: Program) -> StreamGraph:
    if ambient.instead_of_running is not None:
        ambient.instead_of_running(program)
    return _stream_graph(program)


def _start(graph: StreamGraph, program: Program, spark: Any) -> Any:
    """Start the job, and a thread for each print sink that prints its records until the job has ended."""
    job_graph = build_job_graph(graph)
    _log_guarantees(graph)
    _warn_of_missing_uids(graph)
    for words in [*event_time_warnings(graph), *untyped_records(graph)]:
        _LOG.warning("job %r: %s", graph.name, words)
    printers = {
        node.operator_id: _Printer(sink, node.output_type)
        for node, sink in _sinks(graph)
        if isinstance(sink, PrintSink)
    }
    ahead = prospect(program.options, job_graph.name, job_graph)
    targets = _Targets(graph)
    if ahead.may_fence:
        targets.check(ahead)
    if program.options.runtime == "in-process":
        begin = ahead.take()
        with _abandoning(begin), targets.of(begin):
            return _start_in_process(job_graph, plan_of(graph), program, printers, begin, targets)
    client = _start_on_spark(job_graph, plan_of(graph), program, spark, ahead, targets)
    for id, printer in printers.items():
        batches = client.collected_batches(id)
        thread = threading.Thread(
            target=printer.take_all, args=(batches,), name="tidegate-print", daemon=True
        )
        thread.start()
        client.accompany(thread)
    return client


def _log_guarantees(graph: StreamGraph) -> None:
    """Log the guarantees, for programs that print no plan; warn if records may be lost despite checkpoints."""
    for guarantee in guarantees(graph):
        lossy = guarantee.level == "at-most-once" and graph.options.checkpoint_interval
        _LOG.log(logging.WARNING if lossy else logging.INFO, "job %r: %s", graph.name, guarantee)


def _warn_of_missing_uids(graph: StreamGraph) -> None:
    """Warn of operators with state and no uid: they find their state by their place, which a change may move."""
    if not graph.options.checkpoint_interval or not graph.options.checkpoint_dir:
        return  # nothing outlives the driver
    nameless = [node.name for node in graph.nodes if node.uid is None and node.operation.keeps_state]
    if nameless:
        _LOG.warning(
            "job %r takes checkpoints, but these operators have state and no uid: %s. A changed program may not find "
            "their state again; give each one uid=...",
            graph.name,
            ", ".join(map(repr, nameless)),
        )


@contextlib.contextmanager
def _abandoning(begin: Beginning) -> Iterator[None]:
    try:
        yield
    except BaseException:
        begin.abandon()
        raise


def _start_on_spark(
    job_graph: JobGraph, plan: Plan, program: Program, spark: Any, ahead: Prospect, targets: _Targets
) -> Any:
    from tidegate.runtime.job_client import run_job
    from tidegate.runtime.job_runner import JobRunner
    from tidegate.spark.gang import SparkGang
    from tidegate.spark.session import SessionUse, obtain_session

    options = program.options
    use = SessionUse()
    session = obtain_session(spark, options, job_graph.slots_needed, use)
    gang = SparkGang(session, options, use)
    if ahead.may_fence:
        # A program that cannot run must not fence a driver that does.
        gang.check_start(job_graph.slots_needed)
    begin = ahead.take()
    with _abandoning(begin):
        runner = JobRunner(job_graph, options, gang, begin=begin, keeps=program, on_end=targets.release)
        try:
            # Last, after everything that may refuse the job: a sink may delete what an earlier run left.
            with targets.of(begin):
                return run_job(runner, plan)
        except BaseException:
            runner.close_unstarted()
            raise


def _start_in_process(
    job_graph: JobGraph,
    plan: Plan,
    program: Program,
    printers: dict[OperatorId, _Printer],
    begin: Beginning,
    targets: _Targets,
) -> Any:
    from tidegate.runtime.in_process_client import InProcessClient
    from tidegate.runtime.simulation import Simulation

    options = program.options
    simulation = Simulation(job_graph, options, options.seed, begin=begin, on_end=targets.release)
    simulation.consumers.update({id: printer.take for id, printer in printers.items()})
    return InProcessClient(simulation, plan, keeps=program)


def _result(client: Any) -> JobMetrics:
    try:
        metrics: JobMetrics = client.result()
    except KeyboardInterrupt:
        try:
            client.cancel()
        except TimeoutError as e:  # the user who interrupts needs no second error
            _LOG.warning("%s", e)
        raise
    for words in dropped_words(metrics):
        _LOG.warning("job %r: %s", metrics.name, words)
    return metrics


class _Targets:
    """The targets of a job's sinks: prepared on entry, released at the job's end or if it does not start."""

    def __init__(self, graph: StreamGraph) -> None:
        self._name = graph.name
        self._resumable = False
        self._sinks = [(sink, node.parallelism) for node, sink in _sinks(graph)]
        self._jobs: list[tuple[Sink, SinkJob]] = []
        self._prepared: list[tuple[Sink, SinkJob]] = []

    def check(self, ahead: Prospect) -> None:
        """Raise if a target cannot be written to, and change nothing."""
        attempt = ahead.next_attempt
        for sink, parallelism in self._sinks:
            sink.check_target(SinkJob(ahead.job_id, attempt, parallelism, ahead.is_resumed))

    def of(self, begin: Beginning) -> _Targets:
        """These targets, for the job that begins now."""
        self._resumable = begin.is_resumed
        claimed = begin.claim is not None
        self._jobs = [
            (sink, SinkJob(begin.job_id, begin.first_attempt, parallelism, begin.is_resumed, claimed))
            for sink, parallelism in self._sinks
        ]
        return self

    def __enter__(self) -> None:
        try:
            for sink, job in self._jobs:
                sink.prepare(job)
                self._prepared.append((sink, job))
        except BaseException:
            self.release(self._resumable)
            raise

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            self.release(self._resumable)

    def release(self, resumable: bool) -> None:
        """Release all prepared targets; called once, however the job ended."""
        for sink, job in self._prepared:
            try:
                sink.release(job, resumable=resumable)
            except Exception:  # noqa: BLE001 -- the job has ended, so its result stands
                _LOG.warning("job %r: %s cannot be released", self._name, sink.describe(), exc_info=True)


class _Printer:
    """Prints the batches of one print sink, up to its limit."""

    def __init__(self, sink: PrintSink, record_type: RecordType) -> None:
        self._sink = sink
        self._type = record_type
        self._left = sink.limit

    def take(self, batch: Any) -> None:
        records = decode_batch(batch.data, self._type)
        printed = print_batch(self._sink.prefix, batch.subtask, records, sys.stdout, self._left)
        self._left = None if self._left is None else self._left - printed

    def take_all(self, batches: Any) -> None:
        with contextlib.suppress(JobError):  # the caller that awaits the result gets it
            for batch in batches:
                self.take(batch)


def _rows(batches: Any, record_type: RecordType) -> Iterator[Any]:
    with contextlib.closing(batches):
        for batch in batches:
            yield from decode_batch(batch.data, record_type).rows


def _sinks(graph: StreamGraph) -> list[tuple[StreamNode, Sink]]:
    return [(node, sink) for node in graph.nodes if (sink := node.operation.written_sink) is not None]


def _shows_progress(options: Options) -> bool:
    watched = sys.stdout.isatty() or is_notebook()
    return options.progress == "on" or (options.progress == "auto" and watched)


def _hide_progress_bar(spark: Any) -> None:
    from tidegate.spark.session import hide_progress_bar

    hide_progress_bar(spark)


def _remove(location: str) -> None:
    from tidegate.spark.dataframes import remove_staging

    remove_staging(location)
