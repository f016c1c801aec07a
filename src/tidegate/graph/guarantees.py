"""Guarantees: how often a record counts in the output of each sink if the job fails, and why. Pure.

The guarantee is that of the weakest of three: the sources (can they be read again?), the checkpoints (are there any,
and do they cut the stream exactly?) and the sink (does it remove what no checkpoint covers?).

| | no transactions | transactions |
|---|---|---|
| a source that cannot be reset | at-most-once | at-most-once |
| sources that can | at-least-once | exactly-once |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from tidegate.api.sink import Sink
from tidegate.core.durations import format_duration_ms
from tidegate.core.options import Options
from tidegate.graph.stream_graph import StreamGraph, StreamNode
from tidegate.storage.locations import path_name

Level = Literal["exactly-once", "at-least-once", "at-most-once"]


class Guarantee(msgspec.Struct, frozen=True):
    """What a failure does to the output of one sink."""

    sink: str
    level: Level
    because: str

    def __str__(self) -> str:
        return f"sink {self.sink!r} is {self.level}: {self.because}"


def guarantees(graph: StreamGraph) -> list[Guarantee]:
    """The guarantee of every sink of a job, in the order of the plan."""
    return [
        _of_sink(node, sink, graph.options)
        for node in graph.nodes
        if (sink := node.operation.written_sink) is not None
    ]


def describe_checkpoints(options: Options) -> str:
    """How the job takes checkpoints, or what happens after a failure if it takes none.

    >>> describe_checkpoints(Options().with_keywords(checkpoint_interval="1 s"))
    'every 1 s, exactly_once, in the memory of the JobManager: they do not outlive the driver'
    >>> describe_checkpoints(Options())
    'off: a failure ends the job'
    """
    if not options.checkpoint_interval:
        if _never_restarts(options):
            return "off: a failure ends the job"
        if options.checkpoint_mode == "at_most_once":
            return "off: after a failure the job goes on without what was under way"
        return "off: after a failure the job starts from the beginning"
    words = [f"every {format_duration_ms(options.checkpoint_interval)}", options.checkpoint_mode]
    if options.checkpoint_unaligned:
        words[1] += " (unaligned)"
    elif options.checkpoint_alignment_timeout:
        words[1] += f" (unaligned after {format_duration_ms(options.checkpoint_alignment_timeout)})"
    where = "in the memory of the JobManager: they do not outlive the driver"
    if options.checkpoint_dir:
        where = f"in {path_name(options.checkpoint_dir)}"
    return ", ".join([*words, where])


def _of_sink(node: StreamNode, sink: Sink, options: Options) -> Guarantee:
    sources = _sources_of(node)
    lossy = [name for name, resettable in sources if not resettable]
    repeats = "" if sink.committable_type is not None else sink.describe_repetition(node.name)
    if not options.checkpoint_interval:
        level, because = _without_checkpoints(lossy, options)
    elif lossy:
        level, because = "at-most-once", f"{_named('source', lossy)} cannot be reset"
        if repeats and len(lossy) < len(sources):
            others = [name for name, resettable in sources if resettable]
            because += f"; what comes from {_named('source', others)} may be repeated: {repeats}"
    elif options.checkpoint_mode == "at_least_once":
        level, because = "at-least-once", "checkpoint.mode is at_least_once"
    elif repeats:
        level, because = "at-least-once", repeats
    else:
        level, because = "exactly-once", "sources can be reset, output is committed with the checkpoints"
    return Guarantee(node.name, level, because)


def _without_checkpoints(lossy: list[str], options: Options) -> tuple[Level, str]:
    if options.checkpoint_mode == "at_most_once":
        return "at-most-once", "checkpoint.mode is at_most_once, nothing is replayed"
    if _never_restarts(options):
        return "at-most-once", "there are no checkpoints, so the rest is missing after a failure"
    if lossy:
        return (
            "at-most-once",
            f"{_named('source', lossy)} cannot be reset, and there are no checkpoints",
        )
    return "at-least-once", "there are no checkpoints, so a restart repeats everything"


def _sources_of(node: StreamNode) -> list[tuple[str, bool]]:
    """All sources that lead to a node, in the order of the plan, and whether they can be reset."""
    seen: dict[int, StreamNode] = {}
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.index not in seen:
            seen[one.index] = one
            waiting += [edge.source for edge in one.inputs]
    before = [seen[i] for i in sorted(seen)]
    return [(n.name, source.resettable) for n in before if (source := n.operation.read_source) is not None]


def _never_restarts(options: Options) -> bool:
    return options.restart_strategy in ("none", "auto")


def _named(noun: str, names: Iterable[str]) -> str:
    words = [f"`{name}`" for name in names]
    return f"{noun} {words[0]}" if len(words) == 1 else f"{noun}s {', '.join(words)}"
