"""Makes the C allocator keep freed memory for the next batch instead of returning it to the kernel.

Vectorised code allocates and frees temporaries of a few hundred KiB for every batch. By default glibc returns them
to the kernel and faults them in again page by page, which costs more than the arithmetic on them (figures in
``docs/design/key-hashing.md``). A slot calls `keep_freed_memory` once, before its first batch.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_MMAP_THRESHOLD: Final = 32 << 20  # glibc's own limit on 64-bit machines


def keep_freed_memory(keep_bytes: int = 256 << 20) -> bool:
    """Let malloc keep up to ``keep_bytes`` of freed memory. Returns False without effect if malloc is not glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    mmap_set = mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    trim_set = mallopt(_M_TRIM_THRESHOLD, min(keep_bytes, (1 << 31) - 1))
    return bool(mmap_set and trim_set)
