"""All state of one operator subtask: its keyed backend, its lists and maps, and the plain entries of sources and sinks.

The task makes one per operator, with what a checkpoint has for it; the operator requests its states in `open`.
`snapshot` is the synchronous part for all of them together. Mailbox thread only, except for the callable that it
returns.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.api.state import (
    BroadcastState,
    OperatorListState,
    OperatorState,
    StateAccessError,
    StateSerializer,
)
from tidegate.core.clock import Clock
from tidegate.core.errors import ProgramError, SchemaError, SerializationError, StateCompatibilityError
from tidegate.core.options import Options
from tidegate.core.subtask_info import SubtaskContext, SubtaskInfo
from tidegate.core.words import kind_of
from tidegate.records.types import RecordType, brief, record_type_of
from tidegate.snapshot.handles import KeyedStateHandle, OperatorSnapshot, OperatorStateHandle, Redistribution
from tidegate.state.backend import AsyncPart, BackendContext, KeyedStateBackend
from tidegate.state.backends import check_written_by, make_backend
from tidegate.state.serializers import ValueSerializer, map_key_serializer, value_serializer
from tidegate.storage.storage import CheckpointStorage, SnapshotWriter

logger = logging.getLogger(__name__)

OperatorAsyncPart = Callable[[SnapshotWriter], OperatorSnapshot]


@dataclass(frozen=True, kw_only=True)
class StatesContext(SubtaskContext):
    """The subtask that the states belong to."""

    subtask: SubtaskInfo
    clock: Clock
    options: Options
    local_directory: Callable[[], str]


@dataclass(frozen=True)
class Restored:
    """What a checkpoint has for one operator subtask, already redistributed, and where its files are."""

    keyed: tuple[KeyedStateHandle, ...]
    states: tuple[OperatorStateHandle, ...]
    storage: CheckpointStorage


class OperatorStates:
    """The states of one operator subtask."""

    def __init__(self, context: StatesContext, restored: Restored | None = None) -> None:
        self._context = context
        self._restored = restored
        self._backend: KeyedStateBackend | None = None
        self._lists: dict[str, _LiveList] = {}
        self._maps: dict[str, _LiveMap] = {}
        self._entries: dict[str, tuple[Redistribution, tuple[msgspec.Raw, ...]]] = {}
        self._asked: set[str] = set()
        self._deferred: list[_Deferred] = []

    @property
    def is_restored(self) -> bool:
        """Whether the operator continues from a checkpoint."""
        return self._restored is not None

    @property
    def is_keyed(self) -> bool:
        """Whether the operator has requested keyed state."""
        return self._backend is not None

    def keyed(self, key_type: RecordType) -> KeyedStateBackend:
        """The keyed state of the operator; the first call makes and restores it."""
        if self._backend is None:
            c = self._context
            self._backend = make_backend(
                BackendContext(
                    operator_name=c.operator_name,
                    subtask_index=c.subtask_index,
                    attempt=c.attempt,
                    key_type=key_type,
                    key_groups=c.subtask.key_groups,
                    max_parallelism=c.subtask.max_parallelism,
                    clock=c.clock,
                    options=c.options,
                    local_directory=c.local_directory,
                )
            )
            if self._restored is not None and self._restored.keyed:
                check_written_by(self._backend.name, self._restored.keyed, c.operator_name)
                self._backend.restore(self._restored.keyed, self._restored.storage)
        return self._backend

    def operator_state(self, declaration: OperatorState) -> OperatorState:
        """The live list or broadcast map of a declaration."""
        if isinstance(declaration, BroadcastState):
            if declaration.name not in self._maps:
                self._maps[declaration.name] = self._make_map(declaration)
            return self._maps[declaration.name]
        if isinstance(declaration, OperatorListState):
            if declaration.name not in self._lists:
                self._lists[declaration.name] = self._make_list(declaration)
            return self._lists[declaration.name]
        raise ProgramError(f"state {declaration.name!r} is of no known kind: {type(declaration).__name__}")

    def set_broadcast_writable(self, writable: bool) -> None:
        """Set whether broadcast maps may be changed: only while a broadcast record is processed."""
        for state in self._maps.values():
            state.writable = writable

    def entries(self, name: str) -> list[bytes]:
        """The plain entries (JSON) that the checkpoint has under this name; empty without a checkpoint."""
        self._asked.add(name)
        if self._restored is None:
            return []
        return [bytes(e) for s in self._restored.states if s.name == name for e in s.entries]

    def put_entries(
        self, name: str, entries: Iterable[bytes], redistribution: Redistribution = "split"
    ) -> None:
        """Set the plain entries (JSON) of the next snapshots under this name."""
        self._entries[name] = (redistribution, tuple(map(msgspec.Raw, entries)))

    def check_claimed(self) -> None:
        """Refuse a checkpoint with a state that the operator has not requested: it would be lost.

        Called once, after the operator's `open`. `allow_non_restored_state` turns the error into a warning.
        """
        restored = self._restored
        if restored is None:
            return
        claimed = set() if self._backend is None else self._backend.claimed
        stored = {schema.name for handle in restored.keyed for schema in handle.states if handle.files}
        lost = stored - claimed
        lost |= {s.name for s in restored.states if s.rows} - self._asked - {*self._lists, *self._maps}
        if not lost:
            return
        names = ", ".join(map(repr, sorted(lost)))
        text = (
            f"operator {self._context.operator_name!r} has state {names} in the checkpoint, but the program does not "
            f"declare it any more"
        )
        if not self._context.options.allow_non_restored_state:
            raise StateCompatibilityError(
                f"{text}. Was it renamed? Declare it with name={sorted(lost)[0]!r}, or set allow_non_restored_state to "
                f"leave it behind"
            )
        logger.warning("%s; it is left behind", text)

    # ---- checkpoints ----

    def defer(self, work: Callable[[], None]) -> None:
        """Run this once in the asynchronous part of the current snapshot, before everything else.

        If that part never runs, or fails earlier, the next snapshot runs it.
        """
        self._deferred.append(_Deferred(work))

    def snapshot(self, checkpoint_id: int) -> OperatorAsyncPart:
        """Freeze everything; the result writes it, on another thread."""
        operator = self._context.subtask.operator_id
        backend = self._backend
        keyed: AsyncPart | None = None if backend is None else backend.snapshot(checkpoint_id)
        parts = [state.freeze() for state in self._lists.values()]
        parts += [state.freeze() for state in self._maps.values()]
        plain = tuple(
            OperatorStateHandle(name, redistribution, entries, rows=len(entries))
            for name, (redistribution, entries) in self._entries.items()
        )

        self._deferred = [work for work in self._deferred if not work.done]
        deferred = tuple(self._deferred)

        def write(writer: SnapshotWriter) -> OperatorSnapshot:
            for work in deferred:
                work.run()
            handle = None if keyed is None else keyed(writer)
            return OperatorSnapshot(operator, handle, plain + tuple(part(writer) for part in parts))

        return write

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        if self._backend is not None:
            self._backend.checkpoint_completed(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        if self._backend is not None:
            self._backend.checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    # ---- lists and maps ----

    def _make_list(self, declaration: OperatorListState[Any]) -> _LiveList:
        codec = _Codec(
            self._context.operator_name, declaration.name, [("value", declaration.type)], declaration
        )
        live = _LiveList(declaration, codec)
        live.values = [row[0] for row in self._stored_rows(declaration.name, codec)]
        return live

    def _make_map(self, declaration: BroadcastState[Any, Any]) -> _LiveMap:
        columns = [("key", declaration.key_type), ("value", declaration.value_type)]
        codec = _Codec(self._context.operator_name, declaration.name, columns, declaration)
        live = _LiveMap(declaration, codec, self._context.operator_name)
        live.entries = dict(self._stored_rows(declaration.name, codec))
        return live

    def _stored_rows(self, name: str, codec: _Codec) -> list[Any]:
        restored = self._restored
        rows: list[Any] = []
        if restored is None:
            return rows
        for handle in restored.states:
            if handle.name == name and handle.file is not None:
                codec.check(handle)
                found = codec.decode(restored.storage.read(handle.file))
                rows.extend(found[handle.first_row : handle.first_row + handle.rows])
        return rows


class _Deferred:
    """Work for the upload thread, which runs one thing at a time. The mailbox thread only reads `done`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.done = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Run it once. Work that failed half-way cannot be repeated: it fails every time."""
        if self._failure is not None:
            raise self._failure
        if not self.done:
            try:
                self._work()
            except BaseException as e:
                self._failure = e
                raise
            self.done = True


class _Codec:
    """Converts rows of one or two typed columns to Parquet and back."""

    def __init__(
        self, operator: str, state: str, columns: Sequence[tuple[str, Any]], declaration: OperatorState
    ) -> None:
        self._operator = operator
        self._state = state
        self._serializer: StateSerializer[Any] | None = declaration.serializer
        self._values = value_serializer(operator, state, columns[-1][1], self._serializer, optional=True)
        self._keys = map_key_serializer(operator, state, columns[0][1]) if len(columns) > 1 else None
        serialized = self._serializer is not None
        hints = [bytes if serialized and name == "value" else hint for name, hint in columns]
        self._types: list[RecordType] = [record_type_of(hint) for hint in hints]
        self._names = [name for name, _ in columns]
        self.description = ", ".join(t.describe() for t in self._types)
        schemas = "; ".join(str(t.schema) for t in self._types)
        serializer = "" if self._serializer is None else self._serializer.name
        self.fingerprint = hashlib.blake2b(f"{schemas}|{serializer}".encode(), digest_size=8).hexdigest()

    def check(self, handle: OperatorStateHandle) -> None:
        if handle.fingerprint != self.fingerprint:
            raise StateCompatibilityError(
                f"operator {self._operator!r} cannot restore state {self._state!r}: it holds {handle.schema} in the "
                f"checkpoint but {self.description} in the program. Declare the type that was stored, or give the "
                f"state another name"
            )

    def adopt(self, value: Any) -> Any:
        """Return what is kept of a value, independent of the caller; an error names a value that does not fit."""
        return self._adopted(self._values, value)

    def adopt_key(self, key: Any) -> Any:
        """Return the key as it is in the dict."""
        assert self._keys is not None
        return key if key.__class__ is self._keys.plain_class else self._adopted(self._keys, key)

    def new_key(self, key: Any) -> Any:
        """Return the key to put into the dict; an error names one that does not fit."""
        assert self._keys is not None
        return self._adopted(self._keys, key)

    def release(self, kept: Any) -> Any:
        """Return a value for the caller."""
        return self._values.release(kept)

    def _adopted(self, serializer: ValueSerializer, value: Any) -> Any:
        try:
            return serializer.adopt(value)
        except SchemaError as e:
            raise SerializationError(
                f"operator {self._operator!r}: state {self._state!r} cannot store {kind_of(value)}: {e}. Store "
                f"values of the declared type, or declare the type of what is stored"
            ) from e

    def encode(self, rows: Sequence[tuple[Any, ...]]) -> bytes:
        arrays: list[pa.Array] = []
        fields: list[pa.Field] = []
        for i, (name, record_type) in enumerate(zip(self._names, self._types, strict=True)):
            values = [row[i] for row in rows]
            try:
                columns = record_type.to_columns(values)
            except Exception as e:
                bad = _first_bad(record_type, values)
                raise SchemaError(
                    f"operator {self._operator!r}: state {self._state!r} cannot store {bad}: {e}"
                ) from e
            for field, array in zip(columns.schema, columns.columns, strict=True):
                fields.append(field.with_name(f"{name}.{field.name}"))
                arrays.append(array)
        out = io.BytesIO()
        pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), out)
        return out.getvalue()

    def decode(self, data: bytes) -> list[tuple[Any, ...]]:
        table = pq.read_table(io.BytesIO(data)).combine_chunks()
        columns: list[list[Any]] = []
        for name, record_type in zip(self._names, self._types, strict=True):
            names = [f"{name}.{f.name}" for f in record_type.schema]
            arrays = [_one(table.column(n)) for n in names]
            rows = record_type.to_rows(pa.RecordBatch.from_arrays(arrays, schema=record_type.schema))
            columns.append(rows)
        return list(zip(*columns, strict=True))


class _LiveList(OperatorListState[Any]):
    """The entries of one subtask, in memory."""

    def __init__(self, declaration: OperatorListState[Any], codec: _Codec) -> None:
        super().__init__(declaration.type, name=declaration.name, serializer=declaration.serializer)
        self.redistribution = declaration.redistribution  # type: ignore[misc]
        self.owner = declaration.owner
        self._codec = codec
        self.values: list[Any] = []

    def get(self) -> list[Any]:
        return [self._codec.release(v) for v in self.values]

    def add(self, value: Any) -> None:
        self.values.append(self._codec.adopt(value))

    def update(self, values: Iterable[Any]) -> None:
        self.values = [self._codec.adopt(v) for v in values]

    def clear(self) -> None:
        self.values = []

    def freeze(self) -> Callable[[SnapshotWriter], OperatorStateHandle]:
        rows = [(v,) for v in self.values]
        return _writing(self.name, self.redistribution, rows, self._codec)


class _LiveMap(BroadcastState[Any, Any]):
    """A broadcast map, in memory."""

    def __init__(self, declaration: BroadcastState[Any, Any], codec: _Codec, operator: str) -> None:
        super().__init__(
            declaration.key_type,
            declaration.value_type,
            name=declaration.name,
            serializer=declaration.serializer,
        )
        self.owner = declaration.owner
        self._codec = codec
        self._operator = operator
        self.writable = False
        self.entries: dict[Any, Any] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        key = self._codec.adopt_key(key)
        return self._codec.release(self.entries[key]) if key in self.entries else default

    def put(self, key: Any, value: Any) -> None:
        self._check_writable("put")
        self.entries[self._codec.new_key(key)] = self._codec.adopt(value)

    def remove(self, key: Any) -> None:
        self._check_writable("remove")
        self.entries.pop(self._codec.adopt_key(key), None)

    def contains(self, key: Any) -> bool:
        return self._codec.adopt_key(key) in self.entries

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter([(k, self._codec.release(v)) for k, v in self.entries.items()])

    def is_empty(self) -> bool:
        return not self.entries

    def clear(self) -> None:
        self._check_writable("clear")
        self.entries.clear()

    def freeze(self) -> Callable[[SnapshotWriter], OperatorStateHandle]:
        return _writing(self.name, "broadcast", list(self.entries.items()), self._codec)

    def _check_writable(self, method: str) -> None:
        if not self.writable:
            raise StateAccessError(
                f"operator {self._operator!r}: broadcast state {self.name!r} is read-only here; {method}() is for the "
                f"broadcast side, where every subtask sees the same records"
            )


def _writing(
    name: str, redistribution: Any, rows: list[tuple[Any, ...]], codec: _Codec
) -> Callable[[SnapshotWriter], OperatorStateHandle]:
    def write(writer: SnapshotWriter) -> OperatorStateHandle:
        file = writer.write(f"{name}.parquet", codec.encode(rows), "exclusive") if rows else None
        return OperatorStateHandle(
            name, redistribution, (), file, len(rows), codec.description, codec.fingerprint
        )

    return write


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _first_bad(record_type: RecordType, values: Sequence[Any]) -> str:
    for value in values:
        try:
            record_type.to_columns([value])
        except Exception:  # noqa: BLE001 - only looks for the value to name
            return f"{kind_of(value)}: {brief(value)}"
    return "its values"
