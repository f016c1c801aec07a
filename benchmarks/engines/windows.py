"""The `windows` workload: its windows, and how a runner reports its results. Standard library only.

A result is (app_id, start, end, count), the times in milliseconds since 1970. The events are at most
OUT_OF_ORDERNESS_MS behind the latest of their file, so that none of them is late.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

KINDS = ("tumbling", "sliding", "session")
TUMBLING_S = 10
SLIDING_S, SLIDE_S = 60, 1
SESSION_GAP_S = 2
OUT_OF_ORDERNESS_MS = 2_000
OUT_OF_ORDERNESS = "2 s"

Result = tuple[str, int, int, int]


def summary(results: Iterable[Result]) -> dict[str, int]:
    """What a runner reports as `check`: equal for equal results, in whatever order they come."""
    count = records = checksum = 0
    for app, start, end, counted in results:
        count += 1
        records += counted
        checksum += zlib.crc32(f"{app},{start},{end},{counted}".encode())
    return {"results": count, "counted": records, "checksum": checksum}


def added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The summary of all results, from those of each subtask."""
    parts = list(parts)
    return {name: sum(part[name] for part in parts) for name in ("results", "counted", "checksum")}
