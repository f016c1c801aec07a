"""The user's objects as bytes: they arrive where their module does not exist, or the culprit is named."""

from __future__ import annotations

import functools
import importlib
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from tidegate import Environment, MapFunction
from tidegate.core.errors import SerializationError
from tidegate.graph.blobs import dump_blob, load_blob
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.stream_graph import build_stream_graph

LOCK = threading.Lock()


class Holder:
    def __init__(self, value: Any) -> None:
        self.connection = value

    def method(self, value: Any) -> Any:
        return value


class Keeper(MapFunction):
    def __init__(self, value: Any) -> None:
        self.session = value

    def map(self, value: Any) -> Any:
        return value


def uses_global(value: Any) -> Any:
    return LOCK, value


def uses_global_inside(value: Any) -> Any:
    return [LOCK for _ in range(value)]


def capturing(lock: Any) -> Any:
    def inner(value: Any) -> Any:
        return lock, value

    return inner


@pytest.mark.parametrize(
    ("value", "culprit"),
    [
        (capturing(LOCK), "the captured variable 'lock' (a lock)"),
        (capturing(Holder(LOCK)), "the attribute 'connection' (a lock)"),
        (capturing({"a": [LOCK]}), "the item '0' (a lock)"),
        (uses_global, "the global variable 'LOCK' (a lock)"),
        (uses_global_inside, "the global variable 'LOCK' (a lock)"),
        (Keeper(LOCK), "the attribute 'session' (a lock)"),
        (functools.partial(print, LOCK), "the bound argument '0' (a lock)"),
        (Holder(LOCK).method, "the attribute 'connection' (a lock)"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, culprit: str) -> None:
    with pytest.raises(SerializationError) as caught:
        dump_blob(value, "parse")
    message = str(caught.value)
    assert message.startswith(f"operator 'parse' cannot be sent to the slots because of {culprit}: ")
    assert "inside the function's open()" in message


def test_it_is_named_when_a_whole_job_is_made_too() -> None:
    env = Environment()
    env.from_sequence(1, 3).map(capturing(LOCK), name="parse").print()
    program = env._program("job")
    graph = build_stream_graph(program.name, program.sinks, (), program.options)
    with pytest.raises(
        SerializationError, match=r"operator 'parse' .* the captured variable 'lock' \(a lock\)"
    ):
        build_job_graph(graph)


def test_functions_of_the_standard_library_and_of_packages_travel_by_name() -> None:
    assert len(dump_blob(textwrap.dedent, "x")) < 100
    assert load_blob(dump_blob(textwrap.dedent, "x")) is textwrap.dedent
    assert b"map_batches" not in dump_blob(Environment, "x")


LIBRARY = """
from dataclasses import dataclass

FACTOR = 3


@dataclass
class Order:
    amount: int


def times(order):
    return helper(order.amount)


def helper(n):
    return n * FACTOR
"""

WRITER = """
import sys
from pathlib import Path

sys.path.insert(0, {folder!r})
import orders
from tidegate.graph.blobs import dump_blob
from tidegate.records.types import record_type_of


def from_main(n):
    return orders.times(orders.Order(n))


Path({blob!r}).write_bytes(dump_blob((from_main, orders.Order, record_type_of(orders.Order)), "map"))
"""

READER = """
import sys
from pathlib import Path

from tidegate.graph.blobs import load_blob

function, order, record_type = load_blob(Path({blob!r}).read_bytes())
assert "orders" not in sys.modules
assert function(5) == 15
rows = [order(1), order(2)]
columns = record_type.to_columns(rows)
assert record_type.to_rows(columns) == rows
print("arrived")
"""


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_functions_and_classes_of_modules_that_are_not_installed_travel_by_value(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "orders.py").write_text(LIBRARY)
    blob = str(tmp_path / "blob")
    run(WRITER.format(folder=str(folder), blob=blob))
    assert run(READER.format(blob=blob)) == "arrived\n"


SCRIPT = """
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidegate import KeyedProcessFunction


class Result(NamedTuple):
    word: str
    length: int


class Results(NamedTuple):
    best: Result | None


class Measure(KeyedProcessFunction):
    def process(self, word, context) -> Iterator[Result]:
        yield self._measured(word)

    def _measured(self, word):
        return Result(word, len(word))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that is not installed, so its classes travel by value."""
    (tmp_path / "script_of_a_user.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("script_of_a_user")
    del sys.modules["script_of_a_user"]


def test_a_class_of_this_process_comes_back_unchanged(script: Any):
    before = dict(vars(script.Measure))
    assert type(load_blob(dump_blob(script.Measure(), "measure"))) is script.Measure
    assert all(vars(script.Measure)[name] is value for name, value in before.items())


def test_a_program_has_the_same_types_when_it_is_written_a_second_time(script: Any):
    for _ in range(2):
        words = Environment(runtime="in-process").from_collection(["sea", "tide"])
        measured = words.key_by(lambda word: word, returns=str).process(script.Measure())
        assert measured.record_type.python_class is script.Result
        assert sorted(measured.execute_and_collect()) == [("sea", 3), ("tide", 4)]


def test_a_class_of_another_process_is_brought_up_to_date():
    """A worker outlives a job, and the next one may bring the same class with another method."""

    class Changing:
        def answer(self) -> int:
            return 1

    first = dump_blob(Changing, "first")
    Changing.answer = lambda self: 2
    second = dump_blob(Changing, "second")
    assert elsewhere("blob().answer()", first, second) == ["1", "2"]


def test_a_class_of_a_script_brings_the_types_that_its_hints_name(script: Any):
    """Also where no stream has records of it: a state, an accumulator."""
    described = "record_type_of(blob).describe()"
    assert elsewhere(described, dump_blob(script.Result, "result")) == ["Result(word: string, length: int64)"]
    assert elsewhere(described, dump_blob(script.Results, "results")) == [
        "Results(best: struct<word: string not null, length: int64 not null>?)"
    ]


def elsewhere(expression: str, *blobs: bytes) -> list[str]:
    """What an expression of each `blob` gives in one process that cannot import this one's modules."""
    program = f"""
        import pickle, sys
        from tidegate.graph.blobs import load_blob
        from tidegate.records.types import record_type_of
        for data in pickle.load(sys.stdin.buffer):
            blob = load_blob(data)
            print({expression})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        input=pickle.dumps(blobs),
        capture_output=True,
        check=True,
        timeout=60,
    )
    return done.stdout.decode().splitlines()


TYPES = """
from __future__ import annotations
import enum
import sys
import uuid
from pathlib import Path
from typing import NotRequired, TypedDict

import pydantic
from tidegate.graph.blobs import dump_blob
from tidegate.records.types import record_type_of

class Color(enum.Enum):
    RED = "red"

class Place(TypedDict):
    city: str
    zip: NotRequired[int]

class Model(pydantic.BaseModel):
    id: uuid.UUID
    color: Color

def make():
    return Model(id=uuid.UUID(int=1), color=Color.RED), {"city": "Oslo"}, Color.RED

types = record_type_of(Model), record_type_of(Place), record_type_of(Color)
assert not any(t.is_object for t in types)
Path(sys.argv[1]).write_bytes(dump_blob((make, types), "map"))
"""

READS_TYPES = """
import sys
from pathlib import Path
from tidegate.graph.blobs import load_blob

make, types = load_blob(Path(sys.argv[1]).read_bytes())
for value, record_type in zip(make(), types, strict=True):
    assert record_type.to_rows(record_type.to_columns([value])) == [value], value
model, place, color = make()
assert model.color is color and type(color).RED is color
print("arrived")
"""


def test_enums_typed_dicts_and_models_of_a_script_arrive_with_their_columns(tmp_path: Path) -> None:
    blob = str(tmp_path / "blob")
    for code in (TYPES, READS_TYPES):
        done = subprocess.run([sys.executable, "-c", code, blob], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "arrived\n"
