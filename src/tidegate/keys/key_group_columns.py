"""Key groups and channels for whole batches of hashes: the vectorised twin of `core.key_groups`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidegate.core.key_groups import check_parallelism
from tidegate.keys.hashing import Hashes

KeyGroups = npt.NDArray[np.uint16]


def key_groups(hashes: Hashes, max_parallelism: int) -> KeyGroups:
    """The key group of each hash. Max parallelism is at most 32768, so 16 bits hold it."""
    if max_parallelism & (max_parallelism - 1) == 0:  # a power of two: take the low bits, without a division
        return (hashes.astype(np.uint16) & np.uint16(max_parallelism - 1)).astype(np.uint16, copy=False)
    return (hashes % np.uint64(max_parallelism)).astype(np.uint16)


def channel_table(parallelism: int, max_parallelism: int) -> npt.NDArray[np.uint16]:
    """The subtask that owns each key group. A partitioner computes it once."""
    check_parallelism(parallelism, max_parallelism)
    return (np.arange(max_parallelism, dtype=np.int64) * parallelism // max_parallelism).astype(np.uint16)


def channel_for_key_groups(groups: KeyGroups, table: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """The subtask of each key group, looked up in the `channel_table`."""
    return table.take(groups)
