"""JSON lines beside Python's `json`: the same records, the same lines refused, whatever the decoder has learned.

One decoder reads many chunks, whose lines share a layout or not and whose text columns go through phases (missing,
null, one value, few, many, long), so that it learns dictionaries and layouts, and has to give them up. The thresholds
of learning are lowered to a few lines. Some lines have random bytes changed.

The oracle shares no code with the decoder. Where it knows a rule (see the table in docs/guide/files.md), the outcome
must be its own; of a date, time, duration, decimal or base64 text that is not one of those written here, and of a key
that is there twice, first with a wrong value, it only knows that the line is a record or a bad line.
"""

from __future__ import annotations

import json
import math
import re
import struct
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.kit import run_long
from tidegate.formats import JsonLinesFormat, json_lines, layout_reader, learned_dictionary
from tidegate.formats.layout_reader import LayoutReader
from tidegate.formats.lines import decode_lines

POINT = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.string())])
TYPES = {
    "int": pa.int64(),
    "small": pa.int8(),
    "unsigned": pa.uint64(),
    "float": pa.float64(),
    "narrow": pa.float32(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "large": pa.large_string(),
    "at": pa.timestamp("us"),
    "day": pa.date32(),
    "time": pa.time64("us"),
    "long": pa.duration("us"),
    "price": pa.decimal128(10, 2),
    "bytes": pa.binary(),
    "list": pa.list_(pa.int64()),
    "point": POINT,
    "map": pa.map_(pa.string(), pa.float64()),
}
FLAT = ["int", "small", "unsigned", "float", "bool", "text", "text", "large", "at"]
KNOWN = {
    "at": {
        '"2024-01-02T03:04:05"': "2024-01-02 03:04:05",
        '"2024-01-02"': "2024-01-02 00:00:00",
        '"1969-12-31 23:59:59.5"': "1969-12-31 23:59:59.500000",
        '"2024-13-02"': None,
        '"2024-01-02T03:04:05Z"': None,
        '"x"': None,
    },
    "day": {'"2024-02-29"': "2024-02-29", '"2023-02-29"': None, '"x"': None},
    "time": {'"01:02:03"': "01:02:03", '"23:59:59.5"': "23:59:59.500000", '"24:00:00"': None},
    "long": {'"PT1.5S"': "0:00:01.500000", '"P1D"': "1 day, 0:00:00", '"1 s"': None},
    "price": {'"1.25"': "1.25", "1.5": "1.50", '"1.255"': None, '"123456789"': None, "-7": "-7.00"},
    "bytes": {'"aGk="': "b'hi'", '""': "b''", '"a"': None},
}
NUMBERS = [
    "0",
    "-0",
    "7",
    "-12",
    "127",
    "128",
    "-129",
    "1.5",
    "-0.0",
    "1e2",
    "1E400",
    "01",
    "+1",
    "1.",
    ".5",
    "0x1",
]
NUMBERS += ["9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616"]
NUMBERS += ["1" * 30, "1" + "0" * 400, "0." + "1" * 45, "NaN", "Infinity", "1.0", "3.5e38", "5e-324"]
LONGER = 'é"\\ü☃' * 20
WORDS = ["a", "b", "", "null", "é☃", 'q"q', "back\\slash", "line\nend", "\x00", "\x7f", "𝄞", "x" * 70]
BROKEN = [
    '"\\ud800"',
    '"\\x"',
    '"a\tb"',
    '"a',
    "'a'",
    "tru",
    "nul",
    "{}",
    "[]",
    '""""',
    "\ufeff1",
    '"\\u00e9"',
    '"\\/"',
]
UNKNOWN: Any = object()


class Number(str):
    """A number as it is written."""


class Bad(Exception):
    """The line is no record."""


class Members(tuple[tuple[str, Any], ...]):
    """The members of an object as they stand there."""

    def member(self, name: str, kind: str, nullable: bool) -> Any:
        """The value of a field."""
        found = [value for key, value in self if key == name] or [None]
        value = valued(found[-1], kind, nullable)
        try:
            others = [valued(other, kind, nullable) for other in found[:-1]]
        except Bad:
            return UNKNOWN
        return UNKNOWN if UNKNOWN in others else value


# ---- lines ----


def text_value(random: Random, phase: str) -> str | None:
    """A JSON text of a phase; None: no such field."""
    if phase == "missing":
        return None
    if phase == "null":
        return "null"
    word = {
        "one": WORDS[0],
        "few": WORDS[random.randrange(4)],
        "all": random.choice(WORDS),
        "many": f"v{random.randrange(1000)}",
        "long": LONGER + str(random.randrange(9)),
    }[phase]
    return json.dumps(word, ensure_ascii=random.random() < 0.3)


def value(random: Random, kind: str, phase: str) -> str | None:
    """A JSON text, mostly of this kind; None: no such field."""
    if random.random() < 0.02:
        return random.choice([None, "null", *BROKEN, *NUMBERS, "true", '"x"'])
    if kind in ("text", "large"):
        return text_value(random, phase)
    if kind in ("int", "small", "unsigned"):
        return str(random.randrange(100)) if random.random() < 0.97 else random.choice(NUMBERS)
    if kind in ("float", "narrow"):
        return repr(random.uniform(-10, 10)) if random.random() < 0.97 else random.choice(NUMBERS)
    if kind == "bool":
        return random.choice(["true", "false"])
    if kind == "list":
        return random.choice(["[]", "[1,2]", "[ 3 ]", "[1.5]", "[null]", "[1,]"])
    if kind == "point":
        return random.choice(
            ['{"x":1}', '{"y":"é","x":2,"z":0}', '{"y":"a"}', '{"x":1,"x":3}', "{}", '{"x":null}']
        )
    if kind == "map":
        return random.choice(["{}", '{"a":1}', '{"a":1,"b":2.5}', '{"a":"x"}', '{"a":1,"a":2}'])
    return random.choice(list(KNOWN[kind]))


def some_line(random: Random, kinds: list[str], phases: list[str], style: str) -> bytes:
    members = []
    for i, (kind, phase) in enumerate(zip(kinds, phases, strict=True)):
        text = value(random, kind, phase)
        if text is not None:
            members.append(f'"f{i}":{text}' if style != "spaced" else f'"f{i}" : {text}')
    if style == "mixed":
        random.shuffle(members)
        members += random.choice([[], ['"other":[1,{"f0":2}]'], ['"f0":null']])
    line = ("{" + ",".join(members) + "}").encode("utf-8", "surrogatepass")
    if random.random() < 0.03:
        line = mutated(random, line)
    return line + random.choice([b"\n"] * 30 + [b"\r\n", b" \n", b"\n\n", b"\n  \t\n"])


def mutated(random: Random, line: bytes) -> bytes:
    at, end = sorted(random.randrange(len(line) + 1) for _ in range(2))
    piece = random.choice(
        [b"", b'"', b"\\", b"}", b"{", b",", b":", b"0", b"\xff", b"\x00", b" ", line[at:end], b"}{"]
    )
    return random.choice(
        [line[:at] + piece + line[at:], line[:at] + piece + line[at + 1 :], line[:at] + line[end:], line[:at]]
    ).replace(b"\n", b"")


# ---- the oracle ----


def record_of(line: bytes, fields: list[tuple[pa.Field, str]]) -> dict[str, Any]:
    """The values of a line, `UNKNOWN` where this oracle has no rule; raises `Bad`."""

    def refuse(constant: str) -> None:
        raise Bad(constant)

    try:
        loaded = json.loads(
            line.decode(),
            parse_int=Number,
            parse_float=Number,
            parse_constant=refuse,
            object_pairs_hook=Members,
        )
    except (ValueError, RecursionError):
        raise Bad from None
    refuse_lone_surrogates(of_type(Members, loaded))
    return {field.name: loaded.member(field.name, kind, field.nullable) for field, kind in fields}


def refuse_lone_surrogates(loaded: Any) -> None:
    if isinstance(loaded, str) and not isinstance(loaded, Number):
        try:
            loaded.encode()
        except UnicodeEncodeError:
            raise Bad from None
    elif isinstance(loaded, (list, tuple)):
        for item in loaded:
            refuse_lone_surrogates(item)


def valued(loaded: Any, kind: str, nullable: bool) -> Any:
    if loaded is None:
        if not nullable:
            raise Bad
        return None
    if kind in KNOWN:
        if not isinstance(loaded, str) or (isinstance(loaded, Number) and kind != "price"):
            raise Bad
        text = str(loaded) if isinstance(loaded, Number) else json.dumps(str(loaded), ensure_ascii=False)
        found = KNOWN[kind].get(text, UNKNOWN)
        if found is None:
            raise Bad
        return found
    return {
        "int": partial(whole, -(2**63), 2**63 - 1),
        "small": partial(whole, -128, 127),
        "unsigned": partial(whole, 0, 2**64 - 1),
        "float": partial(fraction, "<d"),
        "narrow": partial(fraction, "<f"),
        "bool": partial(of_type, bool),
        "text": text_of,
        "large": text_of,
        "list": listed,
        "point": pointed,
        "map": mapped,
    }[kind](loaded)


def whole(least: int, most: int, loaded: Any) -> int:
    if not isinstance(loaded, Number) or re.search("[.eE]", loaded):
        raise Bad
    if not least <= (number := int(loaded[:400])) <= most:
        raise Bad
    return number


def fraction(code: str, loaded: Any) -> float:
    if not isinstance(loaded, Number):
        raise Bad
    number = float(loaded)
    try:
        rounded = struct.unpack(code, struct.pack(code, number))[0]
    except OverflowError:
        raise Bad from None
    if math.isinf(rounded):
        raise Bad
    return float(rounded)


def of_type(kind: type, loaded: Any) -> Any:
    if type(loaded) is not kind:
        raise Bad
    return loaded


def text_of(loaded: Any) -> str:
    return of_type(str, loaded)


def listed(loaded: Any) -> list[Any]:
    return [valued(item, "int", True) for item in of_type(list, loaded)]


def pointed(loaded: Any) -> Any:
    loaded = of_type(Members, loaded)
    point = {"x": loaded.member("x", "int", False), "y": loaded.member("y", "text", True)}
    return UNKNOWN if UNKNOWN in point.values() else point


def mapped(loaded: Any) -> Any:
    loaded = of_type(Members, loaded)
    items = {key: loaded.member(key, "float", True) for key, _ in loaded}
    return UNKNOWN if UNKNOWN in items.values() else list(items.items())


# ---- the check ----


def check(random: Random, chunks: int = 4, lines: int = 40) -> int:
    """Read some chunks with one decoder; gives the lines that were read."""
    kinds = [
        random.choice(FLAT if random.random() < 0.8 else list(TYPES)) for _ in range(random.randint(1, 4))
    ]
    fields = [(pa.field(f"f{i}", TYPES[k], random.random() < 0.6), k) for i, k in enumerate(kinds)]
    schema = pa.schema([field for field, _ in fields])
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    count = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned_dictionary, "_LOOKED_AT", random.choice([8, 40]))
        patch.setattr(learned_dictionary, "MOST_VALUES", random.choice([4, 16]))
        patch.setattr(json_lines, "_ROWS_FOR_CODES", 4)
        patch.setattr(json_lines, "_layout_reader", partial(LayoutReader, fewest_lines=2))
        patch.setattr(layout_reader, "_FIRST_PAUSE", 0)
        patch.setattr(layout_reader, "_LONGEST_PAUSE_BYTES", 0)
        dictionaries = [f.name for f, k in fields if k == "text" and random.random() < 0.2]
        decoder = JsonLinesFormat().decoder(schema, schema.names, dictionaries)
        for _ in range(chunks):
            phases = [random.choice(["missing", "null", "one", "few", "all", "many", "long"]) for _ in kinds]
            style = random.choice(["plain", "plain", "spaced", "mixed"])
            chunk = b"".join(some_line(random, kinds, phases, style) for _ in range(random.randint(1, lines)))
            compare(chunk, decode_lines(decoder, chunk, empty), fields)
            count += chunk.count(b"\n")
    return count


def compare(chunk: bytes, decoded: Any, fields: list[tuple[pa.Field, str]]) -> None:
    decoded.columns.validate(full=True)
    rows = iter(decoded.columns.to_pylist())
    refused = {bad.offset: bad.reason for bad in decoded.bad}
    at = 0
    for line in chunk.split(b"\n"):
        start, at = at, at + len(line) + 1
        text = line.strip(b" \t\r")
        if not text:
            assert start not in refused
            continue
        try:
            wanted = record_of(text, fields)
        except Bad:
            assert start in refused, f"taken: {text!r} as {next(rows)}"
            continue
        if start in refused:
            assert UNKNOWN in wanted.values(), f"refused: {text!r}: {refused[start]}"
            continue
        row = next(rows)
        for field, kind in fields:
            got, value = row[field.name], wanted[field.name]
            if value is not UNKNOWN:
                assert (str(got) if kind in KNOWN and got is not None else got) == value, f"{text!r} as {row}"
    assert next(rows, None) is None


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(random=st.randoms(use_true_random=False))
def test_records_and_bad_lines_are_those_of_pythons_parser(random: Random):
    check(random, chunks=2, lines=6)


@pytest.mark.parametrize("seed", range(20))
def test_records_and_bad_lines_are_those_of_pythons_parser_in_longer_chunks(seed: int):
    check(Random(seed), chunks=6, lines=120)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_records_and_bad_lines_are_those_of_pythons_parser_for_long():
    run_long(partial(check, chunks=12, lines=300), least=2_000_000)
