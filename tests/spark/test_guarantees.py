"""What the planner promises is what a crash does: the same kill with a source that can be reset and one that cannot."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.spark.kit import wait_until
from tidegate import DataGeneratorSource, FileSink, SocketSource

pytestmark = pytest.mark.timeout(240)

LINES = 4_000


class Server:
    """Sends every line once, about a thousand a second, to whoever is connected; what is sent is never sent again."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.sent = 0
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed by the test
            while self.sent < LINES:
                connection, _ = self._listener.accept()
                self.connections += 1
                with connection, contextlib.suppress(OSError):
                    while self.sent < LINES:
                        lines = range(self.sent, min(self.sent + 20, LINES))
                        connection.sendall("".join(f"{n}\n" for n in lines).encode())
                        self.sent = lines.stop
                        time.sleep(0.02)  # the pace of the stream, not a wait for something

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def run_with_a_kill(env: Any, stream: Any, out: Path) -> list[int]:
    """Write the stream to files, kill a worker after the second checkpoint; return what is visible at the end."""
    stream.sink_to(FileSink(out, "json"), uid="out", name="out")
    client = env.execute_async("guarded")
    try:
        wait_until(lambda: client.checkpoints().completed >= 2, "two checkpoints", 90)
        os.kill(next(s.pid for s in client.slots() if s.pid), signal.SIGKILL)
        client.result(120)
        assert client.overview().restarts == 1
    finally:
        if not client.status().is_terminal:
            client.cancel(30)
    return [int(n) for n in pl.read_ndjson(list(out.glob("part-*.json"))).to_series().to_list()]


@pytest.mark.spec("S0-6", "S0-7")
def test_socket_loses_what_it_gave_since_the_checkpoint_and_the_planner_had_said_so(
    make_env: Any, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    env = make_env(checkpoint_interval="1 s", parallelism=1)
    lines = env.from_source(SocketSource("127.0.0.1", server.port), uid="lines", name="lines")
    with caplog.at_level(logging.WARNING):
        found = run_with_a_kill(env, lines, tmp_path / "out")
    promised = "sink 'out' is at-most-once: source `lines` cannot be reset"
    assert any(promised in r.message and r.levelno == logging.WARNING for r in caplog.records)
    assert (server.sent, server.connections) == (LINES, 2)
    assert len(set(found)) == len(found), "at most once"
    assert len(found) < LINES, "what was under way when the process died is gone"


@pytest.mark.spec("S0-6", "S0-7")
def test_same_kill_with_a_source_that_can_be_reset_loses_and_repeats_nothing(
    make_env: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    env = make_env(checkpoint_interval="1 s", parallelism=1)
    source = DataGeneratorSource(lambda indices, rng: {"n": indices}, count=LINES, rate=1_000)
    with caplog.at_level(logging.INFO):
        found = run_with_a_kill(env, env.from_source(source, uid="lines", name="lines"), tmp_path / "out")
    assert "sink 'out' is exactly-once: " in caplog.text
    assert sorted(found) == list(range(LINES))
