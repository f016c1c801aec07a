"""Extracts from Spark's errors and Java stack traces the one line that tells an operator why a gang ended."""

from __future__ import annotations

import re

from tidegate.jobmanager.events import GangEnded, GangFault

_MOST = 600

_REMEDIES = (
    (
        r"((?:ModuleNotFoundError|ImportError): .*)",
        "The Python of the executors lacks it: set PYSPARK_PYTHON (or spark.pyspark.python) to one that has it",
    ),
    (
        r"(\[PYTHON_VERSION_MISMATCH\] .*)",
        "Set PYSPARK_PYTHON (or spark.pyspark.python) to a Python of the driver's version on every executor",
    ),
    (
        # Not if the host only lacks processes, memory or files for now (EAGAIN, ENOMEM, ENFILE, EMFILE).
        r"(Cannot run program (?!.*error[=:] ?(?:11|12|23|24)\b).*)",
        "Set PYSPARK_PYTHON (or spark.pyspark.python) to a Python that exists on every executor",
    ),
)
"""Patterns of faults of the environment, with the remedy for each."""

_LOST = r"ExecutorLostFailure \((executor \S+)[^)]*\)(?: Reason: (.*))?"
_OURS = r"tidegate\.[\w.]+\.(?:\w+(?:Error|Lost)): (.*)"
_RAISED = r"(\w*(?:Error|Exception): .*)"
_JAVA = r"(?:^: |Caused by: )(?:[\w.$]+\.)?(\w+(?:: .*)?)$"
_WRAPPER = re.compile(r"(?:Py4J|Spark|Python)\w*(?:Error|Exception)\b.*")


def explain_end(error: BaseException) -> GangEnded:
    """Why a gang ended, from the error that Spark raised for its job."""
    text = str(error)
    for pattern, remedy in _REMEDIES:
        found = re.search(pattern, text)
        if found:
            return GangEnded(f"{_short(found[1]).rstrip('.')}. {remedy}", GangFault.ENVIRONMENT)
    ours = re.findall(_OURS, text)
    if ours:
        return GangEnded(_short(ours[-1]))
    lost = re.search(_LOST, text)
    if lost:
        reason = (lost[2] or "").strip() or "Spark gives no reason"
        return GangEnded(_short(f"Spark lost its {lost[1]}: {reason}"), GangFault.EXECUTOR_LOST)
    return GangEnded(_short(_deepest(text) or type(error).__name__))


def _deepest(text: str) -> str:
    """The last cause that is not just a wrapper; otherwise the first line."""
    causes = re.findall(_JAVA, text, re.MULTILINE) + re.findall(_RAISED, text)
    telling = [cause for cause in causes if not _WRAPPER.fullmatch(cause)]
    lines = text.strip().splitlines()
    return (telling or causes or lines[:1] or [""])[-1]


def _short(text: str) -> str:
    line = text.strip()
    return line if len(line) <= _MOST else line[:_MOST] + " ..."
