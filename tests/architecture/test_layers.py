"""The shape of the source tree: imports go one way, dependencies are declared, modules stay small."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT, SOURCE, lint_imports

MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST_MODULE_LINES = 600
STREAMS = (
    "connected_streams",
    "environment",
    "joins",
    "keyed_streams",
    "streams",
    "window_joins",
    "windowed_streams",
)

# Where a requirement's name is not the name of the module it installs.
MODULE_OF_REQUIREMENT = {"pyyaml": "yaml"}


def imported_packages(module: Path) -> Iterator[tuple[str, int]]:
    """Top-level names of the absolute imports of a module, inside functions too, with their lines."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], node.lineno


def declared_packages() -> set[str]:
    """The modules that the base install of the project brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\s<>=!~\[;]", requirement, maxsplit=1)[0] for requirement in project["dependencies"]}
    return {MODULE_OF_REQUIREMENT.get(name.lower(), name) for name in names}


def test_imports_keep_the_contracts():
    result = lint_imports(import_path=ROOT / "src")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("importer", "line", "broken_contract"),
    [
        ("core/ids.py", "import tidegate.api.streams", "Imports go one way"),
        ("graph/plan.py", "import tidegate.taskmanager.mailbox", "Imports go one way"),
        ("jobmanager/master.py", "import tidegate.taskmanager.mailbox", "Imports go one way"),
        ("jobmanager/driver.py", "import tidegate.runtime.threads", "Imports go one way"),
        ("runtime/threads.py", "import tidegate.spark.gang", "Imports go one way"),
        ("unheard_of/thing.py", "", "Imports go one way"),
        (
            "program/operations.py",
            "import tidegate.api.streams",
            "A program does not know the streams that build it",
        ),
        ("api/streams.py", "import tidegate.program.operations", None),
        ("taskmanager/mailbox.py", "import pyspark", "pyspark is imported in tidegate.spark alone"),
        ("core/ids.py", "import pyarrow", "core stands on the standard library and msgspec"),
        ("spark/gang.py", "import pyspark", None),
        ("spark/gang.py", "import tidegate.taskmanager.mailbox", None),
        ("runtime/threads.py", "import tidegate.taskmanager.mailbox", None),
    ],
)
def test_contracts_catch_an_import_against_the_layers(tmp_path, importer, line, broken_contract):
    files = {
        "core/ids.py",
        *(f"api/{stream}.py" for stream in STREAMS),
        "program/operations.py",
        "taskmanager/mailbox.py",
        "runtime/threads.py",
        "spark/gang.py",
        importer,
    }
    for name in files:
        file = tmp_path / "tidegate" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(line if name == importer else "", encoding="utf-8")
    (tmp_path / "tidegate" / "__init__.py").touch()

    result = lint_imports(import_path=tmp_path)

    if broken_contract is None:
        assert result.returncode == 0, result.stdout + result.stderr
    else:
        assert result.returncode == 1, result.stdout + result.stderr
        assert f"{broken_contract} BROKEN" in result.stdout


def test_core_imports_only_the_standard_library_and_msgspec():
    allowed = sys.stdlib_module_names | {"tidegate", "msgspec"}
    core = [module for module in MODULES if module.is_relative_to(SOURCE / "core")]
    assert core
    strangers = [
        f"{module.relative_to(ROOT)}:{line} imports {name}"
        for module in core
        for name, line in imported_packages(module)
        if name not in allowed
    ]
    assert strangers == []


def test_every_imported_package_is_a_declared_dependency():
    allowed = sys.stdlib_module_names | declared_packages() | {"tidegate"}
    undeclared = [
        f"{module.relative_to(ROOT)}:{line} imports {name}, which pyproject.toml does not declare"
        for module in MODULES
        for name, line in imported_packages(module)
        if name not in allowed
    ]
    assert undeclared == []


def test_modules_are_not_longer_than_the_limit():
    assert MODULES
    lengths = {module: len(module.read_text(encoding="utf-8").splitlines()) for module in MODULES}
    too_long = [
        f"{module.relative_to(ROOT)} has {lines} lines, at most {LONGEST_MODULE_LINES}: split it by concept"
        for module, lines in lengths.items()
        if lines > LONGEST_MODULE_LINES
    ]
    assert too_long == []


def test_no_test_module_imports_another_one():
    """What two of them need is in a kit, so that a test can be moved, and read, alone."""
    found = [
        f"{module.relative_to(ROOT)}:{node.lineno}"
        for module in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and re.search(r"^tests\.(\w+\.)*test_", node.module or "")
    ]
    assert found == []


def test_no_tracked_file_names_a_path_of_one_machine():
    folders = "|".join(["work", "tmp", "root", "home"])
    machine_path = re.compile(rf"(?<![\w.}})\]/*-])/({folders})/")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout.split("\0")
    found = []
    for name in filter(None, tracked):
        file = ROOT / name
        if not file.is_file():  # deleted in the working tree, not yet in the index
            continue
        content = file.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode("utf-8").splitlines(), start=1):
            if machine_path.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert found == []


def test_constraints_are_exact_versions_and_name_no_address():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines
    wrong = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+]+", line)]
    assert wrong == []
