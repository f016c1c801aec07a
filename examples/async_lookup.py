"""Async I/O: ask a slow service about each order, with a hundred requests in flight instead of one.

    python examples/async_lookup.py [--parallelism 2] [any tidegate option]

The service here is a coroutine that takes 20 ms and sometimes fails; a real one would be a client that `open` makes.
Requests in flight are part of checkpoints, so each order has its answer once, whatever fails.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from tidegate import AsyncFunction, AsyncRetry, Environment, RuntimeContext


@dataclass
class Order:
    """Somebody orders."""

    id: int
    customer: int


@dataclass
class Addressed:
    """An order with its address."""

    id: int
    city: str


class Addresses(AsyncFunction[Order, Addressed]):
    """Asks where a customer lives."""

    def open(self, context: RuntimeContext) -> None:
        """Make the stand-in for the client of a service."""
        self._requests = 0

    async def invoke(self, order: Order) -> list[Addressed]:
        """One answer; every hundredth request is lost."""
        self._requests += 1
        number = self._requests  # others run while this one waits
        await asyncio.sleep(0.02)
        if number % 100 == 0:
            raise ConnectionError("the service did not answer")
        return [Addressed(order.id, ("Bremen", "Graz", "Basel")[order.customer % 3])]


def main(arguments: list[str]) -> int:
    """Look up 1,000 orders; return 0 if all results are there, in order."""
    orders = [Order(n, n * 7) for n in range(1000)]
    env = Environment(parallelism=1, args=arguments)
    addressed = env.from_collection(orders, name="orders").map_async(
        Addresses(),
        capacity=100,
        timeout="10 s",
        retry=AsyncRetry(5, "50 ms", on=(ConnectionError,)),
        name="addresses",
    )
    found = list(addressed.execute_and_collect("addresses"))
    right = [a.id for a in found] == [order.id for order in orders]
    verdict = "all there, in order" if right else "NOT all there, or not in order"
    print(f"{len(found)} addresses for {len(orders)} orders: {verdict}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
