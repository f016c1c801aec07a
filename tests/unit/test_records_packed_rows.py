"""Packed rows: what is packed comes back as it was, and whatever is not just of its type is left to the columns."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.core.errors import ProtocolError, SchemaError
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.records.batch import Batch
from tidegate.records.packed_rows import PackedRows
from tidegate.records.types import record_type_of
from tidegate.records.wire import decode_frame, encode_batch, encode_frame
from tidegate.taskmanager.credits import SenderCredits
from tidegate.taskmanager.output_channel import MANY_ROWS, OutputChannel, merge

VISIT = record_type_of(tuple[str, int, float | None, bool, bytes])
ROWS = [
    ("ann", 1, 0.5, True, b"x"),
    ("", -(2**63), None, False, b""),
    ("näh😀", 2**63 - 1, math.inf, True, b"\xcf\xff"),
    ("c", 2**32, -0.0, False, b"ROWS"),
]


def packed(rows: list[Any], hint: Any = VISIT) -> Batch:
    found = Batch(record_type_of(hint), rows=rows).pack()
    assert found is not None
    return found


def test_rows_come_back_as_they_were() -> None:
    made = packed(ROWS)
    over = decode_frame(encode_frame(made), VISIT)
    assert over.num_rows == len(ROWS)
    assert over.rows == ROWS
    assert [list(map(type, row)) for row in over.rows] == [list(map(type, row)) for row in ROWS]
    assert str(over.rows[3][2]) == "-0.0"
    assert over.columns.equals(Batch(VISIT, rows=ROWS).columns)


def test_packed_rows_are_small_and_say_so() -> None:
    made = packed([("app-1", 7)] * 1000, tuple[str, int])
    assert made.nbytes() == made.packed.nbytes < 10 * 1000  # type: ignore[union-attr]
    assert "packed" in repr(made)


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "row",
    [
        ("a", 1, 0.5, True),
        ("a", 1, 0.5, True, b"", b""),
        ["a", 1, 0.5, True, b""],
        (1, 1, 0.5, True, b""),
        (None, 1, 0.5, True, b""),
        (Name("a"), 1, 0.5, True, b""),
        ("\ud800", 1, 0.5, True, b""),
        ("a", True, 0.5, True, b""),
        ("a", 1.0, 0.5, True, b""),
        ("a", 2**63, 0.5, True, b""),
        ("a", 2**64, 0.5, True, b""),
        ("a", -(2**63) - 1, 0.5, True, b""),
        ("a", 1, 1, True, b""),
        ("a", 1, 0.5, 1, b""),
        ("a", 1, 0.5, True, bytearray()),
    ],
    ids=repr,
)
def test_a_row_that_is_not_just_of_its_type_is_not_packed(row: Any) -> None:
    assert Batch(VISIT, rows=[*ROWS, row]).pack() is None


@pytest.mark.parametrize("hint", [int, tuple[str, list[int]], object], ids=str)
def test_other_types_are_not_packed(hint: Any) -> None:
    assert record_type_of(hint).packer is None


def test_columns_and_timestamps_are_not_packed() -> None:
    rows = Batch(VISIT, rows=ROWS)
    assert Batch(VISIT, columns=rows.columns).pack() is None
    assert rows.pack() is None  # it has columns by now: they cost nothing any more


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("length", range(8))
def test_any_part_is_what_a_list_gives(start: int, length: int) -> None:
    rows = [(str(i), i) for i in range(7)]
    parts = [packed(part, tuple[str, int]) for part in (rows[:3], rows[3:4], rows[4:])]
    merged = merge(parts)
    assert merged.packed is not None
    assert merged.slice(start, length).rows == rows[start : start + length]
    over = decode_frame(encode_frame(merged), merged.type)
    assert [over.slice(i, 1).rows[0] for i in range(7)] == rows  # in portions
    assert over.rows == rows


def test_portions_end_where_parts_do_if_they_are_large_enough() -> None:
    kind = record_type_of(tuple[str, int])
    rows = [(str(i), i) for i in range(3000)]
    merged = merge([packed(part, kind) for part in (rows[:100], rows[100:1100], rows[1100:])])
    taken, start = [], 0
    while start < merged.num_rows:
        taken.append(merged.portion(start, 1500))
        start += taken[-1]
    assert taken == [1100, 1500, 400]
    assert Batch(kind, rows=rows).portion(2900, 1500) == 100


def test_packed_rows_merge_with_rows_and_with_columns() -> None:
    rows = [("a", 1), ("b", 2)]
    kind = record_type_of(tuple[str, int])
    made = packed(rows, kind)
    with_rows = merge([made, Batch(kind, rows=rows)])
    assert with_rows.packed is not None
    assert with_rows.rows == rows * 2
    with_columns = merge([made, Batch(kind, columns=kind.to_columns(rows))])
    assert with_columns.packed is None
    assert with_columns.rows == rows * 2


def test_a_stored_batch_is_an_arrow_stream_also_where_it_came_packed() -> None:
    made = packed(ROWS)
    assert encode_batch(made).to_pybytes() == encode_batch(Batch(VISIT, rows=ROWS)).to_pybytes()


@pytest.mark.parametrize(
    "damage", [lambda f: f[:-1], lambda f: f + b"x", lambda f: f[:6]], ids=["cut", "more", "head"]
)
def test_a_damaged_frame_is_refused(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ProtocolError, match="packed rows"):
        decode_frame(damage(bytes(encode_frame(packed(ROWS)))), VISIT)


def test_rows_of_another_type_are_refused() -> None:
    over = decode_frame(encode_frame(packed([(1,)], tuple[int])), record_type_of(tuple[str]))
    with pytest.raises(ProtocolError, match="rows of its type"):
        _ = over.rows
    with pytest.raises(ProtocolError, match="channel carries int"):
        decode_frame(encode_frame(packed([(1,)], tuple[int])), record_type_of(int))


def test_a_packer_goes_with_its_pickled_type() -> None:
    kind = pickle.loads(pickle.dumps(VISIT))
    assert kind.packer is not None
    assert pickle.loads(pickle.dumps(kind)).packer.pack(ROWS) == kind.packer.pack(ROWS)


class Wire:
    """Takes what leaves a channel."""

    def __init__(self, *, as_rows: bool) -> None:
        self.batches: list[Batch] = []
        id = ChannelId(EdgeId(0), 0, 1)
        self.channel = OutputChannel(id, SenderCredits(9), 1 << 20, self._take, remote=True, as_rows=as_rows)

    def _take(self, channel: ChannelId, element: Any, backlog: int) -> int:
        self.batches.append(element)
        return 0


@pytest.mark.parametrize("count", [1, MANY_ROWS, 3 * MANY_ROWS])
@pytest.mark.parametrize("as_rows", [True, False])
def test_rows_leave_packed_where_the_consumer_wants_rows(count: int, as_rows: bool) -> None:
    wire, kind = Wire(as_rows=as_rows), record_type_of(tuple[str, int])
    rows = [(str(i), i) for i in range(count)]
    wire.channel.add(Batch(kind, rows=rows), 0)
    wire.channel.add(Batch(kind, rows=rows[:1]), 0)
    wire.channel.flush()
    (left,) = wire.batches
    assert (left.packed is not None, left.has_columns) == (as_rows, not as_rows)
    assert left.rows == [*rows, rows[0]]


@pytest.mark.parametrize("count", [1, MANY_ROWS])
def test_a_wrong_type_is_refused_before_it_leaves(count: int) -> None:
    wire, kind = Wire(as_rows=True), record_type_of(tuple[str, int])

    def send() -> None:
        wire.channel.add(Batch(kind, rows=[("a", "one")] * count), 0)
        wire.channel.flush()

    with pytest.raises(SchemaError, match="column 'f1' is int64 but got a str: 'one'"):
        send()
    assert not wire.batches


def test_a_batch_much_larger_than_a_buffer_is_cut_and_keeps_its_rows() -> None:
    wire, kind = Wire(as_rows=True), record_type_of(tuple[str, int])
    rows = [("x" * 5000, i) for i in range(1000)]
    wire.channel.add(Batch(kind, rows=rows), 0)
    wire.channel.flush()
    assert len(wire.batches) > 1
    assert [row for b in wire.batches for row in decode_frame(encode_frame(b), kind).rows] == rows


def test_only_the_part_that_is_asked_for_is_unpacked() -> None:
    good = packed([("a", 1)], tuple[str, int]).packed
    packer = record_type_of(tuple[str, int]).packer
    assert good is not None
    assert packer is not None
    both = PackedRows.joined([good, PackedRows(packer, [(1, b"\xc1")])])
    assert both.slice(0, 1) == [("a", 1)]
    with pytest.raises(ProtocolError):
        both.slice(1, 1)
