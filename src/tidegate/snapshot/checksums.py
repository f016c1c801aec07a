"""Checksums of durable bytes: the first 128 bits of SHA-256, written as `sha256-128:<hex>`.

The fastest of the standard library's strong functions: processors have instructions for it, and it drops the GIL. The
algorithm's name is part of the text, so that another one can be read beside it later.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

PREFIX: Final = "sha256-128:"
TEXT_LENGTH: Final = len(PREFIX) + 32


def checksum(data: Any) -> str:
    """The checksum of a buffer."""
    return finish(hashlib.sha256(data))


def finish(running: Any) -> str:
    """The checksum of what `hashlib.sha256()` was fed with."""
    return PREFIX + running.hexdigest()[:32]
