"""Whether a job may go on from an older checkpoint when the newest is damaged: decided where it starts and restarts.

A sink that commits with checkpoints may have committed the damaged one already, and what it has committed cannot be
taken back: from an older checkpoint the job would write that output a second time. Nobody can know whether it has, so
the user must say that repeated output is acceptable.
"""

from __future__ import annotations

from tidegate.core.options import Options
from tidegate.graph.job_graph import JobGraph


def refusal(job_graph: JobGraph, options: Options, damaged: str, older: str) -> str:
    """Why a job that promises exactly-once output must not go on from `older`; empty if it may.

    `damaged` names the newer checkpoint, or several, and says what is wrong with it.
    """
    sinks = job_graph.committing_sinks
    if (
        not sinks
        or options.checkpoint_mode != "exactly_once"
        or options.checkpoint_fallback == "repeat-output"
    ):
        return ""
    names = ", ".join(map(repr, sinks))
    who = f"sink {names} commits" if len(sinks) == 1 else f"the sinks {names} commit"
    return (
        f"{damaged.rstrip('.')}. It is newer than {older}, and {who} with checkpoints: what was committed with the "
        f"newer one would be written a second time. Restore the damaged files and resume; or set "
        f"checkpoint.fallback=repeat-output to go on from {older} and have that output twice"
    )
