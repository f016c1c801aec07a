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
"""Settings of a local session."""

GANG_SETTINGS = {
    # The job is one stage, so Spark's bar would show nothing, and in the middle of our output.
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # How long a cancelled slot may take to end before Spark kills its process.
    "spark.python.task.killTimeout": "100ms",
    # Spark notices too few slots in seconds instead of ten minutes.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "10",
}
"""Settings of every session that tidegate starts."""

_QUIET_LOGGING = Path(__file__).with_name("log4j2-quiet.properties")

_lock = threading.Lock()
_own: SparkSession | None = None
_users: weakref.WeakSet[Any] = weakref.WeakSet()
"""Users of the session that tidegate started: running jobs, and the session itself once it has made a DataFrame."""


class SessionUse:
    """Keeps the session that tidegate started from being replaced until `end`."""

    def end(self) -> None:
        with _lock:
            _users.discard(self)


def obtain_session(given: Any, options: Options, slots_needed: int, use: SessionUse | None = None) -> Any:
    """The session to run on. A local session that tidegate started is replaced if it has too few slots.

    It is not replaced while it is in use: by a job until its `use` ends, or, without a `use` (a DataFrame), for good.
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
    """Whether spark-submit started this process and the options name no other master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ and options.origin(Options.spark_master) == DEFAULT_ORIGIN


def _start_submitted_session() -> SparkSession:
    """Start the session with the master, the name and the settings of spark-submit; they override ours."""
    SparkContext._ensure_initialized()  # loads the settings of the JVM that started us
    submitted = SparkConf()
    builder = SparkSession.builder
    for key, value in GANG_SETTINGS.items():
        if not submitted.contains(key):
            builder = builder.config(key, value)
    return builder.getOrCreate()


def start_session(master: str, **settings: str) -> SparkSession:
    """Start a session with settings that suit a gang; `settings` (dots as double underscores) override them."""
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
    """Stop Spark's progress bar in the terminal for the rest of the session: it would overwrite ours."""
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
    """Make `local[*]` as many slots as there are cores, and at least as many as the job needs."""
    if re.fullmatch(r"local(\[\*\])?", master):
        return f"local[{max(os.cpu_count() or 1, slots_needed)}]"
    return master
