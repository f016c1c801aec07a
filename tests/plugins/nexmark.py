"""The modules of `examples/nexmark`, loaded as its own script loads them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

NEXMARK = Path(__file__).resolve().parents[2] / "examples" / "nexmark"
MODULES = ("generator", "queries", "oracle")


@pytest.fixture(scope="module")
def nexmark() -> Iterator[SimpleNamespace]:
    """The generator, the queries, and the oracle."""
    sys.path.insert(0, str(NEXMARK))
    try:
        loaded: dict[str, ModuleType] = {name: importlib.import_module(name) for name in MODULES}
        yield SimpleNamespace(**loaded)
    finally:
        sys.path.remove(str(NEXMARK))
        for name in MODULES:
            sys.modules.pop(name, None)
