"""A real standalone Spark cluster, and drivers in processes of their own; everything is stopped by its process id."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
DEADLINE_S = 180.0
"""For one thing that a program says: a busy machine must not look like a stuck job."""


def free_port() -> int:
    """A port that nobody uses now, and that the kernel gives to nobody who asks for any: other tests run meanwhile."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def spark_environment(directory: Path) -> dict[str, str]:
    """Variables for a process of Spark that leaves nothing outside the directory."""
    for name in ("tmp", "local", "logs"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    return {
        **kept,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOG_DIR": str(directory / "logs"),
        "SPARK_DAEMON_MEMORY": "128m",
        "TMPDIR": str(directory / "tmp"),
    }


def spark_home_in(directory: Path) -> Path:
    """A SPARK_HOME of links, for masters that write a `work` folder there."""
    home = directory / "spark_home"
    home.mkdir()
    for entry in SPARK_HOME.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


def python_without_tidegate(directory: Path) -> Path:
    """An interpreter with everything that is installed here but tidegate: what a cluster has before a job comes."""
    home = directory / "python"
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python3*/site-packages")
    # A plain path in a .pth file is searched, but the .pth files in it (our editable install) are not read.
    (packages / "dependencies.pth").write_text(f"{SPARK_HOME.parent}\n")
    python = home / "bin" / "python"
    missing = subprocess.run(
        [python, "-c", "import pyarrow, pyspark, tidegate"],
        env=spark_environment(directory),
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert "No module named 'tidegate'" in missing.stderr
    return python


def kill_tree(process: subprocess.Popen[Any]) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for child in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.wait(timeout=10)


class Cluster:
    """A master and workers of two cores each. Use it in a `with` block.

    `command_at` makes a command one that runs at an address, where addresses are of hosts of their own.
    """

    def __init__(
        self,
        directory: Path,
        address: str = "127.0.0.1",
        command_at: Callable[[str, list[str]], list[str]] = lambda address, command: command,
    ) -> None:
        self.directory = directory
        self._address = address
        self._command_at = command_at
        self.url = ""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        port = free_port()
        self.url = f"spark://{self._address}:{port}"
        args = ["--host", self._address, "--port", str(port), "--webui-port", str(free_port())]
        self._launch("master", "org.apache.spark.deploy.master.Master", args, self._address)
        self._await_log("master", "I have been elected leader")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add_worker(
        self, cores: int = 2, machine: Path | None = None, address: str = "127.0.0.1", memory: str = "600m"
    ) -> subprocess.Popen[bytes]:
        """Start another worker, with everything that it writes in the directory of a machine if one is given."""
        name = f"worker-{len(self.workers)}"
        args = ["--host", address, "--webui-port", str(free_port()), "--cores", str(cores)]
        args += ["--memory", memory, "--work-dir", str((machine or self.directory) / name), self.url]
        worker = self._launch(name, "org.apache.spark.deploy.worker.Worker", args, address, machine)
        self.workers.append(worker)
        return worker

    def await_workers(self) -> None:
        """Wait until every worker has registered with the master."""
        for i in range(len(self.workers)):
            self._await_log(f"worker-{i}", "Successfully registered with master")

    def kill_worker(self, index: int) -> None:
        """Lose a machine: the worker, its executors and their Python processes, without a word."""
        kill_tree(self.workers[index])

    def _launch(
        self, name: str, main: str, args: list[str], address: str, machine: Path | None = None
    ) -> subprocess.Popen[bytes]:
        log = (self.directory / f"{name}.log").open("wb")
        self._stack.enter_context(log)
        process = subprocess.Popen(
            self._command_at(address, [str(SPARK_HOME / "bin" / "spark-class"), main, *args]),
            env=spark_environment(machine or self.directory) | {"SPARK_LOCAL_IP": address},
            cwd=self.directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._stack.callback(kill_tree, process)
        return process

    def _await_log(self, name: str, text: str) -> None:
        path = self.directory / f"{name}.log"
        deadline = time.monotonic() + DEADLINE_S
        while text not in path.read_text(errors="replace"):
            assert time.monotonic() < deadline, (
                f"{name} did not start: {path.read_text(errors='replace')[-2000:]}"
            )
            time.sleep(0.05)


class Driver:
    """A program in a process of its own (there is one SparkContext per process), which talks in lines of JSON."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        program: Path = ROOT / "tests" / "spark" / "driver.py",
        prefix: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        environment = {**spark_environment(directory), **(env or {})}
        self._errors = (directory / "driver.err").open("wb")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(program), *arguments],
            env=environment,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        kill_tree(self.process)
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def expect(self, event: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """The next thing that the program says; it must be this event."""
        try:
            line = self._lines.get(timeout=deadline_s)
        except queue.Empty:
            raise AssertionError(f"no {event!r} within {deadline_s:g} s; {self.errors()}") from None
        assert line is not None, f"the driver ended before {event!r}; {self.errors()}"
        said: dict[str, Any] = json.loads(line)
        assert said["event"] == event, f"expected {event!r}, got {said}; {self.errors()}"
        return said

    def tell(self, line: str) -> None:
        """Let the program go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self, deadline_s: float = 30.0) -> int:
        """Its exit code."""
        return self.process.wait(timeout=deadline_s)

    def kill(self) -> None:
        """SIGKILL the program alone, none of what it started."""
        os.kill(self.process.pid, signal.SIGKILL)

    def errors(self) -> str:
        """The end of what it wrote to its standard error."""
        return (self.directory / "driver.err").read_text(errors="replace")[-3000:]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put(None)


@contextlib.contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Seconds since the block was entered."""
    begun = time.monotonic()
    yield lambda: time.monotonic() - begun
