"""Words in messages: the article of a noun, the plural of a count, a value on one line, text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def a_or_an(noun: str) -> str:
    """A noun with its article, by its first letter.

    >>> a_or_an("int"), a_or_an("str"), a_or_an("UUID")
    ('an int', 'a str', 'a UUID')
    """
    return f"{'an' if noun[:1] in 'aeioAEIO' else 'a'} {noun}"


def kind_of(value: object) -> str:
    """The class of a value with its article: "an int"."""
    return a_or_an(type(value).__name__)


def brief(value: Any, limit: int = 120) -> str:
    """A value's repr, cut to `limit` characters."""
    try:
        text = repr(value)
    except Exception as e:  # noqa: BLE001 - the user's repr may raise anything; the message must still be made
        text = f"<{type(value).__name__} whose repr raises {type(e).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def printable(text: str) -> str:
    """Text without control characters, which a terminal would obey; it may come from any program or file."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def either(words: Iterable[str]) -> str:
    """Words joined with commas and "or".

    >>> either(["heap", "rocksdb", "disk"]), either(["heap"])
    ('heap, rocksdb or disk', 'heap')
    """
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def number_of(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun in the singular or plural.

    >>> number_of(1, "slot"), number_of(2, "slot"), number_of(1_000, "entry", "entries")
    ('1 slot', '2 slots', '1,000 entries')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
