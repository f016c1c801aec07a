"""Generated records: seeded, vectorised, at full speed or at a precise rate."""

from tidegate.connectors.datagen.columns import (
    Column,
    choice,
    created_at_ns,
    normal,
    now_ms,
    sequence,
    uniform_float,
    uniform_int,
    zipf_choice,
)
from tidegate.connectors.datagen.source import DataGeneratorSource

__all__ = [
    "DataGeneratorSource",
    "Column",
    "choice",
    "zipf_choice",
    "uniform_int",
    "uniform_float",
    "normal",
    "sequence",
    "now_ms",
    "created_at_ns",
]
