"""Time to live in RocksDB: every value carries the time when it was last written, in 8 bytes before it."""

from __future__ import annotations

from typing import Final

STAMP_BYTES: Final = 8


def stamp(written_ms: int) -> bytes:
    """A time as the bytes before a value."""
    return written_ms.to_bytes(STAMP_BYTES, "little", signed=True)


def stamped(data: bytes, position: int = 0) -> int:
    """The time before a value."""
    return int.from_bytes(data[position : position + STAMP_BYTES], "little", signed=True)
