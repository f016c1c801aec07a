"""The same queries in SQL, computed by DuckDB over all events at once: the results that the streams must reach."""

from __future__ import annotations

from typing import Any, Final

import duckdb
import pyarrow as pa
from generator import Nexmark
from queries import SIDE_INPUT_KEYS, side_input

_WON: Final = """
    SELECT a.id, a.item_name, a.seller, a.category, a.expires, b.bidder, b.price, b.date_time AS bid_time
    FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.bidder) = 1
"""
_RANKED_BIDS: Final = """
    count(*), count(*) FILTER (price < 10000), count(*) FILTER (price >= 10000 AND price < 1000000),
    count(*) FILTER (price >= 1000000)
"""


def _distinct(column: str) -> str:
    return f"""
        count(DISTINCT {column}), count(DISTINCT {column}) FILTER (price < 10000),
        count(DISTINCT {column}) FILTER (price >= 10000 AND price < 1000000),
        count(DISTINCT {column}) FILTER (price >= 1000000)
    """


_STATISTICS: Final = f"{_RANKED_BIDS}, {_distinct('bidder')}, {_distinct('auction')}"

SQL: Final = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, price * 0.908::DOUBLE, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q4": f"SELECT category, count(*), avg(price) FROM ({_WON}) GROUP BY category",
    "q5": """
        WITH ends AS (
            SELECT auction, to_timestamp((epoch_ms(date_time) // 2000 + 1 + n) * 2) AS window_end
            FROM bid, range(5) AS five(n)
        ), counts AS (SELECT window_end, auction, count(*) AS bids FROM ends GROUP BY ALL)
        SELECT * FROM counts QUALIFY bids = max(bids) OVER (PARTITION BY window_end)
    """,
    "q6": f"""
        SELECT seller, id, avg(price) OVER (
            PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        ) FROM ({_WON})
    """,
    "q7": """
        SELECT auction, bidder, price, date_time FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY epoch_ms(date_time) // 10000)
    """,
    "q8": """
        SELECT DISTINCT p.id, p.name FROM person p JOIN auction a
        ON p.id = a.seller AND epoch_ms(p.date_time) // 10000 = epoch_ms(a.date_time) // 10000
    """,
    "q9": _WON,
    "q10": """
        SELECT auction, bidder, price, date_time, extra, strftime(date_time, '%Y-%m-%d'), strftime(date_time, '%H:%M')
        FROM bid
    """,
    "q11": """
        WITH sessions AS (
            SELECT bidder, date_time, sum(first) OVER (PARTITION BY bidder ORDER BY date_time, row) AS session
            FROM (
                SELECT *, row_number() OVER () AS row,
                    coalesce(date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)
                        > INTERVAL 10 SECOND, true)::INT AS first
                FROM bid
            )
        )
        SELECT bidder, min(date_time), max(date_time) + INTERVAL 10 SECOND, count(*)
        FROM sessions GROUP BY bidder, session
    """,
    "q12": "SELECT bidder, count(*) FROM bid GROUP BY bidder",
    "q13": f"""
        SELECT b.auction, b.bidder, b.price, b.date_time, s.value
        FROM bid b JOIN side_input s ON b.auction % {SIDE_INPUT_KEYS} = s.key
    """,
    "q14": """
        SELECT auction, bidder, price * 0.908::DOUBLE AS euros,
            CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                 WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END,
            date_time, extra, length(extra) - length(replace(extra, 'c', ''))
        FROM bid WHERE euros > 1000000 AND euros < 50000000
    """,
    "q15": f"SELECT date_trunc('day', date_time), {_STATISTICS} FROM bid GROUP BY 1",
    "q16": f"""
        SELECT channel, date_trunc('day', date_time) AS day, max(strftime(date_time, '%H:%M')), {_STATISTICS}
        FROM bid GROUP BY channel, day
    """,
    "q17": f"""
        SELECT auction, date_trunc('day', date_time) AS day, {_RANKED_BIDS},
            min(price), max(price), avg(price), sum(price)
        FROM bid GROUP BY auction, day
    """,
    "q18": """
        SELECT auction, bidder, price, date_time FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, price DESC) = 1
    """,
    "q19": """
        SELECT auction, (list(price ORDER BY price DESC))[:10] FROM bid GROUP BY auction
    """,
    "q20": """
        SELECT b.auction, b.bidder, b.price, b.date_time, a.item_name, a.seller, a.category
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10
    """,
    "q21": r"""
        SELECT auction, bidder, price, channel, CASE lower(channel)
            WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id
        FROM bid WHERE channel_id IS NOT NULL
    """,
    "q22": """
        SELECT auction, bidder, price, channel,
            split_part(url, '/', 4), split_part(url, '/', 5), split_part(url, '/', 6)
        FROM bid
    """,
}


def expected(name: str, nexmark: Nexmark) -> list[tuple[Any, ...]]:
    """The rows of a query, in any order."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for kind in ("person", "auction", "bid"):
            connection.register(kind, nexmark.table(kind))
        connection.register("side_input", pa.Table.from_pylist(side_input()))
        return connection.execute(SQL[name]).fetchall()


def comparable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows in one order, and without the last digits of their floats, which depend on the order of additions."""
    return sorted((tuple(_plain(value) for value in row) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1000)
    return value
