"""The manifest: the JSON document that makes a checkpoint complete. Version 1; see docs/checkpoint-format.md.

The first three lines (format, version, checksum) stay the same in all later versions. The checksum covers the whole
document with an empty checksum, so any changed byte is noticed. Encoding is deterministic: equal manifests are equal
bytes. A pure value: the storage reads and writes it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from tidegate.core.errors import CheckpointError
from tidegate.core.ids import EdgeId, JobId, OperatorId, VertexId
from tidegate.core.words import brief
from tidegate.snapshot.checksums import TEXT_LENGTH, checksum
from tidegate.snapshot.handles import (
    InFlightHandle,
    KeyedStateHandle,
    OperatorStateHandle,
    StateFile,
    SubtaskCheckpointMetrics,
    SubtaskSnapshot,
)

VERSION: Final = 1
FORMAT: Final = "tidegate-checkpoint"

_BACKEND: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
Kind = Literal["checkpoint", "savepoint"]


class ManifestError(CheckpointError):
    """A manifest cannot be used; the message says which one and why."""


class TruncatedManifestError(ManifestError):
    """The document ends too early."""


class ForeignManifestError(ManifestError):
    """The bytes are not a checkpoint of tidegate."""


class DamagedManifestError(ManifestError):
    """The document has changed since it was written: its checksum is wrong."""


class NewerManifestError(ManifestError):
    """A newer version of tidegate wrote it."""


class UnreadableManifestError(ManifestError):
    """The document is intact, but does not have the form of its version."""


class OperatorLike(Protocol):
    """What the manifest needs of an operator of a job graph."""

    @property
    def id(self) -> OperatorId: ...
    @property
    def uid(self) -> str | None: ...
    @property
    def name(self) -> str: ...


class VertexLike(Protocol):
    """What the manifest needs of a vertex of a job graph."""

    @property
    def id(self) -> VertexId: ...
    @property
    def name(self) -> str: ...
    @property
    def parallelism(self) -> int: ...
    @property
    def max_parallelism(self) -> int: ...
    @property
    def operators(self) -> Sequence[OperatorLike]: ...


class EdgeLike(Protocol):
    """What the manifest needs of an edge of a job graph."""

    @property
    def id(self) -> EdgeId: ...
    @property
    def source(self) -> VertexId: ...
    @property
    def source_operator(self) -> int: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def target(self) -> VertexId: ...
    @property
    def input(self) -> int: ...
    @property
    def partitioning(self) -> str: ...
    @property
    def columns(self) -> tuple[str, ...] | None: ...


class SubtaskState(msgspec.Struct, frozen=True):
    """The stored state of one subtask of an operator."""

    subtask: int
    keyed: KeyedStateHandle | None = None
    states: tuple[OperatorStateHandle, ...] = ()


class ManifestOperator(msgspec.Struct, frozen=True):
    """An operator and its state; `subtasks` has only those with state."""

    id: OperatorId
    uid: str | None
    name: str
    vertex: VertexId
    parallelism: int
    max_parallelism: int
    subtasks: tuple[SubtaskState, ...] = ()

    def label(self) -> str:
        return f"{self.name!r}" if self.uid in (None, self.name) else f"{self.name!r} (uid {self.uid!r})"


class ManifestVertex(msgspec.Struct, frozen=True):
    """A task: a chain of operators. `finished` has the subtasks that had read all of their input."""

    id: VertexId
    name: str
    parallelism: int
    max_parallelism: int
    operators: tuple[OperatorId, ...]
    finished: tuple[int, ...] = ()
    in_flight: tuple[tuple[int, InFlightHandle], ...] = ()


class ManifestEdge(msgspec.Struct, frozen=True):
    """An exchange between two tasks. In-flight batches can only go back into the same exchange."""

    id: EdgeId
    source: VertexId
    source_operator: int
    """The index in the source's chain of the operator that feeds it."""
    tag: str | None
    """The side output; None: the main output."""
    target: VertexId
    input: int
    partitioning: str
    columns: tuple[str, ...] | None
    """The columns that cross it; None: all."""


class SubtaskStatistics(msgspec.Struct, frozen=True):
    """The metrics of a subtask's part of the checkpoint."""

    vertex: VertexId
    subtask: int
    metrics: SubtaskCheckpointMetrics


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint. Times are wall-clock milliseconds of the JobManager."""

    tidegate_version: str
    job_id: JobId
    job_name: str
    attempt: int
    checkpoint_id: int
    kind: Kind
    triggered_ms: int
    completed_ms: int
    bytes_full: int
    bytes_new: int
    vertices: tuple[ManifestVertex, ...]
    operators: tuple[ManifestOperator, ...]
    enumerators: dict[OperatorId, msgspec.Raw]
    """The states of the sources' enumerators, as JSON."""
    statistics: tuple[SubtaskStatistics, ...]
    files: tuple[StateFile, ...]
    """All files that the handles name, each once, sorted by path: for tools that do not know handles."""
    edges: tuple[ManifestEdge, ...] = ()
    """The exchanges of the job, if there are in-flight batches."""

    @property
    def duration_ms(self) -> int:
        return self.completed_ms - self.triggered_ms

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all files, which must be kept while the checkpoint is retained."""
        return frozenset(f.path for f in self.files)

    def has_state(self, operator: ManifestOperator) -> bool:
        """Whether dropping an operator would lose state of the program; states of the runtime do not count."""
        return operator.id in self.enumerators or any(
            subtask.keyed is not None
            or any((s.entries or s.rows) and not s.name.startswith("$") for s in subtask.states)
            for subtask in operator.subtasks
        )

    def encode(self) -> bytes:
        """Encode as a document; raises `ManifestError` if the document could not be read back."""
        data = _document(self)
        try:
            again = decode_manifest(data)
        except ManifestError as e:
            raise ManifestError(f"checkpoint {self.checkpoint_id} cannot be described: {e}") from e
        if again.files != self.files:
            raise ManifestError(
                f"checkpoint {self.checkpoint_id} cannot be described: its file list is wrong"
            )
        return data


def make_manifest(
    *,
    job_id: JobId,
    job_name: str,
    attempt: int,
    checkpoint_id: int,
    triggered_ms: int,
    completed_ms: int,
    vertices: Sequence[VertexLike],
    snapshots: Iterable[SubtaskSnapshot],
    enumerators: Mapping[OperatorId, bytes],
    metrics: Mapping[tuple[VertexId, int], SubtaskCheckpointMetrics] | None = None,
    kind: Kind = "checkpoint",
    edges: Sequence[EdgeLike] = (),
) -> Manifest:
    """Make the manifest from the snapshots that all subtasks acknowledged, in any order."""
    by_vertex: dict[VertexId, list[SubtaskSnapshot]] = {v.id: [] for v in vertices}
    for snapshot in sorted(snapshots, key=lambda s: (s.vertex, s.subtask)):
        by_vertex[snapshot.vertex].append(snapshot)
    ordered = [s for v in vertices for s in by_vertex[v.id]]
    statistics = sorted((metrics or {}).items())
    return Manifest(
        tidegate_version=_own_version(),
        job_id=job_id,
        job_name=job_name,
        attempt=attempt,
        checkpoint_id=checkpoint_id,
        kind=kind,
        triggered_ms=triggered_ms,
        completed_ms=completed_ms,
        bytes_full=sum(f.size for f in _unique_files(f for s in ordered for f in s.files())),
        bytes_new=sum(_new_bytes(s) for s in ordered),
        vertices=tuple(_vertex(v, by_vertex[v.id]) for v in vertices),
        operators=tuple(_operator(v, o, by_vertex[v.id]) for v in vertices for o in v.operators),
        enumerators={id: msgspec.Raw(enumerators[id]) for id in sorted(enumerators)},
        statistics=tuple(SubtaskStatistics(v, subtask, m) for (v, subtask), m in statistics),
        files=_unique_files(f for s in ordered for f in s.files()),
        edges=manifest_edges(edges) if any(s.in_flight is not None for s in ordered) else (),
    )


def manifest_edges(edges: Sequence[EdgeLike]) -> tuple[ManifestEdge, ...]:
    return tuple(
        ManifestEdge(e.id, e.source, e.source_operator, e.tag, e.target, e.input, e.partitioning, e.columns)
        for e in edges
    )


def decode_manifest(data: bytes, name: str = "the manifest") -> Manifest:
    """Decode a document; `name` is its name in messages. Raises only `ManifestError`."""
    head = _HEAD.match(data)
    if head is None:
        if _HEAD_TEXT.startswith(data[: len(_HEAD_TEXT)]) and len(data) < _HEAD_LONGEST:
            raise TruncatedManifestError(f"{name} is truncated: it has only {len(data)} bytes. {_ANOTHER}")
        if data.startswith(_HEAD_TEXT):
            raise DamagedManifestError(
                f"{name} is damaged: its {len(data)} bytes have no checksum. {_ANOTHER}"
            )
        raise ForeignManifestError(
            f"{name} is not a checkpoint of tidegate: its {len(data)} bytes do not begin as one does. "
            f"Check the path, or restore another checkpoint."
        )
    if not data.endswith(_END):
        raise TruncatedManifestError(f"{name} is truncated: it ends after {len(data)} bytes. {_ANOTHER}")
    stored = head[2].decode("ascii")
    found = checksum(data[: head.start(2)] + data[head.end(2) :])
    if found != stored:
        raise DamagedManifestError(
            f"{name} is damaged: the checksum of its {len(data)} bytes is {found} but was {stored} when it was "
            f"written. {_ANOTHER}"
        )
    version = int(head[1])
    if version > VERSION:
        raise NewerManifestError(
            f"{name} has format version {version}, but this tidegate reads up to version {VERSION}. "
            f"It was written by tidegate {_writer_of(data)}: use that version or a newer one."
        )
    if version < 1:
        raise UnreadableManifestError(
            f"{name} has format version {version}, which does not exist. {_ANOTHER}"
        )
    try:
        manifest = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise UnreadableManifestError(
            f"{name} does not have the form of version {version}: {e}. {_ANOTHER}"
        ) from e
    problem = _inconsistency(manifest)
    if problem:
        raise UnreadableManifestError(f"{name} contradicts itself: {problem}. {_ANOTHER}")
    return manifest


_ANOTHER: Final = "Restore another checkpoint."
_HEAD_TEXT: Final = f'{{\n"format": "{FORMAT}",\n"version": '.encode()
_HEAD: Final = re.compile(
    re.escape(_HEAD_TEXT) + rb'([0-9]{1,9}),\n"checksum": "([a-z0-9-]{1,20}:[0-9a-f]{16,128})",\n'
)
_HEAD_LONGEST: Final = len(_HEAD_TEXT) + TEXT_LENGTH + 32
_END: Final = b"\n}\n"
_decoder = msgspec.json.Decoder(Manifest)
_encoder = msgspec.json.Encoder()
_ONE_PER_LINE: Final = frozenset({"vertices", "operators", "statistics", "files", "edges"})


def _document(manifest: Manifest) -> bytes:
    """One line per field, and one per vertex, operator, subtask and file, for readers and diffs."""
    fields = []
    for field in manifest.__struct_fields__:
        value: Any = getattr(manifest, field)
        if field == "edges" and not value:  # a later addition that few manifests have
            continue
        if field in _ONE_PER_LINE and value:
            text = b"[\n  " + b",\n  ".join(map(_encoder.encode, value)) + b"\n]"
        else:
            text = _encoder.encode(value)
        fields.append(b'"%s": %s' % (field.encode(), text))
    head = _HEAD_TEXT + b'%d,\n"checksum": "' % VERSION
    rest = b'",\n' + b",\n".join(fields) + _END
    return head + checksum(head + rest).encode() + rest


@functools.cache
def _own_version() -> str:
    try:
        return importlib.metadata.version("tidegate")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # runs from source files, not installed


def _writer_of(data: bytes) -> str:
    match = re.search(rb'\n"tidegate_version": "([^"\n]{1,50})"', data)
    return match[1].decode("utf-8", "replace") if match else "of a later release"


def _vertex(vertex: VertexLike, snapshots: Sequence[SubtaskSnapshot]) -> ManifestVertex:
    return ManifestVertex(
        vertex.id,
        vertex.name,
        vertex.parallelism,
        vertex.max_parallelism,
        tuple(o.id for o in vertex.operators),
        tuple(s.subtask for s in snapshots if s.finished),
        tuple((s.subtask, s.in_flight) for s in snapshots if s.in_flight is not None),
    )


def _operator(
    vertex: VertexLike, operator: OperatorLike, snapshots: Sequence[SubtaskSnapshot]
) -> ManifestOperator:
    return ManifestOperator(
        operator.id,
        operator.uid,
        operator.name,
        vertex.id,
        vertex.parallelism,
        vertex.max_parallelism,
        tuple(
            SubtaskState(s.subtask, o.keyed, o.states)
            for s in snapshots
            for o in s.operators
            if o.operator == operator.id and not o.is_empty
        ),
    )


def _new_bytes(snapshot: SubtaskSnapshot) -> int:
    """Bytes that this checkpoint wrote: keyed handles know theirs, all other files are written each time."""
    new = 0 if snapshot.in_flight is None else snapshot.in_flight.file.size
    for operator in snapshot.operators:
        new += 0 if operator.keyed is None else operator.keyed.bytes_new
        new += sum(s.file.size for s in operator.states if s.file is not None)
    return new


def _unique_files(files: Iterable[StateFile]) -> tuple[StateFile, ...]:
    by_path = {f.path: f for f in files}
    return tuple(by_path[path] for path in sorted(by_path))


def _handle_files(manifest: Manifest) -> Iterable[StateFile]:
    for operator in manifest.operators:
        for subtask in operator.subtasks:
            if subtask.keyed is not None:
                yield from subtask.keyed.files
            yield from (s.file for s in subtask.states if s.file is not None)
    for vertex in manifest.vertices:
        yield from (handle.file for _, handle in vertex.in_flight)


def _inconsistency(manifest: Manifest) -> str:
    """The first contradiction inside a manifest, or an empty text."""
    listed = {f.path: f for f in manifest.files}
    used = set()
    for file in _handle_files(manifest):
        used.add(file.path)
        if listed.get(file.path) != file:
            return f"a handle names {file.path} with {file.size} bytes, the file list does not"
    if len(listed) != len(manifest.files) or used != listed.keys():
        return "its file list names a file twice, or one that no handle has"
    things: list[ManifestVertex | ManifestOperator] = [*manifest.vertices, *manifest.operators]
    for thing in things:
        if not 1 <= thing.parallelism <= thing.max_parallelism:
            return f"{thing.name!r} has parallelism {thing.parallelism} of at most {thing.max_parallelism}"
    for operator in manifest.operators:
        for subtask in operator.subtasks:
            keyed = subtask.keyed
            if keyed is not None and not _BACKEND.fullmatch(keyed.backend):
                return f"{operator.name!r} names a state backend {brief(keyed.backend)}"
            if not 0 <= subtask.subtask < operator.parallelism:
                return f"{operator.name!r} has a subtask {subtask.subtask} of {operator.parallelism}"
            if (
                keyed is not None
                and not 0 <= keyed.key_groups[0] <= keyed.key_groups[1] < operator.max_parallelism
            ):
                return f"{operator.name!r} has key groups {keyed.range} of {operator.max_parallelism}"
    return ""
