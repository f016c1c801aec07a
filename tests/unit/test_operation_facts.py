"""What operations state about themselves is what their operators do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.program_kit import Alarm, Click, both, graph_of, keyed_state, program
from tidegate import Environment, KeyedProcessFunction, ProgramError, TumblingProcessingTimeWindows
from tidegate.api.streams import DataStream
from tidegate.graph.explain import explain


class Pass(KeyedProcessFunction):
    def process(self, value: Click, context: Any) -> Iterator[Click]:
        yield value


def clicks(**options: Any) -> DataStream:
    return Environment(**options).from_collection([Click("a", 1, 1)])


def backend_shown(stream: DataStream) -> str:
    stream.print()
    shown: str = json.loads(explain(graph_of(stream._env), "json"))["state_backend"]
    return shown


def test_keyed_state_is_stated_where_an_operator_has_some() -> None:
    graph = program()
    for node in graph.nodes:
        if node.operation.read_source is None and node.operation.written_sink is None:
            assert bool(keyed_state(node, graph)) == node.operation.keeps_keyed_state, node.name


def test_only_the_second_of_two_stages_keeps_state() -> None:
    stages = {n.name: n.operation for n in program().nodes if "stages" in n.name or "sum" in n.name}
    for name in ("local in two stages", "local sum(price)"):
        assert stages[name].is_local_stage
        assert not stages[name].keeps_state
    for name in ("in two stages", "sum"):
        assert not stages[name].is_local_stage
        assert stages[name].keeps_keyed_state


@pytest.mark.parametrize(
    ("function", "shown"), [(Alarm(), "heap"), (Pass(), "")], ids=["timers alone", "neither"]
)
def test_timers_are_keyed_state(function: Any, shown: str) -> None:
    assert backend_shown(clicks().key_by("user").process(function, returns=Click)) == shown


@pytest.mark.parametrize("options", [{"state_backend": "rocksdb"}, {"checkpoint_interval": "1 s"}])
def test_windows_by_untyped_keys_are_refused_in_the_plan_where_they_must_be_stored(
    options: dict[str, Any],
) -> None:
    keyed = clicks(**options).key_by(lambda click: click.user)
    keyed.window(TumblingProcessingTimeWindows("1 s")).reduce(both, name="both").print()
    with pytest.raises(ProgramError, match="operator 'both': state of the window is kept by <lambda>"):
        graph_of(keyed._env)


def test_rolling_operations_keep_untyped_keys_in_memory_with_every_backend() -> None:
    keyed = clicks(state_backend="rocksdb").key_by(lambda click: click.user)
    keyed.reduce(both).print()
    keyed.count().print()
    assert graph_of(keyed._env)


def test_remedy_for_untyped_records_names_the_operator_that_lost_the_type() -> None:
    """Filters, timestamps and deduplication pass on what they get; windows are typed but for their key."""
    env = Environment()
    numbers = env.from_sequence(1, 3).map(lambda n: n, name="untyped").filter(bool)
    numbers.rebalance().map(lambda n: n, returns=int).print()
    keyed = env.from_sequence(1, 3).key_by(lambda n: n)
    keyed.window(TumblingProcessingTimeWindows("1 s")).sum("value").rebalance().map(str).print()
    warnings = json.loads(explain(graph_of(env), "json"))["warnings"]
    assert len([w for w in warnings if w.endswith("give `<lambda>` a return type hint")]) == 3, warnings
