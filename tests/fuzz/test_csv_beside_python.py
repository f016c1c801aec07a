"""CSV beside Python's `csv` module: the same records, the same lines refused, however the file is cut.

The oracle shares no code with the reader: Python's parser says which lines a record takes and what its values are, and
the rules for numbers and empty values are written down a second time here.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
import tempfile
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidegate.connectors.files.source as source_module
from tests.connectors.reader_harness import ReaderHarness, all_splits
from tests.fuzz.kit import run_long
from tidegate import FileSource
from tidegate.formats import CsvFormat, quoted_values

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("f", pa.float64()),
        pa.field("t", pa.string(), nullable=False),
    ]
)
ONE = pa.schema([pa.field("s", pa.string())])
NUMBERS = [
    "0",
    "7",
    "-3",
    "007",
    "",
    " 12",
    "0x10",
    "+5",
    "1_000",
    "1e3",
    "1.5",
    "9223372036854775808",
    "x",
    "１",
]
FLOATS = ["1.5", "-0.0", "1e3", "", "nan", "-inf", "1e400", "nan(1)", "1_0", "x", ".5", " 2 "]
TEXTS = [
    "x",
    "é☃",
    "",
    '""',
    '"a,b"',
    '"a""b"',
    '"',
    '""""',
    ' "q"',
    '5" x',
    '"a"b',
    "2,y,1,z",
    "0x1f",
    "\tw ",
]
GOOD = ["1,x,2.5,y\n", '-2,"a,""b""",,\n', '3,,1e3,"5"\r\n', '4,5" x,-0.0,z\n']
PIECES = ['"', '""', ",", "\n", "1", "x", " ", "1,y,2.5,z\n", ',"', '",', "\r\n", '"\n', "é"]
INT = re.compile(r"[ \t]*-?[0-9]+[ \t]*")
FLOAT = re.compile(
    r"[ \t]*[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|nan|inf)[ \t]*"
)

RAW = re.compile(r'(?:^|,)("(?:[^"]|"")*"|[^,]*)')


class Outcome(NamedTuple):
    """What became of a file."""

    rows: list[Any]
    bad_lines: list[int]


def some_file(random: Random, width: int, most_lines: int) -> str:
    """Lines of good and odd values, mixed with lines of any pieces; in long files most lines are good."""
    out = []
    good = 0 if most_lines < 100 else random.choice([0.5, 0.99])
    for _ in range(random.randint(0, most_lines)):
        if random.random() < good:
            out.append(random.choice(GOOD if width > 1 else ["x\n", '"a,b"\n']))
            continue
        if random.random() < 0.25:
            out.append("".join(random.choice(PIECES) for _ in range(random.randint(0, 9))))
            continue
        kinds = (
            (NUMBERS[: 4 if random.random() < 0.7 else None], TEXTS, FLOATS, TEXTS) if width > 1 else (TEXTS,)
        )
        row = [random.choice(kind) for kind in kinds]
        if random.random() < 0.03:
            row.append("1")
        out.append(",".join(row) + random.choice(["\n", "\n", "\r\n", "\n\n"]))
    text = "".join(out)
    return text.removesuffix("\n") if random.random() < 0.2 else text


def expected(text: str, width: int, reach: int) -> Outcome:
    """The records and the bad lines of a file.

    `reach`: a value that is open longer than so many bytes from the start of the line that opened it is none.
    """
    ended = text.split("\n")
    if not ended[-1]:
        ended.pop()
    starts = list(itertools.accumulate((len(line.encode()) + 1 for line in ended), initial=0))
    lines = [line.removesuffix("\r") for line in ended]
    alone = lines_alone(lines, starts, reach)
    if reach > len(text.encode()):
        assert alone == lines_alone_in_python(lines)
    outcome = Outcome([], [])
    for i, line in enumerate(lines):
        if not line and width > 1:
            continue
        values = values_of(line, width) if i in alone else None
        if values is None:
            outcome.bad_lines.append(i + 1)
        else:
            outcome.rows.append(values)
    return outcome


def lines_alone_in_python(lines: list[str]) -> set[int]:
    """The lines that are a whole record each, by Python's parser."""
    # The last line is a mark that is a record of its own only if no value is open there.
    reader = csv.reader([*(f"{line}\n" for line in lines), "END\n"])
    alone, before = set(), 0
    for _ in reader:
        if reader.line_num == before + 1:
            alone.add(before)
        before = reader.line_num
    return alone - {len(lines)}


def lines_alone(lines: list[str], starts: list[int], reach: int) -> set[int]:
    """The same by a machine that reads one character after the other, for a value that reaches only so far."""
    alone = set()
    opened: int | None = None
    for i, line in enumerate(lines):
        if opened is not None and starts[i] > starts[opened] + reach:
            opened = None
        inside = opened is not None
        state = "quoted" if inside else "start"
        for c in line:
            if state == "quoted":
                state = "quote" if c == '"' else "quoted"
            elif state == "start" and c == '"':
                state, opened = "quoted", i
            elif state == "quote" and c == '"':
                state = "quoted"
            else:
                state = "start" if c == "," else "plain"
        if state != "quoted":
            opened = None
            if not inside:
                alone.add(i)
    return alone


def values_of(line: str, width: int) -> Any:
    """The values of a record on one line; None if it is bad."""
    try:
        row = next(csv.reader([line], strict=True)) or [""]
    except csv.Error:
        return None
    if len(row) != width or "\r" in line:
        return None
    # Python does not tell an empty value from a quoted empty one.
    empty = [not raw for raw in RAW.findall(line)]
    if width == 1:
        return (None,) if empty[0] else tuple(row)
    number, text, fraction, last = row
    if not (empty[0] or (INT.fullmatch(number) and -(2**63) <= int(number) < 2**63)):
        return None
    if not (empty[2] or FLOAT.fullmatch(fraction)):
        return None
    if fraction and math.isinf(float(fraction)) and "inf" not in fraction:
        return None
    return (
        None if empty[0] else int(number),
        None if empty[1] else text,
        None if empty[2] else repr(float(fraction)),
        last,
    )


def found(source: FileSource, random: Random, most_rows: int) -> Outcome:
    """What a reader gives that is stopped and restored here and there."""
    harness = ReaderHarness(source, all_splits(source), batch_rows=random.randint(1, most_rows))
    rows = []
    while (batch := harness.next_batch()) is not None:
        rows += [tuple(repr(v) if isinstance(v, float) else v for v in row) for row in batch.rows]
        if random.random() < 0.2:
            harness = harness.restart(source, batch_rows=random.randint(1, most_rows))
    harness.reader.close()
    return Outcome(rows, [record.line for record in harness.side["bad"]])


def check(random: Random, most_lines: int = 12) -> int:
    """Read one file with two ways of cutting it; gives the lines that were read."""
    width = random.choice([1, 4, 4, 4])
    header = random.random() < 0.5
    schema = SCHEMA if width > 1 else ONE
    text = some_file(random, width, most_lines)
    reach = random.choice([1 << 20, 1 << 20, random.randint(1, 60)])
    outcome = expected(text, width, reach)
    first = ",".join(schema.names) + "\n" if header else ""
    mark = random.choice([b"", b"\xef\xbb\xbf"])
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        path = Path(directory, "a.csv")
        path.write_bytes(mark + (first + text).encode())
        patch.setattr(quoted_values, "LONGEST_VALUE", reach)
        patch.setattr(quoted_values, "_NEAR", random.randint(1, 40))
        for _ in range(2):
            patch.setattr(source_module, "_CHUNK_BYTES", most_lines * random.choice([1, 4, 400]))
            source = FileSource(
                path,
                CsvFormat(header=header),
                schema,
                split_size=random.choice([1, 2, 3, 7, 30, 4096]) * most_lines // 12,
                on_bad_record="side:bad",
            )
            got = found(source, random, most_rows=max(5, most_lines // 10))
            assert got.rows == outcome.rows, (mark, first + text, source._split_size)
            assert [line - header for line in got.bad_lines] == outcome.bad_lines, (mark, first + text)
    return 2 * text.count("\n")


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(random=st.randoms(use_true_random=False))
def test_records_and_bad_lines_are_those_of_pythons_parser(random: Random):
    check(random)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_records_and_bad_lines_are_those_of_pythons_parser_for_long():
    run_long(partial(check, most_lines=5_000), least=1_000_000)
