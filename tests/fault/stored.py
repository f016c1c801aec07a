"""Reads a checkpoint from the disk with json and pyarrow alone: nothing of tidegate, as an outsider would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


class Stored:
    """One completed checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest: dict[str, Any] = json.loads((directory / "_metadata").read_bytes())

    @property
    def id(self) -> int:
        """Its number."""
        return int(self.manifest["checkpoint_id"])

    def operator(self, uid: str) -> dict[str, Any]:
        """All that the manifest says about an operator."""
        (found,) = (o for o in self.manifest["operators"] if o["uid"] == uid)
        return dict(found)

    def positions(self, uid: str) -> dict[int, int]:
        """Per partition of a scripted source, how many of its records were read."""
        entries = [
            json.loads(e) if isinstance(e, str) else e
            for subtask in self.operator(uid)["subtasks"]
            for state in subtask["states"]
            if state["name"] == "splits"
            for e in state["entries"]
        ]
        return {e["partition"]: e["position"] for e in entries}

    def keyed(self, uid: str) -> dict[Any, Any]:
        """The keyed state of an operator with one state: the base and its increments, the later row winning."""
        found: dict[Any, Any] = {}
        for subtask in self.operator(uid)["subtasks"]:
            for file in (subtask["keyed"] or {"files": []})["files"]:
                for row in pq.read_table(self.directory.parent / file["path"]).to_pylist():
                    if row.get("deleted"):
                        found.pop(row["key"], None)
                    else:
                        found[row["key"]] = row["value"]
        return found

    def keyed_by_subtask(self, uid: str) -> dict[int, set[Any]]:
        """Which keys each subtask stored."""
        return {
            subtask["subtask"]: {
                row["key"]
                for file in (subtask["keyed"] or {"files": []})["files"]
                for row in pq.read_table(self.directory.parent / file["path"]).to_pylist()
            }
            for subtask in self.operator(uid)["subtasks"]
        }

    def files(self) -> list[Path]:
        """Every file that the manifest names."""
        return [self.directory.parent / f["path"] for f in self.manifest["files"]]


def completed(root: Path) -> list[Stored]:
    """All completed checkpoints below a checkpoint directory, oldest first."""
    found = []
    for manifest in root.glob("*/chk-*/_metadata"):
        try:
            found.append(Stored(manifest.parent))
        except FileNotFoundError:
            continue  # discarded meanwhile
    return sorted(found, key=lambda s: s.id)


def number(value: Any) -> Any:
    """A total out of its cell: the value itself, or the one number in a struct or list."""
    while isinstance(value, (dict, list)):
        (value,) = value.values() if isinstance(value, dict) else value
    return value
