"""Plain text: every line a string, and that both directions agree."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import SchemaError
from tidegate.formats import TextLinesFormat
from tidegate.formats.lines import DecodedLines, decode_lines
from tidegate.records.types import record_type_of

SCHEMA = record_type_of(str).schema
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n")).filter(
    lambda s: s[-1:] != "\r"
)


def decode(chunk: bytes) -> DecodedLines:
    decoder = TextLinesFormat().decoder(SCHEMA, SCHEMA.names)
    return decode_lines(decoder, chunk, pa.RecordBatch.from_pylist([], schema=SCHEMA))


def texts(chunk: bytes) -> list[str]:
    return decode(chunk).columns.column(0).to_pylist()


@pytest.mark.parametrize(
    ("chunk", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a b\n\n c \n", ["a b", "", " c "]),
        (b"a\r\n\r\nb\rc\r\n", ["a", "", "b\rc"]),
        (b"no end", ["no end"]),
        ("tïde\x85\u2028one line\n".encode(), ["tïde\x85\u2028one line"]),
    ],
)
def test_every_line_is_a_record(chunk, lines):
    assert texts(chunk) == lines


@given(st.lists(LINE))
def test_what_is_written_is_read_back(lines):
    written = TextLinesFormat().encode(pa.record_batch([pa.array(lines, pa.string())], schema=SCHEMA))
    assert texts(written) == lines


@given(st.lists(LINE), st.lists(LINE))
def test_a_line_that_is_not_utf8_is_bad_and_its_neighbours_are_as_without_it(before, after):
    head, tail = ("".join(f"{line}\n" for line in lines).encode() for lines in (before, after))
    decoded = decode(head + b"\xff\n" + tail)
    assert decoded.columns.column(0).to_pylist() == before + after
    (bad,) = decoded.bad
    assert bad.reason.startswith("not UTF-8")
    assert (bad.offset, bad.rows_before, bad.text) == (len(head), len(before), b"\xff")


@pytest.mark.parametrize(
    ("value", "words"), [("a\nb", "line break: 'a"), ("a\r", "line break"), (None, "None")]
)
def test_a_value_that_is_no_line_is_refused(value, words):
    with pytest.raises(SchemaError, match=words):
        TextLinesFormat().encode(pa.record_batch({"value": pa.array([value], pa.string())}))


@pytest.mark.parametrize("hint", [int, tuple[str, str]])
def test_only_strings_are_lines(hint):
    with pytest.raises(SchemaError, match="a line of text is one string, but the records have"):
        TextLinesFormat().check_schema(record_type_of(hint).schema)
