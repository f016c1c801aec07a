"""StreamGraph: the program with every choice made (parallelism, partitioning, operator ids), before chaining."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from tidegate.core.errors import ProgramError
from tidegate.core.ids import OperatorId
from tidegate.core.key_groups import default_max_parallelism
from tidegate.core.options import DEFAULT_ORIGIN, Options
from tidegate.graph.event_time import check_event_time
from tidegate.graph.window_stages import with_local_stages
from tidegate.program.operations import Operation
from tidegate.program.partitioning import Forward, Partitioning, Rebalance
from tidegate.program.state_checks import check_keys_can_be_stored
from tidegate.program.transformations import StreamRef, Transformation
from tidegate.records.types import RecordType, projected


@dataclass(eq=False)
class StreamNode:
    """One operator."""

    index: int
    operator_id: OperatorId
    uid: str | None
    name: str
    operation: Operation
    parallelism: int
    max_parallelism: int
    chaining: Literal["always", "head", "never"]
    slot_sharing_group: str
    output_type: RecordType
    side_outputs: dict[str, RecordType]
    inputs: list[StreamEdge] = field(default_factory=list)
    outputs: list[StreamEdge] = field(default_factory=list)


@dataclass(eq=False)
class StreamEdge:
    """A stream between two operators. `unchained_because` is empty if they are chained.

    `columns` are those that cross an exchange, if the target declares which it reads; None: all.
    """

    source: StreamNode
    target: StreamNode
    input: int
    tag: str | None
    partitioning: Partitioning
    unchained_because: str = ""
    columns: tuple[str, ...] | None = None

    @property
    def produced_type(self) -> RecordType:
        """The type of the records that the source emits to it."""
        return self.source.output_type if self.tag is None else self.source.side_outputs[self.tag]

    @property
    def record_type(self) -> RecordType:
        """The type of the records that the target gets from it."""
        return self.produced_type if self.columns is None else projected(self.produced_type, self.columns)


@dataclass(eq=False)
class StreamGraph:
    """All operators in an order in which every operator comes after its inputs."""

    name: str
    nodes: list[StreamNode]
    options: Options
    unused: list[str]
    """Names of operators that lead to no sink and so are not run."""

    @property
    def edges(self) -> list[StreamEdge]:
        return [e for n in self.nodes for e in n.inputs]


def build_stream_graph(
    name: str, sinks: tuple[Transformation, ...], written: tuple[Transformation, ...], options: Options
) -> StreamGraph:
    """Make the graph of everything that leads to the sinks; `written` are all nodes, to name unused ones."""
    if not sinks:
        raise ProgramError(
            "the program has no sink, so it would do nothing: end a stream with sink_to() or print()"
        )
    order = with_local_stages(_topological_order(sinks))
    nodes: dict[int, StreamNode] = {}
    equals: Counter[str] = Counter()
    for index, node in enumerate(order):
        nodes[node.id] = _stream_node(index, node, nodes, options, equals)
    graph = StreamGraph(name, list(nodes.values()), options, [t.name for t in written if t.id not in nodes])
    _check_uids(graph)
    _check_targets(graph)
    for planned in graph.nodes:
        check_keys_can_be_stored(planned.operation, planned.name, options)
        unstorable = planned.operation.unstorable([e.record_type for e in planned.inputs])
        if unstorable and options.checkpoint_interval:
            raise ProgramError(f"operator {planned.name!r} {unstorable}")
    check_event_time(graph)
    _push_projections(graph)
    return graph


def _stream_node(
    index: int, node: Transformation, made: dict[int, StreamNode], options: Options, equals: Counter[str]
) -> StreamNode:
    upstream = [made[ref.upstream.id] for refs in node.inputs for ref in refs]
    parallelism = (
        node.parallelism or node.fixed_parallelism or _inherited_parallelism(node, upstream, options)
    )
    max_parallelism = node.max_parallelism or options.max_parallelism
    if node.max_parallelism is None and options.origin(Options.max_parallelism) == DEFAULT_ORIGIN:
        max_parallelism = max(max_parallelism, default_max_parallelism(parallelism))
    if max_parallelism < parallelism:
        raise ProgramError(
            f"operator {node.name!r} has parallelism {parallelism} but max parallelism {max_parallelism}. "
            f"Set max_parallelism to at least {parallelism}"
        )
    groups = {n.slot_sharing_group for n in upstream}
    group = node.slot_sharing_group or (groups.pop() if len(groups) == 1 else "default")
    result = StreamNode(
        index,
        _operator_id(node, upstream, equals),
        node.uid,
        node.name,
        node.operation,
        parallelism,
        max_parallelism,
        node.chaining,
        group,
        node.output_type,
        dict(node.side_outputs),
    )
    for input_index, refs in enumerate(node.inputs):
        for ref in refs:
            source = made[ref.upstream.id]
            edge = StreamEdge(source, result, input_index, ref.tag, _resolve(ref, source, result))
            result.inputs.append(edge)
            source.outputs.append(edge)
    return result


def _resolve(ref: StreamRef, source: StreamNode, target: StreamNode) -> Partitioning:
    equal = source.parallelism == target.parallelism
    if ref.partitioning is None:
        return Forward() if equal else Rebalance()
    if isinstance(ref.partitioning, Forward) and not equal:
        raise ProgramError(
            f"forward from {source.name!r} (parallelism {source.parallelism}) to {target.name!r} (parallelism "
            f"{target.parallelism}) needs equal parallelism. Use rebalance() or rescale()"
        )
    return ref.partitioning


def _inherited_parallelism(node: Transformation, upstream: list[StreamNode], options: Options) -> int:
    """The parallelism of the input for a pre-aggregation, which runs before the exchange; else the option."""
    if node.operation.is_local_stage:
        return max(n.parallelism for n in upstream)
    return options.parallelism


def _operator_id(node: Transformation, upstream: list[StreamNode], equals: Counter[str]) -> OperatorId:
    """A hash of the uid, or else of the operation's identity, the ids of the inputs and the place among equals.

    So an operator keeps its id when an unrelated part of the program, or the text of plans, changes.
    """
    if node.uid is not None:
        text = f"uid:{node.uid}"
    else:
        text = f"auto:{_identity_text(node)}:{','.join(n.operator_id for n in upstream)}"
        place = equals[text]
        equals[text] += 1
        text = f"{text}:{place}"
    return OperatorId(hashlib.sha256(text.encode()).hexdigest()[:32])


def _identity_text(node: Transformation) -> str:
    identity = node.operation.identity()
    try:
        return json.dumps(identity, separators=(",", ":"))
    except (TypeError, ValueError) as e:
        raise ProgramError(
            f"operator {node.name!r} has the identity {identity!r}, which cannot be stored: {e}. An identity() is made "
            f"of texts, numbers, None, and tuples of these; or give the operator a uid"
        ) from e


def _topological_order(sinks: tuple[Transformation, ...]) -> list[Transformation]:
    """Inputs before their users: depth-first search without recursion (a program may have thousands of operators)."""
    done: dict[int, Transformation] = {}
    on_path: set[int] = set()
    for sink in sinks:
        stack = [(sink, False)]
        while stack:
            node, inputs_done = stack.pop()
            if inputs_done:
                on_path.discard(node.id)
                done[node.id] = node
            elif node.id in on_path:
                raise ProgramError(
                    f"the program has a cycle through operator {node.name!r}: a stream cannot lead back to itself"
                )
            elif node.id not in done:
                on_path.add(node.id)
                stack.append((node, True))
                inputs = [ref.upstream for refs in node.inputs for ref in refs]
                for upstream in reversed(inputs):
                    if upstream.id in on_path:
                        raise ProgramError(
                            f"the program has a cycle through operator {upstream.name!r}: "
                            f"a stream cannot lead back to itself"
                        )
                    if upstream.id not in done:
                        stack.append((upstream, False))
    return list(done.values())


def _check_uids(graph: StreamGraph) -> None:
    seen: dict[str, StreamNode] = {}
    for node in graph.nodes:
        if node.uid is None:
            continue
        if node.uid in seen:
            raise ProgramError(
                f"operators {seen[node.uid].name!r} and {node.name!r} both have the uid {node.uid!r}. "
                f"A uid finds an operator's state, so each must be its own"
            )
        seen[node.uid] = node


def _meets_others(node: StreamNode) -> bool:
    """Whether a union merges its records with another operator's, which must have the same columns."""
    return any(
        other.input == edge.input and other.source is not node
        for edge in node.outputs
        for other in edge.target.inputs
    )


def _check_targets(graph: StreamGraph) -> None:
    seen: dict[str, StreamNode] = {}
    for node in graph.nodes:
        sink = node.operation.written_sink
        target = None if sink is None else sink.target()
        if target is None:
            continue
        if target in seen:
            raise ProgramError(
                f"sinks {seen[target].name!r} and {node.name!r} both write to {target}. "
                f"Give each its own, or union the streams before one sink"
            )
        seen[target] = node


def _push_projections(graph: StreamGraph) -> None:
    """Let a source read only the columns that its consumers use, if all of them declare which."""
    for node in graph.nodes:
        operation = node.operation
        if operation.read_source is None or node.output_type.is_object or _meets_others(node):
            continue
        needs = [
            required.required_columns()
            for e in node.outputs
            if e.tag is None
            for required in (e.target.operation, e.partitioning)
        ]
        if operation.watermark_strategy is not None:
            needs.append(operation.watermark_strategy.required_columns())
        if not needs or any(n is None for n in needs):
            continue
        used = frozenset().union(*(n for n in needs if n is not None))
        names = [n for n in node.output_type.names if n in used]
        if not names or len(names) == len(node.output_type.names):
            continue
        narrower = operation.with_columns(names)
        if narrower is not None and narrower.read_source is not None:
            node.operation = narrower
            node.output_type = narrower.read_source.record_type
