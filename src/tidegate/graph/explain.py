"""`explain`: the plan of a program, for people and for tools, before anything runs; and the plan of a running job.

All formats have the same content: text for a terminal, JSON for tools, Mermaid for documents, SVG to look at.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidegate.core.errors import ProgramError
from tidegate.graph.explain_mermaid import mermaid_of
from tidegate.graph.explain_plan import Plan, plan_of, with_watermarks
from tidegate.graph.explain_svg import svg_of
from tidegate.graph.explain_text import text_of
from tidegate.graph.stream_graph import StreamGraph
from tidegate.metrics.snapshot import JobMetrics


class PlanText(str):
    """A plan in the requested format; a notebook shows it as a picture."""

    _plan: Plan

    @classmethod
    def of(cls, text: str, plan: Plan) -> PlanText:
        made = cls(text)
        made._plan = plan
        return made

    def _repr_html_(self) -> str:
        return svg_of(self._plan)


def explain(stream_graph: StreamGraph, format: str = "text", note: str = "") -> str:
    """Describe the tasks of a graph, why each exchange is needed, the slots needed, and what is slow.

    `format` is "text", "json" (the fields of `explain_plan.Plan`), "mermaid" or "svg"; `note` becomes a warning.
    """
    plan = plan_of(stream_graph)
    return _write(format, msgspec.structs.replace(plan, warnings=[note, *plan.warnings]) if note else plan)


def explain_running(plan: Plan, metrics: JobMetrics, format: str = "text") -> str:
    """As `explain`, for a running job: each operator with its watermark, its lag, and what holds it back."""
    return _write(format, with_watermarks(plan, metrics))


def _write(format: str, plan: Plan) -> str:
    if format not in FORMATS:
        raise ProgramError(f"explain knows the formats {', '.join(FORMATS)}, not {format!r}")
    return PlanText.of(FORMATS[format](plan), plan)


def _json_of(plan: Plan) -> str:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode()


FORMATS: dict[str, Callable[[Plan], str]] = {
    "text": text_of,
    "json": _json_of,
    "mermaid": mermaid_of,
    "svg": svg_of,
}
