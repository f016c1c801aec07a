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

from tests.fault.kit import until_completed, until_restarted
from tests.fault.storm import OPTIONS, WITH_EXECUTORS, Storm
from tests.fault.tap import TapSource
from tests.spark.driver import hear, say, session
from tidegate import Environment, FileSink, JobFencedError
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


def idle() -> None:
    """Wait for the arguments of `resumed`, with everything imported: so another driver is not stopped for long."""
    resumed(*hear().split())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    name, *arguments = sys.argv[1:]
    globals()[name](*arguments)
