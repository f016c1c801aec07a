"""Credits: the invariant holds after every event, a sender never sends more than it may, and nothing gets stuck."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ProtocolError
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.taskmanager.credits import ReceiverCredits, SenderCredits

CHANNELS = [ChannelId(EdgeId(0), producer, 0) for producer in range(3)]


class Link:
    """Both sides of some channels with grants in flight, as on a network."""

    def __init__(self, channels: int, exclusive: int, floating: int) -> None:
        self.channels = CHANNELS[:channels]
        self.exclusive, self.floating = exclusive, floating
        self.receiver = ReceiverCredits(self.channels, exclusive, floating)
        self.senders = {c: SenderCredits(n) for c, n in self.receiver.initial().items()}
        self.waiting = dict.fromkeys(self.channels, 0)
        self.queued = dict.fromkeys(self.channels, 0)
        self.consumed = dict.fromkeys(self.channels, 0)
        self.grants: list[tuple[ChannelId, int]] = []

    def grant(self, grants: dict[ChannelId, int]) -> None:
        assert all(n > 0 for n in grants.values())
        self.grants += grants.items()

    def send(self, channel: ChannelId) -> bool:
        if not self.waiting[channel] or not self.senders[channel].take():
            return False
        self.waiting[channel] -= 1
        self.queued[channel] += 1
        self.grant(self.receiver.batch_received(channel, self.waiting[channel]))
        return True

    def consume(self, channel: ChannelId) -> bool:
        if not self.queued[channel]:
            return False
        self.queued[channel] -= 1
        self.consumed[channel] += 1
        self.grant(self.receiver.batch_consumed(channel))
        return True

    def deliver_grant(self, index: int) -> bool:
        if not self.grants:
            return False
        channel, n = self.grants.pop(index % len(self.grants))
        self.senders[channel].granted(n)
        return True

    def check(self) -> None:
        lent = 0
        for channel in self.channels:
            out = self.receiver.credits(channel)
            in_flight = sum(n for c, n in self.grants if c == channel)
            assert self.senders[channel].available >= 0
            assert out == self.senders[channel].available + in_flight, "both sides agree on the credits"
            lent_here = out + self.queued[channel] - self.exclusive
            assert lent_here >= 0, "credits out + batches queued = exclusive + lent"
            lent += lent_here
        assert lent + self.receiver.floating_free == self.floating, "no floating buffer is lost or invented"


links = st.builds(Link, st.integers(1, 3), st.integers(1, 3), st.integers(0, 4))
steps = st.lists(st.tuples(st.sampled_from("addsendcgr"), st.integers(0, 20)), max_size=120)


@given(links, steps)
def test_the_invariant_holds_after_every_event_in_any_order(link, events):
    for kind, n in events:
        channel = link.channels[n % len(link.channels)]
        match kind:
            case "a" | "d":
                link.waiting[channel] += 1 + n % 4
            case "s" | "e" | "n":
                link.send(channel)
            case "c" | "r":
                link.consume(channel)
            case "g":
                link.deliver_grant(n)
        link.check()


@given(links, st.lists(st.integers(0, 12), min_size=3, max_size=3), st.randoms(use_true_random=False))
def test_everything_that_waits_gets_through_whatever_the_order(link, waiting, random):
    for channel, n in zip(link.channels, waiting, strict=False):
        link.waiting[channel] = n
    expected = dict(link.waiting)
    while True:
        moves = [lambda c=c: link.send(c) for c in link.channels]
        moves += [lambda c=c: link.consume(c) for c in link.channels]
        moves += [lambda: link.deliver_grant(random.randrange(9))]
        random.shuffle(moves)
        if not sum(move() for move in moves):
            break
        link.check()
    assert link.consumed == expected
    assert not link.grants


def test_a_batch_without_credit_breaks_the_protocol():
    receiver = ReceiverCredits(CHANNELS[:1], 1, 0)
    receiver.batch_received(CHANNELS[0], 0)
    with pytest.raises(ProtocolError, match="without credit"):
        receiver.batch_received(CHANNELS[0], 0)


def test_backlog_earns_floating_buffers_and_they_go_to_another_channel_when_it_is_gone():
    receiver = ReceiverCredits(CHANNELS[:2], exclusive=1, floating=2)
    first, second = CHANNELS[:2]
    assert receiver.batch_received(first, backlog=5) == {first: 2}
    assert receiver.floating_free == 0
    assert receiver.batch_received(second, backlog=5) == {}, "nothing is left to lend"
    receiver.batch_received(first, backlog=0)
    assert receiver.batch_consumed(first) == {second: 1}, (
        "the backlog of the first is gone: its buffer moves on"
    )


def test_a_slow_channel_keeps_its_exclusive_buffers_while_another_takes_all_that_float():
    receiver = ReceiverCredits(CHANNELS[:2], exclusive=2, floating=8)
    greedy, modest = CHANNELS[:2]
    receiver.batch_received(greedy, backlog=100)
    assert receiver.floating_free == 0
    assert receiver.credits(modest) == 2


def test_a_sender_takes_only_what_it_has():
    sender = SenderCredits(1)
    assert sender.take()
    assert not sender.take()
    assert sender.available == 0
    sender.granted(2)
    assert [sender.take(), sender.take(), sender.take()] == [True, True, False]
