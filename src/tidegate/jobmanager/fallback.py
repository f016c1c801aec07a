"""Whether a job may go on from an older checkpoint when the newest is damaged: asked when it starts or restarts.

A sink that commits with checkpoints may have committed the damaged one already, and a commit cannot be undone: from an
older checkpoint the job would write that output a second time. The job cannot know whether the sink has committed, so
the user must say that repeated output is acceptable.
"""

from __future__ import annotations

from tidegate.core.options import Options
from tidegate.graph.job_graph import JobGraph


def must_refuse(job_graph: JobGraph, options: Options) -> bool:
    """Whether the job promises exactly-once output that an older checkpoint would repeat."""
    return (
        bool(job_graph.committing_sinks)
        and options.checkpoint_mode == "exactly_once"
        and options.checkpoint_fallback != "repeat-output"
    )


def refusal(job_graph: JobGraph, damaged: str, older: str) -> str:
    """Why such a job does not go on from `older`, the newest checkpoint whose files have all been verified.

    `damaged` names the newer checkpoints and what is wrong with them.
    """
    sinks = job_graph.committing_sinks
    names = ", ".join(map(repr, sinks))
    who = f"sink {names} commits" if len(sinks) == 1 else f"the sinks {names} commit"
    return (
        f"{damaged.rstrip('.')}. The newest that is whole is {older}, and {who} with checkpoints: what was committed "
        f"after it would be written a second time. Restore the damaged files and resume; or set "
        f"checkpoint.fallback=repeat-output to go on from {older} and have that output twice"
    )
