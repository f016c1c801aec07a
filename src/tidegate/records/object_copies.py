"""Copies of records without a type: two who hold one must not see what the other does to it, nor to what is inside.

Flink copies such records between chained operators too (unless object reuse is on). We do where a second holder could
notice: where a stream has several consumers in one chain, and where an operator keeps a record that it also emits.
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
    """A record that can be changed, with all that is inside it, without changing `row`.

    Of what cannot be copied (a lock, an open file) only the outermost object is. `memo` is that of `copy.deepcopy`.

    >>> row = {"user": "ann", "seen": [1]}
    >>> copy_object(row)["seen"].append(2); row
    {'user': 'ann', 'seen': [1]}
    """
    kind = type(row)
    if kind in _ATOMS:
        return row
    if kind is tuple or kind is dict:  # most such records, and a deep copy costs ten times as much
        for value in row if kind is tuple else row.values():
            if type(value) not in _ATOMS:
                break
        else:
            return row if kind is tuple else row.copy()
    try:
        return deepcopy(row, memo)
    except Exception:  # noqa: BLE001 -- a user's class may raise anything while it is copied
        if memo is not None:
            memo.clear()  # it may have a copy that is not complete
        return copy(row)


def copy_objects(rows: Iterable[Any]) -> list[Any]:
    """Such copies of some records; what several of them refer to is copied once."""
    memo: dict[int, Any] = {}
    return [copy_object(row, memo) for row in rows]
