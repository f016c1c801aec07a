"""Windows in two stages: where nothing forbids it, a local pre-aggregation is planned before the exchange."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidegate.api.partitioning import Hash
from tidegate.api.transformations import StreamRef, Transformation
from tidegate.api.window_operations import AggregateWindow
from tidegate.api.window_partials import in_two_stages


def with_local_stages(order: Iterable[Transformation]) -> list[Transformation]:
    """The same program, in which windows of built-in aggregates have a local stage of their own before them.

    The second stage keeps id, name, uid and settings of the window, so that its state is found and those behind it
    need not know.
    """
    return [stage for node in order for stage in _stages(node)]


def _stages(node: Transformation) -> list[Transformation]:
    operation = node.operation
    if not isinstance(operation, AggregateWindow) or operation.stage != "whole":
        return [node]
    (refs,) = node.inputs
    first = refs[0]
    record_type = first.upstream.output_type if first.tag is None else first.upstream.side_outputs[first.tag]
    stages = in_two_stages(operation, record_type)
    if stages is None or operation.key is None:
        return [node]
    local, merge, between = stages
    inputs = tuple(StreamRef(ref.upstream, ref.tag) for ref in refs)
    before = Transformation(-1 - node.id, local, f"local {node.name}", (inputs,), between)
    behind = replace(node, operation=merge, inputs=((StreamRef(before, None, Hash(operation.key)),),))
    return [before, behind]
