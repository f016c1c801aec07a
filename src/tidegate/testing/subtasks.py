"""The subtask that a test makes a reader, a writer or an operator for."""

from __future__ import annotations

from tidegate.core.ids import OperatorId
from tidegate.core.subtask_info import SubtaskInfo


def subtask_info(
    operator_name: str = "operator",
    subtask_index: int = 0,
    parallelism: int = 1,
    *,
    job_id: str = "test-job",
    attempt: int = 0,
    operator_id: str = "test-operator",
) -> SubtaskInfo:
    """A subtask of an operator that no job runs."""
    return SubtaskInfo(
        job_id=job_id,
        attempt=attempt,
        operator_id=OperatorId(operator_id),
        operator_name=operator_name,
        subtask_index=subtask_index,
        parallelism=parallelism,
        max_parallelism=max(128, parallelism),
    )
