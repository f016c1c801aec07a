"""The policy for a line that is not a record: fail the job, skip the line, or send it to a side output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.api.functions import OutputTag
from tidegate.core.errors import ProgramError
from tidegate.records.batch import Batch
from tidegate.records.types import record_type_of

FAIL, SKIP = "fail", "skip"
_SIDE = "side:"
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A line that could not be read, as a record of the side output.

    >>> BadRecord("clicks.json", 7, "field 'count': Expected `int`, got `str`", '{"count":"x"}').line
    7
    """

    file: str
    line: int
    reason: str
    text: str


BAD_RECORD_TYPE = record_type_of(BadRecord)


def parse_policy(on_bad_record: Any) -> str:
    """`"fail"`, `"skip"`, or `"side:<tag>"`, the last also from an `OutputTag`."""
    if isinstance(on_bad_record, OutputTag):
        return f"{_SIDE}{on_bad_record.id}"
    if on_bad_record in (FAIL, SKIP):
        return str(on_bad_record)
    if isinstance(on_bad_record, str) and on_bad_record.startswith(_SIDE) and len(on_bad_record) > len(_SIDE):
        return on_bad_record
    raise ProgramError(
        f"on_bad_record cannot be {on_bad_record!r}. Use 'fail', 'skip', or an OutputTag (or 'side:<tag>')."
    )


def side_output_tag(policy: str) -> str | None:
    """The tag id of the policy's side output, if it has one."""
    return policy[len(_SIDE) :] if policy.startswith(_SIDE) else None


def describe(record: BadRecord) -> str:
    """The error message of a job that fails because of this line."""
    text = record.text
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[:_SHOWN_CHARACTERS]}…"
    return (
        f"line {record.line} of {record.file} is not a record: {record.reason}. The line is: {text!r}. "
        f"Correct it, or choose on_bad_record='skip' or a side output."
    )


def to_batch(records: Sequence[BadRecord]) -> Batch:
    return Batch(BAD_RECORD_TYPE, rows=list(records))
