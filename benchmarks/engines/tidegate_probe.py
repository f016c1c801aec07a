"""Probes for tidegate's runners: a source that notes its first read, a sink that notes its last result and keeps a check.

Both write one small JSON file per subtask, after the clock has stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidegate.api.sink import Sink, SinkWriter, WriterContext
from tidegate.api.source import Source, SourceReader
from tidegate.records.batch import Batch

Summary = Callable[[list[Batch]], dict[str, Any]]


class TimedSource(Source):
    """Another source, whose readers note when they were first asked for a record."""

    def __init__(self, source: Source, notes: Path) -> None:
        self._source = source
        self._notes = notes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)

    @property
    def boundedness(self) -> Any:
        """As the source's."""
        return self._source.boundedness

    @property
    def record_type(self) -> Any:
        """As the source's."""
        return self._source.record_type

    @property
    def split_type(self) -> Any:
        """As the source's."""
        return self._source.split_type

    def create_enumerator(self, context: Any) -> Any:
        """The source's."""
        return self._source.create_enumerator(context)

    def restore_enumerator(self, context: Any, state: Any) -> Any:
        """The source's."""
        return self._source.restore_enumerator(context, state)

    def create_reader(self, context: Any) -> SourceReader:
        """The source's, with a note of the first split."""
        reader = self._source.create_reader(context)
        notes = self._notes / f"source-{context.subtask_index}.json"
        add_splits = reader.add_splits

        def noted(splits: Sequence[Any]) -> None:
            if not notes.exists():
                notes.write_text(json.dumps({"first_ns": time.time_ns()}))
            add_splits(splits)

        reader.add_splits = noted  # type: ignore[method-assign]
        return reader

    def with_columns(self, names: Sequence[str]) -> Source | None:
        """The narrower source, timed as well."""
        narrower = self._source.with_columns(names)
        return None if narrower is None else TimedSource(narrower, self._notes)


class ProbeSink(Sink):
    """Keeps the batches, notes when the last came, and writes what `summary` says of them at the end."""

    def __init__(self, notes: Path, summary: Summary) -> None:
        self._notes = notes
        self._summary = summary

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer per subtask."""
        return _ProbeWriter(self._notes / f"sink-{context.subtask_index}.json", self._summary)


class _ProbeWriter(SinkWriter):
    def __init__(self, notes: Path, summary: Summary) -> None:
        self._notes = notes
        self._summary = summary
        self._batches: list[Batch] = []
        self._last_ns = 0

    def write(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._last_ns = time.time_ns()

    def flush(self, end_of_input: bool) -> None:
        if end_of_input:
            summary = self._summary(self._batches)
            self._notes.write_text(json.dumps({"last_ns": self._last_ns, **summary}))


def read_notes(notes: Path) -> tuple[int, int, list[dict[str, Any]]]:
    """The first read, the last result, and the summaries of the sink's subtasks."""
    first = min(json.loads(f.read_text())["first_ns"] for f in notes.glob("source-*.json"))
    sinks = [json.loads(f.read_text()) for f in notes.glob("sink-*.json")]
    return first, max(s["last_ns"] for s in sinks), sinks
