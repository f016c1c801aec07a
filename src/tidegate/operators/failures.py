"""Failures in user code, with the operator, the record and its position beside the user's own traceback."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any

from tidegate.core.errors import TidegateError
from tidegate.program.foreign_names import translated
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import brief

_log = logging.getLogger(__name__)
_OWN_CODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class OperatorError(TidegateError):
    """User code raised inside an operator. `__cause__` is what it raised."""

    def __init__(self, operator: str, position: str = "", record: str = "") -> None:
        super().__init__(operator, position, record)
        self.operator = operator
        self.position = position
        self.record = record


@contextmanager
def blame(operator: str, position: str = "") -> Iterator[None]:
    """Put the operator's name on whatever is raised inside, once: an inner name stays."""
    try:
        yield
    except (OperatorError, GeneratorExit):
        raise
    except BaseException as e:
        raise OperatorError(operator, position) from e


def rows_of(batch: Batch, operator: str) -> list[Any]:
    """The batch's records; making them may run the user's own constructor."""
    try:
        return batch.rows
    except BaseException as e:
        raise OperatorError(operator, batch_position(batch)) from e


def record_failure(operator: str, batch: Batch, rows: list[Any], records: Iterator[Any]) -> OperatorError:
    """Blame the record that the loop over `records` (an iterator of `rows`) had taken last."""
    index = max(0, len(rows) - length_hint(records) - 1)
    return OperatorError(operator, position_of(batch.origin, index), brief(rows[index]))


def batch_position(batch: Batch) -> str:
    """Where a batch as a whole comes from; empty if unknown."""
    return "" if batch.origin is None else f"the batch that starts at {batch.origin.at(0)}"


def position_of(origin: Origin | None, index: int) -> str:
    """Where the record with this index comes from; empty if unknown."""
    return "" if origin is None or index < 0 else origin.at(index)


def close_blamed(operator: str, close: Callable[[], object], *, clean: bool) -> None:
    """Call the user's `close`. After a clean end its failure is the operator's; after another failure it is logged."""
    if clean:
        with blame(operator):
            close()
        return
    try:
        close()
    except BaseException:  # noqa: BLE001 - the first failure is the one to report, whatever this one is
        _log.warning("operator %r: close() raised as well", operator, exc_info=True)


def user_traceback(error: BaseException) -> str:
    """The traceback with the frames of user code only (tidegate's own frames left out), and the error's line."""
    if isinstance(error, TidegateError):
        return f"{type(error).__name__}: {error}"
    told = translated(error)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_own(f.filename)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join([*lines, *traceback.format_exception_only(told)]).rstrip()


def describe_error(error: BaseException) -> str:
    """One line: the type and the message; `sys.exit` in words, an operator's error as what its code raised."""
    if isinstance(error, OperatorError) and error.__cause__ is not None:
        return f"operator {error.operator!r}: {describe_error(error.__cause__)}"
    if isinstance(error, SystemExit):
        return f"the function called sys.exit({error.code!r})"
    lines = "".join(traceback.format_exception_only(translated(error))).strip().splitlines()
    # The file and the line of a SyntaxError come before it; more lines of a message, and notes, come behind.
    return lines[-1] if isinstance(error, SyntaxError) else lines[0]


def _is_own(filename: str) -> bool:
    return os.path.abspath(filename).startswith(_OWN_CODE + os.sep)
