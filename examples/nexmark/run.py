"""Runs queries of Nexmark on Spark, and compares their results with DuckDB's.

    python examples/nexmark/run.py q5                     # one query over 100,000 events
    python examples/nexmark/run.py q4 q9 --events 1000000 --check
    python examples/nexmark/run.py all --check --parallelism 2 [any tidegate option]

`--check` needs DuckDB (`pip install duckdb`). The exit code is 1 if a result differs from DuckDB's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # so that the script also runs from elsewhere

from generator import Nexmark
from queries import QUERIES, Streams

from tidegate import Environment


def main(arguments: list[str]) -> int:
    """Run the chosen queries; returns the exit code."""
    parser = argparse.ArgumentParser(description="Queries of Nexmark as tidegate programs.")
    parser.add_argument("queries", nargs="+", metavar="QUERY", help=f"{', '.join(QUERIES)}, or all")
    parser.add_argument("--events", type=int, default=100_000, help="persons, auctions and bids together")
    parser.add_argument("--per-second", type=int, default=100, help="events in a second of event time")
    parser.add_argument("--check", action="store_true", help="compare with DuckDB")
    chosen, options = parser.parse_known_args(arguments)
    names = sorted(QUERIES, key=lambda name: int(name[1:])) if "all" in chosen.queries else chosen.queries
    unknown = [name for name in names if name not in QUERIES]
    if unknown:
        parser.error(f"there is no query {', '.join(unknown)}; there are {', '.join(QUERIES)}")
    nexmark = Nexmark(chosen.events, chosen.per_second)
    wrong = 0
    for name in names:
        query = QUERIES[name]
        env = Environment(args=options)
        start = time.monotonic()
        found = query.result(list(query.build(Streams(env, nexmark)).execute_and_collect(name)))
        line = f"{name}, {query.title}: {len(found):,} rows in {time.monotonic() - start:.1f} s"
        if chosen.check:
            missing, excess = _differences(name, found, nexmark)
            wrong += bool(missing or excess)
            line += (
                f"; NOT DuckDB's: {missing} missing, {excess} in excess"
                if missing or excess
                else "; equal to DuckDB's"
            )
        print(line)
    return 1 if wrong else 0


def _differences(name: str, found: list[tuple[object, ...]], nexmark: Nexmark) -> tuple[int, int]:
    """How many rows are missing, and how many are too many."""
    from oracle import comparable, expected

    rows, right = (
        Counter(map(repr, comparable(found))),
        Counter(map(repr, comparable(expected(name, nexmark)))),
    )
    return (right - rows).total(), (rows - right).total()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
