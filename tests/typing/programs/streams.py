"""Streams know the type of their records, from the source to the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, assert_type

import polars as pl

from tidegate import (
    ConnectedStreams,
    DataStream,
    Environment,
    KeyedStream,
    Row,
    WatermarkStrategy,
    WindowedStream,
)


@dataclass
class Click:
    app: str
    user: int
    price: float


class Bid(NamedTuple):
    item: str
    amount: int


class Order(TypedDict):
    id: int


env = Environment(runtime="in-process", parallelism=2)
clicks = env.from_collection([Click("maps", 1, 0.5)])

# Where records come from.
assert_type(clicks, DataStream[Click])
assert_type(env.from_sequence(1, 3), DataStream[int])
assert_type(env.from_collection([1, 2.5]), DataStream[float])
assert_type(env.from_collection([1, None]), DataStream[int | None])
assert_type(env.from_collection([("a", 1)]), DataStream[tuple[str, int]])
assert_type(env.from_collection([], type=Bid), DataStream[Bid])
assert_type(env.from_collection([], type=tuple[str, int]), DataStream[tuple[str, int]])
assert_type(env.from_collection([None], type=int | None), DataStream[int | None])
assert_type(env.from_collection([{"id": 1}], type=Order), DataStream[Order])
assert_type(env.from_collection([{"app": "maps", "price": 1}]), DataStream[Row])
assert_type(env.from_collection(pl.DataFrame({"app": ["maps"]})), DataStream[Row])

# One record at a time.
assert_type(clicks.map(lambda c: c.app, returns=str), DataStream[str])
assert_type(clicks.map(lambda c: c.price, returns=float, name="prices", parallelism=2), DataStream[float])
assert_type(clicks.map(lambda c: (c.app, c.user)), DataStream[tuple[str, int]])
assert_type(clicks.map(lambda c: c.price or None, returns=float | None), DataStream[float | None])
assert_type(clicks.map(str), DataStream[str])
assert_type(clicks.filter(lambda c: c.price > 1), DataStream[Click])
assert_type(clicks.filter(pl.col("price") > 1, pl.col("user") == 1), DataStream[Click])
assert_type(clicks.flat_map(lambda c: c.app.split(), returns=str), DataStream[str])


def letters(click: Click) -> Iterator[str]:
    yield from click.app


async def look_up(click: Click) -> Bid:
    return Bid(click.app, 1)


assert_type(clicks.flat_map(letters), DataStream[str])
assert_type(clicks.map_async(look_up), DataStream[Bid])
assert_type(clicks.map_batches(lambda batch: batch), DataStream[Click])
assert_type(clicks.map_batches(lambda batch: batch, returns=Click), DataStream[Click])

# Columns have rows; settings keep the stream.
rows = clicks.select("app", cents=pl.col("price") * 100)
assert_type(rows, DataStream[Row])
assert_type(rows.map(lambda row: row.cents, returns=float), DataStream[float])
assert_type(rows.map(lambda row: row["app"], returns=str), DataStream[str])
assert_type(clicks.key_by("app").count().map(lambda row: row.count + 1, returns=int), DataStream[int])
assert_type(clicks.with_columns(pl.col("app").str.to_uppercase()), DataStream[Row])
assert_type(clicks.filter(lambda c: True).uid("all").name("all").set_parallelism(1), DataStream[Click])
assert_type(clicks.rebalance(), DataStream[Click])
assert_type(clicks.partition_custom(lambda user, n: user % n, lambda c: c.user), DataStream[Click])
assert_type(clicks.union(clicks), DataStream[Click])
assert_type(clicks.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("user")), DataStream[Click])

# Keys.
by_user = clicks.key_by(lambda c: c.user, returns=int)
assert_type(by_user, KeyedStream[int, Click])
assert_type(clicks.key_by("app"), KeyedStream[Any, Click])
assert_type(clicks.key_by("app").count(), DataStream[Row])
assert_type(clicks.key_by("app").sum("price", emit="batch"), DataStream[Row])
assert_type(by_user.reduce(lambda a, b: a if a.price > b.price else b), DataStream[Click])
assert_type(clicks.key_by("app").count_window(2), WindowedStream[Any, Click])
assert_type(clicks.connect(rows), ConnectedStreams[Click, Row])
assert_type(clicks.connect(rows).key_by(lambda c: c.app, lambda r: str(r.app)), ConnectedStreams[Click, Row])

# Results.
assert_type(next(clicks.execute_and_collect()).app, str)
assert_type(list(by_user.reduce(lambda a, b: b).execute_and_collect()), list[Click])


def expensive(stream: DataStream[Click], least: float) -> DataStream[Click]:
    return stream.filter(lambda c: c.price >= least)


def apps(results: Sequence[Click]) -> list[str]:
    return [click.app for click in results]


assert_type(expensive(by_user, 0.5), DataStream[Click])
clicks.sink_to(lambda c: c.app, name="nowhere")
env.execute("typed")
