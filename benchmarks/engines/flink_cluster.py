"""A Flink mini cluster inside this process's JVM that outlives its jobs, so that their times can be queried.

Every Flink and PyFlink runner uses it: start-up ends when the cluster and the job's vertices are running.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import protocol

HEAP = "2g"
MANAGED_MEMORY = "256m"
NETWORK_MEMORY = "128m"


class FlinkCluster:
    """One task manager with `slots` slots, reachable through the REST interface of the mini cluster."""

    def __init__(self, slots: int, options: dict[str, str] | None = None) -> None:
        os.environ.setdefault("JVM_ARGS", f"-Xmx{HEAP}")
        from pyflink.java_gateway import get_gateway

        self.jvm = get_gateway().jvm
        self.options = {
            "rest.bind-port": "0",
            "taskmanager.memory.managed.size": MANAGED_MEMORY,
            "taskmanager.memory.network.min": NETWORK_MEMORY,
            "taskmanager.memory.network.max": NETWORK_MEMORY,
            "execution.attached": "true",
            "pipeline.object-reuse": "true",
            "parallelism.default": str(slots),
            "python.executable": sys.executable,
            "python.client.executable": sys.executable,
            **(options or {}),
        }
        flink = self.jvm.org.apache.flink
        self.configuration = flink.configuration.Configuration()
        for key, value in self.options.items():
            self.configuration.setString(key, value)
        builder = flink.runtime.minicluster.MiniClusterConfiguration.Builder()
        builder.setConfiguration(self.configuration).setNumTaskManagers(1).setNumSlotsPerTaskManager(slots)
        self.mini_cluster = flink.runtime.minicluster.MiniCluster(builder.build())
        self.mini_cluster.start()
        address = self.mini_cluster.getRestAddress().get()
        self.configuration.setString("execution.target", "remote")
        self.configuration.setString("rest.address", "localhost")
        self.configuration.setString("rest.port", str(address.getPort()))
        self.options |= {
            "execution.target": "remote",
            "rest.address": "localhost",
            "rest.port": str(address.getPort()),
        }
        self._rest = f"http://localhost:{address.getPort()}"

    def get(self, path: str) -> Any:
        """The JSON answer of one REST path."""
        with urllib.request.urlopen(self._rest + path, timeout=10) as answer:
            return json.load(answer)

    def finished_job(self) -> dict[str, Any]:
        """The job that ran last, when it has finished and its final metrics have arrived."""
        (job_id,) = [job["id"] for job in self.get("/jobs")["jobs"]]
        for _ in range(50):
            job: dict[str, Any] = self.get(f"/jobs/{job_id}")
            if all(vertex["metrics"]["write-records-complete"] for vertex in job["vertices"]):
                break
            time.sleep(0.1)
        if job["state"] != "FINISHED":
            raise RuntimeError(f"Flink job {job_id} is {job['state']}, not FINISHED")
        return job

    def source_running_ns(self, job: dict[str, Any]) -> int:
        """When the first subtask of the source was running: no record is read before."""
        times = self.get(f"/jobs/{job['jid']}/vertices/{job['vertices'][0]['id']}/subtasktimes")
        running = [subtask["timestamps"]["RUNNING"] for subtask in times["subtasks"]]
        return int(min(running)) * 1_000_000

    def checkpoint_figures(self, job: dict[str, Any]) -> dict[str, float]:
        """How many checkpoints of the job were completed, and the longest of them."""
        told = self.get(f"/jobs/{job['jid']}/checkpoints")
        if not told["counts"]["completed"]:
            return {}
        longest_ms = told["summary"]["end_to_end_duration"]["max"]
        return {"checkpoints": told["counts"]["completed"], "longest_checkpoint_ms": longest_ms}

    def close(self) -> None:
        """Stop the cluster."""
        self.mini_cluster.close()


def checkpoint_options(interval_s: float, directory: str) -> dict[str, str]:
    """Exactly-once checkpoints to files; none if the interval is 0."""
    if not interval_s:
        return {}
    return {
        "execution.checkpointing.interval": f"{round(interval_s * 1000)} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": Path(directory).as_uri(),
        # Else the job runs until the next checkpoint is due, up to an interval after its last result.
        "execution.checkpointing.checkpoints-after-tasks-finish": "false",
    }


def table_environment(cluster: FlinkCluster, options: dict[str, str]) -> Any:
    """A table environment in streaming mode that runs its statements on the cluster."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    for key, value in (cluster.options | options).items():
        configuration.set_string(key, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration)
    return TableEnvironment.create(settings.build())


class Inserted(NamedTuple):
    """The times and results of an INSERT that has finished."""

    job: dict[str, Any]
    first_ns: int
    seconds: float
    cpu_s: float

    @property
    def read_records(self) -> int:
        """How many records the source emitted."""
        read: int = self.job["vertices"][0]["metrics"]["read-records"]
        return read


def timed_insert(cluster: FlinkCluster, table: Any, statement: str) -> Inserted:
    """Run the statement, the first one of this cluster, and take its times."""
    ready_cpu_s = protocol.tree_cpu_s()
    table.execute_sql(statement).wait()
    ended_ns = time.time_ns()
    cpu_s = protocol.tree_cpu_s() - ready_cpu_s
    job = cluster.finished_job()
    first_ns = cluster.source_running_ns(job)
    return Inserted(job, first_ns, (ended_ns - first_ns) / 1e9, cpu_s)


def report_insert(
    cluster: FlinkCluster, inserted: Inserted, records: int, check: dict[str, Any], **more: Any
) -> None:
    """Report what `timed_insert` has measured; `more` are further fields of the report."""
    from pyflink.version import __version__

    protocol.report(
        version=__version__,
        records=records,
        seconds=inserted.seconds,
        startup_s=protocol.seconds_since_start(inserted.first_ns),
        cpu_s=inserted.cpu_s,
        check={"records": inserted.read_records, **check},
        extra=cluster.checkpoint_figures(inserted.job),
        **more,
    )


def jar_urls() -> str:
    """The extra jars of this environment, as `pipeline.jars` wants them."""
    jars = sorted((Path(sys.prefix) / "jars").glob("*.jar"))
    return ";".join(jar.as_uri() for jar in jars)
