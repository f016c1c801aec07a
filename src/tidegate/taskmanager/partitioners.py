"""Partitioners: which records of a batch go to which consumer. Vectorised where the key is in columns."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.core.errors import ProgramError
from tidegate.keys.hashing import NULL_HASH, Hashes, hash_column, hash_columns, hash_values
from tidegate.keys.key_group_columns import channel_for_key_groups, channel_table, key_groups
from tidegate.operators.failures import blame
from tidegate.operators.functions.row_keys import canonical_keys, key_values
from tidegate.program import partitioning as p
from tidegate.program.operations import Key
from tidegate.records.batch import Batch
from tidegate.records.column_bits import CodeTable
from tidegate.records.column_split import cut_numbers
from tidegate.records.columns import brief, build_column
from tidegate.records.recent_dictionaries import RecentDictionaries
from tidegate.records.types import RecordType, TupleType

Parts = list[tuple[int, Batch]]
"""Pairs of a position in the list of consumers and the records for it; no empty batch."""

Partitioner = Callable[[Batch], Parts]

_FEW_ROWS = 32
_FEW_CONSUMERS = 8
"""Up to here a comparison per consumer is faster than a sort."""
_MANY_ROWS = 16384
"""From here on a filter per consumer and column of numbers is faster than a gather."""
_MOST_RECENT = 1 << 16


def reachable_consumers(pointwise: bool, producer: int, producers: int, consumers: int) -> range:
    """The consumer subtasks that a producer subtask sends to."""
    if not pointwise:
        return range(consumers)
    if consumers >= producers:
        return range(producer * consumers // producers, (producer + 1) * consumers // producers)
    only = producer * consumers // producers
    return range(only, only + 1)


def make_partitioner(
    partitioning: p.Partitioning, consumers: int, max_parallelism: int, producer: int, operator: str
) -> Partitioner:
    """The partitioner of one producer subtask over `consumers` reachable ones; errors blame `operator`."""
    if isinstance(partitioning, p.Broadcast):
        return _Broadcast(consumers)
    if consumers == 1 and not isinstance(partitioning, p.Custom):
        return _to_first
    if isinstance(partitioning, p.Hash):
        return _HashPartitioner(partitioning.key, consumers, max_parallelism, operator)
    if isinstance(partitioning, (p.Rebalance, p.Rescale)):
        return _RoundRobin(consumers, producer)
    if isinstance(partitioning, p.Shuffle):
        return _Shuffle(consumers, producer)
    if isinstance(partitioning, p.Custom):
        return _Custom(partitioning, consumers, operator)
    return _to_first


def _to_first(batch: Batch) -> Parts:
    return [(0, batch)]


class _Broadcast:
    """Every consumer gets a batch of its own, so that rows are never shared between subtasks."""

    def __init__(self, consumers: int) -> None:
        self._consumers = consumers

    def __call__(self, batch: Batch) -> Parts:
        return [(i, batch.without_rows()) for i in range(self._consumers)]


class _HashPartitioner:
    """By key group. Keys of rows without columns, and of batches of a few rows, are looked up one by one.

    For a few rows, vectorised hashing has a fixed cost of many look-ups. For rows, looking up saves the conversion to
    columns, which records that stay in this slot then never need.
    """

    def __init__(self, key: Key, consumers: int, max_parallelism: int, operator: str) -> None:
        self._key = key
        self._consumers = consumers
        self._max_parallelism = max_parallelism
        self._operator = operator
        self._table = channel_table(consumers, max_parallelism)
        self._recent: dict[Any, int] = {}
        self._of_dictionary: RecentDictionaries[CodeTable] = RecentDictionaries()

    def __call__(self, batch: Batch) -> Parts:
        names = self._key.columns
        if self._key.function is not None:
            with blame(self._operator):
                function = self._key.function
                keys = [function(r) for r in batch.rows]  # map() would end at a StopIteration
                hashes = hash_values(canonical_keys(keys, self._key.record_type))
            return split(batch, self._targets(hashes), self._consumers)
        by_rows = not batch.has_columns and batch.timestamps is None and names[0] not in batch.type.coded
        if by_rows and len(names) == 1 and _is_simple(batch.type.schema.field(names[0]).type):
            return self._split_rows(batch, names)
        batch = _without_large_dictionaries(batch)
        columns = [batch.columns.column(name) for name in names]
        if batch.num_rows <= _FEW_ROWS and len(columns) == 1 and _is_simple(columns[0].type):
            found = self._look_up(batch, columns[0].to_pylist())
            return split(batch, np.array(found, dtype=np.uint16), self._consumers)
        if len(columns) == 1 and pa.types.is_dictionary(columns[0].type):
            return split(batch, self._targets_by_code(columns[0]), self._consumers)
        return split(batch, self._targets(hash_columns(columns)), self._consumers)

    def _targets_by_code(self, column: pa.DictionaryArray) -> pa.Array:
        """Hash each value of a dictionary once; the results of recent dictionaries are kept."""
        targets = self._of_dictionary.find(column.dictionary)
        if targets is None:
            found = self._targets(np.append(hash_column(column.dictionary), np.uint64(NULL_HASH)))
            targets = CodeTable(found.astype(np.min_scalar_type(self._consumers)))
            self._of_dictionary.keep(column.dictionary, targets)
        return targets.look_up(column)

    def _targets(self, hashes: Hashes) -> npt.NDArray[np.uint16]:
        return channel_for_key_groups(key_groups(hashes, self._max_parallelism), self._table)

    def _split_rows(self, batch: Batch, names: tuple[str, ...]) -> Parts:
        """Split rows without timestamps, without making columns."""
        if not isinstance(batch.type, TupleType):
            return split_rows(batch, self._look_up(batch, key_values(batch, names)), self._consumers)
        position = batch.type.field_index(names[0], "the key")
        try:
            parts = _cut_tuples(batch.rows, position, self._recent, self._consumers)
        except (KeyError, TypeError):  # a new key, or a value that cannot be one, which _learn refuses
            self._learn(batch, key_values(batch, names))
            parts = _cut_tuples(batch.rows, position, self._recent, self._consumers)
        return _rows_to(batch.type, parts)

    def _look_up(self, batch: Batch, keys: list[Any]) -> list[int]:
        recent = self._recent
        with contextlib.suppress(KeyError):
            return list(map(recent.__getitem__, keys))
        self._learn(batch, keys)
        return [recent[k] for k in keys]

    def _learn(self, batch: Batch, keys: list[Any]) -> None:
        """Find the targets of new keys; one that is not of the key's type raises `SchemaError`."""
        recent = self._recent
        if len(recent) > _MOST_RECENT:
            recent.clear()
        field = batch.type.schema.field(self._key.columns[0])
        try:
            missing = list(set(keys).difference(recent))
        except TypeError:
            build_column(field, keys, None)
            raise
        column = build_column(field, missing, None)
        recent.update(zip(missing, self._targets(hash_columns([column])).tolist(), strict=True))


def _is_simple(t: pa.DataType) -> bool:
    """Types whose Python values are equal exactly when their keys are."""
    return bool(pa.types.is_integer(t) or pa.types.is_string(t) or pa.types.is_binary(t))


def _without_large_dictionaries(batch: Batch) -> Batch:
    """Decode a dictionary that is longer than the batch: hashing and sending it would cost more than its rows."""
    columns = batch.columns
    large = [
        i
        for i, c in enumerate(columns.columns)
        if pa.types.is_dictionary(c.type) and len(c.dictionary) > batch.num_rows
    ]
    if not large:
        return batch
    arrays = columns.columns
    for i in large:
        arrays[i] = arrays[i].dictionary_decode()
    decoded = pa.RecordBatch.from_arrays(arrays, names=batch.type.names)
    return batch.with_columns(batch.type, decoded)


class _RoundRobin:
    """Splits a batch into contiguous, nearly equal parts; the first consumer is another one for every batch."""

    def __init__(self, consumers: int, producer: int) -> None:
        self._consumers = consumers
        self._next = producer % consumers

    def __call__(self, batch: Batch) -> Parts:
        n, rows, first = self._consumers, batch.num_rows, self._next
        bounds = [i * rows // n for i in range(n + 1)] if rows >= n else [*range(rows), rows]
        parts = [
            ((first + i) % n, batch.slice(start, end - start))
            for i, (start, end) in enumerate(itertools.pairwise(bounds))
        ]
        self._next = (first + len(parts)) % n if rows < n else (first + 1) % n
        return parts


class _Shuffle:
    def __init__(self, consumers: int, producer: int) -> None:
        self._consumers = consumers
        self._random = np.random.default_rng(producer)

    def __call__(self, batch: Batch) -> Parts:
        target = self._random.integers(0, self._consumers, batch.num_rows, dtype=np.uint16)
        return split(batch, target, self._consumers)


class _Custom:
    def __init__(self, partitioning: p.Custom, consumers: int, operator: str) -> None:
        self._partitioning = partitioning
        self._consumers = consumers
        self._operator = operator

    def __call__(self, batch: Batch) -> Parts:
        function, n = self._partitioning.function, self._consumers
        key = self._partitioning.key
        with blame(self._operator):
            keys = (
                key_values(batch, key.columns)
                if key.function is None
                else [key.function(r) for r in batch.rows]
            )
            targets = [function(key, n) for key in keys]
            for key, target in zip(keys, targets, strict=True):
                if type(target) is not int or not 0 <= target < n:
                    raise ProgramError(
                        f"the partition function returned {target!r} for key {brief(key)}; "
                        f"it must return a number from 0 to {n - 1}"
                    )
        return split(batch, np.array(targets, dtype=np.uint16), n)


def split(batch: Batch, target: npt.NDArray[np.uint16] | pa.Array, consumers: int) -> Parts:
    """Split a batch by target, in order within each part: filters for large columns of numbers, else one gather."""
    if consumers <= _FEW_CONSUMERS and batch.num_rows >= _MANY_ROWS and batch.has_columns:
        parts = _cut_columns(batch, target, consumers)
        if parts is not None:
            return parts
    if isinstance(target, pa.Array):
        target = target.to_numpy()
    if consumers <= _FEW_CONSUMERS:
        chosen = [np.flatnonzero(target == c) for c in range(consumers)]
        counts = [len(c) for c in chosen]
        order = np.concatenate(chosen)
    else:
        counts = np.bincount(target, minlength=consumers).tolist()
        order = np.argsort(target, kind="stable")
    used = [c for c in range(consumers) if counts[c]]
    if len(used) == 1:
        return [(used[0], batch)]
    as_rows = batch.type.is_object and batch.has_rows
    gathered = (batch if as_rows else batch.without_rows()).take(order)
    parts = []
    start = 0
    for consumer in used:
        parts.append((consumer, gathered.slice(start, counts[consumer])))
        start += counts[consumer]
    return parts


def _cut_columns(batch: Batch, target: npt.NDArray[np.uint16] | pa.Array, consumers: int) -> Parts | None:
    columns = batch.columns
    if not columns.num_columns:
        return None
    arrays = columns.columns if batch.timestamps is None else [*columns.columns, batch.timestamps]
    cut = cut_numbers(arrays, target, consumers)
    if cut is None:
        return None
    parts: Parts = []
    for consumer, part in enumerate(cut):
        if part is not None:
            stamps = None if batch.timestamps is None else part.pop()
            made = pa.RecordBatch.from_arrays(part, schema=columns.schema)
            parts.append((consumer, Batch(batch.type, columns=made, timestamps=stamps)))
    return parts if len(parts) > 1 else [(parts[0][0], batch)]


def split_rows(batch: Batch, targets: list[int], consumers: int) -> Parts:
    """Split rows without timestamps by target, without making columns; order is kept within each part."""
    parts: list[list[Any]] = [[] for _ in range(consumers)]
    for row, target in zip(batch.rows, targets, strict=True):
        parts[target].append(row)
    return _rows_to(batch.type, parts)


def _cut_tuples(rows: list[Any], position: int, target_of: dict[Any, int], consumers: int) -> list[list[Any]]:
    """Split tuples by the target of their key in one pass; a key without a target raises `KeyError`.

    A plain loop: it is a few interpreter instructions per row, while each further pass over the rows, however fast its
    code, fetches all of them from memory again.
    """
    parts: list[list[Any]] = [[] for _ in range(consumers)]
    if consumers == 2:
        first, second = parts
        for row in rows:
            if target_of[row[position]]:
                second.append(row)
            else:
                first.append(row)
    else:
        for row in rows:
            parts[target_of[row[position]]].append(row)
    return parts


def _rows_to(record_type: RecordType, parts: list[list[Any]]) -> Parts:
    return [(c, Batch(record_type, rows=part)) for c, part in enumerate(parts) if part]
