"""The few values of a string column, learned while reading, so that the parser returns codes instead of text.

msgspec decodes a string to the member of an enum by looking up its bytes in a table, without making the text. So the
known values become an enum whose members are one-character strings, and the character is the value's code: joined, the
members of a million rows are an array of codes. Nothing is guessed: msgspec passes a value that is not in the table to
`_missing_`, which gives it a code.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from tidegate.formats.line_loops import Integers, Text
    from tidegate.formats.token_codes import TokenCodes

MOST_VALUES = 4_096
"""With more values a dictionary does not pay: hashing and sending it would cost as much as the rows of a batch."""
_MOST_CHARACTERS = 1 << 20
# Looking up longer tokens by their bytes costs more than it saves.
_LONGEST_TOKEN = 64
_LOOKED_AT = 16_384
_ROWS_PER_VALUE = 8
# All codes are characters of two bytes, without surrogates, so joining such strings is a plain copy.
_NULL = 0x100
_FIRST = _NULL + 1
_NULL_TOKEN = b"null"
# Characters that JSON always escapes.
_ESCAPED = re.compile(r'["\\\x00-\x1f]')


class LearnedDictionary:
    """Values and their codes; grows with new values until it is full. Used by one thread."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values: list[str] = []
        self._codes: dict[str, str] = {}
        self._characters = 0
        self._misses = 0
        self._longest = 0
        self._tokens: TokenCodes | None = None
        self._unfound = 0
        self.full = False
        """Whether a value did not fit: the column must no longer be read with this dictionary."""
        for value in values:
            self._add(value)
        if not self._values:
            self._add("")  # the parser refuses an empty table; a value that no row has does no harm
        self._array: pa.Array = pa.array(self._values, pa.string())
        self.hint = self._enum()
        """The enum type that the parser decodes a value to."""

    def __len__(self) -> int:
        return len(self._values)

    def encode(self, members: Sequence[Any]) -> pa.Array:
        """The column from the parser's values: members of `hint`, or None."""
        has_null = False
        try:
            text = "".join(members)
        except TypeError:
            has_null = True
            text = "".join([chr(_NULL) if m is None else m for m in members])
        codes = np.frombuffer(text.encode("utf-16-le"), np.uint16).astype(np.int32)
        codes -= _FIRST
        return self._column(codes, has_null)

    @property
    def has_short_values(self) -> bool:
        """Whether all values are short enough for `encode_tokens`."""
        return self._longest <= _LONGEST_TOKEN

    def encode_tokens(self, text: Text, starts: Integers, ends: Integers) -> pa.Array | None:
        """The column from nulls and JSON strings without escapes, given by their places in a padded text.

        None if a token is something else, or if a value does not fit (then the dictionary is `full`).
        """
        from tidegate.formats.token_codes import TokenCodes  # imports numba, as layout readers do

        if self._tokens is None or self._unfound >= len(self._values):
            self._tokens, self._unfound = TokenCodes(self._plain_tokens()), 0
        codes, unfound = self._tokens.find(text, starts, ends)
        self._unfound += len(unfound)
        for row in unfound.tolist():
            token = text[starts[row] : ends[row]].tobytes()
            if token == _NULL_TOKEN:
                codes[row] = -1
                continue
            if not token.startswith(b'"'):
                return None
            value = token[1:-1].decode()
            code = self._codes.get(value) or self._add(value)
            if code is None:
                return None
            codes[row] = ord(code) - _FIRST
        return self._column(codes, has_null=bool(codes.min() < 0))

    def _plain_tokens(self) -> dict[bytes, int]:
        tokens = {_NULL_TOKEN: -1}
        for code, value in enumerate(self._values):
            if not _ESCAPED.search(value):
                tokens[b'"%b"' % value.encode()] = code
        return tokens

    def _column(self, codes: npt.NDArray[np.int32], has_null: bool) -> pa.Array:
        if len(self._array) < len(self._values):
            self._array = pa.array(self._values, pa.string())
        indices = pa.array(codes, pa.int32(), mask=codes < 0 if has_null else None)
        return pa.DictionaryArray.from_arrays(indices, self._array, safe=False)

    def renew(self) -> bool:
        """Rebuild the parser's table with the new values, if that pays by now; returns whether `hint` changed."""
        # A miss costs about as much as building one entry of the table.
        if self._misses < len(self._values):
            return False
        self._misses = 0
        self.hint = self._enum()
        return True

    def _add(self, value: str) -> str | None:
        self._characters += len(value)
        self._longest = max(self._longest, len(value.encode()) + 2)
        if len(self._values) == MOST_VALUES or self._characters > _MOST_CHARACTERS:
            self.full = True
            return None
        code = self._codes[value] = chr(_FIRST + len(self._values))
        self._values.append(value)
        return code

    def _missed(self, value: str) -> str | None:
        self._misses += 1
        return self._codes.get(value) or self._add(value)

    def _enum(self) -> Any:
        dictionary = self

        class Value(enum.StrEnum):
            NONE = ""

            @classmethod
            def _missing_(cls, value: object) -> Any:
                code = dictionary._missed(str(value))
                return None if code is None else str.__new__(cls, code)

        # Creating a member in the usual way takes 16 µs. If another version of msgspec looked for the members
        # elsewhere, it would find no value and ask `_missing_` for each: slow, but correct.
        table: dict[Any, Any] = Value._value2member_map_
        table.clear()
        table.update(self._codes)
        return Value


class FirstValues:
    """Collects the first values of a string column, until they show whether it has few distinct ones."""

    def __init__(self) -> None:
        self._distinct: set[str | None] = set()
        self._rows = 0

    def add(self, values: Sequence[str | None]) -> None:
        self._rows += len(values)
        self._distinct.update(values)

    @property
    def enough(self) -> bool:
        """Whether enough rows were seen to decide."""
        return self._rows >= _LOOKED_AT or len(self._distinct) > MOST_VALUES // 2

    def dictionary(self) -> LearnedDictionary | None:
        """A dictionary of the values; None if they are too many or too long for one."""
        values = sorted(v for v in self._distinct if v is not None)
        if len(values) > MOST_VALUES // 2 or len(values) * _ROWS_PER_VALUE > self._rows:
            return None
        dictionary = LearnedDictionary(values)
        return None if dictionary.full else dictionary
