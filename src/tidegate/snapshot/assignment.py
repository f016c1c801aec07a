"""Assigns a checkpoint's state to the subtasks of a job in a restore. Pure.

Operators are matched by their id, which a uid fixes. Keyed state is assigned by key-group range. Operator state depends
on its redistribution:

- `split`: with unchanged parallelism each subtask gets its own entries back; otherwise the entries of all old subtasks,
  in their order, are cut into even shares, one for each new subtask;
- `union`: every subtask gets the entries of all subtasks;
- `broadcast`: every subtask gets one copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidegate.core.errors import ProtocolError, StateCompatibilityError
from tidegate.core.ids import OperatorId, SubtaskId, VertexId
from tidegate.core.key_groups import key_group_range
from tidegate.snapshot.handles import InFlightHandle, KeyedStateHandle, OperatorStateHandle, StateFile
from tidegate.snapshot.manifest import (
    EdgeLike,
    Manifest,
    ManifestEdge,
    ManifestOperator,
    ManifestVertex,
    VertexLike,
    manifest_edges,
)


class OperatorRestore(msgspec.Struct, frozen=True):
    """The state of an operator subtask; empty if the operator was in the checkpoint without state.

    A keyed handle may cover more key groups than the subtask's own. Only the `rows` rows from `first_row` on of an
    operator state's file belong to the subtask.
    """

    operator: OperatorId
    keyed: tuple[KeyedStateHandle, ...] = ()
    states: tuple[OperatorStateHandle, ...] = ()


class SubtaskRestore(msgspec.Struct, frozen=True):
    """The state of a subtask: the part of its deployment that comes from a checkpoint.

    `operators` has those of its chain that were in the checkpoint; the others are new and start empty.
    """

    vertex: VertexId
    subtask: int
    operators: tuple[OperatorRestore, ...] = ()
    in_flight: InFlightHandle | None = None
    finished: bool = False
    """Whether it had read all of its input; never set if tasks or their parallelism have changed."""

    def files(self) -> list[StateFile]:
        found = [f for o in self.operators for k in o.keyed for f in k.files]
        found += [s.file for o in self.operators for s in o.states if s.file is not None]
        return found if self.in_flight is None else [*found, self.in_flight.file]


class Restore(msgspec.Struct, frozen=True):
    """The state of a whole job: of each subtask, and of the enumerators of its sources (JSON)."""

    checkpoint_id: int
    subtasks: dict[SubtaskId, SubtaskRestore]
    enumerators: dict[OperatorId, msgspec.Raw]
    left_behind: tuple[str, ...] = ()
    """Operators whose state is not restored, which the user has allowed."""

    @property
    def enumerator_states(self) -> dict[OperatorId, bytes]:
        return {operator: bytes(state) for operator, state in self.enumerators.items()}


# JSON, because it holds raw JSON values: inside MessagePack they would be bytes of the wrong format.
_decoder = msgspec.json.Decoder(SubtaskRestore)


def encode_restore(restore: SubtaskRestore) -> bytes:
    return msgspec.json.encode(restore)


def decode_restore(data: bytes) -> SubtaskRestore:
    """Decode what `encode_restore` made; raises `ProtocolError`."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a restored state of a subtask: {e}") from e


def assign(
    manifest: Manifest,
    vertices: Sequence[VertexLike],
    edges: Sequence[EdgeLike] = (),
    *,
    allow_non_restored_state: bool = False,
) -> Restore:
    """Assign a checkpoint's state to the subtasks of a job graph.

    Raises `StateCompatibilityError` if the max parallelism differs, if an operator with state is not in the job (unless
    allowed), or if in-flight batches have no channel to go back to.
    """
    stored = {o.id: o for o in manifest.operators}
    left_behind = _left_behind(manifest, vertices, allow_non_restored_state)
    in_flight = _in_flight(manifest, vertices, edges)
    finished = _finished(manifest, vertices)
    subtasks: dict[SubtaskId, SubtaskRestore] = {}
    for vertex in vertices:
        operators: list[list[OperatorRestore]] = [[] for _ in range(vertex.parallelism)]
        for operator in vertex.operators:
            if operator.id in stored:
                assigned = _assign_operator(manifest, stored[operator.id], vertex)
                for mine, restore in zip(operators, assigned, strict=True):
                    mine.append(restore)
        for i in range(vertex.parallelism):
            subtasks[SubtaskId(vertex.id, i)] = SubtaskRestore(
                vertex.id, i, tuple(operators[i]), in_flight.get((vertex.id, i)), (vertex.id, i) in finished
            )
    present = {o.id for v in vertices for o in v.operators}
    enumerators = {id: state for id, state in manifest.enumerators.items() if id in present}
    return Restore(manifest.checkpoint_id, subtasks, enumerators, left_behind)


# ---- checks ----


def _left_behind(manifest: Manifest, vertices: Sequence[VertexLike], allowed: bool) -> tuple[str, ...]:
    ids = {o.id for v in vertices for o in v.operators}
    names = {o.name for v in vertices for o in v.operators}
    missing = [o for o in manifest.operators if manifest.has_state(o) and o.id not in ids]
    if missing and not allowed:
        first = missing[0]
        hint = "Give the operator its uid back"
        if first.uid is None:
            hint = "Undo the change of the program (operators that have a uid can be moved)"
        if first.name in names:
            hint = f"The job's operator {first.name!r} has another uid or place than it had. {hint}"
        more = f", nor are {len(missing) - 1} more with state" if len(missing) > 1 else ""
        raise StateCompatibilityError(
            f"operator {first.label()} has state in checkpoint {manifest.checkpoint_id} but is not in the job{more}. "
            f"{hint}, or set allow_non_restored_state to leave the state behind."
        )
    return tuple(o.label() for o in missing)


def _finished(manifest: Manifest, vertices: Sequence[VertexLike]) -> frozenset[tuple[VertexId, int]]:
    """The subtasks that need not run again: only in an unchanged job, otherwise other subtasks may send to them."""
    before = [(v.operators, v.parallelism) for v in manifest.vertices]
    now = [(tuple(o.id for o in v.operators), v.parallelism) for v in vertices]
    if before != now:
        return frozenset()
    return frozenset((v.id, subtask) for v in manifest.vertices for subtask in v.finished)


def _in_flight(
    manifest: Manifest, vertices: Sequence[VertexLike], edges: Sequence[EdgeLike]
) -> dict[tuple[VertexId, int], InFlightHandle]:
    """In-flight batches by subtask. They return to their channels, so tasks, parallelism and exchanges must match."""
    handles = {(v.id, subtask): handle for v in manifest.vertices for subtask, handle in v.in_flight}
    if not handles:
        return {}
    begin = (
        f"checkpoint {manifest.checkpoint_id} holds in-flight batches (an unaligned barrier overtook them)"
    )
    advice = "or restore an aligned checkpoint."
    shape = [tuple(o.id for o in v.operators) for v in vertices]
    if [v.operators for v in manifest.vertices] != shape:
        raise StateCompatibilityError(
            f"{begin}, so the tasks must be the same: it has {_tasks(manifest.vertices)} but the job has "
            f"{_tasks(vertices)}. Undo the change of the program, {advice}"
        )
    for old, new in zip(manifest.vertices, vertices, strict=True):
        if old.parallelism != new.parallelism:
            raise StateCompatibilityError(
                f"{begin}, so the parallelism cannot change: that of task {new.name!r} is {old.parallelism} in the "
                f"checkpoint but {new.parallelism} in the job. Set parallelism={old.parallelism}, {advice}"
            )
    now = manifest_edges(edges)
    if manifest.edges and manifest.edges != now:
        raise StateCompatibilityError(
            f"{begin}, so the exchanges between tasks must be the same: it has "
            f"{_exchanges(manifest.edges, manifest.vertices)} but the job has "
            f"{_exchanges(now, manifest.vertices)}. Undo the change of the program, {advice}"
        )
    return handles


def _exchanges(edges: Sequence[ManifestEdge], vertices: Sequence[ManifestVertex]) -> str:
    names = {v.id: v.name for v in vertices}
    said = []
    for e in edges:
        side = "" if e.tag is None else f" side output {e.tag!r}"
        of = "" if e.columns is None else f" of {', '.join(e.columns)}"
        said.append(
            f"{names[e.source]!r}{side} -{e.partitioning}{of}-> input {e.input} of {names[e.target]!r}"
        )
    return "; ".join(said)


def _tasks(vertices: Sequence[VertexLike] | Sequence[ManifestVertex]) -> str:
    return ", ".join(f"{v.name!r}" for v in vertices)


# ---- assignment ----


def _assign_operator(
    manifest: Manifest, stored: ManifestOperator, vertex: VertexLike
) -> list[OperatorRestore]:
    """One restore for each new subtask."""
    parallelism = vertex.parallelism
    keyed = [s.keyed for s in stored.subtasks if s.keyed is not None]
    if keyed and stored.max_parallelism != vertex.max_parallelism:
        raise StateCompatibilityError(
            f"operator {stored.label()} cannot restore: max parallelism is {stored.max_parallelism} in checkpoint "
            f"{manifest.checkpoint_id} but {vertex.max_parallelism} in the job. "
            f"Set max_parallelism={stored.max_parallelism}, or start without state."
        )
    states: list[list[OperatorStateHandle]] = [[] for _ in range(parallelism)]
    for handles in _by_name(stored).values():
        shares = _assign_state(handles, stored.parallelism, parallelism)
        for mine, share in zip(states, shares, strict=True):
            mine.extend(share)
    return [
        OperatorRestore(stored.id, _of_range(keyed, i, vertex), tuple(states[i])) for i in range(parallelism)
    ]


def _of_range(
    keyed: Sequence[KeyedStateHandle], subtask: int, vertex: VertexLike
) -> tuple[KeyedStateHandle, ...]:
    if not keyed:
        return ()
    mine = key_group_range(subtask, vertex.parallelism, vertex.max_parallelism)
    return tuple(handle for handle in keyed if len(handle.range.intersection(mine)))


def _by_name(stored: ManifestOperator) -> dict[str, list[tuple[int, OperatorStateHandle]]]:
    """The handles of each state, with their subtasks."""
    found: dict[str, list[tuple[int, OperatorStateHandle]]] = {}
    for subtask in stored.subtasks:
        for handle in subtask.states:
            found.setdefault(handle.name, []).append((subtask.subtask, handle))
    return found


def _assign_state(
    handles: Sequence[tuple[int, OperatorStateHandle]], before: int, now: int
) -> list[list[OperatorStateHandle]]:
    """The shares of one state, one for each of `now` subtasks."""
    plain = [handle for _, handle in handles]
    if plain[0].redistribution == "union":
        return [list(plain) for _ in range(now)]
    if plain[0].redistribution == "broadcast":
        # All copies are equal; using them in turn spreads the reads.
        return [[plain[i % len(plain)]] for i in range(now)]
    if before == now:
        return [[handle for subtask, handle in handles if subtask == i] for i in range(now)]
    total = sum(_length(handle) for handle in plain)
    shares, start = [], 0
    for i in range(now):
        stop = start + total // now + (1 if i < total % now else 0)
        shares.append(_cut(plain, start, stop))
        start = stop
    return shares


def _length(handle: OperatorStateHandle) -> int:
    return handle.rows if handle.file is not None else len(handle.entries)


def _cut(handles: Sequence[OperatorStateHandle], start: int, stop: int) -> list[OperatorStateHandle]:
    """The entries from `start` to `stop` of the concatenated handles."""
    share = []
    for handle in handles:
        length = _length(handle)
        first, last = max(start, 0), min(stop, length)
        if first < last:
            share.append(
                msgspec.structs.replace(
                    handle,
                    entries=handle.entries[first:last],
                    rows=last - first,
                    first_row=0 if handle.file is None else handle.first_row + first,
                )
            )
        start, stop = start - length, stop - length
    return share
