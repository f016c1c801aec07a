"""`SubtaskInfo`: which subtask of which operator runs, in which attempt of which job."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.ids import OperatorId
from tidegate.core.key_groups import KeyGroupRange, key_group_range


@dataclass(frozen=True, kw_only=True)
class SubtaskInfo:
    """Made once per operator subtask, by the chain; all contexts refer to it."""

    job_id: str
    attempt: int
    operator_id: OperatorId
    operator_name: str
    subtask_index: int
    parallelism: int
    max_parallelism: int

    @property
    def key_groups(self) -> KeyGroupRange:
        """Those whose state the subtask owns."""
        return key_group_range(self.subtask_index, self.parallelism, self.max_parallelism)


class SubtaskContext:
    """A context of one subtask; shows as its own attributes what `subtask` says."""

    subtask: SubtaskInfo

    @property
    def job_id(self) -> str:
        """The same in all attempts."""
        return self.subtask.job_id

    @property
    def attempt(self) -> int:
        """Grows with every restart."""
        return self.subtask.attempt

    @property
    def operator_name(self) -> str:
        """The name in plans, metrics and errors."""
        return self.subtask.operator_name

    @property
    def subtask_index(self) -> int:
        """From 0 to `parallelism - 1`."""
        return self.subtask.subtask_index

    @property
    def parallelism(self) -> int:
        """How many subtasks the operator has."""
        return self.subtask.parallelism
