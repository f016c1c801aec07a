"""`Row`: a tuple for an Arrow schema; its fields are read by attribute, by name or by position."""

from __future__ import annotations

import datetime
from collections import namedtuple
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self


class Row(tuple[Any, ...]):
    """A record without a class in the program, such as the results of `select`, or dicts in a list.

    A field is read as `row.app`, as `row["app"]` or by position. Each list of columns has its own subclass.

    >>> isinstance(row_class(("app",))("mail"), Row)
    True
    """

    __slots__ = ()

    def __new__(cls, *values: object, **fields: object) -> Self:
        raise TypeError(
            "a Row is made from columns, not by hand. Return a dict or a tuple from a function with "
            "returns=pyarrow.schema([...]), or use a dataclass or a NamedTuple"
        )

    if TYPE_CHECKING:  # what a subclass has; a type checker does not know the columns
        count: Any  # a column, as in the rows of count(), not the method of a tuple
        index: Any

        def __getattr__(self, name: str) -> Any: ...

        def __getitem__(self, key: Any) -> Any: ...

        def as_dict(self) -> dict[str, Any]:
            """The row as a dictionary by column name."""
            ...


def _words(value: Any) -> str:
    """A value in the `repr` of a row: its own `repr`, but times as people write them.

    >>> _words(datetime.datetime(2026, 1, 1, 12, 0, 10, tzinfo=datetime.UTC)), _words("a")
    ('2026-01-01 12:00:10Z', "'a'")
    """
    if isinstance(value, datetime.datetime):
        whole_ms = value.microsecond and value.microsecond % 1000 == 0
        return value.isoformat(" ", "milliseconds" if whole_ms else "auto").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, datetime.date) else repr(value)


def _restore(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_class(names)._make(values)


@lru_cache(maxsize=1024)
def row_class(names: tuple[str, ...]) -> Any:
    """The row class for these column names; one class per list of names and process.

    A column whose name is not a Python identifier is read as `row["the name"]`.

    >>> Row = row_class(("app_id", "the count"))
    >>> row = Row("app-1", 3)
    >>> row.app_id, row["the count"]
    ('app-1', 3)
    >>> row
    Row(app_id='app-1', 'the count'=3)
    """
    fields = [n if n.isidentifier() and not n.startswith("_") else f"f{i}" for i, n in enumerate(names)]
    base = namedtuple("Row", fields, rename=True)  # type: ignore[misc]
    positions = {name: i for i, name in enumerate(names)}

    shown = [name if name.isidentifier() else repr(name) for name in names]

    class RowOfColumns(base, Row):
        __slots__ = ()

        def __getitem__(self, key: Any) -> Any:
            if type(key) is str:
                try:
                    key = positions[key]
                except KeyError:
                    raise KeyError(f"no column {key!r}; the row has {', '.join(names)}") from None
            return tuple.__getitem__(self, key)

        def __repr__(self) -> str:
            values: tuple[Any, ...] = self
            return f"Row({', '.join(f'{n}={_words(v)}' for n, v in zip(shown, values, strict=True))})"

        def as_dict(self) -> dict[str, Any]:
            """The row as a dictionary by column name."""
            return dict(zip(names, self, strict=True))

        def __reduce__(self) -> Any:
            return _restore, (names, tuple(self))

    RowOfColumns.__name__ = RowOfColumns.__qualname__ = "Row"
    return RowOfColumns
