"""A gang of slots: one Spark job whose only stage is a barrier stage; each of its tasks is a slot.

Spark gang-schedules the tasks (all or none) and supervises their processes. It never retries the stage, because a
failed barrier result stage is final. The JobManager decides what happens next.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import InheritableThread

from tidegate.core.errors import ConfigurationError, SlotsUnavailableError
from tidegate.core.ids import SlotId
from tidegate.core.options import Options
from tidegate.core.words import number_of
from tidegate.jobmanager.events import GangEnded
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.protocol.ports import is_loopback, listen
from tidegate.protocol.tls import identity_for
from tidegate.spark.artifacts import ship_package
from tidegate.spark.errors import explain_end
from tidegate.spark.session import SessionUse

log = logging.getLogger(__name__)

_CLOSE_S = 10.0
_SWITCH_S = 0.0005
"""How long a slot's upload thread may hold the GIL while the mailbox thread waits; Python's 5 ms would delay every
record that arrives during a checkpoint."""


class SparkGang:
    """The `GangHost` of Spark: counts slots, starts a gang, cancels it; one gang after the other.

    If Spark does not end a gang in time, it may outlive the start of the next one; its attempt number fences it.
    """

    def __init__(self, spark: Any, options: Options, use: SessionUse | None = None) -> None:
        self._spark = spark
        self._use = use
        self._options = options
        self._tag = ""
        self._thread: threading.Thread | None = None
        self._earlier: list[threading.Thread] = []
        self._cancelled = threading.Event()
        self._is_over = threading.Event()
        self._tags: set[str] = set()

    @property
    def is_connect(self) -> bool:
        """Whether the session is a Spark Connect client (no access to the scheduler from here)."""
        return not hasattr(self._spark, "_jsparkSession")

    def count_slots(self) -> int | None:
        """How many tasks the present executors can run at the same time; None: unknown."""
        if self.is_connect:
            return None
        scala_context = self._spark.sparkContext._jsc.sc()
        profile = scala_context.resourceProfileManager().defaultResourceProfile()
        return int(scala_context.maxNumConcurrentTasks(profile))

    def count_busy_slots(self) -> tuple[int, int]:
        """How many tasks outside the gang run now, and how many of them belong to earlier attempts of this job.

        Asks the scheduler itself, because Spark's status store lags by the length of its event queue.
        """
        pools = [self._spark.sparkContext._jsc.sc().taskScheduler().rootPool()]
        busy = own = 0
        while pools:
            for entry in pools.pop().schedulableQueue().toArray():
                if entry.schedulableQueue() is not None:
                    pools.append(entry)
                    continue
                tag = _tag_of(entry.taskSet().properties())
                if tag != self._tag or self._is_over.is_set():
                    busy += entry.runningTasks()
                    own += entry.runningTasks() if tag in self._tags else 0
        return busy, own

    def check_start(self, slots_needed: int) -> None:
        """Raise if the job would surely fail: the control port is not available, or a local master has too few slots.

        Called before the job is claimed. A cluster may offer slots later, when another driver of the job has ended.
        """
        options = self._options
        host, _ = self.control_host()
        identity_for(options, "", host)
        listen(host, options.control_port, "network.control_port").close()
        if not self.is_connect and re.fullmatch(r"local(\[[^]]*\])?", self._spark.sparkContext.master):
            slots = self.count_slots()
            if slots is not None and slots < slots_needed:
                raise SlotsUnavailableError(
                    f"the job needs {number_of(slots_needed, 'slot')}, and the master "
                    f"{self._spark.sparkContext.master} will never have more than {slots}. Start Spark with "
                    f"local[{slots_needed}], or set parallelism={slots}. A driver that already runs the job continues"
                )

    def control_host(self) -> tuple[str, str]:
        """The address at which the JobManager listens, and the name under which executors reach it.

        Raises `ConfigurationError` if they cannot reach the address.
        """
        bind = self._options.bind_host
        is_everywhere = bind in ("0.0.0.0", "::")
        if self.is_connect:
            server = self._spark.client.host
            if not is_everywhere and is_loopback(bind or "127.0.0.1") and not is_loopback(server):
                raise ConfigurationError(
                    f"network.bind_host is {bind!r}, so the control port would be on this machine's loopback address, "
                    f"which the executors of the Spark Connect server {server} cannot reach. Set network.bind_host to "
                    f"an address of this machine that they reach, or to 0.0.0.0."
                )
            return bind or "127.0.0.1", socket.gethostname() if is_everywhere else bind or "127.0.0.1"
        context = self._spark.sparkContext
        if context.master.startswith("local"):
            return bind or "127.0.0.1", "localhost" if is_everywhere else bind or "127.0.0.1"
        configuration = context.getConf()
        host = configuration.get("spark.driver.host", "127.0.0.1")
        if not bind or is_everywhere:
            return bind or configuration.get("spark.driver.bindAddress", host), host
        if is_loopback(bind) and not is_loopback(host):
            raise ConfigurationError(
                f"network.bind_host is {bind!r}, a loopback address, which the executors of the master "
                f"{context.master} cannot reach from other hosts. Leave it out (then the control port is at "
                f"spark.driver.host, {host}), or set it to an address of the driver that they reach, or to 0.0.0.0."
            )
        return bind, bind

    def start(self, slots: int, bootstrap: SlotBootstrap, on_end: Callable[[GangEnded], None]) -> None:
        """Submit the Spark job from a new thread and return; that thread calls `on_end`."""
        self._tag = f"tidegate-{bootstrap.job_id}-{bootstrap.attempt}"
        self._tags.add(self._tag)
        log.info(
            "asking Spark for %s for job %r (%s)", number_of(slots, "slot"), bootstrap.job_name, self._tag
        )
        ship_package(self._spark)
        if self._thread is not None and self._thread.is_alive():
            self._earlier.append(self._thread)
        self._cancelled, self._is_over = threading.Event(), threading.Event()
        run = functools.partial(
            self._run, slots, bootstrap, on_end, self._tag, self._cancelled, self._is_over
        )
        self._thread = InheritableThread(target=run, session=self._spark, name="tidegate-gang", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Ask Spark to kill the rest of the gang; returns immediately and is idempotent."""
        self._cancelled.set()
        self._is_over.set()
        if self._tag:
            try:
                # A classic session finds only tags that the calling thread has set; the context finds them all.
                if self.is_connect:
                    self._spark.interruptTag(self._tag)
                else:
                    self._spark.sparkContext.cancelJobsWithTag(self._tag)
            except Exception as e:  # noqa: BLE001 -- the gang still ends when the JobManager cancels its slots
                log.warning("Spark could not be asked to cancel %s: %s", self._tag, e)

    def close(self) -> None:
        """Wait for the thread of an ended gang; cancel again if Spark had not yet started it the first time."""
        try:
            self._wait()
        finally:
            if self._use is not None:
                self._use.end()

    def _wait(self) -> None:
        if self._thread is None or self._thread is threading.current_thread():
            return
        deadline = time.monotonic() + _CLOSE_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(timeout=0.25)
            if self._cancelled.is_set() and self._thread.is_alive():
                self.cancel()
        for thread in self._earlier:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(
        self,
        slots: int,
        bootstrap: SlotBootstrap,
        on_end: Callable[[GangEnded], None],
        tag: str,
        cancelled: threading.Event,
        is_over: threading.Event,
    ) -> None:
        end = GangEnded(None)
        try:
            if self.is_connect:
                self._spark.addTag(tag)
            else:
                self._spark.sparkContext.addJobTag(tag)
                self._spark.sparkContext.setJobGroup(tag, f"tidegate {bootstrap.job_name}")
                use_python_of_driver(self._spark.sparkContext)
            slot_main = functools.partial(_slot_main, bootstrap.encode())
            frame = self._spark.range(0, slots, 1, slots).mapInArrow(slot_main, "slot long", barrier=True)
            if not cancelled.is_set():
                frame.collect()
        except BaseException as e:  # noqa: BLE001 -- on_end gets it
            end = explain_end(e)
        is_over.set()
        on_end(end)


def _slot_main(bootstrap: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of a Spark task: runs a slot until the job ends."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    sys.setswitchinterval(_SWITCH_S)
    from pyspark import BarrierTaskContext

    from tidegate.taskmanager.mailbox import run_slot

    for _ in batches:
        pass
    context = BarrierTaskContext.get()
    slot = SlotId(context.partitionId())
    # Python workers do not know the id of their executor; its address serves as well.
    address = context.getTaskInfos()[slot].address
    run_slot(SlotBootstrap.decode(bootstrap), slot, address, own_process=True)
    yield pa.RecordBatch.from_pydict({"slot": pa.array([slot], pa.int64())})


def use_python_of_driver(context: Any) -> None:
    """Let a local master run its tasks with the driver's Python, unless the user chose another.

    PySpark would take the `python3` of the PATH, which may lack tidegate.
    """
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if context.master.startswith("local") and not chosen:
        context.pythonExec = sys.executable


def _tag_of(properties: Any) -> str | None:
    """The tag of the gang that a Spark job with these local properties belongs to, if any."""
    return None if properties is None else properties.get("spark.jobGroup.id")
