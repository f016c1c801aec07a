"""The local Spark session that tidegate starts: replaced by a larger one, but never under a job that runs on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.core.options import Options
from tidegate.spark import session as sessions
from tidegate.spark.session import SessionUse, obtain_session


class FakeContext:
    _jsc: Any = object()

    def __init__(self, master: str) -> None:
        self.master = master
        self.defaultParallelism = int(re.sub(r"\D", "", master))


class FakeSession:
    """What the module asks of a session."""

    def __init__(self, master: str) -> None:
        self.sparkContext = FakeContext(master)
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def no_session_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sessions, "start_session", FakeSession)
    monkeypatch.setattr(sessions.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(sessions.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(sessions.atexit, "register", lambda function: None)
    monkeypatch.setattr(sessions, "_own", None)
    yield
    sessions._users.clear()


def test_a_session_with_too_few_slots_is_replaced_once_its_job_has_ended() -> None:
    first, second = SessionUse(), SessionUse()
    small = obtain_session(None, Options(), 1, first)
    first.end()
    large = obtain_session(None, Options(), 4, second)
    assert small.stopped
    assert large.sparkContext.master == "local[4]"


def test_a_session_that_a_job_runs_on_is_not_stopped_for_a_larger_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = SessionUse(), SessionUse()
    small = obtain_session(None, Options(), 1, first)
    assert obtain_session(None, Options(), 4, second) is small
    assert not small.stopped
    assert "has 2 slots and the job needs 4" in caplog.text
    first.end()
    second.end()
    assert obtain_session(None, Options(), 4, SessionUse()) is not small


def test_a_session_that_a_dataframe_is_of_is_not_stopped_for_a_larger_job() -> None:
    of_dataframe = obtain_session(None, Options(), 1)
    assert obtain_session(None, Options(), 4, SessionUse()) is of_dataframe
    assert not of_dataframe.stopped


def test_a_job_that_vanished_without_an_end_does_not_keep_the_session() -> None:
    small = obtain_session(None, Options(), 1, SessionUse())
    assert obtain_session(None, Options(), 4, SessionUse()) is not small


class FakeBar:
    stopped = 0

    def stop(self) -> None:
        self.stopped += 1


class FakeOption:
    def __init__(self, value: Any) -> None:
        self._value = value

    def isDefined(self) -> bool:
        return self._value is not None

    def get(self) -> Any:
        return self._value


def with_bar(bar: FakeBar | None) -> Any:
    scala = SimpleNamespace(progressBar=lambda: FakeOption(bar))
    return SimpleNamespace(_sc=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala)))


def test_sparks_own_bar_is_stopped_where_ours_is_drawn() -> None:
    bar = FakeBar()
    sessions.hide_progress_bar(with_bar(bar))
    assert bar.stopped == 1


def test_a_session_without_a_bar_or_without_a_context_is_left_alone() -> None:
    sessions.hide_progress_bar(with_bar(None))
    sessions.hide_progress_bar(SimpleNamespace())  # Spark Connect
    sessions.hide_progress_bar(None)


def test_no_session_that_tidegate_starts_draws_a_bar() -> None:
    assert sessions.GANG_SETTINGS["spark.ui.showConsoleProgress"] == "false"
