"""The plan as a Mermaid flowchart: a subgraph per task, and per query in it; exchanges have their partitioning."""

from __future__ import annotations

import json

from tidegate.graph.explain_plan import Plan, PlannedOperator, PlannedTask


def mermaid_of(plan: Plan) -> str:
    """The flowchart; operators that run the user's Python per record have round ends."""
    title = json.dumps(f"{plan.name}, slots needed: {plan.slots.total}", ensure_ascii=False)
    lines = ["---", f"title: {title}", "---", "flowchart LR"]
    for task in plan.tasks:
        title = f"task {task.id} · parallelism {task.parallelism} · {_text(task.slot_sharing_group)}"
        lines.append(f'  subgraph t{task.id}["{title}"]')
        lines.append("    direction TB")
        first, last = {q[0] for q in task.queries}, {q[-1] for q in task.queries}
        for i, operator in enumerate(task.operators):
            lines += [f'    subgraph t{task.id}q{i}["one polars query"]'] if i in first else []
            lines.append(f"    {_node(task, i)}{_shape(operator)}")
            lines += ["    end"] if i in last else []
        for call in task.calls:
            tag = f'|"{_text(call.tag)}"|' if call.tag is not None else ""
            lines.append(f"    {_node(task, call.source)} -->{tag} {_node(task, call.target)}")
        lines.append("  end")
    for e in plan.exchanges:
        label = _text(e.partitioning if e.tag is None else f"{e.tag}: {e.partitioning}")
        lines.append(f'  t{e.source_task}o{e.source_operator} ==>|"{label}"| t{e.target_task}o0')
    lines += [f'  unused{i}["{_text(name)} (not run)"]:::unused' for i, name in enumerate(plan.unused)]
    lines.append("  classDef unused stroke-dasharray: 5 5")
    return "\n".join(lines) + "\n"


def _node(task: PlannedTask, position: int) -> str:
    return f"t{task.id}o{position}"


def _shape(operator: PlannedOperator) -> str:
    lines = [operator.kind, *operator.event_time]
    label = _text(operator.name) + "".join(f"<br/><small>{_text(line)}</small>" for line in lines)
    if operator.runs in ("reads", "writes"):
        return f'[["{label}"]]'
    return f'(["{label}"])' if operator.runs == "per record" else f'["{label}"]'


def _text(text: str) -> str:
    """A label. Mermaid would end it at a quote and read markup, so these become entities of its own form."""
    unsafe = '"#<>&\\`|[](){}'
    return "".join(f"#{ord(c)};" if c in unsafe else c for c in " ".join(text.split()))
