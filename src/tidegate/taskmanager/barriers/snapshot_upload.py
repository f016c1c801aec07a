"""The asynchronous part of a subtask's checkpoint: writes the frozen state and the in-flight data. Upload thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tidegate.core.clock import Clock
from tidegate.core.failpoints import failpoint
from tidegate.core.ids import SubtaskId
from tidegate.protocol import messages as m
from tidegate.records.elements import CheckpointBarrier
from tidegate.snapshot.handles import (
    InFlightHandle,
    OperatorSnapshot,
    StateFile,
    SubtaskCheckpointMetrics,
    SubtaskSnapshot,
)
from tidegate.state.operator_states import OperatorAsyncPart
from tidegate.storage.storage import CheckpointStorage, Scope, SnapshotWriter
from tidegate.taskmanager.barriers.in_flight import OvertakenBatch, encode_in_flight
from tidegate.taskmanager.output_channel import OutputChannel

log = logging.getLogger(__name__)
"""At DEBUG the four stages of each operator's asynchronous part: open, state, metadata, close.

A state's file is written in one piece and describes itself (the footer of a Parquet file, the index of a RocksDB
checkpoint). The handles repeat the types of all states; they are complete when the last file is durable."""


@dataclass
class RunningCheckpoint:
    """A checkpoint between its barrier and its acknowledgement."""

    barrier: CheckpointBarrier
    alignment_ms: float
    start_delay_ms: float
    aligned_records: int
    recording: bool
    """Whether some channel's barrier is still to come (unaligned)."""
    finished: bool
    """Whether the task had finished its work when the snapshot was taken, not when the upload begins."""
    sync_ms: float = 0.0
    in_flight: list[OvertakenBatch] = field(default_factory=list)
    parts: list[tuple[str, OperatorAsyncPart]] | None = None
    stuck: list[OutputChannel] = field(default_factory=list)
    """Outputs in which the forwarded barrier may still wait; only watched with an alignment timeout."""
    overtook: bool = False
    uploading: bool = False
    is_over: bool = False

    def drop_sent(self) -> None:
        """Remove from `stuck` the outputs that have sent the barrier."""
        self.stuck = [output for output in self.stuck if output.has_queued(self.barrier)]


class SnapshotUpload:
    """Writes the checkpoints of one subtask."""

    def __init__(self, id: SubtaskId, attempt: int, clock: Clock, storage: CheckpointStorage) -> None:
        self._id = id
        self._attempt = attempt
        self._clock = clock
        self._storage = storage

    def run(self, running: RunningCheckpoint) -> m.AcknowledgeCheckpoint:
        """Write everything; returns the message for the JobManager."""
        started_ns = self._clock.monotonic_ns()
        snapshot, attachments = self._write(running)
        full = sum(f.size for f in snapshot.files())
        new = sum(o.keyed.bytes_new for o in snapshot.operators if o.keyed is not None)
        new += sum(s.file.size for o in snapshot.operators for s in o.states if s.file is not None)
        in_flight = 0 if snapshot.in_flight is None else snapshot.in_flight.file.size
        metrics = SubtaskCheckpointMetrics(
            alignment_ms=running.alignment_ms,
            sync_ms=running.sync_ms,
            async_ms=(self._clock.monotonic_ns() - started_ns) / 1e6,
            start_delay_ms=running.start_delay_ms,
            bytes_new=new + in_flight,
            bytes_full=full,
            bytes_in_flight=in_flight,
            aligned_records=running.aligned_records,
            unaligned=running.barrier.unaligned or running.overtook,
        )
        vertex, index = self._id
        id = running.barrier.checkpoint_id
        return m.AcknowledgeCheckpoint(id, vertex, index, m.encode_snapshot(snapshot), metrics, attachments)

    def _write(self, running: RunningCheckpoint) -> tuple[SubtaskSnapshot, dict[str, bytes]]:
        id = running.barrier.checkpoint_id
        vertex, index = self._id
        failpoint("checkpoint.async.before_write")
        operators = []
        attachments: dict[str, bytes] = {}
        for operator, part in running.parts or ():
            self._trace(id, operator, "1 open")
            writer = self._traced(self._storage.writer(id, self._attempt, operator, index), id, operator)
            written = part(writer)
            self._trace(id, operator, "3 metadata of %s", _described(written))
            operators.append(written)
            attachments.update(writer.attachments)
            files = SubtaskSnapshot(vertex, index, (written,)).files()
            self._trace(id, operator, "4 close, %d files are durable", len(files))
        handle = None
        if running.in_flight:
            writer = self._storage.writer(id, self._attempt, f"v{vertex}", index)
            file = writer.write("in-flight", encode_in_flight(running.in_flight), "exclusive")
            attachments.update(writer.attachments)
            handle = InFlightHandle(file, len(running.in_flight))
        failpoint("checkpoint.async.after_write")
        kept = tuple(o for o in operators if not o.is_empty)
        return SubtaskSnapshot(vertex, index, kept, handle, running.finished), attachments

    def _trace(self, checkpoint_id: int, operator: str, stage: str, *args: object) -> None:
        if log.isEnabledFor(logging.DEBUG):
            where = f"write of checkpoint {checkpoint_id}: operator {operator} subtask {self._id.index}"
            log.debug("%s: %s", where, stage % args)

    def _traced(self, writer: SnapshotWriter, checkpoint_id: int, operator: str) -> SnapshotWriter:
        if not log.isEnabledFor(logging.DEBUG):
            return writer
        trace = partial(self._trace, checkpoint_id, operator, "2 state in %s, %d bytes")
        return _TracedWriter(writer, lambda file: trace(file.path, file.size))


class _TracedWriter(SnapshotWriter):
    """Traces each file when it is durable."""

    def __init__(self, writer: SnapshotWriter, trace: Callable[[StateFile], None]) -> None:
        self._writer = writer
        self._trace = trace

    def write(self, name: str, data: Any, scope: Scope = "shared") -> StateFile:
        file = self._writer.write(name, data, scope)
        self._trace(file)
        return file

    def upload(self, name: str, local_path: str, scope: Scope = "shared") -> StateFile:
        file = self._writer.upload(name, local_path, scope)
        self._trace(file)
        return file

    @property
    def attachments(self) -> dict[str, bytes]:
        return self._writer.attachments


def _described(written: OperatorSnapshot) -> list[str]:
    """The states of an operator as its handles describe them."""
    keyed = () if written.keyed is None else written.keyed.states
    return [f"{s.name} ({s.kind} of {s.value})" for s in keyed] + [
        f"{s.name} ({s.redistribution}, {s.rows} rows)" for s in written.states
    ]
