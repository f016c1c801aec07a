"""Inheritance: which checkpoints a driver took over with a job, a small JSON document; see docs/checkpoint-format.md.

A driver that was stopped may write a manifest after another one has taken the job over and has thrown away what the
manifest relies on. So the successor writes down which checkpoints it found, before it touches anything; what an earlier
driver adds later does not count, for nobody. Version 1; the checksum is that of the document without it.
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
    """What the driver with these attempts found when it had claimed the job."""

    job_name: str
    driver: int
    """Which driver of the job it is, counted from 0."""
    checkpoints: tuple[int, ...]
    """The completed checkpoints of the drivers before it, ascending, damaged ones included."""

    def covers(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint counts: one that was taken over, or of this driver or a later one."""
        return checkpoint_id in self.checkpoints or driver_of_checkpoint(checkpoint_id) >= self.driver

    def encode(self) -> bytes:
        """As a document."""
        document = msgspec.json.encode(_Document(FORMAT, VERSION, "", self))
        return document.replace(b'"checksum":""', b'"checksum":"%s"' % checksum(document).encode(), 1)


class _Document(msgspec.Struct, frozen=True):
    format: str
    version: int
    checksum: str
    inheritance: Inheritance


def decode_inheritance(data: bytes) -> Inheritance:
    """The inheritance of a document, or `ValueError` with what is wrong with it."""
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
