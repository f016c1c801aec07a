"""Decimals as integers: a column of `decimal128(p, s)` is its values times 10**s, and is summed as such.

Exact: nothing is rounded, and a number with more digits than its type raises `DecimalOverflow`. In numpy the numbers
are int64 if all of them fit. Else they are summed in limbs of 32 bits, and compared as Python's integers. State tables
keep them as `PAIR`: the 16 bytes of Arrow.
"""

from __future__ import annotations

from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]
"""An array of int64, or of Python's integers."""

PAIR: Final = np.dtype([("low", "<u8"), ("high", "<i8")])
"""128 bits, the low half first."""

MOST_DIGITS: Final = 38
_INT64: Final = np.iinfo(np.int64)
_LOW: Final = (1 << 64) - 1
_LIMB: Final = (1 << 32) - 1
_EXACT: Final = Context(prec=100, traps=[Inexact, InvalidOperation])


class DecimalOverflow(OverflowError):
    """A decimal has more digits than its type; `at` is its place in the array, if known."""

    def __init__(self, message: str, at: int | None = None) -> None:
        super().__init__(message)
        self.at = at


def sum_type(kind: pa.Decimal128Type) -> pa.DataType:
    """The type of a sum: 38 digits, with the scale of the values, as in Flink."""
    return pa.decimal128(MOST_DIGITS, kind.scale)


def average_type(kind: pa.Decimal128Type) -> pa.DataType:
    """The type of a mean: four more digits after the point, as in Spark, as far as 38 digits allow.

    Beyond that, Spark gives up digits before the point; then the mean of values that fit may not fit.
    """
    more = min(4, MOST_DIGITS - kind.precision)
    return pa.decimal128(kind.precision + more, kind.scale + more)


def averages(sums: Numbers, counts: npt.NDArray[np.int64], scale: int, result: pa.Decimal128Type) -> Numbers:
    """The quotients in the scale of the result; halves are rounded away from zero. No count is 0."""
    factor = 10 ** (result.scale - scale)
    return np.array(
        [_half_up(int(s) * factor, int(n)) for s, n in zip(sums.tolist(), counts.tolist(), strict=True)],
        object,
    )


def _half_up(dividend: int, divisor: int) -> int:
    quotient = (2 * abs(dividend) + divisor) // (2 * divisor)
    return quotient if dividend >= 0 else -quotient


def exact_sum(one: Any, other: Any) -> Any:
    """The sum of two Python numbers; for decimals, without the rounding of the current context."""
    return _EXACT.add(one, other) if isinstance(one, Decimal) else one + other


def exact_average(total: Decimal, count: int, scale: int) -> Decimal:
    """The quotient with `scale` digits after the point; halves are rounded away from zero."""
    return Decimal(_half_up(int(_EXACT.scaleb(total, scale)), count)).scaleb(-scale, _EXACT)


def overflow_advice(*, of_decimals: bool) -> str:
    """What to do about a sum that does not fit its type."""
    if of_decimals:
        return "Look at the values, or cast the column to a decimal128 with fewer digits after the point"
    return "Cast the column to float before it is summed"


# ---- from and to Arrow ----


def unscaled(values: pa.Array) -> Numbers:
    """The integers of a column of decimals; 0 for nulls."""
    if values.null_count:
        values = values.fill_null(pa.scalar(0, values.type))
    return numbers_of_pairs(pairs_of(values))


def decimals(numbers: Numbers, kind: pa.Decimal128Type, null: Mask | None = None) -> pa.Array:
    """The column of these integers. Raises `DecimalOverflow` if a number that is not null has too many digits."""
    if null is not None:
        numbers = np.where(null, 0, numbers)
    return array_of_pairs(pairs_of_numbers(numbers, kind), kind, null)


def pairs_of(values: pa.Array) -> npt.NDArray[Any]:
    """The 128 bits of each value of a column of decimals; undefined for nulls."""
    if not len(values):
        return np.empty(0, PAIR)
    return np.frombuffer(values.buffers()[1], PAIR, len(values), values.offset * PAIR.itemsize)


def array_of_pairs(pairs: npt.NDArray[Any], kind: pa.Decimal128Type, null: Mask | None = None) -> pa.Array:
    """A column of decimals with these bits."""
    validity = None if null is None or not null.any() else pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(
        kind, len(pairs), [validity, pa.py_buffer(np.ascontiguousarray(pairs).view(np.uint8))]
    )


def numbers_of_pairs(pairs: npt.NDArray[Any]) -> Numbers:
    small = narrow(pairs)
    if small is not None:
        return small
    wide: Numbers = (pairs["high"].astype(object) << 64) + pairs["low"].astype(object)
    return wide


def narrow(pairs: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """The numbers as int64 if all of them fit, else None."""
    small = np.ascontiguousarray(pairs["low"]).view(np.int64)
    return small if bool((pairs["high"] == small >> 63).all()) else None


def pairs_of_numbers(numbers: Numbers, kind: pa.Decimal128Type) -> npt.NDArray[Any]:
    """The bits of numbers. Raises `DecimalOverflow` if one has more digits than the type."""
    check_digits(numbers, kind.precision)
    pairs = np.empty(len(numbers), PAIR)
    if numbers.dtype == object:
        pairs["low"] = (numbers & _LOW).astype(np.uint64)
        pairs["high"] = (numbers >> 64).astype(np.int64)
    else:
        pairs["low"] = numbers.view(np.uint64)
        pairs["high"] = numbers >> 63
    return pairs


# ---- limbs: sums of 128 bits in arrays of 64 ----


def limbs_of(pairs: npt.NDArray[Any]) -> list[npt.NDArray[np.int64]]:
    """Four arrays of limbs, lowest 32 bits first, the last signed: billions of them can be summed in int64."""
    low, high = pairs["low"], pairs["high"]
    return [
        (low & _LIMB).astype(np.int64),
        (low >> np.uint64(32)).astype(np.int64),
        high & np.int64(_LIMB),
        high >> 32,
    ]


def pairs_of_limbs(limbs: list[npt.NDArray[np.int64]], kind: pa.Decimal128Type) -> npt.NDArray[Any]:
    """The numbers of summed limbs. Raises `DecimalOverflow` if one exceeds the 38 digits of the type."""
    first, second, third, fourth = limbs
    second = second + (first >> 32)
    third = third + (second >> 32)
    fourth = fourth + (third >> 32)
    pairs = np.empty(len(first), PAIR)
    pairs["low"] = ((first & _LIMB) | ((second & _LIMB) << 32)).view(np.uint64)
    pairs["high"] = (third & _LIMB) | (fourth << 32)
    # Nearly always the highest limbs alone show that all numbers are below the limit; they cannot overflow.
    limit = 10**kind.precision
    near = np.flatnonzero((fourth >= limit >> 96) | (fourth <= -(limit >> 96) - 1))
    for i in near.tolist():
        number = (int(fourth[i]) << 96) + (int(third[i] & _LIMB) << 64) + int(pairs["low"][i])
        if abs(number) >= limit:
            raise DecimalOverflow(f"{number} e{-kind.scale} does not fit a {kind}", i)
    return pairs


def numbers_of_limbs(limbs: list[npt.NDArray[np.int64]]) -> Numbers:
    """The numbers of summed limbs as Python's integers, of any size."""
    numbers = limbs[3].astype(object)
    for limb in reversed(limbs[:3]):
        numbers = (numbers << 32) + limb.astype(object)
    return numbers


def check_digits(numbers: Numbers, digits: int = MOST_DIGITS) -> None:
    """Raise `DecimalOverflow` if a number has more digits."""
    limit = 10**digits
    if not len(numbers) or (numbers.dtype != object and limit > _INT64.max):
        return
    if int(numbers.max()) >= limit or int(numbers.min()) <= -limit:
        raise DecimalOverflow(f"a sum has more than the {digits} digits of its type")


def fits(numbers: npt.NDArray[np.int64], largest_total: int = 0, limit: int = 1 << 63) -> bool:
    """Whether sums of these, on top of a total, stay below the limit, judged by the sizes alone."""
    if not len(numbers):
        return True
    largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
    return largest_total + largest * len(numbers) < limit
