"""`Batch`: columns, rows, timestamps and positions stay together, whatever is cut out, in whichever form they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.records.batch import Batch, Origin
from tidegate.records.types import RowType, record_type_of

Click = tuple[str, int]
CLICKS = record_type_of(Click)
USER, N = CLICKS.schema.names
ORIGIN = Origin("part 0", 100)
FORMS = ("columns", "rows", "columns and rows", "packed")


def batch_of(clicks: list[Click], form: str, *, stamped: bool) -> Batch[Click]:
    columns = CLICKS.to_columns(clicks)
    stamps = pa.array([10 * n for _, n in clicks], pa.int64()) if stamped else None
    if form == "packed":
        packed = Batch(CLICKS, rows=list(clicks)).pack()
        assert packed is not None
        assert packed.packed is not None
        return Batch(CLICKS, packed=packed.packed, origin=ORIGIN)
    return Batch(
        CLICKS,
        columns=columns if "columns" in form else None,
        rows=list(clicks) if "rows" in form else None,
        origin=ORIGIN,
        timestamps=stamps,
    )


def assert_holds(batch: Batch[Any], clicks: list[Click], *, stamped: bool) -> None:
    assert len(batch) == batch.num_rows == len(clicks)
    assert batch.rows == clicks
    assert batch.columns.to_pylist() == [{USER: user, N: n} for user, n in clicks]
    if stamped:
        assert batch.timestamps is not None
        assert batch.timestamps.to_pylist() == [10 * n for _, n in clicks]
    else:
        assert batch.timestamps is None


cases = given(
    numbers=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    form=st.sampled_from(FORMS),
    with_stamps=st.booleans(),
    data=st.data(),
)


@cases
def test_filter_take_and_slice_cut_all_forms_alike(numbers, form, with_stamps, data):
    stamped = with_stamps and form != "packed"
    clicks = [(f"u{n % 3}", n) for n in numbers]

    mask = data.draw(st.lists(st.booleans(), min_size=len(clicks), max_size=len(clicks)))
    kinds = [list(mask), np.array(mask), pa.array([flag or None for flag in mask], pa.bool_())]
    kept = batch_of(clicks, form, stamped=stamped).filter(data.draw(st.sampled_from(kinds)))
    assert_holds(kept, [c for c, flag in zip(clicks, mask, strict=True) if flag], stamped=stamped)
    assert kept.origin is None

    indices = data.draw(st.lists(st.integers(0, len(clicks) - 1), max_size=6))
    taken = batch_of(clicks, form, stamped=stamped).take(np.array(indices, np.intp))
    assert_holds(taken, [clicks[i] for i in indices], stamped=stamped)

    start = data.draw(st.integers(0, len(clicks) - 1))
    part = batch_of(clicks, form, stamped=stamped).slice(start, 4)
    assert_holds(part, clicks[start : start + 4], stamped=stamped)
    assert part.origin == Origin("part 0", 100 + start)


@cases
def test_other_columns_or_timestamps_for_the_same_records(numbers, form, with_stamps, data):
    stamped = with_stamps and form != "packed"
    clicks = [(f"u{n % 3}", n) for n in numbers]
    batch = batch_of(clicks, form, stamped=stamped)

    again = batch.with_timestamps(pa.array([10 * n for n in numbers], pa.int64()))
    assert_holds(again, clicks, stamped=True)
    assert again.origin == ORIGIN

    one = RowType(pa.schema([CLICKS.schema.field(N)]))
    projected = batch.project(one)
    assert projected.columns.to_pylist() == [{N: n} for n in numbers]
    assert (projected.type, projected.origin, projected.timestamps) == (one, ORIGIN, batch.timestamps)

    own = batch.without_rows()
    assert_holds(own, clicks, stamped=stamped)
    assert own.origin == ORIGIN


def test_the_forms_are_given_by_name():
    with pytest.raises(TypeError, match="positional"):
        Batch(CLICKS, CLICKS.to_columns([]))  # type: ignore[misc]
