"""Two stages: an operation that can be split gets a local pre-aggregation before its exchange."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidegate.program.partitioning import Hash
from tidegate.program.transformations import StreamRef, Transformation


def with_local_stages(order: Iterable[Transformation]) -> list[Transformation]:
    """The same program, in which operations that can be split have a local stage before them.

    The second stage keeps id, name, uid and settings of the operation, so that its state is found and later operators
    do not change.
    """
    return [stage for node in order for stage in _stages(node)]


def _stages(node: Transformation) -> list[Transformation]:
    if len(node.inputs) != 1:
        return [node]
    (refs,) = node.inputs
    first = refs[0]
    record_type = first.upstream.output_type if first.tag is None else first.upstream.side_outputs[first.tag]
    stages = node.operation.in_two_stages(record_type)
    key = node.operation.state_key()
    if stages is None or key is None:
        return [node]
    local, merge, between = stages
    inputs = tuple(StreamRef(ref.upstream, ref.tag) for ref in refs)
    before = Transformation(-1 - node.id, local, f"local {node.name}", (inputs,), between)
    after = replace(node, operation=merge, inputs=((StreamRef(before, None, Hash(key)),),))
    return [before, after]
