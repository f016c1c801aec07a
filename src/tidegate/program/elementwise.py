"""Which polars expressions compute each row from that row alone; all others are refused when the program is built.

A batch ends where a source or a channel happened to end it, and after a recovery it may end elsewhere. So the value of
an expression must not depend on other rows of the batch. polars knows this of each of its functions (its streaming
engine cuts columns too), but answers only for the top of an expression. So this module walks the whole tree in the form
in which polars serialises it. It refuses any kind of node that it does not know, by name: another version of polars can
make it too strict, never too lax.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import polars as pl

from tidegate.core.errors import ProgramError

Node = Any
"""A part of a serialised expression: `{kind: content}`, or the kind alone."""

_LEAVES = frozenset({"Column", "Selector", "Field", "DataTypeFunction"})

_ROW_WISE: dict[str, Callable[[Any], list[Node]]] = {
    "Alias": lambda content: content[:1],
    "KeepName": lambda content: [content],
    "RenameAlias": lambda content: [content["expr"]],
    "Cast": lambda content: [content["expr"]],
    "BinaryExpr": lambda content: [content["left"], content["right"]],
    "Ternary": lambda content: [content["predicate"], content["truthy"], content["falsy"]],
    "StructEval": lambda content: [content["expr"], *content["evaluation"]],
}
"""Kinds of node that compute a row from the same row of their inputs, and where those inputs are."""

_MANY = (
    "look at several records with a window, a running result (key_by(...).sum(...)) or keyed state (process)"
)
_ORDER = "what depends on other records, or on their order, is for keyed state: key_by(...).process(...)"
_LENGTH = "make more or fewer records with flat_map(...) or filter(...)"
_RANDOM = "draw in a map(...) function instead, by something that is in the record (a hash of its id)"
_SET = "give the values themselves, as a list, or a column of lists"
_UDF = "use map_elements(...), or say is_elementwise=True if each result depends on its own record alone"
_SERIES = "give one value (pl.lit), or look values up with replace(...) or a broadcast stream"
_FORMAT = "give the format: polars guesses it from the first records of a batch"
_CODES = "cast to a pl.Enum with the categories in their order"

_REFUSED: dict[str, str] = {
    "Agg": _MANY,
    "AnonymousAgg": _MANY,
    "Len": _MANY,
    "Over": _MANY,
    "Rolling": _MANY,
    "Sort": _ORDER,
    "SortBy": _ORDER,
    "Gather": _ORDER,
    "Slice": _ORDER,
    "Filter": _LENGTH,
    "Explode": _LENGTH,
}

_SETS: dict[tuple[str, ...], slice] = {
    ("Boolean", "IsIn"): slice(1, 2),
    ("Replace",): slice(1, 3),
    ("ReplaceStrict",): slice(1, 3),
    ("Business", "BusinessDayCount"): slice(2, 3),
    ("Business", "AddBusinessDay"): slice(2, 3),
    ("Business", "IsBusinessDay"): slice(1, 2),
}
"""Functions with inputs that are sets of values. A Series is such a set; a plain column would be that of its batch."""

_TYPED = frozenset({("Reinterpret",), ("ArrayExpr", "ToStruct"), ("StructExpr", "SelectFields")})
"""Row-wise functions that polars does not report as such, because it needs the types of their inputs first."""

_OF_ONE_LIST = frozenset({"List", "ListAgg", "Array", "ArrayAgg"})
"""Nodes that evaluate an expression on the elements of one record's list."""


class _Refusal(Exception):
    def __init__(self, node: Node, advice: str) -> None:
        super().__init__(advice)
        self.node = node
        self.advice = advice


def refuse_batch_dependent(form: str, expressions: Sequence[pl.Expr], frame: pl.DataFrame) -> None:
    """Raise `ProgramError` for the first part of an expression whose value could depend on how batches are cut.

    `frame` has the columns that the expressions read, and no rows.
    """
    for expression in expressions:
        try:
            root = msgspec.json.decode(expression.meta.serialize(format="json"))
            _walk(root, frame)
        except _Refusal as refusal:
            part, whole = _text(refusal.node), str(expression)
            where = "" if part == whole else f" in {whole}"
            raise ProgramError(
                f"{form}: {part}{where} is not computed from one record alone. A batch ends anywhere, and elsewhere "
                f"after a recovery, so the result would change with it. Instead: {refusal.advice}"
            ) from None
        except RecursionError:
            raise ProgramError(
                f"{form}: the expression {str(expression)[:100]}… is nested too deep to be checked. Divide it among "
                f"several with_columns(...), or use a horizontal function such as pl.sum_horizontal(...)"
            ) from None
        except (pl.exceptions.PolarsError, TypeError, ValueError) as e:
            raise ProgramError(
                f"{form}({expression}): polars cannot serialise the expression: {e}. A function in it must be "
                f"one that can be pickled"
            ) from e


def _walk(root: Node, frame: pl.DataFrame) -> None:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        kind, content = _kind(node)
        if kind in _LEAVES:
            continue
        if kind in _ROW_WISE:
            waiting += _ROW_WISE[kind](content)
        elif kind == "Literal":
            if "Series" in content:  # its length does not follow the batch
                raise _Refusal(node, _SERIES)
        elif kind == "Function":
            waiting += _checked_inputs(node, frame)
        elif kind == "AnonymousFunction":
            if not _is_declared_row_wise(content):
                raise _Refusal(node, _UDF)
            waiting += content["input"]
        elif kind == "Eval" and _kind(content["variant"])[0] in _OF_ONE_LIST:
            # The inner expression sees only the list of one record, so only randomness is refused.
            _refuse_chance(content["evaluation"])
            waiting.append(content["expr"])
        else:
            raise _Refusal(node, _REFUSED.get(kind, _ORDER))


def _checked_inputs(node: Node, frame: pl.DataFrame) -> list[Node]:
    """The inputs of a function that works row by row, without those that are literal sets."""
    content = node["Function"]
    inputs: list[Node] = content["input"]
    path = _path(content["function"])
    if path[0] == "Random" or path[-1] == "Sample":
        raise _Refusal(node, _RANDOM)
    literal_sets = set()
    for i in range(len(inputs))[_SETS.get(path, slice(0))]:
        if _kind(inputs[i])[0] == "Literal":
            literal_sets.add(i)
        elif _is_flat(inputs[i], frame):
            raise _Refusal(node, _SET)
    if path[-1] in ("ToPhysical", "Physical") and _is_categorical(inputs[0], frame):
        raise _Refusal(node, _CODES)  # each process numbers categories in the order of arrival
    row_wise, as_long = _flags(content, literal_sets)
    if not row_wise:
        raise _Refusal(node, _FORMAT if path[-1] == "Strptime" else _ORDER if as_long else _MANY)
    if not as_long:
        raise _Refusal(node, _LENGTH)
    return [each for i, each in enumerate(inputs) if i not in literal_sets]


def _is_declared_row_wise(content: Any) -> bool:
    """Whether a Python function is called per element, or declared to behave as if it were."""
    inputs = [{"Literal": {"Dyn": {"Int": 0}}}] * len(
        content["input"]
    )  # literals, since it would need the types of columns
    try:
        return _expression({"AnonymousFunction": content | {"input": inputs}}).meta.is_row_separable()
    except pl.exceptions.PolarsError:
        return False


def _flags(function: Any, literal_sets: set[int]) -> tuple[bool, bool]:
    """Whether polars says that a function works row by row, whatever its inputs, and whether it keeps the row count."""
    path = _path(function["function"])
    if path in _TYPED or (path == ("Bin",) and "Breaks" in str(function["function"]["Bin"]["method"])):
        return True, True
    inputs = [
        each if _kind(each)[0] == "Literal" and i not in literal_sets else {"Column": "_"}
        for i, each in enumerate(function["input"])
    ]
    try:
        alone = _expression({"Function": function | {"input": inputs}}).meta
        return alone.is_row_separable(), alone.is_length_preserving() or alone.is_scalar()
    except pl.exceptions.PolarsError:  # it needs the types of its inputs
        return False, True


def _refuse_chance(root: Node) -> None:
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if "Function" in part and isinstance(part["Function"], dict):
                path = _path(part["Function"]["function"])
                if path[0] == "Random" or path[-1] == "Sample":
                    raise _Refusal(part, _RANDOM)
            waiting += part.values()
        elif isinstance(part, list) and part and not isinstance(part[0], int):
            waiting += part


def _kind(node: Node) -> tuple[str, Any]:
    if isinstance(node, str):
        return node, None
    ((kind, content),) = node.items()
    return kind, content


def _path(function: Any) -> tuple[str, ...]:
    """The name of a function, after that of its namespace if it has one."""
    if isinstance(function, str):
        return (function,)
    kind, content = _kind(function)
    if isinstance(content, str) and content[:1].isupper():
        return kind, content
    if isinstance(content, dict) and len(content) == 1 and next(iter(content))[:1].isupper():
        return kind, next(iter(content))
    return (kind,)


def _expression(node: Node) -> pl.Expr:
    return pl.Expr.deserialize(io.BytesIO(msgspec.json.encode(node)), format="json")


def _is_flat(node: Node, frame: pl.DataFrame) -> bool:
    kind = _type(node, frame)
    return kind is not None and not kind.is_nested()


def _is_categorical(node: Node, frame: pl.DataFrame) -> bool:
    return _type(node, frame) == pl.Categorical


def _type(node: Node, frame: pl.DataFrame) -> pl.DataType | None:
    """The type of a part; None if polars finds none: evaluating the whole expression then gives the reason."""
    try:
        return frame.lazy().select(_expression(node).alias("_")).collect_schema()["_"]
    except pl.exceptions.PolarsError:
        return None


def _text(node: Node) -> str:
    """The part as polars prints it, or only its kind if polars cannot deserialise it."""
    try:
        return str(_expression(node))
    except pl.exceptions.PolarsError:
        return _kind(node)[0]


def columns_read(expression: pl.Expr, frame: pl.DataFrame) -> set[str]:
    """The columns of the frame that an expression reads, by name, by pattern or by type."""
    found: set[str] = set()
    waiting = [msgspec.json.decode(expression.meta.serialize(format="json"))]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += [p for p in part if isinstance(p, (dict, list))]
        elif isinstance(part, dict):
            if isinstance(part.get("Column"), str):
                found.add(part["Column"])
            elif "Selector" in part:
                found |= set(frame.select(_expression(part)).columns)
            elif "Literal" not in part:
                waiting += part.values()
    return found
