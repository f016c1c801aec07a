"""JSON lines: what is a record, what is not, and that both directions agree."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.errors import SchemaError
from tidegate.formats import JsonLinesFormat
from tidegate.formats.lines import DecodedLines, LineTable, decode_lines
from tidegate.records.types import record_type_of

SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64(), False),
        pa.field("s", pa.string(), False),
        pa.field("f", pa.float64(), False),
        pa.field("b", pa.bool_(), False),
    ]
)
GOOD = b'{"a":1,"s":"x","f":1.5,"b":true}\n'
GOOD_ROW = {"a": 1, "s": "x", "f": 1.5, "b": True}


def decode(chunk: bytes, schema: pa.Schema = SCHEMA, **options: Any) -> DecodedLines:
    decoder = JsonLinesFormat().decoder(schema, schema.names, **options)
    return decode_lines(decoder, chunk, pa.RecordBatch.from_pylist([], schema=schema))


def line(**changes: str) -> bytes:
    """A line with some values replaced by other JSON text."""
    values = {"a": "1", "s": '"x"', "f": "1.5", "b": "true"} | changes
    return ("{" + ",".join(f'"{k}":{v}' for k, v in values.items()) + "}\n").encode()


@pytest.mark.parametrize(
    "chunk",
    [
        GOOD,
        GOOD.rstrip(),
        GOOD.replace(b"\n", b"\r\n"),
        b"  " + GOOD.rstrip() + b" \t\r\n",
        b"\n\n \n\t\r\n" + GOOD + b"\n",
        line(z='[1,{"k":2}]'),
        line(f="1.50"),
        b'{"b":true,"f":1.5,"s":"\\u0078","a":1}\n',
        b'{"\\u0061":1,"s":"x","f":1.5,"b":true}\n',
        b'{ "a" : 1 , "s" : "x" , "f" : 1.5 , "b" : true }\n',
        b'{"a":7,"a":1,"s":"x","f":1.5,"b":true}\n',  # the last one counts
    ],
)
def test_a_line_in_any_spelling_is_the_same_record(chunk):
    decoded = decode(chunk)
    assert decoded.columns.to_pylist() == [GOOD_ROW]
    assert decoded.bad == []
    assert chunk[decoded.start_of(0) :].strip().startswith(b"{")


BAD = [
    (line(a='"1"'), "field 'a': Expected `int`, got `str`"),
    (line(a="1.5"), "field 'a': Expected `int`, got `float`"),
    (line(a="1.0"), "field 'a': Expected `int`, got `float`"),
    (line(a="true"), "field 'a': Expected `int`, got `bool`"),
    (line(a="null"), "field 'a': Expected `int`, got `null`"),
    (line(a="9223372036854775808"), "field 'a': does not fit in int64"),
    (line(a="-9223372036854775809"), "field 'a': does not fit in int64"),
    (line(a="99999999999999999999999"), "field 'a': does not fit in int64"),
    (line(a="01"), "malformed"),
    (line(a="+1"), "malformed"),
    (line(s="5"), "field 's': Expected `str`, got `int`"),
    (line(s='{"q":1}'), "field 's': Expected `str`, got `object`"),
    (line(s="[1]"), "field 's': Expected `str`, got `array`"),
    (line(s="true"), "field 's': Expected `str`, got `bool`"),
    (line(s='"\\ud800"'), "surrogate"),
    (line(s='"a\tb"'), "malformed"),
    (line(s='"a\x00b"'), "malformed"),
    (line(s='"\\q"'), "escape"),
    (line(f='"1.5"'), "field 'f': Expected `float`, got `str`"),
    (line(f="NaN"), "malformed"),
    (line(f="1e999"), "field 'f': Number out of range"),
    (line(b="1"), "field 'b': Expected `bool`, got `int`"),
    (line(b='"true"'), "field 'b': Expected `bool`, got `str`"),
    (line(z="NaN"), "malformed"),
    (b'{"a":1,"s":"x","f":1.5}\n', "missing required field `b`"),
    (b"{}\n", "missing required field"),
    (b'{"a":1,"s":"x","f":1.5,"b":tr\n', "truncated"),
    (b'{"a":1,"s":"x","f":1.5\n', "truncated"),
    (GOOD.rstrip() + b" xx\n", "malformed"),
    (GOOD.rstrip() + GOOD, "2 objects in one line"),
    (GOOD.rstrip() + b" " + GOOD, "2 objects in one line"),
    (GOOD.rstrip() + b",\n", "malformed"),
    (b'{"a":1,"s":"x","f":1.5,"b":true,}\n', "malformed"),
    (b"{'a':1}\n", "malformed"),
    (b"[1,2]\n", "Expected `object`, got `array`"),
    (b"5\n", "Expected `object`, got `int`"),
    (b"null\n", "Expected `object`, got `null`"),
    (b'{"a":1,"s":"\xff\xfe","f":1.5,"b":true}\n', "not UTF-8: byte 0xff at byte 12"),
    (b'{"a":1,"s":"x","f":1.5,"b":true,"z":"\xff"}\n', "not UTF-8"),
    (b"\xef\xbb\xbf" + GOOD, "malformed"),  # a byte order mark belongs to the start of a file
    (b"\x0b\n", "malformed"),
    (line(z="[" * 100_000 + "]" * 100_000), "nested too deeply"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_line_is_named_and_its_neighbours_are_kept(bad, reason):
    decoded = decode(GOOD + bad + GOOD)
    assert decoded.columns.to_pylist() == [GOOD_ROW, GOOD_ROW]
    (one,) = decoded.bad
    assert reason in one.reason
    assert (one.offset, one.rows_before, one.text) == (len(GOOD), 1, bad.strip(b" \t\r\n"))
    assert [decoded.start_of(0), decoded.start_of(1)] == [0, len(GOOD) + len(bad)]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_line_is_as_bad_for_a_decoder_that_has_learned_the_values(learned, bad, reason):
    decoded = learned(GOOD * 3000 + bad + GOOD)
    assert decoded.columns.num_rows == 3001
    (one,) = decoded.bad
    assert reason in one.reason
    assert (one.offset, one.rows_before, one.text) == (3000 * len(GOOD), 3000, bad.strip(b" \t\r\n"))


@pytest.fixture(scope="module")
def learned() -> Callable[[bytes], DecodedLines]:
    """Decodes with a decoder that has seen enough to read the column `s` as a dictionary."""
    decoder = JsonLinesFormat().decoder(SCHEMA, SCHEMA.names)
    empty = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    decode_lines(decoder, GOOD * 20_000, empty)
    assert pa.types.is_dictionary(decode_lines(decoder, GOOD * 2000, empty).columns.column("s").type)
    return lambda chunk: decode_lines(decoder, chunk, empty)


def test_an_object_over_two_lines_is_two_bad_lines_even_if_the_count_comes_out_right():
    chunk = b'{"a":1,"s":"x",\n"f":1.5,"b":true}\n' + GOOD.rstrip() + GOOD
    decoded = decode(chunk)
    assert decoded.columns.num_rows == 0
    assert [b.offset for b in decoded.bad] == [0, 16, 34]


def test_an_object_over_two_lines_is_found_among_many(learned):
    two_lines = b'{"a":1,"s":"x","f":1.5,"b":true,"z":[{\n},{\n}]}\n'
    decoded = learned(GOOD * 2000 + two_lines + GOOD.rstrip() * 2 + GOOD)
    assert decoded.columns.num_rows == 2000
    assert len(decoded.bad) == 4


@pytest.mark.parametrize("last", [GOOD, GOOD.rstrip(), GOOD.replace(b"\n", b"\r\n")])
@pytest.mark.parametrize("others", [GOOD, GOOD.replace(b"\n", b"\r\n")])
def test_line_ends_of_both_kinds_are_taken_at_once(others, last):
    assert LineTable(others * 3 + last).enclosed_by(ord("{"), ord("}"))
    assert not LineTable(others + b"\n" + last).enclosed_by(ord("{"), ord("}"))
    assert not LineTable(others + b" " + last).enclosed_by(ord("{"), ord("}"))
    assert not LineTable(others.replace(b"}", b"} ") + last).enclosed_by(ord("{"), ord("}"))
    assert not LineTable(others + last.replace(b"}", b"} ")).enclosed_by(ord("{"), ord("}"))


def test_many_bad_lines_are_all_found():
    chunk = b"".join(GOOD if i % 7 else b"oops\n" for i in range(1000))
    decoded = decode(chunk)
    assert decoded.columns.num_rows == 1000 - 143
    assert [b.rows_before for b in decoded.bad] == [6 * i for i in range(143)]
    assert all(chunk[decoded.start_of(r) :].startswith(GOOD) for r in range(decoded.columns.num_rows))


@given(
    st.lists(
        st.sampled_from([GOOD, GOOD.replace(b"\n", b"\r\n"), b"\n", b"x\n", line(a="2.5"), b' {"a":1}\n'])
    )
)
def test_how_lines_are_cut_into_chunks_does_not_matter(lines):
    whole = decode(b"".join(lines))
    rows = [row for one in lines for row in decode(one).columns.to_pylist()]
    bad = [b.text for one in lines for b in decode(one).bad]
    assert whole.columns.to_pylist() == rows
    assert [b.text for b in whole.bad] == bad


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("asfbz"), st.none() | st.booleans() | st.integers() | st.floats() | st.text()
        ),
        max_size=5,
    )
)
def test_any_json_is_either_the_same_record_or_bad(records):
    lines = [json.dumps(r) for r in records]
    decoded = decode("\n".join(lines).encode())
    kept = iter(decoded.columns.to_pylist())
    bad = {b.text.decode() for b in decoded.bad}
    types = {"a": int, "s": str, "f": (int, float), "b": bool}
    for record, text in zip(records, lines, strict=True):
        if text in bad:
            fits = all(k in record and isinstance(record[k], t) for k, t in types.items())
            assert (
                not fits
                or isinstance(record["a"], bool)
                or "NaN" in text
                or "Infinity" in text
                or any(isinstance(v, int) and abs(v) >= 2**63 for v in record.values())
                or isinstance(record["f"], bool)
                or "\\ud" in text
            )
        else:
            row = next(kept)
            assert all(row[k] == record[k] and type(row[k]) in (type(record[k]), float) for k in types)


def test_missing_and_null_are_none_where_the_field_is_optional():
    schema = pa.schema([pa.field("a", pa.int64()), pa.field("s", pa.string(), False)])
    decoded = decode(b'{"s":"x"}\n{"s":"y","a":null}\n{"s":"z","a":3}\n', schema)
    assert decoded.columns.column("a").to_pylist() == [None, None, 3]


def test_small_types_are_checked_by_their_own_range():
    schema = pa.schema([pa.field("i", pa.int8()), pa.field("u", pa.uint64()), pa.field("f", pa.float32())])
    good = b'{"i":-128,"u":18446744073709551615,"f":1.5}\n'
    decoded = decode(good + b'{"i":128}\n{"u":-1}\n{"f":1e39}\n', schema)
    assert decoded.columns.to_pylist() == [{"i": -128, "u": 2**64 - 1, "f": 1.5}]
    assert len(decoded.bad) == 3


@dataclass
class Point:
    x: int
    y: float | None


@dataclass
class Everything:
    i: int
    f: float
    s: str
    b: bool
    raw: bytes
    at: dt.datetime
    day: dt.date
    time: dt.time
    took: dt.timedelta
    price: decimal.Decimal
    utc: Annotated[dt.datetime, pa.timestamp("us", "UTC")]
    numbers: list[int]
    names: list[str | None]
    point: Point
    maybe: Point | None
    path: list[Point]
    labels: dict[str, int]
    none: int | None


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "i": -(2**63),
        "f": 0.1,
        "s": 'q"\n\\é\u2028😀\x00',
        "b": False,
        "raw": b"\xff\x00",
        "at": dt.datetime(2024, 1, 2, 3, 4, 5, 678),  # noqa: DTZ001
        "day": dt.date(2024, 2, 29),
        "time": dt.time(1, 2, 3, 4),
        "took": dt.timedelta(days=-1, microseconds=5),
        "price": decimal.Decimal("12345678901234567890.123456789012345678"),
        "utc": dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "numbers": [1, 2],
        "names": ["a", None],
        "point": Point(1, 2.5),
        "maybe": None,
        "path": [Point(3, None), Point(4, 1.0)],
        "labels": {"a": 1},
        "none": None,
    }
    return Everything(**values | changes)


def test_every_column_type_comes_back_as_it_was_written():
    record_type = record_type_of(Everything)
    rows = [everything(), everything(maybe=Point(9, None), path=[], labels={}, numbers=[], none=5)]
    text = JsonLinesFormat().encode(record_type.to_columns(rows))
    decoded = decode(text, record_type.schema)
    assert decoded.bad == []
    assert record_type.to_rows(decoded.columns) == rows
    decoded.columns.validate(full=True)
    for written in text.splitlines():
        json.loads(written)


@pytest.mark.parametrize(
    "name", ["i", "f", "s", "b", "raw", "at", "day", "numbers", "point", "utc", "price", "time", "took"]
)
def test_columns_written_alone_come_back_too(name):
    whole = record_type_of(Everything)
    batch = whole.to_columns([everything(), everything()]).select([name])
    decoded = decode(JsonLinesFormat().encode(batch), batch.schema)
    assert decoded.columns.equals(batch)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("numbers", "[1,2.5]"),
        ("numbers", "[null]"),
        ("numbers", "5"),
        ("names", '["a",1]'),
        ("names", "[99999999999999999999]"),
        ("point", '{"x":1.5}'),
        ("point", "{}"),
        ("point", "null"),
        ("point", '{"x":99999999999999999999}'),
        ("path", '[{"x":"q"}]'),
        ("labels", '{"a":"b"}'),
        ("at", '"01/02/2024"'),
        ("at", '"2024-13-01"'),
        ("at", '"2024-01-02T03:04:05Z"'),
        ("at", "5"),
        ("utc", '"2024-01-02T03:04:05"'),
        ("day", '"2024-02-30"'),
        ("price", '"NaN"'),
        ("price", "1e400"),
        ("raw", '"!!!"'),
        ("took", "5"),
    ],
)
def test_a_wrong_value_of_any_type_is_bad(field, value):
    record_type = record_type_of(Everything)
    text = JsonLinesFormat().encode(record_type.to_columns([everything()]))
    record = json.loads(text)
    record[field] = "REPLACE"
    changed = json.dumps(record).replace('"REPLACE"', value).encode() + b"\n"
    decoded = decode(text + changed, record_type.schema)
    assert decoded.columns.num_rows == 1
    assert field in decoded.bad[0].reason


def test_nan_and_infinity_are_written_as_null():
    batch = pa.record_batch({"f": [float("nan"), float("inf"), 1.0]})
    assert JsonLinesFormat().encode(batch) == b'{"f":null}\n{"f":null}\n{"f":1.0}\n'


def test_dictionary_columns_come_as_dictionaries():
    decoded = decode(GOOD * 3, dictionary_columns=["s"])
    assert decoded.columns.column("s").type == pa.dictionary(pa.int32(), pa.string())
    assert decoded.columns.column("s").to_pylist() == ["x"] * 3
    with_bad = decode(GOOD + b"no\n" + line(s='"y"'), dictionary_columns=["s"])
    assert with_bad.columns.column("s").to_pylist() == ["x", "y"]


TEXTS = pa.schema([pa.field("s", pa.string())])


class Texts:
    """A decoder of one text column, and what it is given."""

    def __init__(self) -> None:
        self.decoder = JsonLinesFormat().decoder(TEXTS, ["s"])

    def read(self, values: list[str | None]) -> pa.Array:
        chunk = b"".join(json.dumps({"s": v}, ensure_ascii=False).encode() + b"\n" for v in values)
        decoded = decode_lines(self.decoder, chunk, pa.RecordBatch.from_pylist([], schema=TEXTS))
        column = decoded.columns.column(0)
        column.validate(full=True)
        assert column.to_pylist() == values
        return column

    def is_dictionary(self, values: list[str | None]) -> bool:
        return bool(pa.types.is_dictionary(self.read(values).type))


def test_a_column_of_few_values_becomes_a_dictionary_that_grows():
    texts = Texts()
    assert not texts.is_dictionary(["a", "b"] * 10_000)
    assert texts.read(["b", "a"] * 1000).dictionary.to_pylist() == ["a", "b"]
    grown = texts.read(["b", "", "a", "ü\n", "NONE", None] * 1000)
    assert grown.dictionary.to_pylist() == ["a", "b", "", "ü\n", "NONE"]
    again = texts.read([None, "NONE", "", "x"] * 1000)
    assert again.dictionary.to_pylist() == ["a", "b", "", "ü\n", "NONE", "x"]
    assert texts.read(["x"] * 5000).dictionary is not None


def test_a_column_without_a_value_so_far_is_learned_when_its_values_come():
    texts = Texts()
    texts.read([None] * 20_000)
    texts.read([None] * 20_000)
    assert texts.is_dictionary(["a", "", None] * 1000)
    assert texts.is_dictionary([None] * 2000)
    assert not texts.is_dictionary([f"v{i}" for i in range(8000)])


@pytest.mark.parametrize(
    "phases", list(itertools.permutations(["missing", "null", "one", "few", "empty"], 2))
)
def test_a_text_column_may_change_what_it_holds_from_file_to_file(phases):
    values = {"missing": [], "null": [None], "one": ["a"], "few": ["b", "c", None, "d"], "empty": [""]}
    schema = pa.schema([pa.field("s", pa.string()), pa.field("n", pa.int64())])
    decoder = JsonLinesFormat().decoder(schema, schema.names)
    for phase in phases:
        texts = values[phase] or [None]
        rows = [{"s": texts[n % len(texts)], "n": n} for n in range(17_000)]
        written = [{"n": row["n"]} for row in rows] if phase == "missing" else rows
        chunk = b"".join(json.dumps(row).encode() + b"\n" for row in written)
        decoded = decode_lines(decoder, chunk, pa.RecordBatch.from_pylist([], schema=schema))
        decoded.columns.validate(full=True)
        assert decoded.bad == []
        assert decoded.columns.column("s").to_pylist() == [row["s"] for row in rows]


def test_few_rows_come_without_a_dictionary():
    texts = Texts()
    texts.read(["a", "b"] * 10_000)
    assert not texts.is_dictionary(["a"] * 10)
    assert texts.is_dictionary(["a"] * 2000)


def test_a_column_of_many_values_stays_text():
    texts = Texts()
    assert not texts.is_dictionary([f"v{i}" for i in range(20_000)])
    assert not texts.is_dictionary(["a"] * 20_000)


def test_a_column_whose_values_become_many_is_text_again_for_good():
    texts = Texts()
    texts.read(["a"] * 20_000)
    assert texts.is_dictionary([f"v{i % 4000}" for i in range(8000)])
    assert not texts.is_dictionary([f"w{i}" for i in range(8000)])
    assert not texts.is_dictionary(["a"] * 8000)


def test_long_texts_are_not_kept_in_a_dictionary():
    texts = Texts()
    texts.read(["a"] * 20_000)
    assert not texts.is_dictionary([str(i % 20) * 100_000 for i in range(20)] + ["a"] * 2000)


def test_values_in_small_chunks_are_learned_too():
    texts = Texts()
    assert [texts.is_dictionary(["a", None] * 1000) for _ in range(11)] == [False] * 9 + [True] * 2


@given(st.lists(st.lists(st.none() | st.text(max_size=3), min_size=1, max_size=5), max_size=3))
@settings(max_examples=25)
def test_a_learned_dictionary_gives_the_values_as_they_are(chunks):
    texts = Texts()
    texts.read(["a"] * 20_000)
    for chunk in chunks:
        assert texts.is_dictionary(chunk * 1024)


def test_a_column_name_may_be_any_text():
    schema = pa.schema(
        [
            pa.field("a b", pa.int64(), False),
            pa.field("class", pa.int64(), False),
            pa.field("é", pa.int64(), False),
        ]
    )
    decoded = decode(b'{"a b":1,"class":2,"\xc3\xa9":3}\n', schema)
    assert list(decoded.columns.to_pylist()[0].values()) == [1, 2, 3]


def test_schema_is_inferred_from_the_lines_that_are_objects():
    sample = b'{"a":1,"s":"x"}\nnonsense\n{"a":2.5,"n":null,"l":[1]}\n'
    schema = JsonLinesFormat().infer_schema(sample)
    assert schema == pa.schema(
        {"a": pa.float64(), "s": pa.string(), "n": pa.string(), "l": pa.list_(pa.int64())}
    )


@pytest.mark.parametrize(
    ("sample", "message"),
    [(b"x\n[1]\n", "no line"), (b'{"a":1}\n{"a":"x"}\n', "field 'a' has values of different")],
)
def test_a_schema_that_cannot_be_inferred_is_refused(sample, message):
    with pytest.raises(SchemaError, match=message):
        JsonLinesFormat().infer_schema(sample)


def test_a_type_without_a_json_form_is_refused_by_name():
    schema = pa.schema([("m", pa.map_(pa.float64(), pa.int64()))])
    with pytest.raises(SchemaError, match="column 'm'"):
        JsonLinesFormat().check_schema(schema)
