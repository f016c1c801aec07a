"""Probes for tidegate's runners: a source that notes its first read, a sink that notes its last result and a check.

Also makes the environment from the runners' arguments, and the figures about a job's checkpoints.

Both write one small JSON file per subtask, after the clock has stopped. A subtask of the source and one of the sink
share a slot, so the difference of the CPU times that they note is what the slot used in between.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import protocol

import tidegate
from tidegate import Environment
from tidegate.api.sink import Sink, SinkWriter, WriterContext
from tidegate.api.source import Source, SourceReader
from tidegate.records.batch import Batch

TOGETHER_WITHIN_S = 60


def environment(args: argparse.Namespace, folder: Path, **options: Any) -> Environment:
    """An environment as the runner's arguments say; checkpoints go to files under `folder`."""
    if args.checkpoint_interval:
        options |= {
            "checkpoint_interval": f"{round(args.checkpoint_interval * 1000)} ms",
            "checkpoint_dir": str(folder / "checkpoints"),
            "checkpoint_history": 10_000,
        }
    return Environment(
        **{"parallelism": args.parallelism, "state_backend": args.state_backend, "progress": "off", **options}
    )


def checkpoint_figures(client: Any) -> dict[str, float]:
    """What the job's checkpoints cost: how many there were, the longest parts of any, the bytes written for them."""
    overview = client.checkpoints()
    done = [each for each in overview.history if each.status == "completed"]
    if not done:
        return {}
    figures = {
        "checkpoints": len(done),
        "longest_sync_ms": round(max(each.sync_ms for each in done), 1),
        "longest_checkpoint_ms": max(each.end_to_end_ms for each in done),
        "checkpoint_mb": round(sum(each.bytes_new for each in done) / 1e6, 1),
    }
    return figures | ({"failed_checkpoints": overview.failed} if overview.failed else {})


class TimedSource(Source):
    """Wraps a source; its readers record when they were first asked for a record.

    With `together`, this many readers must have a split before the first of them reads. So a slot that starts earlier
    does not take the split of another slot. `label` distinguishes the notes of several jobs.
    """

    def __init__(self, source: Source, notes: Path, together: int = 1, label: str = "") -> None:
        self._source = source
        self._notes = notes
        self._together = together
        self._label = label

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
        notes = self._notes / f"source-{self._label}{context.subtask_index}.json"
        add_splits = reader.add_splits

        def noted(splits: Sequence[Any]) -> None:
            notes.with_suffix(".ready").touch()
            _wait_for(self._notes, self._together)
            note_first_read(notes)
            add_splits(splits)

        reader.add_splits = noted  # type: ignore[method-assign]
        return reader

    def with_columns(self, names: Sequence[str]) -> Source | None:
        """The narrower source, timed as well."""
        narrower = self._source.with_columns(names)
        return None if narrower is None else TimedSource(narrower, self._notes, self._together, self._label)


def _wait_for(notes: Path, readers: int) -> None:
    deadline = time.monotonic() + TOGETHER_WITHIN_S
    while len(list(notes.glob("source-*.ready"))) < readers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{readers} readers have not got a split within {TOGETHER_WITHIN_S} s")
        time.sleep(0.001)


class Tally(Protocol):
    """What a subtask of the sink does with its results."""

    def add(self, batch: Batch) -> None:
        """Take results; this is inside the measured time."""
        ...

    def summary(self) -> dict[str, Any]:
        """What is to be checked; after the clock has stopped."""
        ...


class ProbeSink(Sink):
    """Gives its results to a `Tally`, notes when the last came, and writes the summary at the end."""

    def __init__(self, notes: Path, tally: Callable[[], Tally], label: str = "") -> None:
        self._notes = notes
        self._tally = tally
        self._label = label

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer per subtask."""
        return _ProbeWriter(self._notes / f"sink-{self._label}{context.subtask_index}.json", self._tally())


class _ProbeWriter(SinkWriter):
    def __init__(self, notes: Path, tally: Tally) -> None:
        self._notes = notes
        self._tally = tally
        self._last_ns = 0
        self._cpu_s = 0.0

    def write(self, batch: Batch) -> None:
        self._tally.add(batch)
        self._last_ns = time.time_ns()
        self._cpu_s = time.process_time()

    def flush(self, end_of_input: bool) -> None:
        if end_of_input:
            summary = self._tally.summary()
            self._notes.write_text(json.dumps({"last_ns": self._last_ns, "cpu_s": self._cpu_s, **summary}))


def note_first_read(notes: Path) -> None:
    """Note the time and the CPU time so far of this process, the first time that it is called."""
    if not notes.exists():
        notes.write_text(json.dumps({"first_ns": time.time_ns(), "cpu_s": time.process_time()}))


class Measured(NamedTuple):
    """What the probes of all subtasks say together."""

    first_ns: int
    last_ns: int
    cpu_s: float
    """Of the slots' processes, from the first read to the last result."""
    sinks: list[dict[str, Any]]


def read_notes(notes: Path) -> Measured:
    """The notes of all subtasks."""
    sources = [json.loads(f.read_text()) for f in sorted(notes.glob("source-*.json"))]
    sinks = [json.loads(f.read_text()) for f in sorted(notes.glob("sink-*.json"))]
    cpu_s = sum(s["cpu_s"] for s in sinks) - sum(s["cpu_s"] for s in sources)
    return Measured(min(s["first_ns"] for s in sources), max(s["last_ns"] for s in sinks), cpu_s, sinks)


def report_job(
    client: Any,
    notes: Path,
    records: int,
    check: Callable[[list[dict[str, Any]]], dict[str, Any]],
    setting: Callable[[list[dict[str, Any]]], str] | str | None = None,
) -> None:
    """Report what the probes of a job that has ended say; `check` and `setting` are made of the sinks' summaries."""
    measured = read_notes(notes)
    if setting is not None and not isinstance(setting, str):
        setting = setting(measured.sinks)
    protocol.report(
        version=tidegate.__version__,
        records=records,
        seconds=(measured.last_ns - measured.first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(measured.first_ns),
        cpu_s=measured.cpu_s,
        check=check(measured.sinks),
        setting=setting,
        extra=checkpoint_figures(client),
    )
