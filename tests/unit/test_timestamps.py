"""The timestamps of a batch stay with their records wherever batches are cut, merged and sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import Environment, OutputTag
from tidegate.core.errors import ProtocolError
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.program import partitioning as p
from tidegate.program.key_types import make_key
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType, record_type_of
from tidegate.records.wire import decode_batch, encode_batch, encode_columns
from tidegate.taskmanager.credits import SenderCredits
from tidegate.taskmanager.output_channel import OutputChannel, merge
from tidegate.taskmanager.partitioners import make_partitioner
from tidegate.testing.harness import OperatorHarness

PAIR = record_type_of(tuple[int, str])
OBJECT = record_type_of(object)


def stamped(numbers: list[int], form: str, record_type: RecordType = PAIR) -> Batch:
    """Records whose timestamp is ten times their number."""
    rows: list[Any] = [(n, f"app {n % 3}") for n in numbers]
    stamps = pa.array([10 * n for n in numbers], pa.int64())
    if form == "rows":
        return Batch(record_type, rows=rows, timestamps=stamps)
    columns = record_type.to_columns(rows)
    if form == "dictionary":
        columns = columns.set_column(1, "f1", columns.column(1).dictionary_encode())
    return Batch(record_type, columns=columns, timestamps=stamps)


def assert_stamped(batch: Batch) -> None:
    assert batch.timestamps is not None
    assert batch.timestamps.to_pylist() == [10 * row[0] for row in batch.rows]


def modulo(key: int, n: int) -> int:
    return key % n


PARTITIONINGS = {
    "hash of a number": p.Hash(make_key(PAIR, ("f0",), None)),
    "hash of a string": p.Hash(make_key(PAIR, ("f1",), None)),
    "hash of a function": p.Hash(make_key(PAIR, (lambda row: row[0] % 5,), int)),
    "rebalance": p.Rebalance(),
    "shuffle": p.Shuffle(),
    "broadcast": p.Broadcast(),
    "custom": p.Custom(modulo, make_key(PAIR, ("f0",), None)),
}


@pytest.mark.parametrize("form", ["rows", "columns", "dictionary"])
@pytest.mark.parametrize("consumers", [1, 2, 3, 12])
@pytest.mark.parametrize("partitioning", PARTITIONINGS)
@pytest.mark.parametrize("size", [3, 40])
def test_partitioners_keep_them(partitioning, consumers, form, size):
    partition = make_partitioner(PARTITIONINGS[partitioning], consumers, 128, 0, "source")
    parts = partition(stamped(list(range(size)), form))
    assert sum(batch.num_rows for _, batch in parts) == size * (
        consumers if partitioning == "broadcast" else 1
    )
    for _, batch in parts:
        assert_stamped(batch)


def test_objects_keep_them_when_they_are_split():
    partition = make_partitioner(p.Shuffle(), 3, 128, 0, "source")
    for _, batch in partition(stamped(list(range(20)), "rows", OBJECT)):
        assert_stamped(batch)


@given(st.lists(st.tuples(st.sampled_from(["rows", "columns", "dictionary"]), st.integers(1, 5)), min_size=1))
def test_merged_batches_keep_them(pieces):
    batches, first = [], 0
    for form, size in pieces:
        batches.append(stamped(list(range(first, first + size)), form))
        first += size
    merged = merge(batches)
    assert merged.num_rows == first
    assert_stamped(merged)


def test_records_without_one_beside_others_that_have_one_get_null():
    without = Batch(PAIR, rows=[(7, "a"), (8, "b")])
    merged = merge([without, stamped([3], "rows"), without])
    assert merged.timestamps is not None
    assert merged.timestamps.to_pylist() == [None, None, 30, None, None]
    assert merge([without, without]).timestamps is None


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("rows", [5, 2000])
def test_a_channel_that_gathers_and_cuts_keeps_them(remote, rows):
    sent: list[Batch] = []

    def deliver(channel: ChannelId, element: Any, backlog: int) -> int:
        sent.append(element)
        return 0

    channel = OutputChannel(ChannelId(EdgeId(0), 0, 0), SenderCredits(1000), 4096, deliver, remote=remote)
    for first in range(0, 10 * rows, rows):
        channel.add(stamped(list(range(first, first + rows)), "rows"), 0)
    channel.flush()
    assert sum(batch.num_rows for batch in sent) == 10 * rows
    for batch in sent:
        assert_stamped(batch)


@pytest.mark.parametrize("form", ["rows", "columns", "dictionary"])
def test_they_cross_the_wire_and_their_absence_does(form):
    batch = stamped(list(range(50)), form)
    arrived = decode_batch(encode_batch(batch.slice(10, 30)), PAIR)
    assert arrived.columns.schema.names == PAIR.names
    assert arrived.rows == batch.rows[10:40]
    assert_stamped(arrived)
    batch.timestamps = None
    assert encode_batch(batch).equals(encode_columns(batch.columns)), "no byte more"
    assert decode_batch(encode_batch(batch), PAIR).timestamps is None


def test_a_column_of_the_same_name_is_not_taken_for_them():
    named = record_type_of(pa.schema([pa.field("$timestamp", pa.int64())]))
    columns = named.to_columns([{"$timestamp": 5}])
    plain = decode_batch(encode_columns(columns), named)
    assert plain.timestamps is None
    assert plain.columns.column(0).to_pylist() == [5]
    both = decode_batch(encode_batch(Batch(named, columns=columns, timestamps=pa.array([7]))), named)
    assert (both.columns.column(0).to_pylist(), both.timestamps.to_pylist()) == ([5], [7])


def test_a_frame_with_another_last_column_is_refused():
    columns = PAIR.to_columns([(1, "a")])
    for name, values in (("other", pa.array([1])), ("$timestamp", pa.array(["1"]))):
        with pytest.raises(ProtocolError, match="a frame has columns"):
            decode_batch(encode_columns(columns.append_column(name, values)), PAIR)


def test_what_goes_to_a_side_output_has_the_timestamp_of_its_record():
    tag: OutputTag[int] = OutputTag("odd", int)

    def divide(value: int, context: Any) -> list[int]:
        for _ in range(value % 2 * value):
            context.output(tag, value)
        return [value] * 2

    env = Environment(runtime="in-process")
    stream = env.from_collection([1]).process(divide, returns=int, side_outputs=(tag,))
    with OperatorHarness.of(stream) as h:
        h.push_batch(Batch(h.input_types[0], rows=[1, 2, 3], timestamps=pa.array([10, 20, 30])))
        assert h.batches[0].timestamps.to_pylist() == [10, 10, 20, 20, 30, 30]
        (side,) = h._side["odd"]
        assert side.rows == [1, 3, 3, 3]
        assert side.timestamps.to_pylist() == [10, 30, 30, 30]
