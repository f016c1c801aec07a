"""Text files cut at any byte: a byte order mark, and CSV values that run over line ends."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.connectors.reader_harness import ReaderHarness, all_splits, read_all
from tidegate import FileSource
from tidegate.connectors.files.text_files import TextFile
from tidegate.formats import CsvFormat, quoted_values


class Click(NamedTuple):
    app: str
    n: int


@pytest.mark.parametrize("kind", ["json", "csv", "text"])
def test_a_byte_order_mark_takes_no_line_away_however_small_the_splits_are(tmp_path, kind):
    text = {
        "json": '{"app":"a","n":1}\n{"app":"b","n":2}\n',
        "csv": "a,1\nb,2\n",
        "text": "a\n\nb",
    }[kind]
    expected = ["a", "", "b"] if kind == "text" else [Click("a", 1), Click("b", 2)]
    file_format = CsvFormat(header=False) if kind == "csv" else kind
    for mark in ("", "\ufeff"):
        (tmp_path / "a").write_text(mark + text)
        for split_size in range(1, 21):
            schema = None if kind == "text" else Click
            source = FileSource(tmp_path / "a", file_format, schema, split_size=split_size)
            assert read_all(source) == expected, (mark, split_size)
    for size in range(1, 4):  # nothing but a mark
        (tmp_path / "a").write_text("\ufeff")
        assert read_all(FileSource(tmp_path / "a", "text", split_size=size)) == []


@pytest.mark.parametrize("split_size", [1, 2, 5, 13, 40, 1000])
@pytest.mark.parametrize("policy", ["skip", "side:bad"])
def test_the_lines_of_a_value_that_runs_over_line_ends_never_become_records(tmp_path, policy, split_size):
    text = 'app,n\na,1\n"x\nb,2\n\nc,3\n",9\nd,4\n'
    (tmp_path / "a.csv").write_text(text)
    source = FileSource(tmp_path, "csv", Click, on_bad_record=policy, split_size=split_size)
    harness = ReaderHarness(source, all_splits(source), batch_rows=1)
    rows = []
    while (batch := harness.next_batch()) is not None:
        rows += batch.rows
        harness = harness.restart(source)
    harness.reader.close()
    assert rows == [Click("a", 1), Click("d", 4)]
    assert harness.metrics["bad_records"].value == 4
    if policy != "skip":
        assert [(r.line, r.text) for r in harness.side["bad"]] == [
            (3, '"x'),
            (4, "b,2"),
            (6, "c,3"),
            (7, '",9'),
        ]
        assert "a quoted value does not end" in harness.side["bad"][0].reason
        assert "inside a quoted value" in harness.side["bad"][1].reason


def test_a_stray_quote_takes_no_more_lines_than_the_longest_value(tmp_path, monkeypatch):
    monkeypatch.setattr(quoted_values, "LONGEST_VALUE", 400)
    lines = [f"app-{i},{i}" for i in range(200)]
    lines[50] = '"stray,1'
    (tmp_path / "a.csv").write_text("app,n\n" + "\n".join(lines) + "\n")
    reach = sum(1 for i in range(51, 200) if sum(len(line) + 1 for line in lines[50:i]) <= 400)
    for split_size in (7, 300, 100_000):
        source = FileSource(tmp_path, "csv", Click, on_bad_record="skip", split_size=split_size)
        numbers = [row.n for row in read_all(source)]
        assert numbers == [*range(50), *range(51 + reach, 200)]


def counted_reads(monkeypatch):
    """How many bytes are read of files."""
    read, counted = TextFile.read, [0]

    def counting(self, offset, count):
        data = read(self, offset, count)
        counted[0] += len(data)
        return data

    monkeypatch.setattr(TextFile, "read", counting)
    return counted


def test_a_split_of_a_file_without_quotes_looks_back_by_the_longest_value_and_no_further(
    tmp_path, monkeypatch
):
    (tmp_path / "a.csv").write_bytes(b"app,n\n" + b"abcdef,1\n" * 600_000)
    size = (tmp_path / "a.csv").stat().st_size
    splits = all_splits(FileSource(tmp_path, "csv", Click, split_size="1 MiB"))
    counted = counted_reads(monkeypatch)
    for split in splits:
        counted[0] = 0
        source = FileSource(tmp_path, "csv", Click, split_size="1 MiB")  # one that has read nothing before
        rows = ReaderHarness(source, [split]).rows()
        assert len(rows) > 50_000
        assert counted[0] - (min(split.end, size) - split.start) < quoted_values.LONGEST_VALUE + (384 << 10)


def test_a_reader_never_looks_back_over_what_it_has_read(tmp_path, monkeypatch):
    """Each line opens or closes a value, so what a line is depends on all lines before it."""
    (tmp_path / "a.csv").write_bytes(b"app,n\n" + (b"a" * 400 + b',"\n') * 10_001)
    size = (tmp_path / "a.csv").stat().st_size
    for split_size in ("16 MiB", "64 KiB"):
        counted = counted_reads(monkeypatch)
        source = FileSource(tmp_path, "csv", Click, on_bad_record="skip", split_size=split_size)
        harness = ReaderHarness(source, all_splits(source))
        assert [len(harness.rows()), harness.metrics["bad_records"].value] == [0, 10_001]
        monkeypatch.undo()
    splits = -(-size // (64 << 10))
    assert counted[0] < 2 * size + splits * (256 << 10), "not all of it for each split"
