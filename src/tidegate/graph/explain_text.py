"""The plan as text for a terminal."""

from __future__ import annotations

from tidegate.core.words import number_of
from tidegate.graph.explain_plan import Plan, PlannedExchange, PlannedOperator, PlannedState, PlannedTask

LONGEST_DETAIL = 100


def text_of(plan: Plan) -> str:
    """The plan task by task, then how operators run, what is not run, and what is slow."""
    groups = ", ".join(f"{group} {slots}" for group, slots in plan.slots.by_group.items())
    lines = [
        (
            f"job {plan.name!r}: {number_of(len(plan.tasks), 'task')}, "
            f"{number_of(plan.slots.total, 'slot')} needed ({groups})"
        )
    ]
    outgoing: dict[int, list[PlannedExchange]] = {}
    for exchange in plan.exchanges:
        outgoing.setdefault(exchange.source_task, []).append(exchange)
    for task in plan.tasks:
        lines += ["", *_task(task, outgoing.get(task.id, []), plan)]
    lines += ["", *_summary(plan)]
    return "\n".join(lines) + "\n"


def _task(task: PlannedTask, outgoing: list[PlannedExchange], plan: Plan) -> list[str]:
    lines = [
        (
            f"task {task.id}, parallelism {task.parallelism} of at most {task.max_parallelism}, "
            f"slot-sharing group {task.slot_sharing_group}"
        )
    ]
    callers = {c.target: c for c in task.calls}
    queries = {position: query for query in task.queries for position in query}
    for position, operator in enumerate(task.operators):
        call, query = callers.get(position), queries.get(position)
        arrow = "" if call is None else "-> "
        if call is not None and (call.source != position - 1 or call.tag is not None):
            tag = f" side output {call.tag!r}" if call.tag is not None else ""
            arrow = f"-> (from {task.operators[call.source].name}{tag}) "
        if query is not None and query[0] == position:
            lines.append(f"  {arrow}one polars query of {len(query)} operators:")
            arrow = "   "
        indent = "  " if query is None else "     "
        lines.append(f"{indent}{arrow}{operator.name}{_facts(operator)}")
        more = [
            *operator.event_time,
            *(f"side output {tag}: {t}" for tag, t in operator.side_outputs.items()),
        ]
        lines += [f"{indent}     {line}" for line in [*more, *map(_state, operator.states)]]
    for e in outgoing:
        tag = f" side output {e.tag!r} of" if e.tag is not None else ""
        source = (
            f" from{tag} {task.operators[e.source_operator].name}" if len(task.operators) > 1 or tag else ""
        )
        slot = f" (input {e.input})" if e.input else ""
        lines.append(f"  => task {e.target_task}{slot}{source} by {e.partitioning}, not chained: {e.because}")
    return lines


def _facts(operator: PlannedOperator) -> str:
    detail = operator.detail
    if len(detail) > LONGEST_DETAIL:
        detail = f"{detail[: LONGEST_DETAIL - 1]}…"
    facts = [f"{operator.kind}: {detail}" if detail else operator.kind]
    if operator.uid is not None:
        facts.append(f"uid {operator.uid}")
    if operator.runs in ("vectorised", "per record"):
        facts.append(operator.runs)
    out = f" : {operator.output_type}" if operator.output_type else ""
    return f" [{'; '.join(facts)}]{out}"


def _state(state: PlannedState) -> str:
    facts = [] if state.ttl is None else [f"time to live {state.ttl}"]
    if state.serializer != "arrow":
        facts.append(f"serializer {state.serializer}")
    more = f" ({'; '.join(facts)})" if facts else ""
    return f"{state.scope} state {state.name}: {state.kind} of {state.type}{more}"


def _summary(plan: Plan) -> list[str]:
    lines = []
    per_record, vectorised = plan.operators("per record"), plan.operators("vectorised")
    if per_record:
        lines.append(f"your Python, per record: {', '.join(o.name for o in per_record)}")
    if vectorised:
        lines.append(f"vectorised: {', '.join(o.name for o in vectorised)}")
    if plan.state_backend:
        lines.append(f"keyed state: {plan.state_backend} backend")
    lines.append(f"checkpoints: {plan.checkpoints}")
    lines += [f"  {guarantee}" for guarantee in plan.guarantees]
    if plan.unused:
        lines.append(f"not run, because they lead to no sink: {', '.join(plan.unused)}")
    return lines + plan.warnings
