"""The plan as data: what every format of `explain` shows. The field names are the keys of the JSON format.

They are stable: fields may be added, but none changes its meaning. If one must, `VERSION` grows.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Literal

import msgspec

from tidegate.api.functions import function_name
from tidegate.api.state import (
    BroadcastState,
    KeyedState,
    MapState,
    OperatorListState,
    StateDeclaration,
    UnionListState,
)
from tidegate.api.watermarks import WatermarkStrategy
from tidegate.graph.chaining import chains
from tidegate.graph.event_time import event_time_warnings
from tidegate.graph.expression_fusion import fused_queries
from tidegate.graph.guarantees import Guarantee, describe_checkpoints, guarantees
from tidegate.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from tidegate.metrics.event_time import OperatorWatermark, operator_watermarks
from tidegate.metrics.snapshot import JobMetrics
from tidegate.program.operations import Execution, Key
from tidegate.records.types import ObjectType, record_type_of

VERSION = 1

_KINDS = {OperatorListState: "list", UnionListState: "union list", BroadcastState: "broadcast map"}


class PlannedState(msgspec.Struct, frozen=True):
    """A state that an operator's function declares. `scope`: per key, or of the subtask."""

    name: str
    scope: Literal["keyed", "operator"]
    kind: str
    type: str
    ttl: str | None
    serializer: str


class PlannedWatermarks(msgspec.Struct, frozen=True):
    """The watermark strategy of a source, or of an operator that assigns timestamps."""

    timestamps: str
    """Where they come from: a column, an expression, a function, or the source."""
    kind: Literal["bounded", "generator", "none"]
    out_of_orderness_ms: int | None
    """Of `bounded`; 0: monotonous."""
    idleness_ms: int | None
    alignment_group: str | None
    max_drift_ms: int | None
    words: str


class PlannedOperator(msgspec.Struct, frozen=True):
    """An operator of a task. `runs`: the user's Python per record, or whole batches."""

    id: str
    uid: str | None
    name: str
    kind: str
    detail: str
    runs: Execution
    output_type: str
    side_outputs: dict[str, str]
    states: list[PlannedState] = []
    watermarks: PlannedWatermarks | None = None
    """The watermark strategy, if event time begins here."""
    watermark: OperatorWatermark | None = None
    """Of a running job: how far event time is after this operator."""

    @property
    def event_time(self) -> list[str]:
        """What the plan says about event time, in lines."""
        lines = [] if self.watermarks is None else [f"watermarks: {self.watermarks.words}"]
        return lines if self.watermark is None else [*lines, self.watermark.words]


class PlannedCall(msgspec.Struct, frozen=True):
    """Inside a task: operator `source` calls operator `target` (positions) with its main or a side output."""

    source: int
    target: int
    tag: str | None


class PlannedTask(msgspec.Struct, frozen=True):
    """A chain of operators that runs as one task, in `parallelism` subtasks."""

    id: int
    name: str
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    operators: list[PlannedOperator]
    calls: list[PlannedCall]
    queries: list[list[int]] = []
    """Operators (positions that follow each other) that run as one polars query."""


class PlannedExchange(msgspec.Struct, frozen=True):
    """Records between two tasks; `because` says why the two are not one. `pickled`: records without a schema."""

    source_task: int
    source_operator: int
    tag: str | None
    target_task: int
    input: int
    partitioning: str
    record_type: str
    because: str
    pickled: bool


class PlannedSlots(msgspec.Struct, frozen=True):
    """Slots that the job needs: per sharing group its largest parallelism, and their sum."""

    total: int
    by_group: dict[str, int]


class Plan(msgspec.Struct, frozen=True):
    """The whole job as planned."""

    version: int
    name: str
    slots: PlannedSlots
    tasks: list[PlannedTask]
    exchanges: list[PlannedExchange]
    unused: list[str]
    """Operators that lead to no sink and so are not run."""
    warnings: list[str]
    state_backend: str = ""
    """Where keyed state is kept; empty if no operator of the job has any."""
    checkpoints: str = ""
    """How often, in which mode and where; or what happens after a failure without them."""
    guarantees: list[Guarantee] = []
    """What a failure does to the output of each sink."""

    def operators(self, runs: Execution) -> list[PlannedOperator]:
        """The operators that run in this way, in order."""
        return [o for t in self.tasks for o in t.operators if o.runs == runs]


def plan_of(graph: StreamGraph) -> Plan:
    groups = chains(graph)
    place = {
        n.index: (task, position) for task, group in enumerate(groups) for position, n in enumerate(group)
    }
    exchanges = [_exchange(e, place) for e in graph.edges if e.unchained_because]
    by_group: dict[str, int] = {}
    for node in graph.nodes:
        group = node.slot_sharing_group
        by_group[group] = max(by_group.get(group, 0), node.parallelism)
    return Plan(
        VERSION,
        graph.name,
        PlannedSlots(sum(by_group.values()), by_group),
        [_task(i, group, place) for i, group in enumerate(groups)],
        exchanges,
        list(graph.unused),
        _warnings(graph),
        graph.options.state_backend if any(n.operation.keeps_keyed_state for n in graph.nodes) else "",
        describe_checkpoints(graph.options),
        guarantees(graph),
    )


def with_watermarks(plan: Plan, metrics: JobMetrics) -> Plan:
    """The plan of a running job with each operator's current watermark; its tasks are the vertices of the metrics."""
    vertices = {vertex.vertex: vertex for vertex in metrics.vertices if vertex.subtasks}
    timed = _tasks_with_event_time(plan)
    tasks = []
    for task in plan.tasks:
        marks = operator_watermarks(metrics, vertices[task.id]) if task.id in vertices else []
        # No operator before it has a watermark yet.
        if not marks and task.id in vertices and task.id in timed:
            marks = [OperatorWatermark(None, 0, False, "")] * len(task.operators)
        begins = next((i for i, o in enumerate(task.operators) if o.watermarks is not None), 0)
        operators = [
            msgspec.structs.replace(operator, watermark=mark) if i >= begins else operator
            for i, (operator, mark) in enumerate(zip_longest(task.operators, marks))
        ]
        tasks.append(msgspec.structs.replace(task, operators=operators))
    return msgspec.structs.replace(plan, tasks=tasks)


def _tasks_with_event_time(plan: Plan) -> set[int]:
    """The tasks where event time begins, and those after them."""
    found = {task.id for task in plan.tasks if any(o.watermarks is not None for o in task.operators)}
    before = -1
    while len(found) != before:
        before = len(found)
        found |= {e.target_task for e in plan.exchanges if e.source_task in found}
    return found


def _task(id: int, group: list[StreamNode], place: dict[int, tuple[int, int]]) -> PlannedTask:
    head = group[0]
    calls = [
        PlannedCall(place[e.source.index][1], i, e.tag)
        for i, node in enumerate(group)
        for e in node.inputs
        if not e.unchained_because
    ]
    return PlannedTask(
        id,
        " -> ".join(n.name for n in group),
        head.parallelism,
        head.max_parallelism,
        head.slot_sharing_group,
        [_operator(n) for n in group],
        calls,
        fused_queries(group),
    )


def _operator(node: StreamNode) -> PlannedOperator:
    return PlannedOperator(
        node.operator_id,
        node.uid,
        node.name,
        node.operation.kind,
        node.operation.detail(),
        node.operation.execution,
        node.output_type.describe() if node.operation.written_sink is None else "",
        {tag: t.describe() for tag, t in node.side_outputs.items()},
        [_state(s) for s in node.operation.states()],
        _watermarks(node.operation.watermark_strategy),
    )


def _watermarks(strategy: WatermarkStrategy | None) -> PlannedWatermarks | None:
    if strategy is None:
        return None
    alignment = strategy.alignment
    return PlannedWatermarks(
        strategy.timestamp_words(),
        strategy.kind,
        strategy.out_of_orderness_ms if strategy.kind == "bounded" else None,
        strategy.idleness_ms,
        None if alignment is None else alignment.group,
        None if alignment is None else alignment.max_drift_ms,
        strategy.describe(),
    )


def _state(state: StateDeclaration) -> PlannedState:
    if isinstance(state, (MapState, BroadcastState)):
        value = f"{_type_words(state.key_type)} to {_type_words(state.value_type)}"
    else:
        value = _type_words(getattr(state, "type", None))
    serializer = getattr(state, "serializer", None)
    ttl = state.ttl if isinstance(state, KeyedState) else None
    return PlannedState(
        state.name,
        "keyed" if isinstance(state, KeyedState) else "operator",
        _KINDS.get(type(state), state.kind),
        value,
        None if ttl is None else f"{ttl.duration}, {ttl.time} time",
        "arrow" if serializer is None else serializer.name,
    )


def _type_words(hint: Any) -> str:
    found = record_type_of(hint)
    if not found.is_object:
        return found.describe()
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _exchange(edge: StreamEdge, place: dict[int, tuple[int, int]]) -> PlannedExchange:
    task, operator = place[edge.source.index]
    return PlannedExchange(
        task,
        operator,
        edge.tag,
        place[edge.target.index][0],
        edge.input,
        edge.partitioning.describe(),
        edge.record_type.describe(),
        edge.unchained_because,
        edge.record_type.is_object,
    )


def _warnings(graph: StreamGraph) -> list[str]:
    found: dict[str, None] = {}
    for edge in graph.edges:
        if edge.unchained_because and edge.record_type.is_object:
            found[_pickled(edge)] = None
        key = getattr(edge.partitioning, "key", None)
        if isinstance(key, Key) and key.function is not None and key.record_type.is_object:
            found[
                f"slow: keys for {edge.target.name!r} have no schema; "
                f"give `{function_name(key.function)}` a return type hint"
            ] = None
    return [*found, *event_time_warnings(graph)]


def untyped_records(graph: StreamGraph) -> list[str]:
    """Exchanges whose records have a type hint but are pickled all the same; for the log."""
    return list(dict.fromkeys(_pickled(e) for e in graph.edges if e.unchained_because and _why_untyped(e)))


def _why_untyped(edge: StreamEdge) -> str:
    return edge.record_type.because if isinstance(edge.record_type, ObjectType) else ""


def _pickled(edge: StreamEdge) -> str:
    sends, because = f"slow: {edge.source.name!r} sends records", _why_untyped(edge)
    remedy = _remedy(edge.source, edge.tag)
    if not because:
        return f"{sends} without a schema to {edge.target.name!r}, as pickled objects; {remedy}"
    return (
        f"{sends} to {edge.target.name!r} as pickled objects, because {because}; {remedy} that Arrow knows: a "
        f"dataclass, a NamedTuple, a TypedDict or a pydantic model of plain fields, or `object` if it is meant"
    )


def _remedy(node: StreamNode, tag: str | None) -> str:
    """How to give these records a schema, at the operator that lost it."""
    while tag is None and node.inputs and node.operation.keeps_type:
        node, tag = node.inputs[0].source, node.inputs[0].tag
    if tag is not None:
        return f"give OutputTag({tag!r}) a type"
    operation = node.operation
    if operation.read_source is not None:
        return f"give the source {node.name!r} a type"
    if operation.hinted_function is None:
        return f"give {node.name!r} a type"
    return f"give `{function_name(operation.hinted_function)}` a return type hint"
