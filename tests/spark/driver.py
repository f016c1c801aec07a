"""Programs for `Driver`: each runs in its own process, says what happens in lines of JSON, and waits for lines."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tidegate import Environment, JobFailedError
from tidegate.api.streams import DataStream
from tidegate.connectors.datagen import DataGeneratorSource, sequence

DEADLINE_S = 150.0
"""Shorter than that of `standalone.Driver`, so that the program says what it waited for."""


class Pair(NamedTuple):
    key: int
    value: int


def to_pair(n: int) -> Pair:
    return Pair(n % 7, n)


def is_last(pair: Any) -> bool:
    return bool(pair.value % 3 == 0)


def pairs_summed(env: Environment) -> list[tuple[int, int]]:
    """The one job that runs everywhere (functions, a hash exchange, running totals): the last total of each key."""
    numbers = env.from_sequence(1, 10_000)
    totals = numbers.map(to_pair).filter(is_last).key_by("key").sum("value")
    last: dict[int, int] = {}
    for key, total in totals.execute_and_collect("everywhere"):
        last[key] = max(total, last.get(key, 0))
    return sorted(last.items())


def five_operators(env: Environment, parallelism: int = 4) -> DataStream:
    """The example of the slots: A and C are sources, E is the sink, the largest parallelism is four."""
    a = env.from_sequence(1, 100, name="A").set_parallelism(parallelism)
    b = a.rebalance().map(to_pair, name="B").set_parallelism(parallelism)
    c = env.from_sequence(101, 200, name="C").set_parallelism(2)
    d = b.union(c.map(to_pair, name="C2").set_parallelism(2)).key_by("key").sum("value", name="D")
    return d.set_parallelism(parallelism)


def say(event: str, **values: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


def hear() -> str:
    return sys.stdin.readline().strip()


def session(master: str) -> Any:
    if master.startswith("connect:"):
        from pyspark.sql import SparkSession

        return SparkSession.builder.remote(master.removeprefix("connect:")).getOrCreate()
    from tidegate.spark.session import start_session

    settings = {}
    if master.startswith("spark:"):
        settings = {"spark__executor__memory": "512m", "spark__ui__enabled": "false"}
        settings |= {"spark__driver__host": "127.0.0.1", "spark__driver__bindAddress": "127.0.0.1"}
    if not master.startswith("local["):
        settings["spark__pyspark__python"] = os.environ["CLUSTER_PYTHON"]
    return start_session(master, **settings)


def environment(spark: Any, **options: Any) -> Environment:
    return Environment(spark=spark, **{"progress": "off", "parallelism": 4, **options})


def described(client: Any) -> list[dict[str, Any]]:
    return [
        {"slot": s.slot, "executor": s.executor, "pid": s.pid, "subtasks": list(s.subtasks)}
        for s in client.slots()
    ]


def until(condition: Callable[[], Any], what: str) -> None:
    """Poll until it is so; a little before the test gives up, the program fails and says what did not come."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.02)


def running(client: Any) -> None:
    def is_running() -> bool:
        assert not client.status().is_terminal, client.status()
        return bool(client.status().name == "RUNNING")

    until(is_running, "the job runs")


def unbounded(env: Environment, rate: float = 100) -> DataStream:
    source = DataGeneratorSource(fields={"n": sequence()}, rate=rate)
    return env.from_source(source).rebalance()


def nothing(record: Any) -> None:
    pass


def sleep_an_hour(record: Any) -> None:
    time.sleep(3600)


# ---- the programs ----


def answer(master: str) -> None:
    """Run the job, twice, and say where it ran."""
    spark = session(master)
    say("answer", rows=pairs_summed(environment(spark)))
    env = environment(spark)
    five_operators(env).sink_to(nothing, name="E").set_parallelism(1)
    client = env.execute_async()
    client.result()
    say("slots", slots=described(client))
    say("answer", rows=pairs_summed(environment(spark, parallelism=2)))
    spark.stop()


def wait_for_slots(master: str) -> None:
    """Submit a job for which there are too few slots, and wait out its time."""
    spark = session(master)
    env = environment(spark, slots_wait_timeout="6s")
    five_operators(env).sink_to(nothing, name="E").set_parallelism(1)
    begun = time.monotonic()
    client = env.execute_async()
    until(client.waiting_for, "the job waits for slots")
    say("waiting", text=client.waiting_for(), after_s=time.monotonic() - begun, status=client.status().name)
    try:
        client.result()
        say("finished")
    except JobFailedError as e:
        say("failed", error=str(e), after_s=time.monotonic() - begun)
    env = environment(spark, parallelism=3)
    five_operators(env, 3).sink_to(nothing, name="E").set_parallelism(1)
    env.execute()
    say("with three")
    spark.stop()


def lose_a_worker(master: str) -> None:
    """Four workers with two slots: run on them, lose one, wait with the next attempt, get another, go on."""
    spark = session(master)
    count_slots = _counter(spark)
    until(lambda: count_slots() >= 8, "eight slots")
    env = environment(spark, parallelism=8)
    unbounded(env).sink_to(nothing, name="out")
    client = env.execute_async()
    running(client)
    say("running", slots=described(client), available=count_slots())
    begun = time.monotonic()
    try:
        client.result(timeout_s=DEADLINE_S)
    except JobFailedError as e:
        say("failed", error=str(e), after_s=time.monotonic() - begun)
    until(lambda: count_slots() <= 6, "the slots of the lost worker are gone")
    env = environment(spark, parallelism=8)
    begun = time.monotonic()
    env.from_sequence(1, 1000).rebalance().map(to_pair).sink_to(nothing)
    client = env.execute_async()
    until(client.waiting_for, "the job waits for slots")
    say("waiting", text=client.waiting_for(), after_s=time.monotonic() - begun)
    hear()
    say("still waiting", status=client.status().name)
    hear()
    out = client.result(timeout_s=DEADLINE_S).vertices[-1]
    say("finished", subtasks=len(out.subtasks), records=out.total("records_in"), slots=described(client))
    spark.stop()


def _counter(spark: Any) -> Any:
    from tidegate.core.options import Options
    from tidegate.spark.gang import SparkGang

    gang = SparkGang(spark, Options())
    return gang.count_slots


def run_until_killed(master: str) -> None:
    """Two jobs that never end: one whose user code returns, one whose does not."""
    spark = session(master)
    clients = []
    for function in (nothing, sleep_an_hour):
        env = environment(spark, parallelism=2)
        unbounded(env, rate=1000).sink_to(function)
        clients.append(env.execute_async())
    for client in clients:
        running(client)
    say("running", pids=[s["pid"] for client in clients for s in described(client)])
    hear()


def connect(master: str) -> None:
    """All that a job does, through Spark Connect."""
    spark = session(master)
    say("answer", rows=pairs_summed(environment(spark)))
    env = environment(spark, parallelism=2)
    unbounded(env).sink_to(nothing)
    client = env.execute_async()
    running(client)
    begun = time.monotonic()
    until(
        lambda: time.monotonic() - begun > 3 and client.metrics().vertices[-1].total("records_in") >= 100,
        "a hundred records, and three seconds for what would end the job by itself",
    )
    say("long-lived", status=client.status().name, records=client.metrics().vertices[-1].total("records_in"))
    begun = time.monotonic()
    client.cancel()
    say("cancelled", after_s=time.monotonic() - begun)
    env = environment(spark, parallelism=2)
    unbounded(env).sink_to(sleep_an_hour)
    client = env.execute_async()
    running(client)
    pids = [s["pid"] for s in described(client)]
    until(lambda: any(s.stuck_ms > 500 for s in client.slots()), "a slot is stuck")
    begun = time.monotonic()
    client.cancel()
    say("cancelled", after_s=time.monotonic() - begun, pids=pids)
    env = environment(spark, parallelism=2)
    env.from_sequence(1, 10).map(lambda n: 1 // (n - 5)).sink_to(nothing)
    try:
        env.execute()
    except JobFailedError as e:
        say("failed", error=str(e))
    env = environment(spark, parallelism=2)
    doubled = env.from_dataframe(spark.range(100)).map(lambda row: 2 * row.id, returns=int)
    say("dataframe", total=sum(row.value for row in doubled.to_dataframe().collect()))
    env = environment(spark, parallelism=6)
    env.from_sequence(1, 10).sink_to(nothing)
    client = env.execute_async()
    begun = time.monotonic()
    until(client.waiting_for, "the job waits for slots")
    say("waiting", text=client.waiting_for(), after_s=time.monotonic() - begun)
    begun = time.monotonic()
    client.cancel()
    say("cancelled", after_s=time.monotonic() - begun)
    say("answer", rows=pairs_summed(environment(spark)))
    spark.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    name, spark_master = sys.argv[1:]
    globals()[name](spark_master)
