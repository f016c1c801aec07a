"""Blocks, the unit in which values are drawn, and the shares of blocks or records that readers take.

Record i depends on the seed and on i alone. Values are drawn for whole blocks of 8,192 indices whose random streams are
keyed by (seed, field, block), so neither parallelism nor batch borders nor a restore nor `count` changes a value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.api.source import SourceSplit
from tidegate.connectors.datagen.columns import Column, GeneratedColumn, StampedColumn
from tidegate.core.clock import Clock
from tidegate.core.errors import SchemaError
from tidegate.core.words import kind_of
from tidegate.records.types import RecordType

BLOCK = 8192

GeneratorFunction = Callable[[np.ndarray, np.random.Generator], "Mapping[str, Any] | pa.RecordBatch"]


class GeneratorSplit(SourceSplit, frozen=True, kw_only=True):
    """One share of the indices in `[start, end)`, which are dealt round-robin to `shares` splits, `unit` at a time.

    `position` counts the records of this split that were read. `unit` is 1 or a whole block; for whole blocks dealt to
    several splits, `start` is 0.
    """

    start: int
    end: int
    share: int = 0
    shares: int = 1
    unit: int = BLOCK
    position: int = 0

    def index(self, position: int) -> int:
        """The index of the record at a position."""
        turn, within = divmod(position, self.unit)
        return self.start + (turn * self.shares + self.share) * self.unit + within

    def size(self) -> int:
        """How many records the split has in all."""
        turns, rest = divmod(self.end - self.start, self.unit * self.shares)
        return turns * self.unit + min(self.unit, max(0, rest - self.share * self.unit))

    def pieces(self, position: int, stop: int) -> Iterator[tuple[int, slice]]:
        """The records at these positions as slices of blocks of consecutive indices."""
        step = self.shares if self.unit == 1 else 1
        while position < stop:
            block, first = divmod(self.index(position), BLOCK)
            count = min(stop - position, -(-(BLOCK - first) // step))
            yield block, slice(first, first + (count - 1) * step + 1, step)
            position += count


class RandomStream:
    """The random streams of all blocks for a seed and a name, served by one numpy generator."""

    def __init__(self, seed: int, name: str) -> None:
        self._bits = np.random.PCG64(0)
        self._rng = np.random.Generator(self._bits)
        self._key = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=32)

    def at(self, block: int) -> np.random.Generator:
        """The generator, set to the start of a block and valid until the next call: far cheaper than a new one."""
        key = self._key.copy()
        key.update(block.to_bytes(8, "little"))
        digest = key.digest()
        self._bits.state = {
            "bit_generator": "PCG64",
            "state": {
                "state": int.from_bytes(digest[:16], "little"),
                "inc": int.from_bytes(digest[16:], "little") | 1,
            },
            "has_uint32": 0,
            "uinteger": 0,
        }
        return self._rng


class BlockCache:
    """The block that a split read last, drawn."""

    __slots__ = ("block", "drawn")

    def __init__(self) -> None:
        self.block = -1
        self.drawn: list[Any] = []


class BlockGenerator:
    """Draws blocks and turns slices of them into record batches; belongs to one reader."""

    def __init__(
        self,
        function: GeneratorFunction | None,
        fields: Mapping[str, Column],
        seed: int,
        record_type: RecordType,
    ) -> None:
        self.type = record_type
        self._schema: pa.Schema | None = None
        self._function = function
        self._function_stream = RandomStream(seed, "")
        self._columns = [fields.get(name) for name in record_type.names]
        self._streams = [RandomStream(seed, f"field {name}") for name in record_type.names]

    def columns(self, pieces: Sequence[tuple[int, slice]], cache: BlockCache, clock: Clock) -> pa.RecordBatch:
        """The records of these slices of blocks, stamped with the clock's time."""
        parts = [[values[rows] for values in self._drawn(block, cache)] for block, rows in pieces]
        length = sum(len(range(BLOCK)[rows]) for _, rows in pieces)
        arrays = []
        for i, column in enumerate(self._columns):
            if isinstance(column, StampedColumn):
                arrays.append(pa.array(np.full(length, column.stamp(clock), dtype=np.int64)))
                continue
            joined = parts[0][i] if len(parts) == 1 else _join([part[i] for part in parts])
            if column is not None:
                arrays.append(column.to_arrow(joined))
            else:
                arrays.append(self._typed(i, joined))
        if self._schema is None or self._schema.types != [array.type for array in arrays]:
            fields = zip(self.type.schema, arrays, strict=True)
            self._schema = pa.schema([field.with_type(array.type) for field, array in fields])
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _drawn(self, block: int, cache: BlockCache) -> list[Any]:
        if cache.block == block:
            return cache.drawn
        indices = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.int64)
        drawn: list[Any] = []
        made: dict[str, Any] = {}
        if self._function is not None:
            made = call_generator(self._function, block, self._function_stream.at(block))
        for i, column in enumerate(self._columns):
            if isinstance(column, GeneratedColumn):
                drawn.append(column.draw(indices, self._streams[i].at(block)))
            elif column is not None:
                drawn.append(indices)  # a placeholder: `columns` stamps the records when they are emitted
            else:
                name = self.type.names[i]
                if name not in made:
                    raise SchemaError(
                        f"the generator function returned {', '.join(made) or 'no column'}, but not {name!r}."
                    )
                drawn.append(made[name])
        cache.block, cache.drawn = block, drawn
        return drawn

    def _typed(self, i: int, values: Any) -> pa.Array:
        field = self.type.schema.field(i)
        try:
            array = values if isinstance(values, pa.Array) else pa.array(values, field.type)
            if value_type(array.type) != field.type:
                array = array.cast(field.type)
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise SchemaError(
                f"the generator function's column {field.name!r} cannot be {field.type}: {e}"
            ) from e
        if array.null_count and not field.nullable:
            raise SchemaError(
                f"the generator function's column {field.name!r} has nulls; declare it nullable."
            )
        return array


def call_generator(function: GeneratorFunction, block: int, rng: np.random.Generator) -> dict[str, Any]:
    """Call the user's function for a block, and check that its columns have the block's length."""
    indices = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.int64)
    made: Any = function(indices, rng)
    if isinstance(made, pa.RecordBatch):
        made = dict(zip(made.schema.names, made.columns, strict=True))
    if not isinstance(made, Mapping):
        raise SchemaError(
            f"the generator function must return a dict of arrays or a record batch, not {kind_of(made)}."
        )
    for name, values in made.items():
        if len(values) != BLOCK:
            raise SchemaError(
                f"the generator function's column {name!r} has {len(values)} values for {BLOCK} indices."
            )
    return {
        name: values if isinstance(values, (np.ndarray, pa.Array)) else pa.array(list(values))
        for name, values in made.items()
    }


def _join(parts: list[Any]) -> Any:
    if isinstance(parts[0], pa.Array):
        return pa.chunked_array(parts).combine_chunks()
    return np.concatenate(parts)


def value_type(arrow_type: pa.DataType) -> pa.DataType:
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
