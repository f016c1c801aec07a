"""Channels under checkpoints: blocked ones wait, unaligned barriers overtake, and what they overtake is known."""

from __future__ import annotations

import pytest

from tidegate.core.errors import CheckpointError
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.records.batch import Batch
from tidegate.records.elements import END_OF_INPUT, CheckpointBarrier
from tidegate.records.types import record_type_of
from tidegate.taskmanager.channels import InputGate, OutputChannel
from tidegate.taskmanager.credits import SenderCredits
from tidegate.taskmanager.in_flight import decode_in_flight, encode_in_flight, overtaken

INT = record_type_of(int)
A = ChannelId(EdgeId(0), 0, 0)
B = ChannelId(EdgeId(0), 1, 0)
ALIGNED = CheckpointBarrier(7, 100)
UNALIGNED = CheckpointBarrier(7, 100, unaligned=True)


def batch(*rows: int) -> Batch:
    return Batch.of_columns(INT, INT.to_columns(list(rows)))


def gate() -> InputGate:
    made = InputGate({A: 0, B: 0}, exclusive=2, floating=2)
    made.grant = lambda channel, n: None
    return made


def poll_all(gate: InputGate) -> list[object]:
    found = []
    while (polled := gate.poll()) is not None:
        found.append(polled[2].rows if isinstance(polled[2], Batch) else polled[2])
    return found


def rows(found: dict[ChannelId, list[Batch]]) -> dict[ChannelId, list[list[int]]]:
    return {channel: [b.rows for b in batches] for channel, batches in found.items()}


def test_a_blocked_channel_waits_and_is_served_first_afterwards():
    g = gate()
    g.receive(A, batch(1), 0)
    g.block(A)
    g.receive(A, batch(2), 0)
    g.receive(B, batch(3), 0)
    assert poll_all(g) == [[3]]
    g.receive(B, batch(4), 0)
    g.unblock()
    assert g.take_aligned_records() == 2
    assert g.take_aligned_records() == 0
    assert poll_all(g)[0] == [1]


def test_an_unaligned_barrier_passes_what_waits_in_its_channel():
    g = gate()
    g.receive(A, batch(1), 0)
    g.receive(B, batch(2), 0)
    g.receive(A, UNALIGNED, 0)
    g.receive(A, batch(3), 0)
    assert g.has_overtaker
    assert g.next_overtaker() == (A, UNALIGNED)
    assert rows(g.overtaken_by(UNALIGNED, frozenset({B}))) == {A: [[1]], B: [[2]]}
    assert sorted(map(str, poll_all(g))) == ["[1]", "[2]", "[3]"]


def test_what_comes_before_the_barrier_of_a_recorded_channel_is_recorded():
    g = gate()
    recorded: list[tuple[ChannelId, list[int]]] = []
    g.record = lambda channel, found: recorded.append((channel, found.rows))
    g.receive(A, UNALIGNED, 0)
    g.next_overtaker()
    assert g.overtaken_by(UNALIGNED, frozenset({B})) == {}
    g.receive(B, batch(1), 0)
    g.receive(A, batch(9), 0)
    g.receive(B, ALIGNED, 0)  # sent aligned by a producer that was not late
    assert g.next_overtaker() == (B, ALIGNED)
    g.stop_recording(B)
    g.receive(B, batch(2), 0)
    assert recorded == [(B, [1])]


def test_an_aligned_barrier_of_the_next_checkpoint_keeps_its_place_in_a_recorded_channel():
    g = gate()
    recorded: list[list[int]] = []
    g.record = lambda channel, found: recorded.append(found.rows)
    g.receive(A, UNALIGNED, 0)
    g.next_overtaker()
    g.overtaken_by(UNALIGNED, frozenset({B}))
    g.receive(B, batch(1), 0)
    following = CheckpointBarrier(8, 200)  # checkpoint 7 was aborted further up, and nobody has told us yet
    g.receive(B, following, 0)
    assert not g.has_overtaker
    assert poll_all(g) == [[1], following]


def test_two_barriers_that_arrived_before_the_first_is_looked_at():
    g = gate()
    g.receive(A, batch(1), 0)
    g.receive(A, UNALIGNED, 0)
    g.receive(B, batch(2), 0)
    g.receive(B, UNALIGNED, 0)
    g.receive(B, batch(3), 0)
    assert g.next_overtaker() == (A, UNALIGNED)
    assert rows(g.overtaken_by(UNALIGNED, frozenset({B}))) == {A: [[1]], B: [[2]]}
    assert g.next_overtaker() == (B, UNALIGNED)
    assert g.next_overtaker() is None


def test_an_aligned_barrier_deep_in_a_queue_is_found_when_the_alignment_goes_on_unaligned():
    g = gate()
    g.receive(B, batch(1), 0)
    g.receive(B, ALIGNED, 0)
    g.receive(B, batch(2), 0)
    assert rows(g.overtaken_by(UNALIGNED, frozenset({B}))) == {B: [[1]]}
    assert g.next_overtaker() == (B, ALIGNED)
    assert poll_all(g) == [[1], [2]]


def test_batches_put_back_come_first_and_take_no_credit():
    g = gate()
    granted: list[ChannelId] = []
    g.grant = lambda channel, n: granted.append(channel)
    g.put_back(A, batch(1))
    assert g.has_elements()
    assert poll_all(g) == [[1]]
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
