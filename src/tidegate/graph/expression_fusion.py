"""Expression fusion: `select` and `with_columns` that follow each other in a chain run as one polars query.

A call of polars costs some 50 us whatever it computes, about as much as adding a number to 150,000 values; and its
result is made Arrow columns and checked. A query of several operators pays for that once. The operators stay in the
graph: each keeps its id, its name, its counts and its watermark.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.graph.stream_graph import StreamNode

LONGEST_QUERY = 64
"""Operators of one query; polars works down a query by recursion."""


def fused_queries(chain: Sequence[StreamNode]) -> list[list[int]]:
    """The operators of a chain that run as one query, by position; each query has at least two.

    An operator joins the query of the one before it if nobody else gets what that one emits. A filter joins none: the
    operators after it count fewer records.
    """
    queries: list[list[int]] = []
    for position, node in enumerate(chain):
        if not (node.inputs and node.operation.joins_query(node.inputs[0].record_type, node.output_type)):
            continue
        last = queries[-1] if queries else []
        if position - 1 in last and len(last) < LONGEST_QUERY and _feeds_only(chain[position - 1], node):
            last.append(position)
        else:
            queries.append([position])
    return [query for query in queries if len(query) > 1]


def _feeds_only(source: StreamNode, target: StreamNode) -> bool:
    return [edge.target for edge in source.outputs] == [target]
