"""Fixtures that tests of single operators share."""

from __future__ import annotations

import pytest

from tidegate import Environment


@pytest.fixture(params=["heap", "rocksdb"])
def env(request: pytest.FixtureRequest) -> Environment:
    """An environment of each state backend."""
    return Environment(state_backend=request.param)
