"""Results of user functions: are they of the declared type, which one is not, and what to say then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.core.errors import SchemaError
from tidegate.operators.failures import OperatorError, position_of
from tidegate.operators.operator import Operator
from tidegate.records.batch import Batch, Origin
from tidegate.records.rows import row_class
from tidegate.records.types import RecordType, RowType, StructType, TupleType, brief

RETURNED = "the function returned the wrong type"


class ResultType:
    """Checks the records that a function made, cheaply, and gives `Row` records their class."""

    def __init__(self, record_type: RecordType) -> None:
        self.record_type = record_type
        self._unchecked = record_type.is_object
        self._row: Any = row_class(tuple(record_type.names)) if isinstance(record_type, RowType) else None

    @property
    def exact_class(self) -> type | None:
        """The class that records have, if that and `exact_length` make them right; one of another needs `adopt`."""
        if self._row is not None:
            row: type = self._row
            return row
        if isinstance(self.record_type, TupleType):
            return tuple
        if isinstance(self.record_type, StructType):
            return self.record_type.exact_class
        cls: type | None = getattr(self.record_type, "python_type", None)
        return None if cls is object else cls

    @property
    def exact_length(self) -> int | None:
        """The length that records of `exact_class` must have; None where the class says it all."""
        return len(self.record_type.schema) if isinstance(self.record_type, TupleType) else None

    def adopt(self, rows: list[Any]) -> list[Any]:
        """The same records, once they are known to be of the type; raises `SchemaError`.

        A tuple or a dict where a `Row` is declared becomes one, so that the next function can read it by name
        whether or not there is an exchange between.
        """
        if self._unchecked:
            return rows
        if self._row is not None:
            return self._as_rows(rows)
        self.record_type.check_rows(rows)
        return rows

    def _as_rows(self, rows: list[Any]) -> list[Any]:
        if set(map(type, rows)) <= {self._row}:
            return rows
        self.record_type.check_rows(rows)
        names, make = self.record_type.names, self._row._make
        if isinstance(rows[0], dict):
            return [make([row.get(name) for name in names]) for row in rows]
        return list(map(make, rows))


def first_misfit(record_type: RecordType, rows: Sequence[Any]) -> int:
    """Index of the first record that is not of the type, its fields included; -1 if all are."""
    for index, row in enumerate(rows):
        try:
            record_type.check_rows([row])
            record_type.to_columns([row])
        except SchemaError:
            return index
    return -1


def wrong_type(error: SchemaError, where: str) -> SchemaError:
    """The same error with what went wrong in front of it."""
    return type(error)(f"{where}: {error}")


def misfit(operator: str, origin: Origin | None, index: int, inputs: list[Any] | None) -> OperatorError:
    """Blame the input whose result has this index; the result itself is in the error's cause."""
    record = "" if inputs is None or index < 0 else brief(inputs[index])
    return OperatorError(operator, position_of(origin, index), record)


def emit_checked(
    operator: Operator, out: list[Any], origin: Origin | None, timestamps: Any, inputs: list[Any] | None
) -> None:
    """Send records of the right class. If their fields turn out wrong later, this operator is to blame."""
    try:
        operator.context.emit(Batch(operator.output_type, rows=out, origin=origin, timestamps=timestamps))
    except SchemaError as e:
        index = first_misfit(operator.output_type, out)
        if index < 0:
            raise
        raise misfit(operator.name, origin, index, inputs) from wrong_type(e, RETURNED)
