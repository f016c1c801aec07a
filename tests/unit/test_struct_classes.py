"""Structs of a user's script arrive in another process with their fields, defaults, options and methods."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from tidegate.api.source import SourceSplit
from tidegate.graph.blobs import dump_blob, load_blob


class Part(SourceSplit, frozen=True, kw_only=True):
    partition: int
    position: int = 3
    names: list[str] = msgspec.field(default_factory=list)

    def next(self) -> Part:
        return Part(id=self.id, partition=self.partition, position=self.position + 1)

    @property
    def is_far(self) -> bool:
        return self.position > 3


class Plain(msgspec.Struct, tag="plain", omit_defaults=True):
    a: int
    b: str = msgspec.field(default="x", name="bee")
    total: int = 0

    def __post_init__(self) -> None:
        self.total = self.a + 1


class Longer(Plain):
    c: float = 0.5


ELSEWHERE = """
import sys
from pathlib import Path
import msgspec
from tidegate.graph.blobs import load_blob

part, Part, Longer = load_blob(Path(sys.argv[1]).read_bytes())
again = msgspec.json.decode(msgspec.json.encode(part), type=Part)
assert again == part == Part(id="p", partition=1), again
assert type(part) is Part and again.next().is_far and not again.is_far
assert msgspec.json.encode(Longer(a=1)) == b'{"type":"plain","a":1,"total":2}', msgspec.json.encode(Longer(a=1))
assert Longer(2, "y").total == 3 and Longer.__qualname__ == "Longer"
print("same")
"""


def test_a_struct_of_a_script_arrives_whole_in_another_process(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(dump_blob((Part(id="p", partition=1), Part, Longer), "test"))
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(blob)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "same\n", done.stderr


def test_in_its_own_process_it_is_the_same_class_twice() -> None:
    first, second = (load_blob(dump_blob(Part(id="p", partition=1), "test")) for _ in range(2))
    assert type(first) is type(second) is Part


def test_an_installed_one_travels_by_name() -> None:
    assert load_blob(dump_blob(SourceSplit, "test")) is SourceSplit
    assert b"SourceSplit" in dump_blob(SourceSplit, "test")
