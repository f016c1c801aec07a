"""JSON lines read by their layout: the same as the parser gives, or nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.formats import JsonLinesFormat
from tidegate.formats.json_layout import layout_of_line
from tidegate.formats.layout_reader import Attempts, LayoutReader
from tidegate.formats.learned_dictionary import LearnedDictionary
from tidegate.formats.line_loops import padded
from tidegate.formats.lines import DecodedLines, LineDecoder, decode_lines
from tidegate.formats.token_codes import TokenCodes

TYPES = [
    pa.int64(),
    pa.int8(),
    pa.uint16(),
    pa.uint64(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.large_string(),
    pa.timestamp("us"),
]
NUMBERS = ["0", "7", "-1", "-0", "10", "255", "65536", "-128", "1.5", "-0.0", "0.1", "123456789012345678"]
EDGES = [
    *[
        "01",
        "-01",
        "+1",
        "1.",
        ".5",
        "-",
        "--1",
        "1-2",
        "1.2.3",
        "1e5",
        "1E5",
        "1e",
        "-a",
        "0x1",
        "1_0",
        "NaN",
    ],
    *["9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551616", "9" * 70],
    *["Infinity", "True", "nul", "nulll", "truefalse", "falsee", "tru", "t", "", "[]", "[1,2]", '{"q":1}'],
    *["1 2", '"a" 1', '"a"1', '1"a"', '"a""b"', '"a\\n"', '"\\u0041"', '"a\\"b"', '"a\tb"', '"\x7f"', '""""'],
    *[
        "1,",
        ',"zz":1',
        "1}",
        '1}\n{"q":1',
        "1\n",
        '"\n"',
        "\t1",
        "1\t",
        " 1",
        "1 ",
        "null ",
        '"a" ',
        "\ufeff",
    ],
    *["0.30000000000000004", "2.2250738585072014e-308", "5e-324", "1" + "0" * 400, "0." + "1" * 60],
]
LITERALS = ["true", "false", "null"]
TIMES = ['"2024-01-02T03:04:05"', '"2024-01-02"', '"2024-13-02"']
characters = st.characters(exclude_characters='"\\', exclude_categories=["Cs", "Cc"])
plain_text = st.text(characters, max_size=90)
short_text = st.text(characters, max_size=12)
key_text = st.text(st.sampled_from("abcxyzé :,{}0-"), max_size=12)
values = st.one_of(
    plain_text.map(lambda t: f'"{t}"'),
    st.sampled_from(NUMBERS),
    st.integers(-(10**17), 10**17).map(str),
    st.floats(-1e6, 1e6).map(repr).filter(lambda t: "e" not in t),
    st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,20})?", fullmatch=True),
    st.sampled_from(LITERALS),
    st.sampled_from(TIMES),
)
edges = st.sampled_from(EDGES)
A_AND_Z = '{{"a":{},"z":1}}\n'
W = '{{"w":"{}"}}\n'


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[str], Any]:
    """Some keys, and a function that writes a line of their values."""
    keys = draw(st.lists(key_text, min_size=1, max_size=4, unique=True))
    gap, comma, first = (draw(st.sampled_from(["", " ", "  "])) for _ in range(3))
    before = draw(st.sampled_from(["", " "]))
    end = draw(st.sampled_from(["\n", "\n", "\n", "\r\n"]))

    def write(of: Sequence[str]) -> str:
        members = (f'"{k}"{before}:{gap}{v}' for k, v in zip(keys, of, strict=True))
        return "{" + first + f"{before},{comma}".join(members) + before + "}" + end

    return keys, write


@st.composite
def schemas(draw: st.DrawFn, keys: list[str]) -> pa.Schema:
    chosen = draw(st.lists(st.sampled_from([*keys, "not there"]), min_size=1, unique=True))
    return pa.schema([pa.field(k, draw(st.sampled_from(TYPES)), draw(st.booleans())) for k in chosen])


def parsed(chunk: bytes, schema: pa.Schema) -> DecodedLines:
    """What the parser says: a decoder that has not yet seen many lines uses nothing else."""
    decoder = JsonLinesFormat().decoder(schema, schema.names)
    return decode_lines(decoder, chunk, pa.RecordBatch.from_pylist([], schema=schema))


def assert_as_parsed(chunk: bytes, schema: pa.Schema, learned: dict[int, LearnedDictionary]) -> bool:
    """Check that the columns that come by the layout, if any, are those of the parser; says if there were any."""
    arrays = LayoutReader(list(schema), fewest_lines=0).read(chunk, learned)
    if arrays is None:
        return False
    expected = parsed(chunk, schema)
    assert expected.bad == []
    assert expected.every_line_is_a_row
    for field, array, other in zip(schema, arrays, expected.columns.columns, strict=True):
        array.validate(full=True)
        plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        assert plain.type == field.type
        assert plain.equals(other)
        if pa.types.is_float64(field.type):
            assert repr(plain.to_pylist()) == repr(other.to_pylist())  # -0.0 is not 0.0
    return True


@st.composite
def dictionaries(draw: st.DrawFn, schema: pa.Schema) -> dict[int, LearnedDictionary]:
    known = draw(
        st.lists(short_text | st.sampled_from(['"', "\\", "\x00", "\n", "null"]), max_size=3, unique=True)
    )
    strings = [i for i, f in enumerate(schema) if pa.types.is_string(f.type)]
    return {i: LearnedDictionary(known) for i in strings if draw(st.booleans())}


@given(st.data())
@settings(max_examples=200)
def test_lines_of_one_layout_are_read_as_the_parser_reads_them(data):
    keys, write = data.draw(layouts())
    lines = [write([data.draw(values) for _ in keys]) for _ in range(data.draw(st.integers(1, 5)))]
    chunk = "".join(lines).encode()
    layout = layout_of_line(chunk, 0)
    assert layout is not None
    assert list(layout.keys) == keys
    found = layout.values(chunk, [])
    assert found is not None
    assert found.lines == len(lines)
    schema = data.draw(schemas(keys))
    was_read = assert_as_parsed(chunk, schema, data.draw(dictionaries(schema)))
    # What the parser takes is read, but for some numbers: too long ones, and fractions where a float is an int.
    if not was_read and not parsed(chunk, schema).bad:
        assert any(pa.types.is_integer(t) or pa.types.is_float64(t) for t in schema.types)


@given(st.data())
@settings(max_examples=500)
def test_what_is_not_certain_is_left_to_the_parser(data):
    keys, write = data.draw(layouts())
    lines = [write([data.draw(values | edges) for _ in keys]) for _ in range(data.draw(st.integers(1, 4)))]
    text = "".join(lines)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 2))
        put = data.draw(
            st.sampled_from(["", *'{}[]":,0-1.e \t\r\n\\\x00\x7fé', '"x"', '""', "\n\n", "null", "\ufeff"])
        )
        text = text[:at] + put + text[at + cut :]
    chunk = text.encode()
    if data.draw(st.integers(0, 9)) == 0:
        at = data.draw(st.integers(0, len(chunk)))
        chunk = (
            chunk[:at] + data.draw(st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x80"])) + chunk[at:]
        )
    if data.draw(st.booleans()):
        chunk = chunk.rstrip(b"\n")
    schema = data.draw(schemas(keys))
    assert_as_parsed(chunk, schema, data.draw(dictionaries(schema)))


@given(st.data())
@settings(max_examples=200)
def test_one_wrong_byte_anywhere_is_never_read_as_something_else(data):
    """A layout that was learned elsewhere meets a line of it that is damaged."""
    keys, write = data.draw(layouts())
    good = [write([data.draw(values) for _ in keys]) for _ in range(3)]
    layout = layout_of_line("".join(good).encode(), 0)
    assert layout is not None
    damaged = bytearray("".join(good).encode())
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(0, 255))
    if layout.values(bytes(damaged), keys) is None:
        return
    schema = pa.schema([])
    assert parsed(bytes(damaged), schema).bad == []
    for line in bytes(damaged).splitlines() if b"\r" not in damaged else bytes(damaged).split(b"\n")[:3]:
        assert list(json.loads(line)) == keys


@given(st.lists(st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,20})?", fullmatch=True), min_size=1))
def test_numbers_are_the_same_to_the_last_bit(numbers):
    chunk = "".join(A_AND_Z.format(n) for n in numbers).encode()
    for data_type in (pa.float64(), pa.int64()):
        assert_as_parsed(chunk, pa.schema([pa.field("a", data_type)]), {})


@pytest.mark.parametrize("edge", [*EDGES, *NUMBERS, *LITERALS])
@pytest.mark.parametrize("data_type", [pa.int64(), pa.float64(), pa.string(), pa.bool_()])
def test_an_odd_value_is_read_as_the_parser_does_or_not_at_all(edge, data_type):
    kept = [A_AND_Z.format(v) for v in ("1", "-2.5", "true", '"x"')]
    lines = [*kept, A_AND_Z.format(edge), *kept]
    for name in ("a", "z"):
        schema = pa.schema([pa.field(name, data_type)])
        assert_as_parsed("".join(lines).encode(), schema, {})
        assert_as_parsed((A_AND_Z.format(edge) * 3).encode(), schema, {})


@pytest.mark.parametrize(
    "chunk",
    [
        b'{"a":1}\n\n{"a":1}\n',
        b'{"a":1}\n{"a":1} \n',
        b'{"a":1}\n {"a":1}\n',
        b'\xef\xbb\xbf{"a":1}\n{"a":1}\n',
        b'{"a":1,"a":2}\n{"a":1,"a":2}\n',
        b'{"a":1}{"a":1}\n',
        b'{"a":1}\n{"a":1}{"a":1}\n',
        b'{"a":1}\n{"a":1}\r\n',
        b'{"a":1}\r\n{"a":1}\n',
        b'{"a":1}\n{"b":1}\n',
        b'{"a":1,"b":2}\n{"b":1,"a":2}\n',
        b'{"a":1}\n{"a":1\n}\n',
        b'{"a":"x"}\n{"a":"x\n"}\n',
        b'{"a":"x","b":"y"}\n{"a":"x,"b":"y"}\n{"a":"x","b":y"}\n',
        b'{"a":1}\n{"a":1}\n{}\n',
        b"{}\n{}\n",
        b"\n",
        b"",
    ],
)
def test_lines_that_differ_in_more_than_values_have_no_layout(chunk):
    schema = pa.schema([pa.field("a", pa.int64())])
    assert LayoutReader(list(schema), fewest_lines=0).read(chunk, {}) is None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_what_python_writes_has_a_layout(separators, end):
    rows = [
        {"i": i * -7, "s": f"é{i % 3}" * (i % 20), "f": i / 7, "b": i % 2 == 0, "n": None if i % 5 else "x"}
        for i in range(2000)
    ]
    lines = [json.dumps(r, separators=separators, ensure_ascii=False) + end for r in rows]
    schema = pa.schema(
        [
            pa.field("i", pa.int64(), False),
            pa.field("s", pa.string(), False),
            pa.field("f", pa.float64(), False),
            pa.field("b", pa.bool_(), False),
            pa.field("n", pa.string()),
        ]
    )
    chunk = "".join(lines).encode()
    for learned in ({}, {1: LearnedDictionary(["é0"]), 4: LearnedDictionary(["x"])}):
        assert assert_as_parsed(chunk, schema, learned)
        assert assert_as_parsed(chunk.removesuffix(end.encode()), schema, learned) == (end == "\n")


def test_a_key_that_is_asked_for_twice_is_found_once():
    chunk = b'{"a":1,"b":22}\n{"a":3,"b":44}\n'
    layout = layout_of_line(chunk, 0)
    assert layout is not None
    found = layout.values(chunk, ["b", "b", "c"])
    assert found is not None
    starts, ends = found.places["b"]
    assert [chunk[a:b] for a, b in zip(starts, ends, strict=True)] == [b"22", b"44"]
    assert list(found.places) == ["b"]


def test_without_numba_the_error_says_what_to_install():
    program = (
        "import sys\n"
        "sys.modules['numba'] = None\n"
        "from tidegate.formats import JsonLinesFormat\n"
        "JsonLinesFormat().prepare()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "install tidegate with all its dependencies on every machine" in done.stderr.splitlines()[-1]


def test_many_random_values_are_found_by_their_bytes():
    rng = random.Random(7)
    words = sorted({"".join(rng.choices("abcdef/é-", k=rng.randrange(40))) for _ in range(3000)})
    chunk = "".join(W.format(rng.choice(words)) for _ in range(20_000)).encode()
    schema = pa.schema([pa.field("w", pa.string(), False)])
    dictionary = LearnedDictionary(words[:1500])
    assert assert_as_parsed(chunk, schema, {0: dictionary})
    assert 1500 < len(dictionary) <= len(words)
    assert assert_as_parsed(chunk, schema, {0: dictionary})


def test_a_dictionary_that_becomes_full_is_given_up_and_its_column_read_as_text():
    schema = pa.schema([pa.field("w", pa.string(), False)])
    decoder = JsonLinesFormat().decoder(schema, ["w"])
    few = "".join(W.format(i % 10) for i in range(20_000)).encode()
    many = "".join(W.format(i) for i in range(20_000)).encode()
    assert not pa.types.is_dictionary(decoded(decoder, few, schema).columns.column("w").type)
    assert pa.types.is_dictionary(decoded(decoder, few, schema).columns.column("w").type)
    for chunk in (many, few, many):
        column = decoded(decoder, chunk, schema).columns.column("w")
        assert column.equals(parsed(chunk, schema).columns.column("w"))


def decoded(decoder: LineDecoder, chunk: bytes, schema: pa.Schema) -> DecodedLines:
    return decode_lines(decoder, chunk, pa.RecordBatch.from_pylist([], schema=schema))


def test_bad_lines_among_many_of_one_layout_are_reported_as_ever():
    schema = pa.schema([pa.field("a", pa.int64(), False), pa.field("s", pa.string(), False)])
    good = [b'{"a":%d,"s":"v%d"}\n' % (i, i % 7) for i in range(30_000)]
    decoder = JsonLinesFormat().decoder(schema, schema.names)
    decoded(decoder, b"".join(good), schema)
    for bad in (b"oops\n", b'{"a":01,"s":"v1"}\n', b'{"a":"1","s":"v1"}\n', b'{"a":1,"s":"v\\q"}\n', b"\n"):
        lines = [*good[:9000], bad, *good[9000:]]
        by_layout = decoded(decoder, b"".join(lines), schema)
        expected = parsed(b"".join(lines), schema)
        assert by_layout.bad == expected.bad
        assert len(by_layout.lines) == len(expected.lines) == 30_001
        assert by_layout.columns.num_rows == 30_000
        assert by_layout.start_of(9000) == expected.start_of(9000) == sum(map(len, lines[:9001]))
    again = decoded(decoder, b"".join(good), schema)
    assert len(again.lines) == 30_000
    assert again.every_line_is_a_row
    assert again.start_of(12_345) == sum(map(len, good[:12_345]))


def test_after_failures_it_is_tried_ever_more_rarely():
    assert tried(1000, set())[:4] == [0, 17, 50, 115]
    assert len(tried(1000, set())) < 20


def test_a_chunk_in_vain_after_one_that_worked_is_no_reason_to_wait():
    works = set(range(1000)) - {100, 300, 301, 700}
    assert set(range(1000)) - set(tried(1000, works)) == set(range(302, 318))


def test_once_it_works_it_is_tried_with_every_chunk():
    found = tried(400, set(range(100, 400)))
    assert found == [0, 17, 50, *range(115, 400)]


def tried(chunks: int, works: set[int]) -> list[int]:
    """Which of so many chunks are tried if it works with some of them."""
    attempts = Attempts()
    found = []
    for chunk in range(chunks):
        if attempts.due(2 << 20):
            found.append(chunk)
            if chunk in works:
                attempts.succeeded()
            else:
                attempts.failed(2 << 20)
    return found


def test_a_token_that_is_not_known_is_not_found():
    codes = TokenCodes({b'"abc"': 5, b'"abcdefgh"': 6, b"null": -1})
    text = b'"abc" "abcdefgh" null "ab" "abcdefghi" "xyzxyzxyzxyzxyzxyz" "null" 12 ""'
    tokens = text.split(b" ")
    sizes = np.array([len(t) for t in tokens], np.int32)
    ends = np.cumsum(sizes + 1, dtype=np.int32) - np.int32(1)
    found, missing = codes.find(padded(text)[0], ends - sizes, ends)
    assert found[:3].tolist() == [5, 6, -1]
    assert missing.tolist() == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "lengths",
    [
        [5, 70_000, 5],
        [65_536, 3, 3],
        [3, 3, 65_536],
        [65_500] * 4,
        [200_000, 131_072, 1],
        [230, 4, 4, 4, 4],
        [4, 256, 4, 4, 4, 4, 4],
        [4, 4, 4, 4, 4, 300],
        [10] * 30,
        [60, 90, 70] * 9,
        [4, 512, 4, 4, 4, 4, 4, 4, 4, 4, 4],
    ],
)
def test_long_lines_among_short_ones_are_found_too(lengths):
    chunk = "".join(f'{{"t":"{"x" * n}","w":"{n}","i":{n}}}\n' for n in lengths).encode()
    schema = pa.schema([("i", pa.int64()), ("w", pa.string()), ("t", pa.string())])
    assert assert_as_parsed(chunk, schema, {1: LearnedDictionary(["3"])})


@pytest.mark.parametrize("damage", ["index", "code", "file instead of directory"])
def test_a_cache_of_machine_code_that_cannot_be_used_is_done_without(tmp_path, damage):
    cache = tmp_path / "cache"
    program = (
        "from tidegate.formats.json_layout import layout_of_line\n"
        'chunk = b\'{"a":1}\\n{"a":23}\\n\'\n'
        "print(layout_of_line(chunk, 0).values(chunk, ['a']).lines)\n"
    )

    def run() -> str:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    if damage == "file instead of directory":
        cache.write_text("no directory")
    else:
        assert run() == "2"
        kept = list(cache.rglob("*.nbi" if damage == "index" else "*.nbc"))
        assert kept
        for file in kept:
            file.write_bytes(b"damaged")
    assert run() == "2"
