"""Event time in a plan: checks that operators that need it have it on every path from the sources; warns of doubts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.core.errors import ProgramError

if TYPE_CHECKING:
    from tidegate.graph.stream_graph import StreamGraph, StreamNode


def check_event_time(graph: StreamGraph) -> None:
    """Refuse an operator that needs event time after a source whose records have no timestamps (S3-17)."""
    for node in graph.nodes:
        if not node.operation.needs_event_time or node.operation.is_local_stage:
            continue  # the merging stage is checked, whose name the user knows
        for source in _sources_without_times(node):
            raise ProgramError(
                f"operator {node.name!r} needs event time, but the records of source {source.name!r} have no "
                f"timestamps. Give it a WatermarkStrategy: from_source(source, WatermarkStrategy.bounded('2 s', "
                f"'ts')), or assign_timestamps_and_watermarks(...) after it"
            )


def event_time_warnings(graph: StreamGraph) -> list[str]:
    """Warnings of timestamps assigned far from the source, or twice (S3-23), or before rows may be reordered."""
    doubts = [text for node in graph.nodes if node.inputs and _gives_times(node) for text in _doubts(node)]
    return doubts + [
        text for node in graph.nodes if node.operation.needs_event_time for text in _batches(node)
    ]


def _batches(node: StreamNode) -> Iterator[str]:
    """Warn if the user's own code may have put rows in another order than their timestamps."""
    waiting = [node]
    while waiting:
        for edge in waiting.pop().inputs:
            before = edge.source
            if before.operation.may_reorder:
                yield (
                    f"event time: {before.name!r} comes before {node.name!r}; the rows of its result keep the "
                    f"timestamps of its input by their place. If it changes their order or number, assign timestamps "
                    f"after it"
                )
            if not _gives_times(before):
                waiting.append(before)


def _doubts(node: StreamNode) -> Iterator[str]:
    before = _upstream(node)
    for one in before:
        if _gives_times(one):
            yield (
                f"event time: {node.name!r} overwrites the timestamps and watermarks of {one.name!r}. Assign them "
                f"once, at the source"
            )
    if any(e.unchained_because for one in (node, *before) for e in one.inputs):
        yield (
            f"event time: {node.name!r} assigns timestamps after an exchange, where the order of the records of a "
            f"partition is lost. Assign them at the source: from_source(source, strategy)"
        )


def _upstream(node: StreamNode) -> list[StreamNode]:
    """All nodes before this one, nearest first."""
    found: dict[int, StreamNode] = {}
    waiting = [e.source for e in node.inputs]
    while waiting:
        one = waiting.pop(0)
        if one.index not in found:
            found[one.index] = one
            waiting += [e.source for e in one.inputs]
    return list(found.values())


def _sources_without_times(node: StreamNode) -> Iterator[StreamNode]:
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        for edge in one.inputs:
            before = edge.source
            if before.index in seen or _gives_times(before):
                continue
            seen.add(before.index)
            if before.operation.read_source is not None:
                yield before
            waiting.append(before)


def _gives_times(node: StreamNode) -> bool:
    return node.operation.watermark_strategy is not None
