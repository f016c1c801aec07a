"""Process functions with timers, on both backends: fired in order, before the watermark, and again after a restore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.state_backend_kit import MemoryStorage
from tests.unit.operators_kit import next_attempt as restored_at_its_clock
from tidegate import (
    BroadcastContext,
    BroadcastState,
    CoProcessFunction,
    Environment,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ProgramError,
    ValueState,
)
from tidegate.core.clock import ManualClock
from tidegate.operators.failures import OperatorError
from tidegate.operators.functions.record_functions import ProcessOperator
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP
from tidegate.state.operator_states import Restored
from tidegate.testing.harness import OperatorHarness

Pair = tuple[str, int]
Fired = tuple[str, str, int]
SEEN = OutputTag("seen", Fired)


@pytest.fixture(params=["heap", "rocksdb"])
def env(request: pytest.FixtureRequest) -> Environment:
    return Environment(state_backend=request.param)


def pairs(env: Environment) -> Any:
    return env.from_collection([], type=Pair)


def harness(made: Any, **settings: Any) -> OperatorHarness:
    return OperatorHarness.of(made, options=made._env.options, **settings)


def next_attempt(
    made: Any,
    before: OperatorHarness,
    storage: MemoryStorage | None = None,
    checkpoint_id: int = 1,
    **settings: Any,
) -> OperatorHarness:
    storage = storage or MemoryStorage()
    before.operator.snapshot(checkpoint_id)
    writer = storage.writer(checkpoint_id, 0, "operator", 0)
    snapshot = before.states.snapshot(checkpoint_id)(writer)
    handles = () if snapshot.keyed is None else (snapshot.keyed,)
    return harness(made, restored=Restored(handles, snapshot.states, storage), **settings)


def stamped(h: OperatorHarness) -> list[tuple[Any, Any]]:
    """All records of the main output with their timestamps."""
    out: list[tuple[Any, Any]] = []
    for batch in h.batches:
        times = [None] * batch.num_rows if batch.timestamps is None else batch.timestamps.to_pylist()
        out += zip(batch.rows, times, strict=True)
    return out


class Alarm(KeyedProcessFunction):
    """A timer so many milliseconds behind each record; 0 takes it back."""

    last = ValueState(int)

    def process(self, value: Pair, context: ProcessContext) -> None:
        timers = context.timer_service
        if self.last.value() is not None:
            timers.delete_event_time_timer(self.last.value())
        assert context.timestamp is not None
        if value[1]:
            self.last.update(context.timestamp + value[1])
            timers.register_event_time_timer(context.timestamp + value[1])

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Fired]:
        assert context.timestamp == timestamp
        assert self.last.value() == timestamp
        self.last.clear()
        yield context.current_key, context.time_domain, timestamp


class TestEventTime:
    def test_timers_fire_in_order_and_their_records_have_their_times(self, env: Environment) -> None:
        with harness(pairs(env).key_by("f0").process(Alarm())) as h:
            h.push([("a", 50), ("b", 10), ("c", 30)], timestamps=[100, 100, 100])
            assert h.gauges["timers"] == 3
            h.advance_watermark(129)
            assert stamped(h) == [(("b", "event", 110), 110)]
            h.advance_watermark(1000)
            assert stamped(h)[1:] == [(("c", "event", 130), 130), (("a", "event", 150), 150)]
            assert h.gauges["timers"] == 0

    def test_a_timer_fires_when_the_watermark_is_equal_to_its_time(self, env: Environment) -> None:
        with harness(pairs(env).key_by("f0").process(Alarm())) as h:
            h.push([("a", 50)], timestamps=[100])
            h.advance_watermark(149)
            assert h.rows == []
            h.advance_watermark(150)
            assert h.rows == [("a", "event", 150)]

    def test_a_deleted_timer_does_not_fire_and_a_moved_one_fires_once(self, env: Environment) -> None:
        with harness(pairs(env).key_by("f0").process(Alarm())) as h:
            h.push([("a", 50), ("b", 50)], timestamps=[100, 100])
            h.push([("a", 0), ("b", 70)], timestamps=[120, 120])
            assert h.gauges["timers"] == 1
            h.finish()
            assert h.rows == [("b", "event", 190)]

    def test_what_timers_emit_comes_before_the_watermark(self, env: Environment) -> None:
        order: list[Any] = []
        h = harness(pairs(env).key_by("f0").process(Alarm()))
        h.operator.context.__dict__["emit"] = lambda batch: order.extend(batch.rows)
        h.operator.context.__dict__["emit_watermark"] = order.append
        with h:
            h.push([("a", 50)], timestamps=[100])
            h.advance_watermark(120)
            h.advance_watermark(160)
        assert order == [120, ("a", "event", 150), 160]

    def test_the_clock_has_moved_when_a_timer_fires(self, env: Environment) -> None:
        class Clocks(KeyedProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> Iterator[int]:
                context.timer_service.register_event_time_timer(value[1])
                yield context.timer_service.current_watermark

            def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[int]:
                yield context.timer_service.current_watermark

        with harness(pairs(env).key_by("f0").process(Clocks())) as h:
            h.push([("a", 5)], timestamps=[0])
            h.advance_watermark(77)
            h.push([("a", 80)], timestamps=[0])
            h.finish()
            assert h.rows == [MIN_TIMESTAMP, 77, 77, MAX_WATERMARK]

    def test_a_timer_registered_twice_fires_once(self, env: Environment) -> None:
        class Twice(KeyedProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> None:
                context.timer_service.register_event_time_timer(10)

            def on_timer(self, timestamp: int, context: OnTimerContext) -> list[Pair]:
                return [(context.current_key, timestamp)]

        with harness(pairs(env).key_by("f0").process(Twice())) as h:
            h.push([("a", 1), ("a", 2), ("b", 3)], timestamps=[0, 0, 0])
            h.advance_watermark(10)
            h.advance_watermark(20)
            assert h.rows == [("a", 10), ("b", 10)]

    def test_timers_registered_by_timers_fire_in_the_same_pass_if_they_are_due(
        self, env: Environment
    ) -> None:
        class Ticks(KeyedProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> None:
                context.timer_service.register_event_time_timer(value[1])

            def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Pair]:
                yield context.current_key, timestamp
                if timestamp < 60:
                    context.timer_service.register_event_time_timer(timestamp + 20)

        with harness(pairs(env).key_by("f0").process(Ticks())) as h:
            h.push([("a", 10), ("b", 15)], timestamps=[0, 0])
            h.advance_watermark(50)
            assert h.rows == [("a", 10), ("b", 15), ("a", 30), ("b", 35), ("a", 50)]
            h.finish()
            assert h.rows[5:] == [("b", 55), ("a", 70), ("b", 75)]

    def test_a_timer_that_never_ends_is_named_instead_of_hanging_the_job(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Forever(KeyedProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> None:
                context.timer_service.register_event_time_timer(value[1])

            def on_timer(self, timestamp: int, context: OnTimerContext) -> None:
                context.timer_service.register_event_time_timer(timestamp + 1)

        monkeypatch.setattr("tidegate.operators.functions.timed_functions._RUNAWAY", 1000)
        with harness(pairs(Environment()).key_by("f0").process(Forever(), name="forever")) as h:
            h.push([("a", 10)], timestamps=[0])
            with pytest.raises(OperatorError) as caught:
                h.finish()
        assert "on_timer registers more" in str(caught.value.__cause__)

    def test_many_records_of_timers_leave_in_parts(self, env: Environment) -> None:
        class Many(KeyedProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> None:
                context.timer_service.register_event_time_timer(value[1])

            def on_timer(self, timestamp: int, context: OnTimerContext) -> list[int]:
                return [timestamp] * 1000

        with harness(pairs(env).key_by("f0").process(Many())) as h:
            h.push([("a", i) for i in range(10)], timestamps=[0] * 10)
            h.advance_watermark(100)
            assert stamped(h) == [(i, i) for i in range(10) for _ in range(1000)]
            assert len(h.batches) == 2


def test_a_timer_that_was_due_when_it_was_registered_fires_at_a_restore_or_with_the_next_watermark() -> None:
    """In Flink only with the next watermark, as there is no clock after a restore."""
    made = pairs(Environment()).key_by("f0").process(Past(), returns=int)
    with harness(made) as h:
        h.advance_watermark(100)
        h.push([("a", 1)], timestamps=[150])
        assert h.rows == []
        following = restored_at_its_clock(made, h, MemoryStorage(), 1)
        assert following.rows == [50]
        following.advance_watermark(101)
        assert following.rows == [50], "once"
        following.operator.close()
        following.states.close()


class Past(KeyedProcessFunction):
    """Registers a timer for a time that has passed."""

    def process(self, value: Any, context: ProcessContext) -> None:
        context.timer_service.register_event_time_timer(50)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[int]:
        yield timestamp


class TestProcessingTime:
    class Later(KeyedProcessFunction):
        def process(self, value: Pair, context: ProcessContext) -> None:
            timers = context.timer_service
            timers.register_processing_time_timer(timers.current_processing_time + value[1])

        def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Fired]:
            late = context.timer_service.current_processing_time - timestamp
            yield context.current_key, context.time_domain, late

    def test_they_fire_by_the_wall_clock_and_their_records_have_no_time(self, env: Environment) -> None:
        with harness(pairs(env).key_by("f0").process(self.Later())) as h:
            h.push([("a", 50), ("b", 10)], timestamps=[100, 100])
            h.advance_watermark(10_000_000_000_000)
            h.advance_clock(9)
            assert h.rows == []
            h.advance_clock(1)
            h.advance_clock(45)
            assert stamped(h) == [(("b", "processing", 0), None), (("a", "processing", 5), None)]
            assert h.gauges["timers"] == 0

    def test_one_that_was_due_while_the_job_was_down_fires_afterwards(self, env: Environment) -> None:
        made = pairs(env).key_by("f0").process(self.Later())
        clock = ManualClock()
        with harness(made, clock=clock) as first:
            first.push([("a", 50), ("b", 5000)])
            clock.advance_ns(1_000 * 1_000_000)
            with next_attempt(made, first, clock=clock) as second:
                assert second.gauges["timers"] == 2
                second.advance_clock(0)
                assert second.rows == [("a", "processing", 950)]
                second.advance_clock(4000)
                assert second.rows[1:] == [("b", "processing", 0)]


class TestContext:
    def test_a_plain_process_function_knows_the_time_of_each_record(self, env: Environment) -> None:
        class Times(ProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> Iterator[Any]:
                yield value[0], context.timestamp, context.timer_service.current_watermark

        for stream in (pairs(env), pairs(env).key_by("f0")):
            with harness(stream.process(Times())) as h:
                h.push([("a", 1), ("b", 2)], timestamps=[7, 8])
                h.advance_watermark(5)
                h.push([("c", 3)])
                assert h.rows == [("a", 7, MIN_TIMESTAMP), ("b", 8, MIN_TIMESTAMP), ("c", None, 5)]
                assert stamped(h)[0][1] == 7

    def test_side_outputs_of_timers_have_their_times(self, env: Environment) -> None:
        class Tells(KeyedProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> None:
                context.timer_service.register_event_time_timer(value[1])

            def on_timer(self, timestamp: int, context: OnTimerContext) -> None:
                context.output(SEEN, (context.current_key, context.time_domain, timestamp))

        with harness(pairs(env).key_by("f0").process(Tells(), side_outputs=(SEEN,))) as h:
            h.push([("a", 3), ("b", 2)], timestamps=[0, 0])
            h.advance_watermark(3)
            assert h.side_rows("seen") == [("b", "event", 2), ("a", "event", 3)]
            assert h._side["seen"][0].timestamps.to_pylist() == [2, 3]

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            ("unkeyed", "the stream has no keys, and a timer belongs to a key. Call key_by"),
            ("plain", "Timed has no timers. Derive it from KeyedProcessFunction"),
            ("deaf", "Timed has no on_timer method that it would call. Define on_timer"),
        ],
    )
    def test_timers_are_refused_by_name_where_there_are_none(
        self, env: Environment, kind: str, message: str
    ) -> None:
        parent: Any = KeyedProcessFunction if kind == "deaf" else ProcessFunction

        class Timed(parent):  # type: ignore[misc]
            def process(self, value: Pair, context: ProcessContext) -> None:
                context.timer_service.register_event_time_timer(1)

        stream = pairs(env) if kind == "unkeyed" else pairs(env).key_by("f0")
        with harness(stream.process(Timed(), name="timed")) as h:
            with pytest.raises(OperatorError) as caught:
                h.push([("a", 1)], timestamps=[0])
            assert f"operator 'timed': register_event_time_timer(1): {message}" in str(caught.value.__cause__)
            assert type(h.operator) is ProcessOperator

    def test_a_time_that_is_no_int_is_refused(self, env: Environment) -> None:
        class Half(Alarm):
            def process(self, value: Pair, context: ProcessContext) -> None:
                context.timer_service.register_event_time_timer(1.5)  # type: ignore[arg-type]

        with harness(pairs(env).key_by("f0").process(Half())) as h, pytest.raises(OperatorError) as caught:
            h.push([("a", 1)], timestamps=[0])
        assert "a time is a whole number of milliseconds (int, 64 bits), not a float" in str(
            caught.value.__cause__
        )

    def test_a_function_that_needs_keys_is_refused_without(self, env: Environment) -> None:
        with pytest.raises(
            ProgramError, match=r"Alarm is a KeyedProcessFunction, but the stream of .* no keys"
        ):
            pairs(env).process(Alarm())

    def test_a_timer_that_raises_is_named_with_its_key_and_time(self, env: Environment) -> None:
        class Fails(Alarm):
            def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Fired]:
                raise ValueError("no")

        with harness(pairs(env).key_by("f0").process(Fails(), name="fails")) as h:
            h.push([("a", 1)], timestamps=[0])
            with pytest.raises(OperatorError) as caught:
                h.advance_watermark(10)
        assert (caught.value.operator, caught.value.position) == (
            "fails",
            "the event-time timer for 1 of key 'a'",
        )

    def test_the_record_type_may_come_from_on_timer(self, env: Environment) -> None:
        class One(KeyedProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> None:
                pass

            def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Fired]:
                yield "", "", 1

        class Two(One):
            def process(self, value: Pair, context: ProcessContext) -> list[int]:  # type: ignore[override]
                return []

        assert pairs(env).key_by("f0").process(One()).record_type == SEEN.record_type
        with pytest.raises(ProgramError, match=r"Two.process gives int.* but on_timer gives"):
            pairs(env).key_by("f0").process(Two())


class Match(KeyedCoProcessFunction):
    """Pairs a value of each side; what is alone for 100 ms is told."""

    left = ValueState(int)
    right = ValueState(int)

    def process1(self, value: Pair, context: ProcessContext) -> Iterator[Fired]:
        return self._meet(self.left, self.right, value, context)

    def process2(self, value: Pair, context: ProcessContext) -> Iterator[Fired]:
        return self._meet(self.right, self.left, value, context)

    def _meet(self, own: Any, other: Any, value: Pair, context: ProcessContext) -> Iterator[Fired]:
        if other.value() is None:
            own.update(value[1])
            context.timer_service.register_event_time_timer((context.timestamp or 0) + 100)
        else:
            yield value[0], "pair", own.value() or value[1] + other.value()
            other.clear()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Fired]:
        for state, side in ((self.left, "left"), (self.right, "right")):
            if state.value() is not None:
                yield context.current_key, side, state.value()
                state.clear()


class TestTwoInputs:
    def test_keyed_connect_shares_state_and_timers(self, env: Environment) -> None:
        made = pairs(env).connect(pairs(env)).key_by("f0", "f0").process(Match())
        with harness(made) as h:
            h.push([("a", 1), ("b", 2)], timestamps=[0, 50])
            h.push([("a", 10), ("c", 30)], timestamps=[10, 20], input_index=1)
            h.advance_watermark(125)
            with next_attempt(made, h) as second:
                second.advance_watermark(1000)
                assert h.rows + second.rows == [("a", "pair", 11), ("c", "right", 30), ("b", "left", 2)]

    def test_an_unkeyed_one_knows_the_time_and_refuses_keyed_functions(self, env: Environment) -> None:
        class Times(CoProcessFunction):
            def process1(self, value: Pair, context: ProcessContext) -> Iterator[int]:
                yield context.timestamp or 0

            def process2(self, value: Pair, context: ProcessContext) -> Iterator[int]:
                yield -(context.timestamp or 0)

        with harness(pairs(env).connect(pairs(env)).process(Times())) as h:
            h.push([("a", 1)], timestamps=[3])
            h.push([("a", 1)], timestamps=[4], input_index=1)
            assert stamped(h) == [(3, 3), (-4, 4)]
        with pytest.raises(ProgramError, match="KeyedCoProcessFunction"):
            pairs(env).connect(pairs(env)).process(Match())

    def test_broadcast_functions_have_timers_on_the_keyed_side(self, env: Environment) -> None:
        class Ruled(KeyedBroadcastProcessFunction):
            delay = BroadcastState(str, int)

            def process(self, value: Pair, context: ProcessContext) -> None:
                delay = self.delay.get("all", 0)
                context.timer_service.register_event_time_timer((context.timestamp or 0) + (delay or 0))

            def process_broadcast(self, value: int, context: BroadcastContext) -> None:
                self.delay.put("all", value)
                if value < 0:
                    context.timer_service.register_event_time_timer(value)  # type: ignore[attr-defined]

            def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Fired]:
                yield context.current_key, "timer", timestamp

        rules = env.from_collection([], type=int)
        made = (
            pairs(env).key_by("f0").connect(rules.broadcast()).process(Ruled(), returns=Fired, name="ruled")
        )
        with harness(made) as h:
            h.push([40], input_index=1)
            h.push([("a", 1)], timestamps=[3])
            h.advance_watermark(43)
            assert h.rows == [("a", "timer", 43)]
            with pytest.raises(OperatorError) as caught:
                h.push([-1], input_index=1)
            assert "a broadcast record has no key" in str(caught.value.__cause__)


Step = tuple[str, Any]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("push"),
            st.lists(
                st.tuples(st.sampled_from("abc"), st.sampled_from("+-"), st.integers(0, 40)), max_size=6
            ),
        ),
        st.tuples(st.just("watermark"), st.integers(0, 15)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=15,
)


class Told(KeyedProcessFunction):
    """Registers and deletes timers as it is told; a timer for a multiple of 7 registers the next but one."""

    def process(self, value: tuple[str, str, int], context: ProcessContext) -> None:
        timers = context.timer_service
        (timers.register_event_time_timer if value[1] == "+" else timers.delete_event_time_timer)(value[2])

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Pair]:
        yield context.current_key, timestamp
        if timestamp % 7 == 0:
            context.timer_service.register_event_time_timer(timestamp + 2)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=60)
@given(steps=STEPS)
def test_any_program_of_timers_fires_what_a_plain_set_would(backend: str, steps: list[Step]) -> None:
    env = Environment(state_backend=backend)
    made = env.from_collection([], type=tuple[str, str, int]).key_by("f0").process(Told())
    waiting: set[tuple[int, str]] = set()
    expected: list[tuple[int, str]] = []
    fired: list[tuple[int, str]] = []
    clock = MIN_TIMESTAMP
    storage = MemoryStorage()
    current = harness(made)
    current.operator.open()
    try:
        for step, (what, argument) in enumerate([*steps, ("watermark", 1000)], 1):
            if what == "push":
                current.push(argument, timestamps=[0] * len(argument))
                for key, sign, time in argument:
                    (waiting.add if sign == "+" else waiting.discard)((time, key))
            elif what == "watermark":
                clock = max(clock, 0) + argument
                current.advance_watermark(clock)
                while due := sorted(t for t in waiting if t[0] <= clock):
                    waiting.discard(due[0])
                    expected.append(due[0])
                    if due[0][0] % 7 == 0:
                        waiting.add((due[0][0] + 2, due[0][1]))
                now = [(time, key) for key, time in current.take_rows()]
                assert [t for t, _ in now] == sorted(t for t, _ in now)
                fired += sorted(now)
            else:
                following = next_attempt(made, current, storage, step)
                current.operator.close()
                current.states.close()
                current = following
                current.operator.open()
            assert current.gauges["timers"] == len(waiting)
        assert fired == expected
    finally:
        current.operator.close()
        current.states.close()
