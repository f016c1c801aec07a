"""How the fuzzers run: a check takes a `Random` and looks at one case that it makes with it.

In the short run Hypothesis plays the `Random`, so that a failure is shrunk and printed as an example. In the long run
seeds do, so that millions of lines go through; the seed of a failure is printed, and `FUZZ_SEED` runs it alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from random import Random

LONG_SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))


def run_long(check: Callable[[Random], int], least: int) -> None:
    """Run cases with new seeds for `FUZZ_SECONDS`, and until at least so many lines (or keys) were looked at."""
    given = os.environ.get("FUZZ_SEED")
    if given is not None:
        check(Random(int(given)))
        return
    seed, done = 0, 0
    end = time.monotonic() + LONG_SECONDS
    while done < least or time.monotonic() < end:
        try:
            done += check(Random(seed))
        except BaseException as e:
            e.add_note(f"with FUZZ_SEED={seed}")
            raise
        seed += 1
