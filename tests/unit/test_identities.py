"""What is durable of a program, ids of operators and fingerprints of their state, does not follow the words of plans.

`tests/golden/identities.json` has both for a program with every kind of operation. If it fails, state of earlier
versions is no longer found: keep the identity, or change the file knowingly with
`python -m tests.unit.test_identities`, and say so in the commit.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.unit.program_kit import Remember, graph_of, keyed_state, program
from tidegate import Environment, ProgramError, WatermarkStrategy
from tidegate.aggregates.aggregate import Aggregate
from tidegate.api.evictors import Evictor
from tidegate.api.sink import BlackholeSink, Sink
from tidegate.api.source import Source
from tidegate.api.triggers import Trigger
from tidegate.api.windows import WindowAssigner
from tidegate.core.durations import format_duration_ms
from tidegate.core.identity import function_identity
from tidegate.graph.stream_graph import StreamGraph
from tidegate.operators.factory import _OPERATORS
from tidegate.program.operations import Key, Operation
from tidegate.records.types import RecordType

GOLDEN = Path(__file__).parents[1] / "golden" / "identities.json"

Found = dict[str, dict[str, Any]]


def durable(graph: StreamGraph) -> Found:
    """The id of each operator, and the fingerprints of what it keeps by key."""
    found: Found = {}
    for node in graph.nodes:
        assert node.name not in found
        found[node.name] = {"id": node.operator_id}
        if node.operation.keeps_keyed_state:
            found[node.name]["states"] = keyed_state(node, graph)
    return found


def test_ids_and_fingerprints_are_those_of_earlier_versions() -> None:
    assert durable(program()) == json.loads(GOLDEN.read_text())


def test_the_program_has_every_operation() -> None:
    assert {type(node.operation) for node in program().nodes} == set(_OPERATORS)


WORDS: tuple[tuple[type, str], ...] = (
    (Operation, "detail"),
    (Key, "describe"),
    (Source, "describe"),
    (Sink, "describe"),
    (WindowAssigner, "describe"),
    (Trigger, "describe"),
    (Evictor, "describe"),
    (Aggregate, "describe"),
    (WatermarkStrategy, "describe"),
    (RecordType, "describe"),
)


def test_other_words_in_plans_change_no_id_and_no_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    for base, method in WORDS:
        for cls in every_class(base):
            if method in vars(cls):
                monkeypatch.setattr(cls, method, reworded(vars(cls)[method]))
    for cls in every_class(Operation):
        if "kind" in vars(cls):
            monkeypatch.setattr(cls, "kind", "thing")
    for module in [m for name, m in sys.modules.items() if name.startswith("tidegate.")]:
        for name in ("function_name", "format_duration_ms"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, reworded(getattr(module, name)))
    graph = program()
    assert all(node.operation.kind == "thing" for node in graph.nodes)
    assert any("in other words" in node.operation.detail() for node in graph.nodes)
    # In the program's order: a name that the engine makes up is for display too.
    assert list(durable(graph).values()) == list(json.loads(GOLDEN.read_text()).values())


def every_class(base: type) -> Iterator[type]:
    yield base
    for cls in base.__subclasses__():
        yield from every_class(cls)


def reworded(method: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: f"in other words: {method(*args)}"


def test_lambdas_are_told_apart_by_their_place() -> None:
    env = Environment()
    numbers = env.from_sequence(1, 3)
    for plus in (1, 2):
        numbers.map(lambda n, plus=plus: n + plus, returns=int, name=f"plus {plus}").print()
    graph = graph_of(env)
    one, two = (next(n for n in graph.nodes if n.name == f"plus {plus}") for plus in (1, 2))
    assert one.operation.identity() == two.operation.identity() == ("map", "<lambda>")
    assert one.operator_id != two.operator_id


class Callee:
    def __call__(self, n: int) -> int:
        return n

    def method(self, n: int) -> int:
        return n


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (max, "max"),
        (lambda n: n, "<lambda>"),
        (Callee(), "Callee"),
        (Callee().method, "Callee.method"),
        (functools.partial(functools.partial(Callee().method, 1)), "Callee.method"),
        (Remember(), "Remember"),
        (format_duration_ms, "format_duration_ms"),
    ],
)
def test_a_function_is_known_by_its_name_without_address_and_module(function: Any, name: str) -> None:
    assert function_identity(function) == name


def test_expressions_that_differ_have_different_identities_without_addresses() -> None:
    env = Environment()
    numbers = env.from_sequence(1, 3)
    made = [
        numbers.filter(pl.col("value") > 1),
        numbers.filter(pl.col("value") <= 1),
        numbers.select(pl.col("value").map_elements(abs, return_dtype=pl.Int64)),
    ]
    identities = [stream._node.operation.identity() for stream in made]
    assert len(set(identities)) == 3
    assert not any("0x" in str(identity) for identity in identities)


def test_an_identity_that_cannot_be_stored_is_refused_by_name() -> None:
    class Odd(BlackholeSink):
        def identity(self) -> Any:
            return ("odd", object)

    env = Environment()
    env.from_sequence(1, 3).sink_to(Odd(), name="odd sink")
    with pytest.raises(
        ProgramError, match=r"operator 'odd sink' has the identity .* or give the operator a uid"
    ):
        graph_of(env)
    env = Environment()
    env.from_sequence(1, 3).sink_to(Odd(), uid="odd")
    assert graph_of(env)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(durable(program()), indent=1) + "\n")
