"""Words in messages: the article of a noun, the plural of a count."""

from __future__ import annotations


def a_or_an(noun: str) -> str:
    """A noun with its article, by its first letter.

    >>> a_or_an("int"), a_or_an("str"), a_or_an("UUID")
    ('an int', 'a str', 'a UUID')
    """
    return f"{'an' if noun[:1] in 'aeioAEIO' else 'a'} {noun}"


def kind_of(value: object) -> str:
    """What a value is, by its class: "an int"."""
    return a_or_an(type(value).__name__)


def number_of(count: int, noun: str, plural: str = "") -> str:
    """So many of them.

    >>> number_of(1, "slot"), number_of(2, "slot"), number_of(1_000, "entry", "entries")
    ('1 slot', '2 slots', '1,000 entries')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
