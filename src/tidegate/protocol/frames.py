"""Frames: the units of a byte stream. A control frame is a length and a body; a data frame has a header and a body.

The header of a data frame names the channel (edge, producer subtask, consumer subtask) and carries `extra`: the
sender's backlog on data and events, the number of credits on a credit frame. The body is an Arrow stream or an event.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidegate.core.errors import ProtocolError
from tidegate.core.ids import ChannelId, EdgeId

CONTROL_HEADER = struct.Struct("<I")
DATA_HEADER = struct.Struct("<BxHHHII")
MAX_CONTROL_BYTES = 1 << 30
MAX_DATA_BYTES = 1 << 30

BATCH = 1
EVENT = 2
CREDIT = 3
_KINDS = frozenset((BATCH, EVENT, CREDIT))


class DataHeader(NamedTuple):
    """The decoded header of a data frame."""

    kind: int
    channel: ChannelId
    length: int
    extra: int


def control_frame(body: bytes) -> bytes:
    if len(body) > MAX_CONTROL_BYTES:
        raise ProtocolError(
            f"a control message of {len(body)} bytes is too long (at most {MAX_CONTROL_BYTES})"
        )
    return CONTROL_HEADER.pack(len(body)) + body


class ControlDecoder:
    """Extracts control frames from the received bytes, whatever the sizes of the reads."""

    def __init__(self, limit: int = MAX_CONTROL_BYTES) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes and yield the complete bodies; a length over the limit raises `ProtocolError`."""
        self._buffer += data
        while len(self._buffer) >= CONTROL_HEADER.size:
            (length,) = CONTROL_HEADER.unpack_from(self._buffer)
            if length > self._limit:
                raise ProtocolError(
                    f"a control message of {length} bytes is announced, at most {self._limit} are allowed"
                )
            end = CONTROL_HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[CONTROL_HEADER.size : end])
            del self._buffer[:end]
            yield body


def data_header(kind: int, channel: ChannelId, length: int, extra: int) -> bytes:
    """The header of a data frame; raises `ProtocolError` for one that the receiver would refuse."""
    if length > MAX_DATA_BYTES:
        raise ProtocolError(
            f"a record of {length} bytes is too large to go to another slot (at most {MAX_DATA_BYTES})"
        )
    return DATA_HEADER.pack(kind, channel.edge, channel.producer, channel.consumer, length, extra)


def parse_data_header(data: bytes | bytearray | memoryview) -> DataHeader:
    """Parse a header; an unknown kind or an absurd length raises `ProtocolError`."""
    kind, edge, producer, consumer, length, extra = DATA_HEADER.unpack_from(data)
    if kind not in _KINDS:
        raise ProtocolError(f"unknown kind of data frame: {kind}")
    if length > MAX_DATA_BYTES or (kind == CREDIT and length):
        raise ProtocolError(f"a data frame of kind {kind} announces {length} bytes")
    return DataHeader(kind, ChannelId(EdgeId(edge), producer, consumer), length, extra)
