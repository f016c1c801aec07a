"""Per-record Python chain with PyFlink's DataStream API: map, filter, key_by and reduce over clicks in memory.

Runs in process or in thread execution mode; the harness tries both and keeps the faster.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
import time
from pathlib import Path

import protocol
import python_chain
from flink_cluster import FlinkCluster


def main() -> None:
    """Run the job once and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--execution-mode", choices=["process", "thread"], default="process")
    args = parser.parse_args()
    # The worker processes need the chain's functions, the embedded interpreter of thread mode also the libraries.
    paths = [str(Path(__file__).resolve().parent), sysconfig.get_path("purelib")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    stamps = tempfile.TemporaryDirectory()
    cluster = FlinkCluster(
        args.parallelism,
        {"python.execution-mode": args.execution_mode, "python.fn-execution.bundle.size": "10000"},
    )
    from pyflink.common import Types
    from pyflink.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment
    from pyflink.datastream.functions import SinkFunction
    from pyflink.version import __version__

    class Parse(MapFunction):  # type: ignore[misc]
        """Map; notes when its Python worker was ready for the first record, which may be seconds after the job."""

        def __init__(self, directory: str) -> None:
            self._directory = directory

        def open(self, runtime_context: RuntimeContext) -> None:
            """Called once in each worker."""
            (Path(self._directory) / str(time.time_ns())).touch()

        def map(self, value: python_chain.Click) -> python_chain.Visit:
            """Called for each record."""
            return python_chain.parse(value)

    java_environment = cluster.jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
    environment = StreamExecutionEnvironment(java_environment(cluster.configuration))
    click = Types.TUPLE([Types.STRING(), Types.LONG(), Types.STRING(), Types.INT()])
    visit = Types.TUPLE([Types.STRING(), Types.INT(), Types.LONG()])
    source = environment.from_collection(list(python_chain.read_clicks(args.data / "json")), click)
    discarding = cluster.jvm.org.apache.flink.streaming.api.functions.sink.legacy.DiscardingSink()
    (
        source.map(Parse(stamps.name), visit)
        .filter(python_chain.is_counted)
        .key_by(lambda each: each[0], Types.STRING())
        .reduce(python_chain.add)
        .add_sink(SinkFunction(discarding))
    )
    ready_cpu_s = protocol.tree_cpu_s()
    environment.execute("chain")
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
        setting=f"{args.execution_mode} mode",
    )
    cluster.close()


if __name__ == "__main__":
    main()
