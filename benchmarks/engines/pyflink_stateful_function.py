"""A stateful function per record with PyFlink: a KeyedProcessFunction with a ValueState, over visits in memory.

Its Python workers keep the state of recent keys; they are given room for all of them, which is PyFlink's best.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import protocol
import stateful_function
from flink_cluster import FlinkCluster
from stateful_function import STEP_MS, USERS, Step, Visit


def main() -> None:
    """Run the job once and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--execution-mode", choices=["process", "thread"], default="process")
    args = parser.parse_args()
    # The worker processes need the workload's module, the embedded interpreter of thread mode also the libraries.
    paths = [str(Path(__file__).resolve().parent), sysconfig.get_path("purelib")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    stamps = tempfile.TemporaryDirectory()
    cluster = FlinkCluster(
        args.parallelism,
        {
            "python.execution-mode": args.execution_mode,
            "python.fn-execution.bundle.size": "10000",
            "python.state.cache-size": str(2 * USERS),
        },
    )
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
    from pyflink.datastream.functions import SinkFunction
    from pyflink.datastream.state import ValueStateDescriptor
    from pyflink.version import __version__

    class TimeSpent(KeyedProcessFunction):  # type: ignore[misc]
        """Adds up a user's visits and tells each time that another step is full."""

        def __init__(self, directory: str) -> None:
            self._directory = directory

        def open(self, runtime_context: RuntimeContext) -> None:
            """Called once in each worker; notes when it was ready for the first record."""
            self._spent = runtime_context.get_state(ValueStateDescriptor("spent", Types.LONG()))
            (Path(self._directory) / str(time.time_ns())).touch()

        def process_element(self, value: Visit, ctx: Any) -> Iterator[Step]:
            """Called for each record."""
            user, duration_ms = value
            before = self._spent.value() or 0
            after = before + duration_ms
            self._spent.update(after)
            if after // STEP_MS > before // STEP_MS:
                yield user, after // STEP_MS

    java_environment = cluster.jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
    environment = StreamExecutionEnvironment(java_environment(cluster.configuration))
    visit = Types.TUPLE([Types.STRING(), Types.LONG()])
    source = environment.from_collection(list(stateful_function.read_visits(args.data / "json")), visit)
    discarding = cluster.jvm.org.apache.flink.streaming.api.functions.sink.legacy.DiscardingSink()
    # The sink is a vertex of its own, so that Flink counts what it gets: the results.
    (
        source.key_by(lambda each: each[0], Types.STRING())
        .process(TimeSpent(stamps.name), visit)
        .add_sink(SinkFunction(discarding))
        .disable_chaining()
    )
    ready_cpu_s = protocol.tree_cpu_s()
    environment.execute("stateful function")
    ended_ns = time.time_ns()
    cpu_s = protocol.tree_cpu_s() - ready_cpu_s
    job = cluster.finished_job()
    first_ns = min(int(stamp.name) for stamp in Path(stamps.name).iterdir())
    protocol.report(
        version=__version__,
        records=args.records,
        seconds=(ended_ns - first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(first_ns),
        cpu_s=cpu_s,
        check={"results": job["vertices"][-1]["metrics"]["read-records"]},
        setting=f"{args.execution_mode} mode, heap backend",
    )
    cluster.close()


if __name__ == "__main__":
    main()
