"""Channels under checkpoints: blocked ones wait, unaligned barriers overtake, and what they overtake is known."""

from __future__ import annotations

import pytest

from tidegate.core.errors import CheckpointError
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.records.batch import Batch
from tidegate.records.elements import END_OF_INPUT, CheckpointBarrier
from tidegate.records.types import record_type_of
from tidegate.records.wire import decode_batch
from tidegate.taskmanager.barriers.alignment import (
    Action,
    BarrierAlignment,
    BeginCheckpoint,
    BlockChannel,
    CompleteRecording,
    UnblockChannels,
)
from tidegate.taskmanager.barriers.in_flight import decode_in_flight, encode_in_flight, overtaken
from tidegate.taskmanager.credits import SenderCredits
from tidegate.taskmanager.input_gate import InputGate
from tidegate.taskmanager.output_channel import OutputChannel

INT = record_type_of(int)
A = ChannelId(EdgeId(0), 0, 0)
B = ChannelId(EdgeId(0), 1, 0)
ALIGNED = CheckpointBarrier(7, 100)
UNALIGNED = CheckpointBarrier(7, 100, unaligned=True)


def batch(*rows: int) -> Batch:
    return Batch(INT, columns=INT.to_columns(list(rows)))


def gate(granted: list[ChannelId] | None = None, timeout_ms: int | None = None) -> InputGate:
    inputs, to = {A: 0, B: 0}, [] if granted is None else granted
    alignment = BarrierAlignment(inputs, timeout_ms=timeout_ms)
    return InputGate(inputs, 4, 0, lambda channel, n: to.append(channel), alignment)


def overtake(gate: InputGate) -> list[Action]:
    """What the alignment decides about the next barrier that overtakes."""
    found = gate.alignment.next_overtaking()
    assert found is not None
    return gate.alignment.barrier_received(*found, now_ms=0)


def begin(gate: InputGate) -> dict[ChannelId, list[list[int]]]:
    """The next barrier that overtakes begins a checkpoint: the rows that it overtakes."""
    (action, *_) = overtake(gate)
    assert isinstance(action, BeginCheckpoint)
    return rows(gate.overtake(action))


def recorded(gate: InputGate) -> list[tuple[ChannelId, list[int]]]:
    return [(channel, decode_batch(data, INT).rows) for _, channel, data in gate.take_recorded()]


def poll_all(gate: InputGate) -> list[object]:
    found = []
    while (polled := gate.poll()) is not None:
        found.append(polled[2].rows if isinstance(polled[2], Batch) else polled[2])
    return found


def rows(found: dict[ChannelId, list[Batch]]) -> dict[ChannelId, list[list[int]]]:
    return {channel: [b.rows for b in batches] for channel, batches in found.items()}


def test_a_blocked_channel_waits_and_is_served_first_afterwards():
    g = gate()
    g.receive(A, ALIGNED, 0)
    g.receive(A, batch(1), 0)
    assert g.poll() == (0, A, ALIGNED)
    assert g.alignment.barrier_received(A, ALIGNED, 0) == [BlockChannel(A)]
    g.block(A)
    g.receive(A, batch(2), 0)
    g.receive(B, batch(3), 0)
    assert poll_all(g) == [[3]]
    g.receive(B, batch(4), 0)
    assert g.alignment.checkpoint_aborted(7) == [UnblockChannels((A,))]
    g.unblock((A,))
    assert g.take_aligned_records() == 2
    assert g.take_aligned_records() == 0
    assert poll_all(g)[0] == [1]


def test_an_unaligned_barrier_passes_what_waits_in_its_channel():
    g = gate()
    g.receive(A, batch(1), 0)
    g.receive(B, batch(2), 0)
    g.receive(A, UNALIGNED, 0)
    g.receive(A, batch(3), 0)
    assert begin(g) == {A: [[1]], B: [[2]]}
    assert sorted(map(str, poll_all(g))) == ["[1]", "[2]", "[3]"]


def test_a_barrier_that_overtakes_nothing_leaves_no_trace_in_its_channel():
    g = gate()
    g.receive(A, UNALIGNED, 0)
    assert begin(g) == {}
    assert g.poll() is None
    g.receive(A, batch(1), 0)
    assert poll_all(g) == [[1]]


def test_what_comes_before_the_barrier_of_a_recorded_channel_is_recorded():
    g = gate()
    g.receive(A, UNALIGNED, 0)
    assert begin(g) == {}
    g.receive(B, batch(1), 0)
    g.receive(A, batch(9), 0)
    g.receive(B, ALIGNED, 0)  # sent aligned by a producer that was not late
    g.receive(B, batch(2), 0)  # before the subtask looks at the barrier
    assert overtake(g) == [CompleteRecording(7)]
    g.receive(B, batch(3), 0)
    assert recorded(g) == [(B, [1])]
    assert recorded(g) == []
    assert sorted(map(str, poll_all(g))) == ["[1]", "[2]", "[3]", "[9]"]


def test_what_is_recorded_is_what_arrived_although_a_function_changes_its_rows():
    g = gate()
    g.receive(A, UNALIGNED, 0)
    begin(g)
    g.receive(B, Batch(INT, rows=[1]), 0)
    (_, _, taken) = g.poll() or pytest.fail("nothing came")
    taken.rows[0] = 99
    assert recorded(g) == [(B, [1])]


def test_an_aligned_barrier_of_the_next_checkpoint_keeps_its_place_in_a_recorded_channel():
    g = gate()
    g.receive(A, UNALIGNED, 0)
    begin(g)
    g.receive(B, batch(1), 0)
    following = CheckpointBarrier(8, 200)  # checkpoint 7 was aborted further up, and nobody has told us yet
    g.receive(B, following, 0)
    assert g.alignment.next_overtaking() is None
    assert poll_all(g) == [[1], following]


def test_two_barriers_that_arrived_before_the_first_is_looked_at():
    g = gate()
    g.receive(A, batch(1), 0)
    g.receive(A, UNALIGNED, 0)
    g.receive(B, batch(2), 0)
    g.receive(B, UNALIGNED, 0)
    g.receive(B, batch(3), 0)
    assert begin(g) == {A: [[1]], B: [[2]]}
    assert overtake(g) == [CompleteRecording(7)]
    assert g.alignment.next_overtaking() is None
    assert recorded(g) == []
    assert sorted(map(str, poll_all(g))) == ["[1]", "[2]", "[3]"]


def test_an_aligned_barrier_deep_in_a_queue_is_found_when_the_alignment_goes_on_unaligned():
    g = gate(timeout_ms=1)
    g.receive(B, batch(1), 0)
    g.receive(B, ALIGNED, 0)
    g.receive(B, batch(2), 0)
    assert g.alignment.barrier_received(A, ALIGNED, 100) == [BlockChannel(A)]
    g.block(A)
    unblock, begun = g.alignment.time_passed(101)
    assert unblock == UnblockChannels((A,))
    assert isinstance(begun, BeginCheckpoint)
    assert rows(g.overtake(begun)) == {B: [[1]]}
    assert overtake(g) == [CompleteRecording(7)]
    assert poll_all(g) == [[1], [2]]


def test_batches_put_back_come_first_and_take_no_credit():
    granted: list[ChannelId] = []
    g = gate(granted)
    g.put_back(A, batch(1))
    assert poll_all(g) == [[1]]
    assert g.last_batch == A
    assert granted == []


def test_an_output_overtaken_by_a_barrier_still_sends_everything_in_order():
    sent: list[object] = []

    def deliver(channel: ChannelId, element: object, backlog: int) -> int:
        sent.append(element.rows if isinstance(element, Batch) else element)
        return 0

    output = OutputChannel(A, SenderCredits(0), 1, deliver)
    output.add(batch(1), 0)
    output.add(batch(2), 0)
    assert [b.rows for b in output.overtake(UNALIGNED)] == [[1], [2]]
    output.add_event(END_OF_INPUT)
    output.granted(2)
    assert sent == [UNALIGNED, [1], [2], END_OF_INPUT]


def test_an_aligned_barrier_that_waits_too_long_overtakes_only_what_is_before_it():
    sent: list[object] = []

    def deliver(channel: ChannelId, element: object, backlog: int) -> int:
        sent.append(element.rows if isinstance(element, Batch) else element)
        return 0

    output = OutputChannel(A, SenderCredits(0), 1, deliver)
    output.add(batch(1), 0)
    output.add_event(ALIGNED)
    output.add(batch(2), 0)
    assert output.has_queued(ALIGNED)
    assert [b.rows for b in output.overtake(UNALIGNED, instead_of=ALIGNED)] == [[1]]
    assert not output.has_queued(ALIGNED)
    output.granted(2)
    assert sent == [UNALIGNED, [1], [2]]


def test_in_flight_data_survives_its_file_and_damage_is_named():
    stored = [*overtaken("in", A, [batch(1, 2)]), *overtaken("out", B, [batch(3)])]
    data = encode_in_flight(stored)
    assert decode_in_flight(data, "chk-1/x") == stored
    with pytest.raises(CheckpointError, match="chk-1/x holds no in-flight data"):
        decode_in_flight(b"something", "chk-1/x")
    whole = len(encode_in_flight(stored[:1]))  # a file of fewer batches: its handle's checksum tells
    for cut in sorted(set(range(6, len(data))) - {whole}):
        with pytest.raises(CheckpointError, match="chk-1/x holds damaged in-flight data"):
            decode_in_flight(data[:cut], "chk-1/x")
