"""Local directories of slots: gone with the slot, and with the next slot where a process was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tidegate.taskmanager.local_directories import LocalDirectories


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    orphan = tmp_path / f"tidegate-state-{gone.pid}-abc"
    orphan.mkdir()
    (orphan / "data").write_text("x")
    foreign = tmp_path / "tidegate-state-of-mine"
    foreign.mkdir()
    directories = LocalDirectories()
    made = Path(directories.make())
    assert not orphan.exists()
    assert foreign.exists()
    other = LocalDirectories()
    other.make()
    assert made.is_dir()  # its process lives
    directories.remove()
    other.remove()
    assert list(tmp_path.iterdir()) == [foreign]
