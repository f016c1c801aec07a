"""Chaining: operators that need no exchange become one task; every other edge gets the reason why not."""

from __future__ import annotations

from tidegate.core.errors import ProgramError
from tidegate.core.ids import EdgeId, VertexId
from tidegate.graph.blobs import dump_blob
from tidegate.graph.expression_fusion import fused_queries
from tidegate.graph.job_graph import ChainLink, JobEdge, JobGraph, JobVertex, OperatorPayload, OperatorSpec
from tidegate.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from tidegate.program.partitioning import Forward


def decide_chaining(graph: StreamGraph) -> None:
    """Set `unchained_because` and `columns` of every edge."""
    for edge in graph.edges:
        edge.unchained_because = _why_not(edge, graph.options.chaining)
    for edge in graph.edges:
        edge.columns = _columns(edge)


def _columns(edge: StreamEdge) -> tuple[str, ...] | None:
    """The columns that must cross an exchange, in order; None: all, or the records are rows without columns."""
    target, produced = edge.target, edge.produced_type
    together = [e for e in target.inputs if e.input == edge.input]  # a union: all get the same columns
    if not edge.unchained_because or produced.is_object or any(e.source.operation.rows for e in together):
        return None
    needs = [target.operation.required_columns(), *(e.partitioning.required_columns() for e in together)]
    used = {name for need in needs if need is not None for name in need}
    if None in needs or not used or used.issuperset(produced.names):
        return None
    return tuple(name for name in produced.names if name in used)


def _why_not(edge: StreamEdge, enabled: bool) -> str:
    source, target = edge.source, edge.target
    if not enabled:
        return "chaining is switched off (pipeline.operator_chaining)"
    if len(target.inputs) > 1:
        return f"{target.name!r} has {len(target.inputs)} inputs"
    if source.parallelism != target.parallelism:
        return f"parallelism {source.parallelism} and {target.parallelism} differ"
    if not isinstance(edge.partitioning, Forward):
        return f"{edge.partitioning.describe()} needs an exchange"
    if source.slot_sharing_group != target.slot_sharing_group:
        return f"slot-sharing groups {source.slot_sharing_group!r} and {target.slot_sharing_group!r} differ"
    if source.max_parallelism != target.max_parallelism:
        return f"max parallelism {source.max_parallelism} and {target.max_parallelism} differ"
    if target.chaining == "head":
        return f"{target.name!r} starts a new chain"
    if target.chaining == "never" or source.chaining == "never":
        return f"chaining is disabled for {(target if target.chaining == 'never' else source).name!r}"
    return ""


def chains(graph: StreamGraph) -> list[list[StreamNode]]:
    """The operators of each chain, head first, chains in the order of their heads."""
    decide_chaining(graph)
    head: dict[int, int] = {}
    groups: dict[int, list[StreamNode]] = {}
    for node in graph.nodes:
        chained = [e for e in node.inputs if not e.unchained_because]
        head[node.index] = head[chained[0].source.index] if chained else node.index
        groups.setdefault(head[node.index], []).append(node)
    return list(groups.values())


def _check_in_flight(graph: StreamGraph) -> None:
    """Refuse untyped records where a checkpoint would have to store them, unless the program allows pickles."""
    options = graph.options
    unaligned = options.checkpoint_unaligned or options.checkpoint_alignment_timeout
    if not options.checkpoint_interval or not unaligned or options.checkpoint_allow_pickle:
        return
    for edge in graph.edges:
        if edge.unchained_because and edge.record_type.is_object:
            raise ProgramError(
                f"{edge.source.name!r} sends records without a type to {edge.target.name!r}, and unaligned checkpoints "
                f"hold what is in flight: they would be stored as pickles, and restoring a pickle runs code. Give the "
                f"function that makes them a return type hint (a dataclass, NamedTuple, tuple or scalar); or set "
                f"checkpoint.allow_pickle=true, if nobody else can write to checkpoint.dir"
            )


def build_job_graph(graph: StreamGraph) -> JobGraph:
    """Make the JobGraph: one vertex per chain. The user's objects become blobs; one that cannot is refused by name."""
    groups = chains(graph)
    _check_in_flight(graph)
    place = {n.index: (VertexId(v), i) for v, group in enumerate(groups) for i, n in enumerate(group)}
    vertices = tuple(_vertex(VertexId(v), group, place) for v, group in enumerate(groups))
    edges: list[JobEdge] = []
    for edge in graph.edges:
        if not edge.unchained_because:
            continue
        (source, source_operator), (target, _) = place[edge.source.index], place[edge.target.index]
        edges.append(
            JobEdge(
                EdgeId(len(edges)),
                source,
                source_operator,
                edge.tag,
                target,
                edge.input,
                edge.partitioning.describe(),
                edge.partitioning.pointwise,
                dump_blob(edge.partitioning, edge.target.name),
                edge.columns,
                edge.target.operation.rows,
            )
        )
    return JobGraph(graph.name, vertices, tuple(edges))


def _vertex(id: VertexId, group: list[StreamNode], place: dict[int, tuple[VertexId, int]]) -> JobVertex:
    links = tuple(
        ChainLink(place[e.source.index][1], i, e.tag)
        for i, node in enumerate(group)
        for e in node.inputs
        if not e.unchained_because
    )
    head = group[0]
    return JobVertex(
        id,
        " -> ".join(n.name for n in group),
        tuple(_operator_spec(n) for n in group),
        links,
        head.parallelism,
        head.max_parallelism,
        head.slot_sharing_group,
        head.operation.alignment_group,
        tuple(tuple(query) for query in fused_queries(group)),
    )


def _operator_spec(node: StreamNode) -> OperatorSpec:
    by_input: dict[int, object] = {e.input: e.record_type for e in node.inputs}
    payload = OperatorPayload(
        node.operation,
        tuple(by_input[i] for i in sorted(by_input)),
        node.output_type,
        dict(node.side_outputs),
    )
    return OperatorSpec(
        node.operator_id,
        node.uid,
        node.name,
        node.operation.kind,
        node.operation.detail(),
        node.output_type.describe(),
        dump_blob(payload, node.name),
        node.operation.commits,
        node.operation.read_source is not None,
    )
