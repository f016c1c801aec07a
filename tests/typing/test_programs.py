"""What a type checker sees of a user's program: the types that `assert_type` names, and the mistakes marked `# E:`.

mypy runs once, over all programs; what it found is kept in `.mypy_cache`, so a second run takes seconds.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MISTAKES = "mistakes.py"
FLAGS = [
    "--strict",
    "--python-version=3.11",
    "--follow-imports=silent",
    "--no-error-summary",
    "--hide-error-context",
    "--disable-error-code=import-untyped",  # pyarrow has no types
]


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, int], str]:
    """The errors that mypy finds, by program and line."""
    before, os.environ["MYPYPATH"] = os.environ.get("MYPYPATH"), str(ROOT / "src")
    recursion = sys.getrecursionlimit()
    try:
        cache = f"--cache-dir={ROOT / '.mypy_cache' / 'programs'}"
        out, err, _ = api.run([*FLAGS, cache, "--config-file=", *map(str, [*PROGRAMS, *EXAMPLES])])
    finally:
        sys.setrecursionlimit(recursion)  # mypy raises it, for whatever runs in this process later
        del os.environ["MYPYPATH"]
        if before is not None:
            os.environ["MYPYPATH"] = before
    assert not err, err
    errors: dict[tuple[str, int], str] = {}
    for line in out.splitlines():
        match = re.match(r"(.*\.py):(\d+): error: (.*)", line)
        if match is None:
            assert ": note: " in line, line
            continue
        where = Path(match[1]).name, int(match[2])
        errors[where] = f"{errors.get(where, '')}{match[3]}\n"
    return errors


def expected(program: Path) -> dict[int, str]:
    """The errors that a program says it has, by line."""
    lines = enumerate(program.read_text(encoding="utf-8").splitlines(), start=1)
    return {n: line.partition("# E: ")[2].strip() for n, line in lines if "# E: " in line}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_a_type_checker_finds_what_the_program_says(program: Path, found: dict[tuple[str, int], str]) -> None:
    errors = {line: text for (name, line), text in found.items() if name == program.name}
    said = expected(program)
    assert bool(said) == (program.name == MISTAKES), "mistakes have their own program, the others are run too"
    surprises = {line: text for line, text in errors.items() if said.get(line, "\0") not in text}
    assert surprises == {}
    assert said.keys() - errors.keys() == set(), "mistakes that were not found"


def test_the_examples_have_no_mistakes(found: dict[tuple[str, int], str]) -> None:
    names = {example.name for example in EXAMPLES}
    assert {where: text for where, text in found.items() if where[0] in names} == {}


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.name != MISTAKES], ids=lambda p: p.stem)
def test_the_programs_without_mistakes_run(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runpy.run_path(str(program), run_name="program")
