"""The data generator source: seeded records, at full speed or at a precise rate, bounded or not.

- bounded, no rate: readers request spans of blocks as they finish earlier ones;
- unbounded, no rate: reader k of p makes the blocks k, k + p, ...;
- with a rate: reader k of p makes the records k, k + p, ..., each due at (index / rate) after the start, so all readers
  together emit an even stream in the order of the indices. A poll returns the records due now; after a stall the reader
  catches up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any, TypedDict, Unpack, overload

import msgspec
import pyarrow as pa
from typing_extensions import TypeForm

from tidegate.api.known_splits import KnownSplitsSource, RequestingReader
from tidegate.api.source import Boundedness, Finished, Idle, ReaderContext, Source, SourceReader, SourceSplit
from tidegate.connectors.datagen.blocks import (
    BLOCK,
    BlockCache,
    BlockGenerator,
    GeneratorFunction,
    GeneratorSplit,
    RandomStream,
    call_generator,
    value_type,
)
from tidegate.connectors.datagen.columns import Column, GeneratedColumn, StampedColumn
from tidegate.core.clock import Clock, SystemClock
from tidegate.core.durations import parse_duration_ms
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.identity import Identity, function_identity
from tidegate.core.words import number_of
from tidegate.program.sequences import spans_for
from tidegate.records.batch import Batch, Origin
from tidegate.records.rows import Row
from tidegate.records.type_variables import AnyRecordOut, T
from tidegate.records.types import RecordType, RowType, record_type_of

_ENDLESS = 1 << 62
_NS_PER_S = 1_000_000_000


class Pace(TypedDict, total=False):
    """The keyword arguments of a `DataGeneratorSource` for the number and the rate of the records."""

    count: int | None
    rate: float | None
    seed: int
    tick: str | float | timedelta


class DataGeneratorSource(KnownSplitsSource[AnyRecordOut]):
    """Generates records from columns, from a function, or from both; the same seed gives the same records.

    `fields` names the columns (see `columns`). The source calls `generator` as `f(indices, rng)` with 8,192
    consecutive indices and a numpy generator keyed by (seed, block); it returns a dict of arrays or a record batch of
    that length. With both, the fields follow the function's columns. `schema` (an Arrow schema, a dataclass, a type
    hint) is needed only if the types should differ from those of the first block.

    `count` None: never ends. `rate`: records per second over all subtasks; None: full speed. `tick`: the least time
    between two batches of a rate-limited reader.

    >>> from tidegate.connectors.datagen import sequence, zipf_choice
    >>> clicks = DataGeneratorSource(fields={"app": zipf_choice(["a", "b"]), "ts": sequence(step=10)}, count=4)
    >>> clicks.preview(4).column("ts").to_pylist()
    [0, 10, 20, 30]
    >>> def squares(indices, rng):
    ...     return {"n": indices, "square": indices**2}
    >>> DataGeneratorSource(squares, rate=1000).describe()
    'generator squares, unbounded, 1000 records/s'
    """

    split_type = GeneratorSplit

    @overload
    def __init__(
        self: DataGeneratorSource[Row],
        generator: GeneratorFunction | None = None,
        *,
        fields: Mapping[str, Column] | None = None,
        **pace: Unpack[Pace],
    ) -> None: ...

    @overload
    def __init__(
        self: DataGeneratorSource[T],
        generator: GeneratorFunction | None = None,
        *,
        fields: Mapping[str, Column] | None = None,
        schema: TypeForm[T],
        **pace: Unpack[Pace],
    ) -> None: ...

    def __init__(
        self,
        generator: GeneratorFunction | None = None,
        *,
        fields: Mapping[str, Column] | None = None,
        count: int | None = None,
        rate: float | None = None,
        seed: int = 0,
        schema: object = None,
        tick: str | float | timedelta = "0.5 ms",
    ) -> None:
        if generator is None and not fields:
            raise ProgramError("data generator: give it a generator function or fields.")
        if generator is not None and not callable(generator):
            raise ProgramError(
                f"data generator: the generator must be a function of (indices, rng), not a "
                f"{type(generator).__name__}. Columns by name are given as fields={{...}}."
            )
        for name, column in (fields or {}).items():
            if not isinstance(column, (GeneratedColumn, StampedColumn)):
                raise ProgramError(
                    f"data generator: field {name!r} must be a column such as uniform_int(0, 10), not {column!r}."
                )
        if count is not None and not 0 <= count < _ENDLESS:
            raise ProgramError(f"data generator: count must be from 0 to 2**62, got {count}.")
        if rate is not None and not 0 < rate < float("inf"):
            raise ProgramError(f"data generator: rate must be positive records per second, got {rate}.")
        self._generator = generator
        self._fields: dict[str, Column] = dict(fields or {})
        self._count = count
        self._rate = None if rate is None else Fraction(rate).limit_denominator(1_000_000)
        if self._rate == 0:
            raise ProgramError(f"data generator: rate {rate} is less than a record in 11 days.")
        self._seed = int(seed)
        self._tick_ns = _tick_ns(tick)
        super().__init__(self._infer_type() if schema is None else record_type_of(schema))
        if schema is not None:
            self._check_names(set(self._type.names))

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED if self._count is None else Boundedness.BOUNDED

    @property
    def on_request(self) -> bool:
        """Whether readers request spans (bounded, no rate); otherwise each reader has one share from the start."""
        return self._count is not None and self._rate is None

    @property
    def expected_records(self) -> int | None:
        return self._count

    def splits(self, parallelism: int) -> list[SourceSplit]:
        if self._count is not None and self.on_request:
            spans = spans_for(self._count, parallelism, BLOCK)
            return [GeneratorSplit(id=f"records {a}..{b - 1}", start=a, end=b) for a, b in spans]
        end = _ENDLESS if self._count is None else self._count
        unit = BLOCK if self._rate is None else 1
        return [
            GeneratorSplit(
                id=f"share {k + 1} of {parallelism}", start=0, end=end, share=k, shares=parallelism, unit=unit
            )
            for k in range(parallelism)
        ]

    def create_reader(self, context: ReaderContext) -> SourceReader[AnyRecordOut]:
        return _GeneratorReader(context, self._blocks(), self._rate, self._tick_ns)

    def with_columns(self, names: Sequence[str]) -> Source[Row] | None:
        """A source of only these fields; a field's values do not depend on the other fields."""
        if self._generator is not None or not set(names) <= set(self._fields) or not names:
            return None
        fields = {name: self._fields[name] for name in names}
        schema = pa.schema([self._type.schema.field(name) for name in names])
        narrow = DataGeneratorSource(fields=fields, count=self._count, seed=self._seed, schema=schema)
        narrow._rate, narrow._tick_ns = self._rate, self._tick_ns
        return narrow

    def preview(self, count: int, clock: Clock | None = None) -> pa.RecordBatch:
        """The first records (at most the first block) as the job will see them, generated in this process."""
        first = slice(0, min(count, BLOCK), 1)
        return self._blocks().columns([(0, first)], BlockCache(), clock or SystemClock())

    def describe(self) -> str:
        function = self._generator
        names = [] if function is None else [getattr(function, "__name__", type(function).__name__)]
        count = "unbounded" if self._count is None else number_of(self._count, "record")
        rate = "" if self._rate is None else f", {float(self._rate):g} records/s"
        return f"generator {', '.join(names + list(self._fields))}, {count}{rate}"

    def identity(self) -> Identity:
        """The function, the fields and the count; the rate may change between runs."""
        function = None if self._generator is None else function_identity(self._generator)
        return "generator", function, tuple(self._fields), self._count

    def _blocks(self) -> BlockGenerator:
        return BlockGenerator(self._generator, self._fields, self._seed, self._type)

    def _infer_type(self) -> RecordType:
        fields = []
        if self._generator is not None:
            made = call_generator(self._generator, 0, RandomStream(self._seed, "").at(0))
            for name, values in made.items():
                nullable = isinstance(values, pa.Array) or values.dtype == object
                array = values if isinstance(values, pa.Array) else pa.array(values)
                fields.append(pa.field(name, value_type(array.type), nullable))
        fields += [pa.field(name, column.arrow_type, False) for name, column in self._fields.items()]
        return RowType(pa.schema(fields))

    def _check_names(self, declared: set[str]) -> None:
        unknown = [name for name in self._fields if name not in declared]
        missing = [] if self._generator is not None else sorted(declared - set(self._fields))
        if unknown or missing:
            raise SchemaError(
                f"data generator: the fields are {', '.join(self._fields)}, "
                f"but the schema has {', '.join(self._type.names)}."
            )


def _tick_ns(tick: str | float | timedelta) -> int:
    """Nanoseconds of a duration; unlike in an option, fractions of a millisecond are allowed."""
    try:
        if isinstance(tick, timedelta):
            return round(tick.total_seconds() * _NS_PER_S)
        if isinstance(tick, str):
            number = tick.rstrip("abcdefghijklmnopqrstuvwxyzµμ ")
            unit = tick[len(number) :].strip() or "ms"
            # The parser takes whole milliseconds only: a million times the duration, in ms, is its nanoseconds.
            return parse_duration_ms(f"{Fraction(number) * 1_000_000} {unit}")
        return round(tick * 1_000_000)
    except ValueError as e:
        raise ProgramError(f"data generator: tick {tick!r} is not a duration such as '0.5 ms': {e}") from e


class _Progress:
    """A split being read: its position, when it started, and when it may emit again."""

    __slots__ = ("cache", "first_turn", "next_emit_ns", "position", "size", "split", "started_ns")

    def __init__(self, split: GeneratorSplit) -> None:
        self.split = split
        self.position = split.position
        self.size = split.size()
        self.cache = BlockCache()
        self.first_turn = split.position // split.unit
        self.started_ns: int | None = None
        self.next_emit_ns = 0


class _GeneratorReader(RequestingReader):
    """Generates the records of its splits in turn; with a rate, only those that are due."""

    last_split = ""

    def __init__(
        self, context: ReaderContext, blocks: BlockGenerator, rate: Fraction | None, tick_ns: int
    ) -> None:
        super().__init__(context)
        self._blocks = blocks
        # An exact fraction: a record is due at exactly the nanosecond at which the reader asked to be woken.
        self._paced = rate is not None
        self._records, self._per_ns = (rate / _NS_PER_S).as_integer_ratio() if rate is not None else (0, 1)
        self._tick_ns = tick_ns
        self._splits: list[_Progress] = []

    def poll(self) -> Batch | Idle | Finished:
        """Return the next records of one split; the splits take turns."""
        wake_at_ns: int | None = None
        for _ in range(len(self._splits)):
            progress = self._splits.pop(0)
            if progress.position >= progress.size:
                continue
            self._splits.append(progress)
            stop, wake = self._due(progress)
            if stop > progress.position:
                return self._emit(progress, stop)
            wake_at_ns = wake if wake_at_ns is None else min(wake_at_ns, wake)
        if wake_at_ns is not None:
            return Idle(wake_at_ns)
        return self.out_of_splits()

    def records_behind(self) -> int | None:
        """With a rate: how many records are due and not yet generated."""
        if not self._paced:
            return None
        now = self._context.clock.monotonic_ns()
        return sum(max(0, self._due_position(p, now) - p.position) for p in self._splits)

    def _due_position(self, progress: _Progress, now_ns: int) -> int:
        """The position up to which a split's records are due.

        Record j of the whole stream is due j / rate after the start; a split has every `shares`-th record, beginning
        with number `share`.
        """
        if progress.started_ns is None:
            return progress.position
        number = (now_ns - progress.started_ns) * self._records // self._per_ns
        due = progress.first_turn + (number - progress.split.share) // progress.split.shares + 1
        return min(due, progress.size)

    def _due(self, progress: _Progress) -> tuple[int, int]:
        """The position up to which this split may emit now; if nothing is due, also when to ask again."""
        position = progress.position
        most = min(progress.size, position + self._context.batch_rows)
        if not self._paced:
            return most, 0
        now = self._context.clock.monotonic_ns()
        if progress.started_ns is None:
            progress.started_ns = now
        share, shares = progress.split.share, progress.split.shares
        if now >= progress.next_emit_ns:
            due = self._due_position(progress, now)
            if due > position:
                progress.next_emit_ns = now if due > most else now + self._tick_ns
                return min(due, most), 0
        next_number = (position - progress.first_turn) * shares + share
        next_due_ns = progress.started_ns - (-next_number * self._per_ns // self._records)
        return position, max(next_due_ns, progress.next_emit_ns)

    def _emit(self, progress: _Progress, stop: int) -> Batch:
        split, start = progress.split, progress.position
        progress.position = stop
        self.last_split = split.id
        columns = self._blocks.columns(list(split.pieces(start, stop)), progress.cache, self._context.clock)
        return Batch(self._blocks.type, columns=columns, origin=Origin(split.id, start))

    def add_splits(self, splits: Sequence[Any]) -> None:
        super().add_splits(splits)
        self._splits.extend(_Progress(split) for split in splits)

    def snapshot(self) -> list[Any]:
        """The unfinished splits, each at its current position."""
        return [
            msgspec.structs.replace(p.split, position=p.position) for p in self._splits if p.position < p.size
        ]
