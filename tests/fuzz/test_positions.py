"""Positions of files: readers that are stopped after any batch, and others that go on, give every record once.

Each case writes files of one format (some compressed, some in directories that name columns, with bad and blank lines
between the records), reads them with some readers, takes checkpoints here and there, loses what came after some of
them, and goes on with other numbers of readers, other sizes of batches, chunks and splits, and other columns cut off.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidegate.connectors.files.source as source_module
from tests.connectors.reading import SourceRun
from tests.fuzz.kit import run_long
from tidegate import FileSource
from tidegate.api.source import FINISHED
from tidegate.formats import CsvFormat
from tidegate.records.batch import Batch

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("s", pa.string()),
        pa.field("hour", pa.int64()),
        pa.field("new", pa.string()),
    ]
)
LINES = pa.schema([pa.field("line", pa.string(), nullable=False), pa.field("hour", pa.int64())])
WORDS = ["a", "b", None, "é☃", "x" * 50, 'q"uote,', "null", " "]
KINDS = ["json", "csv", "plain csv", "text", "parquet"]


class Files:
    """Some files of one kind, and the records in them."""

    def __init__(self, random: Random, directory: Path, most_rows: int) -> None:
        self.kind = random.choice(KINDS)
        self.directory = directory
        self.rows: list[tuple[Any, ...]] = []
        self._random = random
        first = 0
        for number in range(random.randint(1, 3)):
            count = random.randint(0, most_rows)
            hour = random.choice([None, None, 3, 4])
            folder = directory if hour is None else directory / f"hour={hour}"
            folder.mkdir(exist_ok=True)
            rows = [(first + i, random.choice(WORDS), hour) for i in range(count)]
            first += count
            self._write(folder / f"f{number}", rows)

    def _write(self, path: Path, rows: list[tuple[Any, ...]]) -> None:
        random, kind = self._random, self.kind
        if kind == "parquet":
            names = ["n", "s"]
            table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)}, SCHEMA_IN_FILE)
            pq.write_table(table, path.with_suffix(".parquet"), row_group_size=random.choice([1, 3, 7, 1000]))
            self.rows += [(n, s, hour, None) for n, s, hour in rows]
            return
        new = random.random() < 0.5 and kind != "text"
        lines = ["n,s,new" if new else "n,s"] if kind == "csv" else []
        for n, s, hour in rows:
            value = f"v{n % 3}" if new or kind == "plain csv" else None
            if kind == "json":
                record = {"n": n, "s": s} | ({"new": value} if new else {})
                lines.append(json.dumps(record, ensure_ascii=random.random() < 0.5))
            elif kind == "text":
                lines.append(f"{n} {s}")
            else:
                quoted = "" if s is None else '"' + s.replace('"', '""') + '"'
                columns = [str(n), quoted]
                if kind == "plain csv" and hour is None:
                    columns.append("")
                if value is not None:
                    columns.append(value)
                lines.append(",".join(columns))
            self.rows.append((f"{n} {s}", hour) if kind == "text" else (n, s, hour, value))
            if random.random() < 0.15 and kind != "text":
                lines += random.choice([[""], ["bad"], ["", "bad", "bad"], ['1,"x', "7,y,3,z", '",1']])
        data = "".join(line + "\n" for line in lines).encode()
        if random.random() < 0.2:
            data = b"\xef\xbb\xbf" + data
        if random.random() < 0.2:
            data = data.removesuffix(b"\n")
        suffix = {"plain csv": "csv", "text": "txt"}.get(kind, kind)
        if random.random() < 0.2:
            path.with_suffix(f".{suffix}.gz").write_bytes(gzip.compress(data))
        else:
            path.with_suffix(f".{suffix}").write_bytes(data)

    def source(self, columns: list[str]) -> FileSource:
        random = self._random
        file_format: Any = {"plain csv": CsvFormat(header=False)}.get(self.kind, self.kind)
        whole = FileSource(
            self.directory,
            file_format,
            LINES if self.kind == "text" else SCHEMA,
            split_size=random.choice([1, 2, 3, 20, 100, 5000]),
            on_bad_record="fail" if self.kind == "parquet" else "skip",
        )
        return whole.with_columns(columns)


SCHEMA_IN_FILE = pa.schema(list(SCHEMA)[:2])


def check(random: Random, most_rows: int = 15) -> int:
    """Read some files through some failures; gives how many records were read."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        files = Files(random, Path(directory), most_rows)
        names = LINES.names if files.kind == "text" else SCHEMA.names
        columns = random.sample(names, random.randint(1, len(names)))
        places = [names.index(name) for name in columns]
        expected = Counter(tuple(row[i] for i in places) for row in files.rows)
        kept: list[Any] = []
        stored: Any = None
        for _ in range(random.randint(1, 5)):
            kept, stored = run_until_failure(random, patch, files.source(columns), kept, stored)
        rows = run_to_end(random, patch, files.source(columns), kept, stored)
        assert Counter(rows) == expected
    return len(rows)


def started(random: Random, patch: pytest.MonkeyPatch, source: FileSource, stored: Any) -> SourceRun:
    patch.setattr(source_module, "_CHUNK_BYTES", random.choice([1, 30, 100, 2000]))
    return SourceRun(source, random.randint(1, 3), batch_rows=random.choice([1, 2, 5, 1000]), restored=stored)


def run_until_failure(
    random: Random, patch: pytest.MonkeyPatch, source: FileSource, kept: list[Any], stored: Any
) -> tuple[list[Any], Any]:
    """What belongs to the last checkpoint of an attempt, and that checkpoint; what came after it is lost."""
    run = started(random, patch, source, stored)
    rows = list(kept)
    for _ in range(random.randint(0, 12)):
        answer = run.poll(random.randrange(run.parallelism))
        if isinstance(answer, Batch):
            rows += map(tuple, answer.rows)
        if random.random() < 0.4:
            kept, stored = list(rows), run.checkpoint()
    run.close()
    return kept, stored


def run_to_end(
    random: Random, patch: pytest.MonkeyPatch, source: FileSource, kept: list[Any], stored: Any
) -> list[Any]:
    run = started(random, patch, source, stored)
    rows = kept + [tuple(row) for part in run.read_to_end() for row in part]
    assert all(run.poll(i) is FINISHED for i in range(run.parallelism))
    run.close()
    return rows


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(random=st.randoms(use_true_random=False))
def test_every_record_comes_once_wherever_readers_stop_and_others_go_on(random: Random):
    check(random, most_rows=6)


@pytest.mark.parametrize("seed", range(25))
def test_every_record_comes_once_in_larger_files(seed: int):
    check(Random(seed), most_rows=40)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_record_comes_once_for_long():
    run_long(partial(check, most_rows=60), least=20_000)
