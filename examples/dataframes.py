"""DataFrames in and out: a tidegate stream between two Spark DataFrames.

    python examples/dataframes.py [--parallelism 2] [any tidegate option]

Any bounded DataFrame is a source, so tidegate can read everything that Spark can read. The stream between them does
what Spark has no function for: it numbers the orders of each customer and adds the total so far, in order of arrival.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tidegate import Environment, Row


@dataclass
class Order:
    """An order; the stream fills `total` and `number`."""

    customer: str
    amount: int
    total: int = 0
    number: int = 0


def first_of_all(order: Row) -> Order:
    """The first order of a customer."""
    return Order(order.customer, order.amount, total=order.amount, number=1)


def add_up(so_far: Order, order: Order) -> Order:
    """A later order of a customer."""
    return Order(order.customer, order.amount, so_far.total + order.amount, so_far.number + 1)


def main(arguments: list[str]) -> None:
    """Number the orders; Spark aggregates the result."""
    spark = SparkSession.builder.master("local[2]").appName("orders").getOrCreate()
    orders = spark.sql("SELECT concat('customer-', id % 3) AS customer, id AS amount FROM range(1, 101)")

    env = Environment(spark=spark, parallelism=2, args=arguments)
    numbered = env.from_dataframe(orders).map(first_of_all).key_by("customer").reduce(add_up)
    result = numbered.to_dataframe("orders")

    result.createOrReplaceTempView("numbered")
    spark.sql(
        "SELECT customer, max(number) AS orders, max(total) AS total FROM numbered GROUP BY customer ORDER BY customer"
    ).show()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
