"""The queries of Nexmark as tidegate programs: `QUERIES["q5"].build(streams)` gives the stream of its results.

A changing table in SQL is a stream of updates here: the last row of each key counts (`Query.key`). The other
queries only add rows. `oracle.py` has the same queries in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import polars as pl
import pyarrow as pa
from generator import OUT_OF_ORDER_MS, Nexmark

from tidegate import (
    AggregateFunction,
    Avg,
    Count,
    CountDistinct,
    DataStream,
    Environment,
    EventTimeSessionWindows,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListState,
    MapState,
    Max,
    Min,
    OnTimerContext,
    ProcessContext,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueState,
    WatermarkStrategy,
    WindowContext,
)

Time = Annotated[datetime, pa.timestamp("ms", "UTC")]

SIDE_INPUT_KEYS = 100


class Streams:
    """The three streams of an environment, each read by whatever asks for it."""

    def __init__(self, env: Environment, nexmark: Nexmark) -> None:
        self.env = env
        self._nexmark = nexmark
        self._strategy = WatermarkStrategy.bounded(f"{OUT_OF_ORDER_MS} ms", "date_time")

    @property
    def persons(self) -> DataStream:
        """Who registered."""
        return self.env.from_source(self._nexmark.persons(), self._strategy, name="persons")

    @property
    def auctions(self) -> DataStream:
        """What is offered."""
        return self.env.from_source(self._nexmark.auctions(), self._strategy, name="auctions")

    @property
    def bids(self) -> DataStream:
        """Who offers how much."""
        return self.env.from_source(self._nexmark.bids(), self._strategy, name="bids")


@dataclass(frozen=True)
class Query:
    """A query: how to build it, what it asks, and which columns say what a row replaces."""

    build: Callable[[Streams], DataStream]
    title: str
    key: tuple[str, ...] = ()
    """Of an updating query: a row replaces the one before it with the same values here. Empty: rows are only added."""

    def result(self, rows: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows that count, out of all that the stream emitted, in order."""
        if not self.key:
            return [tuple(row) for row in rows]
        return [
            tuple(row)
            for row in {tuple(getattr(row, name) for name in self.key): row for row in rows}.values()
        ]


QUERIES: dict[str, Query] = {}


def query(
    title: str, *, key: Sequence[str] = ()
) -> Callable[[Callable[[Streams], DataStream]], Callable[[Streams], DataStream]]:
    """Register a function as the query of its name."""

    def enter(build: Callable[[Streams], DataStream]) -> Callable[[Streams], DataStream]:
        QUERIES[build.__name__] = Query(build, title, tuple(key))
        return build

    return enter


# ---- one record at a time, by columns ----


@query("pass the bids through")
def q0(streams: Streams) -> DataStream:
    return streams.bids.select("auction", "bidder", "price", "date_time", "extra")


@query("convert the prices to euros")
def q1(streams: Streams) -> DataStream:
    return streams.bids.select("auction", "bidder", pl.col("price") * 0.908, "date_time", "extra")


@query("the bids for some auctions")
def q2(streams: Streams) -> DataStream:
    return streams.bids.filter(pl.col("auction") % 123 == 0).select("auction", "price")


@query("the bids with their day and minute, as they are filed")
def q10(streams: Streams) -> DataStream:
    time = pl.col("date_time")
    day, minute = time.dt.strftime("%Y-%m-%d").alias("dt"), time.dt.strftime("%H:%M").alias("hm")
    return streams.bids.select("auction", "bidder", "price", "date_time", "extra", day, minute)


@query("the time of day of dear bids, and how often they have a letter")
def q14(streams: Streams) -> DataStream:
    euros, hour = pl.col("price") * 0.908, pl.col("date_time").dt.hour()
    time_of_day = (
        pl.when((hour >= 8) & (hour <= 18))
        .then(pl.lit("dayTime"))
        .when((hour <= 6) | (hour >= 20))
        .then(pl.lit("nightTime"))
        .otherwise(pl.lit("otherTime"))
    )
    return streams.bids.filter((euros > 1_000_000) & (euros < 50_000_000)).select(
        "auction",
        "bidder",
        euros.alias("price"),
        time_of_day.alias("bid_time_type"),
        "date_time",
        "extra",
        pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int64).alias("c_counts"),
    )


@query("the number of each bid's channel, by its name or from the address")
def q21(streams: Streams) -> DataStream:
    name = pl.col("channel").str.to_lowercase()
    numbers = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    by_name = name.replace_strict(numbers, default=None, return_dtype=pl.String)
    in_address = pl.col("url").str.extract(r"(?:&|^)channel_id=([^&]*)", 1)
    return streams.bids.select(
        "auction", "bidder", "price", "channel", pl.coalesce(by_name, in_address).alias("channel_id")
    ).filter(pl.col("channel_id").is_not_null())


@query("the directories of each bid's address")
def q22(streams: Streams) -> DataStream:
    parts = pl.col("url").str.split("/")
    directories = [parts.list.get(i + 3, null_on_oob=True).alias(f"dir{i + 1}") for i in range(3)]
    return streams.bids.select("auction", "bidder", "price", "channel", *directories)


# ---- two streams, joined for good ----


class SellerOf(KeyedCoProcessFunction):
    """Pairs each auction with its seller, in either order of arrival."""

    seller = ValueState(tuple[str, str, str])
    waiting = ListState(int)

    def process1(self, auction: Any, context: ProcessContext) -> Iterator[tuple[str, str, str, int]]:
        seller = self.seller.value()
        if seller is None:
            self.waiting.add(auction.id)
        else:
            yield (*seller, auction.id)

    def process2(self, person: Any, context: ProcessContext) -> Iterator[tuple[str, str, str, int]]:
        seller = (person.name, person.city, person.state)
        self.seller.update(seller)
        for auction in self.waiting.get():
            yield (*seller, auction)
        self.waiting.clear()


@query("who sells in one category from some states")
def q3(streams: Streams) -> DataStream:
    auctions = streams.auctions.filter(pl.col("category") == 10)
    persons = streams.persons.filter(pl.col("state").is_in(["OR", "ID", "CA"]))
    return auctions.connect(persons).key_by("seller", "id").process(SellerOf(), name="seller")


class PlainBid(NamedTuple):
    """A bid without what the joins do not need."""

    auction: int
    bidder: int
    price: int
    date_time: Time


def plain_bids(streams: Streams) -> DataStream:
    """The bids, as small as the joins need them."""
    return streams.bids.select("auction", "bidder", "price", "date_time")


class Expanded(NamedTuple):
    """A bid with its auction."""

    auction: int
    bidder: int
    price: int
    bid_time: Time
    item_name: str
    seller: int
    category: int


class ExpandBid(KeyedCoProcessFunction):
    """Adds its auction to each bid; a bid that arrives first waits."""

    auction = ValueState(tuple[str, int, int])
    waiting = ListState(PlainBid)

    def process1(self, bid: Any, context: ProcessContext) -> Iterator[Expanded]:
        auction = self.auction.value()
        if auction is None:
            self.waiting.add(PlainBid(*bid))
        else:
            yield Expanded(*bid, *auction)

    def process2(self, auction: Any, context: ProcessContext) -> Iterator[Expanded]:
        known = (auction.item_name, auction.seller, auction.category)
        self.auction.update(known)
        for bid in self.waiting.get():
            yield Expanded(*bid, *known)
        self.waiting.clear()


@query("the bids of one category, with their auctions")
def q20(streams: Streams) -> DataStream:
    expanded = plain_bids(streams).connect(streams.auctions).key_by("auction", "id")
    return expanded.process(ExpandBid(), name="expand").filter(pl.col("category") == 10)


class LookUp(KeyedCoProcessFunction):
    """Adds a value of the side input to each bid; the bids wait until it has arrived."""

    value = ValueState(str)
    waiting = ListState(PlainBid)

    def process1(self, bid: Any, context: ProcessContext) -> Iterator[tuple[int, int, int, Time, str]]:
        value = self.value.value()
        if value is None:
            self.waiting.add(PlainBid(*bid[:4]))
        else:
            yield (*bid[:4], value)

    def process2(self, side: Any, context: ProcessContext) -> Iterator[tuple[int, int, int, Time, str]]:
        self.value.update(side.value)
        for bid in self.waiting.get():
            yield (*bid, side.value)
        self.waiting.clear()


@query("the bids with what a bounded side input says of them")
def q13(streams: Streams) -> DataStream:
    side = streams.env.from_collection(side_input(), name="side input")
    bids = plain_bids(streams).with_columns((pl.col("auction") % SIDE_INPUT_KEYS).alias("key"))
    return bids.connect(side).key_by("key", "key").process(LookUp(), name="look up")


def side_input() -> list[dict[str, Any]]:
    """The side input of `q13`."""
    return [{"key": key, "value": f"value {key * 7}"} for key in range(SIDE_INPUT_KEYS)]


# ---- auctions that close ----


class Won(NamedTuple):
    """An auction that has closed, and its best bid in time."""

    id: int
    item_name: str
    seller: int
    category: int
    expires: Time
    bidder: int
    price: int
    bid_time: Time


class Offered(NamedTuple):
    """What is kept of an auction."""

    item_name: str
    seller: int
    category: int
    begins: Time
    expires: Time


class WinningBid(KeyedCoProcessFunction):
    """Emits the best bid of each auction when it closes: the highest; if several are equal, the earliest.

    A bid may arrive before its auction, so bids wait until it is known which of them are in time.
    """

    auction = ValueState(Offered)
    best = ValueState(PlainBid)
    waiting = ListState(PlainBid)

    def process1(self, bid: Any, context: ProcessContext) -> None:
        auction = self.auction.value()
        if auction is None:
            self.waiting.add(PlainBid(*bid))
        else:
            self._consider(PlainBid(*bid), auction)

    def process2(self, auction: Any, context: ProcessContext) -> None:
        offered = Offered(
            auction.item_name, auction.seller, auction.category, auction.date_time, auction.expires
        )
        self.auction.update(offered)
        context.timer_service.register_event_time_timer(round(auction.expires.timestamp() * 1000))
        for bid in self.waiting.get():
            self._consider(bid, offered)
        self.waiting.clear()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Won]:
        best, auction = self.best.value(), self.auction.value()
        if best is not None:
            yield Won(
                best.auction,
                auction.item_name,
                auction.seller,
                auction.category,
                auction.expires,
                best.bidder,
                best.price,
                best.date_time,
            )
        self.best.clear()

    def _consider(self, bid: PlainBid, auction: Offered) -> None:
        if not auction.begins <= bid.date_time <= auction.expires:
            return
        best = self.best.value()
        if best is None or _rank(bid) < _rank(best):
            self.best.update(bid)


def _rank(bid: PlainBid) -> tuple[int, datetime, int]:
    return -bid.price, bid.date_time, bid.bidder


def winning_bids(streams: Streams) -> DataStream:
    """The auctions that have closed, each at the time when it did."""
    bids = plain_bids(streams).connect(streams.auctions).key_by("auction", "id")
    return bids.process(WinningBid(), name="winning bid")


class Price(NamedTuple):
    """The mean price of a category so far."""

    category: int
    auctions: int
    mean: float


class MeanPrice(KeyedProcessFunction):
    """A mean that is updated with each auction."""

    sum = ValueState(int, default=0)
    count = ValueState(int, default=0)

    def process(self, won: Won, context: ProcessContext) -> Iterator[Price]:
        self.sum.update(self.sum.value() + won.price)
        self.count.update(self.count.value() + 1)
        yield Price(won.category, self.count.value(), self.sum.value() / self.count.value())


@query("the mean price that auctions of each category are closed at", key=["category"])
def q4(streams: Streams) -> DataStream:
    return winning_bids(streams).key_by("category").process(MeanPrice(), name="mean price")


class LastTen(KeyedProcessFunction):
    """The mean price of a seller's last ten auctions, in the order in which they closed.

    They come from several subtasks, so each waits until the watermark says that no earlier one can follow.
    """

    closed = MapState(int, list[tuple[int, int]])
    prices = ValueState(list[int])

    def process(self, won: Won, context: ProcessContext) -> None:
        at = context.timestamp
        self.closed.put(at, [*self.closed.get(at, []), (won.id, won.price)])
        context.timer_service.register_event_time_timer(at)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[tuple[int, int, float]]:
        prices = self.prices.value() or []
        for id, price in sorted(self.closed.get(timestamp)):
            prices = [*prices, price][-10:]
            yield context.current_key, id, sum(prices) / len(prices)
        self.prices.update(prices)
        self.closed.remove(timestamp)


@query("the mean price of each seller's last ten auctions")
def q6(streams: Streams) -> DataStream:
    return winning_bids(streams).key_by("seller").process(LastTen(), name="last ten")


@query("the winning bid of each auction")
def q9(streams: Streams) -> DataStream:
    return winning_bids(streams)


# ---- windows ----


class Hot(NamedTuple):
    """An auction with the most bids in the ten seconds before `window_end`."""

    window_end: Time
    auction: int
    bids: int


class Hottest(ProcessWindowFunction):
    """The auctions with the most bids of a window."""

    def process(self, key: None, context: WindowContext, counts: Sequence[Any]) -> Iterator[Hot]:
        most = max(row.bids for row in counts)
        for row in counts:
            if row.bids == most:
                yield Hot(row.window_end, row.auction, row.bids)


@query("the hottest auctions of the last ten seconds, every two seconds")
def q5(streams: Streams) -> DataStream:
    counts = (
        streams.bids.key_by("auction").window(SlidingEventTimeWindows("10 s", "2 s")).aggregate(bids=Count())
    )
    # A result has the last moment of its window as its time, so the results of one window meet in one of two seconds.
    return counts.window_all(TumblingEventTimeWindows("2 s")).process(Hottest(), name="hottest")


class Highest(AggregateFunction[Any, list[PlainBid], list[PlainBid]]):
    """The highest bids: all of them, if there are several."""

    def create_accumulator(self) -> list[PlainBid]:
        return []

    def add(self, bid: Any, highest: list[PlainBid]) -> list[PlainBid]:
        return self.merge(highest, [PlainBid(*bid)])

    def merge(self, left: list[PlainBid], right: list[PlainBid]) -> list[PlainBid]:
        if not left or not right or left[0].price == right[0].price:
            return left + right
        return max(left, right, key=lambda bids: bids[0].price)

    def get_result(self, highest: list[PlainBid]) -> list[PlainBid]:
        return highest


class Each(ProcessWindowFunction):
    """One row for each bid of the result."""

    def process(
        self, key: None, context: WindowContext, found: Sequence[list[PlainBid]]
    ) -> Iterator[PlainBid]:
        yield from found[0]


@query("the highest bids of every ten seconds")
def q7(streams: Streams) -> DataStream:
    windows = plain_bids(streams).window_all(TumblingEventTimeWindows("10 s"))
    return windows.aggregate(Highest(), Each(), name="highest")


def newcomer(persons: Sequence[Any], auctions: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """A person who offers an auction in the ten seconds in which he registered."""
    if auctions:
        for person in persons:
            yield person.id, person.name


@query("who offers something in the ten seconds of his registration")
def q8(streams: Streams) -> DataStream:
    joined = streams.persons.join(streams.auctions).where("id").equal_to("seller")
    return joined.window(TumblingEventTimeWindows("10 s")).co_group(newcomer, name="newcomer")


@query("how many bids each bidder makes in a session")
def q11(streams: Streams) -> DataStream:
    return streams.bids.key_by("bidder").window(EventTimeSessionWindows("10 s")).aggregate(bids=Count())


@query("how many bids each bidder makes in ten seconds of the wall clock, and so far", key=["bidder"])
def q12(streams: Streams) -> DataStream:
    windows = streams.bids.key_by("bidder").window(TumblingProcessingTimeWindows("10 s"))
    # The windows differ in each run; only their sum can be compared.
    return windows.aggregate(bids=Count()).key_by("bidder").sum("bids", output="so_far")


RANKS = {
    1: pl.col("price") < 10_000,
    2: pl.col("price").is_between(10_000, 999_999),
    3: pl.col("price") >= 1_000_000,
}


def ranked(bids: DataStream) -> DataStream:
    """Bids with columns for each rank of prices: the bidder and the auction, or nothing if it has another rank."""
    return bids.with_columns(
        *(pl.when(rank).then(pl.col("bidder")).alias(f"bidder{n}") for n, rank in RANKS.items()),
        *(pl.when(rank).then(pl.col("auction")).alias(f"auction{n}") for n, rank in RANKS.items()),
    )


STATISTICS = {
    "total_bids": Count(),
    **{f"rank{n}_bids": Count(f"bidder{n}") for n in RANKS},
    "total_bidders": CountDistinct("bidder"),
    **{f"rank{n}_bidders": CountDistinct(f"bidder{n}") for n in RANKS},
    "total_auctions": CountDistinct("auction"),
    **{f"rank{n}_auctions": CountDistinct(f"auction{n}") for n in RANKS},
}


@query("bids, bidders and auctions of each day, by the rank of the price")
def q15(streams: Streams) -> DataStream:
    days = ranked(streams.bids).window_all(TumblingEventTimeWindows("1 d"))
    return days.aggregate(**STATISTICS).select("window_start", *STATISTICS)


@query("the same for each channel, with the minute of its last bid")
def q16(streams: Streams) -> DataStream:
    days = ranked(streams.bids).key_by("channel").window(TumblingEventTimeWindows("1 d"))
    found = days.aggregate(last=Max("date_time"), **STATISTICS)
    minute = pl.col("last").dt.strftime("%H:%M").alias("minute")
    return found.select("channel", "window_start", minute, *STATISTICS)


@query("how many bids each auction has on a day, and their prices")
def q17(streams: Streams) -> DataStream:
    days = ranked(streams.bids).key_by("auction").window(TumblingEventTimeWindows("1 d"))
    bids = {"total_bids": Count(), **{f"rank{n}_bids": Count(f"bidder{n}") for n in RANKS}}
    prices = {"min": Min("price"), "max": Max("price"), "avg": Avg("price"), "sum": Sum("price")}
    return days.aggregate(**bids, **prices).select("auction", "window_start", *bids, *prices)


# ---- the last and the best of each key ----


def later(last: Any, bid: Any) -> Any:
    """The later of two bids; of two at the same time the higher one."""
    return max(last, bid, key=lambda b: (b.date_time, b.price))


@query("the last bid of each bidder for each auction", key=["bidder", "auction"])
def q18(streams: Streams) -> DataStream:
    return plain_bids(streams).key_by("bidder", "auction").reduce(later, name="last bid")


class Best(NamedTuple):
    """The prices of an auction's best bids, in order."""

    auction: int
    prices: list[int]


class TopTen(KeyedProcessFunction):
    """The ten highest prices so far, whenever they change."""

    best = ValueState(list[int])

    def process(self, bid: Any, context: ProcessContext) -> Iterator[Best]:
        before = self.best.value() or []
        best = sorted([*before, bid.price], reverse=True)[:10]
        if best != before:
            self.best.update(best)
            yield Best(bid.auction, best)


@query("the ten highest prices of each auction", key=["auction"])
def q19(streams: Streams) -> DataStream:
    return streams.bids.select("auction", "price").key_by("auction").process(TopTen(), name="top ten")
