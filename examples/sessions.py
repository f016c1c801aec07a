"""Sessions: the visits of each user. A visit ends when there is no click for ten minutes.

    python examples/sessions.py [--parallelism 2] [any tidegate option]

The clicks of a day are out of order by up to a minute. The job emits visits as they end. The program compares them with
those that plain Python finds in the sorted clicks.
"""

from __future__ import annotations

import random
import sys
from typing import NamedTuple

from tidegate import Count, CountDistinct, Environment, EventTimeSessionWindows, WatermarkStrategy

GAP_MS = 10 * 60_000
DISORDER_MS = 60_000
MIDNIGHT_MS = 1_767_225_600_000
"""2026-01-01 00:00 UTC."""


class Click(NamedTuple):
    """Somebody looks at a page."""

    user: str
    page: str
    at_ms: int


class Visit(NamedTuple):
    """Clicks that belong together."""

    user: str
    start_ms: int
    clicks: int
    pages: int


def clicks(seed: int = 7) -> list[Click]:
    """Twenty users on one day, in the order of arrival."""
    rng = random.Random(seed)
    made = []
    for user in range(20):
        at_ms = MIDNIGHT_MS
        while (at_ms := at_ms + int(rng.expovariate(1 / 300_000))) < MIDNIGHT_MS + 86_400_000:
            made.append(Click(f"user-{user}", f"/{rng.randrange(30)}", at_ms))
    return sorted(made, key=lambda click: click.at_ms + rng.randrange(DISORDER_MS))


def true_visits(all_clicks: list[Click]) -> list[Visit]:
    """The same without streams: sort, and cut at the gaps."""
    visits: list[list[Click]] = []
    for click in sorted(all_clicks, key=lambda click: (click.user, click.at_ms)):
        last = visits[-1][-1] if visits else None
        if last is None or last.user != click.user or click.at_ms - last.at_ms > GAP_MS:
            visits.append([])
        visits[-1].append(click)
    return [Visit(v[0].user, v[0].at_ms, len(v), len({c.page for c in v})) for v in visits]


def main(arguments: list[str]) -> int:
    """Find the visits; return 0 if they are right."""
    arrived = clicks()
    env = Environment(parallelism=2, args=arguments)
    stream = env.from_collection(arrived, name="clicks").assign_timestamps_and_watermarks(
        WatermarkStrategy.bounded(DISORDER_MS, "at_ms"), name="times"
    )
    visits = (
        stream.key_by("user")
        .window(EventTimeSessionWindows(GAP_MS))
        .aggregate(clicks=Count(), pages=CountDistinct("page"), name="visits", uid="visits")
    )
    found = sorted(
        Visit(v.user, int(v.window_start.timestamp() * 1000), v.clicks, v.pages)
        for v in visits.execute_and_collect("sessions")
    )

    longest = max(found, key=lambda visit: visit.clicks)
    print(f"the longest visit: {longest.user}, {longest.clicks} clicks on {longest.pages} pages")
    right = found == sorted(true_visits(arrived))
    verdict = "equal to the truth" if right else "NOT equal to the truth"
    print(f"{len(arrived)} clicks, {len(found)} visits: {verdict}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
