"""Pane tables that an earlier version wrote are read for ever: files of the heap backend, entries in RocksDB.

`python -m tests.contract.test_pane_golden_files` writes the files; only a new version of the format gets new ones.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from tests.contract.state_backend_kit import Cluster
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.backend import PaneRows
from tidegate.state.rocksdb.backend import RocksDBBackend
from tidegate.state.rocksdb.row_bytes import RowBytes

GOLDEN = Path(__file__).parent / "golden" / "heap-1-panes"
KEY = pa.schema([("user", pa.string())])
VALUES = pa.schema(
    [("count", pa.int64()), ("open", pa.bool_()), ("name", pa.string()), ("top", pa.list_(pa.int32()))]
)


def rows(keys: list[str | None], panes: list[int], *columns: list[object]) -> PaneRows:
    values = [pa.array(c, f.type) for c, f in zip(columns, VALUES, strict=False)]
    return PaneRows([pa.array(keys, pa.string())], np.array(panes, np.int64), values)


FIRST = rows(
    ["ann", None, "ann"], [-1, 0, 60_000], [1, 2, None], [True, None, False], ["a", None, ""], [[1], None, []]
)
CHANGED = rows(["ann"], [-1], [7], [False], ["☃"], [[3, None]])
REMOVED = rows([None], [0])
NOTHING = rows([], [])
EXPECTED = {("ann", -1): (7, False, "☃", [3, None]), ("ann", 60_000): (None, False, "", [])}


def write_golden(directory: Path) -> None:
    """A base and an increment."""
    cluster = Cluster("heap", directory)
    task = cluster.subtask(KEY)
    table = task.backend.panes("panes", VALUES)
    table.write(FIRST, NOTHING, lambda: FIRST)
    task.checkpoint(1)
    table.write(CHANGED, REMOVED, lambda: FIRST)
    handle = task.checkpoint(2)
    for file in handle.files:
        (directory / file.path.replace("/", "-")).write_bytes(cluster.storage.files[file.path])
    (directory / "handle.json").write_bytes(msgspec.json.format(msgspec.json.encode(handle), indent=1))


def test_golden_files_are_restored(tmp_path: Path) -> None:
    handle = msgspec.json.decode((GOLDEN / "handle.json").read_bytes(), type=KeyedStateHandle)
    cluster = Cluster("heap", tmp_path)
    for file in handle.files:
        cluster.storage.files[file.path] = (GOLDEN / file.path.replace("/", "-")).read_bytes()
    task = cluster.subtask(KEY, restore=[handle])
    found = list(task.backend.panes("panes", VALUES).restored())
    seen = {
        (key, pane): values
        for part in found
        for key, pane, *values in zip(
            part.keys[0].to_pylist(), part.panes.tolist(), *(v.to_pylist() for v in part.values), strict=True
        )
    }
    assert {place: tuple(values) for place, values in seen.items()} == EXPECTED
    cluster.close()


STORED_ROWS = [
    "01010100000000000000010101010000000105000000610101000000",
    "0101020000000000000000000000000000000100000001",
    "0100000000000000000001000100000000010100000001",
]


def test_rows_in_rocksdb_have_these_bytes() -> None:
    codec = RowBytes(VALUES)
    assert [row.hex() for row in codec.of_columns(FIRST.values)] == STORED_ROWS
    assert codec.to_columns([bytes.fromhex(row) for row in STORED_ROWS]) == list(FIRST.values)


def test_entries_in_rocksdb_are_at_the_key_and_the_pane(tmp_path: Path) -> None:
    cluster = Cluster("rocksdb", tmp_path)
    task = cluster.subtask(KEY)
    table = task.backend.panes("panes", VALUES)
    table.write(FIRST, NOTHING, lambda: FIRST)
    task.checkpoint(1)
    assert isinstance(task.backend, RocksDBBackend)
    database, _ = task.backend._opened_database()
    places = [key[2:].hex() for key, _ in database.scan(b"\x00", b"\xff")]
    state, ann = "01", "0400000003616e6e"
    assert sorted(places) == sorted(
        [
            state + ann + "7fffffffffffffff",
            state + "00" + "8000000000000000",
            state + ann + "800000000000ea60",
        ]
    )
    cluster.close()


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    write_golden(GOLDEN)
