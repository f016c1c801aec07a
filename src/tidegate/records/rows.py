"""`Row`: a tuple whose fields are read by attribute, by name or by position; made for an Arrow schema."""

from __future__ import annotations

from collections import namedtuple
from functools import lru_cache
from typing import Any


def _restore(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_class(names)._make(values)


@lru_cache(maxsize=1024)
def row_class(names: tuple[str, ...]) -> Any:
    """The row class for these column names; one class per list of names and process.

    A name that is no Python identifier is still read as `row["the name"]`.

    >>> Row = row_class(("app_id", "count"))
    >>> row = Row("app-1", 3)
    >>> row["count"]
    3
    """
    fields = [n if n.isidentifier() and not n.startswith("_") else f"f{i}" for i, n in enumerate(names)]
    base = namedtuple("Row", fields, rename=True)  # type: ignore[misc]
    positions = {name: i for i, name in enumerate(names)}

    class Row(base):
        __slots__ = ()

        def __getitem__(self, key: Any) -> Any:
            if type(key) is str:
                try:
                    key = positions[key]
                except KeyError:
                    raise KeyError(f"no column {key!r}; the row has {', '.join(names)}") from None
            return tuple.__getitem__(self, key)

        def as_dict(self) -> dict[str, Any]:
            """The row as a dictionary by column name."""
            return dict(zip(names, self, strict=True))

        def __reduce__(self) -> Any:
            return _restore, (names, tuple(self))

    return Row
