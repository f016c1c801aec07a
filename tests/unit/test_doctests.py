"""Every example in a docstring of the package is executed: what the documentation shows is what happens."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import tidegate

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


PACKAGE = Path(tidegate.__file__).parent


def modules_with_examples() -> list[str]:
    """The names of all modules that hold a prompt."""
    files = (file for file in sorted(PACKAGE.rglob("*.py")) if ">>> " in file.read_text(encoding="utf-8"))
    parts = (file.relative_to(PACKAGE.parent).with_suffix("").parts for file in files)
    return [".".join(part for part in names if part != "__init__") for names in parts]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of_the_module_give_what_they_show(name: str):
    module = importlib.import_module(name)
    found = [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]
    assert found, f"{name} holds a prompt outside of its docstrings: nobody would run it"
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    report: list[str] = []
    for test in found:
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_the_public_classes_show_how_they_are_used():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for public in (tidegate.Environment, tidegate.DataStream, tidegate.KeyedStream):
        assert any(test.examples for test in finder.find(public)), f"{public.__name__} has no example"
