"""What the PyFlink runners share: arguments, the cluster, the clock that starts when a Python worker is ready."""

from __future__ import annotations

import argparse
import os
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import protocol
from flink_cluster import FlinkCluster


def arguments(description: str | None) -> argparse.Namespace:
    """Those of every runner, and the execution mode: the harness tries both."""
    parser = protocol.arguments(description)
    parser.add_argument("--execution-mode", choices=["process", "thread"], default="process")
    return parser.parse_args()


class PyFlinkJob:
    """A cluster for one job of the DataStream API, in the execution mode that was asked for."""

    def __init__(self, args: argparse.Namespace, options: dict[str, str] | None = None) -> None:
        # The worker processes need the workloads' modules, the embedded interpreter of thread mode also the libraries.
        paths = [str(Path(__file__).resolve().parent), sysconfig.get_path("purelib")]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        self._args = args
        self._stamps = tempfile.TemporaryDirectory()
        self.stamps = self._stamps.name
        """A directory for `note_ready`, by name: functions that are sent to workers can hold it."""
        settings = {
            "python.execution-mode": args.execution_mode,
            "python.fn-execution.bundle.size": "10000",
            **(options or {}),
        }
        self.cluster = FlinkCluster(args.parallelism, settings)
        from pyflink.datastream import StreamExecutionEnvironment

        jvm = self.cluster.jvm.org.apache.flink.streaming.api
        self.environment = StreamExecutionEnvironment(
            jvm.environment.StreamExecutionEnvironment(self.cluster.configuration)
        )

    def discarding_sink(self) -> Any:
        """A sink on the JVM that does nothing."""
        from pyflink.datastream.functions import SinkFunction

        return SinkFunction(
            self.cluster.jvm.org.apache.flink.streaming.api.functions.sink.legacy.DiscardingSink()
        )

    def run(self, name: str, check: Callable[[dict[str, Any]], dict[str, Any]], setting: str) -> None:
        """Run the job once and report; `check` is made of what Flink says about the job that has finished."""
        from pyflink.version import __version__

        ready_cpu_s = protocol.tree_cpu_s()
        self.environment.execute(name)
        ended_ns = time.time_ns()
        cpu_s = protocol.tree_cpu_s() - ready_cpu_s
        job = self.cluster.finished_job()
        first_ns = min(int(stamp.name) for stamp in Path(self.stamps).iterdir())
        protocol.report(
            version=__version__,
            records=self._args.records,
            seconds=(ended_ns - first_ns) / 1e9,
            startup_s=protocol.seconds_since_start(first_ns),
            cpu_s=cpu_s,
            check=check(job),
            setting=setting,
            extra=self.cluster.checkpoint_figures(job),
        )
        self.cluster.close()


def note_ready(stamps: str) -> None:
    """Called in a worker's `open`, which may be seconds after the job's start: its first record may come."""
    (Path(stamps) / str(time.time_ns())).touch()
