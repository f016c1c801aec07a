"""One local Spark with four slots for all tests of this folder, and a check that no test leaves anything behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.spark.kit import assert_still_works, in_process
from tidegate import Environment
from tidegate.spark.session import start_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A real Spark session with four slots."""
    session = start_session("local[4]")
    yield session
    session.stop()


@pytest.fixture
def make_env(spark: Any) -> Callable[..., Environment]:
    """Environments on the shared session, without display."""
    return lambda **options: Environment(spark=spark, **{"progress": "off", "parallelism": 2, **options})


@pytest.fixture(params=["in-process", "Spark"])
def surviving_env(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """An environment of either runtime; whatever the test did to it, another on the same Spark works after it."""
    if request.param == "in-process":
        yield in_process()
        return
    make_env = request.getfixturevalue("make_env")
    yield make_env()
    assert_still_works(make_env())


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every thread of a job is gone when its test ends (polled: a thread may need a moment to end)."""
    yield
    deadline = time.monotonic() + 5
    while left := [t.name for t in threading.enumerate() if t.name.startswith("tidegate")]:
        assert time.monotonic() < deadline, f"threads left behind: {left}"
        time.sleep(0.02)
