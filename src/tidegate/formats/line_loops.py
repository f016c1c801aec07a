"""The loops over the bytes of lines, compiled by numba: eight bytes at a time, no Python in between.

A text here is `padded`: its last line is ended, and behind it come `PADDING` bytes. A loop may thus load a word at any
byte of a line, and needs no bound: a newline ends every string and every number, and is itself refused there.

All of them are in one module, since numba's cache of machine code looks at the time of a function's own file only. The
cache is beside this file, or in the user's cache directory; where neither can be written, each slot compiles at its
start (about a second). Importing numba takes some tenths of a second, so only what reads lines may import this.
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
"""Instead of a number of lines: at least one of them has not the layout."""
HAS_HIGH_BYTES, HAS_LITERALS, HAS_SIGNS = 1, 2, 4
"""What was met: perhaps bytes beyond ASCII; `true`, `false` or `null`; a minus or a fraction."""
MOST_DIGITS = 18
"""So many digits fit into 63 bits, whatever they are."""

NO_TOKEN = -2
"""In a table of tokens: nothing here."""

_EACH = 0x0101010101010101
_LOW_BITS = np.uint64(_EACH)
_HIGH_BITS = np.uint64(_EACH * 0x80)
_QUOTES = np.uint64(_EACH * ord('"'))
_BACKSLASHES = np.uint64(_EACH * ord("\\"))
_SPACES = np.uint64(_EACH * ord(" "))
_ZEROS = np.uint64(_EACH * ord("0"))
# What makes the high bit of a byte 1 if it is more than nine.
_ABOVE_NINE = np.uint64(_EACH * (0x80 - 10))
_QUOTE, _MINUS, _DOT, _ZERO, _NINE, _N = (np.uint8(ord(c)) for c in '"-.09n')
_TRUE, _NULL, _FALSE = (np.uint64(int.from_bytes(word, "little")) for word in (b"true", b"null", b"false"))
_FOUR_BYTES, _FIVE_BYTES = np.uint64((1 << 32) - 1), np.uint64((1 << 40) - 1)
_ALL_BITS = np.uint64((1 << 64) - 1)
_ONE, _THREE, _EIGHT = np.uint64(1), np.uint64(3), np.uint64(8)
_POWERS = np.array([10**i for i in range(WORD + 1)], np.uint64)


def padded(chunk: bytes) -> tuple[Text, int]:
    """Whole lines as the loops want them, and how many bytes of that are theirs; the last end may be missing."""
    size = len(chunk) if chunk.endswith(b"\n") else len(chunk) + 1
    return np.frombuffer(chunk + PADDING, np.uint8), size


def _compiled(signature: str) -> Callable[[F], F]:
    def compile_now(function: F) -> F:
        try:
            compiled: Any = njit(signature, nogil=True, cache=True)(function)
        except Exception:  # noqa: BLE001 - no place for a cache, or what is there cannot be read
            compiled = njit(signature, nogil=True)(function)
        return compiled

    return compile_now


def _inlined(function: Callable[..., Any]) -> Any:
    return njit(nogil=True, inline="always")(function)


def _instructions(function: Callable[..., Any]) -> Any:
    return intrinsic(function)


@_instructions
def _word_at(_context: Any, text: Any, _at: Any) -> Any:
    """The eight bytes from a place on, the first one lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(text, types.int64), generate


@_instructions
def _zero_bits_below(_context: Any, _word: Any) -> Any:
    """How many zeros there are below the lowest 1 of a word, which has one."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.uint64(types.uint64), generate


@_instructions
def _zero_bits_above(_context: Any, _word: Any) -> Any:
    """How many zeros there are above the highest 1 of a word, which has one."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], cgutils.true_bit)

    return types.uint64(types.uint64), generate


@_inlined
def _bytes_before(flags: Any) -> Any:
    """How many bytes of a word come before the first one that is flagged in its high bit."""
    return np.int64(_zero_bits_below(flags) >> _THREE)


@_inlined
def _zero_bytes(word: Any) -> Any:
    """Flags: the lowest is right, those above it may be wrong, and there is one exactly if a byte is zero."""
    return (word - _LOW_BITS) & ~word & _HIGH_BITS


@_inlined
def _non_digits(word: Any) -> Any:
    """Flags, as with `_zero_bytes`, for a word whose bytes were combined with `_ZEROS`."""
    return ((word + _ABOVE_NINE) | word) & _HIGH_BITS


@_inlined
def _digits_end(text: Any, at: Any) -> Any:
    """Where the run of digits ends that starts here."""
    while True:
        others = _non_digits(_word_at(text, at) ^ _ZEROS)
        if others:
            return at + _bytes_before(others)
        at += WORD


@_compiled(
    "UniTuple(int64, 2)(Array(uint8, 1, 'C', readonly=True), int64, "
    "uint64[::1], uint64[::1], int64[::1], int64[::1], int64[::1], int32[:, ::1], int32[:, ::1])"
)
def scan_lines(
    text: Text,
    size: int,
    piece_words: Words,
    piece_masks: Words,
    piece_starts: npt.NDArray[np.int64],
    piece_sizes: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    starts: Integers,
    ends: Integers,
) -> tuple[np.int64, np.int64]:
    """Find the values of lines that are all the same pieces of text with one value between each two.

    `size`: the bytes of the lines; the text is padded. Piece p is the words `piece_starts[p]` to `piece_starts[p + 1]`
    of `piece_words`, as far as the masks go; only the last one has a newline, its end. Where value v of line i starts
    and ends goes into `starts[rows[v], i]` and `ends[rows[v], i]`; nowhere if `rows[v]` is negative.

    A value is a string without backslashes and control characters, a number without exponent, or a literal. Gives the
    number of lines or `ANOTHER_LAYOUT`, and what was met (`HAS_...`).
    """
    last = piece_starts.size - 2
    at = np.int64(0)
    line = np.int64(0)
    met = np.int64(0)
    strings = np.uint64(0)
    while at < size:
        for v in range(last + 1):
            place = at
            for i in range(piece_starts[v], piece_starts[v + 1]):
                if (_word_at(text, place) ^ piece_words[i]) & piece_masks[i]:
                    return np.int64(ANOTHER_LAYOUT), met
                place += WORD
            at += piece_sizes[v]
            if v == last:
                break
            start = at
            first = text[at]
            if first == _QUOTE:
                at += 1
                while True:
                    word = _word_at(text, at)
                    strings |= word
                    refused = (_zero_bytes(word ^ _BACKSLASHES) | (word - _SPACES) & ~word) & _HIGH_BITS
                    quote = _zero_bytes(word ^ _QUOTES)
                    if quote:
                        # Of the flags below the quote's the lowest is right, so there is one only if a byte is.
                        if refused & ((quote & (~quote + _ONE)) - _ONE):
                            return np.int64(ANOTHER_LAYOUT), met
                        at += _bytes_before(quote) + 1
                        break
                    if refused:
                        return np.int64(ANOTHER_LAYOUT), met
                    at += WORD
            elif first <= _NINE:
                whole = at
                if first == _MINUS:
                    met |= HAS_SIGNS
                    whole += 1
                at = _digits_end(text, whole)
                if at == whole or (text[whole] == _ZERO and at > whole + 1):
                    return np.int64(ANOTHER_LAYOUT), met
                if text[at] == _DOT:
                    met |= HAS_SIGNS
                    fraction = at + 1
                    at = _digits_end(text, fraction)
                    if at == fraction:
                        return np.int64(ANOTHER_LAYOUT), met
            else:
                word = _word_at(text, at)
                if (word & _FOUR_BYTES) == _TRUE or (word & _FOUR_BYTES) == _NULL:
                    at += 4
                elif (word & _FIVE_BYTES) == _FALSE:
                    at += 5
                else:
                    return np.int64(ANOTHER_LAYOUT), met
                met |= HAS_LITERALS
            row = rows[v]
            if row >= 0:
                starts[row, line] = start
                ends[row, line] = at
        line += 1
    if strings & _HIGH_BITS:
        met |= HAS_HIGH_BYTES
    return line, met


@_compiled("boolean(Array(uint8, 1, 'C', readonly=True), int32[::1], int32[::1], int64[::1], boolean[::1])")
def whole_numbers(
    text: Text,
    starts: Integers,
    ends: Integers,
    numbers: npt.NDArray[np.int64],
    nulls: npt.NDArray[np.bool_],
) -> bool:
    """Read values that are numbers or literals as whole numbers; says if each one is such a number, or null.

    Those with more than `MOST_DIGITS` digits are not read.
    """
    for i in range(starts.size):
        at, end = np.int64(starts[i]), np.int64(ends[i])
        first = text[at]
        nulls[i] = first == _N
        numbers[i] = 0
        if first == _N:
            continue
        if first == _MINUS:
            at += 1
        if end - at > MOST_DIGITS:
            return False
        number = np.uint64(0)
        while at < end:
            count = np.int64(WORD) if end - at > WORD else end - at
            digits = _word_at(text, at) ^ _ZEROS
            # Up to the highest bytes, with zeros before it.
            digits <<= _EIGHT * np.uint64(WORD - count)
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
    """The word of a token from a place on, with zeros behind its end."""
    word = _word_at(text, at)
    if end - at < WORD:
        word &= _ALL_BITS >> (_EIGHT * np.uint64(WORD - (end - at)))
    return word


@_inlined
def _mixed(mix: Any, word: Any) -> Any:
    """Taken from its highest bits, a mix differs wherever one of its words does."""
    product = (mix ^ word) * np.uint64(0x9E3779B97F4A7C15)
    return product ^ (product >> np.uint64(32))


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
) -> np.int64:
    """Look pieces of a text up; gives how many are not in the table, which ones goes into `unknown`.

    The table has 2^n slots, the rest of them free: a token's words with zeros behind its end, and its code, which is
    `NO_TOKEN` in a free one. Pieces have no zero bytes and at least one byte.
    """
    places = np.int64(table_codes.size - 1)
    shift = _zero_bits_above(table_codes.size - 1)
    most = np.int64(table_words.shape[1] * WORD)
    missing = np.int64(0)
    for i in range(starts.size):
        start, end = np.int64(starts[i]), np.int64(ends[i])
        code = np.int32(NO_TOKEN)
        if end - start <= most:
            mix = np.uint64(0)
            at = start
            while at < end:
                mix = _mixed(mix, _token_word(text, at, end))
                at += WORD
            place = np.int64(mix >> shift)
            while True:
                code = table_codes[place]
                if code == NO_TOKEN:
                    break
                at, column = start, 0
                while at < end and table_words[place, column] == _token_word(text, at, end):
                    at += WORD
                    column += 1
                if at >= end and (column == table_words.shape[1] or table_words[place, column] == 0):
                    break
                place = (place + 1) & places
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
    """Put pieces of a padded text, all different, with their codes into a table that has room for them."""
    places = np.int64(table_codes.size - 1)
    shift = _zero_bits_above(table_codes.size - 1)
    for i in range(starts.size):
        start, end = np.int64(starts[i]), np.int64(ends[i])
        mix = np.uint64(0)
        for at in range(start, end, WORD):
            mix = _mixed(mix, _token_word(text, at, end))
        place = np.int64(mix >> shift)
        while table_codes[place] != NO_TOKEN:
            place = (place + 1) & places
        table_codes[place] = codes[i]
        for at in range(start, end, WORD):
            table_words[place, (at - start) // WORD] = _token_word(text, at, end)
