"""Deduplication within a time span: builds the operator of `KeyedStream.deduplicate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.api.functions import OutputTag
from tidegate.api.joins import check_late_tag
from tidegate.api.keyed_streams import KeyedStream
from tidegate.api.streams import DataStream
from tidegate.api.windows import LONGEST_MS
from tidegate.core.durations import Duration, parse_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.program.join_operations import Deduplicate
from tidegate.program.side_outputs import declare_side_outputs
from tidegate.records.type_variables import T


def deduplicated(
    stream: KeyedStream[Any, T],
    within: Duration,
    keep: str,
    late: OutputTag[T] | None,
    settings: Mapping[str, Any],
) -> DataStream[T]:
    """Check the arguments of `KeyedStream.deduplicate` and add its operator."""
    try:
        within_ms = parse_duration_ms(within)
    except ValueError as e:
        raise ProgramError(f"deduplicate(within={within!r}): {e}") from None
    if within_ms <= 0:
        raise ProgramError(f"deduplicate(within={within!r}): the time must be longer than 0")
    if within_ms > LONGEST_MS:
        raise ProgramError(f"deduplicate(within={within!r}): the time is longer than 10,000 years")
    if keep != "first":
        raise ProgramError(
            f'deduplicate(keep={keep!r}): only "first" is there, which emits at once. The last record of a time span '
            f"is known only at its end: window(TumblingEventTimeWindows(...)).aggregate(price=Last('price'), ...) "
            f"has the values with the latest timestamps"
        )
    if late is not None:
        check_late_tag(late, stream, "deduplicate(late_data=...)")
    operation = Deduplicate(stream._key_spec, within_ms, None if late is None else late.id)
    result = stream._then(operation, "deduplicate", stream.record_type, settings)
    if late is not None:
        declare_side_outputs(result, (late,))
        result._node.side_outputs[late.id] = stream.record_type
    return result
