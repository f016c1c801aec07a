"""Programs as a user starts them: a process of their own, and nothing of it left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


class Finished(NamedTuple):
    """What a program said and how it ended."""

    code: int
    out: str
    err: str


def run_program(command: Sequence[str | Path], workspace: Path, *, timeout_s: float = 110) -> Finished:
    """Run a command in `workspace/cwd` until it ends; a hanging one is killed with everything that it started.

    Its temporary files go to `workspace/tmp`, which must be empty again when it has ended.
    """
    folders = {name: workspace / name for name in ("cwd", "tmp", "spark")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
    env |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),
        "TMPDIR": str(folders["tmp"]),
        "SPARK_LOCAL_DIRS": str(folders["spark"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": os.environ["SPARK_CONF_DIR"],
    }
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=folders["cwd"],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{command} has not ended within {timeout_s} s\n{out}\n{err}") from None
    left = sorted(path.name for path in folders["tmp"].iterdir())
    assert left == [], f"{command} left temporary files behind: {left}"
    return Finished(process.returncode, out, err)
