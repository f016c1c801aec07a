"""Two who hold one record: what one does to it must not show at the other."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tidegate import Environment, ProgramError
from tidegate.connectors.files import FileSink
from tidegate.records.object_copies import copy_objects
from tidegate.records.types import record_type_of
from tidegate.state.copies import row_copier


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
    [
        (Named, Named([1])),
        (tuple[list[int], str], ([1], "a")),
        (list[int], [1]),
        (None, {"values": [1]}),
        (object, ([1], "a")),
        (object, Named([1])),
        (object, [1]),
    ],
    ids=["NamedTuple", "tuple", "list", "Row", "object: tuple", "object: NamedTuple", "object: list"],
)
def test_branches_do_not_see_what_the_other_does_to_a_list_inside_a_record(hint: Any, record: Any) -> None:
    env = Environment(runtime="in-process")
    source = env.from_collection([record], type=hint).map(copy.deepcopy, returns=hint or SCHEMA)
    kind = source.record_type
    changed, untouched = source.map(add_to_list, returns=kind), source.map(lambda r: r, returns=kind)
    both = list(changed.union(untouched).execute_and_collect())
    assert sorted(row if isinstance(row, list) else row[0] for row in both) == [[1], [1, 99]]


@pytest.mark.parametrize("row", [("a", [1]), {"a": [1]}, [[1]], Named([1])], ids=repr)
def test_what_an_operator_keeps_of_an_object_is_another_one_inside_too(row: Any) -> None:
    """A reduce and a join emit what they keep, or keep what they were given."""
    copier = row_copier(record_type_of(object))
    assert copier is not None
    kept = copier(row)
    (kept["a"] if isinstance(kept, dict) else kept[-1]).append(99)
    assert row in (("a", [1]), {"a": [1]}, [[1]], ([1],))


class Handle:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_an_object_that_cannot_be_copied_whole_passes_to_both_branches() -> None:
    copied = copy_objects([Handle(), {"n": [1]}, Handle()])
    assert isinstance(copied[0], Handle)
    assert copied[1] == {"n": [1]}


def test_what_several_records_refer_to_is_copied_once_and_what_cannot_change_not_at_all() -> None:
    shared, fixed = [1], ("a", 1, None)
    one, two, three = copy_objects([{"v": shared}, {"v": shared}, fixed])
    assert one["v"] is two["v"]
    assert one["v"] is not shared
    assert three is fixed


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
