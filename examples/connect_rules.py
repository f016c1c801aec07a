"""Two streams, one function: payments are checked against rules from a second stream.

    python examples/connect_rules.py [--parallelism 2] [any tidegate option]

Both streams are keyed by the kind of payment, so a payment and its rule meet in the same subtask. Either may arrive
first: a payment without a rule waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate import CoFlatMapFunction, Environment


@dataclass
class Payment:
    """Somebody pays."""

    id: int
    kind: str
    amount: float


@dataclass
class Rule:
    """The amount from which a payment of this kind must be checked."""

    kind: str
    limit: float


@dataclass
class Alert:
    """A payment over its limit."""

    payment: int
    text: str


class Check(CoFlatMapFunction[Payment, Rule, Alert]):
    """Emits an alert for every payment that reaches the limit of its kind."""

    def __init__(self) -> None:
        self.limits: dict[str, float] = {}
        self.waiting: dict[str, list[Payment]] = {}

    def flat_map1(self, payment: Payment) -> Iterator[Alert]:
        """Check a payment, or keep it until its rule arrives."""
        if payment.kind not in self.limits:
            self.waiting.setdefault(payment.kind, []).append(payment)
        elif payment.amount >= self.limits[payment.kind]:
            yield Alert(payment.id, f"{payment.kind} of {payment.amount:.2f}")

    def flat_map2(self, rule: Rule) -> Iterator[Alert]:
        """Keep a rule and check the payments that waited for it."""
        self.limits[rule.kind] = rule.limit
        for payment in self.waiting.pop(rule.kind, []):
            yield from self.flat_map1(payment)


PAYMENTS = [
    Payment(1, "card", 20.0),
    Payment(2, "card", 2500.0),
    Payment(3, "transfer", 2500.0),
    Payment(4, "transfer", 10_000.0),
    Payment(5, "cash", 999.0),
]
RULES = [Rule("card", 1000.0), Rule("transfer", 5000.0), Rule("cash", 500.0)]


def main(arguments: list[str]) -> None:
    """Print the alerts."""
    env = Environment(parallelism=2, args=arguments)
    payments = env.from_collection(PAYMENTS, name="payments")
    rules = env.from_collection(RULES, name="rules")
    alerts = payments.connect(rules).key_by("kind", "kind").flat_map(Check(), name="check")
    for alert in sorted(alerts.execute_and_collect("alerts"), key=lambda a: a.payment):
        print(f"payment {alert.payment}: {alert.text}")


if __name__ == "__main__":
    main(sys.argv[1:])
