"""The examples in the guide and in the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import tidegate.connectors.files
import tidegate.formats

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "files.md"
MODULES = [
    info.name
    for package in (tidegate.formats, tidegate.connectors.files)
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
]


def test_the_examples_of_the_guide_run():
    result = doctest.testfile(str(GUIDE), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
