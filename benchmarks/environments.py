"""One virtual environment for each peer, made on demand under `benchmarks/.envs` from pinned versions."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".envs"
ENGINES = Path(__file__).parent / "engines"
PEERS_PYTHON = "python3.11"
"""Flink's libraries have wheels for nothing newer; the same version for all peers."""


class EnvironmentFailed(Exception):
    """A peer's environment could not be made; the message is the end of the failed command's output."""


def python_of(environment: str | None) -> Path:
    """The interpreter to run an engine with: its environment's, made now if need be, or our own for None."""
    if environment is None:
        return Path(sys.executable)
    directory = ENVIRONMENTS / environment
    wanted = _fingerprint(environment)
    stamp = directory / "made-from.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        _make(environment, directory)
        stamp.write_text(wanted)
    return directory / "bin" / "python"


def _pins(environment: str) -> tuple[Path, Path]:
    return ENGINES / f"requirements-{environment}.txt", ENGINES / f"jars-{environment}.txt"


def _fingerprint(environment: str) -> str:
    digest = hashlib.sha256(PEERS_PYTHON.encode())
    for path in _pins(environment):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def _make(environment: str, directory: Path) -> None:
    requirements, jars = _pins(environment)
    python = shutil.which(PEERS_PYTHON)
    if python is None:
        raise EnvironmentFailed(f"{PEERS_PYTHON} is not on the path; {environment} needs it")
    shutil.rmtree(directory, ignore_errors=True)
    _run([python, "-m", "venv", str(directory)])
    _run([str(directory / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)])
    for artifact in jars.read_text().split() if jars.exists() else []:
        where = f"-DoutputDirectory={directory / 'jars'}"
        _run(["mvn", "--quiet", "--batch-mode", "dependency:copy", f"-Dartifact={artifact}", where])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise EnvironmentFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
