"""Slots without a JVM: processes that a small server forks, in the place of Spark's tasks.

Everything else is the real runtime: the driver's threads, the control server, sockets, a process per slot. As on Spark,
a slot whose process fails takes the others with it, and a cancelled one has 100 ms to end by itself.

`python -m tests.slots` is the server. It has imported what a slot needs, so a slot is there in milliseconds.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.core.ids import SlotId
from tidegate.core.options import Options
from tidegate.jobmanager.events import GangEnded
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.taskmanager.control_connection import ControlLost
from tidegate.taskmanager.mailbox import run_slot

ROOT = Path(__file__).resolve().parents[1]
KILL_S = 0.1
CLOSE_S = 10.0


class SlotServer:
    """Forks processes that are slots. An `Environment` gets it as its session. Any thread may call."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.slots"],
            cwd=ROOT,
            env={**os.environ, "POLARS_MAX_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._forked = 0
        self._ends: dict[int, Callable[[int], None]] = {}
        self._reader = threading.Thread(target=self._read, name="slot-server", daemon=True)
        self._reader.start()

    def fork(self, bootstrap: bytes, slot: int, on_end: Callable[[int], None]) -> int:
        """Start a slot and return its number here; `on_end` gets its exit code, on a thread of this server."""
        with self._lock:
            self._forked += 1
            self._ends[self._forked] = on_end
            self._ask(fork=self._forked, slot=slot, bootstrap=bootstrap.hex())
            return self._forked

    def kill(self, number: int) -> None:
        """Kill a slot, unless it has ended."""
        with self._lock:
            self._ask(kill=number)

    def close(self) -> None:
        """End the server and what is left of its slots."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(CLOSE_S)
        self._reader.join(CLOSE_S)
        self._process.stdout.close()

    def _ask(self, **request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._lock:
                on_end = self._ends.pop(said["ended"])
            on_end(said["code"])


class ProcessGang:
    """The `GangHost` of a `SlotServer`."""

    def __init__(self, server: SlotServer, options: Options) -> None:
        self._server = server
        self._options = options
        self._attempts: list[_Attempt] = []

    def check_start(self, slots_needed: int) -> None:
        """There are always enough slots."""

    def control_host(self) -> tuple[str, str]:
        bind = self._options.bind_host or "127.0.0.1"
        return bind, "localhost" if bind in ("0.0.0.0", "::") else bind

    def count_slots(self) -> int | None:
        return None

    def count_busy_slots(self) -> tuple[int, int]:
        return 0, 0

    def start(self, slots: int, bootstrap: SlotBootstrap, on_end: Callable[[GangEnded], None]) -> None:
        self._attempts.append(_Attempt(self._server, on_end))
        self._attempts[-1].start(slots, bootstrap.encode())

    def cancel(self) -> None:
        timer = threading.Timer(KILL_S, self._attempts[-1].kill)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        for attempt in self._attempts:
            attempt.is_over.wait(CLOSE_S)


class _Attempt:
    def __init__(self, server: SlotServer, on_end: Callable[[GangEnded], None]) -> None:
        self.is_over = threading.Event()
        self._server = server
        self._tell = on_end
        self._lock = threading.Lock()
        self._running: dict[int, int] = {}
        self._error: str | None = None

    def start(self, slots: int, bootstrap: bytes) -> None:
        with self._lock:  # none is missed that ends at once
            for slot in range(slots):
                self._running[slot] = self._server.fork(
                    bootstrap, slot, functools.partial(self._on_end, slot)
                )

    def kill(self) -> None:
        with self._lock:
            running = list(self._running.values())
        for number in running:
            self._server.kill(number)

    def _on_end(self, slot: int, code: int) -> None:
        with self._lock:
            del self._running[slot]
            is_first = code != 0 and self._error is None
            if is_first:
                self._error = f"the process of slot {slot} ended with exit code {code}"
            is_over = not self._running
        if is_first:
            self.kill()
        if is_over:
            self._tell(GangEnded(self._error))
            self.is_over.set()


def make_gang(spark_gang: Callable[..., Any], session: Any, options: Options, *more: Any) -> Any:
    """What runs a job's slots: a `SlotServer` where that is the session, Spark where it is Spark's."""
    is_server = isinstance(session, SlotServer)
    return ProcessGang(session, options) if is_server else spark_gang(session, options, *more)


# ---- in the server ----


def serve() -> None:
    """Fork and kill as standard input says, tell on standard output who ended; end with standard input."""
    import_module("tidegate.formats.line_loops")  # compiled when imported
    pa.array([0])  # imports what Arrow imports when it first meets a list: pandas
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    numbers: dict[int, int] = {}
    unread = b""
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(numbers, answers)
        if requests in ready:
            read = os.read(requests, 1 << 16)
            if not read:
                os.killpg(0, signal.SIGKILL)
            *lines, unread = (unread + read).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if "kill" in request:
                    for pid in [p for p, number in numbers.items() if number == request["kill"]]:
                        os.kill(pid, signal.SIGKILL)
                elif pid := os.fork():
                    numbers[pid] = request["fork"]
                else:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for file in (requests, answers, woken, wake):
                        os.close(file)
                    _be_slot(bytes.fromhex(request["bootstrap"]), request["slot"])


def _reap(numbers: dict[int, int], answers: int) -> None:
    while numbers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        ended = {"ended": numbers.pop(pid), "code": os.waitstatus_to_exitcode(status)}
        os.write(answers, json.dumps(ended).encode() + b"\n")


def _be_slot(bootstrap: bytes, slot: int) -> None:
    code = 1
    try:
        sys.setswitchinterval(0.0005)
        run_slot(SlotBootstrap.decode(bootstrap), SlotId(slot), "localhost", own_process=True)
        code = 0
    except ControlLost:
        pass  # the JobManager is gone, or is done with this attempt
    except BaseException:  # noqa: BLE001 -- this is the end of the process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
