"""Keys and rolling aggregates against plain Python: the running values of every key are exact."""

from __future__ import annotations

import datetime as dt
import math
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.kit import RUNTIMES, SEEDS, also_on_spark, bag, by_key, in_process
from tidegate import DataStream, Environment, KeyedStream
from tidegate.connectors.files import FileSource


@pytest.fixture(params=RUNTIMES)
def env(request: pytest.FixtureRequest, env_of: Callable[..., Environment]) -> Environment:
    return env_of(request.param, batch_rows=50)


@pytest.fixture
def make_env(make_process_env: Callable[..., Environment]) -> Callable[..., Environment]:
    return make_process_env


@dataclass
class Reading:
    sensor: str | None
    room: int
    value: float | None
    day: dt.date
    size: int


def readings(n: int, seed: int = 7) -> list[Reading]:
    rng = random.Random(seed)
    return [
        Reading(
            rng.choice([None, "", "a", "b", "ß", "long name " * 5]),
            rng.randrange(-2, 3),
            rng.choice([None, 0.25, -3.5, rng.random()]),
            dt.date(2024, 2, 27) + dt.timedelta(days=rng.randrange(4)),
            rng.randrange(-100, 100),
        )
        for _ in range(n)
    ]


def running(
    records: Iterable[Any], key: Callable[[Any], Any], value: Callable[[Any], Any], kind: str
) -> dict[Any, list[Any]]:
    """The oracle: per key, the value after each of its records. None values are left out; None while there is none."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for record in records:
        results, v = found[key(record)], value(record)
        last = results[-1] if results else None
        if kind == "count":
            results.append((last or 0) + 1)
        elif v is None or last is None:
            results.append(last if v is None else v)
        else:
            results.append(last + v if kind == "sum" else min(last, v) if kind == "min" else max(last, v))
    return dict(found)


def aggregate(keyed: KeyedStream, kind: str, column: str | None, **settings: Any) -> DataStream:
    return getattr(keyed, kind)(*([] if column is None else [column]), **settings)


KEYS: dict[str, tuple[tuple[Any, ...], Callable[[Reading], Any]]] = {
    "text and None": (("sensor",), lambda r: r.sensor),
    "int": (("room",), lambda r: r.room),
    "float and None": (("value",), lambda r: r.value),
    "date": (("day",), lambda r: r.day),
    "two columns": (("sensor", "room"), lambda r: (r.sensor, r.room)),
    "four columns": (("day", "room", "sensor", "value"), lambda r: (r.day, r.room, r.sensor, r.value)),
}


def in_order(env: Environment, records: list[Any]) -> DataStream:
    """All records from one subtask, so that there is one order to compare with."""
    return env.from_collection(records, type=type(records[0]), parallelism=1)


@pytest.mark.parametrize("name", KEYS)
def test_running_values_per_key_are_exact_for_keys_of_every_type(name):
    key, of = KEYS[name]
    records = readings(400)
    for seed, (kind, column) in enumerate(
        [("count", None), ("sum", "size"), ("min", "size"), ("max", "size")]
    ):
        env = in_process(seed, parallelism=3, batch_rows=37)
        out = aggregate(in_order(env, records).key_by(*key), kind, column, output="out").execute_and_collect()
        assert by_key(out, width=len(key)) == running(records, of, lambda r: r.size, kind)


@pytest.mark.parametrize(
    ("kind", "column"), [("count", None), ("sum", "value"), ("min", "value"), ("max", "day")]
)
def test_running_values_are_exact(env, kind, column):
    records = readings(300)
    out = aggregate(in_order(env, records).key_by("sensor"), kind, column, output="out").execute_and_collect()
    expected = running(records, lambda r: r.sensor, lambda r: getattr(r, column or "size"), kind)
    found = by_key(out)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values) if kind == "sum" else found[key] == values


@pytest.mark.parametrize(
    ("kind", "column"), [("count", None), ("sum", "size"), ("min", "size"), ("max", "size")]
)
def test_per_batch_the_latest_of_a_key_is_its_total_and_what_is_between_was_a_running_value(
    env, kind, column
):
    records = readings(300)
    keyed = env.from_collection(records).rebalance().filter(lambda r: True).key_by("sensor", "room")
    out = [tuple(r) for r in aggregate(keyed, kind, column, emit="batch", output="out").execute_and_collect()]
    totals = {
        k: v[-1] for k, v in running(records, lambda r: (r.sensor, r.room), lambda r: r.size, kind).items()
    }
    found = by_key(out, width=2)
    assert {k: v[-1] for k, v in found.items()} == totals
    assert len(out) < len(records)
    if kind == "count":  # counts only grow
        assert all(a < b for values in found.values() for a, b in pairwise(values))


@also_on_spark
def test_mini_batch_is_an_option_of_the_job(env):
    env.options = env.options.with_values({"execution.mini_batch": True}, "the test")
    out = env.from_collection(["a"] * 500, parallelism=1).key_by("value").count().execute_and_collect()
    counts = [r["count"] for r in out]
    assert counts[-1] == 500
    assert len(counts) < 500
    assert "mini_batch" in str(KeyedStream.count.__doc__)


@pytest.mark.parametrize("emit", ["each", "batch"])
def test_reduce_keeps_the_order_of_each_key(env, emit):
    def append(left: tuple[int, str], right: tuple[int, str]) -> tuple[int, str]:
        return left[0], f"{left[1]},{right[1]}"

    records = [(i % 7, str(i)) for i in range(200)]
    keyed = env.from_collection(records, type=tuple[int, str], parallelism=1).key_by("f0")
    found = by_key(keyed.reduce(append, emit=emit).execute_and_collect())
    for key in range(7):
        parts = [s for k, s in records if k == key]
        steps = [",".join(parts[: i + 1]) for i in range(len(parts))]
        if emit == "each":
            assert found[key] == steps
        else:
            assert found[key][-1] == steps[-1]
            assert [s for s in steps if s in set(found[key])] == found[key]


def test_reduce_of_dataclasses_by_an_untyped_function(env):
    def merge(left: Reading, right: Reading) -> Reading:
        return Reading(left.sensor, left.room, None, max(left.day, right.day), left.size + right.size)

    records = readings(200)
    keyed = in_order(env, records).key_by(lambda r: (r.sensor, r.room))
    found: dict[Any, list[int]] = defaultdict(list)
    for r in keyed.reduce(merge).execute_and_collect():
        found[(r.sensor, r.room)].append(r.size)
    assert found == running(records, lambda r: (r.sensor, r.room), lambda r: r.size, "sum")


# ---- key functions ----


def room_of(reading: Reading) -> int:
    return reading.room


def pair_of(reading: Reading) -> tuple[str | None, int]:
    return reading.sensor, reading.room


FUNCTIONS: dict[str, tuple[Any, Any, int]] = {
    "typed, one value": (room_of, room_of, 1),
    "typed, a tuple": (pair_of, pair_of, 2),
    "untyped, one value": (lambda r: r.sensor, lambda r: r.sensor, 1),
    "untyped, a tuple": (lambda r: (r.day, r.sensor), lambda r: (r.day, r.sensor), 1),
    "untyped, mixed types": (
        lambda r: r.room if r.room > 0 else r.sensor,
        lambda r: r.room if r.room > 0 else r.sensor,
        1,
    ),
    "untyped, decimals": (lambda r: Decimal(r.room) / 4, lambda r: Decimal(r.room) / 4, 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_key_functions_give_the_same_groups_as_python(name):
    function, oracle, width = FUNCTIONS[name]
    records = readings(300)
    for seed in SEEDS:
        env = in_process(seed, parallelism=3, batch_rows=40)
        counted = in_order(env, records).key_by(function).count().execute_and_collect()
        assert by_key(counted, width=width) == running(records, oracle, lambda r: 1, "count")
        env = in_process(seed, parallelism=3, batch_rows=40)
        summed = in_order(env, records).key_by(function).sum("size", emit="batch").execute_and_collect()
        totals = {k: v[-1] for k, v in running(records, oracle, lambda r: r.size, "sum").items()}
        assert {k: v[-1] for k, v in by_key(summed, width=width).items()} == totals


def test_key_functions_typed_and_untyped_on_spark(make_spark_env):
    records = readings(300)
    for name in ("typed, a tuple", "untyped, mixed types"):
        function, oracle, width = FUNCTIONS[name]
        counted = in_order(make_spark_env(), records).key_by(function).count().execute_and_collect()
        assert by_key(counted, width=width) == running(records, oracle, lambda r: 1, "count")


def test_a_key_of_none_is_a_key_like_any_other_and_the_docstring_says_so(env):
    words = env.from_collection([None, "a", None, "b", None], type=str | None, parallelism=1)
    assert by_key(words.key_by("value").count().execute_and_collect()) == {
        None: [1, 2, 3],
        "a": [1],
        "b": [1],
    }
    assert by_key(words.key_by(lambda w: w).count().execute_and_collect()) == {
        None: [1, 2, 3],
        "a": [1],
        "b": [1],
    }
    assert "A key of None is a key like any other" in str(DataStream.key_by.__doc__)


def test_float_keys_have_one_zero_and_one_nan():
    values = [0.0, -0.0, math.nan, -math.nan, 1.5, 0.0, math.nan]
    for seed in SEEDS:
        for untyped in (False, True):
            stream = in_process(seed, parallelism=3).from_collection(values, parallelism=1)
            keyed = stream.key_by((lambda v: v) if untyped else "value")
            counts = bag((str(abs(r[0])), r[1]) for r in keyed.count().execute_and_collect())
            assert counts == bag(
                [("0.0", 1), ("0.0", 2), ("0.0", 3), ("nan", 1), ("nan", 2), ("nan", 3), ("1.5", 1)]
            ), untyped


def test_equal_keys_meet_whether_they_come_as_columns_or_from_functions():
    """A typed and an untyped stream, connected, so that one function sees both."""
    env = in_process(parallelism=4)
    numbers = env.from_sequence(0, 99)
    seen: dict[int, set[int]] = defaultdict(set)
    for keyed in (
        numbers.key_by("value"),
        numbers.key_by(lambda n: n, returns=int),
        numbers.key_by(lambda n: n),
        numbers.key_by(lambda n: (n,)),
    ):
        for subtask, n in keyed.process(_subtask_of_each()).execute_and_collect():
            seen[n].add(subtask)
    assert all(len(subtasks) == 1 for subtasks in seen.values())
    assert len({s for subtasks in seen.values() for s in subtasks}) == 4


def _subtask_of_each() -> Any:
    from tidegate import ProcessFunction, RuntimeContext

    class Where(ProcessFunction):
        def open(self, context: RuntimeContext) -> None:
            self.subtask = context.subtask_index

        def process(self, value: int, context: Any) -> list[tuple[int, int]]:
            return [(self.subtask, value)]

    return Where()


# ---- loads ----


def test_one_key_with_nine_tenths_of_the_traffic(env):
    rng = random.Random(3)
    keys = ["hot" if rng.random() < 0.9 else f"cold {rng.randrange(50)}" for _ in range(2000)]
    counted = by_key(
        env.from_collection(keys)
        .rebalance()
        .filter(lambda k: True)
        .key_by("value")
        .count()
        .execute_and_collect()
    )
    assert counted == {k: list(range(1, n + 1)) for k, n in bag(keys).items()}


def test_a_hundred_thousand_keys(make_env):
    for env in (in_process(), make_env()):
        stream = env.from_sequence(0, 199_999).map_batches(_modulo_100k)
        out = (
            stream.key_by("value")
            .count(emit="batch")
            .map_batches(_count_twos, returns=pa.schema([("twos", pa.int64())]))
        )
        assert sum(r.twos for r in out.execute_and_collect()) == 100_000


def _modulo_100k(batch: pa.RecordBatch) -> pa.RecordBatch:
    import numpy as np

    return pa.record_batch({"value": np.remainder(batch.column(0).to_numpy(), 100_000)})


def _count_twos(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow.compute as pc

    return pa.record_batch({"twos": [pc.sum(pc.equal(batch.column("count"), 2)).as_py() or 0]})


@also_on_spark
def test_dictionary_columns_and_plain_ones_meet_in_an_exchange(env, tmp_path):
    (tmp_path / "a.json").write_text("".join(f'{{"app":"app-{i % 7}","n":{i}}}\n' for i in range(300)))
    schema = pa.schema([("app", pa.string()), ("n", pa.int64())])
    encoded = env.from_source(FileSource(tmp_path, "json", schema, dictionary_columns=["app"]))
    plain = env.from_collection([(f"app-{i % 9}", i) for i in range(300)], type=schema)
    both = encoded.union(plain)
    for emit in ("each", "batch"):
        counted = by_key(both.key_by("app").count(emit=emit).execute_and_collect())
        assert {k: v[-1] for k, v in counted.items()} == bag(
            [f"app-{i % 7}" for i in range(300)] + [f"app-{i % 9}" for i in range(300)]
        )
    assert bag(r.app for r in both.rebalance().filter(lambda r: True).execute_and_collect()) == bag(
        [f"app-{i % 7}" for i in range(300)] + [f"app-{i % 9}" for i in range(300)]
    )


PLACEMENT = """
import sys
from tidegate import Environment, ProcessFunction

class Where(ProcessFunction):
    def open(self, context):
        self.subtask = context.subtask_index

    def process(self, value, context):
        return [(value, self.subtask)]

env = Environment(runtime="in-process", parallelism=4)
words = env.from_collection([f"word {i}" for i in range(200)])
for keyed in (words.key_by("value"), words.key_by(lambda w: (w, None, 1.5))):
    print(sorted(keyed.process(Where()).execute_and_collect()))
print(list(words.key_by(lambda w: w[-1]).count().execute_and_collect()))
"""


def test_the_subtask_of_a_key_and_the_order_of_results_do_not_depend_on_pythons_hash_seed():
    runs = [
        subprocess.run(
            [sys.executable, "-c", PLACEMENT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert "word 17" in runs[0]
