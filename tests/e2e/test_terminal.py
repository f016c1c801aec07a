"""What a user sees at a terminal: the plan, the live display while the job runs, and the end after Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.running import EXAMPLES, ROOT

COLUMNS, LINES = 80, 40
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program at a terminal of 80 columns; `screen` is all that it wrote, without colours and cursor moves."""

    def __init__(self, command: list[str], cwd: Path) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        env = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**env, "TERM": "xterm-256color", "TMPDIR": str(cwd)},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._raw = b""

    @property
    def screen(self) -> str:
        text = self._raw.decode(errors="replace").replace(
            "\r\x1b[2K", "\n"
        )  # where the display is drawn anew
        return CONTROL.sub("", text).replace("\r", "")

    def read_until(self, condition: Callable[[str], object], timeout_s: float) -> None:
        """Take what the program writes until the condition holds or the program closes the terminal."""
        deadline = time.monotonic() + timeout_s
        while not condition(self.screen):
            left = deadline - time.monotonic()
            assert left > 0, f"not seen within {timeout_s} s:\n{self.screen}"
            if select.select([self._ours], [], [], left)[0]:
                try:
                    self._raw += os.read(self._ours, 65536)
                except OSError:  # the other side is closed
                    return

    def kill(self) -> None:
        for process in [self.process, *self.descendants()]:
            process.kill()
        self.process.wait()
        os.close(self._ours)

    def descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Terminal]:
    """The PV count at a terminal, of far more clicks than anybody waits for, its results thrown away."""
    script = tmp_path / "endless.py"
    script.write_text(
        "import runpy\n"
        "from tidegate import Environment\n"
        "from tidegate.api.sink import BlackholeSink\n"
        "from tidegate.connectors.datagen import DataGeneratorSource\n"
        f"click = runpy.run_path({str(EXAMPLES / 'pv_count.py')!r}, run_name='pv_count')['click']\n"
        "env = Environment()\n"
        "clicks = env.from_source(DataGeneratorSource(click, count=10**12), name='clicks')\n"
        "clicks.key_by('app_id').count(name='pv').sink_to(BlackholeSink(), name='nowhere')\n"
        "env.execute('endless')\n"
        "print('went on')\n",
        encoding="utf-8",
    )
    tidegate = str(Path(sys.executable).with_name("tidegate"))
    terminal = Terminal([tidegate, "run", str(script), "--parallelism", "2"], tmp_path)
    yield terminal
    terminal.kill()


@pytest.mark.timeout(240)
def test_live_display_shows_rates_while_the_job_runs_and_ctrl_c_ends_everything(endless: Terminal):
    running = re.compile(
        r"endless  RUNNING .*?\n.* 0%\n.*?\nclicks +2/2 +\d.*? [MkG] .*\npv -> nowhere +2/2 +\d.*? [MkG] .*"
    )
    endless.read_until(running.search, timeout_s=180)

    lines = endless.screen.splitlines()
    assert lines[0] == "job 'endless': 2 tasks, 2 slots needed (default 2)"
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert "operator tasks in/s out/s records queue time █ ▒" in (" ".join(line.split()) for line in lines)

    started = [endless.process.pid, *(process.pid for process in endless.descendants())]
    assert len(started) > 3  # the driver, its Java machine and the slots
    processes = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
    os.killpg(endless.process.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
    endless.read_until(lambda screen: "interrupted" in screen, timeout_s=20)
    assert endless.process.wait(20) == 130
    assert "endless  CANCELED" in endless.screen
    assert "Traceback" not in endless.screen
    assert "went on" not in endless.screen
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []


@pytest.fixture
def waiting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    """A program in this process that never ends, run by `python` with the words that the test gives."""
    script = tmp_path / "waiting.py"
    script.write_text(
        "from tidegate import Environment\n"
        "env = Environment(runtime='in-process')\n"
        "env.from_sequence(1, 10**12).sink_to(lambda n: print('took', n) if n == 1 else None)\n"
        "env.execute('waiting')\n",
        encoding="utf-8",
    )
    terminal = Terminal([sys.executable, *request.param, str(script)], tmp_path)
    terminal.read_until(lambda screen: "took 1\n" in screen, timeout_s=60)
    yield terminal
    terminal.kill()


@pytest.mark.parametrize("waiting", [[]], indirect=True)
def test_ctrl_c_in_a_program_shows_its_own_line_and_that_the_job_was_cancelled(waiting: Terminal):
    os.killpg(waiting.process.pid, signal.SIGINT)
    waiting.read_until(lambda screen: "was cancelled\n" in screen, timeout_s=20)
    assert waiting.process.wait(20) == -signal.SIGINT, "as every program that Ctrl-C ends"
    shown = waiting.screen.partition("took 1\n")[2].strip().splitlines()
    assert shown[-1] == "KeyboardInterrupt: job 'waiting' was cancelled"
    assert sum(line.startswith("  File ") for line in shown) == 2, "the program's line, and execute"


@pytest.mark.parametrize("waiting", [["-m", "tidegate", "run"]], indirect=True)
def test_ctrl_c_in_a_program_of_the_command_is_one_line_and_130(waiting: Terminal):
    os.killpg(waiting.process.pid, signal.SIGINT)
    waiting.read_until(lambda screen: "interrupted" in screen and screen.endswith("\n"), timeout_s=20)
    assert waiting.process.wait(20) == 130
    assert waiting.screen.partition("took 1\n")[2].strip() == "interrupted: job 'waiting' was cancelled"


@pytest.fixture
def make_run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    """`make run` at a terminal, with the words that the test gives."""
    terminal = Terminal(["make", "--no-print-directory", "-C", str(ROOT), "run", *request.param], tmp_path)
    yield terminal
    terminal.kill()


@pytest.mark.timeout(240)  # about 30 s on a machine that does nothing else
@pytest.mark.parametrize("make_run", [["CRASH=1"]], indirect=True)
@pytest.mark.spec("S0-1", "S0-4", "S0-20", "S2-2")
def test_make_run_with_a_crash_shows_the_failure_the_recovery_and_the_exact_result(make_run: Terminal):
    make_run.read_until(lambda screen: "equal to the truth" in screen, timeout_s=200)
    assert make_run.process.wait(20) == 0, make_run.screen

    words = " ".join(make_run.screen.split())
    killed = re.search(r"\*\*\* kill -9 (\d+): slot 1, which runs ", words)
    assert killed is not None, make_run.screen
    assert "sink 'files' is exactly-once: " in words
    failed = re.search(
        rf"attempt 0 failed; restarting in \d+ ms from checkpoint (\d+) .*?process of slot 1 \(pid {killed[1]} ",
        words,
    )
    assert failed is not None, make_run.screen
    # What the display says from then on: where the job went on from, and what had happened.
    assert f"1 restart, attempt 1 continues from checkpoint {failed[1]}" in words
    assert "last error (attempt 0): the process of slot 1" in words
    again = make_run.screen.partition("continues from checkpoint")[2]
    shares = [int(share) for share in re.findall(r"^\S* (\d+)%$", again, re.MULTILINE)]
    assert shares, "how far it is, with what was read before the checkpoint"
    assert (shares[0] > 0, shares[-1]) == (True, 100)
    assert re.search(
        r"pv count FINISHED .*10,000,000 clicks, 10,000,000 results in .* s: equal to the truth", words
    )


@pytest.mark.timeout(240)  # about 30 s on a machine that does nothing else
@pytest.mark.parametrize("make_run", [[]], indirect=True)
def test_make_run_takes_a_checkpoint_every_second_and_its_result_is_exact(make_run: Terminal):
    make_run.read_until(lambda screen: "equal to the truth" in screen, timeout_s=200)
    assert make_run.process.wait(20) == 0, make_run.screen

    lines = make_run.screen.splitlines()
    assert "checkpoints: every 1 s, exactly_once, in " in " ".join(make_run.screen.split())
    # The last words of the display: at least one checkpoint while it ran, and the final one.
    last = re.findall(r"(\d+) checkpoints?; the last: \d+, took \d.*, \d.*iB", make_run.screen)[-1]
    assert int(last) >= 2, make_run.screen
    assert "last error" not in make_run.screen
    assert "NOT equal" not in lines[-1]
    assert [line for line in lines if len(line) > COLUMNS and "/" not in line] == []  # a path is not broken
