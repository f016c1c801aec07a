"""The end of a chain whose operators still have something of their input: `finish` goes on where it was."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pyarrow as pa

from tests.unit.async_io_kit import Gate, until
from tests.unit.chain_kit import CLICKS, Chain, to_exchange
from tidegate import AsyncFunction
from tidegate.records.elements import MAX_WATERMARK

GATES: dict[str, Gate] = {}
"""By name: an operator gets a copy of its function, so the gate itself cannot be in it."""


class Ask(AsyncFunction):
    def __init__(self, gate: str) -> None:
        self.gate = gate

    async def invoke(self, value: Any) -> list[int]:
        number = value if isinstance(value, int) else value.n
        return [await sys.modules[__name__].GATES[self.gate](number)]


def test_each_operator_is_finished_once_and_only_when_it_has_given_all_that_it_got():
    first, second = Gate(), Gate()
    GATES.update(first=first, second=second)
    program = Chain(
        lambda s: to_exchange(s.map_async(Ask("first"), returns=int).map_async(Ask("second"), returns=int))
    )
    chain, finished = program.chain, []
    for i, operator in enumerate(chain.operators):
        operator.finish = partial(finished.append, i)  # type: ignore[method-assign]

    def answered(gate: Gate, number: int) -> bool:
        chain.on_processing_time(0)
        return number in gate.asked

    try:
        program.push(pa.RecordBatch.from_pylist([{"app": "a", "n": 7, "x": 0.5}], CLICKS))
        chain.process_watermark(MAX_WATERMARK)
        assert not chain.finish()
        assert finished == [], "the first waits for its answer"
        first.open(7)
        until(lambda: answered(second, 70))
        assert not chain.finish()
        assert not chain.finish()
        assert finished == [0], "the second waits for what the first gave as its last"
        second.open(70)
        until(lambda: answered(second, 70) and chain.is_settled)
        assert chain.finish()
        assert chain.finish()
        assert finished == list(range(len(chain.operators)))
        assert [row for batch in program.out for row in batch.rows] == [700]
    finally:
        chain.close()
