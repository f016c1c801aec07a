"""The events of Nexmark, an online auction: persons register, offer auctions, and bid on them.

Of 50 events one is a person, three are auctions and 46 are bids, as in the benchmark's own generator. Every value is a
hash of the seed, the column and the number of the event. So a stream can be read in any order, by any number of
subtasks, and again after a failure. `table` makes the same rows without the engine.

Half of all bids go to a hot auction, three quarters come from a hot bidder, and events are up to `OUT_OF_ORDER_MS` out
of order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate import DataGeneratorSource

Columns = dict[str, pa.Array]

EPOCH_MS: Final = 1_767_225_600_000
"""2026-01-01 00:00 UTC, the time of the first event."""
OUT_OF_ORDER_MS: Final = 3_000

TIME: Final = pa.timestamp("ms", "UTC")

_FIRST_ID: Final = 1_000
_EPOCH: Final = 50
_PERSONS, _AUCTIONS, _BIDS = 1, 3, 46
_ACTIVE_PERSONS: Final = 1_000
_AUCTIONS_IN_FLIGHT: Final = 100
_HOT: Final = 100
_CATEGORIES: Final = 5

_STATES: Final = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES: Final = pa.array(
    [
        "Phoenix",
        "Los Angeles",
        "San Francisco",
        "Boise",
        "Portland",
        "Bend",
        "Redmond",
        "Seattle",
        "Kent",
        "Cheyenne",
    ]
)
_FIRST_NAMES: Final = pa.array(
    ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter"]
)
_LAST_NAMES: Final = pa.array(
    ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
)
_HOT_CHANNELS: Final = pa.array(["Google", "Facebook", "Baidu", "Apple"])


@dataclass(frozen=True)
class Nexmark:
    """The three streams of `events` events, of which `per_second` happen in a second of event time."""

    events: int
    per_second: int = 100
    seed: int = 0

    def persons(self) -> DataGeneratorSource:
        """Who registered."""
        return self._source("person")

    def auctions(self) -> DataGeneratorSource:
        """What is offered, by whom, and until when."""
        return self._source("auction")

    def bids(self) -> DataGeneratorSource:
        """Who offers how much for what."""
        return self._source("bid")

    def table(self, kind: str) -> pa.Table:
        """All events of a kind ("person", "auction", "bid"), made without the engine."""
        return pa.table(self._rows(kind)(np.arange(self._count(kind)), None))

    def _source(self, kind: str) -> DataGeneratorSource:
        return DataGeneratorSource(self._rows(kind), count=self._count(kind))

    def _rows(self, kind: str) -> Callable[[np.ndarray, object], Columns]:
        make = {"person": _person, "auction": _auction, "bid": _bid}[kind]
        return partial(_rows_of, make, self.per_second, self.seed)

    def _count(self, kind: str) -> int:
        per_epoch, first = {"person": (_PERSONS, 0), "auction": (_AUCTIONS, 1), "bid": (_BIDS, 4)}[kind]
        epochs, rest = divmod(self.events, _EPOCH)
        return epochs * per_epoch + min(max(rest - first, 0), per_epoch)


def _rows_of(
    make: Callable[[np.ndarray, _Draw, int], Columns],
    per_second: int,
    seed: int,
    indices: np.ndarray,
    rng: object,
) -> Columns:
    """The rows of these indices; the generator's own random numbers are not needed."""
    return make(indices.astype(np.int64), _Draw(seed, indices.astype(np.uint64)), per_second)


class _Draw:
    """Random numbers for the rows of some indices; each column has its own stream, identified by its name."""

    def __init__(self, seed: int, indices: np.ndarray) -> None:
        self._seed = seed
        self._indices = indices

    def bits(self, column: str) -> np.ndarray:
        """64 random bits a row: the finaliser of SplitMix64 over the row's number."""
        salt = int.from_bytes(f"{column:<8.8}".encode(), "little") ^ (self._seed * 0x9E3779B97F4A7C15)
        with np.errstate(over="ignore"):
            z = (self._indices + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt & (2**64 - 1))
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    def below(self, column: str, limit: int | np.ndarray) -> np.ndarray:
        """A whole number from 0 to limit - 1."""
        return (self.bits(column) % np.asarray(limit, np.uint64)).astype(np.int64)

    def one_of(self, column: str, values: pa.Array) -> pa.Array:
        """One of some texts."""
        return values.take(pa.array(self.below(column, len(values))))

    def letters(self, column: str, length: int) -> pa.Array:
        """Texts of lower-case letters, all of one length."""
        drawn = [self.below(f"{column}{i // 8}", 26**8) // 26 ** (i % 8) % 26 for i in range(length)]
        text = (np.stack(drawn, axis=1) + ord("a")).astype(np.uint8)
        offsets = np.arange(0, text.size + 1, length, dtype=np.int32)
        return pa.StringArray.from_buffers(len(text), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))

    def price(self, column: str) -> np.ndarray:
        """From 1 to 1,000,000 dollars, in cents, each order of magnitude as often as the next."""
        return np.round(10 ** (self.bits(column) / 2**64 * 6) * 100).astype(np.int64)


def _time(number: np.ndarray, draw: _Draw, per_second: int) -> np.ndarray:
    """When an event happened, in milliseconds: a little before its place in the stream."""
    return EPOCH_MS + number * 1_000 // per_second - draw.below("late", OUT_OF_ORDER_MS)


def _person(index: np.ndarray, draw: _Draw, per_second: int) -> Columns:
    name = pc.binary_join_element_wise(
        draw.one_of("first", _FIRST_NAMES), draw.one_of("last", _LAST_NAMES), " "
    )
    return {
        "id": pa.array(_FIRST_ID + index),
        "name": name,
        "email": pc.binary_join_element_wise(draw.letters("mailbox", 7), draw.letters("host", 5), "@"),
        "city": draw.one_of("city", _CITIES),
        "state": draw.one_of("state", _STATES),
        "date_time": pa.array(_time(index * _EPOCH, draw, per_second)).cast(TIME),
        "extra": draw.letters("extra", 20),
    }


def _auction(index: np.ndarray, draw: _Draw, per_second: int) -> Columns:
    epoch, place = np.divmod(index, _AUCTIONS)
    number = epoch * _EPOCH + _PERSONS + place
    time_ms = _time(number, draw, per_second)
    initial_bid = draw.price("initial")
    # As long as it takes until so many other auctions have begun, more or less.
    lasts_ms = _AUCTIONS_IN_FLIGHT * _EPOCH // _AUCTIONS * 1_000 // per_second
    return {
        "id": pa.array(_FIRST_ID + index),
        "item_name": draw.letters("item", 12),
        "initial_bid": pa.array(initial_bid),
        "reserve": pa.array(initial_bid + draw.price("reserve")),
        "date_time": pa.array(time_ms).cast(TIME),
        "expires": pa.array(time_ms + 1 + draw.below("lasts", 2 * lasts_ms)).cast(TIME),
        "seller": pa.array(_a_person(draw, "seller", epoch)),
        "category": pa.array(10 + draw.below("category", _CATEGORIES)),
        "extra": draw.letters("extra", 30),
    }


def _bid(index: np.ndarray, draw: _Draw, per_second: int) -> Columns:
    epoch, place = np.divmod(index, _BIDS)
    number = epoch * _EPOCH + _PERSONS + _AUCTIONS + place
    newest = epoch * _AUCTIONS + _AUCTIONS - 1
    hot_auction = newest // _HOT * _HOT
    any_auction = newest - draw.below("auction", np.minimum(newest + 1, _AUCTIONS_IN_FLIGHT))
    channel, url = _channel(draw)
    return {
        "auction": pa.array(_FIRST_ID + np.where(draw.below("hot", 2) == 0, hot_auction, any_auction)),
        "bidder": pa.array(_a_person(draw, "bidder", epoch)),
        "price": pa.array(draw.price("price")),
        "channel": channel,
        "url": url,
        "date_time": pa.array(_time(number, draw, per_second)).cast(TIME),
        "extra": draw.letters("extra", 25),
    }


def _a_person(draw: _Draw, column: str, newest: np.ndarray) -> np.ndarray:
    """One of the newest persons, and three times in four the same hot one."""
    some = newest - draw.below(f"{column}1", np.minimum(newest + 1, _ACTIVE_PERSONS))
    return _FIRST_ID + np.where(draw.below(f"{column}2", 4) > 0, newest // _HOT * _HOT, some)


def _channel(draw: _Draw) -> tuple[pa.Array, pa.Array]:
    """Half of the bids come through a channel with a name; of the others most have its id in their address."""
    parts = [draw.letters(f"dir{i}", 5) for i in range(3)]
    base = pc.binary_join_element_wise("https://www.nexmark.com", *parts, "item.htm?query=1", "/")
    id = pa.array(draw.below("channel", 10_000)).cast(pa.string())
    named = pa.array(draw.below("named", 2) == 0)
    with_id = pa.array(draw.below("with_id", 10) > 0)
    channel = pc.if_else(
        named, draw.one_of("name", _HOT_CHANNELS), pc.binary_join_element_wise("channel", id, "-")
    )
    has_id = pc.and_(pc.invert(named), with_id)
    return channel, pc.if_else(has_id, pc.binary_join_element_wise(base, id, "&channel_id="), base)
