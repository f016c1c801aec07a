"""Local directories of slots: gone with the slot, and with the next slot where a process was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidegate.taskmanager.local_directories import LocalDirectories

OTHER_PROCESS = """
import os, sys, tempfile
os.getpid = lambda: 1 << 30  # as in another PID namespace: a number that means nothing here
tempfile.tempdir = sys.argv[1]
from tidegate.taskmanager.local_directories import LocalDirectories
directories = LocalDirectories()
print(directories.make(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_directories_of_a_live_process_stay_and_those_of_a_killed_one_are_removed_by_the_next(temporary):
    foreign = temporary / "tidegate-state-of-mine"
    foreign.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(temporary)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            made_there = Path(other.stdout.readline().strip())
            (made_there / "data").write_text("x")
            here = LocalDirectories()
            made_here = Path(here.make())
            assert (made_there / "data").exists()
        finally:
            other.kill()
            other.wait()
    second = LocalDirectories()
    second.make()
    assert not made_there.exists()
    assert made_here.is_dir()  # of this process, which lives
    here.remove()
    second.remove()
    assert list(temporary.iterdir()) == [foreign]


def test_a_directory_that_is_removed_before_it_is_locked_is_made_again(temporary, monkeypatch):
    make, removed = tempfile.mkdtemp, []

    def make_and_lose(*args, **kwargs):
        path = make(*args, **kwargs)
        if not removed:
            removed.append(path)
            Path(path).rmdir()
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    directories = LocalDirectories()
    assert Path(directories.make()).is_dir()
    assert removed
    directories.remove()
    assert list(temporary.iterdir()) == []
