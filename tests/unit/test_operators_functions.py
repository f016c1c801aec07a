"""map, flat_map, filter and process: what comes out, and who is blamed for what goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    Environment,
    MapFunction,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    RuntimeContext,
)
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.operators.failures import OperatorError, user_traceback
from tidegate.program.operations import ApplyFunction
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import record_type_of
from tidegate.testing.harness import OperatorHarness

ORIGIN = Origin("clicks.json", 100, "line")
CLICKS = pa.schema([pa.field("app", pa.string()), pa.field("n", pa.int64())])


@dataclass
class Click:
    app: str
    n: int


def stream(type: Any) -> Any:
    return Environment().from_collection([], type=type)


def harness(made: Any) -> OperatorHarness:
    return OperatorHarness.of(made)


def one_batch(made: Any, rows: list[Any], **settings: Any) -> list[Any]:
    with harness(made) as h:
        h.push(rows, **settings)
        return h.rows


def failure_of(made: Any, rows: list[Any], **settings: Any) -> OperatorError:
    with harness(made) as h, pytest.raises(OperatorError) as caught:
        h.push(rows, **settings)
    return caught.value


def increment(n: int) -> int:
    return n + 1


def fail_at_three(n: int) -> int:
    if n == 3:
        raise ValueError("three is too many")
    return n


# ---- map ----


def test_map_calls_the_function_for_each_record_in_order() -> None:
    assert one_batch(stream(int).map(increment), [1, 2, 3]) == [2, 3, 4]


def test_map_keeps_the_position_in_the_source() -> None:
    with harness(stream(int).map(increment)) as h:
        h.push([1, 2], origin=ORIGIN)
        assert h.batches[0].origin == ORIGIN


def test_map_keeps_the_timestamps() -> None:
    with harness(stream(int).map(increment)) as h:
        h.push_batch(Batch(h.input_types[0], rows=[1, 2], timestamps=pa.array([10, 20])))
        assert h.batches[0].timestamps.to_pylist() == [10, 20]


def test_failing_map_names_operator_position_and_record_and_keeps_the_cause() -> None:
    error = failure_of(stream(int).map(fail_at_three).name("check"), [1, 2, 3, 4], origin=ORIGIN)
    assert (error.operator, error.position, error.record) == ("check", "line 102 of clicks.json", "3")
    assert isinstance(error.__cause__, ValueError)
    assert "fail_at_three" in user_traceback(error.__cause__)
    assert "row_operator" not in user_traceback(error.__cause__)


@pytest.mark.parametrize("bad", [1, 2, 5])
def test_the_failing_record_is_found_wherever_it_is(bad: int) -> None:
    error = failure_of(stream(int).map(lambda n: 1 // (n - bad), returns=int), [1, 2, 3, 4, 5], origin=ORIGIN)
    assert error.position == f"line {99 + bad} of clicks.json"


def test_position_is_empty_where_it_is_not_known() -> None:
    error = failure_of(stream(int).map(fail_at_three), [3])
    assert (error.position, error.record) == ("", "3")


@pytest.mark.parametrize("leave", [lambda _: sys.exit(3), lambda _: (_ for _ in ()).throw(KeyboardInterrupt)])
def test_function_that_leaves_the_interpreter_fails_the_operator_only(leave: Any) -> None:
    error = failure_of(stream(int).map(leave, returns=int), [7])
    assert isinstance(error.__cause__, (SystemExit, KeyboardInterrupt))
    assert error.record == "7"


def test_stop_iteration_of_a_function_does_not_cut_the_batch_short() -> None:
    error = failure_of(stream(int).map(lambda n: next(iter(())), returns=int), [1, 2])
    assert isinstance(error.__cause__, StopIteration)


def test_result_of_the_wrong_type_is_blamed_on_the_operator_with_its_record() -> None:
    error = failure_of(stream(int).map(str, returns=int).name("to_int"), [5, 6], origin=ORIGIN)
    assert (error.operator, error.position, error.record) == ("to_int", "line 100 of clicks.json", "5")
    assert isinstance(error.__cause__, SchemaError)
    assert "returned the wrong type" in str(error.__cause__)
    assert "'5'" in str(error.__cause__)


def test_wrong_field_found_behind_the_operator_is_blamed_on_it() -> None:
    made = (
        stream(int).map(lambda n: Click("a", "no number" if n == 2 else n), returns=Click).name("make_click")
    )
    with harness(made) as h:
        object.__setattr__(h.operator.context, "emit", lambda batch: batch.columns)  # an exchange
        with pytest.raises(OperatorError) as caught:
            h.push([1, 2], origin=ORIGIN)
    error = caught.value
    assert (error.operator, error.position, error.record) == ("make_click", "line 101 of clicks.json", "2")
    assert "returned the wrong type: column 'n' is int64" in str(error.__cause__)


def test_schema_error_of_somebody_else_behind_the_operator_is_not_taken_over() -> None:
    def refuse(batch: Batch) -> None:
        raise SchemaError("not your fault")

    with harness(stream(int).map(increment)) as h:
        object.__setattr__(h.operator.context, "emit", refuse)
        with pytest.raises(SchemaError, match="not your fault"):
            h.push([1])


def test_tuple_or_dict_becomes_a_row_so_that_the_next_function_can_read_it_by_name() -> None:
    for result in ({"n": 3, "app": "a"}, ("a", 3)):
        rows = one_batch(stream(int).map(lambda _, r=result: r, returns=CLICKS), [1])
        assert (rows[0].app, rows[0].n) == ("a", 3)


def test_constructor_of_a_record_class_that_raises_is_blamed_on_the_operator() -> None:
    @dataclass
    class Positive:
        n: int

        def __post_init__(self) -> None:
            if self.n < 0:
                raise ValueError("negative")

    made = stream(Positive).map(lambda p: p.n, returns=int).name("unpack")
    with harness(made) as h, pytest.raises(OperatorError) as caught:
        h.push_columns(pa.record_batch({"n": [1, -1]}), origin=ORIGIN)
    assert caught.value.operator == "unpack"
    assert isinstance(caught.value.__cause__, ValueError)


# ---- functions with a life cycle ----


class Lookup(MapFunction):
    def __init__(self) -> None:
        self.events: list[str] = []
        self.fail_in_close = False

    def open(self, context: RuntimeContext) -> None:
        self.events.append(f"open {context.operator_name}")
        self._seen = context.counter("looked_up")

    def map(self, value: int) -> int:
        self._seen.inc()
        return fail_at_three(value)

    def close(self) -> None:
        self.events.append("close")
        if self.fail_in_close:
            raise OSError("cannot close")


def test_function_is_opened_before_the_first_record_and_closed_after_the_last() -> None:
    with harness(stream(int).map(Lookup(), name="lookup")) as h:
        function = h.operator.operation.function
        assert function.events == ["open lookup"]
        h.push([1, 2])
        h.finish()
    assert function.events == ["open lookup", "close"]
    assert h.counters["looked_up"] == 2


def test_function_is_closed_once_also_after_a_failure() -> None:
    h = harness(stream(int).map(Lookup()))
    with pytest.raises(OperatorError), h:
        h.push([3])
    h.operator.close()
    assert h.operator.operation.function.events.count("close") == 1


def test_close_that_raises_after_a_clean_end_fails_the_operator() -> None:
    function = Lookup()
    function.fail_in_close = True
    h = harness(stream(int).map(function, name="lookup"))
    h.operator.open()
    h.finish()
    with pytest.raises(OperatorError) as caught:
        h.operator.close()
    assert caught.value.operator == "lookup"


def test_close_that_raises_never_hides_an_earlier_failure() -> None:
    function = Lookup()
    function.fail_in_close = True
    with pytest.raises(OperatorError) as caught, harness(stream(int).map(function)) as h:
        h.push([3])
    assert isinstance(caught.value.__cause__, ValueError)


def test_open_that_raises_names_the_operator() -> None:
    class Broken(MapFunction):
        def open(self, context: RuntimeContext) -> None:
            raise ConnectionError("no database")

        def map(self, value: Any) -> Any:
            return value

    with pytest.raises(OperatorError) as caught:
        harness(stream(int).map(Broken(), name="enrich")).operator.open()
    assert caught.value.operator == "enrich"


# ---- flat_map ----


def test_flat_map_takes_lists_generators_and_any_iterable() -> None:
    def repeat(n: int) -> Iterator[int]:
        for _ in range(n):
            yield n

    assert one_batch(stream(int).flat_map(repeat), [2, 0, 1]) == [2, 2, 1]
    assert one_batch(stream(int).flat_map(lambda n: [n] * n, returns=int), [2, 0, 1]) == [2, 2, 1]
    assert one_batch(stream(int).flat_map(range, returns=int), [2, 0, 3]) == [0, 1, 0, 1, 2]


def test_flat_map_that_gives_nothing_emits_no_batch() -> None:
    with harness(stream(int).flat_map(lambda n: [], returns=int)) as h:
        h.push([1, 2])
        assert h.batches == []


def test_flat_map_forgets_positions_and_repeats_timestamps() -> None:
    with harness(stream(int).flat_map(lambda n: [n] * n, returns=int)) as h:
        h.push_batch(
            Batch(h.input_types[0], rows=[2, 0, 1], origin=ORIGIN, timestamps=pa.array([10, 20, 30]))
        )
        assert h.batches[0].origin is None
        assert h.batches[0].timestamps.to_pylist() == [10, 10, 30]


@pytest.mark.parametrize(
    ("result", "words"),
    [("text", "a str"), (b"bytes", "a bytes"), ({"a": 1}, "a dict"), (3, "an? int"), (None, "None")],
)
def test_flat_map_refuses_what_is_surely_not_meant_as_records(result: object, words: str) -> None:
    error = failure_of(stream(int).flat_map(lambda _: result), [1, 2], origin=ORIGIN)
    assert error.position == "line 100 of clicks.json"
    with pytest.raises(SchemaError, match=f"must return an iterable of records, but returned {words}"):
        raise error.__cause__  # type: ignore[misc]


def test_flat_map_refuses_a_single_named_tuple() -> None:
    row = record_type_of(CLICKS).to_rows(pa.record_batch({"app": ["a"], "n": [1]}))[0]
    assert isinstance(failure_of(stream(int).flat_map(lambda _: row), [1]).__cause__, SchemaError)


def test_generator_that_fails_half_way_names_its_record() -> None:
    def broken(n: int) -> Iterator[int]:
        yield n
        yield fail_at_three(n)

    error = failure_of(stream(int).flat_map(broken), [1, 3, 5], origin=ORIGIN)
    assert (error.position, error.record) == ("line 101 of clicks.json", "3")


# ---- filter ----


def test_filter_keeps_what_is_true_in_pythons_sense() -> None:
    assert one_batch(stream(int).filter(lambda n: n % 2), [1, 2, 3]) == [1, 3]
    assert one_batch(stream(int).filter(lambda n: np.bool_(n > 1)), [1, 2, 3]) == [2, 3]


def test_filter_passes_a_batch_that_loses_nothing_on_untouched() -> None:
    with harness(stream(int).filter(lambda _: True)) as h:
        batch = Batch(h.input_types[0], rows=[1, 2], origin=ORIGIN)
        h.push_batch(batch)
        assert h.batches == [batch]


def test_filter_that_drops_everything_emits_nothing() -> None:
    with harness(stream(int).filter(lambda _: False)) as h:
        h.push([1, 2])
        assert h.batches == []


def test_filter_keeps_columns_beside_rows_and_dictionaries_encoded() -> None:
    with harness(stream(CLICKS).filter(lambda r: r.n > 1)) as h:
        app = pa.array(["a", "b", "a"]).dictionary_encode()
        h.push_columns(
            pa.RecordBatch.from_arrays([app, pa.array([1, 2, 3])], names=["app", "n"]), origin=ORIGIN
        )
        (out,) = h.batches
    assert out.has_rows
    assert out.has_columns
    assert pa.types.is_dictionary(out.columns.column(0).type)
    assert [tuple(r) for r in out.rows] == [("b", 2), ("a", 3)]
    assert out.columns.column("n").to_pylist() == [2, 3]
    assert out.origin is None


def test_filter_without_columns_makes_none() -> None:
    with harness(stream(int).filter(lambda n: n > 1)) as h:
        h.push([1, 2])
        assert not h.batches[0].has_columns


def test_filter_keeps_the_timestamps_of_what_remains() -> None:
    with harness(stream(int).filter(lambda n: n > 1)) as h:
        h.push_batch(Batch(h.input_types[0], rows=[1, 2], timestamps=pa.array([10, 20])))
        assert h.batches[0].timestamps.to_pylist() == [20]


def test_filter_whose_answer_has_no_truth_names_the_record() -> None:
    error = failure_of(stream(int).filter(lambda n: np.array([n, n])), [4, 5], origin=ORIGIN)
    assert (error.position, error.record) == ("line 100 of clicks.json", "4")


# ---- process ----

LATE = OutputTag("late", int)


class Split(ProcessFunction):
    def process(self, value: int, context: ProcessContext) -> Iterator[int]:
        if value < 0:
            context.output(LATE, value)
        else:
            yield value


def test_process_emits_to_main_and_side_outputs() -> None:
    with harness(stream(int).process(Split(), side_outputs=(LATE,))) as h:
        h.push([1, -2, 3, -4])
        h.push([5])
        assert h.rows == [1, 3, 5]
        assert h.side_rows("late") == [-2, -4]


def test_process_may_return_none_for_nothing() -> None:
    assert one_batch(stream(int).process(lambda n, context: None), [1]) == []


def test_undeclared_side_output_is_refused_with_the_declared_ones() -> None:
    def wrong(n: int, context: ProcessContext) -> None:
        context.output(OutputTag("lost", int), n)

    cause = failure_of(stream(int).process(wrong, side_outputs=(LATE,)), [1]).__cause__
    assert isinstance(cause, ProgramError)
    assert "'lost' is not declared (declared: 'late')" in str(cause)


def test_side_output_needs_a_tag() -> None:
    cause = failure_of(
        stream(int).process(lambda n, c: c.output("late", n), side_outputs=(LATE,)), [1]
    ).__cause__
    assert "needs an OutputTag, got a str" in str(cause)


def test_side_output_of_the_wrong_type_names_operator_and_tag() -> None:
    error = failure_of(
        stream(int).process(lambda n, c: c.output(LATE, "x"), side_outputs=(LATE,), name="p"), [1]
    )
    assert error.operator == "p"
    assert "side output 'late' the wrong type" in str(error.__cause__)


def key_and_value(value: Any, context: ProcessContext) -> list[Any]:
    return [(context.current_key, value)]


def test_process_knows_the_key_of_one_column_of_several_and_of_a_function() -> None:
    clicks = stream(Click)
    rows = [Click("a", 1), Click("b", 2)]
    by_column = one_batch(clicks.key_by("app").process(key_and_value), rows)
    assert [k for k, _ in by_column] == ["a", "b"]
    by_columns = one_batch(clicks.key_by("n", "app").process(key_and_value), rows)
    assert [k for k, _ in by_columns] == [(1, "a"), (2, "b")]
    by_function = one_batch(clicks.key_by(lambda c: c.n * 10).process(key_and_value), rows)
    assert [k for k, _ in by_function] == [10, 20]


@pytest.mark.parametrize("type", [Click, CLICKS, tuple[str, int], tuple[str | None, int]])
def test_keys_are_the_same_from_rows_and_from_columns(type: Any) -> None:
    keyed = stream(type)
    names = keyed.record_type.names
    made = keyed.key_by(names[0]).process(lambda v, c: [c.current_key])
    columns = pa.record_batch({names[0]: ["a", "b"], names[1]: [1, 2]})
    with harness(made) as h:
        h.push_columns(columns)
        from_columns = h.take_rows()
        h.push(h.input_types[0].to_rows(columns))
        assert h.take_rows() == from_columns == ["a", "b"]


def test_key_function_that_raises_names_operator_and_record() -> None:
    error = failure_of(
        stream(int).key_by(lambda n: 1 // n).process(key_and_value, name="p"), [1, 0], origin=ORIGIN
    )
    assert (error.operator, error.position, error.record) == ("p", "line 101 of clicks.json", "0")


def test_current_key_outside_a_keyed_stream_is_refused() -> None:
    cause = failure_of(stream(int).process(key_and_value), [1]).__cause__
    assert "has no key. Call key_by before process" in str(cause)


# ---- two inputs ----


def test_co_map_calls_the_method_of_the_input() -> None:
    class Both(CoMapFunction):
        def map1(self, value: int) -> str:
            return f"one {value}"

        def map2(self, value: str) -> str:
            return f"two {value}"

    env = Environment()
    numbers, words = env.from_collection([], type=int), env.from_collection([], type=str)
    with harness(numbers.connect(words).map(Both())) as h:
        h.push([1])
        h.push(["a"], input_index=1)
        assert h.rows == ["one 1", "two a"]


def test_co_flat_map_calls_the_method_of_the_input() -> None:
    class Both(CoFlatMapFunction):
        def flat_map1(self, value: int) -> list[int]:
            return [value] * 2

        def flat_map2(self, value: int) -> list[int]:
            return []

    env = Environment()
    first, second = env.from_collection([], type=int), env.from_collection([], type=int)
    with harness(first.connect(second).flat_map(Both())) as h:
        h.push([1])
        h.push([2], input_index=1)
        assert h.rows == [1, 1]


def test_co_process_shares_state_by_the_keys_of_both_inputs() -> None:
    class Join(CoProcessFunction):
        def __init__(self) -> None:
            self.names: dict[int, str] = {}

        def process1(self, value: int, context: ProcessContext) -> list[str]:
            return [self.names.get(context.current_key, "?")]

        def process2(self, value: tuple[int, str], context: ProcessContext) -> None:
            self.names[context.current_key] = value[1]

    env = Environment()
    ids, names = env.from_collection([], type=int), env.from_collection([], type=tuple[int, str])
    joined = ids.connect(names).key_by("value", "f0").process(Join(), returns=str)
    with harness(joined) as h:
        h.push([7])
        h.push([(7, "seven")], input_index=1)
        h.push([7, 8])
        assert h.rows == ["?", "seven", "?"]


def test_harness_takes_an_operation_by_itself() -> None:
    with OperatorHarness(ApplyFunction("map", increment), [int], int, name="plus one") as h:
        h.push([1])
        assert h.take_rows() == [2]
        assert h.rows == []
