"""Columns of the data generator: how the values of one field are drawn.

A `GeneratedColumn` depends on the indices of the records and on a random stream of its own, and on nothing else, so
the same seed gives the same values. A `StampedColumn` holds the time at which the generator emitted the record.

String choices are dictionary-encoded: per record only a small number is drawn and moved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.core.clock import Clock
from tidegate.core.errors import ProgramError


class GeneratedColumn(ABC):
    """The values of one field as a function of the record's index and a random stream."""

    arrow_type: pa.DataType

    @abstractmethod
    def draw(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One value (or code) per index."""

    def to_arrow(self, drawn: np.ndarray) -> pa.Array:
        """Turn a slice of what `draw` returned into a column."""
        return pa.array(drawn, self.arrow_type)


class StampedColumn(ABC):
    """A field with the time at which the generator emitted the record: int64, equal within a batch."""

    arrow_type = pa.int64()

    @abstractmethod
    def stamp(self, clock: Clock) -> int:
        """The value for the records emitted now."""


Column = GeneratedColumn | StampedColumn


class Choice(GeneratedColumn):
    """One of some values, each with its own weight, by Walker's alias method: a few nanoseconds per record.

    The low bits of a random number choose a column of the table, the high bits decide between that column's own value
    and its alias. So a draw costs two look-ups whatever the number of values.
    """

    def __init__(
        self, values: Sequence[Any] | pa.Array, weights: Sequence[float] | np.ndarray | None
    ) -> None:
        try:
            self._values = values if isinstance(values, pa.Array) else pa.array(values)
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise ProgramError(f"choice: the values must be of one type: {e}") from e
        n = len(self._values)
        shares = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
        if n == 0 or shares.shape != (n,):
            raise ProgramError(f"choice: needs values and one weight for each, got {n} and {shares.size}.")
        if not np.isfinite(shares).all() or (shares < 0).any() or not shares.sum() > 0:
            raise ProgramError("choice: weights must be finite, not negative, and not all zero.")
        self.arrow_type = self._values.type
        # Of 32 random bits up to 12 choose the column and 20 are left to compare; larger tables take 64 bits.
        self._bits = np.dtype(np.uint32 if n <= 1 << 12 else np.uint64)
        self._thresholds, self._codes = _alias_table(shares / shares.sum(), self._bits)

    def draw(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One position in the list of values per index."""
        n = len(indices)
        words = n if self._bits.itemsize == 8 else (n + 1) // 2
        raw = np.asarray(rng.bit_generator.random_raw(words)).view(self._bits)[:n]
        column = (raw & self._bits.type(len(self._thresholds) - 1)).astype(np.intp)
        to_alias = raw >= self._thresholds.take(column)
        column += column
        column += to_alias
        return self._codes.take(column)

    def to_arrow(self, drawn: np.ndarray) -> pa.Array:
        """Strings and bytes become dictionary codes; values of other types are looked up."""
        codes = pa.array(np.ascontiguousarray(drawn))
        if pa.types.is_string(self.arrow_type) or pa.types.is_binary(self.arrow_type):
            return pa.DictionaryArray.from_arrays(codes, self._values, safe=False)
        return self._values.take(codes)


def _alias_table(shares: np.ndarray, bits: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The threshold of each table column (of type `bits`), and its own code and its alias's code, alternating.

    The table's length is a power of two, so that the low bits of a random number choose a column evenly.
    """
    n = len(shares)
    size = 1 << max(0, n - 1).bit_length()
    scaled = np.zeros(size)
    scaled[:n] = shares * size
    keep = np.ones(size)
    alias = np.arange(size)
    small = [i for i in range(size) if scaled[i] < 1.0]
    large = [i for i in range(size) if scaled[i] >= 1.0]
    while small and large:
        i, j = small.pop(), large[-1]
        keep[i], alias[i] = scaled[i], j
        scaled[j] -= 1.0 - scaled[i]
        if scaled[j] < 1.0:
            small.append(large.pop())
    heaviest = int(np.argmax(shares))
    for i in small:  # left over: 1 but for rounding; a value with weight zero must stay impossible
        if i >= n or shares[i] == 0.0:
            keep[i], alias[i] = 0.0, heaviest
    low = size.bit_length() - 1
    steps = 1 << (bits.itemsize * 8 - low)
    thresholds = [min(round(float(k) * steps), steps) << low for k in keep]
    top = (1 << bits.itemsize * 8) - 1
    codes = np.empty(2 * size, dtype=np.int16 if n <= 1 << 15 else np.int32)
    codes[0::2], codes[1::2] = np.arange(size), alias
    for i, threshold in enumerate(thresholds):
        if threshold > top:  # always its own value: the largest random number is never below the threshold
            thresholds[i], codes[2 * i + 1] = top, i
    return np.array(thresholds, dtype=bits), codes


class UniformInt(GeneratedColumn):
    """Integers in `[low, high)`, all equally likely."""

    arrow_type = pa.int64()

    def __init__(self, low: int, high: int) -> None:
        if not -(2**63) <= low < high <= 2**63 - 1:
            raise ProgramError(f"uniform_int: low ({low}) must be less than high ({high}), both 64-bit.")
        self._low, self._high = low, high

    def draw(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(self._low, self._high, len(indices))


class UniformFloat(GeneratedColumn):
    """Floats in `[low, high)`, all equally likely."""

    arrow_type = pa.float64()

    def __init__(self, low: float, high: float) -> None:
        if not low < high:
            raise ProgramError(f"uniform_float: low ({low}) must be less than high ({high}).")
        self._low, self._high = low, high

    def draw(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(self._low, self._high, len(indices))


class Normal(GeneratedColumn):
    """Normally distributed numbers."""

    arrow_type = pa.float64()

    def __init__(self, mean: float, deviation: float) -> None:
        if not deviation >= 0:
            raise ProgramError(f"normal: deviation must not be negative, got {deviation}.")
        self._mean, self._deviation = mean, deviation

    def draw(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.normal(self._mean, self._deviation, len(indices))


class Sequence64(GeneratedColumn):
    """`start + index * step`, not random: a record number, or event times at a fixed distance."""

    arrow_type = pa.int64()

    def __init__(self, start: int, step: int) -> None:
        self._start, self._step = start, step

    def draw(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._start + indices * self._step


class NowMs(StampedColumn):
    """Wall-clock milliseconds."""

    def stamp(self, clock: Clock) -> int:
        return clock.now_ms()


class CreatedAtNs(StampedColumn):
    """Nanoseconds of the monotonic clock."""

    def stamp(self, clock: Clock) -> int:
        return clock.monotonic_ns()


def choice(values: Sequence[Any] | pa.Array, weights: Sequence[float] | np.ndarray | None = None) -> Choice:
    """One of these values; equally likely, or by weight.

    >>> column = choice(["heads", "tails"], weights=[1, 0])
    >>> drawn = column.draw(np.arange(3), np.random.default_rng(1))
    >>> column.to_arrow(drawn).to_pylist()
    ['heads', 'heads', 'heads']
    """
    return Choice(values, weights)


def zipf_choice(values: Sequence[Any] | pa.Array, s: float = 1.3) -> Choice:
    """One of these values, the k-th with weight 1 / k**s: a few are very frequent, like real users and pages."""
    return Choice(values, np.arange(1, len(values) + 1, dtype=np.float64) ** -float(s))


def uniform_int(low: int, high: int) -> UniformInt:
    """Random integers in `[low, high)`, all equally likely."""
    return UniformInt(low, high)


def uniform_float(low: float = 0.0, high: float = 1.0) -> UniformFloat:
    """Random floats in `[low, high)`, all equally likely."""
    return UniformFloat(low, high)


def normal(mean: float = 0.0, deviation: float = 1.0) -> Normal:
    """Random floats of a normal distribution."""
    return Normal(mean, deviation)


def sequence(start: int = 0, step: int = 1) -> Sequence64:
    """`start`, `start + step`, ... in the order of the records: a serial number, or a regular event time.

    >>> sequence(100, 5).draw(np.arange(3), np.random.default_rng(1)).tolist()
    [100, 105, 110]
    """
    return Sequence64(start, step)


def now_ms() -> NowMs:
    """The wall-clock time in milliseconds at which the generator emitted the record."""
    return NowMs()


def created_at_ns() -> CreatedAtNs:
    """The monotonic time in nanoseconds at which the generator emitted the record: for latency on one machine."""
    return CreatedAtNs()
