"""One local Spark with four slots for all tests of this folder, slots without a JVM for those that show nothing about
Spark, and a check that no test leaves anything behind.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.slots import SlotServer, make_gang
from tests.spark.kit import assert_still_works, in_process
from tidegate import Environment
from tidegate.spark.session import start_session

MAKERS = {"processes": "make_process_env", "Spark": "make_spark_env"}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A real Spark session with four slots."""
    session = start_session("local[4]")
    yield session
    session.stop()


@pytest.fixture
def make_spark_env(spark: Any) -> Callable[..., Environment]:
    """Environments on the shared session, without display."""
    return lambda **options: Environment(spark=spark, **{"progress": "off", "parallelism": 2, **options})


@pytest.fixture
def make_env(make_spark_env: Callable[..., Environment]) -> Callable[..., Environment]:
    """Where the tests of a file run; a file whose tests show nothing about Spark takes `make_process_env` instead."""
    return make_spark_env


@pytest.fixture(scope="session")
def slot_server() -> Iterator[SlotServer]:
    """Forks slots in the place of Spark."""
    server = SlotServer()
    yield server
    server.close()


@pytest.fixture
def make_process_env(slot_server: SlotServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Environment]:
    """As `make_spark_env`, without a JVM: threads, sockets and a process per slot are real, Spark has no part in it."""
    from tidegate.spark import gang

    monkeypatch.setattr(gang, "SparkGang", functools.partial(make_gang, gang.SparkGang))
    return lambda **options: Environment(
        spark=slot_server,  # type: ignore[arg-type]
        **{"progress": "off", "parallelism": 2, **options},
    )


@pytest.fixture
def env_of(request: pytest.FixtureRequest) -> Callable[..., Environment]:
    """Environments by the name of their runtime, which is one of `RUNTIMES` or "Spark"."""

    def make(runtime: str, **options: Any) -> Environment:
        if runtime.startswith("in-process"):
            return in_process(int(runtime[-1]), **options)
        made: Environment = request.getfixturevalue(MAKERS[runtime])(**options)
        return made

    return make


@pytest.fixture(params=["in-process, seed 0", "processes"])
def surviving_env(
    request: pytest.FixtureRequest, env_of: Callable[..., Environment]
) -> Iterator[Environment]:
    """An environment of any runtime; whatever the test did to it, another of the same kind works after it."""
    yield env_of(request.param)
    assert_still_works(env_of(request.param))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every thread of a job is gone when its test ends (polled: a thread may need a moment to end)."""
    yield
    deadline = time.monotonic() + 5
    while left := [t.name for t in threading.enumerate() if t.name.startswith("tidegate")]:
        assert time.monotonic() < deadline, f"threads left behind: {left}"
        time.sleep(0.02)
