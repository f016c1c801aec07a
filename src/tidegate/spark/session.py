"""The Spark session of a job: the user's own, the active one, that of spark-submit, or a local one made for a gang."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from tidegate.core.options import DEFAULT_ORIGIN, Options
from tidegate.core.words import number_of

log = logging.getLogger(__name__)

LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
"""For a session on this machine only."""

GANG_SETTINGS = {
    # One stage for the whole job: it would say nothing, in the middle of what we say.
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # A cancelled slot has this long to end by itself before Spark kills its process.
    "spark.python.task.killTimeout": "100ms",
    # Too few slots is noticed in seconds, not in ten minutes.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "10",
}
"""For any session that tidegate starts."""

_QUIET_LOGGING = Path(__file__).with_name("log4j2-quiet.properties")

_lock = threading.Lock()
_own: SparkSession | None = None
_users: weakref.WeakSet[Any] = weakref.WeakSet()
"""Who needs the session that tidegate started: jobs until they have ended, and it itself once a DataFrame is of it."""


class SessionUse:
    """Keeps the session that tidegate started from being replaced, until it is over."""

    def end(self) -> None:
        """Nothing of the user runs there any more."""
        with _lock:
            _users.discard(self)


def obtain_session(given: Any, options: Options, slots_needed: int, use: SessionUse | None = None) -> Any:
    """The session to run on. A local one that tidegate started is replaced when it has too few slots.

    It is not while anybody uses it: a job until its `use` ends, and for good if there is none, as with a DataFrame.
    """
    if given is not None:
        return given
    with _lock:
        active = SparkSession.getActiveSession()
        if active is not None and active is not _own:
            return active
        session = _own_session(options, slots_needed)
        _users.add(use or session)
        return session


def _own_session(options: Options, slots_needed: int) -> SparkSession:
    global _own
    if _own is not None:
        context = _own.sparkContext
        alive = getattr(context, "_jsc", None) is not None
        resizable = (context.master or "").startswith("local[") and not _is_submitted(options)
        if alive and (not resizable or context.defaultParallelism >= slots_needed):
            return _own
        if alive and len(_users):
            log.warning(
                "the local Spark session has %s and the job needs %d; it is not replaced by a larger one, "
                "because a job runs on it or a DataFrame is of it. Set spark_master='local[%d]' where the first "
                "job is started",
                number_of(context.defaultParallelism, "slot"),
                slots_needed,
                slots_needed,
            )
            return _own
        if alive:
            _own.stop()
        _own = None
    if _is_submitted(options):
        _own = _start_submitted_session()
    else:
        _own = start_session(_master(options.spark_master, slots_needed))
    atexit.register(stop_own_session)
    return _own


def _is_submitted(options: Options) -> bool:
    """Whether spark-submit started this process and nobody asked for another master than the one it was given."""
    return "PYSPARK_GATEWAY_PORT" in os.environ and options.origin(Options.spark_master) == DEFAULT_ORIGIN


def _start_submitted_session() -> SparkSession:
    """Start the session with the master, the name and the settings that spark-submit was given; they all win."""
    SparkContext._ensure_initialized()  # else the settings of the JVM that called us are not seen
    submitted = SparkConf()
    builder = SparkSession.builder
    for key, value in GANG_SETTINGS.items():
        if not submitted.contains(key):
            builder = builder.config(key, value)
    return builder.getOrCreate()


def start_session(master: str, **settings: str) -> SparkSession:
    """Start a session with settings that suit a gang; `settings` (dots as double underscores) win over them."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    chosen = dict(GANG_SETTINGS)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen.update(LOCAL_SETTINGS)
        chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_QUIET_LOGGING.as_uri()}"
    chosen.update({key.replace("__", "."): value for key, value in settings.items()})
    builder = SparkSession.builder.appName("tidegate").master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("FATAL" if master.startswith("local[") else "ERROR")
    return session


def hide_progress_bar(given: Any) -> None:
    """Stop the bar that Spark draws in the terminal, for the rest of the session: it would be drawn over ours."""
    session = given or SparkSession.getActiveSession()
    context = getattr(session, "_sc", None)  # None: Spark Connect, whose server has no terminal
    if context is None:
        return
    bar = context._jsc.sc().progressBar()
    if bar.isDefined():
        bar.get().stop()


def stop_own_session() -> None:
    """Stop the session that tidegate started, if there is one."""
    global _own
    with _lock:
        if _own is not None:
            _own.stop()
            _own = None


def _master(master: str, slots_needed: int) -> str:
    """`local[*]` means as many slots as there are cores, and never fewer than the job needs."""
    if re.fullmatch(r"local(\[\*\])?", master):
        return f"local[{max(os.cpu_count() or 1, slots_needed)}]"
    return master
