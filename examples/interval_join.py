"""Orders and payments: which payment belongs to which order, and which orders were not paid.

    python examples/interval_join.py [--parallelism 2] [any tidegate option]

A payment belongs to an order of the same customer if it is at most ten minutes later. Both streams are a little out of
order. The job knows that an order is unpaid when the watermark, the smaller one of both streams, is ten minutes past
it. This does not depend on how late other payments are.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import pyarrow as pa

from tidegate import Environment, WatermarkStrategy

Time = Annotated[datetime, pa.timestamp("us", "UTC")]


@dataclass
class Order:
    """Somebody orders."""

    id: int
    customer: str
    at: Time


@dataclass
class Payment:
    """Somebody pays."""

    customer: str
    euros: float
    at: Time


@dataclass
class Settled:
    """An order, and how long its payment took; None if there was none in time."""

    order: int
    customer: str
    after_s: int | None


def settle(order: Order, payment: Payment | None) -> Settled:
    """Make one record of a pair, or of an order without a payment."""
    after_s = None if payment is None else round((payment.at - order.at).total_seconds())
    return Settled(order.id, order.customer, after_s)


def _at(minute: int, second: int = 0) -> datetime:
    return datetime(2026, 1, 1, 12, minute, second, tzinfo=UTC)


ORDERS = [
    Order(1, "ann", _at(0)),
    Order(2, "bob", _at(3)),
    Order(4, "eve", _at(9)),
    Order(3, "ann", _at(8)),
    Order(5, "bob", _at(30)),
]
PAYMENTS = [
    Payment("ann", 20.0, _at(9, 30)),
    Payment("eve", 5.0, _at(9, 10)),
    Payment("bob", 7.0, _at(14)),
    Payment("bob", 8.0, _at(31)),
]


def main(arguments: list[str]) -> None:
    """Print the result for every order."""
    env = Environment(parallelism=2, args=arguments)
    strategy = WatermarkStrategy.bounded("2 min", "at")
    orders = env.from_collection(ORDERS, name="orders").assign_timestamps_and_watermarks(strategy)
    payments = env.from_collection(PAYMENTS, name="payments").assign_timestamps_and_watermarks(strategy)
    paid = orders.key_by("customer").interval_join(payments.key_by("customer")).between("0 min", "10 min")
    settled = paid.how("left").apply(settle, name="settle")
    for found in sorted(settled.execute_and_collect("settle"), key=lambda s: s.order):
        result = "not paid in time" if found.after_s is None else f"paid after {found.after_s} s"
        print(f"order {found.order} of {found.customer}: {result}")


if __name__ == "__main__":
    main(sys.argv[1:])
