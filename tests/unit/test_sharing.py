"""Two who hold one record: what one does to it must not show at the other."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tidegate import Environment, ProgramError
from tidegate.connectors.files import FileSink


@dataclass
class Total:
    key: str
    n: int


def add_in_place(so_far: Total, record: Total) -> Total:
    so_far.n += record.n
    return so_far


def add(so_far: Total, record: Total) -> Total:
    return Total(so_far.key, so_far.n + record.n)


def plus_hundred(total: Total) -> Total:
    total.n += 100
    return total


SCHEMA = pa.schema([pa.field("values", pa.list_(pa.int64()))])
RECORDS = [Total("a", 1), Total("a", 2), Total("a", 3)]


def test_a_reduce_that_changes_its_state_in_place_emits_every_running_result() -> None:
    env = Environment(runtime="in-process")
    out = env.from_collection(copy.deepcopy(RECORDS)).key_by("key").reduce(add_in_place).execute_and_collect()
    assert [t.n for t in out] == [1, 3, 6]


def test_what_follows_a_reduce_cannot_change_its_state() -> None:
    env = Environment(runtime="in-process")
    reduced = env.from_collection(copy.deepcopy(RECORDS)).key_by("key").reduce(add)
    assert [t.n for t in reduced.map(plus_hundred).execute_and_collect()] == [101, 103, 106]


def change(total: Any) -> Any:
    return plus_hundred(total)


@pytest.mark.parametrize("hint", [Total, object])
def test_branches_of_one_stream_do_not_see_each_others_changes(hint: Any) -> None:
    env = Environment(runtime="in-process")
    numbers = env.from_collection(copy.deepcopy(RECORDS), type=hint)
    changed = numbers.map(change, returns=hint)
    untouched = numbers.map(lambda t: t, returns=hint)
    out = [t.n for t in changed.union(untouched).execute_and_collect()]
    assert sorted(out) == [1, 2, 3, 101, 102, 103]


class Named(NamedTuple):
    values: list[int]


def add_to_list(record: Any) -> Any:
    (record if isinstance(record, list) else record[0]).append(99)
    return record


@pytest.mark.parametrize(
    ("hint", "record"),
    [(Named, Named([1])), (tuple[list[int], str], ([1], "a")), (list[int], [1]), (None, {"values": [1]})],
    ids=["NamedTuple", "tuple", "list", "Row"],
)
def test_branches_do_not_see_what_the_other_does_to_a_list_inside_a_record(hint: Any, record: Any) -> None:
    env = Environment(runtime="in-process")
    source = env.from_collection([record], type=hint).map(copy.deepcopy, returns=hint or SCHEMA)
    kind = source.record_type
    changed, untouched = source.map(add_to_list, returns=kind), source.map(lambda r: r, returns=kind)
    both = list(changed.union(untouched).execute_and_collect())
    assert sorted(row if isinstance(row, list) else row[0] for row in both) == [[1], [1, 99]]


def test_two_sinks_into_one_directory_are_refused(tmp_path: Any) -> None:
    env = Environment(runtime="in-process")
    numbers = env.from_sequence(1, 3)
    numbers.sink_to(FileSink(tmp_path / "out"), name="first")
    numbers.sink_to(FileSink(tmp_path / "out"), name="second")
    with pytest.raises(ProgramError, match=r"'first' and 'second' both write to directory"):
        env.execute("twice")


def test_a_parallelism_over_128_needs_no_max_parallelism() -> None:
    env = Environment(runtime="in-process", parallelism=200)
    env.from_sequence(1, 3).print()
    assert "200" in env.explain()
