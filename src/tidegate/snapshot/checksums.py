"""Checksums of durable bytes: the first 128 bits of SHA-256, written as `sha256-128:<hex>`.

SHA-256 is the fastest strong hash of the standard library: processors have instructions for it, and it drops the GIL.
The text names the algorithm, so that later versions can use another one.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

PREFIX: Final = "sha256-128:"
TEXT_LENGTH: Final = len(PREFIX) + 32


def checksum(data: Any) -> str:
    return finish(hashlib.sha256(data))


def finish(running: Any) -> str:
    """The checksum of all bytes that a `hashlib.sha256()` was updated with."""
    return PREFIX + running.hexdigest()[:32]
