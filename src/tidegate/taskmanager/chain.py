"""A chain: the operators of one task, wired so that each calls the next directly with the same batch object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.core.clock import Clock
from tidegate.core.options import Options
from tidegate.graph.job_graph import JobVertex
from tidegate.metrics.registry import TaskMetrics
from tidegate.operators.build import build_operator
from tidegate.operators.operator import Operator, OperatorContext
from tidegate.operators.source import SourceOperator
from tidegate.records.batch import Batch

Receiver = Callable[[Batch], None]

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class ChainHost:
    """What the slot gives to the operators of a chain."""

    job_id: str
    attempt: int
    clock: Clock
    options: Options
    wake: Callable[[], None]
    request_split: Callable[[str, int], None]
    send_to_driver: Callable[[str, int, Batch], None]
    driver_backlog: Callable[[str, int], int]


class OperatorChain:
    """The operators of one subtask. `exchanges[(operator, tag)]` are the receivers outside the chain."""

    def __init__(
        self,
        vertex: JobVertex,
        subtask: int,
        host: ChainHost,
        metrics: TaskMetrics,
        exchanges: dict[tuple[int, str | None], list[Receiver]],
    ) -> None:
        self._vertex = vertex
        self.current = vertex.operators[0].name
        """The operator that was entered last from outside; for messages about a slot that hangs."""
        counts = [metrics.operator(spec.name) for spec in vertex.operators]
        receivers: dict[tuple[int, str | None], list[Receiver]] = {k: list(v) for k, v in exchanges.items()}
        built: list[Operator | None] = [None] * len(vertex.operators)
        for i in range(len(vertex.operators) - 1, -1, -1):
            spec = vertex.operators[i]

            def emit_main(batch: Batch, out: Receiver = _fan_out(receivers.get((i, None), [])), c=counts[i]) -> None:  # type: ignore[no-untyped-def]
                c.records_out += batch.num_rows
                out(batch)

            sides = {
                tag: _fan_out(found) for (op, tag), found in receivers.items() if op == i and tag is not None
            }

            def emit_side(tag: str, batch: Batch, sides: dict[str, Receiver] = sides) -> None:
                out = sides.get(tag)
                if out is not None:
                    out(batch)

            context = OperatorContext(
                host.job_id,
                host.attempt,
                spec.id,
                spec.name,
                subtask,
                vertex.parallelism,
                vertex.max_parallelism,
                host.clock,
                host.options,
                metrics.counter,
                emit_main,
                emit_side,
                _bind(host.request_split, spec.id, subtask),
                host.wake,
                _bind(host.send_to_driver, spec.id, subtask),
                _bind(host.driver_backlog, spec.id, subtask),
            )
            operator = build_operator(spec, context)
            built[i] = operator
            for link in vertex.links:
                if link.target == i:
                    receivers.setdefault((link.source, link.tag), []).append(_chained(operator, counts[i]))
        self.operators: list[Operator] = [o for o in built if o is not None]
        self._ready_checks = [o for o in self.operators if type(o).is_ready is not Operator.is_ready]
        head = self.operators[0]
        self.source = head if isinstance(head, SourceOperator) else None
        self._head = head
        self._enter = _entry(head)
        self._head_counts = counts[0]
        self._opened = 0

    def open(self) -> None:
        """Open all operators, last first, so that each can emit from the start."""
        for operator in reversed(self.operators):
            self._opened += 1
            operator.open()

    def process(self, batch: Batch, input_index: int) -> None:
        """Run a batch through the whole chain."""
        self._head_counts.records_in += batch.num_rows
        self._enter(batch, input_index)

    def is_ready(self) -> bool:
        """Whether every operator takes records now."""
        return all(o.is_ready() for o in self._ready_checks)

    def end_input(self, input_index: int) -> None:
        """One input of the head has ended."""
        self._head.end_input(input_index)

    def finish(self) -> None:
        """All inputs have ended: finish the operators in order, each before the next hears of it."""
        for i, operator in enumerate(self.operators):
            if i:
                operator.end_input(0)
            operator.finish()

    def close(self) -> list[BaseException]:
        """Close every operator that was opened, whatever fails; returns what failed."""
        errors: list[BaseException] = []
        for operator in self.operators[len(self.operators) - self._opened :]:
            try:
                operator.close()
            except BaseException as e:
                errors.append(e)
        self._opened = 0
        return errors


def _entry(operator: Operator) -> Callable[[Batch, int], None]:
    """How to call an operator: one that needs rows gets a large batch in parts whose rows fit the caches.

    Making 65,536 rows at once and going over them operator by operator costs half as much again.
    """
    process = operator.process
    if not operator.operation.rows:
        return process

    def process_parts(batch: Batch, input_index: int) -> None:
        if batch.has_rows or batch.num_rows <= ROWS_AT_ONCE:
            process(batch, input_index)
            return
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            process(batch.slice(start, min(ROWS_AT_ONCE, batch.num_rows - start)), input_index)

    return process_parts


def _fan_out(receivers: list[Receiver]) -> Receiver:
    if len(receivers) == 1:
        return receivers[0]
    if not receivers:
        return _drop

    def to_all(batch: Batch) -> None:
        for receiver in receivers:
            receiver(batch)

    return to_all


def _drop(batch: Batch) -> None:
    """Nobody listens to this output."""


def _chained(operator: Operator, counts) -> Receiver:  # type: ignore[no-untyped-def]
    process = _entry(operator)

    def receive(batch: Batch) -> None:
        counts.records_in += batch.num_rows
        process(batch, 0)

    return receive


def _bind(function, operator_id, subtask):  # type: ignore[no-untyped-def]
    return lambda *args: function(operator_id, subtask, *args)
