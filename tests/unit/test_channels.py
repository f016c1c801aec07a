"""Channels: order kept, buffers of the configured size, nothing sent without credit; gates serve channels in turn."""

from __future__ import annotations

import itertools
from collections import deque

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import SchemaError
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.records.batch import Batch
from tidegate.records.elements import END_OF_INPUT, EndOfInput, Watermark
from tidegate.records.types import record_type_of
from tidegate.taskmanager.barriers.alignment import BarrierAlignment
from tidegate.taskmanager.credits import SenderCredits
from tidegate.taskmanager.input_gate import InputGate
from tidegate.taskmanager.output_channel import MANY_ROWS, MAX_BACKLOG, OutputChannel, merge

INT = record_type_of(int)
CHANNEL = ChannelId(EdgeId(0), 0, 0)
OTHER = ChannelId(EdgeId(0), 1, 0)


def batch(*rows: int) -> Batch:
    return Batch(INT, columns=INT.to_columns(list(rows)))


class Wire:
    """An output channel and what left it."""

    def __init__(self, credits: int, buffer_bytes: int = 1) -> None:
        self.sent: list[Batch | object] = []
        self.backlogs: list[int] = []
        self.channel = OutputChannel(CHANNEL, SenderCredits(credits), buffer_bytes, self.deliver)

    def deliver(self, channel: ChannelId, element, backlog: int) -> int:
        self.sent.append(element)
        self.backlogs.append(backlog)
        return element.nbytes() if isinstance(element, Batch) else 0

    @property
    def rows(self) -> list[int]:
        return [row for element in self.sent if isinstance(element, Batch) for row in element.rows]


def test_small_batches_gather_until_a_buffer_is_full():
    wire = Wire(credits=9, buffer_bytes=3 * 8)
    for i in range(7):
        wire.channel.add(batch(i), now_ns=i)
    assert [e.rows for e in wire.sent] == [[0, 1, 2], [3, 4, 5]]
    assert wire.channel.has_pending
    assert wire.channel.pending_since_ns == 6
    wire.channel.flush()
    assert wire.rows == list(range(7))
    assert wire.channel.is_drained
    assert wire.channel.bytes_out == 7 * 8


def test_a_large_batch_is_cut_into_buffers_of_about_the_configured_size():
    wire = Wire(credits=100, buffer_bytes=80)
    wire.channel.add(batch(*range(1000)), now_ns=0)
    assert wire.rows == list(range(1000))
    assert max(e.nbytes() for e in wire.sent) <= 2 * 80


def test_large_rows_go_over_a_wire_in_buffers_of_the_configured_size_too():
    text = record_type_of(str)
    sent: list[Batch] = []

    def deliver(channel: ChannelId, element, backlog: int) -> int:
        sent.append(element)
        return 0

    channel = OutputChannel(CHANNEL, SenderCredits(100), 10_000, deliver, remote=True)
    rows = [str(i) * 1_000 for i in range(100)]
    channel.add(Batch(text, rows=rows), now_ns=0)
    channel.flush()
    assert [row for element in sent for row in element.rows] == rows
    assert max(element.columns.nbytes for element in sent) <= 2 * 10_000


def test_many_rows_go_to_a_local_consumer_at_once_and_as_they_are():
    wire = Wire(credits=9, buffer_bytes=1 << 20)
    few, many = list(range(3)), list(range(3, 3 + MANY_ROWS))
    wire.channel.add(Batch(INT, rows=few), now_ns=0)
    assert wire.sent == []
    wire.channel.add(Batch(INT, rows=many), now_ns=0)
    assert wire.rows == few + many
    assert not any(element.has_columns for element in wire.sent)
    assert not wire.channel.has_pending


def test_many_rows_for_another_slot_become_columns_at_once_and_still_gather():
    wire = Wire(credits=9, buffer_bytes=1 << 20)
    channel = OutputChannel(CHANNEL, SenderCredits(9), 1 << 20, wire.deliver, remote=True)
    misfits: list[object] = ["no number"] * MANY_ROWS
    channel.add(Batch(INT, rows=list(range(MANY_ROWS))), now_ns=0)
    with pytest.raises(SchemaError, match="column 'value' is int64"):
        channel.add(Batch(INT, rows=misfits), now_ns=0)
    assert wire.sent == []
    channel.flush()
    assert wire.rows == list(range(MANY_ROWS))


def test_nothing_leaves_without_credit_and_the_producer_is_told_to_stop():
    wire = Wire(credits=1)
    for i in range(MAX_BACKLOG + 1):
        assert wire.channel.is_available
        wire.channel.add(batch(i), now_ns=0)
    assert wire.rows == [0]
    assert not wire.channel.is_available
    assert wire.channel.backlog == MAX_BACKLOG
    wire.channel.granted(1)
    assert wire.rows == [0, 1]
    assert wire.backlogs == [0, MAX_BACKLOG - 1], "each batch says how many wait behind it"
    assert wire.channel.is_available


def test_an_event_needs_no_credit_but_keeps_its_place_behind_batches_that_do():
    wire = Wire(credits=0, buffer_bytes=1000)
    wire.channel.add_event(Watermark(1))
    wire.channel.add(batch(1), now_ns=0)
    wire.channel.add_event(END_OF_INPUT)
    assert wire.sent == [Watermark(1)]
    assert not wire.channel.ended
    wire.channel.granted(1)
    assert wire.rows == [1]
    assert isinstance(wire.sent[-1], EndOfInput)
    assert wire.channel.ended


def test_merged_rows_stay_rows_and_mixed_encodings_become_the_declared_type():
    made = [object(), object()]
    objects = record_type_of(object)
    merged = merge([Batch(objects, rows=made[:1]), Batch(objects, rows=made[1:])])
    assert all(a is b for a, b in zip(merged.rows, made, strict=True))
    text = record_type_of(str)
    plain = text.to_columns(["a", "b"])
    encoded = pa.RecordBatch.from_arrays([pa.array(["b", "c"]).dictionary_encode()], names=plain.schema.names)
    both = merge([Batch(text, columns=plain), Batch(text, columns=encoded)])
    assert both.rows == ["a", "b", "b", "c"]


def test_merged_dictionaries_are_one_or_are_decoded_where_codes_are_too_narrow_for_all_values():
    text = record_type_of(str)

    def encoded(first: int, count: int) -> Batch:
        values = pa.array([f"word-{i}" for i in range(first, first + count)])
        codes = pa.array(range(count), pa.int16())
        return Batch(
            text,
            columns=pa.RecordBatch.from_arrays(
                [pa.DictionaryArray.from_arrays(codes, values)], names=text.schema.names
            ),
        )

    few = merge([encoded(0, 20), encoded(10, 20)])
    assert few.columns.column(0).type == pa.dictionary(pa.int16(), pa.string())
    assert len(few.columns.column(0).dictionary) == 30
    assert few.rows == [f"word-{i}" for i in (*range(20), *range(10, 30))]
    many = merge([encoded(0, 20_000), encoded(20_000, 20_000)])
    assert many.columns.column(0).type == pa.string()
    assert many.rows == [f"word-{i}" for i in range(40_000)]


class Local:
    """Two producers and a gate in one slot, wired as `Slot` wires a local exchange: calls, no queue between."""

    def __init__(self, exclusive: int, floating: int, buffer_bytes: int) -> None:
        inputs = {CHANNEL: 0, OTHER: 0}
        self.gate = InputGate(inputs, exclusive, floating, self.grant, BarrierAlignment(inputs))
        self.channels = {
            id: OutputChannel(id, SenderCredits(n), buffer_bytes, self.deliver)
            for id, n in self.gate.initial_credits().items()
        }
        self.received: dict[ChannelId, list[object]] = {CHANNEL: [], OTHER: []}

    def grant(self, id: ChannelId, n: int) -> None:
        self.channels[id].granted(n)

    def deliver(self, id: ChannelId, element, backlog: int) -> int:
        size = element.nbytes() if isinstance(element, Batch) else 0
        self.gate.receive(id, element, backlog)
        return size

    def poll(self) -> bool:
        found = self.gate.poll()
        if found is None:
            return False
        _, id, element = found
        assert "end" not in self.received[id], "nothing comes behind the end of input"
        if isinstance(element, Batch):
            self.received[id] += element.rows
        else:
            self.received[id].append("end")
            self.gate.end_channel(id)
        return True


def test_a_local_channel_keeps_the_order_when_floating_credits_come_while_it_sends():
    local = Local(exclusive=1, floating=8, buffer_bytes=8)
    local.channels[CHANNEL].add(batch(*range(20)), now_ns=0)
    local.channels[CHANNEL].add_event(END_OF_INPUT)
    while local.poll():
        pass
    assert local.received[CHANNEL] == [*range(20), "end"]


def test_bytes_out_of_a_local_channel_count_every_batch_once():
    local = Local(exclusive=1, floating=8, buffer_bytes=8)
    local.channels[CHANNEL].add(batch(*range(20)), now_ns=0)
    while local.poll():
        pass
    assert local.channels[CHANNEL].bytes_out == 20 * 8


@given(
    st.integers(1, 3),
    st.integers(0, 4),
    st.sampled_from([1, 8, 24, 1000]),
    st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 3)), max_size=30),
)
def test_a_local_exchange_loses_doubles_and_reorders_nothing(exclusive, floating, buffer_bytes, adds):
    local = Local(exclusive, floating, buffer_bytes)
    numbers = itertools.count()
    expected: dict[ChannelId, list[object]] = {CHANNEL: [], OTHER: []}
    for first, size, polls in adds:
        id = CHANNEL if first else OTHER
        rows = list(itertools.islice(numbers, size))
        expected[id] += rows
        local.channels[id].add(batch(*rows), now_ns=0)
        for _ in range(polls):
            local.poll()
    for channel in local.channels.values():
        channel.add_event(END_OF_INPUT)
    while local.poll():
        pass
    assert local.received == {id: [*rows, "end"] for id, rows in expected.items()}
    assert local.gate.all_ended
    assert local.gate.backlog == 0
    assert all(c.is_drained and c.ended for c in local.channels.values())


def test_a_gate_serves_its_channels_in_turn():
    inputs = {CHANNEL: 0, OTHER: 1}
    gate = InputGate(inputs, 3, 0, lambda channel, n: None, BarrierAlignment(inputs))
    for i in range(3):
        gate.receive(CHANNEL, batch(i), 0)
    gate.receive(OTHER, batch(10), 0)
    served = deque()
    while (found := gate.poll()) is not None:
        served.append((found[0], found[2].rows))
    assert list(served) == [(0, [0]), (1, [10]), (0, [1]), (0, [2])]


def test_an_input_has_ended_when_its_last_channel_has():
    inputs = {CHANNEL: 0, OTHER: 0, ChannelId(EdgeId(1), 0, 0): 1}
    gate = InputGate(inputs, 1, 0, lambda channel, n: None, BarrierAlignment(inputs))
    assert not gate.end_channel(CHANNEL)
    assert gate.end_channel(OTHER)
    assert not gate.all_ended
    assert gate.end_channel(ChannelId(EdgeId(1), 0, 0))
    assert gate.all_ended


def test_a_channel_ends_once():
    """A second end of it would count for a channel that has not ended, and what comes on that one would be lost."""
    inputs = {CHANNEL: 0, OTHER: 0}
    gate = InputGate(inputs, 1, 0, lambda channel, n: None, BarrierAlignment(inputs))
    gate.end_channel(CHANNEL)
    with pytest.raises(AssertionError, match="has ended twice"):
        gate.end_channel(CHANNEL)
    assert not gate.all_ended
