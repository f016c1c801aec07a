"""Inheritance: which checkpoints a driver took over with a job, a small JSON document; see docs/checkpoint-format.md.

A driver that was suspended may write a manifest after another driver has taken the job over and has deleted files that
the manifest refers to. So the successor first writes down which checkpoints it found. No process uses a checkpoint that
an earlier driver adds later. Version 1; the checksum is that of the document without the checksum.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tidegate.core.ids import driver_of_checkpoint
from tidegate.snapshot.checksums import checksum

FORMAT: Final = "tidegate-inheritance"
VERSION: Final = 1

_CHECKSUM = re.compile(rb'"checksum":"([a-z0-9:-]*)"')


class Inheritance(msgspec.Struct, frozen=True):
    """What a driver found after it had claimed the job."""

    job_name: str
    driver: int
    """The number of this driver of the job, counted from 0."""
    checkpoints: tuple[int, ...]
    """The completed checkpoints of earlier drivers, ascending, damaged ones included."""

    def covers(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint counts: it was taken over, or this driver or a later one made it."""
        return checkpoint_id in self.checkpoints or driver_of_checkpoint(checkpoint_id) >= self.driver

    def encode(self) -> bytes:
        document = msgspec.json.encode(_Document(FORMAT, VERSION, "", self))
        return document.replace(b'"checksum":""', b'"checksum":"%s"' % checksum(document).encode(), 1)


class _Document(msgspec.Struct, frozen=True):
    format: str
    version: int
    checksum: str
    inheritance: Inheritance


def decode_inheritance(data: bytes) -> Inheritance:
    """Decode a document; raises `ValueError` with the reason."""
    found = _CHECKSUM.search(data)
    if found is None:
        raise ValueError(f"its {len(data)} bytes have no checksum")
    expected, actual = found[1].decode(), checksum(data[: found.start(1)] + data[found.end(1) :])
    if expected != actual:
        raise ValueError(f"the checksum of its {len(data)} bytes is {actual} but was {expected}")
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.MsgspecError as e:
        raise ValueError(str(e)) from e
    if document.format != FORMAT or document.version != VERSION:
        raise ValueError(
            f"it is {document.format} version {document.version}, not {FORMAT} version {VERSION}"
        )
    return document.inheritance
