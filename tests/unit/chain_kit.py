"""The first task of a program, fed by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa

from tidegate import Environment
from tidegate.core.clock import ManualClock
from tidegate.core.options import Options
from tidegate.core.subtask_info import SubtaskInfo
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobVertex
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.metrics.registry import TaskMetrics
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import RowType
from tidegate.state.operator_states import OperatorStates, StatesContext
from tidegate.taskmanager.chain import ChainHost, OperatorChain

CLICKS = pa.schema([("app", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
APPS = pa.array(["a", "b", None, "a"]).dictionary_encode()
COLUMNS = pa.RecordBatch.from_arrays(
    [APPS, pa.array([1, None, 3, 4]), pa.array([0.5, 1.5, None, 2.0])], names=CLICKS.names
)


def host() -> ChainHost:
    """A slot that expressions have no use for."""
    calls = {f.name: lambda *_: None for f in dataclasses.fields(ChainHost)[4:]} | {"states": no_states}
    return ChainHost("j", 0, ManualClock(), Options(), **calls)  # type: ignore[arg-type]


def no_states(vertex: JobVertex, subtask: SubtaskInfo) -> OperatorStates:
    context = StatesContext(subtask=subtask, clock=ManualClock(), options=Options(), local_directory=str)
    return OperatorStates(context)


class Chain:
    """The first task of a program, fed by hand, and what leaves it."""

    def __init__(self, write: Any, **options: Any) -> None:
        env = Environment(parallelism=1, **options)
        write(env.from_collection([], type=CLICKS).rebalance())
        program = env._program("job")
        graph = build_stream_graph(program.name, program.sinks, program.transformations, program.options)
        self.vertex = build_job_graph(graph).vertices[1]
        self.metrics = TaskMetrics(0, 0)
        self.out: list[Batch] = []
        last = len(self.vertex.operators) - 1
        self.chain = OperatorChain(self.vertex, 0, host(), self.metrics, {(last, None): [self.out.append]})
        self.chain.open()

    def push(self, columns: pa.RecordBatch = COLUMNS) -> None:
        batch = Batch(
            RowType(CLICKS),
            columns=columns,
            origin=Origin("f", 1),
            timestamps=pa.array(range(columns.num_rows)),
        )
        self.chain.process(batch, 0)

    def counts(self) -> list[tuple[int, int]]:
        return [(c.records_in, c.records_out) for c in self.metrics.snapshot(0).operators]


def to_exchange(stream: Any) -> None:
    stream.rebalance().print()
