"""Manifests for tests: a small job of a source, a keyed function and a sink, and what its subtasks acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tidegate.core.ids import JobId, OperatorId, VertexId
from tidegate.core.key_groups import key_group_range
from tidegate.snapshot.checksums import checksum
from tidegate.snapshot.handles import (
    InFlightHandle,
    KeyedStateHandle,
    OperatorSnapshot,
    OperatorStateHandle,
    StateFile,
    StateSchema,
    SubtaskCheckpointMetrics,
    SubtaskSnapshot,
)
from tidegate.snapshot.manifest import Manifest, make_manifest

SEEN = StateSchema("seen", "value", "Row(app: string)", "bool", "arrow", None, "4d1f0c6f1e0f7a52")


@dataclass(frozen=True)
class Operator:
    id: OperatorId
    uid: str | None
    name: str


def operator(name: str, uid: str | None = None) -> Operator:
    return Operator(OperatorId(f"id-of-{uid or name}"), uid, name)


@dataclass(frozen=True)
class Vertex:
    id: VertexId
    name: str
    operators: tuple[Operator, ...]
    parallelism: int = 2
    max_parallelism: int = 128


CLICKS, DEDUPE, RULES, OUT = (
    operator("clicks", "clicks"),
    operator("dedupe"),
    operator("rules", "r-1"),
    operator("out"),
)


def vertices(parallelism: int = 2, max_parallelism: int = 128) -> tuple[Vertex, ...]:
    return (
        Vertex(VertexId(0), "clicks", (CLICKS,), parallelism, max_parallelism),
        Vertex(VertexId(1), "dedupe -> rules -> out", (DEDUPE, RULES, OUT), parallelism, max_parallelism),
    )


def state_file(path: str, data: bytes) -> StateFile:
    return StateFile(path, len(data), checksum(data))


@dataclass
class Contents:
    """The bytes of the files that a manifest names."""

    files: dict[str, bytes] = field(default_factory=dict)

    def put(self, path: str, data: bytes) -> StateFile:
        self.files[path] = data
        return state_file(path, data)


def split_entry(subtask: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"id": f"clicks.json:{subtask}", "position": 1000 * subtask + 17}))


def snapshots(
    contents: Contents, parallelism: int = 2, *, checkpoint_id: int = 42, in_flight: bool = False
) -> list[SubtaskSnapshot]:
    """Source positions, keyed state of a base and an increment, a split, a union and a broadcast state."""
    id, found = checkpoint_id, []
    for i in range(parallelism):
        positions = OperatorStateHandle("splits", "split", (split_entry(i),), rows=1)
        found.append(
            SubtaskSnapshot(
                VertexId(0), i, (OperatorSnapshot(CLICKS.id, None, (positions,)),), finished=i == 1
            )
        )
        groups = key_group_range(i, parallelism, 128)
        base = contents.put(
            f"shared/c{id - 1}-a0-{DEDUPE.id}-{i}-base.parquet".replace("id-of-", "x"), b"base" * 50
        )
        increment = contents.put(
            f"shared/c{id}-a0-{DEDUPE.id}-{i}-inc.parquet".replace("id-of-", "x"), b"inc%d" % i
        )
        keyed = KeyedStateHandle(
            "heap", (groups.start, groups.end), (SEEN,), (base, increment), bytes_new=increment.size
        )
        own = f"chk-{id}/a0-xrules-{i}-"
        states = (
            OperatorStateHandle(
                "pending", "split", (), contents.put(own + "pending.parquet", b"p%d" % i), 3, "int64", "aa"
            ),
            OperatorStateHandle(
                "all", "union", (), contents.put(own + "all.parquet", b"u%d" % i), 2, "int64", "bb"
            ),
            OperatorStateHandle(
                "rules",
                "broadcast",
                (),
                contents.put(own + "rules.parquet", b"rules"),
                1,
                "string, int64",
                "cc",
            ),
        )
        overtaken = (
            InFlightHandle(contents.put(f"chk-{id}/a0-v1-{i}-in-flight", b"batches"), 4)
            if in_flight
            else None
        )
        found.append(
            SubtaskSnapshot(
                VertexId(1),
                i,
                (OperatorSnapshot(DEDUPE.id, keyed), OperatorSnapshot(RULES.id, None, states)),
                overtaken,
            )
        )
    return found


def manifest(
    contents: Contents | None = None,
    parallelism: int = 2,
    *,
    job_id: str = "9c02d1e0aa55f011",
    job_name: str = "pv count",
    checkpoint_id: int = 42,
    completed_ms: int = 1_794_700_001_250,
    in_flight: bool = False,
) -> Manifest:
    made = make_manifest(
        job_id=JobId(job_id),
        job_name=job_name,
        attempt=0,
        checkpoint_id=checkpoint_id,
        triggered_ms=completed_ms - 250,
        completed_ms=completed_ms,
        vertices=vertices(parallelism),
        snapshots=snapshots(
            contents or Contents(), parallelism, checkpoint_id=checkpoint_id, in_flight=in_flight
        ),
        enumerators={CLICKS.id: b'{"pending":["clicks.json:9"],"found":10}'},
        metrics={
            (VertexId(v), i): SubtaskCheckpointMetrics(
                alignment_ms=1.5, sync_ms=0.25, async_ms=12.0, bytes_new=100 * v, bytes_full=200 * v
            )
            for v in (0, 1)
            for i in range(parallelism)
        },
    )
    return msgspec.structs.replace(made, tidegate_version="0.1.0")
