"""Durations and sizes: what is read, what is refused, and that shown text reads back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.durations import (
    format_duration_ms,
    format_size_bytes,
    parse_duration_ms,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("1 s", 1_000),
        ("500 ms", 500),
        ("500ms", 500),
        ("  10 min ", 600_000),
        ("10 m", 600_000),
        ("2 h", 7_200_000),
        ("1 day", 86_400_000),
        ("1.5 s", 1_500),
        (".5 Sec", 500),
        ("2000 us", 2),
        ("5_000 µs", 5),
        ("3000000 ns", 3),
        ("0", 0),
        (0, 0),
        (250, 250),
        (3.0, 3),
        (timedelta(seconds=1.25), 1_250),
        (timedelta(days=1), 86_400_000),
    ],
)
def test_a_duration_is_read_as_milliseconds(written: object, milliseconds: int) -> None:
    assert parse_duration_ms(written) == milliseconds


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("soon", "is not a duration such as"),
        ("", "is not a duration such as"),
        ("1 s 5 ms", "is not a duration such as"),
        ("5 parsecs", "'parsecs' is not a unit of time"),
        ("-1 s", "must not be negative"),
        (-1, "must not be negative"),
        (timedelta(seconds=-1), "must not be negative"),
        (0.5, "not a whole number of milliseconds"),
        ("500 us", "not a whole number of milliseconds"),
        (timedelta(microseconds=1), "not a whole number of milliseconds"),
        (True, "a bool is not a duration"),
        (None, "a NoneType is not a duration"),
        (float("nan"), "is not a duration"),
        (float("inf"), "is not a duration"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_reason(written: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_duration_ms(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("32 KiB", 32_768),
        ("1 MiB", 1 << 20),
        ("1mib", 1 << 20),
        ("64k", 65_536),
        ("1 MB", 1_000_000),
        ("1.5 KiB", 1_536),
        ("7 bytes", 7),
        ("2 GiB", 2 << 30),
        (4096, 4096),
        ("4096", 4096),
    ],
)
def test_a_size_is_read_as_bytes(written: object, size: int) -> None:
    assert parse_size_bytes(written) == size


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("big", "is not a size such as"),
        ("1 parsec", "'parsec' is not a unit of size"),
        ("0.3 KiB", "not a whole number of bytes"),
        (-5, "must not be negative"),
        (timedelta(1), "a timedelta is not a size"),
    ],
)
def test_what_is_no_size_is_refused_with_the_reason(written: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_size_bytes(written)


@given(st.integers(0, 1 << 60))
def test_what_is_shown_reads_back_to_the_same_value(amount: int) -> None:
    assert parse_duration_ms(format_duration_ms(amount)) == amount
    assert parse_size_bytes(format_size_bytes(amount)) == amount


def test_a_negative_amount_is_not_shown() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_duration_ms(-1)
