"""State as it is declared: what is refused while the program is written, and how a plan shows it."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytest

import tidegate
import tidegate.state
from tidegate import BlackholeSink, Environment, ProgramError
from tidegate.api.functions import (
    BroadcastContext,
    BroadcastProcessFunction,
    CoMapFunction,
    FilterFunction,
    KeyedBroadcastProcessFunction,
    MapFunction,
    ProcessContext,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from tidegate.api.state import declared_states
from tidegate.operators.failures import OperatorError
from tidegate.state import (
    AggregateFunction,
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    PickleSerializer,
    ReducingState,
    StateAccessError,
    StateTtl,
    UnionListState,
    ValueState,
)
from tidegate.testing.harness import OperatorHarness

Pair = tuple[str, int]


class Count(MapFunction):
    n = ValueState(int, default=0)

    def map(self, value: Pair) -> int:
        self.n.update(self.n.value() + 1)
        return self.n.value()


class Rules(KeyedBroadcastProcessFunction):
    rules = BroadcastState(str, int)

    def process(self, value: Pair, context: ProcessContext) -> list[int]:
        return []

    def process_broadcast(self, value: str, context: BroadcastContext) -> None:
        self.rules.put(value, 1)


class PlainRules(BroadcastProcessFunction):
    rules = BroadcastState(str, int)

    def process(self, value: Pair, context: ProcessContext) -> list[int]:
        return []

    def process_broadcast(self, value: str, context: BroadcastContext) -> None:
        self.rules.put(value, 1)


def stream(type: Any = Pair, **options: Any) -> Any:
    return Environment(**options).from_collection([], type=type)


def with_state(state: Any, base: type = MapFunction) -> Any:
    """A map function that declares one state, named `held`."""
    return type("Holder", (base,), {"held": state, "map": lambda self, value: value})()


def refusal(run: Callable[[], Any]) -> str:
    with pytest.raises(ProgramError) as caught:
        run()
    return str(caught.value)


class TestNames:
    def test_users_find_state_in_both_places(self) -> None:
        for name in tidegate.state.__all__:
            assert getattr(tidegate, name) is getattr(tidegate.state, name)
            assert name in tidegate.__all__

    def test_a_declaration_has_the_name_of_its_attribute_unless_it_has_another(self) -> None:
        class Named(MapFunction):
            seen = ValueState(bool)
            other = ListState(int, name="history")

            def map(self, value: int) -> int:
                return value

        assert (Named().seen.name, Named().other.name) == ("seen", "history")

    def test_a_subclass_inherits_replaces_and_takes_back_states(self) -> None:
        class First(MapFunction):
            one = ValueState(int)
            two = ValueState(int)
            three = ValueState(int)

            def map(self, value: int) -> int:
                return value

        class Second(First):
            two = ListState(str)  # type: ignore[assignment]
            three = None  # type: ignore[assignment]

        assert {name: type(s) for name, s in declared_states(Second()).items()} == {
            "one": ValueState,
            "two": ListState,
        }
        assert (Second().two.name, Second().three) == ("two", None)
        assert list(declared_states(First())) == ["one", "two", "three"]

    def test_a_dataclass_can_declare_states_with_and_without_an_annotation(self) -> None:
        @dataclass(frozen=True)
        class Limited(MapFunction):
            limit: int
            n: ValueState[int] = ValueState(int)  # noqa: RUF009 - a declaration is shared
            m = ValueState(int)

            def map(self, value: int) -> int:
                return value

        function = Limited(3)
        assert (function.limit, function.n.name, function.m.name) == (3, "n", "m")
        assert sorted(declared_states(function)) == ["m", "n"]

    @pytest.mark.parametrize("travel", [copy.copy, lambda f: pickle.loads(cloudpickle.dumps(f))])
    def test_a_function_that_travels_leaves_its_states_and_has_those_of_its_class(self, travel: Any) -> None:
        class Travelling(MapFunction):
            n = ValueState(int)

            def __init__(self) -> None:
                self.limit = 7

            def map(self, value: int) -> int:
                return value

        function = Travelling()
        function.n = live = ValueState(int, name="live")
        arrived = travel(function)
        assert arrived.limit == 7
        assert (arrived.n.name, arrived.n is live) == ("n", False)
        assert list(declared_states(arrived)) == ["n"]

    def test_a_function_of_the_script_can_be_in_one_job_after_the_other(self) -> None:
        """Such a class travels by value, and in one process arrives in itself, with copies of its declarations."""

        class Counting(Count):
            m = ValueState(int)

        function = Counting()
        for _ in range(2):
            env = Environment(runtime="in-process")
            pairs = env.from_collection([("a", 1), ("a", 2)], type=Pair, parallelism=1)
            assert sorted(pairs.key_by("f0").map(function).execute_and_collect()) == [1, 2]

    def test_a_class_that_is_made_again_for_its_slots_keeps_its_states(self) -> None:
        @dataclass(slots=True)
        class Limited(MapFunction):
            limit: int
            n = ValueState(int)

            def map(self, value: int) -> int:
                return value

        function = Limited(3)
        assert (list(declared_states(function)), function.n.name) == (["n"], "n")
        arrived = pickle.loads(cloudpickle.dumps(function))
        assert (arrived.limit, list(declared_states(arrived)), arrived.n.name) == (3, ["n"], "n")

    def test_a_state_can_stand_for_an_abstract_property(self) -> None:
        class Counting(MapFunction):
            @property
            @abstractmethod
            def n(self) -> ValueState[int]:
                """How many there were."""

            def map(self, value: int) -> int:
                return self.n.value()

        class Counted(Counting):
            n = ValueState(int)  # type: ignore[assignment]

        assert (list(declared_states(Counted())), Counted().n.name) == (["n"], "n")

    def test_a_function_that_takes_no_arguments_says_so(self) -> None:
        with pytest.raises(TypeError, match=r"Count\(\) takes no arguments"):
            Count(1)  # type: ignore[call-arg]

    def test_two_states_of_one_name_are_refused(self) -> None:
        class Twice(MapFunction):
            one = ValueState(int, name="n")
            two = ListState(int, name="n")

            def map(self, value: Pair) -> int:
                return 0

        message = refusal(lambda: stream().key_by("f0").map(Twice()))
        assert "Twice declares two states named 'n': one and two" in message

    def test_a_declaration_cannot_be_used_outside_a_slot(self) -> None:
        with pytest.raises(StateAccessError, match="ValueState 'n' of Count is only a declaration here"):
            Count().n.value()

    def test_one_that_was_made_in_open_says_where_it_belongs(self) -> None:
        class Late(MapFunction):
            def open(self, context: RuntimeContext) -> None:
                self.n = ValueState(int, default=0)

            def map(self, value: Pair) -> int:
                return self.n.value()

        made = stream().key_by("f0").map(Late())
        with OperatorHarness.of(made) as h, pytest.raises(OperatorError) as failed:
            h.push([("a", 1)])
        assert isinstance(failed.value.__cause__, StateAccessError)
        assert str(failed.value.__cause__) == (
            "a ValueState that no class declares is no state: it was made in a method, as in `self.state = "
            "ValueState(...)`. Declare it on the class: `state = ValueState(...)` in the class body"
        )

    def test_a_plain_value_in_the_place_of_a_state_is_refused(self) -> None:
        class Begun(MapFunction):
            n = ValueState(int)

            def __init__(self) -> None:
                self.n = 0  # type: ignore[assignment]

            def map(self, value: Pair) -> int:
                return 0

        message = refusal(lambda: stream().key_by("f0").map(Begun(), name="begun"))
        assert (
            "operator 'begun': Begun sets self.n to an int, but declares a ValueState of that name" in message
        )


class TestKeys:
    MESSAGE = (
        "operator 'counting': state 'n' of Count is kept by key, but the stream has no keys. Call key_by"
    )

    @pytest.mark.parametrize(
        "prepare",
        [lambda s: s, lambda s: s.rebalance(), lambda s: s.partition_custom(lambda k, n: 0, "f0")],
        ids=["plain", "rebalanced", "partitioned"],
    )
    def test_keyed_state_on_a_stream_without_keys_is_refused(self, prepare: Any) -> None:
        assert self.MESSAGE in refusal(lambda: prepare(stream()).map(Count(), name="counting"))

    def test_so_it_is_on_connected_streams(self) -> None:
        class Co(CoMapFunction):
            n = ValueState(int)

            def map1(self, value: Pair) -> int:
                return 0

            def map2(self, value: Pair) -> int:
                return 0

        numbers = stream()
        assert "state 'n' of Co is kept by key" in refusal(lambda: numbers.connect(numbers).map(Co()))

    def test_keys_of_a_class_without_a_stable_hash_are_refused(self) -> None:
        @dataclass
        class Who:
            name: str

        def who(value: Pair) -> Who:
            return Who(value[0])

        message = refusal(lambda: stream().key_by(who).map(Count()))
        assert "the key function who returns Who(name: string), which cannot be a key" in message

    def planned(self, env: Environment, key: Any, operate: Any) -> str:
        operate(env.from_collection([], type=Pair).key_by(key)).sink_to(BlackholeSink())
        return env.explain()

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"checkpoint_interval": "1 s"}, "checkpoints are on"),
            ({"state_backend": "rocksdb"}, "rocksdb"),
        ],
    )
    def test_untyped_keys_are_refused_where_state_must_be_stored(
        self, options: dict[str, Any], why: str
    ) -> None:
        env = Environment(**options)
        message = refusal(lambda: self.planned(env, lambda r: r[0], lambda s: s.map(Count())))
        assert "operator 'map Count': state 'n' is kept by <lambda>(), whose keys have no type" in message
        assert why in message
        assert "return type hint" in message

    @pytest.mark.parametrize("operate", [lambda s: s.count(), lambda s: s.reduce(lambda a, b: a)])
    def test_so_are_those_of_built_in_state_with_checkpoints(self, operate: Any) -> None:
        env = Environment(checkpoint_interval="1 s")
        assert "whose keys have no type" in refusal(lambda: self.planned(env, lambda r: r[0], operate))

    def test_in_memory_without_checkpoints_they_work(self) -> None:
        env = Environment(runtime="in-process", parallelism=2)
        rows = env.from_collection([("a", 1), ("b", 1), ("a", 1)]).key_by(lambda r: r[0]).map(Count())
        assert sorted(rows.execute_and_collect()) == [1, 1, 2]

    def test_with_a_type_they_are_taken(self) -> None:
        def app(value: Pair) -> str:
            return value[0]

        env = Environment(checkpoint_interval="1 s", state_backend="rocksdb")
        assert "keyed state n: value of int" in self.planned(env, app, lambda s: s.map(Count()))


class TestTypes:
    class Thing:
        pass

    @pytest.mark.parametrize(
        "state",
        [
            lambda: ValueState(TestTypes.Thing),
            lambda: ListState(TestTypes.Thing),
            lambda: MapState(str, TestTypes.Thing),
            lambda: ReducingState(TestTypes.Thing, max),
            lambda: OperatorListState(TestTypes.Thing),
            lambda: UnionListState(TestTypes.Thing),
            lambda: ValueState(None),
        ],
    )
    def test_a_type_without_an_arrow_form_needs_a_serializer(self, state: Any) -> None:
        made = state()
        message = refusal(lambda: stream().key_by("f0").map(with_state(made), name="keep"))
        assert message.startswith("operator 'keep': state 'held' of Holder")
        assert "has no Arrow type" in message
        assert "PickleSerializer()" in message
        made.serializer = PickleSerializer()
        stream().key_by("f0").map(with_state(made), name="keep")

    @pytest.mark.parametrize("key", [list[int], object, int | None, dict[str, int], tuple[str, list[int]]])
    def test_keys_inside_a_map_are_typed_and_cannot_change(self, key: Any) -> None:
        message = refusal(lambda: stream().key_by("f0").map(with_state(MapState(key, int))))
        assert "state 'held' of Holder has keys of type" in message

    def test_a_default_of_another_type_is_refused(self) -> None:
        message = refusal(lambda: stream().key_by("f0").map(with_state(ValueState(int, default="none"))))
        assert "state 'held' of Holder has a default of another type" in message

    def test_a_serializer_needs_a_name(self) -> None:
        nameless = PickleSerializer()
        nameless.name = ""
        state = ValueState(object, serializer=nameless)
        message = refusal(lambda: stream().key_by("f0").map(with_state(state)))
        assert "its serializer needs a name" in message

    def test_reducing_and_aggregating_need_their_functions(self) -> None:
        reducing: Any = ReducingState(int, 7)  # type: ignore[arg-type]
        assert "needs a function of two values, got an int" in refusal(
            lambda: stream().key_by("f0").map(with_state(reducing))
        )
        aggregating: Any = AggregatingState(int, AggregateFunction)  # type: ignore[arg-type]
        assert "needs an AggregateFunction (an instance)" in refusal(
            lambda: stream().key_by("f0").map(with_state(aggregating))
        )

    @pytest.mark.parametrize("duration", [0, -1, "soon", "0 s"])
    def test_a_time_to_live_is_a_time(self, duration: Any) -> None:
        assert f"StateTtl({duration!r})" in refusal(lambda: StateTtl(duration))


class TestWhoCanDeclare:
    def test_a_callable_object_cannot(self) -> None:
        class Counter:
            n = ValueState(int)

            def __call__(self, value: Pair) -> int:
                return self.n.value()

        keyed = stream().key_by("f0")
        for made in (Counter(), functools.partial(Counter()), Counter().__call__):
            message = refusal(lambda made=made: keyed.map(made))  # type: ignore[misc]
            assert "state 'n' of Counter, but it is a plain callable" in message
        assert "plain callable" in refusal(lambda: stream().sink_to(Counter()))
        assert "plain callable" in refusal(lambda: stream().map_batches(Counter()))

    def test_a_method_of_a_function_object_is_not_that_object(self) -> None:
        message = refusal(lambda: stream().key_by("f0").map(Count().map))
        assert "state 'n' of Count, but it is a plain callable" in message

    def test_state_in_an_instance_is_refused_with_where_it_belongs(self) -> None:
        class Late(MapFunction):
            def __init__(self) -> None:
                self.n = ValueState(int)

            def map(self, value: Pair) -> int:
                return self.n.value()

        message = refusal(lambda: stream().key_by("f0").map(Late()))
        assert "Late has a ValueState in its instance, as self.n. Declare it on the class" in message

    def test_a_dataclass_may_have_it_as_a_field(self) -> None:
        @dataclass
        class Every(FilterFunction):
            step: int = 2
            n: ValueState[int] = ValueState(int, default=0)  # noqa: RUF009 - a declaration is shared

            def filter(self, value: Pair) -> bool:
                self.n.update(self.n.value() + 1)
                return self.n.value() % self.step == 0

        env = Environment(runtime="in-process")
        rows = env.from_collection([("a", 1), ("a", 2), ("b", 3)]).key_by("f0").filter(Every())
        assert list(rows.execute_and_collect()) == [("a", 2)]

    def test_every_operation_looks(self) -> None:
        class Bad(ReduceFunction, ProcessFunction, FilterFunction):
            held = ValueState(object)

            def reduce(self, left: Any, right: Any) -> Any: ...

            def process(self, value: Any, context: ProcessContext) -> Iterator[Any]: ...  # type: ignore[empty-body]

            def filter(self, value: Any) -> bool: ...  # type: ignore[empty-body]

        keyed = stream().key_by("f0")
        for operate in (keyed.reduce, keyed.process, keyed.filter):
            assert "has no Arrow type" in refusal(lambda operate=operate: operate(Bad()))  # type: ignore[misc]


class TestBroadcast:
    def test_the_second_stream_must_be_broadcast(self) -> None:
        message = refusal(
            lambda: (s := stream()).key_by("f0").connect(s._env.from_collection(["x"])).process(Rules())
        )
        assert "Rules is a KeyedBroadcastProcessFunction" in message
        assert "is not broadcast. Write connect(other.broadcast())" in message

    def test_a_keyed_one_needs_keys(self) -> None:
        first = stream()
        rules = first._env.from_collection(["x"]).broadcast()
        assert "has no keys. Call key_by before connect" in refusal(
            lambda: first.connect(rules).process(Rules())
        )
        first.connect(rules).process(PlainRules())
        first.key_by("f0").connect(rules).process(PlainRules())

    def test_broadcast_state_needs_a_broadcast_function(self) -> None:
        message = refusal(lambda: stream().key_by("f0").map(with_state(BroadcastState(str, int))))
        assert "is broadcast state" in message
        assert "stream.connect(other.broadcast()).process(function)" in message

    def test_both_methods_give_one_type(self) -> None:
        class Two(PlainRules):
            def process_broadcast(self, value: str, context: BroadcastContext) -> list[str]:  # type: ignore[override]
                return [value]

        first = stream()
        rules = first._env.from_collection(["x"]).broadcast()
        message = refusal(lambda: first.connect(rules).process(Two()))
        assert "Two.process gives int but process_broadcast gives str" in message


class TestPlan:
    @pytest.fixture
    def env(self) -> Environment:
        class Everything(ProcessFunction):
            n = ValueState(int, ttl="1 h")
            seen = MapState(str, float)
            model = ValueState(object, serializer=PickleSerializer())
            offsets = UnionListState(tuple[str, int])

            def process(self, value: Pair, context: ProcessContext) -> list[int]:
                return []

        env = Environment(state_backend="rocksdb")
        env.from_collection([], type=Pair).key_by("f0").process(Everything()).sink_to(BlackholeSink())
        return env

    def test_shows_each_state_and_the_backend(self, env: Environment) -> None:
        lines = [line.strip() for line in env.explain().splitlines()]
        assert [line for line in lines if " state " in line] == [
            "keyed state n: value of int (time to live 1 h, processing time)",
            "keyed state seen: map of str to float",
            "keyed state model: value of object (serializer pickle)",
            "operator state offsets: union list of tuple(string, int64)",
        ]
        assert "keyed state: rocksdb backend" in lines

    def test_has_them_as_data(self, env: Environment) -> None:
        plan = json.loads(env.explain("json"))
        assert plan["state_backend"] == "rocksdb"
        (operator,) = (o for t in plan["tasks"] for o in t["operators"] if o["kind"] == "process")
        assert operator["states"][0] == {
            "name": "n", "scope": "keyed", "kind": "value", "type": "int", "ttl": "1 h, processing time",
            "serializer": "arrow",
        }  # fmt: skip
        assert [(s["name"], s["kind"]) for s in operator["states"]] == [
            ("n", "value"), ("seen", "map"), ("model", "value"), ("offsets", "union list"),
        ]  # fmt: skip

    def test_a_job_without_keyed_state_has_no_backend(self) -> None:
        env = Environment()
        env.from_sequence(1, 3).sink_to(BlackholeSink())
        assert json.loads(env.explain("json"))["state_backend"] == ""
        assert "backend" not in env.explain()

    def test_a_broadcast_function_has_its_own_kind(self) -> None:
        env = Environment()
        rules = env.from_collection(["x"]).broadcast()
        env.from_collection([], type=Pair).key_by("f0").connect(rules).process(Rules()).sink_to(
            BlackholeSink()
        )
        assert "broadcast-process Rules [broadcast-process: Rules; per record]" in env.explain()
        assert "operator state rules: broadcast map of str to int" in env.explain()
