"""Per-record Python chain with PyFlink's DataStream API: map, filter, key_by and reduce over clicks in memory.

Runs in process or in thread execution mode; the harness tries both.
"""

from __future__ import annotations

import python_chain
from pyflink_job import PyFlinkJob, arguments, note_ready


def main() -> None:
    """Run the job once and report."""
    args = arguments(__doc__)
    job = PyFlinkJob(args)
    from pyflink.common import Types
    from pyflink.datastream import MapFunction, RuntimeContext

    class Parse(MapFunction):  # type: ignore[misc]
        """Map; notes when its Python worker was ready."""

        def __init__(self, stamps: str) -> None:
            self._stamps = stamps

        def open(self, runtime_context: RuntimeContext) -> None:
            """Called once in each worker."""
            note_ready(self._stamps)

        def map(self, value: python_chain.Click) -> python_chain.Visit:
            """Called for each record."""
            return python_chain.parse(value)

    click = Types.TUPLE([Types.STRING(), Types.LONG(), Types.STRING(), Types.INT()])
    visit = Types.TUPLE([Types.STRING(), Types.INT(), Types.LONG()])
    source = job.environment.from_collection(list(python_chain.read_clicks(args.data / "json")), click)
    (
        source.map(Parse(job.stamps), visit)
        .filter(python_chain.is_counted)
        .key_by(lambda each: each[0], Types.STRING())
        .reduce(python_chain.add)
        .add_sink(job.discarding_sink())
    )
    job.run(
        "chain",
        lambda told: {"results": told["vertices"][-1]["metrics"]["read-records"]},
        f"{args.execution_mode} mode",
    )


if __name__ == "__main__":
    main()
