"""Your own state: orders that a flaky network delivers twice pass once, and are counted.

    python examples/deduplicate.py [--state.backend rocksdb] [any tidegate option]

The job remembers each order id for an hour after it was last seen. Repeated deliveries go to a side output, with their
count. The result is compared with that of plain Python over the same deliveries.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate import Environment, OutputTag, ProcessContext, ProcessFunction, StateTtl, ValueState


@dataclass
class Order:
    """Somebody buys something."""

    id: int
    customer: str
    amount: float


REPEATED = OutputTag("repeated", tuple[int, int])
"""(order id, how often it has come)."""


class Deduplicate(ProcessFunction[Order, Order]):
    """Passes the first delivery of each order."""

    deliveries = ValueState(int, default=0, ttl=StateTtl("1 h"))

    def process(self, order: Order, context: ProcessContext) -> Iterator[Order]:
        """Count the delivery; only the first one passes."""
        count = self.deliveries.value() + 1
        self.deliveries.update(count)
        if count == 1:
            yield order
        else:
            context.output(REPEATED, (order.id, count))


def deliveries(number: int, seed: int = 7) -> list[Order]:
    """Orders, some of them delivered two or three times."""
    rng = random.Random(seed)
    orders = [Order(i, f"customer-{i % 5}", round(rng.uniform(1, 100), 2)) for i in range(number)]
    delivered = [order for order in orders for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    rng.shuffle(delivered)
    return delivered


def main(arguments: list[str]) -> int:
    """Deduplicate 1,000 orders; return 0 if the result is right."""
    delivered = deliveries(1000)
    env = Environment(parallelism=2, args=arguments)
    once = (
        env.from_collection(delivered, name="deliveries")
        .key_by("id")
        .process(Deduplicate(), side_outputs=(REPEATED,), name="deduplicate", uid="deduplicate")
    )
    kept = once.map(lambda order: (order.id, 1), returns=tuple[int, int])
    found = Counter(kept.union(once.get_side_output(REPEATED)).execute_and_collect("deduplicate"))

    truth = Counter(
        (id, n) for id, count in Counter(o.id for o in delivered).items() for n in range(1, count + 1)
    )
    first = sum(1 for _, n in found.elements() if n == 1)
    verdict = "equal to the truth" if found == truth else "NOT equal to the truth"
    print(
        f"{len(delivered)} deliveries, {first} orders let through, {found.total() - first} dropped: {verdict}"
    )
    return 0 if found == truth else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
