"""Programs for `Driver`, each in its own process: a storm on a cluster, and a job that outlives its driver."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fault.kit import until, until_completed, until_restarted
from tests.fault.storm import OPTIONS, WITH_EXECUTORS, Storm
from tests.fault.tap import TapSource
from tests.spark.driver import hear, say, session
from tidegate import Environment, FileSink, JobFailedError, JobFencedError
from tidegate.core.failpoints import injected
from tidegate.spark.session import start_session
from tidegate.storage.storage import FencedError


def storm(master: str, directory: str, kills: str, seed: str) -> None:
    """Kill workers and executors on this master."""
    python = {"spark__pyspark__python": os.environ["CLUSTER_PYTHON"]}
    spark = start_session(master, spark__deploy__maxExecutorRetries="-1", **python)
    outcome = Storm(spark, Path(directory), int(seed)).run(int(kills), WITH_EXECUTORS, deadline_s=7000)
    say(
        "survived",
        kills=outcome.processes_killed,
        faults=dict(outcome.faults),
        polls_per_s=outcome.polls_per_s,
        line=outcome.line(),
    )
    spark.stop()


def ticks_and_counts(env: Environment, home: Path) -> Environment:
    """What comes from a tap as it is, and how many there are of each app."""
    ticks = env.from_source(TapSource(home / "tap", 2), uid="tap")
    ticks.sink_to(FileSink(home / "ticks"), uid="ticks")
    ticks.key_by("app").count(uid="count").sink_to(FileSink(home / "counts"), uid="counts")
    return env


def resumed(
    master: str, directory: str, resume: str, checkpoint_dir: str = "", backend: str = "heap"
) -> None:
    """Count what comes from a tap, from the latest checkpoint if there is one; the first lines tell how far it is."""
    home = Path(directory)
    (home / "chk").mkdir(exist_ok=True)  # the operator's: a directory that is not there may not be mounted
    spark = start_session(master)
    options = {
        **OPTIONS,
        "parallelism": 2,
        "checkpoint_dir": checkpoint_dir or str(home / "chk"),
        "state_backend": backend,
        "resume": resume,
    }
    client = ticks_and_counts(Environment(spark=spark, **options), home).execute_async("resumed")
    until_completed(client, 3, 240)
    overview = client.overview()
    say("running", restored=overview.restored_checkpoint, attempt=overview.attempt, job_id=client.job_id)
    order = hear()
    if order == "wait":
        until_fenced(client)
    elif order == "stop":
        with injected("storage.write", StopBeforeManifest()):
            until_fenced(client)
    elif order == "close":
        end = TapSource(home / "tap", 2).close()
        client.result(240)
        say("finished", end=end)
    spark.stop()


def until_fenced(client: Any) -> None:
    """Run until another driver has the job, and tell what the user is told."""
    try:
        client.result(240)
    except JobFencedError as e:
        say("fenced", error=str(e))


class StopBeforeManifest:
    """Stops this process once, between its look at the claims and the manifest that it writes next."""

    def __init__(self) -> None:
        self._has_stopped = False

    def __call__(self) -> None:
        if threading.current_thread().name == "tidegate-storage" and not self._has_stopped:
            self._has_stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)


def beside(master: str, directory: str) -> None:
    """Start from nothing while another driver does the same; wait for the word to begin with all imported."""
    home = Path(directory)
    spark = start_session(master)
    options = {
        **OPTIONS,
        "parallelism": 2,
        "checkpoint_dir": str(home / "chk"),
        "resume": "latest-or-new",
    }
    env = ticks_and_counts(Environment(spark=spark, **options), home)
    say("ready")
    hear()
    try:
        client = env.execute_async("beside")
    except (JobFencedError, FencedError) as e:
        say("started", attempt=-1, job_id="")
        say("fenced", error=str(e))
    else:
        say("started", attempt=client.overview().attempt, job_id=client.job_id)
        try:
            client.result(400)
            say("finished")
        except JobFencedError as e:
            say("fenced", error=str(e))
    spark.stop()


def moved(master: str, directory: str, checkpoint_dir: str, backend: str) -> None:
    """Count what comes from a tap on one machine, and, when that is lost, on another one."""
    home = Path(directory)
    spark = session(master)
    options = {**OPTIONS, "parallelism": 2, "checkpoint_dir": checkpoint_dir, "state_backend": backend}
    client = ticks_and_counts(Environment(spark=spark, **options), home).execute_async("moved")
    until_completed(client, 3, 240)
    say("running", executors=sorted({slot.executor for slot in client.slots()}))
    hear()
    until_restarted(client, deadline_s=240)
    until_completed(client, client.checkpoints().completed + 2, 240)
    executors = sorted({slot.executor for slot in client.slots()})
    say("moved", executors=executors, restored=client.overview().restored_checkpoint)
    hear()
    end = TapSource(home / "tap", 2).close()
    client.result(240)
    say("finished", end=end)
    spark.stop()


def on_hosts(master: str, directory: str, address: str, resume: str) -> None:
    """Count what comes from a tap on hosts of their own, and say what the job says of each fault."""
    home = Path(directory)
    (home / "chk").mkdir(exist_ok=True)
    spark = start_session(
        master,
        spark__driver__host=address,
        spark__driver__bindAddress=address,
        spark__pyspark__python=os.environ["CLUSTER_PYTHON"],
        spark__ui__enabled="false",
        spark__executor__memory="512m",
        # A slot on each of two hosts, and as much is left for another driver.
        spark__executor__cores="1",
        spark__cores__max="2",
        spark__network__timeout="20s",
        spark__network__timeoutInterval="5s",
        spark__executor__heartbeatInterval="2s",
    )
    options = {
        **OPTIONS,
        "parallelism": 2,
        "checkpoint_dir": str(home / "chk"),
        "resume": resume,
        "heartbeat_timeout": "4 s",
        "link_timeout": "3 s",
        "control_port": "40000-40010",
        "data_ports": "40100-40110",
        "slots_wait_timeout": "4 min",
    }
    client = ticks_and_counts(Environment(spark=spark, **options), home).execute_async("hosts")
    until_completed(client, 3, 240)
    slots = client.slots()
    hosts, ports = [slot.host for slot in slots], [slot.port for slot in slots]
    say("running", hosts=hosts, ports=ports, attempt=client.overview().attempt)
    while (order := hear()) != "close":
        if order == "end":
            try:
                client.result(240)
            except JobFailedError as e:
                say("failed", error=str(e))
            spark.stop()
            return
        attempt = int(order)

        def failed(attempt: int = attempt) -> bool:
            last = client.overview().last_error_attempt
            return last is not None and last >= attempt

        until(client, failed, f"attempt {attempt} fails", 120)
        say("failed", error=client.overview().last_error)
        hear()
        until_completed(client, client.checkpoints().completed + 3, 240)
        say("recovered", attempt=client.overview().attempt)
    end = TapSource(home / "tap", 2).close()
    client.result(240)
    say("finished", end=end)
    spark.stop()


def idle() -> None:
    """Wait for the arguments of `resumed`, with everything imported: so another driver is not stopped for long."""
    resumed(*hear().split())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    name, *arguments = sys.argv[1:]
    globals()[name](*arguments)
