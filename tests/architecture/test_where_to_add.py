"""A new connector, format, window, ... is one new file or folder, and at most three places elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.additions import ADDITIONS, PROGRAM, Addition
from tests.architecture.source_tree import ROOT, SOURCE, lint_imports

MOST_OTHER_FILES = 3


def page() -> dict[str, list[str]]:
    """The lines of the table in CONTRIBUTING: the kind, and the existing files that it names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## Where do I add …?")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| **")]
    return {cells[0].strip(" *"): re.findall(r"`([\w/]+\.py)`", cells[2]) for cells in lines}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the source that has all additions."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(SOURCE, folder / "tidegate", ignore=shutil.ignore_patterns("__pycache__"))
    for addition in ADDITIONS:
        addition.apply(folder / "tidegate")
    return folder


def test_a_program_uses_one_addition_of_each_kind(copy, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    printed = {
        word: json.loads(rest)
        for word, _, rest in (line.partition(" ") for line in result.stdout.splitlines())
        if word in ("spreads", "lines")
    }
    # 48 hours, every other one of each port: four tides of six hours each, with heights 0, 2, ... 10 or 1, 3, ... 11.
    assert printed["spreads"] == sorted([[f"port {p}", 6, 10] for p in (0, 1)] * 4)
    # Each of two readers has 24 hours and keeps every fourth: all of port 0.
    assert printed["lines"] == sorted(f"PORT 0: {n}" for n in range(1, 13))
    assert "the moon is full" in result.stdout
    assert (tmp_path / "checkpoints").is_dir()


def test_additions_keep_the_direction_of_imports(copy):
    result = lint_imports(import_path=copy)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.kind)
def test_the_page_names_every_place_and_there_are_few(addition: Addition):
    assert addition.other_files <= set(page()[addition.kind])
    assert len(page()[addition.kind]) <= MOST_OTHER_FILES


def test_the_page_names_no_file_that_is_not_there():
    named = [file for files in page().values() for file in files]
    assert named
    assert [file for file in named if not (SOURCE / file).is_file()] == []
