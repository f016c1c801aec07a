"""Copies of records without a type, so that one holder does not see another change the record or its contents.

Flink copies such records between all chained operators (unless object reuse is on). We copy only if a second holder
could notice: if a stream has several consumers in one chain, and if an operator keeps a record that it also emits.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy, deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

_ATOMS: Final = frozenset(
    (int, float, complex, bool, str, bytes, type(None), date, datetime, time, timedelta, Decimal)
)


def copy_object(row: Any, memo: dict[int, Any] | None = None) -> Any:
    """A deep copy of a record.

    If something inside cannot be copied (a lock, an open file), the copy is shallow. `memo` is that of `copy.deepcopy`.

    >>> row = {"user": "ann", "seen": [1]}
    >>> copy_object(row)["seen"].append(2); row
    {'user': 'ann', 'seen': [1]}
    """
    kind = type(row)
    if kind in _ATOMS:
        return row
    if kind is tuple or kind is dict:  # the most frequent case; a deep copy costs ten times as much
        for value in row if kind is tuple else row.values():
            if type(value) not in _ATOMS:
                break
        else:
            return row if kind is tuple else row.copy()
    try:
        return deepcopy(row, memo)
    except Exception:  # noqa: BLE001 -- a user's class may raise anything while it is copied
        if memo is not None:
            memo.clear()  # it may contain an incomplete copy
        return copy(row)


def copy_objects(rows: Iterable[Any]) -> list[Any]:
    """Deep copies of records; an object that several of them share is copied once."""
    memo: dict[int, Any] = {}
    return [copy_object(row, memo) for row in rows]
