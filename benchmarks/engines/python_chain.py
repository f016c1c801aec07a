"""The user's own Python of the `python_chain` workload: the same three functions for every engine, and their truth.

A click is a tuple (app_id, user_id, page, duration_ms). Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

Click = tuple[str, int, str, int]
Visit = tuple[str, int, int]


def parse(click: Click) -> Visit:
    """Map: take the page's number out of its path, round the duration to tenths of a second."""
    app_id, _, page, duration_ms = click
    return app_id, int(page.rpartition("/")[2]), (duration_ms + 50) // 100


def is_counted(visit: Visit) -> bool:
    """Filter: nine of ten pages count, and only visits that lasted."""
    return visit[1] % 10 != 3 and visit[2] > 0


def add(left: Visit, right: Visit) -> Visit:
    """Keyed reduce: the latest page and the total duration of an app."""
    return left[0], right[1], left[2] + right[2]


def read_clicks(directory: Path, part: int = 0, parts: int = 1) -> Iterator[Click]:
    """The clicks of every `parts`-th JSON lines file from the `part`-th on."""
    for path in sorted(directory.glob("part-*.json"))[part::parts]:
        with path.open() as file:
            for line in file:
                row = json.loads(line)
                yield row["app_id"], row["user_id"], row["page"], row["duration_ms"]


def truth(clicks: Iterable[Click]) -> dict[str, int]:
    """What an engine must report as `check`: results of the reduce, and the sum of the final totals."""
    totals: dict[str, Visit] = {}
    results = 0
    for click in clicks:
        visit = parse(click)
        if is_counted(visit):
            results += 1
            before = totals.get(visit[0])
            totals[visit[0]] = visit if before is None else add(before, visit)
    return {"results": results, "total": sum(visit[2] for visit in totals.values())}
