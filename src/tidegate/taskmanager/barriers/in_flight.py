"""In-flight data of an unaligned checkpoint: the batches that its barrier overtook, as one durable file per subtask.

    TGIF 01                     magic and version
    <u32 length> <header>       msgpack: ["in" | "out", edge, producer, consumer, bytes of the batch]
    <batch>                     an Arrow IPC stream, as on the wire
    ...

Batches of one channel are in order. The checksum in the file's handle covers the whole file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from tidegate.core.errors import CheckpointError
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.records.batch import Batch
from tidegate.records.wire import encode_batch

_MAGIC = b"TGIF\x01"
_LENGTH = struct.Struct("<I")


class OvertakenBatch(NamedTuple):
    """A batch that was in flight: into this subtask, or out of it."""

    direction: Literal["in", "out"]
    channel: ChannelId
    data: bytes


def overtaken(
    direction: Literal["in", "out"], channel: ChannelId, batches: Iterable[Batch]
) -> list[OvertakenBatch]:
    """Encode batches for storage. It copies them, so call it on the mailbox thread or with unshared batches."""
    return [OvertakenBatch(direction, channel, encode_batch(b).to_pybytes()) for b in batches]


def encode_in_flight(batches: Sequence[OvertakenBatch]) -> bytes:
    parts = [_MAGIC]
    for direction, channel, data in batches:
        header = msgspec.msgpack.encode((direction, *channel, len(data)))
        parts += [_LENGTH.pack(len(header)), header, data]
    return b"".join(parts)


def decode_in_flight(data: bytes, path: str) -> list[OvertakenBatch]:
    """The batches of a file; raises `CheckpointError` with the path for anything else."""
    if not data.startswith(_MAGIC):
        raise CheckpointError(f"{path} holds no in-flight data of version 1")
    found = []
    at = len(_MAGIC)
    try:
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            header = msgspec.msgpack.decode(
                data[at : at + length], type=tuple[Literal["in", "out"], int, int, int, int]
            )
            direction, edge, producer, consumer, size = header
            at += length
            if at + size > len(data):
                raise ValueError("it ends in the middle of a batch")
            found.append(
                OvertakenBatch(direction, ChannelId(EdgeId(edge), producer, consumer), data[at : at + size])
            )
            at += size
    except (struct.error, msgspec.MsgspecError, ValueError) as e:
        raise CheckpointError(f"{path} holds damaged in-flight data: {e}") from e
    return found
