"""The `stateful_function` workload: what every engine's own function does per record, the data, and the truth.

A visit is a tuple (user, duration_ms), of USERS users. The function keeps the time that a user has spent: it reads the
state, adds the visit, writes the state, and emits a result each time another STEP_MS are full. Every engine has the
same arithmetic in its own kind of function. No visit lasts as long as a step, so the results do not depend on the order
in which a user's visits are taken. Standard library only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

USERS = 10_000
STEP_MS = 10_000
Visit = tuple[str, int]
Step = tuple[str, int]
"""A user, and how many steps of time that user has spent now."""


def read_visits(directory: Path, part: int = 0, parts: int = 1) -> Iterator[Visit]:
    """The visits of every `parts`-th JSON lines file of the clicks from the `part`-th on."""
    names = [f"user-{number:04d}" for number in range(USERS)]
    for path in sorted(directory.glob("part-*.json"))[part::parts]:
        with path.open() as file:
            for line in file:
                row = json.loads(line)
                yield names[row["user_id"] % USERS], row["duration_ms"]


def truth(visits: Iterable[Visit]) -> dict[str, int]:
    """What an engine must report as `check`: the number of results and the sum of their steps."""
    spent: Counter[str] = Counter()
    for user, duration_ms in visits:
        assert duration_ms < STEP_MS, f"a visit of {duration_ms} ms: the results depend on the order"
        spent[user] += duration_ms
    steps = [total // STEP_MS for total in spent.values()]
    return {"results": sum(steps), "total": sum(n * (n + 1) // 2 for n in steps)}
