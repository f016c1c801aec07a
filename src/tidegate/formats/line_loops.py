"""Loops over the bytes of lines, compiled by numba. They work on words of eight bytes (SWAR), without Python.

A text here is `padded`: its last line ends with a newline, and `PADDING` bytes follow. So a loop may load a word at any
byte of a line and needs no bounds check: a newline ends every string and every number, and no value may contain one.

Places are unsigned: numba checks whether a signed index counts from the end (a quarter of the proof's time). The
constants are unsigned too, because numba turns a signed and an unsigned number together into a float.

All loops are in one module, because numba's cache of machine code only checks the time of a function's own file. The
cache is beside this file, or in the user's cache directory; if neither can be written, each slot compiles at its start
(about a second). Importing numba takes some tenths of a second, so only readers of lines may import this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])
Text = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int32]

WORD = 8
PADDING = b"\n" * 2 * WORD
ANOTHER_LAYOUT = -1
"""Returned instead of a number of lines: at least one line does not have the layout."""
HAS_HIGH_BYTES, HAS_LITERALS, HAS_SIGNS = 1, 2, 4
"""What the lines contain: possibly bytes beyond ASCII; `true`, `false` or `null`; a minus or a fraction."""
MOST_DIGITS = 18
"""Any number of so many digits fits into 63 bits."""

NO_TOKEN = -2
"""Marks a free slot in a table of tokens."""

_EACH = 0x0101010101010101
_LOW_BITS = np.uint64(_EACH)
_HIGH_BITS = np.uint64(_EACH * 0x80)
_QUOTES = np.uint64(_EACH * ord('"'))
_BACKSLASHES = np.uint64(_EACH * ord("\\"))
_SPACES = np.uint64(_EACH * ord(" "))
_ZEROS = np.uint64(_EACH * ord("0"))
# Added to a byte, sets its high bit if the byte is more than nine.
_ABOVE_NINE = np.uint64(_EACH * (0x80 - 10))
_QUOTE, _MINUS, _DOT, _ZERO, _NINE, _N = (np.uint64(ord(c)) for c in '"-.09n')
_TRUE, _NULL, _FALSE = (np.uint64(int.from_bytes(word, "little")) for word in (b"true", b"null", b"false"))
_FOUR_BYTES, _FIVE_BYTES = np.uint64((1 << 32) - 1), np.uint64((1 << 40) - 1)
_ALL_BITS = np.uint64((1 << 64) - 1)
_FIRST_BYTE = np.uint64(0xFF)
_NOTHING, _ONE, _THREE, _FOUR, _FIVE, _EIGHT = (np.uint64(i) for i in (0, 1, 3, 4, 5, 8))
_WORD = np.uint64(WORD)
_ODD_FACTOR, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
_POWERS = np.array([10**i for i in range(WORD + 1)], np.uint64)


def padded(chunk: bytes) -> tuple[Text, int]:
    """Whole lines with the padding that the loops need, and their size with the last newline, added if missing."""
    size = len(chunk) if chunk.endswith(b"\n") else len(chunk) + 1
    return np.frombuffer(chunk + PADDING, np.uint8), size


def _compiled(signature: str) -> Callable[[F], F]:
    def compile_now(function: F) -> F:
        try:
            compiled: Any = njit(signature, nogil=True, cache=True)(function)
        except Exception:  # noqa: BLE001 - the cache cannot be written or read
            compiled = njit(signature, nogil=True)(function)
        return compiled

    return compile_now


def _inlined(function: Callable[..., Any]) -> Any:
    return njit(nogil=True, inline="always")(function)


def _instructions(function: Callable[..., Any]) -> Any:
    return intrinsic(function)


@_instructions
def _word_at(_context: Any, text: Any, _at: Any) -> Any:
    """The eight bytes at a place, as a little-endian word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(text, types.uint64), generate


@_instructions
def _zero_bits_below(_context: Any, _word: Any) -> Any:
    """The number of trailing zero bits of a word that is not zero."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.uint64(types.uint64), generate


@_instructions
def _zero_bits_above(_context: Any, _word: Any) -> Any:
    """The number of leading zero bits of a word that is not zero."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], cgutils.true_bit)

    return types.uint64(types.uint64), generate


@_inlined
def _bytes_before(flags: Any) -> Any:
    """How many bytes of a word come before the first one whose high bit is flagged."""
    return _zero_bits_below(flags) >> _THREE


@_inlined
def _zero_bytes(word: Any) -> Any:
    """A flag in the high bit of each zero byte. The lowest flag is exact, higher ones may be false."""
    return (word - _LOW_BITS) & ~word & _HIGH_BITS


@_inlined
def _non_digits(word: Any) -> Any:
    """Flags like those of `_zero_bytes` for bytes that are not digits; takes the word XOR `_ZEROS`."""
    return ((word + _ABOVE_NINE) | word) & _HIGH_BITS


@_inlined
def _digits_end(text: Any, at: Any, word: Any) -> Any:
    """Where the run of digits ends that starts at `at`, whose word is given."""
    while True:
        others = _non_digits(word ^ _ZEROS)
        if others:
            return at + _bytes_before(others)
        at += _WORD
        word = _word_at(text, at)


@_compiled(
    "UniTuple(int64, 2)(Array(uint8, 1, 'C', readonly=True), uint64, "
    "uint64[::1], uint64[::1], uint64[::1], uint64[::1], int64[::1], int32[:, ::1], int32[:, ::1])"
)
def scan_lines(
    text: Text,
    size: int,
    piece_words: Words,
    piece_masks: Words,
    piece_ends: Words,
    piece_sizes: Words,
    rows: npt.NDArray[np.int64],
    starts: Integers,
    ends: Integers,
) -> tuple[int, int]:
    """Find the values of lines that all consist of the same pieces of text, with one value between each two.

    `size`: the bytes of the lines; the text is padded. Piece p has `piece_sizes[p]` bytes: the masked words of
    `piece_words` from the end of the previous piece to `piece_ends[p]`. Only the last piece has a newline, at its end.
    The loop stores where value v of line i starts and ends in `starts[rows[v], i]` and `ends[rows[v], i]`, unless
    `rows[v]` is negative.

    A value is a string without backslashes and control characters, a number without exponent, or a literal. Returns
    the number of lines or `ANOTHER_LAYOUT`, and what the lines contain (`HAS_...`).
    """
    last = np.uint64(piece_ends.size - 1)
    at = _NOTHING
    line = _NOTHING
    met = 0
    strings = _NOTHING
    while at < size:
        i = _NOTHING
        for v in range(_NOTHING, last + _ONE):
            place, piece_end = at, piece_ends[v]
            while i < piece_end:
                if (_word_at(text, place) ^ piece_words[i]) & piece_masks[i]:
                    return ANOTHER_LAYOUT, met
                place += _WORD
                i += _ONE
            at += piece_sizes[v]
            if v == last:
                break
            start = at
            word = _word_at(text, at)
            first = word & _FIRST_BYTE
            if first == _QUOTE:
                at += _ONE
                while True:
                    word = _word_at(text, at)
                    strings |= word
                    refused = (_zero_bytes(word ^ _BACKSLASHES) | (word - _SPACES) & ~word) & _HIGH_BITS
                    quote = _zero_bytes(word ^ _QUOTES)
                    if quote:
                        # The lowest flag is exact, so a flag below the quote's means a refused byte before the quote.
                        if refused & ((quote & (~quote + _ONE)) - _ONE):
                            return ANOTHER_LAYOUT, met
                        at += _bytes_before(quote) + _ONE
                        break
                    if refused:
                        return ANOTHER_LAYOUT, met
                    at += _WORD
            elif first <= _NINE:
                if first == _MINUS:
                    met |= HAS_SIGNS
                    at += _ONE
                    word = _word_at(text, at)
                    first = word & _FIRST_BYTE
                whole = at
                at = _digits_end(text, whole, word)
                if at == whole or (first == _ZERO and at > whole + _ONE):
                    return ANOTHER_LAYOUT, met
                if text[at] == _DOT:
                    met |= HAS_SIGNS
                    fraction = at + _ONE
                    at = _digits_end(text, fraction, _word_at(text, fraction))
                    if at == fraction:
                        return ANOTHER_LAYOUT, met
            else:
                if (word & _FOUR_BYTES) == _TRUE or (word & _FOUR_BYTES) == _NULL:
                    at += _FOUR
                elif (word & _FIVE_BYTES) == _FALSE:
                    at += _FIVE
                else:
                    return ANOTHER_LAYOUT, met
                met |= HAS_LITERALS
            row = rows[v]
            if row >= 0:
                starts[np.uint64(row), line] = start
                ends[np.uint64(row), line] = at
        line += _ONE
    if strings & _HIGH_BITS:
        met |= HAS_HIGH_BYTES
    return int(line), met


@_compiled("boolean(Array(uint8, 1, 'C', readonly=True), int32[::1], int32[::1], int64[::1], boolean[::1])")
def whole_numbers(
    text: Text,
    starts: Integers,
    ends: Integers,
    numbers: npt.NDArray[np.int64],
    nulls: npt.NDArray[np.bool_],
) -> bool:
    """Read values that are numbers or literals as integers; returns whether each is an integer or null.

    An integer of more than `MOST_DIGITS` digits counts as not readable.
    """
    for i in range(starts.size):
        at, end = np.uint64(starts[i]), np.uint64(ends[i])
        first = np.uint64(text[at])
        nulls[i] = first == _N
        numbers[i] = 0
        if first == _N:
            continue
        if first == _MINUS:
            at += _ONE
        if end - at > np.uint64(MOST_DIGITS):
            return False
        number = _NOTHING
        while at < end:
            count = min(end - at, _WORD)
            digits = _word_at(text, at) ^ _ZEROS
            # Shift the digits to the highest bytes; the zeros below them act as leading zeros.
            digits <<= _EIGHT * (_WORD - count)
            if _non_digits(digits):
                return False
            pairs = ((digits * np.uint64(1 + (10 << 8))) >> _EIGHT) & np.uint64(0x00FF00FF00FF00FF)
            fours = ((pairs * np.uint64(1 + (100 << 16))) >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
            number = number * _POWERS[count] + ((fours * np.uint64(1 + (10_000 << 32))) >> np.uint64(32))
            at += count
        numbers[i] = -np.int64(number) if first == _MINUS else np.int64(number)
    return True


@_inlined
def _token_word(text: Any, at: Any, end: Any) -> Any:
    """The word of a token at a place, with zeros after the token's end."""
    word = _word_at(text, at)
    if end - at < _WORD:
        word &= _ALL_BITS >> (_EIGHT * (_WORD - (end - at)))
    return word


@_inlined
def _first_place(text: Any, start: Any, end: Any, shift: Any) -> Any:
    """The slot at which probing for a token starts: the highest bits of a hash over all its words."""
    mix = _NOTHING
    at = start
    while at < end:
        mix = (mix ^ _token_word(text, at, end)) * _ODD_FACTOR
        mix ^= mix >> _HALF
        at += _WORD
    return mix >> shift


@_compiled(
    "int64(Array(uint8, 1, 'C', readonly=True), int32[::1], int32[::1], "
    "uint64[:, ::1], int32[::1], int32[::1], int32[::1])"
)
def find_tokens(
    text: Text,
    starts: Integers,
    ends: Integers,
    table_words: Words,
    table_codes: Integers,
    codes: Integers,
    unknown: Integers,
) -> int:
    """Look up pieces of a text by open addressing with linear probing; returns how many are not in the table.

    The indices of the missing ones go into `unknown`. The table has 2^n slots, some of them free. A slot has a token's
    words, with zeros after the token's end, and its code; the code of a free slot is `NO_TOKEN`. Pieces have no zero
    bytes and at least one byte.
    """
    last_place = np.uint64(table_codes.size - 1)
    shift = _zero_bits_above(last_place)
    columns = np.uint64(table_words.shape[1])
    missing = 0
    for i in range(starts.size):
        start, end = np.uint64(starts[i]), np.uint64(ends[i])
        code = np.int32(NO_TOKEN)
        if end - start <= columns * _WORD:
            place = _first_place(text, start, end, shift)
            while True:
                code = table_codes[place]
                if code == NO_TOKEN:
                    break
                at, column = start, _NOTHING
                while at < end and table_words[place, column] == _token_word(text, at, end):
                    at += _WORD
                    column += _ONE
                if at >= end and (column == columns or table_words[place, column] == _NOTHING):
                    break
                place = (place + _ONE) & last_place
        codes[i] = code
        if code == NO_TOKEN:
            unknown[missing] = i
            missing += 1
    return missing


@_compiled(
    "void(Array(uint8, 1, 'C', readonly=True), int32[::1], int32[::1], int32[::1], uint64[:, ::1], int32[::1])"
)
def put_tokens(
    text: Text,
    starts: Integers,
    ends: Integers,
    codes: Integers,
    table_words: Words,
    table_codes: Integers,
) -> None:
    """Insert distinct pieces of a padded text with their codes into a table that has room for them."""
    last_place = np.uint64(table_codes.size - 1)
    shift = _zero_bits_above(last_place)
    for i in range(starts.size):
        start, end = np.uint64(starts[i]), np.uint64(ends[i])
        place = _first_place(text, start, end, shift)
        while table_codes[place] != NO_TOKEN:
            place = (place + _ONE) & last_place
        table_codes[place] = codes[i]
        at, column = start, _NOTHING
        while at < end:
            table_words[place, column] = _token_word(text, at, end)
            at += _WORD
            column += _ONE
