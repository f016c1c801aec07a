"""State, declared where it is used: as attributes of a function class.

    class Dedupe(ProcessFunction):
        seen = ValueState(bool, default=False)

        def process(self, value, context):
            if not self.seen.value():
                self.seen.update(True)
                yield value

The class holds declarations: names and types, no values. In the slot, before `open`, the runtime sets the live state (a
subclass with the same methods) under the same name on the instance, so that using it costs no more than an attribute.
Keyed state is that of the current record's key; without a key, using it raises an error that names the state.

What `value()`, `get()` and the iterators return belongs to the caller: changing it does not change the state until it
is written back. That holds on every backend.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypedDict,
    Unpack,
    overload,
)

import cloudpickle
from typing_extensions import TypeForm

from tidegate.core.durations import parse_duration_ms
from tidegate.core.errors import ProgramError, TidegateError
from tidegate.records.type_variables import ACC, IN, OUT, K, T, V
from tidegate.records.types import RecordType


class StateAccessError(TidegateError):
    """State was used where it does not exist: outside a slot, or keyed state without a key."""


class StateSerializer(Protocol[T]):
    """Turns values that have no Arrow type into bytes; the opt-in for what type hints cannot describe.

    `name` is stored in checkpoints and compared on restore: change it when the bytes change.
    """

    name: str

    def serialize(self, value: T) -> bytes:
        """Return the bytes of a value."""
        ...

    def deserialize(self, data: bytes) -> T:
        """Return the value of these bytes."""
        ...


class PickleSerializer:
    """The opt-in for any Python object: `ValueState(Model, serializer=PickleSerializer())`.

    A pickle can be read only while its classes can be imported. (Classes of the script itself are pickled by value, and
    come back as equal but not identical classes.) Reading one runs code: use it only for checkpoints that you trust.
    """

    name = "pickle"

    def serialize(self, value: object) -> bytes:
        try:
            return pickle.dumps(value, protocol=5)
        except Exception:  # noqa: BLE001 - a class of the user's script cannot be imported, but can be pickled by value
            return bytes(cloudpickle.dumps(value, protocol=5))

    def deserialize(self, data: bytes) -> Any:
        return pickle.loads(data)


@dataclass(frozen=True)
class StateTtl:
    """When a value expires: `duration` after it was last written (or read, with `refresh_on_read`).

    Each entry of a map expires on its own, a list as a whole. Expired values are invisible at once and removed soon
    after. With `time="event"` the time is the watermark; a value written before the first watermark counts from there.
    The end of input expires nothing. If the machine's clock is set back, state keeps the later time: expired values do
    not come back. With `refresh_on_read`, iterating over a map reads each entry; `is_empty()` reads none.

    >>> StateTtl("1 h")
    StateTtl(duration='1 h', time='processing', refresh_on_read=False)
    """

    duration: str | int
    time: Literal["processing", "event"] = "processing"
    refresh_on_read: bool = False

    @property
    def duration_ms(self) -> int:
        """The duration in milliseconds."""
        return parse_duration_ms(self.duration)

    def __post_init__(self) -> None:
        try:
            short = self.duration_ms <= 0
        except ValueError as e:
            raise ProgramError(f"StateTtl({self.duration!r}): {e}") from None
        if short:
            raise ProgramError(f"StateTtl({self.duration!r}): a time to live must be longer than 0")


class OperatorStateOptions(TypedDict, total=False):
    """The keyword arguments that every state takes."""

    name: str
    serializer: StateSerializer[Any] | None


class StateOptions(OperatorStateOptions, total=False):
    """The keyword arguments of keyed state."""

    ttl: StateTtl | str | None


class StateDeclaration:
    """A named state of a function class. Its name is that of the attribute, unless `name` is given."""

    kind: ClassVar[str]
    how_to_read: ClassVar[str] = "get()"
    how_to_write: ClassVar[str]
    """Calls that read and write it; for messages."""
    name: str = ""
    owner: str = ""

    @property
    def how_to_ask(self) -> str:
        """The call that tells whether it holds something; for messages."""
        return "get() is not None"

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name
        self.owner = owner.__name__

    def _refuse(self) -> NoReturn:
        if not self.owner:
            kind, name = type(self).__name__, self.name or "state"
            raise StateAccessError(
                f"a {kind} that no class declares is no state: it was made in a method, as in `self.{name} = "
                f"{kind}(...)`. Declare it on the class: `{name} = {kind}(...)` in the class body"
            )
        raise StateAccessError(
            f"{type(self).__name__} {self.name!r} of {self.owner} is only a declaration here: "
            f"state exists in the slot, from `open` of its function on"
        )

    def _refuse_operator(self, *operands: object) -> NoReturn:
        raise ProgramError(
            f"state {self.name!r} of {self.owner or 'a function'} is not its value: read that with "
            f"{self.name}.{self.how_to_read}, and write it with {self.name}.{self.how_to_write}"
        )

    if not TYPE_CHECKING:  # type checkers refuse these by themselves
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse_operator
        __lt__ = __le__ = __gt__ = __ge__ = _refuse_operator
        __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = __delitem__ = _refuse_operator

    def __bool__(self) -> NoReturn:
        # Refused, since it is ambiguous: `if state:` could ask whether there is a value, or whether the value is true.
        raise ProgramError(
            f"state {self.name!r} of {self.owner or 'a function'} is neither true nor false, as in `if {self.name}:`. "
            f"Ask what is in it: {self.name}.{self.how_to_ask}"
        )


class KeyedState(StateDeclaration):
    """State of the current record's key; usable in functions on keyed streams only."""

    def __init__(
        self,
        *,
        name: str = "",
        ttl: StateTtl | str | None = None,
        serializer: StateSerializer[Any] | None = None,
    ) -> None:
        self.name = name
        self.ttl = StateTtl(ttl) if isinstance(ttl, str) else ttl
        self.serializer = serializer

    @abstractmethod
    def clear(self) -> None:
        """Forget the key's value."""
        self._refuse()


class ValueState(KeyedState, Generic[T]):
    """One value per key, or `default` if there is none."""

    kind = "value"
    how_to_read = "value()"
    how_to_write = "update(value)"

    @overload
    def __init__(
        self: ValueState[V | None], type: TypeForm[V], default: None = None, **options: Unpack[StateOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: ValueState[V], type: TypeForm[V], default: V, **options: Unpack[StateOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: ValueState[Any], type: RecordType, default: object = None, **options: Unpack[StateOptions]
    ) -> None: ...

    def __init__(self, type: object, default: Any = None, **options: Unpack[StateOptions]) -> None:
        super().__init__(**options)
        self.type = type
        self.default = default

    @property
    def how_to_ask(self) -> str:
        return "value() is not None" if self.default is None else "value(), the default if there is nothing"

    def value(self) -> T:
        """The key's value, or the default."""
        self._refuse()

    def update(self, value: T) -> None:
        """Set the key's value; None is the same as `clear`."""
        self._refuse()

    def clear(self) -> None:
        """Forget the key's value."""
        self._refuse()


class ListState(KeyedState, Generic[T]):
    """A list per key."""

    kind = "list"
    how_to_write = "add(value), or update(values) for the whole list"
    how_to_ask = "get(), an empty list if there is nothing"

    def __init__(self, type: TypeForm[T], **options: Unpack[StateOptions]) -> None:
        super().__init__(**options)
        self.type = type

    def get(self) -> list[T]:
        """The key's elements, oldest first; an empty list if there are none."""
        self._refuse()

    def add(self, value: T) -> None:
        """Append an element."""
        self._refuse()

    def add_all(self, values: Iterable[T]) -> None:
        """Append elements."""
        self._refuse()

    def update(self, values: Iterable[T]) -> None:
        """Replace the whole list."""
        self._refuse()

    def clear(self) -> None:
        """Forget the key's list."""
        self._refuse()


class Entries(StateDeclaration, Generic[K, V]):
    """The methods of all states that are maps."""

    kind = "map"
    how_to_read = "get(key), contains(key) or items()"
    how_to_write = "put(key, value)"
    how_to_ask = "contains(key), or is_empty()"

    def __init__(
        self, key_type: TypeForm[K], value_type: TypeForm[V], **options: Unpack[StateOptions]
    ) -> None:
        super().__init__(**options)  # type: ignore[misc]  # that of keyed or of operator state
        self.key_type = key_type
        self.value_type = value_type

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: T) -> V | T: ...

    def get(self, key: K, default: T | None = None) -> V | T | None:
        """The entry's value, or `default`."""
        self._refuse()

    def put(self, key: K, value: V) -> None:
        """Set an entry."""
        self._refuse()

    def remove(self, key: K) -> None:
        """Remove an entry, if it exists."""
        self._refuse()

    def contains(self, key: K) -> bool:
        """Whether there is an entry."""
        self._refuse()

    def items(self) -> Iterator[tuple[K, V]]:
        """All entries. Their order depends on the backend and means nothing."""
        self._refuse()

    def keys(self) -> Iterator[K]:
        """The entries' keys."""
        return (k for k, _ in self.items())

    def values(self) -> Iterator[V]:
        """The entries' values."""
        return (v for _, v in self.items())

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return next(self.items(), None) is None

    def clear(self) -> None:
        """Remove all entries."""
        self._refuse()


class MapState(Entries[K, V], KeyedState):
    """A map per key."""


class ReducingState(KeyedState, Generic[T]):
    """One value per key; each added value is reduced into it by `function(so_far, value)`."""

    kind = "reducing"
    how_to_write = "add(value)"

    def __init__(
        self, type: TypeForm[T], function: Callable[[T, T], T], **options: Unpack[StateOptions]
    ) -> None:
        super().__init__(**options)
        self.type = type
        self.function = function

    def get(self) -> T | None:
        """The result so far, or None if nothing was added."""
        self._refuse()

    def add(self, value: T) -> None:
        """Reduce a value into it."""
        self._refuse()

    def clear(self) -> None:
        """Forget the key's value."""
        self._refuse()


class AggregateFunction(ABC, Generic[IN, ACC, OUT]):
    """An incremental aggregation with an accumulator, which is kept in state."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """Return the accumulator of no records."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Return the accumulator with one more record."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """Return the result of an accumulator."""

    def merge(self, left: ACC, right: ACC) -> ACC:
        """Return two accumulators as one; needed only for windows that merge (sessions)."""
        raise ProgramError(f"{type(self).__name__} cannot merge two accumulators. Define merge(left, right)")


class AggregatingState(KeyedState, Generic[IN, OUT]):
    """An accumulator per key, stored as `accumulator_type`."""

    kind = "aggregating"
    how_to_write = "add(value)"

    def __init__(
        self,
        accumulator_type: TypeForm[ACC],
        function: AggregateFunction[IN, ACC, OUT],
        **options: Unpack[StateOptions],
    ) -> None:
        super().__init__(**options)
        self.type = accumulator_type
        self.function = function

    def get(self) -> OUT | None:
        """The result of the values added so far, or None if there are none."""
        self._refuse()

    def add(self, value: IN) -> None:
        """Add a value."""
        self._refuse()

    def clear(self) -> None:
        """Forget the key's accumulator."""
        self._refuse()


class OperatorState(StateDeclaration):
    """State of a subtask instead of a key; usable in every function."""

    def __init__(self, *, name: str = "", serializer: StateSerializer[Any] | None = None) -> None:
        self.name = name
        self.serializer = serializer


class OperatorListState(OperatorState, Generic[T]):
    """A list per subtask; on rescale its entries are distributed over the new subtasks."""

    kind = "list"
    how_to_write = "add(value), or update(values) for the whole list"
    how_to_ask = "get(), an empty list if there is nothing"
    redistribution: ClassVar[str] = "split"

    def __init__(self, type: TypeForm[T], **options: Unpack[OperatorStateOptions]) -> None:
        super().__init__(**options)
        self.type = type

    def get(self) -> list[T]:
        """The entries."""
        self._refuse()

    def add(self, value: T) -> None:
        """Append an entry."""
        self._refuse()

    def update(self, values: Iterable[T]) -> None:
        """Replace the whole list."""
        self._refuse()

    def clear(self) -> None:
        """Remove all entries."""
        self._refuse()


class UnionListState(OperatorListState[T]):
    """A list per subtask; on restore every subtask gets the entries of all subtasks."""

    redistribution = "union"


class BroadcastState(Entries[K, V], OperatorState):
    """A map that is equal in all subtasks. Only broadcast records may change it: for other records it is read-only."""

    redistribution: ClassVar[str] = "broadcast"

    def __init__(
        self, key_type: TypeForm[K], value_type: TypeForm[V], **options: Unpack[OperatorStateOptions]
    ) -> None:
        super().__init__(key_type, value_type, **options)


_DECLARED: Final = "_tidegate_states"


def take_declarations(cls: type) -> None:
    """Move the state declarations of a new class from its attributes to where `declared_states` finds them.

    Functions read their states for every record, and an instance attribute is slow to read if the class has one of the
    same name (CPython 3.11 specialises only the other case). An annotated declaration stays: it may be a field of a
    dataclass. So does one that overrides an attribute of a base, such as a property, which would reappear.
    """
    stays = set(vars(cls).get("__annotations__", ())).union(*map(vars, cls.__mro__[1:]))
    own = {
        name: value
        for name, value in vars(cls).items()
        if isinstance(value, StateDeclaration) and name not in stays
    }
    for name in own:
        delattr(cls, name)
    # A class may be created again from the remaining attributes, for example by @dataclass(slots=True).
    setattr(cls, _DECLARED, vars(cls).get(_DECLARED, {}) | own)


def give_declarations(function: object) -> None:
    """Set the declarations on a new instance; until live states replace them, any use raises an error."""
    for attribute, declaration in _states_of(type(function)).items():
        object.__setattr__(function, attribute, declaration)  # it may be a frozen dataclass


def _states_of(cls: type) -> dict[str, StateDeclaration]:
    found: dict[str, StateDeclaration] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in (vars(base) | vars(base).get(_DECLARED, {})).items():
            if isinstance(value, StateDeclaration):
                found[attribute] = value
            else:
                found.pop(attribute, None)
    return found


def declared_states(function: object) -> dict[str, StateDeclaration]:
    """The states that the class of a function declares, by attribute. Two states of one name are refused."""
    found = _states_of(type(function))
    names: dict[str, str] = {}
    for attribute, declaration in found.items():
        other = names.setdefault(declaration.name, attribute)
        if other != attribute:
            raise ProgramError(
                f"{type(function).__name__} declares two states named {declaration.name!r}: {other} and {attribute}. "
                f"Give one of them another name="
            )
    return found
