"""Fingerprints: whether stored state has the type that the program declares now.

A fingerprint is a hash of what the bytes in the files mean: the kind of state, the types of the key columns, the names
and types of the values, the serializer, and whether there is a time to live and in which time. It does not cover the
names of classes and key columns, nor the length of the time to live: these may change between runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.api.state import KeyedState, MapState
from tidegate.core.errors import StateCompatibilityError
from tidegate.records.codecs import codec_of
from tidegate.records.types import RecordType
from tidegate.snapshot.handles import StateKind, StateSchema
from tidegate.state.serializers import KeySerializer, ValueSerializer


def state_schema(
    declaration: KeyedState,
    key_type: RecordType,
    value: ValueSerializer,
    map_key: KeySerializer | None = None,
) -> StateSchema:
    ttl = declaration.ttl
    words = value.describe()
    stored = codec_of(value.arrow_type).text
    if isinstance(declaration, MapState):
        assert map_key is not None
        words = f"{map_key.describe()} → {words}"
        stored = f"{codec_of(map_key.arrow_type).text}→{stored}"
    kind: Any = declaration.kind
    return StateSchema(
        name=declaration.name,
        kind=kind,
        key=key_type.describe(),
        value=words,
        serializer=value.name,
        ttl_ms=None if ttl is None else ttl.duration_ms,
        fingerprint=fingerprint(kind, key_type, stored, value.name, None if ttl is None else ttl.time),
    )


def column_schema(name: str, key_type: RecordType, arrays: Sequence[tuple[str, str]]) -> StateSchema:
    """The schema of a column table whose arrays have these names and types."""
    words = ", ".join(f"{array}: {dtype}" for array, dtype in arrays)
    return StateSchema(
        name=name,
        kind="column",
        key=key_type.describe(),
        value=words,
        serializer="arrow",
        ttl_ms=None,
        fingerprint=fingerprint("column", key_type, words, "arrow", None),
    )


def pane_schema(name: str, key_type: RecordType, values: pa.Schema) -> StateSchema:
    """The schema of a pane table with these values."""
    return StateSchema(
        name=name,
        kind="pane",
        key=key_type.describe(),
        value=", ".join(f"{f.name}: {f.type}" for f in values),
        serializer="arrow",
        ttl_ms=None,
        fingerprint=fingerprint("pane", key_type, codec_of(pa.struct(list(values))).text, "arrow", None),
    )


def fingerprint(
    kind: StateKind, key_type: RecordType, stored: str, serializer: str, ttl_time: str | None
) -> str:
    """The hash of what the stored bytes mean; equal in every process and version."""
    keys = ",".join(codec_of(f.type).text for f in key_type.schema)
    parts = ("1", kind, keys, stored, serializer, ttl_time or "")
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def check_compatible(operator: str, stored: StateSchema, declared: StateSchema) -> None:
    """Refuse to restore a state of another type; the message says what differs."""
    if stored.fingerprint == declared.fingerprint:
        return
    differences = [
        f"{what} {_shown(before)} in the checkpoint but {_shown(now)} in the program"
        for what, before, now in (
            ("it is a state of kind", stored.kind, declared.kind),
            ("its keys are", stored.key, declared.key),
            ("its values are", stored.value, declared.value),
            ("its serializer is", stored.serializer, declared.serializer),
            ("its time to live is", _ttl(stored), _ttl(declared)),
        )
        if before != now
    ]
    if not differences:
        inside = (
            f"fingerprint {stored.fingerprint} in the checkpoint but {declared.fingerprint} in the program"
        )
        differences = [f"{declared.value} has changed inside: {inside}"]
    raise StateCompatibilityError(
        f"operator {operator!r} cannot restore state {declared.name!r}: {'; '.join(differences)}. Declare what was "
        f"stored, or give the changed state another name= to begin without it"
    )


def _shown(value: str) -> str:
    return value or "none"


def _ttl(schema: StateSchema) -> str:
    return "" if schema.ttl_ms is None else "set"
