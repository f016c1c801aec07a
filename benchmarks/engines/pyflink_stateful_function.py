"""A stateful function per record with PyFlink: a KeyedProcessFunction with a ValueState, over visits in memory.

Its Python workers cache the state of recent keys; the cache has room for all of them, which is PyFlink's best.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import stateful_function
from pyflink_job import PyFlinkJob, arguments, note_ready
from stateful_function import STEP_MS, USERS, Step, Visit


def main() -> None:
    """Run the job once and report."""
    args = arguments(__doc__)
    job = PyFlinkJob(args, {"python.state.cache-size": str(2 * USERS)})
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction, RuntimeContext
    from pyflink.datastream.state import ValueStateDescriptor

    class TimeSpent(KeyedProcessFunction):  # type: ignore[misc]
        """Adds up a user's visits and emits a result each time another step is full."""

        def __init__(self, stamps: str) -> None:
            self._stamps = stamps

        def open(self, runtime_context: RuntimeContext) -> None:
            """Called once in each worker; notes when it was ready for the first record."""
            self._spent = runtime_context.get_state(ValueStateDescriptor("spent", Types.LONG()))
            note_ready(self._stamps)

        def process_element(self, value: Visit, ctx: Any) -> Iterator[Step]:
            """Called for each record."""
            user, duration_ms = value
            before = self._spent.value() or 0
            after = before + duration_ms
            self._spent.update(after)
            if after // STEP_MS > before // STEP_MS:
                yield user, after // STEP_MS

    visit = Types.TUPLE([Types.STRING(), Types.LONG()])
    source = job.environment.from_collection(list(stateful_function.read_visits(args.data / "json")), visit)
    # The sink is a separate vertex, so that Flink counts its input: the results.
    (
        source.key_by(lambda each: each[0], Types.STRING())
        .process(TimeSpent(job.stamps), visit)
        .add_sink(job.discarding_sink())
        .disable_chaining()
    )
    job.run(
        "stateful function",
        lambda told: {"results": told["vertices"][-1]["metrics"]["read-records"]},
        f"{args.execution_mode} mode, heap backend",
    )


if __name__ == "__main__":
    main()
